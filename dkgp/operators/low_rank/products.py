"""Products of a float32 factor with float64 vectors, without a float64 copy of the factor.

A preconditioner's factor F is kept in float32, but must be applied in float64: what (r - F w) / s2 leaves of the
leading directions is a small difference of large numbers. For a few vectors the product is bound by memory, and
converting F first, as NumPy would, takes several times as long as the product itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.tiles.code_cache import cached_njit

__all__ = ["PIECE_ROWS", "factor_times", "factor_transposed_times"]

FloatArray = NDArray[np.float64]

# From so many vectors on the conversion is paid back by BLAS's product.
FEW_VECTORS = 4
# Rows worked on at a time: in float64 where there are many vectors, and what a row of sums is kept for.
PIECE_ROWS = 1024
_LANES = 16


def factor_times(factor: NDArray[np.float32], weights: FloatArray) -> FloatArray:
    """F Z.

    Parameters
    ----------
    factor : (b, R) float32, C order
        Rows of F.
    weights : (R, t) float64

    Returns
    -------
    (b, t) float64
    """
    rows, vectors = len(factor), weights.shape[1]
    out = np.empty((rows, vectors))
    if vectors <= FEW_VECTORS:
        _expand(factor, np.ascontiguousarray(weights.T), out)
    else:
        for start in range(0, rows, PIECE_ROWS):
            out[start : start + PIECE_ROWS] = factor[start : start + PIECE_ROWS].astype(np.float64) @ weights
    return out


def factor_transposed_times(factor: NDArray[np.float32], vectors: FloatArray) -> FloatArray:
    """F' V.

    Parameters
    ----------
    factor : (b, R) float32, C order
        Rows of F.
    vectors : (b, t) float64

    Returns
    -------
    (R, t) float64
    """
    rank, count = factor.shape[1], vectors.shape[1]
    total = np.zeros((count, rank))
    if count <= FEW_VECTORS:
        _project(factor, np.ascontiguousarray(vectors.T), total)
        return total.T
    product = np.zeros((rank, count))
    for start in range(0, len(factor), PIECE_ROWS):
        piece = factor[start : start + PIECE_ROWS].astype(np.float64)
        product += piece.T @ vectors[start : start + PIECE_ROWS]
    return product


@cached_njit(nogil=True)
def _project(factor: Any, vectors: Any, total: Any) -> None:
    """`total[t] += factor' vectors[t]`: four rows at a time, in their order."""
    rows, rank = factor.shape
    whole = rows // 4 * 4
    for t in range(len(vectors)):
        for i in range(0, whole, 4):
            v0, v1, v2, v3 = vectors[t, i], vectors[t, i + 1], vectors[t, i + 2], vectors[t, i + 3]
            for r in range(rank):
                total[t, r] += (
                    np.float64(factor[i, r]) * v0
                    + np.float64(factor[i + 1, r]) * v1
                    + np.float64(factor[i + 2, r]) * v2
                    + np.float64(factor[i + 3, r]) * v3
                )
        for i in range(whole, rows):
            v0 = vectors[t, i]
            for r in range(rank):
                total[t, r] += np.float64(factor[i, r]) * v0


@cached_njit(nogil=True)
def _expand(factor: Any, weights: Any, out: Any) -> None:
    """`out[:, t] = factor weights[t]`: sums in sixteen lanes, so that their order is the same wherever arrays lie."""
    rows, rank = factor.shape
    whole = rank // _LANES * _LANES
    lanes = np.empty((4, _LANES))
    for t in range(len(weights)):
        for start in range(0, rows, 4):
            # The last rows share the loop: what is computed twice there is the same.
            i0 = start
            i1, i2, i3 = min(start + 1, rows - 1), min(start + 2, rows - 1), min(start + 3, rows - 1)
            lanes[:, :] = 0.0
            for r in range(0, whole, _LANES):
                for l in range(_LANES):
                    w = weights[t, r + l]
                    lanes[0, l] += np.float64(factor[i0, r + l]) * w
                    lanes[1, l] += np.float64(factor[i1, r + l]) * w
                    lanes[2, l] += np.float64(factor[i2, r + l]) * w
                    lanes[3, l] += np.float64(factor[i3, r + l]) * w
            for r in range(whole, rank):
                w = weights[t, r]
                lanes[0, r - whole] += np.float64(factor[i0, r]) * w
                lanes[1, r - whole] += np.float64(factor[i1, r]) * w
                lanes[2, r - whole] += np.float64(factor[i2, r]) * w
                lanes[3, r - whole] += np.float64(factor[i3, r]) * w
            for k in range(min(4, rows - start)):
                total = 0.0
                for l in range(_LANES):
                    total += lanes[k, l]
                out[start + k, t] = total
