"""Specifications of jobs: a command and its options in JSON, read into the command line's own dataclass.

`read` checks names and types by the options that the dataclass declares, and the job checks its values as it does on
the command line. Faults that need the data, such as a missing store, are found when the job runs.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from dkgp.commands.recipe import RECIPES, Recipe, recipe_of
from dkgp.errors import DkgpError, InputError, MissingExtraError, UsageError, about
from dkgp.options import ByName, Part, fields_in_order, hints_of, mark_of, options_of
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.ingest import IngestJob
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter

T = TypeVar("T")
Job = Any  # an instance of the dataclass of one of `COMMANDS`

COMMANDS: tuple[str, ...] = tuple(name for name, recipe in RECIPES.items() if recipe.as_job)
# Outputs that a job names itself; no two jobs under way may share one.
OUTPUT_FIELDS = ("out", "checkpoint", "plot", "log_json", "tiles")

# The field that JSON leaves out: the service chooses the cluster.
CLUSTER = "cluster"
LONGEST_TEXT = 4096
# Of all objects and lists together.
MOST_VALUES = 10_000
# Mistakes that one message lists.
MOST_MISTAKES = 20
_ENTRIES: dict[type[Any], dict[str, Entry]] = {}


@dataclass(frozen=True)
class JobPath:
    """A place that a job touches: the option that names it, and an absolute path or an fsspec URL as dkgp spells it."""

    field: str
    url: str
    access: Literal["read", "write"]


class Entry(NamedTuple):
    """A field as JSON has it: the type of its values, its default, its declaration, and the dataclass it holds."""

    hint: Any
    default: Any
    option: Option | None
    part: type[Any] | None


class _Values(NamedTuple):
    """Checked values of a dataclass that is not built yet."""

    kind: type[Any]
    values: dict[str, Any]


def read_document(kind: type[T], document: Any, subject: str) -> T:
    """Return the dataclass that JSON from outside describes; errors as of `dkgp.options.read`, with the field's name.

    Raises `InputError` for more values, longer texts or larger numbers than any job needs.
    """
    try:
        if isinstance(document, Mapping):
            _refuse_too_many(document, subject)
            _refuse_unusual(document, kind)
        return read(kind, document, subject)
    except DkgpError as error:
        raise located(error) from None


def located(error: DkgpError) -> DkgpError:
    """Return the error with the field that it is about before its message."""
    if error.parameter is None or isinstance(error, MissingExtraError):
        return error
    error.args, error.parameter = (f"{error.parameter}: {error}",), None
    return error


def job_from_options(command: str, options: Mapping[str, Any]) -> Job:
    """Return the job that the options describe, a JSON object with the fields of the command's dataclass.

    Nested dataclasses ("solver", "settings", "variance") are objects in turn. Raises `UsageError` for an unknown
    command or field, a value of another type, or options that contradict each other; `InputError` for a value out of
    range, or a path that means nothing to the service.
    """
    from dkgp.commands.presets import PRESETS, settled
    from dkgp.commands.reporting.outputs import check_side_files
    from dkgp.operators.product_error import renamed

    recipe = _recipe(command)
    if isinstance(options, Mapping) and CLUSTER in options:
        raise UsageError("cluster: jobs run on the service's own cluster; leave the field out")
    # Jobs that an earlier version stored.
    job: Job = read_document(recipe.kind, renamed(options) if isinstance(options, Mapping) else options, command)
    try:
        if command in PRESETS:
            with about("as_in_the_paper"):
                job = settled(command, job)
        for field in _places(recipe.kind):
            _require_absolute(field, getattr(job, field))
        for field, location in _more_sources(job):
            _require_absolute(field, location)
        recipe.check(job)
        if hasattr(job, "ingestion"):
            _check_ingestion(job.ingestion)
        check_side_files(getattr(job, "plot", None), getattr(job, "log_json", None))
    except DkgpError as error:
        raise located(error) from None
    return job


def options_from_job(job: Job) -> dict[str, Any]:
    """Return the options that make the job: JSON, without the cluster and without default values."""
    return changes(job)


def job_paths(command: str, options: Mapping[str, Any]) -> list[JobPath]:
    """Return every place that the job reads or writes, the default place of checkpoints included.

    Errors as of `job_from_options`.
    """
    from dkgp.data.remote.storage import normalise_url

    job = job_from_options(command, options)
    access = _places(type(job))
    places = {field: getattr(job, field) for field in access}
    if hasattr(job, "checkpoint_url"):
        places["checkpoint"] = job.checkpoint_url
    if command == "train":
        places["tiles"] = job.tiles_url
    paths = [
        JobPath(field, normalise_url(value), access.get(field, "write"))
        for field, value in places.items()
        if value is not None
    ]
    if command == "train" and job.tune:
        paths.append(JobPath("hyper", normalise_url(job.hyper), "write"))
    if command == "predict" and job.variance is not None and job.variance.keep_factor:
        paths.append(JobPath("model", normalise_url(job.model), "write"))
    # As the user wrote them too: programs read a text that goes through symbolic links and back differently.
    sources = dict.fromkeys(
        (field, text) for field, source in _more_sources(job) for text in (normalise_url(source), source)
    )
    return paths + [JobPath(field, source, "read") for field, source in sources]


def run_job(job: Job, reporter: Reporter) -> Document:
    """Run the job in this process, as its command would; errors as there."""
    return recipe_of(job).run(job, reporter)


def options_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of the command's options."""
    return schema(_recipe(command).kind)


