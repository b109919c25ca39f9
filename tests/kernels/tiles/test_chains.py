"""An entry's bits are those of one chain of fused multiply-adds over its features, as the documentation says.

The reference takes the same chain in exact fractions, rounded once a step: whatever the compiler made of the loops, on
whatever processor, must give those bits.
"""

from __future__ import annotations

import ctypes
from fractions import Fraction

import numpy as np
import pytest

from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.kernels.tiles.blocks import LANES, TILE_COLUMNS
from dkgp.kernels.tiles.stages import stage_address

DTYPE = {"single": np.float32, "double": np.float64}


def rounded(value: Fraction, dtype: type) -> np.floating:
    """The nearest number of a type, ties to even."""
    if dtype is np.float64:
        return np.float64(value.numerator / value.denominator)  # true division of integers is rounded once
    near = np.float32(float(value))
    candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint32)) & 1))


def fma(a: np.floating, b: np.floating, c: np.floating, dtype: type) -> np.floating:
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), dtype)


def squared_norm(row: np.ndarray, dtype: type) -> np.floating:
    total = dtype(0)
    for value in row:
        total = fma(value, value, total, dtype)
    return total


def chain(a: np.ndarray, b: np.ndarray, form: str, dtype: type) -> np.floating:
    """Minus the squared distance, or the dot product, of two rows of scaled inputs."""
    total = dtype(0)
    if form == "expanded":
        total = -dtype(squared_norm(a, dtype) + squared_norm(b, dtype))
    for left, right in zip(a, b, strict=True):
        if form == "differences":
            difference = dtype(left - right)
            total = fma(-difference, difference, total, dtype)
        else:
            total = fma(left, right + right if form == "expanded" else right, total, dtype)
    return total


@pytest.mark.covering
@pytest.mark.parametrize("d", [1, 3, 10, 33])
@pytest.mark.parametrize("form", ["differences", "expanded", "products"])
@pytest.mark.parametrize(("count", "width"), [(16, 1), (48, 13), (64, 16)])
def test_entries_are_chains(
    rng: np.random.Generator, precision: str, form: str, d: int, count: int, width: int
) -> None:
    dtype = DTYPE[precision]
    A, B = (rng.standard_normal((n, d)).astype(dtype) for n in (count, TILE_COLUMNS))
    packed = d + (form == "expanded")
    rows, columns = np.zeros((count // LANES, packed, LANES), dtype), np.zeros((TILE_COLUMNS, packed), dtype)
    rows[:, :d] = A.reshape(-1, LANES, d).transpose(0, 2, 1)
    columns[:, :d] = B + B if form == "expanded" else B
    if form == "expanded":
        rows[:, d] = np.array([squared_norm(a, dtype) for a in A]).reshape(-1, LANES)
        columns[:, d] = [squared_norm(b, dtype) for b in B]
    tile = np.full((TILE_COLUMNS, count), np.nan, dtype)
    call(form, tile, width, rows, packed, columns)
    for i in {0, 1, 15, count // 2, count - 1}:
        for j in {0, width // 2, width - 1}:
            assert tile[j, i] == chain(A[i], B[j], form, dtype)


def call(form: str, tile: np.ndarray, width: int, rows: np.ndarray, packed: int, columns: np.ndarray) -> None:
    """Call a compiled stage as the tile loops do."""
    pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
    stage = ctypes.CFUNCTYPE(None, pointer, size, size, size, pointer, size, pointer)(stage_address(form, tile.dtype))
    count = tile.shape[1]
    stage(tile.ctypes.data, count, width, count, rows.ctypes.data, packed, columns.ctypes.data)


@pytest.mark.parametrize("d", [3, 12])
def test_a_kernel_matrix_is_symmetric_to_the_bit(
    rng: np.random.Generator, precision: str, expanded: bool, d: int
) -> None:
    evaluator = TileEvaluator(
        SquaredExponential(gamma=tuple(rng.uniform(0.2, 1.0, d) / d)), precision, expanded=expanded
    )
    X = evaluator.prepare(rng.standard_normal((90, d)))
    tile = evaluator.tile(X, X)
    np.testing.assert_array_equal(tile, tile.T)
