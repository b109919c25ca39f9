"""The stages that a tile goes through, each a function of its own that the loops call by its address.

A distance stage turns the rows and columns of one group of inputs into a tile of negative squared distances, or of dot
products; an entry stage changes the entries of a tile in place: a profile, or the arithmetic between two tiles. A stage
is compiled, or fetched from the cache on disk, when a kernel first needs it; the loops know none of them, so that they
are compiled once and a new profile is one new function here.

Every stage is a plain loop over contiguous rows that the compiler turns into full-width vector code. A call is made for
thousands of entries, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types
from numpy.typing import DTypeLike

from dkgp.kernels.code_cache import c_function
from dkgp.kernels.compiled_math import FAST_MATH, exp2, log2_1p, prefer_full_vectors, stay_apart

__all__ = ["PARAMETERS", "TILE_COLUMNS", "distance_signature", "entry_signature", "stage_address"]

TILE_COLUMNS = 16
# Parameters of an entry stage; the last is the floor of the exponent.
PARAMETERS = 3
_LN2 = float(np.log(2.0))


def distance_signature(dtype: DTypeLike) -> Any:
    """(tile, its stride, columns wanted, rows, packed rows, their inputs, packed columns) -> tile."""
    pointer = types.CPointer(types.float32 if np.dtype(dtype) == np.float32 else types.float64)
    size = types.intp
    return types.void(pointer, size, size, size, pointer, size, pointer)


def entry_signature(dtype: DTypeLike) -> Any:
    """(tile, its stride, columns wanted, rows, parameters) -> the tile, in place."""
    pointer = types.CPointer(types.float32 if np.dtype(dtype) == np.float32 else types.float64)
    size = types.intp
    return types.void(pointer, size, size, size, types.CPointer(types.float64))


# Distances. Stages index whole arrays instead of slicing rows: a slice costs reference counting, which at these loop
# lengths shows.


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def subtract_squares(tile, width, count, rows, columns, d):  # type: ignore[no-untyped-def]
    """`tile[j, i] = -|a_i - b_j|^2`, four inputs at a time."""
    prefer_full_vectors()
    for j in range(width):
        f = 0
        if d >= 4:
            b0, b1, b2, b3 = columns[j, 0], columns[j, 1], columns[j, 2], columns[j, 3]
            for i in range(count):
                u0, u1, u2, u3 = rows[0, i] - b0, rows[1, i] - b1, rows[2, i] - b2, rows[3, i] - b3
                tile[j, i] = -(u0 * u0) - u1 * u1 - u2 * u2 - u3 * u3
            f = 4
        elif d >= 2:
            b0, b1 = columns[j, 0], columns[j, 1]
            for i in range(count):
                u0, u1 = rows[0, i] - b0, rows[1, i] - b1
                tile[j, i] = -(u0 * u0) - u1 * u1
            f = 2
        elif d == 1:
            b0 = columns[j, 0]
            for i in range(count):
                u0 = rows[0, i] - b0
                tile[j, i] = -(u0 * u0)
            f = 1
        else:
            for i in range(count):
                tile[j, i] = 0.0
        while f + 4 <= d:
            b0, b1, b2, b3 = columns[j, f], columns[j, f + 1], columns[j, f + 2], columns[j, f + 3]
            for i in range(count):
                u0, u1, u2, u3 = rows[f, i] - b0, rows[f + 1, i] - b1, rows[f + 2, i] - b2, rows[f + 3, i] - b3
                tile[j, i] = tile[j, i] - u0 * u0 - u1 * u1 - u2 * u2 - u3 * u3
            f += 4
        if f + 2 <= d:
            b0, b1 = columns[j, f], columns[j, f + 1]
            for i in range(count):
                u0, u1 = rows[f, i] - b0, rows[f + 1, i] - b1
                tile[j, i] = tile[j, i] - u0 * u0 - u1 * u1
            f += 2
        if f < d:
            b0 = columns[j, f]
            for i in range(count):
                u0 = rows[f, i] - b0
                tile[j, i] = tile[j, i] - u0 * u0


def differences(tile_at, stride, width, count, rows_at, d, columns_at):  # type: ignore[no-untyped-def]
    """Negative squared distances by direct differences."""
    prefer_full_vectors()
    stay_apart()
    tile, rows = carray(tile_at, (TILE_COLUMNS, stride)), carray(rows_at, (d, stride))
    subtract_squares(tile, width, count, rows, carray(columns_at, (TILE_COLUMNS, d)), d)


def products(tile_at, stride, width, count, rows_at, d, columns_at):  # type: ignore[no-untyped-def]
    """Dot products by BLAS; negative squared distances where rows and columns are packed for the expanded form.

    Always of the same shape, whatever part of the tile is wanted: BLAS may sum in another order for another.
    """
    stay_apart()
    tile, rows = carray(tile_at, (TILE_COLUMNS, stride)), carray(rows_at, (d, stride))
    np.dot(carray(columns_at, (TILE_COLUMNS, d)), rows, tile)


# Profiles: of the negative squared distance, which is a rounding above zero at worst.


def power_of_two(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """2**-s."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    floor = tile.dtype.type(parameters[2])
    for j in range(width):
        for i in range(count):
            tile[j, i] = exp2(tile[j, i], floor)


