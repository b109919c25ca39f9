"""One job of a queue, run in this process: `python -m dkgp.service.running.runner FOLDER JOB ATTEMPT [LOCK [ROOT...]]`.

A parent that hands over a lock writes the cluster's options to standard input.

The process holds the job's lock from before it looks at the queue until it has ended, and records the end by itself, so
that neither depends on the service that started it. SIGTERM has the job save its state; the state that follows (back to
the queue, cancelled, failed) depends on the reason that the sender of the signal has recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dkgp.commands.signals import first_signal_only, terminate_as_interrupt
from dkgp.errors import DkgpError, ExitCode, StorageError
from dkgp.service.queue.locks import FileLock
from dkgp.service.running.processes import LogTail, write_process_file

UNEXPECTED = 1
# The job is not this process's to run: EX_TEMPFAIL.
NOT_MINE = 75
RECORD_ATTEMPTS = 6
# Threads that still run then do not keep the process, and with it the lock.
EXIT_SECONDS = 20.0

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """The end of a job; `state` is None if the queue decides the next state."""

    state: str | None
    exit_code: int
    document: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the process's exit code, 0 if the end was recorded."""
    words = sys.argv[1:] if arguments is None else arguments
    folder, job_id, attempt, roots = Path(words[0]), words[1], int(words[2]), words[4:]
    lock = _lock(folder / "jobs" / job_id / "lock", int(words[3]) if len(words) > 3 else None)
    if lock is None:
        print(f"job {job_id} is run by another process", file=sys.stderr)
        return NOT_MINE
    cluster = _told_cluster() if len(words) > 3 else {}
    # A signal that comes before the job can be interrupted waits until it can.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    write_process_file(folder / "jobs" / job_id, attempt)
    return _run(folder, job_id, attempt, roots, cluster)


def _lock(path: Path, handle: int | None) -> FileLock | None:
    if handle is not None:
        return FileLock.inherited(handle, path)
    return FileLock.acquire(path, seconds=2.0)  # a service may test the lock at this moment


def _run(folder: Path, job_id: str, attempt: int, roots: list[str], cluster: Mapping[str, Any]) -> int:
    from dkgp.service.queue.events import EventWriter
    from dkgp.service.queue.job_queue import JobQueue

    queue = JobQueue(folder)
    job = queue.ledger.attempt(job_id, attempt)
    if job is None:
        print(f"job {job_id} does not run as attempt {attempt} any more", file=sys.stderr)
        return NOT_MINE
    events = EventWriter(queue.folder_of(job_id) / "events.jsonl")
    events.write("state", state="running", attempt=attempt)
    from dkgp.cluster import ClusterOptions

    redacted = ClusterOptions(**cluster).redacted
    with LogTail(queue.folder_of(job_id) / "log.txt", lambda line: events.write("log", message=redacted(line))):
        outcome = _outcome(queue, job_id, attempt, job.generation, events, roots, cluster)
        sys.stdout.flush()
        sys.stderr.flush()
    events.close()
    if outcome.error is not None:
        outcome.error["message"] = redacted(outcome.error["message"])
    return 0 if _record(queue, job_id, attempt, job.generation, outcome) else UNEXPECTED


def _outcome(
    queue: Any,
    job_id: str,
    attempt: int,
    generation: int,
    events: Any,
    roots: Sequence[str] = (),
    cluster: Mapping[str, Any] | None = None,
) -> _Outcome:
    """Run the job, and return how it ended, in all cases."""
    try:
        with first_signal_only(), _interruptible(), _kept_within(roots, queue, job_id):
            document = _work(queue, job_id, attempt, generation, events, cluster or {})
    except KeyboardInterrupt as interrupt:
        return _Outcome(
            None, int(ExitCode.INTERRUPTED), error=_error("InterruptedRunError", str(interrupt) or "interrupted", 130)
        )
    except DkgpError as error:
        failure = _error(type(error).__name__, str(error), int(error.exit_code))
        checkpoint = getattr(error, "checkpoint", None)
        if checkpoint is not None:
            failure["checkpoint"] = str(checkpoint)
        states = {ExitCode.INTERRUPTED: None, ExitCode.NOT_CONVERGED: "not_converged"}
        return _Outcome(states.get(error.exit_code, "failed"), int(error.exit_code), error=failure)
    except MemoryError as error:
        exit_code = int(ExitCode.BAD_INPUT)
        return _Outcome("failed", exit_code, error=_error("MemoryError", f"out of memory: {error}", exit_code))
    except BaseException as error:  # a SystemExit too: nothing but a recorded end ends this process
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}\nThis is a bug in dkgp, or a case that it does not handle; the log "
        message += "has the traceback"
        return _Outcome("failed", UNEXPECTED, error=_error(type(error).__name__, message, UNEXPECTED))
    if document["command"] in ("train", "sparse", "classify", "fit") and not document["converged"]:
        return _Outcome("not_converged", int(ExitCode.NOT_CONVERGED), document=document)
    return _Outcome("done", int(ExitCode.DONE), document=document)


