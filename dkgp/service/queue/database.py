"""The queue's SQLite file: place, schema, short transactions, SQLite's errors in words; and the folder's size."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import InputError, StorageError, StoreError
from dkgp.service.roots import OutsideRootsError, resolved

Row = sqlite3.Row

SCHEMA_VERSION = 4
# "dkgp", so that another program's database is not taken for a queue.
APPLICATION_ID = 0x646B6770
BUSY_SECONDS = 30.0

_OWN_NAMES = {
    "queue.sqlite",
    "queue.sqlite-wal",
    "queue.sqlite-shm",
    "cluster.json",
    "token",
    "tokens.json",
    "audit.jsonl",
    "certificate.pem",
    "certificate-key.pem",
    "jobs",
    "services",
    "lost+found",
}

_OLDER_AUDIT = re.compile(r"audit\.\d\.jsonl")

# The queue's time, and the machine's uptime at which it was that.
_CLOCK = "CREATE TABLE clock (seconds REAL NOT NULL, boot TEXT NOT NULL, uptime REAL NOT NULL)"
# Covers the look at whose turn it is, which reads every row.
_BY_OWNER = "CREATE INDEX jobs_by_owner ON jobs (owner_key, state, started_at)"
_SCHEMA = f"""
{_CLOCK};
CREATE TABLE jobs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    command TEXT NOT NULL,
    options TEXT NOT NULL,
    name TEXT,
    owner TEXT,
    owner_key TEXT NOT NULL,
    idempotency_key TEXT,
    outputs TEXT NOT NULL,
    state TEXT NOT NULL,
    created TEXT NOT NULL,
    started TEXT,
    finished TEXT,
    finished_at REAL,
    attempt INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    resume INTEGER NOT NULL DEFAULT 0,
    service TEXT,
    stop TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    deadline_seconds REAL,
    started_at REAL,
    ran_seconds REAL NOT NULL DEFAULT 0,
    exit_code INTEGER,
    error TEXT,
    document TEXT,
    progress TEXT,
    dashboard_link TEXT,
    memory_bytes INTEGER,
    stop_detail TEXT,
    queued TEXT,
    queued_at REAL,
    waited_seconds REAL NOT NULL DEFAULT 0
);
CREATE INDEX jobs_by_state ON jobs (state, sequence);
{_BY_OWNER};
CREATE UNIQUE INDEX jobs_by_key ON jobs (owner_key, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE outputs (url TEXT PRIMARY KEY, job_id TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX outputs_by_job ON outputs (job_id);
"""

# Statements that turn a queue of a version into one of the next.
_UPGRADES = {
    1: ("ALTER TABLE jobs ADD COLUMN memory_bytes INTEGER", "ALTER TABLE jobs ADD COLUMN stop_detail TEXT"),
    2: (_CLOCK,),
    3: (
        "ALTER TABLE jobs ADD COLUMN queued TEXT",
        "ALTER TABLE jobs ADD COLUMN queued_at REAL",
        "ALTER TABLE jobs ADD COLUMN waited_seconds REAL NOT NULL DEFAULT 0",
        # The wait before the last attempt, as earlier versions counted it; 2440587.5 is the Julian day of 1970.
        "UPDATE jobs SET queued = created, queued_at = (julianday(created) - 2440587.5) * 86400, waited_seconds = "
        "CASE WHEN state = 'queued' THEN 0 ELSE coalesce((julianday(started) - julianday(created)) * 86400, 0) END",
        _BY_OWNER,
    ),
}


def prepare_folder(folder: Path) -> Path:
    """Make the queue's folder, readable by its owner alone, or check that the folder is one.

    `InputError` where something else is there, `StorageError` where it cannot be written to.
    """
    folder = folder.expanduser().absolute()
    with translate_write_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"the queue needs a folder; '{folder}' is a file")
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.name not in _OWN_NAMES
            and not entry.name.startswith(".")
            and not _OLDER_AUDIT.fullmatch(entry.name)
        )
        if foreign:
            raise InputError(
                f"'{folder}' is no queue: it holds {foreign[0]!r}{' and other files' if len(foreign) > 1 else ''}. "
                "Name a folder that is new or empty, or one that a service has used before"
            )
        # A volume's root may belong to somebody else, who has set its permissions.
        with contextlib.suppress(PermissionError):
            os.chmod(folder, 0o700)
        for name in ("jobs", "services"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
    return folder


class Transaction:
    """One transaction under way."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement; return how many rows it changed."""
        return self._connection.execute(statement, values).rowcount

    def insert(self, table: str, columns: Mapping[str, Any]) -> None:
        """Add a row."""
        marks = ", ".join("?" * len(columns))
        self.run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", *columns.values())

    def update(self, job_id: str, columns: Mapping[str, Any], condition: str = "1 = 1", *values: Any) -> int:
        """Set columns of a job's row if the condition holds for it; return the number of changed rows."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE jobs SET {assignments} WHERE id = ? AND {condition}"
        return self.run(statement, *columns.values(), job_id, *values)

    def one(self, statement: str, *values: Any) -> Row | None:
        """Return the first row, or None."""
        row: Row | None = self._connection.execute(statement, values).fetchone()
        return row

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Return all rows."""
        return self._connection.execute(statement, values).fetchall()

    def now(self) -> float:
        """Return the queue's time, as of `QueueDatabase.now`."""
        return _time(self.one("SELECT * FROM clock"))

    def wind_clock(self) -> None:
        """Note the queue's time, which goes on from there once the machine has started anew."""
        row, boot, uptime = self.one("SELECT * FROM clock"), _boot(), time.monotonic()
        if row is None:
            self.insert("clock", {"seconds": time.time(), "boot": boot, "uptime": uptime})
        else:
            seconds = _time(row) if row["boot"] == boot else row["seconds"]
            self.run("UPDATE clock SET seconds = ?, boot = ?, uptime = ?", seconds, boot, uptime)


class QueueDatabase:
    """One connection, shared by the threads of this process in turn; every transaction is short."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.RLock()
        with self._translated():
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self._connection.close()

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction that holds the write lock from its beginning; an error inside takes all of it back."""
        with self._turn, self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back by itself, and then there is nothing to take back.
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, statement: str, *values: Any) -> list[Row]:
        """Return the rows of one query."""
        with self._turn, self._translated():
            return Transaction(self._connection).all(statement, *values)

    def used_bytes(self) -> int:
        """Return the bytes that the records take; space that forgotten jobs left in the file is used again."""
        pragmas = ("page_count", "freelist_count", "page_size")
        pages, free, size = (int(self.read(f"PRAGMA {name}")[0][0]) for name in pragmas)
        return (pages - free) * size

    def now(self) -> float:
        """Return the queue's time in seconds, which goes on while the machine runs.

        It begins as the time of day, but no change of the machine's clock moves it: neither deadlines nor the time for
        which jobs are remembered depend on that. While the machine is off, it stands still.
        """
        return _time(self.read("SELECT * FROM clock")[0])

    def _open(self) -> None:
        self._use_write_ahead_log()
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        with self.write() as transaction:
            version, application = self._pragma("user_version"), self._pragma("application_id")
            if version == 0 and application == 0 and transaction.one("SELECT name FROM sqlite_master") is None:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    transaction.run(statement)
                transaction.run(f"PRAGMA application_id = {APPLICATION_ID}")
                transaction.run(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif application != APPLICATION_ID:
                raise InputError(f"'{self._path}' is a database of another program; name another folder")
            elif version in _UPGRADES:
                for earlier in range(version, SCHEMA_VERSION):
                    for statement in _UPGRADES[earlier]:
                        transaction.run(statement)
                _resolve_outputs(transaction)
                transaction.run(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise InputError(
                    f"the queue '{self._path}' has the format {version}; this version of dkgp reads {SCHEMA_VERSION}. "
                    "Use the version that wrote it, or another folder"
                )
            transaction.wind_clock()

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _use_write_ahead_log(self) -> None:
        # The change needs the file for itself for a moment, and SQLite does not wait for that.
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= until:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"Cannot use the queue '{self._path}': {error}; free some disk space, or check that the "
                "folder is writable and that no other program locks it."
            ) from error
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except sqlite3.DatabaseError as error:
            raise StoreError(f"The queue '{self._path}' is damaged: {error}. Start with a new folder.") from error


def _time(clock: Row | None) -> float:
    if clock is None:
        raise AssertionError("the queue's clock is wound when it is opened")
    return float(clock["seconds"]) + max(0.0, time.monotonic() - float(clock["uptime"]))


@cache
def _boot() -> str:
    """Return the id of the machine's current boot, from which `time.monotonic` counts in every process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _resolve_outputs(transaction: Transaction) -> None:
    """Replace reserved places by their resolved names; version 1 stored them as spelled."""
    for row in transaction.all("SELECT url FROM outputs"):
        # An ambiguous place stays as it is.
        with contextlib.suppress(OutsideRootsError):
            transaction.run("UPDATE OR REPLACE outputs SET url = ? WHERE url = ?", resolved(row["url"]), row["url"])


# A folder of ten thousand jobs takes a fifth of a second to look at.
FRESH_SECONDS = 10.0


def tree_bytes(folder: Path) -> int:
    """Return the bytes of a folder's files, links not followed; files that go meanwhile count as nothing."""
    total, remaining = 0, [str(folder)]
    while remaining:
        try:
            with os.scandir(remaining.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        remaining.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


class FolderSizes:
    """Bytes in a folder, remembered for some seconds. Safe between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Lock()
        self._bytes, self._looked_at = 0, float("-inf")

    def total(self, *, newest: bool = False) -> int:
        """Return the bytes, as of `FRESH_SECONDS` ago at most; of now for the `newest`."""
        with self._turn:
            if newest or time.monotonic() - self._looked_at > FRESH_SECONDS:
                self._bytes, self._looked_at = tree_bytes(self._folder), time.monotonic()
            return self._bytes
