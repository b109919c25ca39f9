"""One leaf of the factor: its rows of T, from a Cholesky factor of its own and its halo's part of Kbar - F F'.

With I = (J, G), a leaf G behind its halo J, and L L' = (Kbar - F F')_II,

    T_GI = [-L22^-1 L21 L11^-1, L22^-1],    V_G = T_GI F_I.

The algebra is in float32, where the noise is not small beside k(x, x), and in float64 elsewhere; leaves are kept in
float32. Matrices lie row by row, of which LAPACK sees the transpose: rows of L, its upper half, and of T are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import NumericalError
from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas, lapack

# Rows of T that are stored with one width; zeros follow a row's last column.
STRIP_ROWS = 64
# Loops take so many rows at a time, and so many numbers of a row: rows and widths are whole multiples, zeros beyond.
ROWS, LANES = 4, 16
_COLUMNS = 256


@dataclass(frozen=True)
class Leaf:
    """Rows of T and V."""

    halo: int  # samples of J
    rows: int  # samples of G
    rank: int  # columns of V
    values: NDArray[np.float32]  # T in strips of `STRIP_ROWS`, row by row, as wide as the strip's last row needs
    projected: NDArray[np.float32]  # V: (padded rows, padded R)
    double: bool = False  # the algebra was in float64: the products by BLAS are, too
    spilled: bool = False  # read from a scratch file

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes + self.projected.nbytes

    @property
    def padded_rows(self) -> int:
        """Rows, zeros included."""
        return _padded(self.rows, ROWS)

    @property
    def width(self) -> int:
        """Numbers of the longest rows."""
        return _padded(self.halo + self.rows, LANES)

    @property
    def log_determinant(self) -> float:
        """Logarithm of the determinant of T_GG, as it is rounded."""
        diagonals = [
            np.diagonal(strip[: min(where.stop, self.rows) - where.start, self.halo + where.start :])
            for where, strip in self.strips()
        ]
        return float(np.log(np.concatenate(diagonals).astype(np.float64)).sum())

    def strips(self) -> list[tuple[slice, NDArray[np.float32]]]:
        """Rows of T: which ones, and their values from the first column on (rows, width)."""
        strips, start = [], 0
        for first, height, width in strip_shapes(self.halo, self.rows):
            stop = start + height * width
            strips.append((slice(first, first + height), self.values[start:stop].reshape(height, width)))
            start = stop
        return strips


def strip_shapes(halo: int, rows: int) -> list[tuple[int, int, int]]:
    """First row, rows and width of each strip of a leaf."""
    return [
        (first, _padded(last - first, ROWS), _padded(halo + last, LANES))
        for first, last in ((first, min(first + STRIP_ROWS, rows)) for first in range(0, rows, STRIP_ROWS))
    ]


def values_held(halo: int, rows: int) -> int:
    """Numbers of T that a leaf keeps."""
    return sum(height * width for _, height, width in strip_shapes(halo, rows))


def _padded(count: int, step: int) -> int:
    return -(-count // step) * step


def takes_double(columns: int, least_noise: float, largest_diagonal: float) -> bool:
    """True if the noise would lose most digits in a float32 Cholesky factor of so many columns."""
    return least_noise < 0.0625 * columns * 2.0**-24 * largest_diagonal


def factor_leaf(
    evaluator: TileEvaluator,
    features: Features,
    halo: int,
    noise: float | FloatArray,
    factor: NDArray[Any] | None,
    jitter: float = 0.0,
) -> Leaf | None:
    """Rows of T and V of one leaf, in the evaluator's precision; None where they need a higher one.

    `features` are of I = (J, G), m samples, of which `halo` are J; the noise is one number or (m,); `factor` is F_I
    (m, R) in the evaluator's type. `jitter` is a share of the diagonal of K - F F' + noise that is added to it.
    """
    count = features.n
    rows, dtype = count - halo, evaluator.dtype
    matrix, diagonal = _lower_half(evaluator, features)
    if dtype == np.float32 and takes_double(count, float(np.min(noise)), float(diagonal.max())):
        return None
    stride = matrix.shape[1]
    diagonal += noise
    if factor is not None:
        blas("syrk", b"U", b"T", count, factor.shape[1], -1.0, factor, factor.shape[1], 1.0, matrix, stride)
    if jitter:
        diagonal += jitter * np.abs(diagonal)
    if lapack("potrf", b"U", count, matrix, stride):
        return None
    corner = matrix[halo:, halo:]
    cross = matrix[halo:]  # rows are columns of L21'
    if halo:
        blas("trsm", b"L", b"U", b"N", b"N", halo, rows, -1.0, matrix, stride, cross, stride)
    if lapack("trtri", b"U", b"N", rows, corner, stride):
        return None
    if halo:
        blas("trmm", b"R", b"U", b"N", b"N", halo, rows, 1.0, corner, stride, cross, stride)
    for row in range(rows):
        corner[row, row + 1 :] = 0.0
    rank = 0 if factor is None else factor.shape[1]
    projected = np.zeros((_padded(rows, ROWS), _padded(rank, LANES)), dtype)
    if factor is not None:
        width = projected.shape[1]
        blas("gemm", b"N", b"N", rank, rows, count, 1.0, factor, rank, cross, stride, 0.0, projected, width)
    leaf = Leaf(
        halo,
        rows,
        rank,
        np.zeros(values_held(halo, rows), np.float32),
        projected.astype(np.float32, copy=False),
        dtype == np.float64,
    )
    for where, strip in leaf.strips():
        last = min(where.stop, rows)
        strip[: last - where.start, : halo + last] = matrix[halo + where.start : halo + last, : halo + last]
    return leaf if np.isfinite(leaf.values).all() else None


def _lower_half(evaluator: TileEvaluator, features: Features) -> tuple[NDArray[Any], NDArray[Any]]:
    """K_II, of which row j holds its entries up to the diagonal (m, padded m); and its diagonal, a view."""
    count, dtype = features.n, evaluator.dtype
    matrix = np.empty((count, features.values.shape[1]), dtype)
    for first in range(0, count, _COLUMNS):
        last = min(first + _COLUMNS, count)
        evaluator.fill(features.slice(0, last), features.slice(first, last), matrix[first:last])
    return matrix, matrix.reshape(-1)[:: matrix.shape[1] + 1][:count]


def refuse(halo: int, rows: int) -> NumericalError:
    """Error of a leaf that no jitter makes positive definite."""
    return NumericalError(
        f"a leaf of {rows:,} samples with a halo of {halo:,} has no Cholesky factor, for all that its diagonal was "
        "raised: the kernel's values are not finite, or far from positive definite. Bring inputs that are far out "
        "closer, or choose another kernel"
    )
