"""The shapes of requests and answers, for checking the former and describing both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Literal, get_type_hints

from dkgp.errors import UsageError
from dkgp.service.queue.records import LONG_FIELDS, LONGEST_NAME, JobRecord
from dkgp.service.reading import adapter, read
from dkgp.service.specification import COMMANDS, options_schema

LONGEST_KEY = 200


@dataclass(frozen=True)
class JobRequest:
    """The body of `POST /v1/jobs`."""

    command: Literal["train", "sparse", "classify", "tune", "predict", "evaluate", "fit"]
    options: dict[str, Any]
    name: str | None = field(default=None, metadata={"min_length": 1, "max_length": LONGEST_NAME})
    deadline_seconds: float | None = field(default=None, metadata={"gt": 0, "le": 1e9})
    memory_bytes: int | None = field(default=None, metadata={"gt": 0, "le": 2**50})


@dataclass(frozen=True)
class ErrorDescription:
    """An error: its type, and a message with what to do."""

    type: str
    message: str


@dataclass(frozen=True)
class ErrorAnswer:
    """Any answer with a status of 400 or above."""

    error: ErrorDescription


_TYPES = get_type_hints(JobRecord)
JobSummary = make_dataclass(
    "JobSummary",
    [
        (entry.name, _TYPES[entry.name], field(default=entry.default))
        for entry in fields(JobRecord)
        if entry.name not in LONG_FIELDS
    ],
    namespace={"__doc__": "A job as lists show it: without its options and its document."},
)


@dataclass(frozen=True)
class JobCurve:
    """A job's solve so far: pairs of column passes and of what `measure` names, thinned."""

    points: list[tuple[float, float]]
    measure: str | None
    tolerance: float | None
    label: str | None
    last: int


@dataclass(frozen=True)
class HealthAnswer:
    """Health of the service: "ok", or why it takes no jobs: its "disk full", the jobs' "folder full", or "stopping"."""

    status: Literal["ok", "disk full", "folder full", "stopping"]


@dataclass(frozen=True)
class CallerAnswer:
    """The sender of a request, by its token's name, and what that token is for."""

    name: str
    scope: Literal["read", "submit", "admin"]


@dataclass(frozen=True)
class ServiceAnswer:
    """A description of the service and its limits."""

    version: str
    limits: dict[str, Any]
    cluster: str
    dashboard_link: str | None
    roots: list[str]
    counts: dict[str, int]
    commands: list[str]
    caller: CallerAnswer


@dataclass(frozen=True)
class JobList:
    """A page of jobs, the newest first, and how many there are in each state."""

    jobs: list[JobSummary]  # type: ignore[valid-type]  # made at run time
    counts: dict[str, int]


def request_from(value: Any, limits: Mapping[str, Any]) -> JobRequest:
    """Read a submission from its JSON; no job is granted more than the service's `limits`.

    `UsageError` or `InputError` where a field is missing, unknown, of another type or out of range.
    """
    request = read(JobRequest, value, "a submission")
    for name in ("deadline_seconds", "memory_bytes"):
        value, most = getattr(request, name), limits[f"job_{name}"]
        if value is not None and most is not None and value > most:
            raise UsageError(f"{name}: {most:.15g} at most on this service; got {value:.15g}")
    return request


def check_idempotency_key(key: str | None) -> str | None:
    """Return the key, or raise `UsageError`."""
    if key is not None and (not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable()):
        raise UsageError(f"an Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters; got {len(key)}")
    return key


def request_body_schema() -> dict[str, Any]:
    """Return the OpenAPI description of a submission, with the options of each command."""
    request = adapter(JobRequest).json_schema()
    variants = []
    for command in COMMANDS:
        options = options_schema(command)
        properties = {"command": {"const": command}, "options": _inlined(options, options.get("$defs", {}))}
        variants.append({**request, "title": f"{command} job", "properties": {**request["properties"], **properties}})
    return {"required": True, "content": {"application/json": {"schema": {"oneOf": variants}}}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema whose references are replaced by what they name: they would point elsewhere in a larger document."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = definitions[str(schema["$ref"]).rpartition("/")[2]]
        schema = {**named, **{name: item for name, item in schema.items() if name != "$ref"}}
    return {name: _inlined(item, definitions) for name, item in schema.items() if name != "$defs"}
