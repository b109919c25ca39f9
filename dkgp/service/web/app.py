"""The HTTP service: its calls, each a few lines over the queue, and the layers that every request passes."""

# No `from __future__ import annotations`: FastAPI reads annotations, and here they name what is imported in a function.
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import dkgp
from dkgp.errors import DkgpError, UsageError
from dkgp.service.places import check_places
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord, JobStateError, QueueFullError, State, UnknownJobError
from dkgp.service.roots import OutsideRootsError, Roots
from dkgp.service.settings import ServiceSettings
from dkgp.service.specification import COMMANDS
from dkgp.service.web import schema
from dkgp.service.web.answers import Outermost, answer_errors
from dkgp.service.web.auth import Guard
from dkgp.service.web.limits import BodyLimit, parse_json
from dkgp.service.web.metrics import MeasuredRequests, ServiceMetrics
from dkgp.service.web.pages import add_pages
from dkgp.service.web.streaming import EventHub, read_curve

if TYPE_CHECKING:
    from fastapi import FastAPI
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
    closing: bool = False

    def __post_init__(self) -> None:
        self.roots = Roots(self.settings.roots, excluded=[self.settings.folder])
        self.metrics = ServiceMetrics(self.queue, self.settings)
        self.hub = EventHub(self.queue)
        self.metrics.followers.set_function(lambda: self.hub.followers)

    def close(self) -> None:
        """Take no more jobs, and end the streams, so that connections close."""
        self.closing = True
        self.hub.close()

    def submit(self, value: Any, idempotency_key: str | None) -> tuple[JobRecord, bool]:
        """Check and queue a job; return it, and whether it is new."""
        try:
            request = schema.request_from(value, self.settings.job_deadline_seconds)
            schema.check_idempotency_key(idempotency_key)
            check_places(self.roots, request.command, request.options)
            record, is_new = self.queue.submit(
                request.command,
                request.options,
                name=request.name,
                idempotency_key=idempotency_key,
                deadline_seconds=request.deadline_seconds,
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

    def resume(self, job_id: str) -> JobRecord:
        """Queue a job again. The roots may be others than when it was submitted."""
        record = self.queue.get(job_id)
        check_places(self.roots, record.command, record.options)
        record = self.queue.resume(job_id)
        self.metrics.watch(job_id)
        self.supervisor.wake()
        return record

    def cancel(self, job_id: str) -> JobRecord:
        """Ask for a job's end."""
        record = self.queue.request_cancel(job_id)
        self.supervisor.wake()
        return record

    def describe(self) -> dict[str, Any]:
        """Describe the service and its limits."""
        running = self.queue.list(states=("running",), limit=1)
        return {
            "version": dkgp.__version__,
            "limits": self.settings.limits(),
            "cluster": self.settings.cluster.kind,
            "dashboard_link": running[0].dashboard_link if running else None,
            "roots": list(self.settings.roots),
            "counts": self.queue.counts(),
            "commands": list(COMMANDS),
        }


def create_app(service: Service) -> "ASGIApp":
    """Return the service as an ASGI application."""
    from fastapi import FastAPI

    if service.settings.token is None and not service.settings.no_token:
        raise UsageError("a service without a token has to be asked for: no_token=True")
    app = FastAPI(
        title="dkgp jobs",
        version=dkgp.__version__,
        description="Gaussian process regression, exact and sparse, and classification: commands as jobs.",
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
    guarded = Guard(limited, service.settings.token)
    return MeasuredRequests(Outermost(guarded), service.metrics)


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schema.ErrorAnswer} for status in (401, 403, *statuses)}


def _checked_id(job_id: str) -> str:
    """The id, which becomes part of a path."""
    if not _ID.fullmatch(job_id):
        raise UnknownJobError(f"there is no job '{job_id[:40]}'; an id has 12 hexadecimal digits")
    return job_id


