"""Choosing or starting a cluster, running one round of block tasks, worker-side caches, thread and memory budgets."""

# Hangs on dkgp/cluster/executors/base.py.

from __future__ import annotations

from dkgp.cluster.cache import FeatureCache, worker_cache
from dkgp.cluster.configuration import configured_options
from dkgp.cluster.connect import ClusterOptions, open_executor
from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor, PendingRound
from dkgp.cluster.given_client import Announcer

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
