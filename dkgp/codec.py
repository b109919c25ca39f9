"""JSON documents of values: dataclasses, arrays, and types with a form of their own.

`to_json` writes a value and `from_json` reads it by its type. `identity` keeps the part that two runs must share, and
`difference` says where two identities differ. A dataclass needs nothing of its own: its fields are the document, in
their order, and msgspec checks them against the annotations. `rule` marks the fields that are written otherwise. The
class attribute `derived` names properties that the document shows to readers too; with `omits_none = True` fields that
are None are left out. A type that is no dataclass registers one pair of functions:

    register(Kernel, Kernel.to_json, kernel_from_json)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial
from os import PathLike, fspath
from types import UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from dkgp.errors import DkgpError, DocumentError

Json: TypeAlias = Any
T = TypeVar("T")

_RULE = "dkgp.codec"


@dataclass(frozen=True)
class _Rule:
    omit_default: bool = False
    stored: bool = True
    decides: bool = True
    write: Callable[[Any], Json] | None = None
    read: Callable[[Json], Any] | None = None


def rule(
    *,
    omit_default: bool = False,
    stored: bool = True,
    decides: bool = True,
    write: Callable[[Any], Json] | None = None,
    read: Callable[[Json], Any] | None = None,
) -> dict[str, Any]:
    """Return the `metadata` of a dataclass field that is not written as it is.

    Parameters
    ----------
    omit_default
        Leave the field out of the document while it has its default value.
    stored
        False: the field is never part of a document.
    decides
        False: the field is no part of `identity`.
    write, read
        Functions between the field's value and its JSON.
    """
    return {_RULE: _Rule(omit_default, stored, decides, write, read)}


def finite(value: Json) -> Json:
    """Return JSON with None in place of infinities and NaN; also the `write` of a field that may be infinite."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def infinite(value: Json) -> Any:
    """Return numbers with infinity in place of None: the `read` of a field that may be infinite."""
    if isinstance(value, list | tuple):
        return [infinite(item) for item in value]
    return math.inf if value is None else value


# ----------------------------------------------------------------------------------------------------- registered types

_FORMS: dict[type, tuple[Callable[[Any], Json], Callable[[Any], Any]]] = {}


def register(kind: type, write: Callable[[Any], Json], read: Callable[[Any], Any]) -> None:
    """Have values of a type and of its subclasses written and read by these functions."""
    _FORMS[kind] = (write, read)


def _form(kind: type) -> tuple[Callable[[Any], Json], Callable[[Any], Any]] | None:
    return next((_FORMS[base] for base in kind.__mro__ if base in _FORMS), None)


register(np.ndarray, lambda array: to_json(array.tolist()), lambda rows: np.asarray(rows, dtype=np.float64))
register(np.generic, lambda number: number.item(), lambda number: number)


# -------------------------------------------------------------------------------------------------------------- writing


def to_json(value: Any) -> Json:
    """Return a value in plain JSON types; floats keep every bit, infinities and NaN stay.

    Raises `TypeError` for a value that has no JSON.
    """
    kind = type(value)
    if value is None or kind in (str, bool, int, float):
        return value
    form = _form(kind)
    if form is not None:
        return form[0](value)
    if isinstance(value, PathLike):
        return fspath(value)
    if is_dataclass(kind):
        return _document(value, identity=False)
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(to_json(item) for item in value)
    if isinstance(value, str | int | float):  # an enumeration's members
        return next(base(value) for base in (str, int, float) if isinstance(value, base))
    raise TypeError(f"A {kind.__name__} cannot be stored as JSON; expected numbers, text, lists and dicts.")


def identity(value: Any) -> Json:
    """Return the JSON that a checkpoint or a stored model must share with a run: all fields with `decides`."""
    return _document(value, identity=True) if is_dataclass(value) and _form(type(value)) is None else to_json(value)


def _document(value: Any, *, identity: bool) -> dict[str, Json]:
    document = {}
    for field, how in _fields(type(value)):
        if not how.stored or (identity and not how.decides):
            continue
        content = getattr(value, field.name)
        if how.omit_default and _is_default(field, content):
            continue
        if content is None and getattr(value, "omits_none", False):
            continue
        document[field.name] = to_json(content if how.write is None else how.write(content))
    if not identity:
        document |= {name: to_json(getattr(value, name)) for name in getattr(value, "derived", ())}
    return document


def _named_fields(kind: Any) -> list[tuple[Field[Any], _Rule]]:
    named = [(field, field.metadata.get(_RULE, _Rule())) for field in fields(kind)]
    return [(field, how) for field, how in named if not field.name.startswith("_")]


_fields: Callable[[Any], list[tuple[Field[Any], _Rule]]] = cache(_named_fields)
_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))


def _is_default(field: Field[Any], value: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return value is field.default or (type(value) is type(field.default) and bool(value == field.default))


# -------------------------------------------------------------------------------------------------------------- reading


def from_json(
    kind: type[T],
    document: object,
    *,
    older: Callable[[Any], Any] | None = None,
    called: str | None = None,
    advice: str = "",
) -> T:
    """Return the value that `to_json` wrote, checked against its type; unknown names are ignored.

    Parameters
    ----------
    older
        Turns a document of an earlier version into one of today's; it gets every document, and returns one of today's
        unchanged.
    called
        Name of the value in messages, such as "a noise model"; by default the class in words.
    advice
        End of messages: how a user gets a document that can be read.

    Raises
    ------
    DocumentError
        A field is missing, or is of another type; an error that the class itself raises stays as it is.
    """
    called = called or f"a {_in_words(kind)}"
    try:
        form = _form(kind) if isinstance(kind, type) else None
        if form is not None:
            return cast(T, form[1](document))
        prepared = _prepared(kind, document if older is None else older(document))
        _require_fields(kind, prepared)
        return cast(T, _converted(kind, prepared))
    except DkgpError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"{called}: {_fault(error, document)}{f'. {advice}' if advice else ''}") from error