def _add_jobs(app: "FastAPI", service: Service) -> None:
    from fastapi import Depends, Header, HTTPException, Query, Request
    from starlette.responses import JSONResponse

    async def json_value(request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"a submission is application/json; got {kind[:100] or 'no content type'}")
        return parse_json(await request.body())

    def working() -> None:
        if service.closing:
            raise HTTPException(503, "the service is stopping; try again in a moment")

    changes = [Depends(working)]
    body = {"requestBody": schema.request_body_schema()}

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
        idempotency_key: Annotated[str | None, Header(description="The same key again returns the same job.")] = None,
    ) -> Any:
        """Submit a job."""
        record, is_new = service.submit(value, idempotency_key)
        headers = {"location": f"/v1/jobs/{record.id}"}
        return JSONResponse(record.to_json(), status_code=201 if is_new else 200, headers=headers)

    @app.get("/v1/jobs", response_model=schema.JobList, responses=_errors(404, 422))
    def list_jobs(
        state: Annotated[list[State] | None, Query(description="Only jobs in these states.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[str | None, Query(description="Only jobs submitted before this one.")] = None,
    ) -> Any:
        """List jobs, the newest first."""
        if before is not None:
            _checked_id(before)
        records = service.queue.list(states=tuple(state or ()), limit=limit, before=before)
        return JSONResponse({"jobs": [record.summary() for record in records], "counts": service.queue.counts()})

    @app.get("/v1/jobs/{job_id}", response_model=JobRecord, responses=_errors(404))
    def get_job(job_id: str) -> Any:
        """Return one job."""
        return JSONResponse(service.queue.get(_checked_id(job_id)).to_json())

    @app.post(
        "/v1/jobs/{job_id}/cancel", response_model=JobRecord, responses=_errors(404, 409, 503), dependencies=changes
    )
    def cancel(job_id: str) -> Any:
        """Cancel a job that waits, or ask a running one to save its state and end."""
        return JSONResponse(service.cancel(_checked_id(job_id)).to_json())

    @app.post(
        "/v1/jobs/{job_id}/resume", response_model=JobRecord, responses=_errors(404, 409, 503), dependencies=changes
    )
    def resume(job_id: str) -> Any:
        """Queue a job again that ended short of its goal; it goes on from its checkpoint."""
        return JSONResponse(service.resume(_checked_id(job_id)).to_json())


def _add_events(app: "FastAPI", service: Service) -> None:
    from fastapi import HTTPException, Query
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

    lines = {"content": {"application/x-ndjson": {"schema": {"type": "object"}}}, "description": "One event a line."}

    @app.get(
        "/v1/jobs/{job_id}/events",
        status_code=200,
        response_class=EventStream,
        responses={200: lines, **_errors(404, 422, 503)},
    )
    async def events(
        job_id: str,
        after: Annotated[int, Query(ge=-1, le=2**53, description="Only events with a greater sequence number.")] = -1,
        follow: Annotated[bool, Query(description="Go on until the job has ended; blank lines keep alive.")] = False,
    ) -> Any:
        """Stream a job's events, one JSON object a line."""
        await run_in_threadpool(service.queue.get, _checked_id(job_id))
        if not follow:
            return EventStream(service.hub.events(job_id, after))
        if service.closing or service.hub.is_full:
            raise HTTPException(503, "the service is stopping, or too many streams are open; try again in a moment")
        return EventStream(service.hub.follow(job_id, after))

    @app.get("/v1/jobs/{job_id}/curve", response_model=schema.JobCurve, responses=_errors(404))
    def curve(job_id: str) -> Any:
        """Return how a job's solve has come along so far, thinned for drawing."""
        service.queue.get(_checked_id(job_id))
        return JSONResponse(read_curve(service.queue, job_id))


def _add_service(app: "FastAPI", service: Service) -> None:
    from starlette.responses import JSONResponse, PlainTextResponse, Response

    @app.get("/v1/service", response_model=schema.ServiceAnswer, responses=_errors())
    def describe() -> Any:
        """Return what the service is and what it takes on."""
        return JSONResponse(service.describe())

    @app.get("/metrics", response_class=PlainTextResponse, responses=_errors())
    def metrics() -> Any:
        """Return metrics in Prometheus' text format."""
        content, media_type = service.metrics.render()
        return Response(content, headers={"content-type": media_type})

    @app.get("/healthz", response_model=schema.HealthAnswer, responses={503: {"model": schema.HealthAnswer}})
    def health() -> Any:
        """Return whether the service takes and runs jobs; needs no token."""
        if service.closing:
            return JSONResponse({"status": "stopping"}, status_code=503)
        # A queue that cannot be read answers with 503 by its error.
        service.queue.counts()
        free = shutil.disk_usage(service.settings.folder).free
        return JSONResponse({"status": "ok" if free >= LEAST_FREE_BYTES else "disk full"})
