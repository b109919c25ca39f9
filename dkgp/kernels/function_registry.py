"""Names for functions that users write, because files hold names and never code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

from dkgp.errors import InputError

__all__ = ["Function", "RegisteredFunction", "name_of_function", "register_function", "registered_function"]

Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class RegisteredFunction:
    """A function and, where the user gave it, its derivative."""

    function: Function
    derivative: Function | None = None


_FUNCTIONS: dict[str, RegisteredFunction] = {}


@overload
def register_function(name: str, *, derivative: Function | None = None) -> Callable[[F], F]: ...


@overload
def register_function(name: str, function: F, *, derivative: Function | None = None) -> F: ...


def register_function(name: str, function: Any = None, *, derivative: Function | None = None) -> Any:
    """Make a function known by a name, so that kernels with it can be written to files; a decorator, or a plain call.

    What is promised of the bits of dkgp's own kernels, that they are the same on every processor, is not promised of
    a user's function: see `UserKernel`.

    Parameters
    ----------
    name : str
        What files call it. A name that is taken is given to the new function.
    function : callable, optional
        Left out where this decorates one.
    derivative : callable, optional
        See `UserKernel`.

    Raises
    ------
    InputError
        A name that is not a word, or a function that is none.

    Examples
    --------
    >>> @register_function("inverse_quadratic")
    ... def inverse_quadratic(s):
    ...     return 1.0 / (1.0 + s)
    >>> name_of_function(inverse_quadratic)
    'inverse_quadratic'
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"the name of a kernel function must be a word of letters, digits and _; got {name!r}")

    def register(given: F) -> F:
        if not callable(given):
            raise InputError(f"a kernel function must be callable; got {given!r}")
        _FUNCTIONS[name] = RegisteredFunction(given, derivative)
        return given

    return register if function is None else register(function)


def registered_function(name: str) -> RegisteredFunction:
    """Look up a name; `InputError` for one that is not registered, which says how to."""
    try:
        return _FUNCTIONS[name]
    except KeyError:
        raise InputError(
            f"no kernel function is registered as '{name}'; got {sorted(_FUNCTIONS) or 'none'}. Register it first, "
            f'with @dkgp.kernels.register_function("{name}") above its definition: files hold no code'
        ) from None


def name_of_function(function: Function) -> str | None:
    """The name that a function is registered under, if any."""
    return next((name for name, entry in _FUNCTIONS.items() if entry.function is function), None)
