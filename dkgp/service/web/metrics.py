"""Metrics for Prometheus: jobs by state, how they ended and how long they took, the jobs that run, requests."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import dkgp
from dkgp.commands.reporting.progress import measured
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord, UnknownJobError
from dkgp.service.settings import ServiceSettings
from dkgp.service.web.answers import Layer, before_answer

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOUR = 3600.0
JOB_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, HOUR, 4 * HOUR, 12 * HOUR, 24 * HOUR, 72 * HOUR, 168 * HOUR)
WAIT_SECONDS = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, HOUR, 4 * HOUR, 12 * HOUR, 24 * HOUR, 72 * HOUR)
REQUEST_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})
MOST_RUNNING = 100
_EXCEEDED = {"DeadlineExceededError": "deadline", "MemoryExceededError": "memory"}
# Figures of a solve's latest round, by their names in a progress event.
FIGURES = {
    "column_passes": ("dkgp_job_column_passes", "Column passes of a running job so far"),
    "gradient_inf_norm": ("dkgp_job_gradient_inf_norm", "Largest component of a running job's gradient, max abs g"),
    "tolerance": ("dkgp_job_tolerance", "Tolerance for dkgp_job_measure of a running job"),
}


class ServiceMetrics:
    """The metrics of one service, in a registry of their own.

    Parameters
    ----------
    queue : JobQueue
        Asked when metrics are collected.
    """

    def __init__(self, queue: JobQueue, settings: ServiceSettings) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        ProcessCollector(registry=registry)
        build = gauge("dkgp_build_info", "Version and settings of this service", ("version", "python", "cluster"))
        build.labels(dkgp.__version__, platform.python_version(), settings.cluster.kind).set(1)
        for name, text, limit in (
            ("dkgp_jobs_concurrent_limit", "Most jobs that run at once", settings.concurrent_jobs),
            ("dkgp_jobs_queued_limit", "Most jobs that may wait", settings.max_queued),
            ("dkgp_jobs_folder_bytes_limit", "Most bytes of jobs' records and logs", settings.max_folder_bytes),
            ("dkgp_job_memory_bytes_limit", "Most memory of a job's processes", settings.job_memory_bytes),
        ):
            if limit is not None:
                gauge(name, text).set(limit)
        self.submitted = counter("dkgp_jobs_submitted", "Jobs accepted", ("command",))
        self.refused = counter("dkgp_jobs_refused", "Submissions refused", ("reason",))
        self.finished = counter("dkgp_jobs_finished", "Jobs that ended", ("command", "outcome"))
        self.exceeded = counter("dkgp_jobs_exceeded", "Jobs that were stopped at a limit", ("limit",))
        for kind in _EXCEEDED.values():
            self.exceeded.labels(kind)
        self.duration = histogram(
            "dkgp_job_duration_seconds",
            "Seconds from a job's last start to its end",
            ("command", "outcome"),
            buckets=JOB_SECONDS,
        )
        self.wait = histogram(
            "dkgp_job_queue_wait_seconds",
            "Seconds from a job's submission to its last start",
            ("command",),
            buckets=WAIT_SECONDS,
        )
        self.followers = gauge("dkgp_event_followers", "Open streams of events that are followed")
        self.requests = counter("dkgp_http_requests", "Requests answered", ("method", "route", "status"))
        self.request_seconds = histogram(
            "dkgp_http_request_duration_seconds",
            "Seconds until an answer started",
            ("method", "route"),
            buckets=REQUEST_SECONDS,
        )
        self._jobs = _JobCollector(queue, self)
        registry.register(self._jobs)

    def watch(self, job_id: str) -> None:
        """Count the end of this job when it comes."""
        self._jobs.watch(job_id)

    def render(self) -> tuple[bytes, str]:
        """Return the text that Prometheus reads, and its content type. Asks the queue: not for an event loop."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self._jobs.refresh()
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _JobCollector:
    """Gauges of the queue's jobs; counts jobs that have ended since the last look."""

    def __init__(self, queue: JobQueue, metrics: ServiceMetrics) -> None:
        self._queue = queue
        self._metrics = metrics
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._ended: dict[str, int] | None = None

    def watch(self, job_id: str) -> None:
        with self._lock:
            self._under_way.add(job_id)

    def refresh(self) -> None:
        """Count jobs that have ended. They end in processes of their own, so running jobs are compared with before."""
        with self._lock:
            ended = {state: n for state, n in self._queue.counts().items() if state not in ("queued", "running")}
            if ended == self._ended:
                return
            under_way = {record.id for record in self._queue.list(states=("queued", "running"), limit=10**6)}
            for job_id in self._under_way - under_way:
                self._count(job_id)
            self._under_way, self._ended = under_way, ended

    def _count(self, job_id: str) -> None:
        try:
            record = self._queue.get(job_id)
        except UnknownJobError:
            return
        if not record.is_terminal:
            return
        self._metrics.finished.labels(record.command, record.state).inc()
        if record.error is not None and (limit := _EXCEEDED.get(record.error.get("type", ""))) is not None:
            self._metrics.exceeded.labels(limit).inc()
        if record.started is not None:
            self._metrics.duration.labels(record.command, record.state).observe(record.ran_seconds)
            self._metrics.wait.labels(record.command).observe(record.waited_seconds)

    def describe(self) -> list[Metric]:
        """Nothing in advance: the registry need not ask the queue when it is told of this collector."""
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily(
            "dkgp_jobs_folder_bytes", "Bytes of jobs' records and logs", value=self._queue.folder_bytes()
        )
        forgotten = CounterMetricFamily(
            "dkgp_jobs_forgotten",
            "Ended jobs whose records were removed, by the limit that they exceeded",
            labels=("limit",),
        )
        for limit, number in self._queue.forgotten.items():
            forgotten.add_metric((limit,), number)
        yield forgotten
        jobs = GaugeMetricFamily("dkgp_jobs", "Jobs that the queue holds, by state", labels=("state",))
        for state, number in self._queue.counts().items():
            jobs.add_metric((state,), number)
        yield jobs
        running = self._queue.list(states=("running",), limit=MOST_RUNNING)
        seconds = GaugeMetricFamily(
            "dkgp_job_running_seconds", "Seconds since a running job started", labels=("job_id", "command")
        )
        for record in running:
            if record.started is not None:
                seconds.add_metric((record.id, record.command), _seconds(record.started, None))
        yield seconds
        for figure, (name, text) in FIGURES.items():
            gauge = GaugeMetricFamily(name, text, labels=("job_id", "command"))
            for record in running:
                if (value := _figure(record, figure)) is not None:
                    gauge.add_metric((record.id, record.command), value)
            yield gauge
        reached = GaugeMetricFamily(
            "dkgp_job_measure",
            "Convergence measure of a running job",
            labels=("job_id", "command", "measure"),
        )
        for record in running:
            if record.progress and (measure := measured(record.progress)) is not None:
                reached.add_metric((record.id, record.command, measure[0]), measure[1])
        yield reached


class MeasuredRequests(Layer):
    """Counts requests and how long they took to be answered, by the route that answered."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        super().__init__(app)
        self._metrics = metrics

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began = time.perf_counter()

        def measure(message: Message) -> None:
            # Templates and known methods only: a stranger must not be able to make up series.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.requests.labels(method, route, str(message["status"])).inc()
            self._metrics.request_seconds.labels(method, route).observe(time.perf_counter() - began)

        await self._app(scope, receive, before_answer(send, measure))


def _figure(record: JobRecord, name: str) -> float | None:
    value: Any = (record.progress or {}).get(name)
    return float(value) if isinstance(value, int | float) else None


def _seconds(since: str, until: str | None) -> float:
    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    return max(0.0, (end - datetime.fromisoformat(since)).total_seconds())
