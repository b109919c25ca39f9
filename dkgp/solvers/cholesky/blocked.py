"""Cholesky's factorisation in memory, in place, by row strips of the lower triangle.

Strip i holds the rows of block i up to and with the diagonal: an array (r_i, c_i), c_i the number of rows so far. The
strips may be views into one matrix, or arrays of their own, which take half of its memory. How the work is cut depends
on the strips alone, so that the factor has the same bits on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import in_parallel
from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray
from dkgp.solvers.cholesky.dense_blocks import factor_lower, subtract_product, subtract_square
from dkgp.solvers.cholesky.triangular import solve_lower


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
