"""The regularised kernel matrix Kbar = K + s2 I as an object that is never materialised."""

# Hangs on dkgp/operators/block_tasks.py.

from __future__ import annotations

from dkgp.operators.base import KernelOperator, PendingColumns
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cached_columns import CachedColumnsOperator
from dkgp.operators.dense import DenseKernelOperator
from dkgp.operators.inputs import ArrayInputs, InputSource
from dkgp.operators.product_error import ProductError

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