def _recipe(command: str) -> Recipe:
    if command not in COMMANDS:
        raise UsageError(f"a job's command is one of {', '.join(COMMANDS)}; got {shown(command)}")
    return RECIPES[command]


def _more_sources(job: Job) -> list[tuple[str, str]]:
    """Return the files that a job reads beside the places of its own fields, each with its field.

    They are the files that it ingests, the store that it encodes them like, and the job's `sources`.
    """
    ingestion = getattr(job, "ingestion", None)
    like = [] if ingestion is None or ingestion.like is None else [ingestion.like]
    ingested = [] if ingestion is None else [*ingestion.sources, *like]
    return [*(("sources", source) for source in ingested), *getattr(job, "sources", ())]


def _check_ingestion(ingestion: IngestJob) -> None:
    """Refuse an ingestion that a fit at a service cannot do; `UsageError` or `InputError`."""
    from dkgp.data.sources.formats import format_options

    if not ingestion.sources:
        raise UsageError("sources: expected at least one file, folder or URL")
    # A pattern is expanded when the job runs: until then nobody can tell whether its files may be read.
    patterns = [source for source in ingestion.sources if set(source) & set("*?[")]
    if patterns:
        raise InputError(f"sources: '{patterns[0]}' is a pattern; name the files, or their folder")
    for name in ("out", "test_out", "overwrite"):
        if getattr(ingestion, name) != getattr(type(ingestion), name):
            raise UsageError(
                f"ingestion.{name}: a fit puts its data sets into its own folder, `out`, and replaces them by its own "
                "`overwrite`; leave it out"
            )
    known = format_options()
    for name in ingestion.options:
        if name not in known:
            raise UsageError(f"ingestion.options: no format has the option '{name}'; there are {', '.join(known)}")


def _places(kind: type[Any]) -> dict[str, Literal["read", "write"]]:
    """Return the fields that name files and stores, and whether these are read or written."""
    return {name: option.place for name, option in options_of(kind).items() if option.place is not None}


def _require_absolute(field: str, location: str | None) -> None:
    """Refuse a place that a process elsewhere would understand differently."""
    if location is None:
        return
    from dkgp.data.remote.storage import split_address

    with about(field):
        protocol, path = split_address(location)
        if "::" in location or location.startswith("memory:"):
            raise InputError(
                f"'{location}' is valid only within one process; expected an absolute path, or a URL such as "
                "s3://bucket/name.zarr"
            )
        if protocol == "file" and not path.startswith("/"):
            raise InputError(
                f"expected an absolute path or a URL, since the service works in a folder of its own; got '{location}'"
            )


