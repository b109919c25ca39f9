"""Options of commands, each declared once: on the field of the job's dataclass that holds its value.

    pool: Annotated[int, Option(help="Prototypes to choose among.", metavar="M", least=1)] = 2000

Every surface reads this declaration: `make` builds a job from the command line, and `dkgp.service.specification` reads
and describes it as JSON. `check_ranges` is the one check of ranges and choices; `foreign_options` finds options of
other methods. A field that is a `Part` holds another dataclass; its options are options of the command too.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar

from dkgp.errors import DkgpError, InputError, UsageError, respell
from dkgp.registry import Group, Option

T = TypeVar("T")
_HINTS: dict[type[Any], dict[str, Any]] = {}
# Fields with an option, their annotations, and the options: completed, except those whose attributes come late.
_DECLARATIONS: dict[type[Any], list[tuple[dataclasses.Field[Any], Any, Option]]] = {}

# All parts of a job share it.
SEED = Option("seed", "Seed of all random draws.", least=0)


@dataclass(frozen=True)
class Part:
    """Marks a field that holds a dataclass with options of its own."""

    # The option that enables the part if the field may be None, and further flags that enable it.
    flag: str | None = None
    help: str = ""
    implied_by: tuple[str, ...] = ()
    prefix: str = ""  # added to option names to keep them unique
    without: tuple[str, ...] = ()  # fields without an option in this command
    group: Group | None = None  # heading of options without a group


@dataclass(frozen=True)
class ByName:
    """Marks a field that maps names of options to their values; `options` returns these options at run time."""

    options: Callable[[], Iterable[Option]]


@dataclass(frozen=True)
class Declared:
    """An option of a command with its unique name, and the fields that take its value."""

    option: Option
    # Fields from the job down to the value. There are several paths if parts share the option, for example the seed.
    paths: tuple[tuple[str, ...], ...]
    part: str | None = None  # the flag that the option requires, and alternative flags
    implied_by: tuple[str, ...] = ()


def documented(kind: type[T]) -> type[T]:
    """Decorate a dataclass: add the help of its options to its docstring, field by field."""
    lines = [inspect.cleandoc(kind.__doc__ or ""), "", "Attributes", "----------"]
    for name, option in options_of(kind).items():
        plain = _plain(hints_of(kind)[name])
        type_name = " or ".join(f'"{choice}"' for choice in option.choices) or getattr(plain, "__name__", str(plain))
        standard = "optional" if option.default is None else f"default {option.default!r}"
        lines += [f"{name} : {type_name}, {standard}", *(f"    {line}" for line in textwrap.wrap(option.help, 110))]
    kind.__doc__ = "\n".join(lines)
    return kind


def options_of(kind: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass declares, by field; those of its parts are not included."""
    if kind not in _DECLARATIONS:
        marked = ((field, hints_of(kind)[field.name]) for field in fields_in_order(kind))
        _DECLARATIONS[kind] = [
            (field, hint, option if option.late is not None else _completed(option, field, hint))
            for field, hint in marked
            if (option := mark_of(hint, Option)) is not None
        ]
    options = {
        field.name: option if option.late is None else _completed(option, field, hint)
        for field, hint, option in _DECLARATIONS[kind]
    }
    # Options that are declared elsewhere, such as a solver's.
    return options | getattr(kind, "more_options", dict)()


