"""The HTTP service: its calls, each a few lines over the queue; the shapes of requests and answers; and the pages."""

# No `from __future__ import annotations`: FastAPI reads annotations, which name imports of functions here.
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_type_hints

from msgspec import Meta

import dkgp
from dkgp.commands.recipe import RECIPES
from dkgp.data.remote.limits import open_local, task_limited_to
from dkgp.data.remote.storage import exists, is_local
from dkgp.errors import DkgpError, InputError, UsageError
from dkgp.service.access import AuditLog, Caller, TokenBook
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import (
    LONG_FIELDS,
    LONGEST_NAME,
    ForbiddenError,
    JobRecord,
    JobStateError,
    QueueFullError,
    State,
    UnknownJobError,
    unknown_job,
)
from dkgp.service.roots import OutsideRootsError, Roots, check_places
from dkgp.service.settings import ServiceSettings
from dkgp.service.specification import COMMANDS, job_paths, options_schema, read_document, schema
from dkgp.service.web.answers import Outermost, answer_errors
from dkgp.service.web.guard import CALLER_KEY, STILL_KEY, AuditedRequests, Guard, forbidden
from dkgp.service.web.limits import BodyLimit, parse_json
from dkgp.service.web.metrics import MeasuredRequests, ServiceMetrics
from dkgp.service.web.streaming import EventHub, read_curve

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.types import ASGIApp

# Of the queue's disk: below it records and events of jobs are about to fail. Restarting helps nothing, so it is no 503.
LEAST_FREE_BYTES = 64 * 2**20
_ID = re.compile(r"[0-9a-f]{12}")
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (OutsideRootsError, "roots"),
    (JobStateError, "conflict"),
    (QueueFullError, "queue_full"),
    (DkgpError, "options"),
)


LARGEST_REPORT_BYTES = 64 * 2**20


class NoReportError(UnknownJobError):
    """A job without a report, or whose report is no longer there."""


# Sources of an ingestion may be patterns; the job itself reports one without a match.
_PATTERN = re.compile(r"[*?\[]")


class Wakeable(Protocol):
    """The runner of the jobs, as far as requests are concerned."""

    def wake(self) -> None:
        """Look at the queue now."""


