"""Triangular solves on part of a growing factor, without copying it.

SciPy's wrappers copy a sliced triangle on every call, which at these sizes costs several times the arithmetic; BLAS
itself takes a leading dimension. Substitution for a single vector is memory-bound, and a plain compiled loop over the
factor's rows beats BLAS at it several times.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors
from dkgp.operators.blas import blas


def solve_lower(factor: NDArray[Any], order: int, right: NDArray[Any]) -> None:
    """`right[i] = L^-1 right[i]` in place for each row i, L the leading `order` rows and columns of `factor`.

    A row-major lower triangle L is a column-major upper triangle U = L', and a row of `right` is a column of the
    system U' x = b.
    """
    if factor.dtype != right.dtype or factor.strides[1] != factor.itemsize or right.strides[1] != right.itemsize:
        raise ValueError("factor and right-hand sides must share one type and have contiguous rows")
    factor_stride, right_stride = factor.strides[0] // factor.itemsize, right.strides[0] // right.itemsize
    blas(
        "trsm", b"L", b"U", b"T", b"N", order, right.shape[0], 1.0, factor, factor_stride,
        right, max(right_stride, order, 1),
    )  # fmt: skip


@cached_njit(fastmath=FAST_MATH, nogil=True)
def solve_lower_transposed(factor, order, right):  # type: ignore[no-untyped-def]
    """`right[i] = L^-T right[i]` in place for each row i, L the leading `order` rows and columns of `factor`.

    Goes through L from the last row to the first, four rows at a time: every access runs along a row.
    """
    prefer_full_vectors()
    for system in range(right.shape[0]):
        last = order
        while last > 0:
            first = max(0, last - 4)
            for i in range(last - 1, first - 1, -1):
                right[system, i] /= factor[i, i]
                for k in range(first, i):
                    right[system, k] = fma(-right[system, i], factor[i, k], right[system, k])
            if last - first == 4:
                x0, x1 = right[system, first], right[system, first + 1]
                x2, x3 = right[system, first + 2], right[system, first + 3]
                for k in range(first):
                    value = fma(-x1, factor[first + 1, k], fma(-x0, factor[first, k], right[system, k]))
                    right[system, k] = fma(-x3, factor[first + 3, k], fma(-x2, factor[first + 2, k], value))
            last = first
