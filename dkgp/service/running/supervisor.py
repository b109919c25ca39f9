"""Starts a process for each job, watches it, ends it on request, and takes over the jobs of a dead service.

Every running job is looked after by one service, named in its row. A service holds a lock as long as it lives; when
that lock is free, another service on the same queue adopts its jobs. The jobs' processes do not notice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dkgp.cluster import ClusterOptions
from dkgp.errors import ClusterError, DkgpError
from dkgp.service.queue.job_queue import MOST_ENDED_PER_OWNER, Claim, JobQueue, MemoryRoom, RunningJob, StopReason
from dkgp.service.queue.locks import FileLock
from dkgp.service.running.processes import (
    has_process_file,
    held_bytes,
    last_lines,
    process_id,
    send_signal,
    session_bytes,
)

POLL_SECONDS = 0.5
PRUNE_EVERY_SECONDS = 60.0
STOP_POLL_SECONDS = 0.1
WEIGH_EVERY_SECONDS = 1.0
# Share of its memory limit that a job may hold while it saves its state.
RUNAWAY = 1.25
# Time for a process to end once it was killed.
KILL_SECONDS = 10.0
# The service's own secrets are no business of its jobs.
KEPT_BACK = ("DKGP_SERVICE_TOKEN",)
# No interpreter, or none that can be run.
HOPELESS = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR)
# The lock of a service that died without jobs stays behind; one so old is not about to be taken.
STALE_SECONDS = 3600.0
RUNNER = "dkgp.service.running.runner"

_log = logging.getLogger(__name__)


@dataclass
class Attempt:
    """State of an attempt of a job in this service, beside its row in the queue."""

    child: subprocess.Popen[bytes] | None = None  # None for a process that another service started
    asked_at: float | None = None  # when the process was asked to end
    too_large: int = 0  # memory of its processes, if above the limit


class Supervisor:
    """Runs the jobs of a queue on a cluster, until it is stopped.

    `concurrent_jobs` counts those that another service on this queue runs; so many of one owner run at once. A job may
    run for `deadline_seconds` and take `memory_bytes`, or less where it asks for that. All running jobs may take
    `total_memory_bytes` together, and a job starts when its memory is free. An ended job is remembered for
    `keep_seconds` (None: for ever), or until the jobs' folders hold more than the queue says. Jobs may touch the
    `roots`, or all places of this user without roots. A process that was asked to end has `end_seconds` to save
    its state, unless its memory grows by another quarter meanwhile.
    """

    def __init__(
        self,
        queue: JobQueue,
        *,
        cluster: ClusterOptions | None = None,
        concurrent_jobs: int = 1,
        concurrent_per_owner: int | None = None,
        deadline_seconds: float | None = None,
        memory_bytes: int | None = None,
        total_memory_bytes: int | None = None,
        keep_seconds: float | None = None,
        roots: Sequence[str] = (),
        python: str = sys.executable,
        end_seconds: float = 60.0,
    ) -> None:
        self._queue, self._ledger = queue, queue.ledger
        self._cluster = cluster or ClusterOptions()
        self._concurrent_jobs, self._concurrent_per_owner = concurrent_jobs, concurrent_per_owner
        self._deadline_seconds, self._memory_bytes = deadline_seconds, memory_bytes
        self._room: MemoryRoom | None = None
        if memory_bytes is not None and total_memory_bytes is not None:
            self._room = MemoryRoom(memory_bytes, total_memory_bytes)
        self._keep_seconds, self._python, self._end_seconds = keep_seconds, python, end_seconds
        self._roots = tuple(roots)
        self.name = secrets.token_hex(6)
        self._presence: FileLock | None = None
        self._attempts: defaultdict[tuple[str, int], Attempt] = defaultdict(Attempt)  # by job and number
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dkgp-supervisor", daemon=True)
        self._pruned_at = self._weighed_at = time.monotonic()

    def start(self) -> None:
        """Begin, in a thread of its own; `StorageError` where the queue's folder cannot be written to."""
        self._forget_dead_services()
        self._presence = FileLock.acquire(self._service_lock(self.name))
        # Of an earlier version, which left it behind.
        (self._queue.folder / "cluster.json").unlink(missing_ok=True)
        self._thread.start()

    def stop(self, grace_seconds: float = 60.0) -> None:
        """Have the jobs that run save their state and go back to the queue, then end.

        Returns when their processes have ended; those that have not within the grace are killed, and go on from their
        last checkpoint.
        """
        self._stopping.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()
        until = time.monotonic() + grace_seconds
        # A process that even SIGKILL does not end waits for a disk; the next service adopts its job.
        while self._ask_all_to_end(kill=time.monotonic() >= until) and time.monotonic() < until + KILL_SECONDS:
            self._wake.clear()
            self._wake.wait(STOP_POLL_SECONDS)
        if self._presence is not None:
            self._presence.path.unlink(missing_ok=True)
            self._presence.release()
            self._presence = None

    def wake(self) -> None:
        """Look at the queue now: a job was submitted or cancelled."""
        self._wake.set()

    # A round of the loop: look after the jobs that run, then start others where there is room.

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._adopt()
                self._tend()
                self._start_waiting()
                self._prune()
            except DkgpError as error:
                # A full disk or a file that is locked for long: jobs go on, and so does this once it can.
                _log.warning("the queue could not be checked: %s", error)
            except Exception:
                _log.exception("the queue could not be checked")
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

    def _ask_all_to_end(self, kill: bool) -> bool:
        """Return True if a job's process still runs, or may run."""
        try:
            return bool(self._tend(reason="stop", kill=kill))
        except DkgpError as error:
            _log.warning("the queue could not be checked: %s", error)
            return True

    def _adopt(self) -> None:
        for service in {job.service for job in self._ledger.running()} - {self.name}:
            lock = self._service_lock(service) if service else None
            if lock is None or FileLock.is_free(lock):
                n_jobs = self._ledger.adopt(service, self.name)
                _log.info("taking over %d jobs of a service that ended", n_jobs)
                if lock is not None:
                    lock.unlink(missing_ok=True)

    def _tend(self, reason: StopReason | None = None, kill: bool = False) -> list[RunningJob]:
        """Record ended jobs, and stop those over their limits; return the jobs that still run."""
        mine = [job for job in self._ledger.running() if job.service == self.name]
        self._weigh(mine)
        running = []
        for job in mine:
            if self._has_ended(job):
                self._record_death(job)
                continue
            running.append(job)
            stop_reason = reason or self._reason(job)
            if stop_reason is not None:
                self._end(job, stop_reason, kill or self._is_runaway(job))
        for key in self._attempts.keys() - {(job.id, job.attempt) for job in running}:
            # The process has recorded its end: this only reaps it.
            child = self._attempts[key].child
            if child is None or child.poll() is not None:
                del self._attempts[key]
        return running

    def _attempt(self, job: RunningJob) -> Attempt:
        return self._attempts[job.id, job.attempt]

    def _weigh(self, jobs: Sequence[RunningJob]) -> None:
        """Find jobs above their memory limit, at most once a second."""
        if time.monotonic() - self._weighed_at < WEIGH_EVERY_SECONDS:
            return
        self._weighed_at = time.monotonic()
        leaders = {job: pid for job in jobs if self._memory_of(job) and (pid := self._process_of(job)) is not None}
        for job, taken in zip(leaders, session_bytes(list(leaders.values())).values(), strict=True):
            most = self._memory_of(job)
            # Pages that several processes share were counted for each.
            if most is not None and taken > most and (held := held_bytes(leaders[job])) > most:
                self._attempt(job).too_large = held

    def _memory_of(self, job: RunningJob) -> int | None:
        limits = [limit for limit in (job.memory_bytes, self._memory_bytes) if limit is not None]
        return min(limits, default=None)

    def _process_of(self, job: RunningJob) -> int | None:
        child = self._attempt(job).child
        return process_id(self._queue.folder_of(job.id), job.attempt) if child is None else child.pid

    def _is_runaway(self, job: RunningJob) -> bool:
        """True if a job grows too fast to save its state."""
        most = self._memory_of(job)
        return most is not None and self._attempt(job).too_large > RUNAWAY * most

    def _reason(self, job: RunningJob) -> StopReason | None:
        if job.stop is not None:
            return job.stop
        if job.cancel_requested:
            return "cancel"
        if self._attempt(job).too_large:
            return "memory"
        limits = [limit for limit in (job.deadline_seconds, self._deadline_seconds) if limit is not None]
        return "deadline" if limits and job.ran_seconds > min(limits) else None

    def _has_ended(self, job: RunningJob) -> bool:
        child = self._attempt(job).child
        if child is not None and child.poll() is None:
            return False
        return FileLock.is_free(self._queue.folder_of(job.id) / "lock")

    def _end(self, job: RunningJob, reason: StopReason, kill: bool) -> None:
        """Ask the job's process once to end; kill it if it takes too long."""
        attempt, folder = self._attempt(job), self._queue.folder_of(job.id)
        if attempt.asked_at is None:
            held, most = attempt.too_large, self._memory_of(job)
            detail = f"{_gibibytes(held)} GiB of {_gibibytes(most)}" if held and most else None
            first = self._ledger.mark_stop(job.id, job.attempt, reason, detail)
            # Marked before: by a service that died then, or by this one, which could not reach the process yet.
            if not self._send(job, folder, signal.SIGTERM):
                return
            attempt.asked_at = time.monotonic()
            _log.info("job %s is asked to end (%s%s)", job.id, reason, "" if first else ", again")
            if kill and reason == "memory":
                self._send(job, folder, signal.SIGKILL)
        elif kill or time.monotonic() - attempt.asked_at > self._end_seconds:
            self._send(job, folder, signal.SIGKILL)

    def _send(self, job: RunningJob, folder: Path, number: signal.Signals) -> bool:
        child = self._attempt(job).child
        if child is None:
            return send_signal(folder, job.attempt, number)
        child.send_signal(number)
        return True

    def _record_death(self, job: RunningJob) -> None:
        """Record the end of a process that did not record it itself."""
        child = self._attempts.pop((job.id, job.attempt), Attempt()).child
        folder = self._queue.folder_of(job.id)
        code = None if child is None else child.returncode
        output = self._cluster.redacted(last_lines(folder / "log.txt"))
        output = f". Its last output:\n{output}" if output else ""
        if code is not None and code > 0 and not has_process_file(folder, job.attempt):
            self._fail_to_start(job.id, job.attempt, f"it ended with exit code {code}{output}")
            return
        _log.warning("the process of job %s ended unexpectedly (%s)", job.id, code)
        self._ledger.died(job.id, job.attempt, f"the job's process {_ending(code)}{output}")

    def _fail_to_start(self, job_id: str, attempt: int, reason: str) -> None:
        message = f"the job's process could not be started with {self._python}: {reason}"
        _log.error("job %s: %s", job_id, message)
        error = {"type": ClusterError.__name__, "message": message, "exit_code": int(ClusterError.exit_code)}
        self._ledger.finish(job_id, attempt, "failed", int(ClusterError.exit_code), error=error)

    def _start_waiting(self) -> None:
        while not self._stopping.is_set():
            claim = self._ledger.claim(self.name, self._concurrent_jobs, self._concurrent_per_owner, self._room)
            if claim is None:
                return
            try:
                self._start(claim)
            finally:
                # The process has it now.
                claim.lock.release()

    def _start(self, claim: Claim) -> None:
        job_id, attempt, folder = claim.record.id, claim.record.attempt, self._queue.folder_of(claim.record.id)
        arguments = [str(self._queue.folder), job_id, str(attempt), str(claim.lock.handle)]
        command = [self._python, "-m", RUNNER, *arguments, *self._roots]
        try:
            with (folder / "log.txt").open("ab") as log, _told(self._cluster) as cluster:
                child = subprocess.Popen(
                    command,
                    stdin=cluster,
                    stdout=log,
                    stderr=log,
                    pass_fds=[claim.lock.handle],
                    start_new_session=True,
                    # The service's own folder may hold data; a file there must not stand in for a module, nor
                    # must anything else that is no part of the installation.
                    cwd=folder,
                    env=_environment(),
                )
        except OSError as error:
            if error.errno in HOPELESS:
                self._fail_to_start(job_id, attempt, str(error))
            else:
                # Too many processes or open files, too little memory or disk: another time, perhaps.
                self._ledger.died(job_id, attempt, f"the job's process could not be started: {error}")
            return
        self._attempts[job_id, attempt].child = child
        _log.info("job %s started: attempt %d, process %d", job_id, attempt, child.pid)
        threading.Thread(target=self._wait_for, args=(child,), name=f"dkgp-wait-{job_id}", daemon=True).start()

    def _wait_for(self, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        self.wake()

    def _prune(self) -> None:
        if time.monotonic() - self._pruned_at < PRUNE_EVERY_SECONDS:
            return
        self._pruned_at = time.monotonic()
        keep_seconds = math.inf if self._keep_seconds is None else self._keep_seconds
        if old := self._queue.prune(keep_seconds):
            _log.warning(
                "removed the records of %d jobs: they ended more than %.1f days ago, or before their owner's last %d",
                old,
                keep_seconds / 86_400,
                MOST_ENDED_PER_OWNER,
            )
        most = self._queue.max_folder_bytes
        if most is not None and (oldest := self._queue.prune_to(most)):
            _log.warning(
                "removed the records of the %d oldest ended jobs: records and logs took more than %d bytes",
                oldest,
                most,
            )

    def _forget_dead_services(self) -> None:
        in_use = {job.service for job in self._ledger.running()}
        for path in (self._queue.folder / "services").glob("*.lock"):
            with contextlib.suppress(OSError):
                is_old = time.time() - path.stat().st_mtime > STALE_SECONDS
                if is_old and path.stem not in in_use and FileLock.is_free(path):
                    path.unlink()

    def _service_lock(self, name: str) -> Path:
        return self._queue.folder / "services" / f"{name}.lock"


@contextlib.contextmanager
def _told(cluster: ClusterOptions) -> Iterator[int]:
    """A pipe that says where a job is to run, by a handle to read from.

    Settings of clusters may hold passwords: so they are in no file, no list of processes and no environment.
    """
    reading, writing = os.pipe()
    try:
        # Whole before there is anybody to read: a setting as long as that is none.
        os.set_blocking(writing, False)
        content = json.dumps(dataclasses.asdict(cluster)).encode()
        if os.write(writing, content) < len(content):
            raise OSError(errno.E2BIG, "the cluster's settings are longer than a pipe holds")
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


def _environment() -> dict[str, str]:
    """Environment of a job's process, without secrets and without relative import paths."""
    environment = {name: value for name, value in os.environ.items() if name not in KEPT_BACK}
    if path := environment.pop("PYTHONPATH", ""):
        # An empty entry stands for the working directory, and is mostly there by accident.
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep) if entry)
    return {**environment, "PYTHONSAFEPATH": "1"}


def _gibibytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.3g}"


def _ending(code: int | None) -> str:
    if code is None:
        return "ended without recording a result (it was killed, or this machine was switched off)"
    if code >= 0:
        return f"ended with exit code {code} without recording a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    cause = "; the system does this if memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{cause}"
