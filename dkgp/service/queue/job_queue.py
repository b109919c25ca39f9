"""The queue: jobs in one SQLite file, claimed by whoever has room, each held by one lock while it runs.

    FOLDER/queue.sqlite         the jobs
    FOLDER/token                what commands show to the service, where it was given no other
    FOLDER/tokens.json          hashes of others' tokens
    FOLDER/audit.jsonl          who asked for what
    FOLDER/services/ID.lock     held by a service as long as it lives
    FOLDER/jobs/ID/lock         held by a job's process, from before it is `running` until it has ended
    FOLDER/jobs/ID/             events.jsonl, log.txt, and what the attempts leave for each other

A job in the state `running` whose lock is free has died. The folder must lie on a file system of this host: neither
SQLite's write-ahead log nor these locks reach across a network.
"""

from __future__ import annotations

import builtins
import json
import math
import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import InputError
from dkgp.service.queue.database import QueueDatabase, Row, Transaction, prepare_folder
from dkgp.service.queue.events import latest_progress, now_text
from dkgp.service.queue.ledger import Ledger, job_record, waited_seconds
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
    unknown_job,
)
from dkgp.service.queue.sizes import FolderSizes, tree_bytes
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
                transaction.run(
                    "INSERT INTO jobs (id, owner_key, idempotency_key, owner, outputs, state, created, queued, "
                    "queued_at, command, options, name, deadline_seconds, memory_bytes) "
                    "VALUES (?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?)",
                    job_id,
                    owner or "",
                    idempotency_key,
                    owner,
                    json.dumps(outputs),
                    created,
                    created,
                    transaction.now(),
                    command,
                    json.dumps(content),
                    name,
                    deadline_seconds,
                    memory_bytes,
                )
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
                    f"job {job_id} has ended ({row['state']}); only one that waits or runs is cancelled"
                )
            transaction.run("UPDATE jobs SET cancel_requested = 1 WHERE id = ?", job_id)
            if row["state"] == "queued":
                error = {"type": "JobCancelledError", "message": "cancelled before it ran", "exit_code": 130}
                if row["attempt"]:
                    error["message"] = "cancelled while it waited to go on"
                transaction.run(
                    "UPDATE jobs SET state = 'cancelled', exit_code = 130, error = ?, finished = ?, finished_at = ?, "
                    "waited_seconds = ? WHERE id = ?",
                    json.dumps(error),
                    now_text(),
                    transaction.now(),
                    waited_seconds(row, transaction.now()),
                    job_id,
                )
                transaction.run("DELETE FROM outputs WHERE job_id = ?", job_id)
                self.ledger.tell(job_id, "state", state="cancelled")
        return self.get(job_id)

    def resume(self, job_id: str) -> JobRecord:
        """Queue a job again that ended short of its goal, to go on from what it left.

        `JobStateError` where it has not ended, is done, or another job writes to the same place now; `QueueFullError`.
        """
        with self._database.write() as transaction:
            row = self._known(transaction, job_id)
            if row["state"] not in RESUMABLE:
                raise JobStateError(
                    f"job {job_id} is {row['state'].replace('_', ' ')}; only one that is {_listed(RESUMABLE)} can be "
                    "resumed"
                )
            self._require_room(transaction, row["owner"])
            _reserve(transaction, job_id, json.loads(row["outputs"]), row["owner"])
            transaction.run(
                "UPDATE jobs SET state = 'queued', resume = 1, generation = generation + 1, deaths = 0, "
                "ran_seconds = 0, waited_seconds = 0, queued = ?, queued_at = ?, stop = NULL, cancel_requested = 0, "
                "finished = NULL, finished_at = NULL, exit_code = NULL, error = NULL, document = NULL WHERE id = ?",
                now_text(),
                transaction.now(),
                job_id,
            )
            self.ledger.tell(job_id, "state", state="queued")
        return self.get(job_id)

    def claim(self) -> JobRecord | None:
        """Make the next job `running` and return it; None if none waits. See `Ledger.claim` for the order.

        Its process has to take the job's lock by itself; `Supervisor` claims with the lock in hand.
        """
        claimed = self.ledger.claim()
        if claimed is None:
            return None
        claimed.lock.release()
        return claimed.record

    def folder_of(self, job_id: str) -> Path:
        """Return the folder of a job's own files."""
        return self.folder / "jobs" / job_id

    def prune(self, keep_seconds: float) -> int:
        """Forget the jobs that ended so long ago, their events and logs, but never what they wrote; return how many.

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
        """Return what the records and the jobs' own folders take; of the folders, as of some seconds ago."""
        return self._sizes.total() + self._database.used_bytes()

    def is_full(self) -> bool:
        """True if the records and the jobs' own folders take as much as they may."""
        return self.max_folder_bytes is not None and self.folder_bytes() >= self.max_folder_bytes

    def _forget(self, job_id: str) -> int:
        """Remove an ended job's row, whose process is not on its way out any more; return how many that were."""
        if not FileLock.is_free(self.folder_of(job_id) / "lock"):
            return 0
        with self._database.write() as transaction:
            return transaction.run(
                f"DELETE FROM jobs WHERE id = ? AND state IN ({_marks(TERMINAL)})", job_id, *TERMINAL
            )

    def _remove_orphans(self) -> None:
        """Remove the folders of jobs that are forgotten, or were never recorded."""
        # A job is recorded and its folder made in one such transaction: none is under way here.
        with self._database.write() as transaction:
            known = {row["id"] for row in transaction.all("SELECT id FROM jobs")}
            orphans = [path for path in (self.folder / "jobs").iterdir() if path.name not in known]
        for path in orphans:
            shutil.rmtree(path, ignore_errors=True)

    def _require_room(self, transaction: Transaction, owner: str | None) -> None:
        for words, most, condition, values in (
            ("jobs wait already, as many as this service takes", self.max_queued, "", ()),
            (
                "of your jobs wait already, as many as this service takes of one token",
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
                f"the jobs' records and logs take {self.folder_bytes():,} bytes, and may take {self.max_folder_bytes:,}"
                "; ended jobs make room within a minute, and those that wait or run when they have ended"
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
        """While a job runs its event file knows more than its row."""
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
    """Keep every other job away from these places, and from what is above and below them, till this one has ended.

    Places are compared as what they are now, not by their texts.
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
                    f"somebody else's job is to write to '{url}', or above or below it; two jobs must not write to one "
                    "place. Choose another output, or try again later"
                )
            raise JobStateError(
                f"job {taken['job_id']} is to write to '{taken['url']}'; two jobs must not write to one place. Wait "
                "for it, cancel it, or choose another output"
            )
        transaction.run("INSERT OR REPLACE INTO outputs (url, job_id) VALUES (?, ?)", url, job_id)


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _listed(names: Collection[str]) -> str:
    return " or ".join(name.replace("_", " ") for name in names)
