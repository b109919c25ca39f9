from .base import KernelOperator, PendingColumns
from .block_tasks import ArrayInputs, InputSource
from .blocked import BlockedKernelOperator
from .cached_columns import CachedColumnsOperator
from .dense import DenseKernelOperator
from .product_error import ProductError

__all__ = [
    "ArrayInputs",
    "BlockedKernelOperator",
    "CachedColumnsOperator",
    "DenseKernelOperator",
    "InputSource",
    "KernelOperator",
    "PendingColumns",
    "ProductError",
]
