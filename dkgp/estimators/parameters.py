"""Parameters of estimators: each declared once, by the annotation of its field, and checked before a fit.

    subset_size: Annotated[int, Option(least=2)] = 2000

Types are the annotation's, ranges and choices those of an `Option`; `Takes` says which other objects a parameter takes.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.product_error import Value, is_product_error
from dkgp.registry import Option


@dataclass(frozen=True)
class Takes:
    """Objects that a parameter takes: words on them, and their test; `advice` is added to errors."""

    words: str
    passes: Callable[[Any], bool]
    advice: str = ""


def is_random_state(value: Any) -> bool:
    """True of a whole number that is not negative, NumPy's RandomState, and None."""
    if isinstance(value, int | np.integer):
        return int(value) >= 0 and not isinstance(value, bool)
    return value is None or value is np.random or isinstance(value, np.random.RandomState)


def is_client(value: Any) -> bool:
    """True of a client of distributed, which is not imported for the answer, and of None."""
    distributed = sys.modules.get("distributed")
    return value is None or (distributed is not None and isinstance(value, distributed.Client))


def _is_place(value: Any) -> bool:
    return value is None or (isinstance(value, str | os.PathLike) and bool(os.fspath(value)))


_HINTS: dict[type[Any], dict[str, Any]] = {}

RandomState = Annotated[Any, Takes("a whole number from 0, a numpy.random.RandomState or None", is_random_state)]
Client = Annotated[Any, Takes("a distributed.Client, as by distributed.Client('tcp://...'), or None", is_client)]
Place = Annotated[Any, Takes("a folder or URL, or None", _is_place)]
# Of a parameter that the code which uses it checks, and names.
CheckedElsewhere = Annotated[Any, Takes("", lambda value: True)]
Positive = Annotated[float, Option(above=0)]
PositiveOrNone = Annotated[float | None, Option(above=0)]
Count = Annotated[int, Option(least=1)]
CountOrNone = Annotated[int | None, Option(least=1)]
SubsetSize = Annotated[int, Option(least=2)]
# See `dkgp.operators.ProductError`.
AllowedError = Annotated[Value, Takes("a positive finite number, 'auto' or 'none'", is_product_error)]
Restarts = Annotated[int, Option(least=0)]


def address(url: Any) -> str:
    """Return the path or URL of a store as text; `InputError` for another object."""
    check_value(
        "url", Annotated[Any, Takes("a path or URL", lambda value: value is not None and _is_place(value))], url
    )
    return str(os.fspath(url))


def check_parameters(estimator: Any, *names: str) -> None:
    """Refuse parameters of an estimator, a dataclass, of another type than declared or out of range; all by default.

    Raises `InputError`, which lists the values that the parameter takes.
    """
    hints = _hints_of(type(estimator))
    for field in dataclasses.fields(estimator):
        if field.init and (not names or field.name in names):
            check_value(field.name, hints[field.name], getattr(estimator, field.name))


def check_value(name: str, hint: Any, value: Any) -> None:
    """Refuse a value that an annotation does not allow; `InputError` names it."""
    takes, option, kinds = _marks_of(hint)
    if takes is not None:
        if takes.passes(value):
            return
        words, advice = takes.words, takes.advice
    else:
        if any(_fits(kind, value, option) for kind in kinds):
            return
        words, advice = _listed([word for kind in kinds for word in _words_of(kind, option)]), ""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:76]}..."
    raise InputError(f"{name}= takes {words}; got {shown}{advice}")


@lru_cache(256)
def _marks_of(hint: Any) -> tuple[Takes | None, Option, tuple[Any, ...]]:
    """Return the marks of an annotation, and its types."""
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    takes = next((mark for mark in marks if isinstance(mark, Takes)), None)
    option = next((mark for mark in marks if isinstance(mark, Option)), Option())
    return takes, option, _kinds_of(hint)


def _hints_of(kind: type[Any]) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind, include_extras=True)
    return _HINTS[kind]


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types of an annotation, without its marks."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _fits(kind: Any, value: Any, option: Option) -> bool:
    if kind is str:
        return isinstance(value, str) and (not option.choices or value in option.choices)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind in (int, float):
        is_number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
        return is_number and _in_range(value, option)
    if kind is type(None):
        return value is None
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        pairs = isinstance(value, tuple | list) and len(value) == len(inner)
        return pairs and all(_fits(one, each, option) for one, each in zip(inner, value, strict=True))
    return kind is Any or isinstance(value, kind)


def _in_range(value: Any, option: Option) -> bool:
    finite = isinstance(value, Integral) or bool(np.isfinite(value))
    low = (option.least is not None and value < option.least) or (option.above is not None and value <= option.above)
    return finite and not low


def _words_of(kind: Any, option: Option) -> list[str]:
    """Describe the values that a type allows."""
    if typing.get_origin(kind) is Literal:
        return [repr(choice) for choice in typing.get_args(kind)]
    if typing.get_origin(kind) is tuple:
        return [f"({', '.join(_words_of(inner, option)[0] for inner in typing.get_args(kind))})"]
    if kind is str and option.choices:
        return [repr(choice) for choice in option.choices]
    above = "" if option.above is None else f" above {option.above:g}"
    least = "" if option.least is None else f" from {option.least}"
    words = {
        type(None): "None",
        bool: "True or False",
        int: f"a whole number{above}{least}",
        float: f"a finite number{above}{least}",
        str: "text",
    }
    return [words.get(kind, f"a {getattr(kind, '__name__', kind)}")]


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
