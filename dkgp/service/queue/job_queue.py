"""The queue: jobs in one SQLite file. A job that runs is held by one lock, which its process keeps.

    FOLDER/queue.sqlite         the jobs
    FOLDER/token                the token that commands show to the service, if it was started without one
    FOLDER/tokens.json          hashes of others' tokens
    FOLDER/audit.jsonl          the audit log
    FOLDER/services/ID.lock     held by a service as long as it lives
    FOLDER/jobs/ID/lock         held by a job's process, from before it is `running` until it has ended
    FOLDER/jobs/ID/             events.jsonl, log.txt, and files that the attempts leave for each other

A job in the state `running` whose lock is free has died. The folder must lie on a file system of this host: neither
SQLite's write-ahead log nor these locks reach across a network.

`JobQueue` is the side of users: submit, list, cancel, resume, forget. `Ledger` is the side of services and jobs'
processes: claim jobs, record how attempts end, take over from a dead service. Every change of the ledger names its
attempt, so that one that comes too late changes nothing.
"""

from __future__ import annotations

import builtins
import json
import math
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from dkgp.commands.reporting.outputs import dump
from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import ExitCode, InputError
from dkgp.service.queue.database import FolderSizes, QueueDatabase, Row, Transaction, prepare_folder, tree_bytes
from dkgp.service.queue.events import EventWriter, latest_progress, now_text
from dkgp.service.queue.locks import FileLock
from dkgp.service.queue.records import (
    LONG_FIELDS,
    LONGEST_NAME,
    RESUMABLE,
    STATES,
    TERMINAL,
    JobRecord,
    JobStateError,
    QueueFullError,
    State,
    unknown_job,
)
from dkgp.service.roots import resolved

ID_BYTES = 6
# Ended jobs of one owner that are remembered: with many more, every look at the queue would take seconds.
MOST_ENDED_PER_OWNER = 10_000
_SHORT_COLUMNS = ", ".join(
    f"{'NULL' if field.name == 'document' else repr('{}')} AS {field.name}" if field.name in LONG_FIELDS else field.name
    for field in fields(JobRecord)
)


