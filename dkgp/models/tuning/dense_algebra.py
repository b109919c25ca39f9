"""LAPACK and BLAS on one symmetric matrix, in place and without the GIL: subsets are tuned side by side in threads.

Matrices are (n, n) float64 in Fortran order with the lower triangle meaningful; right-hand sides are (n, t) in Fortran
order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dkgp.operators.blas import blas, lapack

FloatArray = NDArray[np.float64]

_LOWER, _LEFT, _PLAIN, _NOT_UNIT = b"L", b"L", b"N", b"N"
_TILE = 64


def factor(matrix: FloatArray) -> bool:
    """Put Cholesky's lower factor in the place of the lower triangle; False where the matrix is not positive definite.

    Then what the lower triangle holds means nothing.
    """
    n = _order(matrix)
    return lapack("potrf", _LOWER, n, matrix, n) == 0


def solve_factored(lower: FloatArray, right: FloatArray) -> FloatArray:
    """(L L')^-1 B for the factor L of order n and B (n, t): a new array (n, t)."""
    n, solution = _order(lower), _columns(right, lower).copy(order="F")
    lapack("potrs", _LOWER, n, solution.shape[1], lower, n, solution, n)
    return solution


def solve_half(lower: FloatArray, right: FloatArray) -> None:
    """B = L^-1 B in place, for the factor L of order n and B (n, t)."""
    n = _order(lower)
    _columns(right, lower)
    blas("trsm", _LEFT, _LOWER, _PLAIN, _NOT_UNIT, n, right.shape[1], 1.0, lower, n, right, n)


def invert_factored(lower: FloatArray) -> bool:
    """Put the lower triangle of (L L')^-1 in the place of L; False where L has a zero on its diagonal."""
    n = _order(lower)
    return lapack("potri", _LOWER, n, lower, n) == 0


def rank_update(matrix: FloatArray, columns: FloatArray, *, scale: float, keep: float) -> None:
    """A = scale B B' + keep A in place, in the lower triangle alone, for B (n, t). With `keep` zero A is not read."""
    n = _order(matrix)
    _columns(columns, matrix)
    blas("syrk", _LOWER, _PLAIN, n, columns.shape[1], float(scale), columns, n, float(keep), matrix, n)


def add_outer_products(matrix: FloatArray, left: FloatArray, right: FloatArray, *, scale: float) -> None:
    """A += scale (B C' + C B') in place, in the lower triangle alone, for B and C (n, t)."""
    n = _order(matrix)
    _columns(left, matrix)
    _columns(right, matrix)
    blas("syr2k", _LOWER, _PLAIN, n, left.shape[1], float(scale), left, n, right, n, 1.0, matrix, n)


def symmetric_product(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """A B for the symmetric A, of which the lower triangle is read, and B (n, t): a new array (n, t)."""
    n, t = _order(matrix), _columns(right, matrix).shape[1]
    product = np.zeros((n, t), order="F")
    blas("symm", _LEFT, _LOWER, n, t, 1.0, matrix, n, right, n, 0.0, product, n)
    return product


def fill_upper(matrix: FloatArray) -> None:
    """Copy the lower triangle into the upper one, tile by tile."""
    n = _order(matrix)
    for first in range(0, n, _TILE):
        last = min(first + _TILE, n)
        corner = matrix[first:last, first:last]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        matrix[first:last, last:] = matrix[last:, first:last].T


def _order(matrix: FloatArray) -> int:
    n = len(matrix)
    if matrix.shape != (n, n) or matrix.dtype != np.float64 or not matrix.flags.f_contiguous:
        raise ValueError(f"expected a square float64 matrix in Fortran order; got {matrix.dtype} {matrix.shape}")
    return n


def _columns(right: FloatArray, matrix: FloatArray) -> FloatArray:
    if right.ndim != 2 or len(right) != len(matrix) or right.dtype != np.float64 or not right.flags.f_contiguous:
        raise ValueError(
            f"expected ({len(matrix)}, t) float64 columns in Fortran order; got {right.dtype} {right.shape}"
        )
    return right
