"""The regularised kernel matrix Kbar = K + s2 I as an object that is never materialised."""

# Hangs on dkgp/operators/block_tasks.py.

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
