"""Specifications of jobs: a command and its options in JSON, read into the command line's own dataclass.

`dkgp.options` checks names and types, and the job checks its values as it does on the command line. Faults that need
the data, such as a missing store, are found when the job runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dkgp.commands.recipe import RECIPES, Recipe
from dkgp.errors import DkgpError, InputError, MissingExtraError, UsageError, about
from dkgp.options import CLUSTER, changes, options_of, read, schema, shown, values_words

if TYPE_CHECKING:
    from dkgp.commands.ingest import IngestJob
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

T = TypeVar("T")
Job = Any  # an instance of the dataclass of one of `COMMANDS`

COMMANDS: tuple[str, ...] = tuple(name for name, recipe in RECIPES.items() if recipe.as_job)
# Outputs that a job names itself; no two jobs under way may share one.
OUTPUT_FIELDS = ("out", "checkpoint", "plot", "log_json", "tiles")

LONGEST_TEXT = 4096
# Of all objects and lists together.
MOST_VALUES = 10_000


@dataclass(frozen=True)
class JobPath:
    """A place that a job touches: the option that names it, and an absolute path or an fsspec URL as dkgp spells it."""

    field: str
    url: str
    access: Literal["read", "write"]


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

    kind = _recipe(command).kind
    if isinstance(options, Mapping) and CLUSTER in options:
        raise UsageError("cluster: jobs run on the service's own cluster; leave the field out")
    # Jobs that an earlier version stored.
    job: Job = read_document(kind, renamed(options) if isinstance(options, Mapping) else options, command)
    try:
        if command in PRESETS:
            with about("as_in_the_paper"):
                job = settled(command, job)
        for field in _places(kind):
            _require_absolute(field, getattr(job, field))
        for source in _sources(job):
            _require_absolute("sources", source)
        if hasattr(job, "check"):
            job.check()
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
    sources = dict.fromkeys(text for source in _sources(job) for text in (normalise_url(source), source))
    return paths + [JobPath("sources", source, "read") for source in sources]


def run_job(job: Job, reporter: Reporter) -> Document:
    """Run the job in this process, as its command would; errors as there."""
    return next(RECIPES[name] for name in COMMANDS if isinstance(job, RECIPES[name].kind)).run(job, reporter)


def options_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of the command's options."""
    return schema(_recipe(command).kind)


def _recipe(command: str) -> Recipe:
    if command not in COMMANDS:
        raise UsageError(f"a job's command is one of {', '.join(COMMANDS)}; got {shown(command)}")
    return RECIPES[command]


def _sources(job: Job) -> list[str]:
    """Return the files that a job ingests, and the store that it encodes them like."""
    ingestion = getattr(job, "ingestion", None)
    if ingestion is None:
        return []
    return [*ingestion.sources, *([] if ingestion.like is None else [ingestion.like])]


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
                f"'{location}' means nothing to another process; expected an absolute path, or a URL such as "
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
                f"{subject}: at most {MOST_VALUES:,} values in all; got more. What is that long belongs into a file, "
                "such as hyperparameters"
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
