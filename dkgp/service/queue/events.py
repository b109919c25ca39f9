"""A job's event file: one JSON object a line, which a reporter writes and any number of readers read, from any point.

Every event has a "sequence" that grows by one, across attempts too, a "time", and a "kind":

==========  ==========================================================================================================
"state"     {"state"}, and "attempt" if the job runs
"note"      {"message"}
"warning"   {"message"}
"progress"  {"label", ...}: of a solve also the figures of a round; of other work "done", "total", "unit", "phase"
"log"       {"message"}: a line of standard error
"document"  {"document"}: the document that the command prints with `--json`
"error"     {"error"}: type, message, exit_code, checkpoint
==========  ==========================================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkgp.commands.reporting.outputs import plain
from dkgp.commands.reporting.progress import (
    DASHBOARD_NOTE,
    ConvergenceEstimate,
    Measure,
    WorkProgress,
)

if TYPE_CHECKING:
    from dkgp.models import TuneProgress
    from dkgp.solvers import Progress as SolveProgress
    from dkgp.solvers.greedy_basis import GreedyProgress as ChoiceProgress


TAIL_BYTES = 64 * 1024
# Seconds between two progress events, by how many events there are: the file of a job of days stays small.
PROGRESS_PACES = ((10_000, 0.2), (15_000, 1.0), (20_000, 5.0))
SLOWEST_PROGRESS_SECONDS = 60.0


class EventWriter:
    """Appends events; several processes may write to one file, each event whole and with a number of its own.

    Events that cannot be written (a full disk) are lost in silence: they describe a job and decide nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.RLock()
        self._busy = False
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._handle = -1
        self._end = -1
        self.next_sequence = 0
        with contextlib.suppress(OSError):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Flush the file to the disk, and close it."""
        with self._turn:
            if self._handle >= 0:
                with contextlib.suppress(OSError):
                    os.fsync(self._handle)
                os.close(self._handle)
                self._handle = -1

    def write(self, kind: str, **content: Any) -> None:
        """Append one event."""
        with self._turn:
            self._waiting.append((kind, content))
            # A signal's handler may speak while this very thread is writing: its event follows then.
            if self._busy:
                return
            self._busy = True
            try:
                while self._waiting:
                    self._append(*self._waiting.pop(0))
            finally:
                self._busy = False

    def _append(self, kind: str, content: dict[str, Any]) -> None:
        if self._handle < 0:
            return
        with contextlib.suppress(OSError), _locked(self._handle):
            size = os.fstat(self._handle).st_size
            if size != self._end:
                size = self._catch_up(size)
            event = {"sequence": self.next_sequence, "time": now_text(), "kind": kind, **plain(content)}
            line = json.dumps(event, allow_nan=False).encode() + b"\n"
            try:
                is_complete = os.write(self._handle, line) == len(line)
            except OSError:
                is_complete = False
            if not is_complete:
                os.ftruncate(self._handle, size)
                self._end = -1
                return
            self._end = size + len(line)
            self.next_sequence += 1

    def _catch_up(self, size: int) -> int:
        """Find the last whole line, truncate a torn one behind it, and continue its numbers."""
        tail = bytearray()
        start = size
        while start > 0:
            piece = min(TAIL_BYTES, start)
            start -= piece
            tail[:0] = os.pread(self._handle, piece, start)
            end = tail.rfind(b"\n") + 1
            event = _last_event(bytes(tail[:end]), whole_from_start=start == 0)
            if end and event is not None:
                self.next_sequence = int(event["sequence"]) + 1
                break
        else:
            end = tail.rfind(b"\n") + 1
            self.next_sequence = 0
        if start + end < size:
            os.ftruncate(self._handle, start + end)
        return start + end


class EventReader:
    """Reads a job's events; one that goes on where it stopped reads each byte once. The file may be missing still."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._last = -1

    def read(self, after: int = -1, limit: int = 1000) -> list[dict[str, Any]]:
        """Return up to `limit` events with a sequence above `after`, in order; a line that is not whole is left out."""
        if after < self._last:
            self._offset, self._last = 0, -1
        events: list[dict[str, Any]] = []
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._last = 0, -1
                file.seek(self._offset)
                while len(events) < limit:
                    line = file.readline()
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    event = _event(line)
                    if event is None:
                        continue
                    self._last = max(self._last, event["sequence"])
                    if event["sequence"] > after:
                        events.append(event)
        except OSError:
            return events
        return events


