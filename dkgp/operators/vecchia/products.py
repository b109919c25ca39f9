"""Products with the rows of T and V that a leaf keeps, for one or many vectors.

Few vectors are bound by memory: float32 values are read once for all of them, and multiplied and added in float64 by
loops of dkgp's own, in an order that no thread and no place in memory changes. Many are BLAS's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.vector_math import prefer_full_vectors
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.products import FactorRows
from dkgp.operators.vecchia.leaf import PANEL_ROWS, Leaf

__all__ = ["FEW_VECTORS", "backward", "forward", "sweep"]

# Up to so many vectors the loops are used; vectors lie row by row there, (t, m).
FEW_VECTORS = 4
_LANES = 16
_ROWS = 4


def forward(leaf: Leaf, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """T_GI r_I and V_G' of it, for r_I (m, t): (rows, t) and (R, t)."""
    count = vectors.shape[1]
    if count <= FEW_VECTORS:
        out = np.empty((count, leaf.rows))
        _forward(leaf.values, leaf.halo, leaf.rows, np.ascontiguousarray(vectors.T, np.float64), out)
        image = np.ascontiguousarray(out.T)
    else:
        single = vectors.astype(np.float32)
        image = np.empty((leaf.rows, count))
        for rows, panel in leaf.panels():
            image[rows] = panel @ single[: panel.shape[1]]
    return image, FactorRows(leaf.projected).project(image)


def backward(leaf: Leaf, image: FloatArray, weights: FloatArray) -> FloatArray:
    """T_GI' (q - V_G w) for q (rows, t) and w (R, t): (m, t)."""
    count = image.shape[1]
    left = image - FactorRows(leaf.projected).expand(weights)
    if count <= FEW_VECTORS:
        out = np.zeros((count, leaf.halo + leaf.rows))
        _backward(leaf.values, leaf.halo, leaf.rows, np.ascontiguousarray(left.T), out)
        return out.T
    return _many_backward(leaf, left)


def sweep(leaf: Leaf, vectors: FloatArray) -> FloatArray:
    """T_GI' T_GI r_I for r_I (m, t), from one reading of T: (m, t)."""
    count = vectors.shape[1]
    if count > FEW_VECTORS:
        return _many_backward(leaf, forward(leaf, vectors)[0])
    out = np.zeros((count, leaf.halo + leaf.rows))
    _sweep(leaf.values, leaf.halo, leaf.rows, np.ascontiguousarray(vectors.T, np.float64), out)
    return out.T


def _many_backward(leaf: Leaf, image: FloatArray) -> FloatArray:
    single = image.astype(np.float32)
    out = np.zeros((leaf.halo + leaf.rows, image.shape[1]))
    for rows, panel in leaf.panels():
        out[: panel.shape[1]] += panel.T @ single[rows]
    return out


@cached_njit(nogil=True)
def _rows_times(values: Any, start: int, width: int, vector: Any, lanes: Any, sums: Any) -> None:
    """`sums[k] = values' row k times vector`, of four rows that lie one after the other; sums in sixteen lanes."""
    prefer_full_vectors()
    s0, s1, s2, s3 = start, start + width, start + 2 * width, start + 3 * width
    whole = width // _LANES * _LANES
    lanes[:, :] = 0.0
    for j in range(0, whole, _LANES):
        for l in range(_LANES):
            v = vector[j + l]
            lanes[0, l] += np.float64(values[s0 + j + l]) * v
            lanes[1, l] += np.float64(values[s1 + j + l]) * v
            lanes[2, l] += np.float64(values[s2 + j + l]) * v
            lanes[3, l] += np.float64(values[s3 + j + l]) * v
    for j in range(whole, width):
        v = vector[j]
        lanes[0, j - whole] += np.float64(values[s0 + j]) * v
        lanes[1, j - whole] += np.float64(values[s1 + j]) * v
        lanes[2, j - whole] += np.float64(values[s2 + j]) * v
        lanes[3, j - whole] += np.float64(values[s3 + j]) * v
    for k in range(_ROWS):
        total = 0.0
        for l in range(_LANES):
            total += lanes[k, l]
        sums[k] = total


