"""What dkgp is measured against: the kernel matrix, its Cholesky factor and products with it, by NumPy and SciPy.

As a careful user would write them, in float64, with BLAS threads as they come; the squared exponential kernel alone.
The factor is that of dkgp's own solver "cholesky".
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.models import Hyperparameters
from dkgp.solvers.blocked_cholesky import factor_strips, strip_bounds

__all__ = ["assemble", "factor_in_place", "forward_substitute", "kernel_columns", "kernel_product"]

FloatArray = NDArray[np.float64]

TILE = 4096
FACTOR_BLOCK = 512


def assemble(inputs: FloatArray, found: Hyperparameters) -> FloatArray:
    """Return K + s2 I, its lower triangle and the rest of the tiles on the diagonal: (n, n), row-major."""
    scaled, squares = _scaled(inputs, found)
    n = len(scaled)
    matrix = np.empty((n, n))
    for i in range(0, n, TILE):
        for j in range(0, i + 1, TILE):
            matrix[i : i + TILE, j : j + TILE] = _tile(scaled, squares, scaled, squares, i, j) * _variance(found)
    matrix[np.diag_indices(n)] += found.noise_variance
    return matrix


def factor_in_place(matrix: FloatArray) -> None:
    """Cholesky's lower factor over the lower triangle of a row-major matrix, block column by block column.

    By blocks, because SciPy 1.17's `dpotrf` (OpenBLAS 0.3.30, two threads) crashes at n = 30,000. Each block is
    LAPACK's or BLAS's, on one thread, and the blocks are shared between all cores.
    """
    with single_threaded_blas():
        factor_strips([matrix[start:stop, :stop] for start, stop in strip_bounds(len(matrix), FACTOR_BLOCK)])


def forward_substitute(matrix: FloatArray, right: FloatArray) -> None:
    """Put L^-1 B in the place of B (n, t), for L in the lower triangle of a row-major matrix; by blocks, too."""
    n = len(matrix)
    for k in range(0, n, FACTOR_BLOCK):
        end = min(k + FACTOR_BLOCK, n)
        right[k:end] = scipy.linalg.solve_triangular(matrix[k:end, k:end], right[k:end], lower=True, check_finite=False)
        for i in range(end, n, FACTOR_BLOCK):
            rows = slice(i, min(i + FACTOR_BLOCK, n))
            right[rows] -= matrix[rows, k:end] @ right[k:end]


def kernel_columns(A: FloatArray, B: FloatArray, found: Hyperparameters) -> FloatArray:
    """Return K(A, B), all of it: (a, b)."""
    left, left_squares = _scaled(A, found)
    right, right_squares = _scaled(B, found)
    columns = np.empty((len(A), len(B)))
    for i in range(0, len(A), TILE):
        for j in range(0, len(B), TILE):
            columns[i : i + TILE, j : j + TILE] = _tile(left, left_squares, right, right_squares, i, j)
    columns *= _variance(found)
    return columns


def kernel_product(A: FloatArray, B: FloatArray, V: FloatArray, found: Hyperparameters) -> FloatArray:
    """Return K(A, B) @ V in tiles of 4,096 rows and columns that are thrown away: (a, t)."""
    left, left_squares = _scaled(A, found)
    right, right_squares = _scaled(B, found)
    product = np.zeros((len(A), V.shape[1]))
    for i in range(0, len(A), TILE):
        for j in range(0, len(B), TILE):
            product[i : i + TILE] += _tile(left, left_squares, right, right_squares, i, j) @ V[j : j + TILE]
    return product * _variance(found)


def _scaled(inputs: FloatArray, found: Hyperparameters) -> tuple[FloatArray, FloatArray]:
    scaled = inputs * np.sqrt(found.gamma)
    return scaled, np.einsum("ij,ij->i", scaled, scaled)


def _variance(found: Hyperparameters) -> float:
    return float(found.kernel.diagonal(np.zeros((1, found.n_features)))[0])


def _tile(A: FloatArray, a: FloatArray, B: FloatArray, b: FloatArray, i: int, j: int) -> FloatArray:
    """exp(-(|x|^2 + |b|^2 - 2xb)) of one tile."""
    tile = A[i : i + TILE] @ B[j : j + TILE].T
    tile *= 2.0
    tile -= a[i : i + TILE, None]
    tile -= b[j : j + TILE]
    np.exp(tile, out=tile)
    return tile
