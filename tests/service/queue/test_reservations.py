"""Two jobs under way never write to one place, however they spell it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobStateError


def submit(queue: JobQueue, out: str) -> str:
    return queue.submit("tune", {"dataset": "/d.zarr", "out": out})[0].id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path.resolve()
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    (base / "round").symlink_to(base / "link")
    return base


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("BASE/real/x.json", "BASE/link/x.json"),
        ("BASE/round/x.json", "BASE/real/x.json"),
        ("BASE/real/x.json", "file://BASE/real/x.json"),
        ("BASE/real/x.json", "BASE//real/./x.json/"),
        ("BASE/real", "BASE/round/x.json"),
        ("BASE/link/a/b", "BASE/real/a"),
        ("s3://bucket/x.json", "s3a://bucket/x.json"),
        ("s3a://bucket/a/", "s3://bucket/a/b.json"),
        ("gs://bucket/x.json", "gcs://bucket/x.json"),
        ("az://c/x.json", "abfs://c@account/x.json"),
    ],
)
def test_one_place_by_two_names_is_refused(queue: JobQueue, folder: Path, first: str, second: str) -> None:
    first, second = (text.replace("BASE", str(folder)) for text in (first, second))
    job_id = submit(queue, first)
    with pytest.raises(JobStateError, match=f"job {job_id} is to write to"):
        submit(queue, second)
    queue.request_cancel(job_id)
    second_id = submit(queue, second)
    with pytest.raises(JobStateError, match=f"job {second_id} is to write to"):
        queue.resume(job_id)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("BASE/real/x.json", "BASE/real/y.json"),
        ("BASE/real/x", "BASE/real/x.json"),
        ("s3://bucket/x.json", "gs://bucket/x.json"),
        ("s3://bucket/x.json", "s3://other/x.json"),
    ],
)
def test_two_places_are_two(queue: JobQueue, folder: Path, first: str, second: str) -> None:
    for text in (first, second):
        submit(queue, text.replace("BASE", str(folder)))
    assert queue.counts()["queued"] == 2


def test_places_that_an_earlier_version_kept_by_their_spelling_are_kept(tmp_path: Path, folder: Path) -> None:
    queue = JobQueue(tmp_path / "queue")
    job_id = submit(queue, f"{folder}/real/x.json")
    queue.close()
    with sqlite3.connect(tmp_path / "queue" / "queue.sqlite") as database:
        database.execute("UPDATE outputs SET url = ?", (f"{folder}/link/x.json",))
        database.execute("DROP INDEX jobs_by_owner")
        for column in ("memory_bytes", "stop_detail", "queued", "queued_at", "waited_seconds"):
            database.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        database.execute("DROP TABLE clock")
        database.execute("PRAGMA user_version = 1")
    database.close()
    queue = JobQueue(tmp_path / "queue")
    with pytest.raises(JobStateError, match=job_id):
        submit(queue, f"{folder}/real/x.json")
    queue.close()
