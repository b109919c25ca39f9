"""Functions that users write: known by a name, because files hold names and never code, and compiled by Numba."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

from dkgp.errors import InputError

Function: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Function)
_SHOWN_LINES = 3


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

    The bits of dkgp's own kernels are the same on every processor; those of a user's function need not be: see
    `UserKernel`.

    Parameters
    ----------
    name : str
        The name in files. A name that is taken goes to the new function.
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

    def register(candidate: F) -> F:
        if not callable(candidate):
            raise InputError(f"a kernel function must be callable; got {candidate!r}")
        _FUNCTIONS[name] = RegisteredFunction(candidate, derivative)
        return candidate

    return register if function is None else register(function)


def registered_function(name: str) -> RegisteredFunction:
    """Look up a name; `InputError` for one that is not registered."""
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


# ---------------------------------------------------------------------------------------------------------- compilation


def compile_function(function: Function, called: str, arguments: tuple[Any, ...]) -> Any:
    """Compile a user's function by itself, so that Numba speaks of its lines; division by zero is as in NumPy.

    `InputError` for any error of the compiler, and for a function that returns no real number.
    """
    import numba

    try:
        compiled = numba.njit(error_model="numpy", nogil=True)(getattr(function, "py_func", function))
        compiled.compile(arguments)
    except Exception as error:
        reason = _explanation(error)
    else:
        (compilation,) = compiled.overloads.values()
        returned = compilation.signature.return_type
        if isinstance(returned, numba.types.Float | numba.types.Integer | numba.types.Boolean):
            return compiled
        reason = f"it returns {returned}, not a real number"
    expected = "two 1-D arrays" if len(arguments) > 1 else "one number, the scaled squared distance"
    raise InputError(
        f"{called} cannot be compiled: {reason}. Write it as a plain function of {expected}, with arithmetic, math, "
        "branches and loops on numbers"
    )


def _explanation(error: BaseException) -> str:
    """The first lines of Numba's message that are about the function."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).removesuffix("Raised from None")
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("Failed in", "During: ", "File ", "- Resolution"))]
    return "; ".join(line.rstrip(".:") for line in kept[:_SHOWN_LINES]) or type(error).__name__
