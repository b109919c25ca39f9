"""JSON from outside, read into dataclasses by pydantic: strict, finite, of bounded length; errors name the field.

pydantic's `TypeAdapter` cannot read a job's dataclass itself: strictness is a setting of the class, which would then
know of the service; it would read the cluster too; and the options of a solver are known only at run time. So it reads
a model with the same fields, whose values then make the dataclass, with its own checks.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from dkgp.errors import DkgpError, InputError, MissingExtraError, UsageError
from dkgp.options import fields_in_order, options_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

LONGEST_TEXT = 4096
# Of all objects and lists together: what is checked item by item, each with words of its own, must not be too many.
MOST_VALUES = 10_000
# Mistakes that one message tells of.
MOST_MISTAKES = 20
# Solvers may become known at any time.
_ADAPTERS: dict[tuple[type[Any], tuple[str, ...]], TypeAdapter[Any]] = {}
# Of dataclasses whose fields are their own; to resolve them takes a third of a millisecond.
_FIELDS: dict[type[Any], dict[str, tuple[Any, Any]]] = {}


class _RefusedError(ValueError):
    """A dataclass's own objection to its values; pydantic hands on a `ValueError` only."""

    def __init__(self, error: DkgpError) -> None:
        self.error = error


def read(kind: type[T], options: Any, subject: str) -> T:
    """Return the dataclass that a JSON object describes; `subject`, what it describes ("train"), is for messages.

    `UsageError` for an unknown field, a value of another type or options that contradict each other, `InputError` for a
    value out of range.
    """
    from pydantic import ValidationError

    if not isinstance(options, Mapping):
        raise UsageError(f"{subject} is described by a JSON object; got {shown(options)}")
    _refuse_too_many(options, subject)
    _refuse_unusual(options, kind)
    try:
        # As JSON: a list may stand for a tuple there, and nothing else for what it is not.
        instance: T = adapter(kind).validate_json(json.dumps(options))
    except ValidationError as error:
        raise _in_words(error, kind, subject) from None
    return instance


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return what reads a dataclass, and knows its JSON schema."""
    from dkgp.solvers.registry import solver_names

    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise MissingExtraError("pydantic", "service", "Checking a job's options") from None
    key = kind, solver_names()
    if key not in _ADAPTERS:
        _ADAPTERS[key] = TypeAdapter(_annotation(kind))
    return _ADAPTERS[key]


def _annotation(kind: type[Any]) -> Any:
    """A model with the dataclass's fields, within the bounds that their metadata say, then made into the dataclass."""
    from pydantic import AfterValidator, ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    bounds = {field.name: field.metadata for field in dataclasses.fields(kind)}
    declared = options_of(kind)
    for name, (annotation, default) in fields_of(kind).items():
        inner = _nested(annotation)
        if inner is not None:
            model_type = _annotation(inner)
            annotation = model_type | None if isinstance(annotation, types.UnionType) else model_type
            if default is dataclasses.MISSING:
                default = Field(...)
            else:
                default = None if default is None else Field(default_factory=inner)
        else:
            description = declared[name].help if name in declared else None
            default = Field(
                ... if default is dataclasses.MISSING else default,
                description=description or None,
                **bounds.get(name, {}),
            )
        fields[name] = (annotation, default)
    settings = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, str_max_length=LONGEST_TEXT)
    model = create_model(kind.__name__, __config__=settings, __doc__=(kind.__doc__ or "").split("\n")[0], **fields)

    def made(values: Any) -> Any:
        try:
            return kind(**{name: getattr(values, name) for name in values.model_fields_set})
        except MissingExtraError:
            raise
        except DkgpError as error:
            raise _RefusedError(error) from None

    return Annotated[model, AfterValidator(made)]


def fields_of(kind: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default of every field of a dataclass but a cluster; of a solver's options, of all that are declared."""
    declared = getattr(kind, "option_types", None)
    if declared is not None:
        types_and_defaults: dict[str, tuple[Any, Any]] = declared()
        return types_and_defaults
    if kind not in _FIELDS:
        hints = typing.get_type_hints(kind)
        defaults = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in fields_in_order(kind)
            if field.name != "cluster"
        }
        _FIELDS[kind] = {name: (hints[name], default) for name, default in defaults.items()}
    return _FIELDS[kind]