def _refuse_too_many(value: Any, subject: str) -> None:
    """Refuse more than `MOST_VALUES`, counted no further than that; `InputError`."""
    count, remaining = 0, [value]
    while remaining:
        item = remaining.pop()
        inner = list(item.values()) if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else ()
        count += len(inner)
        if count > MOST_VALUES:
            raise InputError(
                f"{subject}: at most {MOST_VALUES:,} values in all; got more. Put long lists into a file, such as "
                "hyperparameters"
            )
        remaining.extend(inner)


def _refuse_unusual(value: Any, kind: type[Any], *place: str) -> None:
    """Refuse values that are no JSON, and numbers and texts beyond all bounds; `InputError`, `UsageError`."""
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
            reason = f"{values_words(kind, place) or 'expected a finite number'}; got {value}"
    elif isinstance(value, int):
        if abs(value) >= 2**63:
            reason = f"expected a number below 2^63; got one of {value.bit_length():,} bits"
    elif value is not None:
        raise UsageError(f"{shown('.'.join(place))[1:-1]}: expected JSON; got a {type(value).__name__}")
    if reason:
        raise InputError(f"{shown('.'.join(place))[1:-1]}: {reason}")


# ---------------------------------------------------------------------------------- dataclasses from and to JSON


def entries(kind: type[Any]) -> dict[str, Entry]:
    """Return the fields of a dataclass as JSON has them, by name; all fields but the cluster."""
    if hasattr(kind, "option_types"):  # options that become known at any time
        options, types_and_defaults = options_of(kind), kind.option_types()
        return {
            name: Entry(hint, default, options.get(name), None) for name, (hint, default) in types_and_defaults.items()
        }
    if kind not in _ENTRIES:
        hints, options, found = hints_of(kind), options_of(kind), {}
        for field in fields_in_order(kind):
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            hint = hints[field.name]
            if any(mark_of(hint, mark) is not None for mark in (Option, Part, ByName)):
                hint = typing.get_args(hint)[0]
            nested = [each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)]
            if field.name != CLUSTER:
                part = typing.cast(type[Any], nested[0]) if nested else None
                found[field.name] = Entry(hint, default, options.get(field.name), part)
        _ENTRIES[kind] = found
    return _ENTRIES[kind]


