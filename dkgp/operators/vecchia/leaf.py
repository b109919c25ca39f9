"""One leaf of the factor: its rows of T, from a Cholesky factor of its own and its halo's part of Kbar - F F'.

With I = (J, G), a leaf G behind its halo J, and L L' = (Kbar - F F')_II,

    T_GI = [-L22^-1 L21 L11^-1, L22^-1],    V_G = T_GI F_I.

The algebra is in float32, where the noise is not small beside k(x, x), and in float64 elsewhere; what is kept is
float32. Matrices are filled by columns of their upper halves, L' as LAPACK sees it, so that rows of L, and of T, lie
whole in memory.
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

__all__ = ["PANEL_ROWS", "Leaf", "factor_leaf", "panel_widths", "refuse", "takes_double", "values_held"]

# Rows of T that are kept with one width: beyond the last one's own column they hold zeros.
PANEL_ROWS = 64
_COLUMNS = 256


@dataclass(frozen=True)
class Leaf:
    """Rows of T and V.

    Attributes
    ----------
    halo, rows : int
        Samples of J and of G.
    values : (values_held(halo, rows),) float32
        Rows of T in panels of `PANEL_ROWS`, each panel row by row, as wide as its last row needs.
    projected : (rows, R) float32
        V.
    spilled : bool
        Whether they are mapped from a file.
    """

    halo: int
    rows: int
    values: NDArray[np.float32]
    projected: NDArray[np.float32]
    spilled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return 0 if self.spilled else self.values.nbytes + self.projected.nbytes

    @property
    def disk_bytes(self) -> int:
        """Bytes held on disk."""
        return self.values.nbytes + self.projected.nbytes if self.spilled else 0

    def panels(self) -> list[tuple[slice, NDArray[np.float32]]]:
        """Rows of T: which ones, and their values from the first column on (rows, width)."""
        found, start = [], 0
        for first, width in panel_widths(self.halo, self.rows):
            rows = min(PANEL_ROWS, self.rows - first)
            stop = start + rows * width
            found.append((slice(first, first + rows), self.values[start:stop].reshape(rows, width)))
            start = stop
        return found


def panel_widths(halo: int, rows: int) -> list[tuple[int, int]]:
    """First row and width of each panel of a leaf."""
    return [(first, halo + min(first + PANEL_ROWS, rows)) for first in range(0, rows, PANEL_ROWS)]


def values_held(halo: int, rows: int) -> int:
    """Numbers of T that a leaf keeps."""
    return sum(min(PANEL_ROWS, rows - first) * width for first, width in panel_widths(halo, rows))


def takes_double(columns: int, least_noise: float, largest_diagonal: float) -> bool:
    """True if float32 would leave little of the noise in a Cholesky factor of so many columns."""
    return least_noise < 0.25 * columns * 2.0**-24 * largest_diagonal


def factor_leaf(
    evaluator: TileEvaluator,
    features: Features,
    halo: int,
    noise: float | FloatArray,
    factor: NDArray[Any] | None,
    jitter: float = 0.0,
) -> Leaf | None:
    """Rows of T and V of one leaf; None where the matrix is not positive definite in the evaluator's precision.

    Parameters
    ----------
    evaluator : TileEvaluator
        Its precision is that of the algebra.
    features : Features
        Of I = (J, G), m samples.
    halo : int
        Samples of J.
    noise : float or (m,) float64
    factor : (m, R), optional
        F_I, in the evaluator's type.
    jitter : float
        Share of the diagonal of K - F F' + noise that is added to it.
    """
    count = features.n
    rows, dtype = count - halo, evaluator.dtype
    matrix, diagonal = _upper_half(evaluator, features)
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
    values = np.empty(values_held(halo, rows), np.float32)
    corner[np.triu_indices(rows, 1)] = 0.0
    rank = 0 if factor is None else factor.shape[1]
    projected = np.empty((rows, rank), dtype)
    if factor is not None:
        blas("gemm", b"N", b"N", rank, rows, count, 1.0, factor, rank, cross, stride, 0.0, projected, rank)
    leaf = Leaf(halo, rows, values, projected.astype(np.float32, copy=False))
    for taken, panel in leaf.panels():
        panel[...] = matrix[halo + taken.start : halo + taken.stop, : panel.shape[1]]
    return leaf if np.isfinite(values).all() else None


def _upper_half(evaluator: TileEvaluator, features: Features) -> tuple[NDArray[Any], NDArray[Any]]:
    """K_II, of which row j holds its entries up to the diagonal (m, padded m); and its diagonal, a view."""
    count = features.n
    matrix = np.empty((count, features.values.shape[1]), evaluator.dtype)
    for first in range(0, count, _COLUMNS):
        last = min(first + _COLUMNS, count)
        tile = evaluator.tile(features.slice(0, last), features.slice(first, last))
        matrix[first:last, :last] = tile.T
    return matrix, matrix.reshape(-1)[:: matrix.shape[1] + 1][:count]


def refuse(halo: int, rows: int) -> NumericalError:
    """Error of a leaf that no jitter makes positive definite."""
    return NumericalError(
        f"a leaf of {rows:,} samples with a halo of {halo:,} has no Cholesky factor, for all that its diagonal was "
        "raised: the kernel's values are not finite, or far from positive definite. Bring inputs that are far out "
        "closer, or choose another kernel"
    )
