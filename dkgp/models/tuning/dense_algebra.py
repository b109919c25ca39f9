"""LAPACK and BLAS on one symmetric matrix, in place and without the GIL, and its inverse by threads that share it.

Subsets are tuned side by side in threads. Matrices are (n, n) float64 in Fortran order with the lower triangle
meaningful; right-hand sides are (n, t) in Fortran order. LAPACK's own threads gain next to nothing at the sizes of
subsets: `invert` cuts the work by the matrix' order alone, so that the result has the same bits on any number of
threads, while BLAS has one.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel, process_threads
from dkgp.errors import NumericalError
from dkgp.operators.blas import blas, lapack
from dkgp.solvers.cholesky.dense import factor_strips, solve_strips, strip_bounds

FloatArray = NDArray[np.float64]

_LOWER, _LEFT, _PLAIN, _NOT_UNIT = b"L", b"L", b"N", b"N"
_TILE = 64


def factor(matrix: FloatArray) -> bool:
    """Put Cholesky's lower factor in the place of the lower triangle; False where the matrix is not positive definite.

    The lower triangle is then undefined.
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


def add_outer_products(matrix: FloatArray, columns: FloatArray, others: FloatArray, *, scale: float) -> None:
    """A += scale (B C' + C B') in place, in the lower triangle alone, for B and C (n, t)."""
    n = _order(matrix)
    _columns(columns, matrix)
    _columns(others, matrix)
    blas("syr2k", _LOWER, _PLAIN, n, columns.shape[1], float(scale), columns, n, others, n, 1.0, matrix, n)


def symmetric_product(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Return A B for the symmetric A, whose lower triangle is read, and B (n, t): a new array (n, t)."""
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


# Long enough for BLAS to be at its best, short enough for some threads to share 2,000 rows.
BLOCK_ROWS = 256


def invert(matrix: FloatArray, right: FloatArray) -> tuple[FloatArray, float] | None:
    """Put the lower triangle of A^-1 in the place of A, and return A^-1 B and log det A.

    A is `matrix` (n, n), in Fortran order, both triangles; afterwards the upper one, beside the blocks on the diagonal,
    means nothing. A^-1 B (n, t), for B `right`, is in Fortran order. None where A is not numerically positive definite.
    """
    rows = matrix.T  # in C order, and as good: A is symmetric
    bounds = strip_bounds(len(rows), BLOCK_ROWS)
    strips = [rows[first:last, :last] for first, last in bounds]
    try:
        factor_strips(strips, process_threads())
    except NumericalError:
        return None
    solution = np.asfortranarray(solve_strips(strips, right))
    log_determinant = 2.0 * float(np.log(np.diagonal(rows)).sum())
    _invert_triangle(rows, bounds)
    _square(rows, bounds)
    return solution, log_determinant


def _invert_triangle(rows: FloatArray, bounds: list[tuple[int, int]]) -> None:
    """T = L^-1 in the place of L, its blocks on the diagonal with zeros above, block column by block column."""
    for number in reversed(range(len(bounds))):
        first, last = bounds[number]
        corner = scipy.linalg.solve_triangular(
            rows[first:last, first:last], np.eye(last - first), lower=True, check_finite=False
        )
        rows[first:last, first:last] = corner
        column, below = rows[last:, first:last].copy(), bounds[number + 1 :]

        def multiply(
            index: int,
            below: list[tuple[int, int]] = below,
            column: FloatArray = column,
            corner: FloatArray = corner,
            place: slice = slice(first, last),
        ) -> None:
            start, stop = below[index]
            product = rows[start:stop, place.stop : stop] @ column[: stop - place.stop]
            np.matmul(product, -corner, out=rows[start:stop, place])

        in_parallel(multiply, len(below), process_threads())


def _square(rows: FloatArray, bounds: list[tuple[int, int]]) -> None:
    """T' T in the place above T, block by block, and then on the diagonal."""
    # The longest sums first, so that no thread is left with one at the end.
    pairs = [(i, j) for i in range(1, len(bounds)) for j in range(i)]

    def above(index: int) -> None:
        i, j = pairs[index]
        (start, stop), (first, last) = bounds[i], bounds[j]
        np.matmul(rows[start:, first:last].T, rows[start:, start:stop], out=rows[first:last, start:stop])

    def on_diagonal(index: int) -> None:
        first, last = bounds[index]
        block = rows[first:, first:last]
        rows[first:last, first:last] = block.T @ block

    in_parallel(above, len(pairs), process_threads())
    in_parallel(on_diagonal, len(bounds), process_threads())
