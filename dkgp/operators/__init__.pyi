from .base import KernelOperator, PendingColumns
from .blocked import BlockedKernelOperator
from .cached_columns import CachedColumnsOperator
from .dense import DenseKernelOperator
from .inputs import ArrayInputs, InputSource
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