@cached_njit(nogil=True)
def _row_times(values: Any, start: int, width: int, vector: Any, lanes: Any) -> float:
    """One row times a vector, in the order of `_rows_times`."""
    whole = width // _LANES * _LANES
    for l in range(_LANES):
        lanes[0, l] = 0.0
    for j in range(0, whole, _LANES):
        for l in range(_LANES):
            lanes[0, l] += np.float64(values[start + j + l]) * vector[j + l]
    for j in range(whole, width):
        lanes[0, j - whole] += np.float64(values[start + j]) * vector[j]
    total = 0.0
    for l in range(_LANES):
        total += lanes[0, l]
    return total


@cached_njit(nogil=True)
def _add_rows(values: Any, start: int, width: int, z0: float, z1: float, z2: float, z3: float, out: Any) -> None:
    """`out += z0 row0 + z1 row1 + z2 row2 + z3 row3`."""
    prefer_full_vectors()
    s0, s1, s2, s3 = start, start + width, start + 2 * width, start + 3 * width
    for j in range(width):
        out[j] += (
            np.float64(values[s0 + j]) * z0
            + np.float64(values[s1 + j]) * z1
            + np.float64(values[s2 + j]) * z2
            + np.float64(values[s3 + j]) * z3
        )


@cached_njit(nogil=True)
def _forward(values: Any, halo: int, rows: int, vectors: Any, out: Any) -> None:
    """`out[t] = T vectors[t]`."""
    lanes, sums = np.empty((_ROWS, _LANES)), np.empty(_ROWS)
    place = 0
    for first in range(0, rows, PANEL_ROWS):
        last = min(first + PANEL_ROWS, rows)
        width = halo + last
        row = first
        while row + _ROWS <= last:
            for t in range(len(vectors)):
                _rows_times(values, place, width, vectors[t], lanes, sums)
                for k in range(_ROWS):
                    out[t, row + k] = sums[k]
            place += _ROWS * width
            row += _ROWS
        while row < last:
            for t in range(len(vectors)):
                out[t, row] = _row_times(values, place, width, vectors[t], lanes)
            place += width
            row += 1


@cached_njit(nogil=True)
def _backward(values: Any, halo: int, rows: int, vectors: Any, out: Any) -> None:
    """`out[t] += T' vectors[t]`."""
    place = 0
    for first in range(0, rows, PANEL_ROWS):
        last = min(first + PANEL_ROWS, rows)
        width = halo + last
        row = first
        while row + _ROWS <= last:
            for t in range(len(vectors)):
                v = vectors[t]
                _add_rows(values, place, width, v[row], v[row + 1], v[row + 2], v[row + 3], out[t])
            place += _ROWS * width
            row += _ROWS
        while row < last:
            for t in range(len(vectors)):
                z = vectors[t, row]
                for j in range(width):
                    out[t, j] += np.float64(values[place + j]) * z
            place += width
            row += 1


@cached_njit(nogil=True)
def _sweep(values: Any, halo: int, rows: int, vectors: Any, out: Any) -> None:
    """`out[t] += T' T vectors[t]`, four rows at a time while they are in the core's cache."""
    lanes, sums = np.empty((_ROWS, _LANES)), np.empty(_ROWS)
    place = 0
    for first in range(0, rows, PANEL_ROWS):
        last = min(first + PANEL_ROWS, rows)
        width = halo + last
        row = first
        while row + _ROWS <= last:
            for t in range(len(vectors)):
                _rows_times(values, place, width, vectors[t], lanes, sums)
                _add_rows(values, place, width, sums[0], sums[1], sums[2], sums[3], out[t])
            place += _ROWS * width
            row += _ROWS
        while row < last:
            for t in range(len(vectors)):
                z = _row_times(values, place, width, vectors[t], lanes)
                for j in range(width):
                    out[t, j] += np.float64(values[place + j]) * z
            place += width
            row += 1