@dataclass
class Service:
    """The state that all requests share; `closing` once the service is about to stop."""

    settings: ServiceSettings
    queue: JobQueue
    supervisor: Wakeable
    roots: Roots = field(init=False)
    metrics: ServiceMetrics = field(init=False)
    hub: EventHub = field(init=False)
    audit: AuditLog = field(init=False)
    closing: bool = False

    def __post_init__(self) -> None:
        self.roots = Roots(self.settings.roots, excluded=[self.settings.folder])
        self.metrics = ServiceMetrics(self.queue, self.settings)
        self.hub = EventHub(self.queue)
        self.audit = AuditLog(self.queue.folder)
        self.metrics.followers.set_function(lambda: self.hub.followers)

    def close(self) -> None:
        """Take no more jobs, and end the streams, so that connections close."""
        self.closing = True
        self.hub.close()

    def job(self, job_id: str, caller: Caller) -> JobRecord:
        """Return a job that is the caller's to see and to change; the error of one that is not is that of none."""
        record = self.queue.get(job_id)
        if not caller.owns(record.owner):
            if caller.scope == "read":
                raise ForbiddenError(forbidden(caller, "may see the states of jobs, but not their options and results"))
            raise unknown_job(job_id)
        return record

    def state(self, job_id: str, caller: Caller) -> JobRecord:
        """Return a job as far as the caller may see it: a token that only reads sees every job's state and times."""
        return self.queue.get(job_id).bare() if caller.scope == "read" else self.job(job_id, caller)

    def jobs(self, caller: Caller, states: tuple[State, ...], limit: int, before: str | None) -> dict[str, Any]:
        """List the jobs that the caller may see, as far as it may, and count them."""
        owner = caller.name if caller.scope == "submit" else None
        if before is not None:
            self.state(before, caller)
        records = self.queue.list(states=states, limit=limit, before=before, owner=owner)
        if caller.scope == "read":
            records = [record.bare() for record in records]
        return {"jobs": [record.summary() for record in records], "counts": self.queue.counts(owner)}

    def submit(self, value: Any, idempotency_key: str | None, caller: Caller) -> tuple[JobRecord, bool]:
        """Check and queue a job; return it, and whether it is new."""
        try:
            request = request_from(value, self.settings.limits())
            check_idempotency_key(idempotency_key)
            check_places(self.roots, request.command, request.options)
            self._require_inputs(request.command, request.options)
            record, is_new = self.queue.submit(
                request.command,
                request.options,
                name=request.name,
                owner=caller.name,
                idempotency_key=idempotency_key,
                deadline_seconds=request.deadline_seconds,
                memory_bytes=request.memory_bytes,
            )
        except DkgpError as error:
            reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
            self.metrics.refused.labels(reason).inc()
            raise
        if is_new:
            self.metrics.submitted.labels(record.command).inc()
            self.metrics.watch(record.id)
        self.supervisor.wake()
        return record, is_new

    def _require_inputs(self, command: str, options: Mapping[str, Any]) -> None:
        """Refuse a job whose local inputs are missing, unless the job itself or another one under way writes them."""
        paths = job_paths(command, options)
        written = {path.url for path in paths if path.access == "write"}
        for path in paths:
            if path.access == "write" or path.url in written or not is_local(path.url) or _PATTERN.search(path.url):
                continue
            if not exists(path.url) and not self.queue.is_output(path.url):
                raise InputError(
                    f"'{path.field}': there is nothing at '{path.url}', and no queued or running job writes it. Check "
                    f"the path"
                )

    def report(self, job_id: str, caller: Caller) -> bytes:
        """Return the page that a job wrote; the file must lie below the roots when it is read."""
        path = (self.job(job_id, caller).document or {}).get("report")
        if not isinstance(path, str) or not path.endswith(".html"):
            raise NoReportError(f"job {job_id} has no report. A completed job of `dkgp fit` has one")
        self.roots.require(path, "report")
        # A pipe would keep its reader waiting.
        if not is_local(path) or not os.path.isfile(path):
            raise NoReportError(f"the report of job {job_id} is not at '{path}' any more")
        with task_limited_to((self.roots.limits,)), open_local(path) as file:
            content = file.read(LARGEST_REPORT_BYTES + 1)
        if len(content) > LARGEST_REPORT_BYTES:
            raise NoReportError(f"'{path}' is larger than {LARGEST_REPORT_BYTES / 2**20:.0f} MiB, and no report")
        return content

    def resume(self, job_id: str, caller: Caller) -> JobRecord:
        """Queue a job again. The roots may be others than when it was submitted."""
        record = self.job(job_id, caller)
        check_places(self.roots, record.command, record.options)
        record = self.queue.resume(job_id)
        self.metrics.watch(job_id)
        self.supervisor.wake()
        return record

    def cancel(self, job_id: str, caller: Caller) -> JobRecord:
        """Ask for a job's end."""
        self.job(job_id, caller)
        record = self.queue.request_cancel(job_id)
        self.supervisor.wake()
        return record

    def describe(self, caller: Caller) -> dict[str, Any]:
        """Describe the service, its limits, and who the caller is to it."""
        owner = None if caller.is_admin else caller.name
        running = [] if caller.scope == "read" else self.queue.list(states=("running",), limit=1, owner=owner)
        return {
            "version": dkgp.__version__,
            "limits": self.settings.limits(),
            "cluster": self.settings.cluster.kind,
            "dashboard_link": running[0].dashboard_link if running else None,
            "roots": [] if caller.scope == "read" else list(self.settings.roots),
            "counts": self.queue.counts(caller.name if caller.scope == "submit" else None),
            "commands": list(COMMANDS),
            "caller": {"name": caller.name, "scope": caller.scope},
        }


def create_app(service: Service) -> "ASGIApp":
    """Return the service as an ASGI application."""
    from fastapi import FastAPI

    if service.settings.token is None and not service.settings.no_token:
        raise UsageError("pass no_token=True to make a service without a token")
    app = FastAPI(
        title="dkgp jobs",
        version=dkgp.__version__,
        description="Gaussian process regression, exact and sparse, and classification: commands as jobs.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
        redirect_slashes=False,
    )
    answer_errors(app)
    _add_jobs(app, service)
    _add_events(app, service)
    _add_service(app, service)
    add_pages(app, needs_token=service.settings.token is not None)
    limited = BodyLimit(app, service.settings.max_body_bytes)
    token = service.settings.token
    guarded = Guard(
        limited, None if token is None else TokenBook(service.queue.folder, token, service.settings.metrics_token)
    )
    return MeasuredRequests(AuditedRequests(Outermost(guarded), service.audit), service.metrics)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer} for status in (401, 403, *statuses)}


