"""Blocks of a blocked Cholesky factorisation, worked on in place: products, squares and small factors by BLAS.

Blocks are views into larger row-major arrays, float32 or float64. A row-major matrix is its transpose, column-major,
which is how each call below reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.operators.blas import blas, lapack


def subtract_product(block: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> None:
    """`block -= left @ right.T` in place, for block (m, n), left (m, k), right (n, k)."""
    (m, n), k = block.shape, left.shape[1]
    if left.shape != (m, k) or right.shape != (n, k):
        raise ValueError(f"shapes do not fit: {block.shape} -= {left.shape} @ {right.shape}.T")
    strides = [_stride(array, block.dtype) for array in (right, left, block)]
    if not m or not n or not k:
        return
    blas("gemm", b"T", b"N", n, m, k, -1.0, right, strides[0], left, strides[1], 1.0, block, strides[2])


def subtract_square(block: NDArray[Any], left: NDArray[Any]) -> None:
    """`block -= left @ left.T` in place, in the lower triangle alone, for block (m, m), left (m, k)."""
    m, k = left.shape
    if block.shape != (m, m):
        raise ValueError(f"shapes do not fit: {block.shape} -= {left.shape} @ {left.shape}.T")
    strides = [_stride(array, block.dtype) for array in (left, block)]
    if not m or not k:
        return
    blas("syrk", b"U", b"T", m, k, -1.0, left, strides[0], 1.0, block, strides[1])


def factor_lower(block: NDArray[Any]) -> int:
    """Put Cholesky's lower factor in the lower triangle of `block` (m, m).

    Returns 0, or the number of the leading minor, from 1, that is not positive definite.
    """
    m = len(block)
    if block.shape != (m, m):
        raise ValueError(f"a square block is wanted; got {block.shape}")
    info = lapack("potrf", b"U", m, block, _stride(block, block.dtype))
    if info == 0 and not np.isfinite(block.diagonal()).all():  # OpenBLAS lets NaN through
        return int(np.argmin(np.isfinite(block.diagonal()))) + 1
    return info


def _stride(array: NDArray[Any], dtype: np.dtype[Any]) -> int:
    if array.dtype != dtype or (array.size and array.strides[1] != array.itemsize):
        raise ValueError("blocks must share one type and have contiguous rows")
    return int(max(array.strides[0] // array.itemsize, array.shape[1], 1))
