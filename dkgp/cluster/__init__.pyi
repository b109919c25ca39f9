from .cache import FeatureCache, worker_cache
from .client_executor import Announcer
from .configuration import configured_options
from .connect import open_executor
from .executors.base import BlockExecutor, LocalExecutor, PendingRound
from .options import ClusterOptions

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
