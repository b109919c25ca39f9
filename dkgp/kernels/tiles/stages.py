"""The stages that a tile goes through, each a function of its own that the loops call by its address.

A distance stage turns the rows and columns of one group of inputs into a tile of negative squared distances, or of dot
products; an entry stage changes the entries of a tile in place: a profile, or the arithmetic between two tiles. A stage
is compiled, or fetched from the cache on disk, when a kernel first needs it; the loops know none of them, so that they
are compiled once and a new profile is one new function here.

Every entry stage is a plain loop over contiguous rows that the compiler turns into full-width vector code. A call is
made for thousands of entries, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types
from numpy.typing import DTypeLike

from dkgp.kernels.tiles.blocks import TILE_COLUMNS, fill_differences, fill_expanded, fill_products
from dkgp.kernels.tiles.code_cache import c_function
from dkgp.kernels.tiles.math import FAST_MATH, exp2, fma, log2_1p, prefer_full_vectors, stay_apart

__all__ = ["PARAMETERS", "STAGE_NAMES", "TILE_COLUMNS", "distance_signature", "entry_signature", "stage_address"]

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


# Distances: each entry one chain over the features, see `dkgp.kernels.tiles.blocks`.


def differences(tile_at, stride, width, count, rows_at, d, columns_at):  # type: ignore[no-untyped-def]
    """Negative squared distances by direct differences."""
    prefer_full_vectors()
    stay_apart()
    fill_differences(tile_at, stride, width, count, rows_at, d, columns_at)


def expanded(tile_at, stride, width, count, rows_at, d, columns_at):  # type: ignore[no-untyped-def]
    """Negative squared distances `2ab - (|a|^2 + |b|^2)`: half the work of differences, fewer digits."""
    prefer_full_vectors()
    stay_apart()
    fill_expanded(tile_at, stride, width, count, rows_at, d, columns_at)


def products(tile_at, stride, width, count, rows_at, d, columns_at):  # type: ignore[no-untyped-def]
    """Dot products."""
    prefer_full_vectors()
    stay_apart()
    fill_products(tile_at, stride, width, count, rows_at, d, columns_at)


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
            tile[j, i] = fma(ln2, u, one) * exp2(-u, floor)


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
            tile[j, i] = fma(v, fma(v, third, one), one) * exp2(-u, floor)


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
            tile[j, i] = fma(factor, tile[j, i], offset)


def add(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """`p0 tile + p1 next`."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (2 * TILE_COLUMNS, stride))
    factor, other = tile.dtype.type(parameters[0]), tile.dtype.type(parameters[1])
    for j in range(width):
        for i in range(count):
            tile[j, i] = fma(factor, tile[j, i], other * tile[TILE_COLUMNS + j, i])


def multiply(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
    """`tile next`."""
    prefer_full_vectors()
    stay_apart()
    tile = carray(tile_at, (2 * TILE_COLUMNS, stride))
    for j in range(width):
        for i in range(count):
            tile[j, i] = tile[j, i] * tile[TILE_COLUMNS + j, i]


_DISTANCES: tuple[Callable[..., None], ...] = (differences, expanded, products)
_ENTRIES: tuple[Callable[..., None], ...] = (
    power_of_two, matern12, matern32, matern52, rational_quadratic, polynomial, constant, shift, add, multiply,
)  # fmt: skip
_STAGES = {function.__name__: function for function in (*_DISTANCES, *_ENTRIES)}
STAGE_NAMES = tuple(_STAGES)
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
