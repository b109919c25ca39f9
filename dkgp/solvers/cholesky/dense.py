"""Dense algebra in place: solves on a growing factor, block products, and Cholesky's factorisation by strips.

SciPy's wrappers copy a sliced triangle on every call, which at these sizes costs several times the arithmetic; BLAS
itself takes a leading dimension. Substitution for a single vector is memory-bound, and a plain compiled loop over the
factor's rows beats BLAS at it several times.

Blocks are views into larger row-major arrays, float32 or float64. A row-major matrix is its transpose, column-major,
which is how each call below reads.

The factorisation in memory goes by row strips of the lower triangle. Strip i holds the rows of block i up to and with
the diagonal: an array (r_i, c_i), c_i the number of rows so far. The strips may be views into one matrix, or arrays of
their own, which take half of its memory. How the work is cut depends on the strips alone, so that the factor has the
same bits on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.errors import NumericalError
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas, lapack


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


def strip_bounds(n: int, rows: int) -> list[tuple[int, int]]:
    """First row of each strip and the first row after it, `rows` in all but the last."""
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


def factor_strips(strips: Sequence[FloatArray], threads: int | None = None) -> None:
    """Cholesky's lower factor in the place of the lower triangle, block column by block column (left-looking).

    BLAS should have one thread: the blocks of a column are shared between `threads`, all cores by default.

    Raises `NumericalError`: the matrix is not positive definite.
    """
    for k, strip in enumerate(strips):
        first = strip.shape[1] - len(strip)
        below = strips[k + 1 :]
        if first:
            in_parallel(_updates(strip, below), 1 + len(below), threads)
        failed = factor_lower(strip[:, first:])
        if failed:
            n = strips[-1].shape[1]
            raise NumericalError(
                f"the kernel matrix is not positive definite in float64: its Cholesky factor breaks down at sample "
                f"{first + failed - 1} of {n}. Raise the noise variance, and check for samples that are nearly equal"
            )
        in_parallel(partial(_solve_row, strip, below), len(below), threads)


def _updates(strip: FloatArray, below: Sequence[FloatArray]) -> Callable[[int], None]:
    """Work that takes the columns before off a block column: index 0 is the block on the diagonal."""
    first, last = strip.shape[1] - len(strip), strip.shape[1]
    done = strip[:, :first]

    def update(index: int) -> None:
        if index == 0:
            subtract_square(strip[:, first:], done)
        else:
            row = below[index - 1]
            subtract_product(row[:, first:last], row[:, :first], done)

    return update


def _solve_row(strip: FloatArray, below: Sequence[FloatArray], index: int) -> None:
    first, last = strip.shape[1] - len(strip), strip.shape[1]
    solve_lower(strip[:, first:], len(strip), below[index][:, first:last])


def solve_strips(strips: Sequence[FloatArray], right: FloatArray) -> FloatArray:
    """(L L')^-1 B for the factor L that `factor_strips` left, and B (n, t)."""
    solution = np.array(right)
    for strip in strips:
        first, last = strip.shape[1] - len(strip), strip.shape[1]
        if first:
            solution[first:last] -= strip[:, :first] @ solution[:first]
        solution[first:last] = _triangular(strip[:, first:], solution[first:last], transposed=False)
    for strip in reversed(strips):
        first, last = strip.shape[1] - len(strip), strip.shape[1]
        solution[first:last] = _triangular(strip[:, first:], solution[first:last], transposed=True)
        if first:
            solution[:first] -= strip[:, :first].T @ solution[first:last]
    return solution


def _triangular(corner: FloatArray, right: FloatArray, *, transposed: bool) -> FloatArray:
    solved: FloatArray = scipy.linalg.solve_triangular(
        corner, right, lower=True, trans="T" if transposed else "N", check_finite=False
    )
    return solved
