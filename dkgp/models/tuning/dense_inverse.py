"""The inverse of a positive definite matrix in memory, in place, by blocks that are shared between threads.

LAPACK's own threads gain next to nothing at the sizes that subsets have. Here how the work is cut depends on the
matrix's order alone, so that the result has the same bits on any number of threads. BLAS should have one.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import in_parallel, process_threads
from dkgp.errors import NumericalError
from dkgp.models.tuning.dense_algebra import FloatArray
from dkgp.solvers.cholesky.blocked import factor_strips, solve_strips, strip_bounds

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