@contextmanager
def _kept_within(roots: Sequence[str], queue: Any, job_id: str) -> Iterator[None]:
    """Check the job against the service's roots again, in the process that opens the files."""
    from dkgp.service.roots import Roots, kept_within

    if not roots:
        yield
        return
    record = queue.get(job_id)
    with kept_within(Roots(roots, excluded=[str(queue.folder)]), record.command, record.options):
        yield


def _work(
    queue: Any, job_id: str, attempt: int, generation: int, events: Any, cluster: Mapping[str, Any]
) -> dict[str, Any]:
    from dkgp.cluster import ClusterOptions
    from dkgp.service.queue.events import EventReporter
    from dkgp.service.running.recovery import Traces, going_on, kept_document
    from dkgp.service.specification import job_from_options, run_job

    folder = queue.folder_of(job_id)
    finished = kept_document(folder, generation)
    if finished is not None:
        return finished
    record = queue.get(job_id)
    job: Any = job_from_options(record.command, record.options)
    if hasattr(job, "cluster"):
        job = dataclasses.replace(job, cluster=ClusterOptions(**cluster))

    def on_dashboard(link: str) -> None:
        with contextlib.suppress(DkgpError):
            queue.ledger.set_dashboard_link(job_id, attempt, link)

    reporter = EventReporter(events, on_dashboard)
    traces = Traces(folder, job, generation)
    if record.resume or attempt > 1:
        job = going_on(job, traces, reporter)
        if isinstance(job, dict):
            return job
    document: dict[str, Any] = run_job(job, reporter)
    return document


def _record(queue: Any, job_id: str, attempt: int, generation: int, outcome: _Outcome) -> bool:
    """Record the end in the queue; retry for a while if the disk is full."""
    from dkgp.service.running.recovery import keep_document

    if outcome.document is not None:
        keep_document(queue.folder_of(job_id), generation, outcome.document)
    for number in range(RECORD_ATTEMPTS):
        try:
            if outcome.state is None:
                queue.ledger.interrupted(job_id, attempt, outcome.error or {})
            else:
                queue.ledger.finish(
                    job_id, attempt, outcome.state, outcome.exit_code, document=outcome.document, error=outcome.error
                )
            return True
        except StorageError as error:
            print(f"the end of job {job_id} could not be recorded: {error}", file=sys.stderr)
            time.sleep(min(2.0**number, 10.0))
    return False


def _told_cluster() -> dict[str, Any]:
    """Read from standard input where the job is to run; then nothing can be read from there any more.

    It does not wait: the parent has written them before it starts this process, or never does.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return {}
    content = b""
    while piece := os.read(0, 2**16):
        content += piece
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    options: dict[str, Any] = json.loads(content) if content else {}
    return options


@contextmanager
def _interruptible() -> Iterator[None]:
    """Deliver the blocked signals inside the block; ignore later ones."""
    with contextlib.ExitStack() as stack:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        stack.enter_context(terminate_as_interrupt())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        yield


def _error(kind: str, message: str, exit_code: int) -> dict[str, Any]:
    return {"type": kind, "message": message, "exit_code": exit_code}


def _leave(code: int) -> None:
    """End the process within `EXIT_SECONDS`, even if other threads still run."""
    sys.stdout.flush()
    sys.stderr.flush()
    watchdog = threading.Timer(EXIT_SECONDS, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    sys.exit(code)


if __name__ == "__main__":
    _leave(main())
