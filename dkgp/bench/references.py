"""References that dkgp is measured against: the kernel matrix, its Cholesky factor, its products, by NumPy and SciPy.

As a careful user would write them, in float64, with BLAS threads as they come: the squared exponential kernel by hand,
any other by its own matrix products. The factor is that of dkgp's own solver "cholesky".
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.solvers.cholesky.blocked import factor_strips, strip_bounds

FloatArray = NDArray[np.float64]

TILE = 4096
FACTOR_BLOCK = 512


def assemble(inputs: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return K + s2 I, its lower triangle and the rest of the tiles on the diagonal: (n, n), row-major."""
    side = _Side(inputs, hyper.kernel)
    n = len(inputs)
    matrix = np.empty((n, n))
    for i in range(0, n, TILE):
        for j in range(0, i + 1, TILE):
            matrix[i : i + TILE, j : j + TILE] = _tile(side, side, i, j) * side.amplitude
    matrix[np.diag_indices(n)] += hyper.noise_variance
    return matrix


def factor_in_place(matrix: FloatArray) -> None:
    """Cholesky's lower factor over the lower triangle of a row-major matrix, block column by block column.

    By blocks, because SciPy 1.17's `dpotrf` (OpenBLAS 0.3.30, two threads) crashes at n = 30,000. Each block is
    LAPACK's or BLAS's, on one thread, and the blocks are shared between all cores.
    """
    with single_threaded_blas():
        factor_strips([matrix[start:stop, :stop] for start, stop in strip_bounds(len(matrix), FACTOR_BLOCK)])


def factored_solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Return (L L')^-1 B, for L in the lower triangle of a row-major matrix: (n, t)."""
    # The transposed view is column-major, which is what LAPACK solves with without a copy: L = U', U the view.
    half = scipy.linalg.solve_triangular(matrix.T, right, trans="T", check_finite=False)
    return np.asarray(scipy.linalg.solve_triangular(matrix.T, half, check_finite=False))


def forward_substitute(matrix: FloatArray, right: FloatArray) -> None:
    """Put L^-1 B in the place of B (n, t), for L in the lower triangle of a row-major matrix; by blocks, too."""
    n = len(matrix)
    for k in range(0, n, FACTOR_BLOCK):
        end = min(k + FACTOR_BLOCK, n)
        right[k:end] = scipy.linalg.solve_triangular(matrix[k:end, k:end], right[k:end], lower=True, check_finite=False)
        for i in range(end, n, FACTOR_BLOCK):
            rows = slice(i, min(i + FACTOR_BLOCK, n))
            right[rows] -= matrix[rows, k:end] @ right[k:end]


def kernel_columns(A: FloatArray, B: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return K(A, B), all of it: (a, b)."""
    left, right = _Side(A, hyper.kernel), _Side(B, hyper.kernel)
    columns = np.empty((len(A), len(B)))
    for i in range(0, len(A), TILE):
        for j in range(0, len(B), TILE):
            columns[i : i + TILE, j : j + TILE] = _tile(left, right, i, j)
    columns *= left.amplitude
    return columns


def kernel_product(A: FloatArray, B: FloatArray, V: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return K(A, B) @ V in tiles of 4,096 rows and columns that are thrown away: (a, t)."""
    left, right = _Side(A, hyper.kernel), _Side(B, hyper.kernel)
    product = np.zeros((len(A), V.shape[1]))
    for i in range(0, len(A), TILE):
        for j in range(0, len(B), TILE):
            product[i : i + TILE] += _tile(left, right, i, j) @ V[j : j + TILE]
    return product * left.amplitude


class _Side:
    """Rows of one side of a matrix, scaled by the length scales of a squared exponential, as they are for any other."""

    def __init__(self, inputs: FloatArray, kernel: Kernel) -> None:
        self.kernel, self.rows, self.amplitude = kernel, inputs, 1.0
        if isinstance(kernel, SquaredExponential):
            self.rows, self.amplitude = inputs * np.sqrt(kernel.feature_gamma), kernel.variance
        self.squares = np.einsum("ij,ij->i", self.rows, self.rows)


def _tile(A: _Side, B: _Side, i: int, j: int) -> FloatArray:
    """One tile of unit amplitude; exp(-(|x|^2 + |b|^2 - 2xb)) of a squared exponential."""
    left, right = slice(i, i + TILE), slice(j, j + TILE)
    if not isinstance(A.kernel, SquaredExponential):
        return A.kernel.matrix(A.rows[left], B.rows[right])
    tile = A.rows[left] @ B.rows[right].T
    tile *= 2.0
    tile -= A.squares[left, None]
    tile -= B.squares[right]
    np.exp(tile, out=tile)
    return tile
