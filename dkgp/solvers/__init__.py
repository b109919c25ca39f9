"""Solvers: one class in one file per method, settings as frozen dataclasses, one driver that owns the loop."""

# Hangs on dkgp/solvers/driver.py.

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