def fields_from_json(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored fields of a dataclass as keywords of its constructor, for a class that has other fields too.

    Raises `KeyError` for a missing field without a default; `ValueError` or `TypeError` for one of another type.
    """
    hints, values = _hints(kind), {}
    for field, how in _fields(kind):
        if how.stored and (field.name in document or is_required(field)):
            value = document[field.name] if how.read is None else how.read(document[field.name])
            values[field.name] = _converted(hints[field.name], _prepared(hints[field.name], value))
    return values


def _require_fields(kind: Any, document: Any) -> None:
    """Raise `ValueError` with all missing names at once, where msgspec would tell the first."""
    if not (is_dataclass(kind) and isinstance(document, Mapping)):
        return
    needed = [field.name for field, how in _fields(kind) if how.stored and is_required(field)]
    missing = [name for name in needed if name not in document]
    if missing:
        present = ", ".join(f"'{name}'" for name in document) or "nothing"
        words = ", ".join(f"'{name}'" for name in missing)
        raise ValueError(f"{words} {'is' if len(missing) == 1 else 'are'} missing; got {present}")


def is_required(field: Field[Any]) -> bool:
    """Return True for a field without a default."""
    return field.init and field.default is MISSING and field.default_factory is MISSING


def _converted(kind: Any, document: Any) -> Any:
    try:
        return msgspec.convert(document, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, DkgpError):  # raised by a class's own checks
            raise error.__cause__ from None
        raise


def _prepared(kind: Any, document: Any) -> Any:
    """Apply the rules of all fields: drop names that are not stored, call the `read` of single fields."""
    if type(document) in _SCALARS:
        return document
    if is_dataclass(kind) and isinstance(document, Mapping):
        hints, document = _hints(kind), dict(document)
        if getattr(kind, "omits_none", False):
            document = {name: value for name, value in document.items() if value is not None}
        for field, how in _fields(kind):
            if not how.stored:
                document.pop(field.name, None)
            elif field.name in document:
                value = document[field.name] if how.read is None else how.read(document[field.name])
                document[field.name] = _prepared(hints[field.name], value)
        return document
    parts = [part for part in get_args(kind) if part is not Ellipsis]
    if get_origin(kind) is Annotated:
        return _prepared(parts[0], document)
    if get_origin(kind) in (list, tuple) and isinstance(document, list | tuple) and len(parts) == 1:
        return [_prepared(parts[0], item) for item in document]
    if get_origin(kind) is dict and isinstance(document, Mapping):
        return {name: _prepared(parts[1], item) for name, item in document.items()}
    if get_origin(kind) in (Union, UnionType):
        for part in parts:
            document = _prepared(part, document)
    return document


def _read(kind: Any, document: Any) -> Any:
    """Read a type that msgspec does not know."""
    known = get_origin(kind) or kind
    form = _form(known) if isinstance(known, type) else None
    if form is None:
        raise TypeError(f"{kind} has no form in JSON; `dkgp.codec.register` gives it one")
    return document if isinstance(document, known) else form[1](document)


_SCALARS = (float, str, bool, int, type(None))
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a JSON object",
}


def _fault(error: Exception, document: Any) -> str:
    """Return a fault in words, such as "`basis[2]` must be a number; got 'x'"."""
    if not isinstance(error, msgspec.ValidationError):
        return f"it lacks `{error.args[0]}`" if isinstance(error, KeyError) else str(error)
    text, _, path = str(error).partition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    where = f"`{place}`" if place else "it"
    if text.startswith("Object missing required field "):
        return f"{where} lacks {text.removeprefix('Object missing required field ')}"
    wrong = repr(_at(document, place))[:80]
    if text.startswith("Expected "):
        kinds, _, bound = text.removeprefix("Expected ").partition(", got ")[0].partition("` ")
        words = [_WORDS.get(kind, kind) for kind in kinds.strip("`").split(" | ") if kind != "null"]
        return f"{where} must be {' or '.join(words)}{f' {bound}' if bound else ''}; got {wrong}"
    return f"{where} is {wrong}: {text[0].lower()}{text[1:]}"


def _at(document: Any, place: str) -> Any:
    """Return the part of a document at a place such as `parts[2].name`."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        try:
            document = document[name or int(index)]
        except (KeyError, IndexError, TypeError):
            break
    return document


def _in_words(kind: Any) -> str:
    name = getattr(kind, "__name__", str(kind))
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


# ------------------------------------------------------------------------------------------------------------ comparing


def difference(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return the first name in which two identities differ, with both values; None if they are equal.

    Parameters
    ----------
    made, wanted
        The earlier run's identity, as it was read, and this run's. A name that only one of them has counts too.
    """
    expected = finite(to_json(wanted))
    for name in {**expected, **made}:
        if made.get(name) != expected.get(name):
            if name == "fingerprint":
                return "data set"
            words = name.replace("_", " ")
            return f"{words} (its {words}: {made.get(name)!r}; this run's: {expected.get(name)!r})"
    return None