class JobQueue:
    """Jobs that wait, run, and have ended. Safe to share between threads, and the folder between processes.

    The folder is made where it is missing, for its owner alone. So many jobs may wait, in all and of one owner, none is
    taken while the jobs' own folders hold `max_folder_bytes`, and a job has failed when its process has died
    `max_attempts` times. `forgotten` counts the jobs that this object removed, by reason. `ledger` is the side of the
    queue that services and jobs' processes use. `InputError` where the folder holds something else or a queue of a
    later version, `StorageError` where it cannot be written to.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_queued: int = 10_000,
        max_queued_per_owner: int | None = None,
        max_folder_bytes: int | None = None,
        max_attempts: int = 5,
    ) -> None:
        self.folder = prepare_folder(Path(folder))
        self.max_queued, self.max_queued_per_owner, self.max_attempts = max_queued, max_queued_per_owner, max_attempts
        self.max_folder_bytes = max_folder_bytes
        self.forgotten = {"age": 0, "size": 0}
        self._sizes = FolderSizes(self.folder / "jobs")
        self._database = QueueDatabase(self.folder / "queue.sqlite")
        self.ledger = Ledger(self._database, self.folder, max_attempts)

    def close(self) -> None:
        """Close the database; the queue must not be used any more."""
        self._database.close()

    def submit(
        self,
        command: str,
        options: Mapping[str, Any],
        *,
        name: str | None = None,
        owner: str | None = None,
        idempotency_key: str | None = None,
        deadline_seconds: float | None = None,
        memory_bytes: int | None = None,
    ) -> tuple[JobRecord, bool]:
        """Add a job; return it, and whether it is new.

        The options are as `dkgp.service.specification.job_from_options` reads them, with its errors. A second
        submission with the owner's same `idempotency_key` returns the first one's job. `JobStateError` where another
        job under way writes to the same place, or the key was used for another job; `QueueFullError`; `StorageError`
        where the disk is full and nothing was recorded.
        """
        from dkgp.service import specification

        content = specification.options_from_job(specification.job_from_options(command, options))
        paths = specification.job_paths(command, content)
        outputs = [path.url for path in paths if path.field in specification.OUTPUT_FIELDS and path.access == "write"]
        request = {"command": command, "options": content, "name": name, "deadline_seconds": deadline_seconds}
        request["memory_bytes"] = memory_bytes
        _check_labels(name, owner, idempotency_key)
        _check_limits(deadline_seconds, memory_bytes)
        job_id = secrets.token_hex(ID_BYTES)
        # Looked at before the database is locked, which then knows it.
        self.is_full()
        try:
            with self._database.write() as transaction:
                earlier = _with_key(transaction, owner, idempotency_key)
                if earlier is not None:
                    return _same(earlier, request), False
                self._require_room(transaction, owner)
                _reserve(transaction, job_id, outputs, owner)
                created = now_text()
                own = {"id": job_id, "owner": owner, "owner_key": owner or "", "idempotency_key": idempotency_key}
                turn = {"state": "queued", "created": created, "queued": created, "queued_at": transaction.now()}
                texts = {"options": json.dumps(content), "outputs": json.dumps(outputs)}
                transaction.insert("jobs", {**request, **own, **turn, **texts})
                # Before anybody can claim it.
                with translate_write_errors(self.folder_of(job_id)):
                    self.folder_of(job_id).mkdir(mode=0o700)
                self.ledger.tell(job_id, "state", state="queued")
                row = transaction.one("SELECT * FROM jobs WHERE id = ?", job_id)
        except BaseException:
            shutil.rmtree(self.folder_of(job_id), ignore_errors=True)
            raise
        return job_record(row), True

    def get(self, job_id: str) -> JobRecord:
        """Return a job; `UnknownJobError` where there is none."""
        return self._with_progress(job_record(self._row(job_id)))

    def list(
        self,
        *,
        states: Collection[str] = (),
        limit: int = 100,
        before: str | None = None,
        owner: str | None = None,
    ) -> builtins.list[JobRecord]:
        """Return jobs, newest first: in some states, submitted `before` another one, or of one `owner` alone.

        Their options and documents, which may be a megabyte for each job, are left empty.
        """
        conditions: builtins.list[str] = ["1 = 1"]
        values: builtins.list[Any] = []
        if states:
            conditions.append(f"state IN ({_marks(states)})")
            values.extend(states)
        if before is not None:
            conditions.append("sequence < ?")
            values.append(self._row(before)["sequence"])
        if owner is not None:
            conditions.append("owner = ?")
            values.append(owner)
        rows = self._database.read(
            f"SELECT {_SHORT_COLUMNS} FROM jobs WHERE {' AND '.join(conditions)} ORDER BY sequence DESC LIMIT ?",
            *values,
            limit,
        )
        return [self._with_progress(job_record(row)) for row in rows]

    def has_ended(self, job_id: str) -> bool:
        """Return True for a job that has ended; `UnknownJobError` where there is none."""
        rows = self._database.read("SELECT state FROM jobs WHERE id = ?", job_id)
        if not rows:
            raise unknown_job(job_id)
        return rows[0]["state"] in TERMINAL

    def is_output(self, url: str) -> bool:
        """Return True if a job under way writes this place, or a folder above it."""
        place = resolved(url)
        places = [place, *("/".join(place.split("/")[:count]) for count in range(2, place.count("/") + 1))]
        return bool(self._database.read(f"SELECT 1 FROM outputs WHERE url IN ({_marks(places)})", *places))

    def counts(self, owner: str | None = None) -> dict[str, int]:
        """Return the number of jobs in each state, of all owners or of one."""
        rows = self._database.read(
            "SELECT state, COUNT(*) AS n FROM jobs WHERE ? IS NULL OR owner = ? GROUP BY state", owner, owner
        )
        by_state = {row["state"]: row["n"] for row in rows}
        return {state: by_state.get(state, 0) for state in STATES}

    def request_cancel(self, job_id: str) -> JobRecord:
        """Cancel a job that waits; ask one that runs to end. `JobStateError` for one that has ended."""
        with self._database.write() as transaction:
            row = self._known(transaction, job_id)
            if row["state"] in TERMINAL:
                raise JobStateError(
                    f"job {job_id} has ended ({row['state']}). Only a waiting or running job can be cancelled"
                )
            transaction.update(job_id, {"cancel_requested": 1})
            if row["state"] == "queued":
                error = {"type": "JobCancelledError", "message": "cancelled before it ran", "exit_code": 130}
                if row["attempt"]:
                    error["message"] = "cancelled while it waited to continue"
                now = transaction.now()
                times = {"finished": now_text(), "finished_at": now, "waited_seconds": waited_seconds(row, now)}
                ended = {"state": "cancelled", "exit_code": 130, "error": json.dumps(error)}
                transaction.update(job_id, {**ended, **times})
                transaction.run("DELETE FROM outputs WHERE job_id = ?", job_id)
                self.ledger.tell(job_id, "state", state="cancelled")
        return self.get(job_id)

    def resume(self, job_id: str) -> JobRecord:
        """Queue a job again that ended short of its goal; it resumes from its own files.

        `JobStateError` where it has not ended, is done, or another job writes to the same place now; `QueueFullError`.
        """
        with self._database.write() as transaction:
            row = self._known(transaction, job_id)
            if row["state"] not in RESUMABLE:
                raise JobStateError(
                    f"job {job_id} is {row['state'].replace('_', ' ')}; only a job that is "
                    f"{_listed(RESUMABLE)} can be resumed"
                )
            self._require_room(transaction, row["owner"])
            _reserve(transaction, job_id, json.loads(row["outputs"]), row["owner"])
            again = {"state": "queued", "resume": 1, "generation": row["generation"] + 1, "cancel_requested": 0}
            turn = {"queued": now_text(), "queued_at": transaction.now()}
            zeros = dict.fromkeys(("deaths", "ran_seconds", "waited_seconds"), 0)
            empty = dict.fromkeys(("stop", "finished", "finished_at", "exit_code", "error", "document"))
            transaction.update(job_id, {**again, **turn, **zeros, **empty})
            self.ledger.tell(job_id, "state", state="queued")
        return self.get(job_id)

    def folder_of(self, job_id: str) -> Path:
        """Return the folder of a job's own files."""
        return self.folder / "jobs" / job_id

    def prune(self, keep_seconds: float) -> int:
        """Forget the jobs that ended so long ago, their events and logs, but never their outputs; return their number.

        Of one owner's jobs, those that ended before the latest `MOST_ENDED_PER_OWNER` are forgotten as well.
        """
        with self._database.write() as transaction:
            transaction.wind_clock()
            rows = transaction.all(
                "SELECT id FROM (SELECT id, finished_at, ROW_NUMBER() OVER (PARTITION BY owner_key ORDER BY "
                f"finished_at DESC) AS place FROM jobs WHERE state IN ({_marks(TERMINAL)})) "
                "WHERE finished_at <= ? OR place > ?",
                *TERMINAL,
                transaction.now() - keep_seconds,
                MOST_ENDED_PER_OWNER,
            )
        forgotten = sum(self._forget(row["id"]) for row in rows)
        self.forgotten["age"] += forgotten
        self._remove_orphans()
        return forgotten

    def prune_to(self, most_bytes: int) -> int:
        """Forget ended jobs, the oldest first, until records and jobs' folders take no more; return how many."""
        excess = self._sizes.total(newest=True) + self._database.used_bytes() - most_bytes
        forgotten = 0
        if excess > 0:
            for row in self._database.read(
                f"SELECT id FROM jobs WHERE state IN ({_marks(TERMINAL)}) ORDER BY finished_at", *TERMINAL
            ):
                size, before = tree_bytes(self.folder_of(row["id"])), self._database.used_bytes()
                if self._forget(row["id"]):
                    shutil.rmtree(self.folder_of(row["id"]), ignore_errors=True)
                    forgotten, excess = forgotten + 1, excess - size - (before - self._database.used_bytes())
                if excess <= 0:
                    break
            self._sizes.total(newest=True)
        self.forgotten["size"] += forgotten
        return forgotten

    def folder_bytes(self) -> int:
        """Return the bytes of the records and the jobs' own folders; of the folders, as of some seconds ago."""
        return self._sizes.total() + self._database.used_bytes()

    def is_full(self) -> bool:
        """True if the records and the jobs' own folders take as much as they may."""
        return self.max_folder_bytes is not None and self.folder_bytes() >= self.max_folder_bytes

    def _forget(self, job_id: str) -> int:
        """Remove an ended job's row if its process has ended; return the number of removed rows."""
        if not FileLock.is_free(self.folder_of(job_id) / "lock"):
            return 0
        with self._database.write() as transaction:
            return transaction.run(
                f"DELETE FROM jobs WHERE id = ? AND state IN ({_marks(TERMINAL)})", job_id, *TERMINAL
            )

    def _remove_orphans(self) -> None:
        """Remove folders of jobs that the database does not have."""
        # A job is recorded and its folder made in one such transaction: none is under way here.
        with self._database.write() as transaction:
            known = {row["id"] for row in transaction.all("SELECT id FROM jobs")}
            orphans = [path for path in (self.folder / "jobs").iterdir() if path.name not in known]
        for path in orphans:
            shutil.rmtree(path, ignore_errors=True)

    def _require_room(self, transaction: Transaction, owner: str | None) -> None:
        for words, most, condition, values in (
            ("jobs are waiting, the largest number that this service accepts", self.max_queued, "", ()),
            (
                "of your jobs are waiting, the largest number that this service accepts from one token",
                self.max_queued_per_owner,
                " AND owner_key = ?",
                (owner or "",),
            ),
        ):
            waiting = transaction.one(f"SELECT COUNT(*) AS n FROM jobs WHERE state = 'queued'{condition}", *values)
            if most is not None and waiting is not None and waiting["n"] >= most:
                raise QueueFullError(f"{waiting['n']:,} {words}; try again when some have ended")
        if self.is_full():
            raise QueueFullError(
                f"the jobs' records and logs take {self.folder_bytes():,} bytes; the limit is "
                f"{self.max_folder_bytes:,}. Records of ended jobs are removed within a minute; those of waiting and "
                f"running jobs when they have ended"
            )

    def _row(self, job_id: str) -> Row:
        rows = self._database.read("SELECT * FROM jobs WHERE id = ?", job_id)
        if not rows:
            raise unknown_job(job_id)
        return rows[0]

    def _known(self, transaction: Transaction, job_id: str) -> Row:
        row = transaction.one("SELECT * FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise unknown_job(job_id)
        return row

    def _with_progress(self, record: JobRecord) -> JobRecord:
        """Add the latest progress from the event file of a running job."""
        if record.state != "running":
            return record
        latest = latest_progress(self.folder_of(record.id) / "events.jsonl")
        return record if latest is None else replace(record, progress=latest)


def _check_labels(name: str | None, owner: str | None, key: str | None) -> None:
    for label, text in (("name", name), ("owner", owner), ("idempotency key", key)):
        if text is not None and not (0 < len(text) <= LONGEST_NAME and text.isprintable()):
            raise InputError(
                f"the {label} of a job is 1 to {LONGEST_NAME} characters without control characters; got {text[:80]!r}"
            )


def _check_limits(deadline_seconds: float | None, memory_bytes: int | None) -> None:
    if deadline_seconds is not None and not (math.isfinite(deadline_seconds) and deadline_seconds > 0.0):
        raise InputError(f"deadline_seconds: expected a positive number; got {deadline_seconds}")
    if memory_bytes is not None and memory_bytes < 1:
        raise InputError(f"memory_bytes: expected a positive number of bytes; got {memory_bytes}")


def _with_key(transaction: Transaction, owner: str | None, key: str | None) -> Row | None:
    if key is None:
        return None
    return transaction.one("SELECT * FROM jobs WHERE owner_key = ? AND idempotency_key = ?", owner or "", key)


def _same(earlier: Row, request: Mapping[str, Any]) -> JobRecord:
    record = job_record(earlier)
    different = [name for name, value in request.items() if getattr(record, name) != value]
    if different:
        raise JobStateError(
            f"this idempotency key was used for job {record.id}, which has another {_listed(different)}. Use a new key "
            "for a new job"
        )
    return record


def _reserve(transaction: Transaction, job_id: str, outputs: list[str], owner: str | None) -> None:
    """Reserve these places, and all above and below them, for a job until it has ended.

    Places are compared by their resolved names, not by their texts.
    """
    for url in map(resolved, outputs):
        parents = ["/".join(url.split("/")[:count]) for count in range(2, url.count("/") + 1)]
        taken = transaction.one(
            f"SELECT url, job_id FROM outputs WHERE job_id != ? AND (url IN ({_marks([url, *parents])}) "
            "OR (url > ? AND url < ?))",
            job_id,
            url,
            *parents,
            f"{url}/",
            f"{url}0",
        )
        if taken is not None:
            other = transaction.one("SELECT owner FROM jobs WHERE id = ?", taken["job_id"])
            if other is not None and other["owner"] != owner:
                # Whose job, and where exactly, is not for everybody.
                raise JobStateError(
                    f"another user's job writes to '{url}', or to a folder above or below it. Choose another output, "
                    f"or try again later"
                )
            raise JobStateError(
                f"job {taken['job_id']} writes to '{taken['url']}', and two jobs must not write to the same place. "
                f"Wait for it, cancel it, or choose another output"
            )
        transaction.run("INSERT OR REPLACE INTO outputs (url, job_id) VALUES (?, ?)", url, job_id)


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _listed(names: Collection[str]) -> str:
    return " or ".join(name.replace("_", " ") for name in names)


StopReason = Literal["cancel", "deadline", "memory", "stop"]

# Jobs that are tried for a free lock; the lock of a waiting job is held for moments only, while its process ends.
CLAIM_CANDIDATES = 20


_THIS_ATTEMPT = "attempt = ? AND state = 'running'"
# A job that went back to the queue does not count as its owner's last turn: a service that restarts goes on with it.
_IN_TURN = (
    "WITH turns AS (SELECT owner_key, SUM(state = 'running') AS running, MAX(CASE WHEN state <> 'queued' THEN "
    "started_at END) AS latest FROM jobs GROUP BY owner_key) "
    "SELECT id, attempt, memory_bytes, queued_at, waited_seconds FROM jobs JOIN turns USING (owner_key) "
    "WHERE state = 'queued' AND (? IS NULL OR running < ?) ORDER BY running, latest, sequence LIMIT ?"
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
                now = transaction.now()
                begun = {"started": now_text(), "started_at": now, "waited_seconds": waited_seconds(row, now)}
                attempt = {"state": "running", "attempt": row["attempt"] + 1, "service": service}
                empty = dict.fromkeys(("stop", "stop_detail", "dashboard_link"))
                transaction.update(row["id"], {**attempt, **begun, **empty})
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
            stop = {"stop": reason, "stop_detail": detail}
            return bool(transaction.update(job_id, stop, f"{_THIS_ATTEMPT} AND stop IS NULL", attempt))

    def running(self) -> list[RunningJob]:
        """Return the running jobs of all services."""
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
            transaction.update(job_id, {"dashboard_link": link}, _THIS_ATTEMPT, attempt)

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
                    f"the job exceeded its deadline ({_seconds(row, transaction.now()):.0f} seconds); "
                    f"{error['message']}. Resume it to continue, or submit it with a later deadline"
                )
            elif row["stop"] == "memory":
                state, final_error = "failed", {**interruption, "type": "MemoryExceededError"}
                final_error["message"] = (
                    f"the job exceeded its memory limit ({row['stop_detail']}); {error['message']}. Its checkpoint, "
                    f"if there is one, is kept. Submit it again with `resume` and a larger limit, or submit a job "
                    f"that needs less memory (see `dkgp plan`)"
                )
            elif deaths >= self._max_attempts:
                state, final_error = "failed", error
                final_error["message"] = (
                    f"{error['message']}; this happened {deaths} times, so the job is not restarted"
                )
            else:
                state = "queued"
            if final_error is not None:
                self._close(transaction, row, state, int(final_error["exit_code"]), None, final_error)
            else:
                now = transaction.now()
                attempts = {"deaths": deaths, "ran_seconds": _seconds(row, now), "progress": self._progress(job_id)}
                turn = {"state": "queued", "resume": 1, "queued": now_text(), "queued_at": now}
                transaction.update(job_id, {**attempts, **turn, "stop": None, "service": None})
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
        now = transaction.now()
        ended = {"state": state, "exit_code": exit_code, "service": None, "progress": self._progress(row["id"])}
        texts = {"document": document, "error": error}
        written = {name: None if text is None else dump(text, indent=None) for name, text in texts.items()}
        times = {"finished": now_text(), "finished_at": now, "ran_seconds": _seconds(row, now)}
        transaction.update(row["id"], {**ended, **written, **times})
        transaction.run("DELETE FROM outputs WHERE job_id = ?", row["id"])

    def tell(self, job_id: str, kind: str, **content: Any) -> None:
        """Write an event of a job."""
        with closing(EventWriter(self._job_folder(job_id) / "events.jsonl")) as events:
            events.write(kind, **content)

    def _tell_end(
        self, job_id: str, state: State, document: Mapping[str, Any] | None, error: Mapping[str, Any] | None
    ) -> None:
        """Write the last events before the new state is visible."""
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
    return transaction.one(f"SELECT * FROM jobs WHERE id = ? AND {_THIS_ATTEMPT}", job_id, attempt)


def waited_seconds(row: Row, now: float) -> float:
    """Return the seconds that a job in the queue has waited since it was submitted or resumed, all waits together."""
    return float(row["waited_seconds"]) + max(0.0, now - float(row["queued_at"]))


def _seconds(row: Row, now: float) -> float:
    """Seconds of all attempts together, the running one included."""
    return float(row["ran_seconds"]) + max(0.0, now - float(row["started_at"]))