def caller_of(request: "Request") -> Caller:
    """Return who sent a request, as the guard found; nothing is answered past it."""
    caller: Caller = request.scope[CALLER_KEY]
    return caller


def _checked_id(job_id: str) -> str:
    """Check the id, which becomes part of a path."""
    if not _ID.fullmatch(job_id):
        raise UnknownJobError(f"there is no job '{job_id[:40]}'; an id has 12 hexadecimal digits")
    return job_id


def _add_jobs(app: "FastAPI", service: Service) -> None:
    from fastapi import Depends, Header, HTTPException, Query, Request
    from starlette.responses import JSONResponse, Response

    async def json_value(request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"a submission is application/json; got {kind[:100] or 'no content type'}")
        return parse_json(await request.body())

    def working() -> None:
        if service.closing:
            raise HTTPException(503, "the service is stopping; try again in a moment")

    def caller(request: Request) -> Caller:
        return caller_of(request)

    changes = [Depends(working)]
    Sender = Annotated[Caller, Depends(caller)]
    body = {"requestBody": request_body_schema()}

    @app.post(
        "/v1/jobs",
        status_code=201,
        response_model=JobRecord,
        responses={200: {"model": JobRecord}, **_errors(400, 408, 409, 413, 415, 422, 429, 503)},
        openapi_extra=body,
        dependencies=changes,
    )
    def submit(
        value: Annotated[Any, Depends(json_value)],
        sender: Sender,
        idempotency_key: Annotated[str | None, Header(description="The same key again returns the same job.")] = None,
    ) -> Any:
        """Submit a job."""
        record, is_new = service.submit(value, idempotency_key, sender)
        headers = {"location": f"/v1/jobs/{record.id}"}
        return JSONResponse(record.to_json(), status_code=201 if is_new else 200, headers=headers)

    @app.get("/v1/jobs", response_model=JobList, responses=_errors(404, 422))
    def list_jobs(
        sender: Sender,
        state: Annotated[list[State] | None, Query(description="Only jobs in these states.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[str | None, Query(description="Only jobs submitted before this one.")] = None,
    ) -> Any:
        """List jobs, the newest first."""
        if before is not None:
            _checked_id(before)
        return JSONResponse(service.jobs(sender, tuple(state or ()), limit, before))

    @app.get("/v1/jobs/{job_id}", response_model=JobRecord, responses=_errors(404))
    def get_job(job_id: str, sender: Sender) -> Any:
        """Return one job."""
        return JSONResponse(service.state(_checked_id(job_id), sender).to_json())

    page = {"content": {"text/html": {"schema": {"type": "string"}}}, "description": "The report, a page to save."}

    @app.get("/v1/jobs/{job_id}/report", response_class=Response, responses={200: page, **_errors(404, 503)})
    def report(job_id: str, sender: Sender) -> Any:
        """Return the report that a fit wrote."""
        content = service.report(_checked_id(job_id), sender)
        # Saved and not shown: a job's user writes the page, and the service's own pages hold the token.
        headers = {"content-disposition": f'attachment; filename="report-{job_id}.html"'}
        return Response(content, headers=headers, media_type="text/html")

    @app.post(
        "/v1/jobs/{job_id}/cancel", response_model=JobRecord, responses=_errors(404, 409, 503), dependencies=changes
    )
    def cancel(job_id: str, sender: Sender) -> Any:
        """Cancel a job that waits, or ask a running one to save its state and end."""
        return JSONResponse(service.cancel(_checked_id(job_id), sender).to_json())

    @app.post(
        "/v1/jobs/{job_id}/resume", response_model=JobRecord, responses=_errors(404, 409, 503), dependencies=changes
    )
    def resume(job_id: str, sender: Sender) -> Any:
        """Queue a job again that ended short of its goal; it goes on from its checkpoint."""
        return JSONResponse(service.resume(_checked_id(job_id), sender).to_json())


def _add_events(app: "FastAPI", service: Service) -> None:
    from fastapi import HTTPException, Query, Request
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.types import Send

    class EventStream(StreamingResponse):
        """Closes the stream with the connection, at once and not when it is collected."""

        media_type = "application/x-ndjson"

        def __init__(self, lines: AsyncIterator[bytes]) -> None:
            super().__init__(lines)
            self._lines = lines

        async def stream_response(self, send: Send) -> None:
            async with aclosing(self._lines):  # type: ignore[type-var]  # its type is a protocol without aclose
                await super().stream_response(send)

    async def while_known(lines: AsyncIterator[bytes], is_known: Callable[[], bool]) -> AsyncIterator[bytes]:
        """The lines, until the token that asked for them is revoked; a silent stream says a blank one in between."""
        async with aclosing(lines):  # type: ignore[type-var]
            async for line in lines:
                if not is_known():
                    return
                yield line

    lines = {"content": {"application/x-ndjson": {"schema": {"type": "object"}}}, "description": "One event a line."}

    @app.get(
        "/v1/jobs/{job_id}/events",
        status_code=200,
        response_class=EventStream,
        responses={200: lines, **_errors(404, 422, 503)},
    )
    async def events(
        job_id: str,
        request: Request,
        after: Annotated[int, Query(ge=-1, le=2**53, description="Only events with a greater sequence number.")] = -1,
        follow: Annotated[
            bool, Query(description="Continue until the job has ended; blank lines keep the connection open.")
        ] = False,
    ) -> Any:
        """Stream a job's events, one JSON object a line."""
        await run_in_threadpool(service.job, _checked_id(job_id), caller_of(request))
        if not follow:
            return EventStream(service.hub.events(job_id, after))
        caller = caller_of(request)
        if service.closing or service.hub.is_full(caller):
            raise HTTPException(503, "the service is stopping, or too many streams are open; try again in a moment")
        return EventStream(while_known(service.hub.follow(job_id, after, caller.name), request.scope[STILL_KEY]))

    @app.get("/v1/jobs/{job_id}/curve", response_model=JobCurve, responses=_errors(404))
    def curve(job_id: str, request: Request) -> Any:
        """Return how a job's solve has come along so far, thinned for drawing."""
        service.job(_checked_id(job_id), caller_of(request))
        return JSONResponse(read_curve(service.queue, job_id))


def _add_service(app: "FastAPI", service: Service) -> None:
    from fastapi import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response

    @app.get("/v1/service", response_model=ServiceAnswer, responses=_errors())
    def describe(request: Request) -> Any:
        """Describe the service and its limits."""
        return JSONResponse(service.describe(caller_of(request)))

    @app.get("/metrics", response_class=PlainTextResponse, responses=_errors())
    def metrics(request: Request) -> Any:
        """Return metrics in Prometheus' text format; they are of all jobs."""
        if (caller := caller_of(request)).scope == "submit":
            raise ForbiddenError(forbidden(caller, "may see only its own jobs, and metrics include all jobs"))
        content, media_type = service.metrics.render()
        return Response(content, headers={"content-type": media_type})

    @app.get("/healthz", response_model=HealthAnswer, responses={503: {"model": HealthAnswer}})
    def health() -> Any:
        """Return whether the service takes and runs jobs; needs no token."""
        if service.closing:
            return JSONResponse({"status": "stopping"}, status_code=503)
        # A queue that cannot be read answers with 503 by its error.
        service.queue.counts()
        free = shutil.disk_usage(service.settings.folder).free
        if free < LEAST_FREE_BYTES:
            return JSONResponse({"status": "disk full"})
        return JSONResponse({"status": "folder full" if service.queue.is_full() else "ok"})


LONGEST_KEY = 200


@dataclass(frozen=True)
class JobRequest:
    """The body of `POST /v1/jobs`."""

    command: Literal[COMMANDS]  # type: ignore[valid-type]  # known when the recipes are
    options: dict[str, Any]
    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)] | None = None
    deadline_seconds: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    memory_bytes: Annotated[int, Meta(gt=0, le=2**50)] | None = None


