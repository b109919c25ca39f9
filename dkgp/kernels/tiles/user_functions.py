"""Users' own kernel functions, compiled into stages that the tile loops call like any other.

A function of the scaled squared distance, or of two rows of inputs, is compiled once in a process for each precision,
by each process that evaluates the kernel. Compiled code is looked up by the function's content, since every message
brings a new copy of it.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import types as python_types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkgp.forks import fork_safe
from dkgp.kernels.compiler import carray, njit, types
from dkgp.kernels.functions import compile_function
from dkgp.kernels.tiles.blocks import LANES, TILE_COLUMNS
from dkgp.kernels.tiles.stages import distance_signature, entry_signature
from dkgp.kernels.vector_math import prefer_full_vectors, stay_apart

_COMPILED: dict[tuple[str, np.dtype[Any], bool], tuple[Any, Callable[..., Any]]] = {}
_LOCK = fork_safe(threading.Lock())


def user_stage(function: Callable[..., Any], dtype: DTypeLike, *, pair: bool) -> int:
    """Address of the stage that applies `function`, compiled on first use; `InputError` where Numba cannot.

    The function is one of the scaled squared distance or, as a `pair`, of two 1-D arrays, two samples' scaled inputs.
    """
    key = (_content(function), np.dtype(dtype), pair)
    with _LOCK:
        if key not in _COMPILED:
            # With the function, whose identity may be part of the key: no other may take its address.
            _COMPILED[key] = _compile(function, np.dtype(dtype), pair), function
        return int(_COMPILED[key][0].address)


def _compile(function: Callable[..., Any], dtype: np.dtype[Any], pair: bool) -> Any:
    from dkgp.kernels.tiles.code_cache import c_function

    number = types.float32 if dtype == np.float32 else types.float64
    called = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    arguments = (types.Array(number, 1, "C"),) * 2 if pair else (number,)
    inner = compile_function(function, f"the kernel function {called}", arguments)
    stage, signature = (_pair_stage, distance_signature) if pair else (_entry_stage, entry_signature)
    return c_function(stage(_guarded(inner, pair)), signature(dtype), cache=False, error_model="numpy")


def _guarded(function: Any, pair: bool) -> Any:
    """Return `function` with NaN in place of exceptions, which nothing can catch inside a tile.

    A function of its own, inlined once the compiler has seen that nothing is ever raised: as a part of the loop it
    would keep that from becoming vector code.
    """

    def of_distance(s):  # type: ignore[no-untyped-def]
        try:
            return float(function(s))
        except Exception:
            return np.nan

    def of_rows(x, y):  # type: ignore[no-untyped-def]
        try:
            return float(function(x, y))
        except Exception:
            return np.nan

    return njit(error_model="numpy", nogil=True)(of_rows if pair else of_distance).built()


def _entry_stage(function: Any) -> Callable[..., None]:
    def apply(tile_at, stride, width, count, parameters):  # type: ignore[no-untyped-def]
        prefer_full_vectors()
        stay_apart()
        tile = carray(tile_at, (TILE_COLUMNS, stride))
        zero = tile.dtype.type(0.0)
        for j in range(width):
            for i in range(count):
                tile[j, i] = function(max(-tile[j, i], zero))

    return apply


def _pair_stage(function: Any) -> Callable[..., None]:
    def apply(tile_at, stride, width, count, rows_at, d, columns_at):  # type: ignore[no-untyped-def]
        tile, rows = carray(tile_at, (TILE_COLUMNS, stride)), carray(rows_at, (stride // LANES, d, LANES))
        columns = carray(columns_at, (TILE_COLUMNS, d))
        # Copies: a function that writes to its arguments changes no other entry.
        x, y = np.empty(d, tile.dtype), np.empty(d, tile.dtype)
        for i in range(count):
            for j in range(width):
                for f in range(d):
                    x[f], y[f] = rows[i // LANES, f, i % LANES], columns[j, f]
                tile[j, i] = function(x, y)

    return apply


def _content(function: Callable[..., Any]) -> str:
    """Digest of all that a function's result depends on; of its identity where that cannot be told."""
    digest = hashlib.sha256()
    seen: set[int] = set()
    for part in _parts(getattr(function, "py_func", function), seen):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    value = getattr(value, "py_func", value)
    if isinstance(value, python_types.FunctionType):
        yield b"function"
        if id(value) in seen:
            return
        seen.add(id(value))
        yield from _parts(value.__code__, seen)
        yield from _parts(value.__defaults__, seen)
        yield from _parts([cell.cell_contents for cell in value.__closure__ or ()], seen)
        for name in _global_names(value.__code__):
            yield name.encode()
            yield from _parts(value.__globals__.get(name), seen)
    elif isinstance(value, python_types.CodeType):
        yield value.co_code
        yield repr((value.co_names, value.co_varnames, value.co_freevars, value.co_argcount)).encode()
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield repr((value.dtype.str, value.shape)).encode()
        yield value.tobytes()
    elif isinstance(value, python_types.ModuleType):
        yield value.__name__.encode()
    elif isinstance(value, bool | int | float | complex | str | bytes | np.generic | None):
        yield f"{type(value).__name__} {value!r}".encode()
    else:
        try:
            yield pickle.dumps(value)
        except Exception:  # objects that cannot be pickled differ by their identity
            yield f"{type(value).__name__} {id(value)}".encode()


def _global_names(code: python_types.CodeType) -> list[str]:
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, python_types.CodeType):
            names.update(_global_names(inner))
    return sorted(names)