def fields_in_order(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return a dataclass's fields, its own before inherited ones: the order of helps and of checks."""
    order = list(hints_of(kind))
    return sorted(dataclasses.fields(kind), key=lambda field: order.index(field.name))


def declared_options(kind: type[Any]) -> dict[str, Declared]:
    """Return all options of a job and of its parts, by their names on the command line and in messages."""
    collected: dict[str, Declared] = {}
    _collect(kind, (), Part(), collected)
    return collected


def foreign_options(values: Any, method: str) -> list[Declared]:
    """Return the options of a job that belong to other methods and are not at their defaults."""
    return [
        each
        for each in declared_options(type(values)).values()
        if each.option.group is not None
        and each.option.group.methods
        and method not in each.option.group.methods
        and value_at(values, each.paths[0]) != each.option.default
    ]


def deciding_values(values: Any, method: str, part: str) -> dict[str, Any]:
    """Return the values that a job's result depends on, by field.

    These are options of its method, and options of `part` that belong to no method; no data, limits or places.
    """
    deciding = {}
    for each in declared_options(type(values)).values():
        methods = () if each.option.group is None else each.option.group.methods
        if each.option.decides and (method in methods or any(not methods and path[0] == part for path in each.paths)):
            deciding[each.paths[0][-1]] = value_at(values, each.paths[0])
    return deciding


def value_at(values: Any, path: tuple[str, ...]) -> Any:
    """Return the value of an option of a job; None if the option belongs to a part that the job lacks."""
    for name in path:
        if values is None:
            return None
        values = values.get(name) if isinstance(values, Mapping) else getattr(values, name)
    return values


def arguments_for(function: Callable[..., Any], values: Any) -> dict[str, Any]:
    """Return the fields of a job, or of its part, that a function has parameters for, by name."""
    parameters = inspect.signature(function).parameters.values()
    named = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    return {name: getattr(values, name) for name in named if hasattr(values, name)}


def words_of(values: Any, without: Collection[str] = ()) -> list[str]:
    """Return the words of the command line that makes a job: the inverse of `make`.

    Options at their defaults, options of a part that the job lacks, and the options in `without` are left out.
    """
    declared = declared_options(type(values))
    parts = {each.part for each in declared.values() if each.part and value_at(values, each.paths[0][:-1]) is not None}
    arguments: list[str] = []
    flags: list[str] = []
    for name, each in declared.items():
        option = each.option
        value = value_at(values, each.paths[0]) if each.paths else name in parts
        if name in without or option.sets is not None or value in (None, "", ()) or value == option.default:
            continue
        if isinstance(value, bool):
            flags.append(option.flags[0 if value else -1])
        elif option.argument:
            arguments += value if option.multiple else [value]
        elif option.nargs > 1:
            flags += [option.flags[0], *map(_as_text, value)]
        else:
            texts = option.written(value) if option.written else map(_as_text, value if option.multiple else [value])
            flags += [word for text in texts for word in (option.flags[0], text)]
    return [*arguments, *flags]


def _as_text(value: Any) -> str:
    """Return a value as text: several with commas, a float without digits that it does not need."""
    if isinstance(value, tuple):
        return ",".join(map(_as_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def make(kind: type[Any], values: Mapping[str, Any], makers: Mapping[type[Any], Any] | None = None) -> Any:
    """Return the job that options make; options that are None, and flags that are not set, have their defaults.

    Raises `UsageError` for options of a part that was not asked for.

    Parameters
    ----------
    values, makers
        Values by the options' names; functions that build dataclasses of parts, in place of the class itself.
    """
    declared = declared_options(kind)
    given_values = {name: value for name, value in values.items() if _is_given(declared[name].option, value)}
    needing: dict[str, list[str]] = {}
    tree: dict[str, Any] = {}
    for name, value in given_values.items():
        option = declared[name]
        if option.part is not None and not given_values.keys() & {option.part, *option.implied_by}:
            needing.setdefault(option.part, []).append(name)
        if option.option.sets is not None:
            values_by_path = {tuple(path.split(".")): each for path, each in option.option.sets(value).items()}
        else:
            values_by_path = dict.fromkeys(option.paths, _read_text(option.option, value))
        for (*parents, last), each in values_by_path.items():
            holder = tree
            for parent in parents:
                holder = holder.setdefault(parent, {})
            holder[last] = each
    for part, names in needing.items():
        named = ", ".join(f"`{name}`" for name in names)
        belong = "belongs" if len(names) == 1 else "belong"
        raise UsageError(f"{named} {belong} to `{part}`, which was not given; add `{part}`, or leave {named} out")
    return _made(kind, tree, set(given_values), makers or {})


def read_options(options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that the command line sets, converted from its texts."""
    return {name: _read_text(options[name], value) for name, value in values.items() if _is_given(options[name], value)}


def prefixed(error: DkgpError, kind: type[Any], prefix: str) -> DkgpError:
    """Return an error about a part's options, spelled as the command spells them."""
    return respell(error, lambda name: f"`{prefix}{name}`" if name in options_of(kind) else None)


def check_ranges(values: Any) -> None:
    """Raise `InputError` for options that are not among their choices or out of range."""
    for name, option in options_of(type(values)).items():
        if (value := getattr(values, name)) is None or option.sets is not None:
            continue
        if option.choices and not option.multiple and value not in option.choices:
            raise InputError(f"`{option.name}` must be one of {', '.join(option.choices)}; got {value!r}")
        if option.values is not None and not option.values.passes(value):
            raise InputError(f"`{option.name}` must be {option.values.words}; got {value!r}")
        if isinstance(value, bool) or not isinstance(value, Real):
            continue
        least, above = option.least, option.above
        low = (least is not None and value < least) or (above is not None and value <= above)
        # Whole numbers are finite, even those too large for a float.
        endless = not isinstance(value, Integral) and not math.isfinite(value)
        if low or (endless and (least, above) != (None, None)):
            raise InputError(f"`{option.name}` must {_range(option)}; got {value}")


class Checked:
    """Base of dataclasses whose options are checked by `check_ranges` when they are made."""

    def __post_init__(self) -> None:
        check_ranges(self)


def _range(option: Option) -> str:
    if option.above is not None:
        return "be positive and finite" if option.above == 0 else f"be above {option.above:g} and finite"
    return f"be at least {option.least}" if option.least else "not be negative"


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields, by name."""
    if kind not in _HINTS:
        hints = typing.get_type_hints(kind, include_extras=True)
        order = dict.fromkeys(name for each in kind.__mro__ for name in inspect.get_annotations(each))
        _HINTS[kind] = {name: hints[name] for name in order}
    return _HINTS[kind]


def mark_of(hint: Any, kind: type[Any]) -> Any:
    """Return the `Option`, `Part` or `ByName` that a field is annotated with."""
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return next((each for each in marks if isinstance(each, kind)), None)


def _plain(hint: Any) -> Any:
    """Return the annotation without marks, and without None."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kinds = [each for each in typing.get_args(hint) if each is not type(None)]
        return kinds[0] if len(kinds) == 1 else hint
    return hint


def _completed(option: Option, field: dataclasses.Field[Any], hint: Any) -> Option:
    """Return the option completed by its field's name, type and default."""
    if option.late is not None:
        option = replace(option, **option.late(), late=None)
    plain = _plain(hint)
    origin, inner = typing.get_origin(plain), typing.get_args(plain)
    multiple = option.multiple or (origin is tuple and inner == (str, ...) and option.type is str)
    kind: Any = option.type
    nargs = 1
    if kind is str and origin is tuple and ... not in inner:
        kind, nargs = inner[0], len(inner)
    if kind is str and plain in (int, float, bool) and option.sets is None:
        kind = plain
    choices = option.choices or (inner if origin is Literal and all(isinstance(each, str) for each in inner) else ())
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return replace(
        option,
        name=option.name or field.name,
        type=kind,
        choices=choices,
        default=None if field.default is dataclasses.MISSING else field.default,
        multiple=multiple,
        required=option.required or not has_default,
        nargs=nargs,
    )


def _collect(kind: type[Any], path: tuple[str, ...], marked: Part, collected: dict[str, Declared]) -> None:
    hints, options = hints_of(kind), options_of(kind)
    for name in (*hints, *(each for each in options if each not in hints)):
        if name in marked.without:
            continue
        part = mark_of(hints.get(name), Part)
        if part is not None:
            if part.flag is not None:
                collected[part.flag] = Declared(Option(part.flag, part.help, bool, False), ())
            _collect(_plain(hints[name]), (*path, name), part, collected)
        elif (mapping := mark_of(hints.get(name), ByName)) is not None:
            for option in mapping.options():
                _add(option, (*path, name, option.name), marked, collected)
        elif name in options:
            _add(options[name], (*path, name), marked, collected)


def _add(option: Option, path: tuple[str, ...], part: Part, collected: dict[str, Declared]) -> None:
    if option.name == "seed":
        known = collected.get("seed", Declared(option, ()))
        collected["seed"] = replace(known, paths=(*known.paths, path))
        return
    name = part.prefix + option.name
    if name in collected:
        raise UsageError(
            f"two options are called '{name}': of {'.'.join(collected[name].paths[0])} and {'.'.join(path)}"
        )
    option = replace(option, name=name, group=option.group or part.group)
    collected[name] = Declared(option, (path,), part.flag, part.implied_by)


def _is_given(option: Option, value: Any) -> bool:
    """Return True if the user set the option: not None, an unset flag, or an empty list."""
    unset_flag = value is False and option.default is not None and not option.turns_both_ways
    return value is not None and value != () and not unset_flag


def _read_text(option: Option, value: Any) -> Any:
    """Return the value that the command line's text represents."""
    if option.turns_off:
        return False
    if option.collect is not None:
        return option.collect(value)
    if option.type in (str, int, float, bool) or option.choices:
        return value
    if option.multiple:
        return tuple(option.type(each) if isinstance(each, str) else each for each in value)
    return option.type(value) if isinstance(value, str) else value


def _made(kind: type[Any], tree: Mapping[str, Any], chosen: set[str], makers: Mapping[type[Any], Any]) -> Any:
    values = dict(tree)
    for name, hint in hints_of(kind).items():
        part = mark_of(hint, Part)
        if part is None:
            continue
        below, inner = values.pop(name, {}), _plain(hint)
        if part.flag is not None and not chosen & {part.flag, *part.implied_by}:
            continue
        try:
            values[name] = makers[inner](below) if inner in makers else _made(inner, below, chosen, makers)
        except DkgpError as error:
            raise prefixed(error, inner, part.prefix) from None
    return kind(**values)
