"""Choosing or starting a cluster, running one round of block tasks, worker-side caches, thread and memory budgets."""

# Hangs on dkgp/cluster/executors/base.py.

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