def matern12(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """2**-u, u = sqrt(s)."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    floor, zero = tile.dtype.type(parameters[2]), tile.dtype.type(0.0)
    for j in range(width):
        for i in range(count):
            tile[j, i] = exp2(-np.sqrt(max(-tile[j, i], zero)), floor)


def matern32(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """(1 + v) 2**-u, u = sqrt(s), v = u ln 2."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    convert = tile.dtype.type
    floor, zero, one, ln2 = convert(parameters[2]), convert(0.0), convert(1.0), convert(_LN2)
    for j in range(width):
        for i in range(count):
            u = min(np.sqrt(max(-tile[j, i], zero)), -floor)
            tile[j, i] = (one + ln2 * u) * exp2(-u, floor)


def matern52(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """(1 + v + v**2 / 3) 2**-u, u = sqrt(s), v = u ln 2."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    convert = tile.dtype.type
    floor, zero, one, third, ln2 = (
        convert(parameters[2]), convert(0.0), convert(1.0), convert(1.0 / 3.0), convert(_LN2),
    )  # fmt: skip
    for j in range(width):
        for i in range(count):
            u = min(np.sqrt(max(-tile[j, i], zero)), -floor)
            v = ln2 * u
            tile[j, i] = (one + v * (one + v * third)) * exp2(-u, floor)


def rational_quadratic(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """(1 + s)**-a."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    floor, zero, exponent = tile.dtype.type(parameters[2]), tile.dtype.type(0.0), tile.dtype.type(parameters[0])
    for j in range(width):
        for i in range(count):
            tile[j, i] = exp2(-exponent * log2_1p(max(-tile[j, i], zero)), floor)


def polynomial(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """(t + c)**p of dot products t, by repeated squaring from the leading bit of p down."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    degree, offset = int(parameters[0]), tile.dtype.type(parameters[1])
    leading = 1
    while 2 * leading <= degree:
        leading *= 2
    base = np.empty(count, tile.dtype)
    for j in range(width):
        for i in range(count):
            base[i] = tile[j, i] + offset
            tile[j, i] = base[i]
        bit = leading // 2
        while bit > 0:
            for i in range(count):
                tile[j, i] = tile[j, i] * tile[j, i]
            if degree & bit:
                for i in range(count):
                    tile[j, i] = tile[j, i] * base[i]
            bit //= 2


# Arithmetic: on one tile, or on it and the next one on the stack.


def constant(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """A tile of ones times the first parameter."""
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    for j in range(width):
        for i in range(count):
            tile[j, i] = parameters[0]


def shift(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """`p0 tile + p1`."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (TILE_COLUMNS, stride))
    factor, offset = tile.dtype.type(parameters[0]), tile.dtype.type(parameters[1])
    for j in range(width):
        for i in range(count):
            tile[j, i] = factor * tile[j, i] + offset


def add(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """`p0 tile + p1 next`."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (2 * TILE_COLUMNS, stride))
    factor, other = tile.dtype.type(parameters[0]), tile.dtype.type(parameters[1])
    for j in range(width):
        for i in range(count):
            tile[j, i] = factor * tile[j, i] + other * tile[TILE_COLUMNS + j, i]


def multiply(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """`tile next`."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (2 * TILE_COLUMNS, stride))
    for j in range(width):
        for i in range(count):
            tile[j, i] = tile[j, i] * tile[TILE_COLUMNS + j, i]


_DISTANCES: tuple[Callable[..., None], ...] = (differences, products)
_ENTRIES: tuple[Callable[..., None], ...] = (
    power_of_two, matern12, matern32, matern52, rational_quadratic, polynomial, constant, shift, add, multiply,
)  # fmt: skip
_STAGES = {function.__name__: function for function in (*_DISTANCES, *_ENTRIES)}
_COMPILED: dict[tuple[str, np.dtype[Any]], Any] = {}


def stage_address(name: str, dtype: DTypeLike) -> int:
    """Address of a stage for tiles of a type; compiled, or read from the cache, once in a process."""
    key = (name, np.dtype(dtype))
    if key not in _COMPILED:
        function = _STAGES[name]
        signature = distance_signature(dtype) if function in _DISTANCES else entry_signature(dtype)
        # Where two threads were at it, the first one's stays: an address lives as long as what it belongs to.
        _COMPILED.setdefault(key, c_function(function, signature, fastmath=FAST_MATH))
    return int(_COMPILED[key].address)