def progress_pace_seconds(n_events: int) -> float:
    """Return how far apart progress events come in a file of so many events."""
    return next((seconds for most, seconds in PROGRESS_PACES if n_events < most), SLOWEST_PROGRESS_SECONDS)


def latest_progress(path: Path) -> dict[str, Any] | None:
    """Return the last progress event among the file's last ones, or None."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"progress"' in line and (event := _event(line)) is not None and event["kind"] == "progress":
            return event
    return None


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("sequence"), int) and "kind" in event else None


def _last_event(lines: bytes, *, whole_from_start: bool) -> dict[str, Any] | None:
    # The first line of a piece may have begun before it.
    complete_lines = lines.splitlines() if whole_from_start else lines.splitlines()[1:]
    return next((event for line in reversed(complete_lines) if (event := _event(line)) is not None), None)


@contextmanager
def _locked(handle: int) -> Iterator[None]:
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def now_text() -> str:
    """The time as events and records have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class EventReporter:
    """Writes notes, warnings and progress as events; `on_dashboard` is called with the link to the cluster's."""

    def __init__(self, events: EventWriter, on_dashboard: Callable[[str], None]) -> None:
        self.warnings: list[str] = []
        self._events, self._on_dashboard = events, on_dashboard

    def note(self, message: str, figures: str | None = None) -> None:
        """Write a note, in figures where there are some."""
        self._events.write("note", message=figures or message)
        if message.startswith(DASHBOARD_NOTE):
            self._on_dashboard(message.removeprefix(DASHBOARD_NOTE).strip())

    def warn(self, message: str) -> None:
        """Write a warning, the same one once, and remember it."""
        if message not in self.warnings:
            self.warnings.append(message)
            self._events.write("warning", message=message)

    @contextmanager
    def work(self, label: str) -> Iterator[Callable[[WorkProgress], None]]:
        """Report {done, total, unit, phase}."""
        with self._paced() as show:

            def update(progress: WorkProgress) -> None:
                show(label=label, **vars(progress))

            yield update

    @contextmanager
    def search(self, label: str) -> Iterator[Callable[[TuneProgress], None]]:
        """Report the evaluations of a hyperparameter search."""
        with self._paced() as show:

            def update(progress: TuneProgress) -> None:
                show(label=label, done=progress.evaluation, total=None, unit="evaluations", **vars(progress))

            yield update

    @contextmanager
    def solve(
        self, label: str, tolerance: float, measure: Measure = "gradient_inf_norm"
    ) -> Iterator[Callable[[SolveProgress | WorkProgress], None]]:
        """Report rounds: figures, tolerance, rate and time left; and how far the work within a round has come."""
        estimate = ConvergenceEstimate(tolerance, measure)
        latest: dict[str, Any] = {}
        with self._paced() as show:

            def update(progress: SolveProgress | WorkProgress) -> None:
                if isinstance(progress, WorkProgress):
                    show(label=label, **latest, **vars(progress))
                    return
                estimate.update(progress)
                latest.update(progress.to_json(), **estimate.to_json())
                del latest["timings"]
                show(label=label, **latest)

            yield update

    @contextmanager
    def choice(self, label: str, size: int | None) -> Iterator[Callable[[ChoiceProgress | WorkProgress], None]]:
        """Report the basis so far, its risk and gap; and how far the work beside the rounds has come."""
        with self._paced() as show:

            def update(progress: ChoiceProgress | WorkProgress) -> None:
                if isinstance(progress, WorkProgress):
                    show(label=label, **vars(progress))
                    return
                show(label=label, done=progress.size, total=size, unit="basis samples", **vars(progress))

            yield update

    @contextmanager
    def _paced(self) -> Iterator[Callable[..., None]]:
        """Limit the rate of progress events; the first and the last are always written."""
        pending: list[dict[str, Any]] = []
        due = 0.0

        def show(**content: Any) -> None:
            nonlocal due
            pending[:] = [content]
            now = time.monotonic()
            if now >= due:
                due = now + progress_pace_seconds(self._events.next_sequence)
                self._events.write("progress", **content)
                pending.clear()

        try:
            yield show
        finally:
            for content in pending:
                self._events.write("progress", **content)