def read(kind: type[T], document: Any, subject: str) -> T:
    """Return the dataclass that a JSON object describes; `subject`, such as "train", is for messages.

    Raises `UsageError` for unknown or missing fields and values of another type. The dataclass raises its own errors,
    whose `parameter` is the field that holds the refused part.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{subject} is described by a JSON object; got {shown(document)}")
    mistakes: list[str] = []
    values = _checked(kind, document, (), subject, mistakes)
    if mistakes:
        raise UsageError("; ".join(mistakes[:MOST_MISTAKES]))
    job: T = _built(values)
    return job


def schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of a dataclass: types, ranges, defaults and helps of its options."""
    import msgspec

    properties: dict[str, Any] = {}
    for name, entry in entries(kind).items():
        described = msgspec.json.schema(entry.hint) if entry.part is None else schema(entry.part)
        if entry.part is not None and _takes_none(entry.hint):
            described = {"anyOf": [described, {"type": "null"}]}
        option = entry.option
        if option is not None:
            bounds = {"minimum": option.least, "exclusiveMinimum": option.above}
            if described.get("type") in ("integer", "number"):
                described |= {word: bound for word, bound in bounds.items() if bound is not None}
            described |= {"description": option.help} if option.help else {}
        if entry.default is not dataclasses.MISSING and (entry.part is None or entry.default is None):
            described = {**described, "default": _as_json(entry.default)}
        properties[name] = described
    required = [name for name, entry in entries(kind).items() if entry.default is dataclasses.MISSING]
    return {
        "title": kind.__name__,
        "description": (kind.__doc__ or "").split("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def changes(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as the JSON that `read` reads."""
    changed = {}
    for name, entry in entries(type(value)).items():
        field_value = getattr(value, name)
        if entry.default is dataclasses.MISSING or field_value != entry.default:
            changed[name] = changes(field_value) if dataclasses.is_dataclass(field_value) else _as_json(field_value)
    return changed


def values_words(kind: type[Any], path: tuple[str, ...]) -> str | None:
    """Return the declared words on the values of the option at a path; None if it declares none."""
    for name in path:
        entry = entries(kind).get(name)
        if entry is None or entry.part is None:
            option = None if entry is None else entry.option
            return None if option is None or option.values is None else f"expected {option.values.words}"
        kind = entry.part
    return None


def shown(value: object) -> str:
    """Return a value as a message shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _checked(
    kind: type[Any], document: Mapping[str, Any], path: tuple[str, ...], subject: str, mistakes: list[str]
) -> _Values:
    """Check names and types of a JSON object; append what is wrong to `mistakes`."""
    import msgspec

    known = entries(kind)
    for name in document:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            meant = f"did you mean '{'.'.join([*path, *near])}'?"
            advice = meant if near else f"expected some of {', '.join(known)}"
            raise UsageError(f"{_place(*path, str(name))}: {subject} has no such option; {advice}")
    values: dict[str, Any] = {}
    for name, entry in known.items():
        if name not in document:
            if entry.default is dataclasses.MISSING:
                mistakes.append(f"{_place(*path, name)}: this option is required, and missing")
            continue
        value = document[name]
        try:
            if entry.part is not None and isinstance(value, Mapping):
                values[name] = _checked(entry.part, value, (*path, name), subject, mistakes)
            elif entry.part is not None and not (value is None and _takes_none(entry.hint)):
                raise msgspec.ValidationError("Expected `object`, got another type")
            else:
                values[name] = None if entry.part is not None else msgspec.convert(value, entry.hint, strict=True)
        except msgspec.ValidationError as error:
            words = values_words(kind, (name,)) or _words(entry.hint, str(error))
            mistakes.append(f"{_place(*path, name)}: {words}; got {shown(value)}")
    return _Values(kind, values)


def _built(checked: _Values) -> Any:
    values = {}
    for name, value in checked.values.items():
        if isinstance(value, _Values):
            with about(name):
                value = _built(value)
        values[name] = value
    return checked.kind(**values)


def _place(*path: str) -> str:
    return shown(".".join(path))[1:-1]


def _words(hint: Any, refusal: str) -> str:
    """Say which values a type has; or, of the right type, which bound was missed, in msgspec's words."""
    if ", got" not in refusal and refusal.startswith("Expected `"):
        kinds = {"`str`": "text", "`int`": "an integer", "`float`": "a number"}
        for kind, word in kinds.items():
            refusal = refusal.replace(kind, word)
        return refusal[:1].lower() + refusal[1:]
    return ", or ".join(dict.fromkeys(_expected(hint)))


def _expected(hint: Any) -> list[str]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _expected(inner[0])
    if origin in (types.UnionType, typing.Union):
        return [words for each in inner if each is not type(None) for words in _expected(each)]
    if origin is Literal:
        *most, last = map(repr, inner)
        return [f"expected {', '.join(most)} or {last}" if most else f"expected {last}"]
    names = {bool: "a valid boolean", int: "a valid integer", float: "a valid number", str: "a valid string"}
    if origin in (tuple, list):
        items = [each for each in inner if each is not ...]
        return [f"expected a valid array of {', '.join(dict.fromkeys(_expected_items(items)))}"]
    return [f"expected {names.get(hint, 'an object')}"]


def _expected_items(hints: list[Any]) -> list[str]:
    return [words.removeprefix("expected ") for each in hints for words in _expected(each)]


def _takes_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