def _nested(annotation: Any) -> type[Any] | None:
    """The dataclass that a field holds, or may hold."""
    dataclass_parts = [part for part in (annotation, *typing.get_args(annotation)) if dataclasses.is_dataclass(part)]
    return typing.cast(type[Any], dataclass_parts[0]) if dataclass_parts else None


def _in_words(error: ValidationError, kind: type[Any], subject: str) -> DkgpError:
    """Say what is wrong: unknown fields before wrong types, these before a dataclass's own objections."""
    complaints: dict[str, list[str]] = {}
    got: dict[str, str] = {}
    refused: DkgpError | None = None
    for problem in error.errors(include_url=False)[:MOST_MISTAKES]:
        name, siblings = _place(problem["loc"], kind)
        message = problem["msg"].replace("Input should be", "expected")
        match problem["type"]:
            case "extra_forbidden":
                *parents, field = name.split(".")
                near = difflib.get_close_matches(field, siblings, n=1)
                meant = f"did you mean '{'.'.join([*parents, *near])}'?"
                advice = meant if near else f"expected some of {', '.join(siblings)}"
                return UsageError(f"{shown(name)[1:-1]}: {subject} has no such option; {advice}")
            case "value_error":
                refused = _named(problem["ctx"]["error"].error, name)
            case "missing":
                complaints[name], got[name] = ["needed, and not given"], ""
            case _:
                words = _words_on(problem["loc"], kind) or message[:1].lower() + message[1:]
                complaints.setdefault(name, []).append(words)
                got[name] = f"; got {shown(problem['input'])}"
    sentences = [f"{name}: {', or '.join(dict.fromkeys(messages))}{got[name]}" for name, messages in complaints.items()]
    return UsageError("; ".join(sentences)) if sentences else refused or UsageError(str(error))


def _place(location: tuple[int | str, ...], kind: type[Any]) -> tuple[str, Collection[str]]:
    """The field that a problem is with, as the user wrote it, and the fields that there are beside it."""
    names, fields = [], fields_of(kind)
    for part in location:  # pydantic appends the branch of a union that it tried
        names.append(str(part))
        inner = _nested(fields[str(part)][0]) if part in fields else None
        if inner is None:
            break
        fields = fields_of(inner)
    return ".".join(names), fields


def _words_on(location: tuple[int | str, ...], kind: type[Any]) -> str | None:
    """Return words on the values that the option at a place takes, where it has words of its own."""
    for part in location:
        field = fields_of(kind).get(str(part))
        inner = None if field is None else _nested(field[0])
        if inner is None:
            option = options_of(kind).get(str(part))
            return None if option is None or option.values is None else f"expected {option.values.words}"
        kind = inner
    return None


def shown(value: object) -> str:
    """Return what was sent, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse_too_many(value: Any, subject: str) -> None:
    """Refuse more than `MOST_VALUES`, counted no further than that; `InputError`."""
    count, remaining = 0, [value]
    while remaining:
        item = remaining.pop()
        inner = list(item.values()) if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else ()
        count += len(inner)
        if count > MOST_VALUES:
            raise InputError(
                f"{subject}: at most {MOST_VALUES:,} values in all; got more. What is that long belongs into a file, "
                "such as hyperparameters"
            )
        remaining.extend(inner)


def _refuse_unusual(value: Any, kind: type[Any], *place: str) -> None:
    """Refuse what is no JSON, and numbers and texts beyond all bounds; `InputError`, `UsageError`."""
    reason = ""
    if isinstance(value, Mapping):
        for key, item in value.items():
            # Names are joined in messages alone: a long one would be copied for each of its members.
            _refuse_unusual(item, kind, *place, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unusual(item, kind, *place)
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            reason = f"at most {LONGEST_TEXT:,} characters; got {len(value):,}"
        elif "\0" in value or not value.isprintable():
            reason = f"expected text without control characters; got {shown(value)}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            reason = f"{_words_on(place, kind) or 'expected a finite number'}; got {value}"
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            reason = f"expected a number below 2^63; got one of {value.bit_length():,} bits"
    elif value is not None:
        raise UsageError(f"{shown('.'.join(place))[1:-1]}: expected JSON; got a {type(value).__name__}")
    if reason:
        raise InputError(f"{shown('.'.join(place))[1:-1]}: {reason}")


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Put the field's name before what is wrong with its value."""
    try:
        yield
    except MissingExtraError:
        raise
    except DkgpError as error:
        raise _named(error, field) from None


def _named(error: DkgpError, field: str) -> DkgpError:
    return type(error)(f"{field}: {error}" if field else str(error))
