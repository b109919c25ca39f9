"""The running side of the queue: claiming jobs, recording how attempts end, and taking over from a dead service.

Every change names the attempt that it is about, so that what comes too late changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from dkgp.commands.reporting.documents import dump
from dkgp.errors import ExitCode
from dkgp.service.queue.database import QueueDatabase, Row, Transaction
from dkgp.service.queue.events import EventWriter, latest_progress, now_text
from dkgp.service.queue.locks import FileLock
from dkgp.service.queue.records import JobRecord, State

StopReason = Literal["cancel", "deadline", "memory", "stop"]

# Jobs that are tried for a free lock; the lock of a waiting job is held for moments only, while its process ends.
CLAIM_CANDIDATES = 20


# A job that went back to the queue does not count as its owner's last turn: a service that restarts goes on with it.
_IN_TURN = (
    "WITH turns AS (SELECT owner_key, SUM(state = 'running') AS running, MAX(CASE WHEN state <> 'queued' THEN "
    "started_at END) AS latest FROM jobs GROUP BY owner_key) "
    "SELECT id, memory_bytes, queued_at, waited_seconds FROM jobs JOIN turns USING (owner_key) WHERE state = 'queued' "
    "AND (? IS NULL OR running < ?) ORDER BY running, latest, sequence LIMIT ?"
)


@dataclass(frozen=True)
class MemoryRoom:
    """Memory for running jobs: `total_bytes` for all, `job_bytes` for one that asks for no less."""

    job_bytes: int
    total_bytes: int

    def fits(self, wanted: int | None, taken: Iterable[int | None]) -> bool:
        """Return True if a job fits beside those that run; alone it always does."""
        running = [self._granted(n_bytes) for n_bytes in taken]
        return not running or self._granted(wanted) + sum(running) <= self.total_bytes

    def _granted(self, wanted: int | None) -> int:
        return self.job_bytes if wanted is None else min(wanted, self.job_bytes)


@dataclass
class Claim:
    """A job that is now `running`, and the lock that its process has to hold."""

    record: JobRecord
    lock: FileLock


@dataclass(frozen=True)
class RunningJob:
    """A job under way, as a service needs to know it."""

    id: str
    attempt: int
    # How often the user has resumed it.
    generation: int
    # The service that looks after it.
    service: str
    cancel_requested: bool
    # Why its process was asked to end.
    stop: StopReason | None
    # Of all attempts together, as is the deadline.
    ran_seconds: float
    deadline_seconds: float | None
    memory_bytes: int | None


class Ledger:
    """Changes of jobs that run; one whose process has died `max_attempts` times has failed."""

    def __init__(self, database: QueueDatabase, folder: Path, max_attempts: int) -> None:
        self._database, self._folder, self._max_attempts = database, folder, max_attempts

    def claim(
        self,
        service: str = "",
        limit: int | None = None,
        limit_per_owner: int | None = None,
        memory: MemoryRoom | None = None,
    ) -> Claim | None:
        """Make the next job `running`, and lock it; None if none waits, `limit` jobs run, or its memory is not free.

        Owners take turns: the next job is the oldest one of the owner with the fewest running jobs, and among equals
        of the owner whose last job started longest ago. Owners with `limit_per_owner` running jobs are passed over. A
        job that does not fit into the memory waits until it does, and no later job overtakes it; alone it always fits.
        """
        lock: FileLock | None = None
        try:
            with self._database.write() as transaction:
                running = transaction.all("SELECT memory_bytes FROM jobs WHERE state = 'running'")
                if limit is not None and len(running) >= limit:
                    return None
                for row in transaction.all(_IN_TURN, limit_per_owner, limit_per_owner, CLAIM_CANDIDATES):
                    folder = self._job_folder(row["id"])
                    # Somebody may have tidied up; the queue goes on all the same.
                    folder.mkdir(mode=0o700, exist_ok=True)
                    lock = FileLock.acquire(folder / "lock")
                    if lock is not None:
                        break
                else:
                    return None
                if memory is not None and not memory.fits(
                    row["memory_bytes"], [job["memory_bytes"] for job in running]
                ):
                    lock.release()
                    return None
                waited = waited_seconds(row, transaction.now())
                transaction.run(
                    "UPDATE jobs SET state = 'running', attempt = attempt + 1, service = ?, stop = NULL, "
                    "stop_detail = NULL, started = ?, started_at = ?, waited_seconds = ?, dashboard_link = NULL "
                    "WHERE id = ?",
                    service,
                    now_text(),
                    transaction.now(),
                    waited,
                    row["id"],
                )
                claimed = transaction.one("SELECT * FROM jobs WHERE id = ?", row["id"])
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return Claim(job_record(claimed), lock)

    def finish(
        self,
        job_id: str,
        attempt: int,
        state: State,
        exit_code: int,
        *,
        document: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> bool:
        """Record the end of a job; False where this attempt is not the one that runs."""
        with self._database.write() as transaction:
            row = _running(transaction, job_id, attempt)
            if row is None:
                return False
            self._close(transaction, row, state, exit_code, document, error)
            self._tell_end(job_id, state, document, error)
        return True

    def interrupted(self, job_id: str, attempt: int, error: Mapping[str, Any]) -> State | None:
        """Record that a job's process ended because it was asked to; return the state that follows.

        Whether that is `queued`, `cancelled` or `failed` depends on why it was asked; a job that nobody asked (a signal
        from outside) goes back to the queue.
        """
        return self._end_attempt(job_id, attempt, dict(error), died=False)

    def died(self, job_id: str, attempt: int, how: str) -> State | None:
        """Record that a job's process ended without a word; it goes back to the queue, but not for ever."""
        error = {"type": "JobDiedError", "message": how, "exit_code": 1}
        return self._end_attempt(job_id, attempt, error, died=True)

    def mark_stop(self, job_id: str, attempt: int, reason: StopReason, detail: str | None = None) -> bool:
        """Record why a job's process is about to be asked to end, in figures; False where that was done before."""
        with self._database.write() as transaction:
            return bool(
                transaction.run(
                    "UPDATE jobs SET stop = ?, stop_detail = ? WHERE id = ? AND attempt = ? AND state = 'running' AND "
                    "stop IS NULL",
                    reason,
                    detail,
                    job_id,
                    attempt,
                )
            )

    def running(self) -> list[RunningJob]:
        """Return the jobs under way, whoever looks after them."""
        now = self._database.now()
        return [
            RunningJob(
                id=row["id"],
                attempt=row["attempt"],
                generation=row["generation"],
                service=row["service"] or "",
                cancel_requested=bool(row["cancel_requested"]),
                stop=row["stop"],
                ran_seconds=row["ran_seconds"] + max(0.0, now - row["started_at"]),
                deadline_seconds=row["deadline_seconds"],
                memory_bytes=row["memory_bytes"],
            )
            for row in self._database.read("SELECT * FROM jobs WHERE state = 'running' ORDER BY sequence")
        ]

    def adopt(self, from_service: str, service: str) -> int:
        """Look after the running jobs of a service that is gone, from now on; return how many there are."""
        with self._database.write() as transaction:
            return transaction.run(
                "UPDATE jobs SET service = ? WHERE state = 'running' AND service = ?", service, from_service
            )

    def set_dashboard_link(self, job_id: str, attempt: int, link: str) -> None:
        """Record where the cluster of a running job can be watched."""
        with self._database.write() as transaction:
            transaction.run(
                "UPDATE jobs SET dashboard_link = ? WHERE id = ? AND attempt = ? AND state = 'running'",
                link,
                job_id,
                attempt,
            )

    def attempt(self, job_id: str, attempt: int) -> RunningJob | None:
        """Return the job, if this is the attempt that runs."""
        return next((job for job in self.running() if job.id == job_id and job.attempt == attempt), None)

    def _end_attempt(self, job_id: str, attempt: int, error: dict[str, Any], *, died: bool) -> State | None:
        final_error: dict[str, Any] | None = None
        with self._database.write() as transaction:
            row = _running(transaction, job_id, attempt)
            if row is None:
                return None
            counted = died and row["stop"] is None
            deaths = row["deaths"] + int(counted)
            state: State
            interruption = {**error, "exit_code": int(ExitCode.INTERRUPTED)}
            if row["cancel_requested"] or row["stop"] == "cancel":
                state, final_error = "cancelled", {**interruption, "type": "JobCancelledError"}
                final_error["message"] = f"cancelled; {error['message']}"
            elif row["stop"] == "deadline":
                state, final_error = "failed", {**interruption, "type": "DeadlineExceededError"}
                final_error["message"] = (
                    f"the job took longer than it may ({_seconds(row, transaction.now()):.0f} seconds); "
                    f"{error['message']}. Resume it to go on, or submit it with a later deadline"
                )
            elif row["stop"] == "memory":
                state, final_error = "failed", {**interruption, "type": "MemoryExceededError"}
                final_error["message"] = (
                    f"the job took more memory than it may ({row['stop_detail']}); {error['message']}. Its checkpoint, "
                    "where it has one, is kept: submit it again with `resume` and a larger limit, or one that needs "
                    "less (`dkgp plan` foresees it)"
                )
            elif deaths >= self._max_attempts:
                state, final_error = "failed", error
                final_error["message"] = f"{error['message']}; that happened {deaths} times, and the job is given up"
            else:
                state = "queued"
            if final_error is not None:
                self._close(transaction, row, state, int(final_error["exit_code"]), None, final_error)
            else:
                transaction.run(
                    "UPDATE jobs SET state = 'queued', resume = 1, deaths = ?, ran_seconds = ?, stop = NULL, "
                    "service = NULL, progress = ?, queued = ?, queued_at = ? WHERE id = ?",
                    deaths,
                    _seconds(row, transaction.now()),
                    self._progress(job_id),
                    now_text(),
                    transaction.now(),
                    job_id,
                )
            if final_error is None and died:
                self.tell(job_id, "warning", message=f"{error['message']}; the job goes back to the queue")
            self._tell_end(job_id, state, None, final_error)
        return state

    def _close(
        self,
        transaction: Transaction,
        row: Row,
        state: State,
        exit_code: int,
        document: Mapping[str, Any] | None,
        error: Mapping[str, Any] | None,
    ) -> None:
        transaction.run(
            "UPDATE jobs SET state = ?, exit_code = ?, document = ?, error = ?, finished = ?, finished_at = ?, "
            "ran_seconds = ?, progress = ?, service = NULL WHERE id = ?",
            state,
            exit_code,
            None if document is None else dump(document, indent=None),
            None if error is None else dump(error, indent=None),
            now_text(),
            transaction.now(),
            _seconds(row, transaction.now()),
            self._progress(row["id"]),
            row["id"],
        )
        transaction.run("DELETE FROM outputs WHERE job_id = ?", row["id"])

    def tell(self, job_id: str, kind: str, **content: Any) -> None:
        """Write an event of a job."""
        with closing(EventWriter(self._job_folder(job_id) / "events.jsonl")) as events:
            events.write(kind, **content)

    def _tell_end(
        self, job_id: str, state: State, document: Mapping[str, Any] | None, error: Mapping[str, Any] | None
    ) -> None:
        """Write the last events before the change is seen, so that whoever sees it finds them all."""
        with closing(EventWriter(self._job_folder(job_id) / "events.jsonl")) as events:
            if document is not None:
                events.write("document", document=document)
            if error is not None:
                events.write("error", error=error)
            events.write("state", state=state)

    def _progress(self, job_id: str) -> str | None:
        event = latest_progress(self._job_folder(job_id) / "events.jsonl")
        return None if event is None else json.dumps(event)

    def _job_folder(self, job_id: str) -> Path:
        return self._folder / "jobs" / job_id


def job_record(row: Row | None) -> JobRecord:
    """Return the record of a row of the table `jobs`."""
    if row is None:
        raise AssertionError("a row that was just written is gone")
    values = {field.name: row[field.name] for field in fields(JobRecord)}
    for name in ("options", "error", "document", "progress"):
        values[name] = None if values[name] is None else json.loads(values[name])
    for name in ("resume", "cancel_requested"):
        values[name] = bool(values[name])
    return JobRecord(**values)


def _running(transaction: Transaction, job_id: str, attempt: int) -> Row | None:
    return transaction.one("SELECT * FROM jobs WHERE id = ? AND attempt = ? AND state = 'running'", job_id, attempt)


def waited_seconds(row: Row, now: float) -> float:
    """Return the seconds that a job in the queue has waited since it was submitted or resumed, all waits together."""
    return float(row["waited_seconds"]) + max(0.0, now - float(row["queued_at"]))


def _seconds(row: Row, now: float) -> float:
    """Seconds that the attempts so far took together, with the one that runs."""
    return float(row["ran_seconds"]) + max(0.0, now - float(row["started_at"]))
