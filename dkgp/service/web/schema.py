"""The shapes of requests and answers, for checking the former and describing both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Literal, get_type_hints

from dkgp.errors import UsageError
from dkgp.service.queue.records import JobRecord
from dkgp.service.specification import COMMANDS, options_schema

__all__ = [
    "ErrorAnswer",
    "HealthAnswer",
    "JobCurve",
    "JobList",
    "JobRequest",
    "JobSummary",
    "ServiceAnswer",
    "check_idempotency_key",
    "request_body_schema",
    "request_from",
]

LONGEST_NAME = 200
LONGEST_KEY = 200
LEFT_OUT = ("options", "document")


@dataclass(frozen=True)
class JobRequest:
    """The body of `POST /v1/jobs`."""

    command: str
    options: dict[str, Any]
    name: str | None = None
    deadline_seconds: float | None = None


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
        if entry.name not in LEFT_OUT
    ],
    namespace={"__doc__": "A job as lists show it: without its options and its document."},
)


@dataclass(frozen=True)
class JobCurve:
    """A job's solve so far: pairs of column passes and max |g|, thinned."""

    points: list[tuple[float, float]]
    tolerance: float | None
    label: str | None
    last: int


@dataclass(frozen=True)
class HealthAnswer:
    """Health of the service: "ok", or "stopping" where it takes no more jobs."""

    status: Literal["ok", "stopping"]


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


@dataclass(frozen=True)
class JobList:
    """A page of jobs, the newest first, and how many there are in each state."""

    jobs: list[JobSummary]  # type: ignore[valid-type]  # made at run time
    counts: dict[str, int]


def request_from(value: Any, longest_deadline_seconds: float | None) -> JobRequest:
    """Read a submission.

    Parameters
    ----------
    value : Any
        The request's JSON.
    longest_deadline_seconds : float, optional
        What the service grants a job at most.

    Raises
    ------
    UsageError
        A field is missing, unknown, of another type or out of range.
    """
    if not isinstance(value, Mapping):
        raise UsageError('a submission is a JSON object: {"command": ..., "options": {...}}')
    known = [entry.name for entry in fields(JobRequest)]
    if unknown := sorted(set(value) - set(known)):
        raise UsageError(f"a submission has no field {', '.join(map(repr, unknown))}; it has {', '.join(known)}")
    command = value.get("command")
    if not isinstance(command, str) or command not in COMMANDS:
        raise UsageError(f"'command' is one of {', '.join(COMMANDS)}; got {_shown(command)}")
    options = value.get("options")
    if not isinstance(options, dict):
        raise UsageError(f"'options' is a JSON object with the command's options; got {_shown(options)}")
    return JobRequest(
        command, options, _name(value.get("name")), _deadline(value.get("deadline_seconds"), longest_deadline_seconds)
    )


def check_idempotency_key(key: str | None) -> str | None:
    """Return the key, or raise `UsageError`."""
    if key is not None and (not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable()):
        raise UsageError(f"an Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters; got {len(key)}")
    return key


def request_body_schema() -> dict[str, Any]:
    """Return the OpenAPI description of a submission, with the options of each command."""
    variants = []
    for command in COMMANDS:
        options = options_schema(command)
        variants.append(
            {
                "title": f"{command} job",
                "type": "object",
                "additionalProperties": False,
                "required": ["command", "options"],
                "properties": {
                    "command": {"const": command},
                    "options": _inlined(options, options.get("$defs", {})),
                    "name": {"type": ["string", "null"], "minLength": 1, "maxLength": LONGEST_NAME},
                    "deadline_seconds": {"type": ["number", "null"], "exclusiveMinimum": 0},
                },
            }
        )
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


def _name(name: Any) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise UsageError(f"'name' is text of 1 to {LONGEST_NAME} printable characters; got {_shown(name)}")
    return name


def _deadline(seconds: Any, longest: float | None) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 1e9:
        raise UsageError(f"'deadline_seconds' is a number of seconds above 0; got {_shown(seconds)}")
    if longest is not None and seconds > longest:
        raise UsageError(f"'deadline_seconds' may be {longest:g} at most on this service; got {seconds:g}")
    return float(seconds)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
