"""Choosing or starting a cluster, running one round of block tasks, worker-side caches, thread and memory budgets."""

from __future__ import annotations

from dkgp.cluster.cache import FeatureCache, worker_cache
from dkgp.cluster.connect import ClusterOptions, open_executor
from dkgp.cluster.executors import BlockExecutor, LocalExecutor, PendingRound

__all__ = [
    "BlockExecutor",
    "ClusterOptions",
    "FeatureCache",
    "LocalExecutor",
    "PendingRound",
    "open_executor",
    "worker_cache",
]
