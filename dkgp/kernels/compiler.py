"""Numba's decorators, which import Numba when a compiled function is first used.

Importing Numba and building the compiled functions takes half a second. A command that evaluates no kernel, and the
help of every command, must not wait for it. All modules with compiled code take their decorators from here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from dkgp.forks import fork_safe
from dkgp.registry import LaterModule

_lock = fork_safe(threading.RLock())
# Registrations of overloads that wait for Numba.
_waiting: list[Callable[[], object]] = []


types: Any = LaterModule("numba.core.types")
cgutils: Any = LaterModule("numba.core.cgutils")
ir: Any = LaterModule("llvmlite.ir")
# It belongs to a room above, and imports Numba.
code_cache: Any = LaterModule("dkgp.kernels.tiles.code_cache")


class Deferred:
    """A compiled function that Numba builds at its first call, or when another compiled function refers to it."""

    def __init__(self, build: Callable[[], Any], function: Callable[..., Any] | None = None) -> None:
        self._build, self._built = build, None
        if function is not None:
            update_wrapper(self, function)

    def built(self) -> Any:
        """Return Numba's object."""
        if self._built is None:
            with _lock:
                if self._built is None:
                    prepare()
                    self._built = self._build()
        return self._built

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return (self._built or self.built())(*arguments)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute in ("_build", "_built"):
            raise AttributeError(attribute)
        return getattr(self.built(), attribute)

    def __reduce__(self) -> str:
        # By its name, as Python's functions are pickled.
        name: str = vars(self)["__qualname__"]
        return name


def prepare() -> None:
    """Import Numba; teach it the type of a `Deferred`, and the overloads of the modules that are imported already."""
    from numba.core.registry import cpu_target
    from numba.extending import typeof_impl

    if Deferred not in typeof_impl.registry:
        # The folder of compiled code that was filled beforehand decides the processor that Numba compiles for.
        _ = code_cache.FILLED_FOLDER

        def type_of(value: Deferred, _context: Any) -> Any:
            built, context = value.built(), cpu_target.typing_context
            # Numba looks for new functions when it begins to compile; this one may have been built since.
            context.refresh()
            return context.resolve_value_type(built)

        typeof_impl.register(Deferred, type_of)
    while _waiting:
        _waiting.pop(0)()


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` of a function that only other compiled functions call: it is not kept on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        def build() -> Any:
            import numba

            return numba.njit(**options)(function)

        return Deferred(build, function)

    return decorate


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache on disk that notices changes in every file of the compiled kernels."""

    def decorate(function: Callable[..., Any]) -> Any:
        def build() -> Any:
            return code_cache.kept_njit(function, **options)

        return Deferred(build, function)

    return decorate


def intrinsic(*functions: Callable[..., Any], **options: Any) -> Any:
    """`numba.extending.intrinsic`, plain or with options."""

    def decorate(function: Callable[..., Any]) -> Any:
        def build() -> Any:
            from numba import extending

            return extending.intrinsic(**options)(function) if options else extending.intrinsic(function)

        return Deferred(build, function)

    return decorate(*functions) if functions else decorate


def overload(replaced: Callable[..., Any], **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`numba.extending.overload`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def register() -> None:
            from numba import extending

            extending.overload(replaced, **options)(function)

        with _lock:
            _waiting.append(register)
        return function

    return decorate


def _carray() -> Any:
    from numba import carray

    return carray


carray: Any = Deferred(_carray)
