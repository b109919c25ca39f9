"""Compiled code that is kept on disk, and thrown away when any source it was made of has changed.

Numba keeps compiled code beside the function's own file and looks at that file alone, while the code also holds what
was called and inlined from others. Here the stamp on kept code covers all files whose functions are inlined elsewhere,
so that an upgrade never runs loops with the arithmetic of the version before. Those files are `compiled*.py` in this
folder; a compiled function that calls one of them from outside is decorated with `cached_njit`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import cfunc, njit
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

__all__ = ["SOURCES_STAMP", "c_function", "cached_njit", "is_stamped"]


def _stamp_of_sources() -> str:
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in (Path(__file__), *sorted(folder.glob("compiled*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


SOURCES_STAMP = _stamp_of_sources()


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache on disk that notices changes in every file of the compiled kernels."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(cache=True, **options)(function)
        # Should another version of Numba keep its stamp elsewhere: better compiled anew each time than out of date.
        return dispatcher if _stamp(dispatcher) else njit(**options)(function)

    return decorate


def c_function(function: Callable[..., Any], signature: Any, *, cache: bool = True, **options: Any) -> Any:
    """Compile `function` to what C can call; `.address` is valid as long as the result lives."""
    if cache:
        compiled = CFunc(function, normalize_signature(signature), locals={}, options=options)
        compiled.enable_caching()
        if _stamp(compiled):
            compiled.compile()
            return compiled
    return cfunc(signature, **options)(function)


def is_stamped(dispatcher: Any) -> bool:
    """Whether a compiled function's cache notices changes in the files of the compiled kernels."""
    stamp = getattr(getattr(getattr(dispatcher, "_cache", None), "_cache_file", None), "_source_stamp", None)
    return isinstance(stamp, tuple) and stamp[1] == SOURCES_STAMP


def _stamp(dispatcher: Any) -> bool:
    index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if index is None or not hasattr(index, "_source_stamp"):
        return False
    index._source_stamp = (index._source_stamp, SOURCES_STAMP)
    return True