@dataclass(frozen=True)
class ErrorDescription:
    """An error: its type, and a message with advice."""

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
    """A job's solve so far: pairs of column passes and values of `measure`, thinned."""

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
    """The sender of a request: its token's name and scope."""

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
    request = read_document(JobRequest, value, "a submission")
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
    request = schema(JobRequest)
    variants = []
    for command in COMMANDS:
        properties = {"command": {"const": command}, "options": options_schema(command)}
        variants.append({**request, "title": f"{command} job", "properties": {**request["properties"], **properties}})
    return {"required": True, "content": {"application/json": {"schema": {"oneOf": variants}}}}


PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_pages(app: "FastAPI", *, needs_token: bool) -> None:
    """Have an application serve the pages; they hold no data."""
    from starlette.responses import HTMLResponse, Response

    def add(path: str, name: str, media_type: str) -> None:
        content = (files("dkgp.service.web") / name).read_text(encoding="utf-8")
        if needs_token:
            content = content.replace('data-token="none"', 'data-token="required"', 1)

        async def page() -> Any:
            return Response(content, headers={"content-type": media_type})

        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)

    for path, (name, media_type) in PAGE_FILES.items():
        add(path, name, media_type)

    @cache
    def described() -> tuple[bytes, bytes]:
        """The description as JSON and as a page; strangers may ask for it as often as they like."""
        schema = app.openapi()
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode(), describe_calls(schema).encode()

    @app.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
    async def openapi() -> Any:
        return Response(described()[0], media_type="application/json")

    @cache
    def flags() -> bytes:
        return json.dumps({command: RECIPES[command].flags for command in COMMANDS}, separators=(",", ":")).encode()

    @app.get("/flags.json", include_in_schema=False)
    async def flags_of_commands() -> Any:
        return Response(flags(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Any:
        return HTMLResponse(described()[1])


def describe_calls(schema: Mapping[str, Any]) -> str:
    """Return an OpenAPI description as a page that loads nothing from elsewhere."""
    calls = [
        _call(method.upper(), path, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    shapes = [_shape(name, shape) for name, shape in schema.get("components", {}).get("schemas", {}).items()]
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: calls</title><link rel="icon" href="/icon.svg"><link rel="stylesheet" href="/page.css">'
        f'</head><body class="docs"><header><h1>{title}</h1><nav><a href="/">Jobs</a> '
        '<a href="/openapi.json">OpenAPI</a></nav></header><main>'
        f"<p>{escape(schema['info'].get('description', ''))}</p>"
        "<p>Every call but <code>/healthz</code> needs the header <code>Authorization: Bearer TOKEN</code>, unless the "
        "service was started without a token on this machine alone.</p>"
        f"<h2>Calls</h2>{''.join(calls)}<h2>Shapes</h2>{''.join(shapes)}</main></body></html>"
    )


def _call(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = [
        (f"{entry['name']} ({entry['in']})", _kind(entry.get("schema", {})), entry.get("description", ""))
        for entry in operation.get("parameters", ())
    ]
    parts = [f"<section><h3><code>{method} {escape(path)}</code></h3><p>{escape(operation.get('description', ''))}</p>"]
    if parameters:
        parts.append(_table(parameters))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for variant in body.get("oneOf", ()):
        options = variant["properties"]["options"]
        parts.append(f"<details><summary>{escape(variant['title'])}: options</summary>{_fields(options)}</details>")
    statuses = ", ".join(sorted(operation.get("responses", {})))
    parts.append(f"<p>Answers with {escape(statuses)}.</p></section>")
    return "".join(parts)


def _shape(name: str, shape: Mapping[str, Any]) -> str:
    text = escape(str(shape.get("description", "")).split("\n\n")[0])
    return f"<details><summary>{escape(name)}</summary><p>{text}</p>{_fields(shape)}</details>"


def _fields(shape: Mapping[str, Any]) -> str:
    required = shape.get("required", ())
    rows = []
    for name, entry in shape.get("properties", {}).items():
        note = "required" if name in required else f"default {entry['default']!r}" if "default" in entry else ""
        rows.append((name, _kind(entry), note))
        rows.extend(
            (f"{name}.{inner}", _kind(below), f"default {below['default']!r}" if "default" in below else "")
            for inner, below in entry.get("properties", {}).items()
        )
    return _table(rows) if rows else ""


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(str(note))}</td></tr>"
        for name, kind, note in rows
    ]
    return f"<table>{''.join(lines)}</table>"


def _kind(entry: Mapping[str, Any]) -> str:
    if "$ref" in entry:
        return str(entry["$ref"]).rpartition("/")[2]
    if "anyOf" in entry:
        return " or ".join(_kind(item) for item in entry["anyOf"])
    if "enum" in entry:
        return ", ".join(map(str, entry["enum"]))
    if "const" in entry:
        return str(entry["const"])
    if entry.get("type") == "array":
        return f"list of {_kind(entry.get('items') or {})}"
    kind = entry.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
