"""The stages that a tile goes through, each a function of its own that the loops call by its address.

A distance stage turns the rows and columns of one group of inputs into a tile of negative squared distances, or of dot
products; an entry stage changes the entries of a tile in place: a profile, which a kernel's own file declares
(`dkgp.kernels.program.Profile`), or the arithmetic between two tiles. A stage is compiled, or fetched from the cache on
disk, when a kernel first needs it; the loops do not depend on it, so that they are compiled once.

Every entry stage is a plain loop over contiguous rows that the compiler turns into full-width vector code. A call is
made for thousands of entries, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkgp.kernels.compiler import carray, njit, types
from dkgp.kernels.program import PROFILES, Profile
from dkgp.kernels.tiles.blocks import TILE_COLUMNS, fill_differences, fill_expanded, fill_products
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors, stay_apart

# Parameters of an entry stage; the last is the floor of the exponent.
PARAMETERS = 3


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


_STAGES: dict[str, tuple[Callable[..., None], Callable[[DTypeLike], Any]]] = {
    **{function.__name__: (function, distance_signature) for function in (differences, expanded, products)},
    **{function.__name__: (function, entry_signature) for function in (constant, shift, add, multiply)},
}
# The stage of a profile's slopes is called by the profile's name after this.
_SLOPE = "slope of "
_COMPILED: dict[tuple[Callable[..., None], np.dtype[Any]], Any] = {}


def stage_names() -> tuple[str, ...]:
    """All stages that can be compiled by name in any process: those of this module, and dkgp's own profiles."""
    entries = {name: profile.entries for name, profile in PROFILES.items() if profile.entries is not None}
    return (*_STAGES, *(name for name, function in entries.items() if function.__module__.startswith("dkgp.")))


def slope_stage(profile: Profile) -> str:
    """The name of the stage that puts a profile's slopes in the place of -s, or t."""
    return f"{_SLOPE}{profile.name}"


def slope_stage_names() -> tuple[str, ...]:
    """The stages of slopes of dkgp's own profiles; they are compiled for float64 alone."""
    return tuple(
        slope_stage(profile)
        for profile in PROFILES.values()
        if profile.slopes is not None and profile.slopes.__module__.startswith("dkgp.")
    )


def stage_address(name: str, dtype: DTypeLike) -> int:
    """Address of a stage for tiles of a type; compiled, or read from the cache, once in a process."""
    of_dkgp = _STAGES.get(name)
    if of_dkgp:
        function: Callable[..., None] | None = of_dkgp[0]
    elif name.startswith(_SLOPE):
        function = PROFILES[name.removeprefix(_SLOPE)].slopes
    else:
        function = PROFILES[name].entries
    assert function is not None
    key = (function, np.dtype(dtype))
    if key not in _COMPILED:
        from dkgp.kernels.tiles.code_cache import c_function

        if of_dkgp:
            stage = c_function(function, of_dkgp[1](dtype), fastmath=FAST_MATH)
        else:
            # Division by zero as in NumPy: a check for an exception would prevent vector code.
            stage = c_function(
                _profile_stage(function),
                entry_signature(dtype),
                inner=function,
                fastmath=FAST_MATH,
                error_model="numpy",
            )
        # Of two threads that compile at once, the first one's stays: an address lives as long as its code.
        _COMPILED.setdefault(key, stage)
    return int(_COMPILED[key].address)


def _profile_stage(entries: Callable[..., None]) -> Callable[..., None]:
    inlined = njit(inline="always")(entries).built()

    def stage(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
        prefer_full_vectors()
        stay_apart()
        tile = carray(tile_at, (TILE_COLUMNS, stride))
        floor = tile.dtype.type(parameters[2])
        for j in range(width):
            inlined(tile[j, :count], parameters, floor)

    return stage
