"""Choosing or starting a cluster, running one round of block tasks, worker-side caches, thread and memory budgets."""

# Hangs on dkgp/cluster/executors/base.py.

from __future__ import annotations

from dkgp.cluster.cache import FeatureCache, worker_cache
from dkgp.cluster.client_executor import Announcer
from dkgp.cluster.configuration import configured_options
from dkgp.cluster.connect import open_executor
from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor, PendingRound
from dkgp.cluster.options import ClusterOptions

__all__ = [
    "Announcer",
    "BlockExecutor",
    "ClusterOptions",
    "FeatureCache",
    "LocalExecutor",
    "PendingRound",
    "configured_options",
    "open_executor",
    "worker_cache",
]
