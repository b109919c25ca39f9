"""Quotas of a queue: jobs that wait of one owner, bytes of the jobs' own folders, and the memory of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dkgp.errors import InputError
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord, JobStateError, QueueFullError, UnknownJobError


def submit(queue: JobQueue, number: int = 0, **more: Any) -> JobRecord:
    return queue.submit("tune", {"dataset": "/d.zarr", "out": f"/out-{number}.json"}, **more)[0]


def test_one_owner_does_not_fill_the_queue(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "queue", max_queued=5, max_queued_per_owner=2)
    for number in range(2):
        submit(queue, number, owner="alice")
    with pytest.raises(QueueFullError, match="2 of your jobs wait already"):
        submit(queue, 2, owner="alice")
    submit(queue, 3, owner="bob")
    assert queue.counts()["queued"] == 3
    queue.claim()
    submit(queue, 4, owner="alice")
    queue.close()


def test_a_folder_that_is_full_takes_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.service.queue.database.FRESH_SECONDS", -1.0)
    queue = JobQueue(tmp_path / "queue", max_folder_bytes=500_000)
    first, running = submit(queue), submit(queue, 1)
    for job_id in (first.id, running.id):
        (queue.folder_of(job_id) / "log.txt").write_bytes(b"x" * 500_000)
        queue.claim()
    with pytest.raises(QueueFullError, match="may take 500,000"):
        submit(queue, 2)
    assert queue.prune_to(500_000) == 0  # both run
    queue.ledger.finish(first.id, 1, "done", 0)
    assert queue.prune_to(500_000) == 1
    assert [record.id for record in queue.list()] == [running.id]
    assert queue.is_full()
    queue.close()


def test_records_count_as_well_as_folders(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "queue", max_folder_bytes=2 * 10**6)
    empty, options = queue.folder_bytes(), {"dataset": "/d.zarr", "fixed": [f"gamma.{n:080}=1" for n in range(9_000)]}
    ids = [queue.submit("tune", {**options, "out": f"/out-{number}.json"})[0].id for number in range(3)]
    assert 2_400_000 < queue.folder_bytes() - empty < 3_200_000
    with pytest.raises(QueueFullError, match="may take 2,000,000"):
        submit(queue, 4)
    for job_id in ids:
        queue.request_cancel(job_id)
    assert queue.prune_to(2 * 10**6) == 1
    assert queue.folder_bytes() < 2 * 10**6
    assert [record.id for record in queue.list()] == ids[:0:-1]
    submit(queue, 4)
    queue.close()


def test_lists_leave_out_what_may_be_long(queue: JobQueue) -> None:
    job = submit(queue, owner="alice", name="nightly")
    (listed,) = queue.list()
    assert listed == replace(job, options={})
    assert queue.get(job.id).options == {"dataset": "/d.zarr", "out": "/out-0.json"}
    queue.claim()
    assert queue.ledger.finish(job.id, 1, "done", 0, document={"command": "tune"})
    assert queue.list()[0].document is None
    assert queue.get(job.id).document == {"command": "tune"}


def test_of_one_owner_the_latest_jobs_are_remembered(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.service.queue.job_queue.MOST_ENDED_PER_OWNER", 2)
    numbers = {"alice": range(4), "bob": range(4, 8)}
    ids = {owner: [submit(queue, number, owner=owner).id for number in numbers[owner]] for owner in numbers}
    for job_id in [*ids["alice"], *ids["bob"][:2]]:
        queue.request_cancel(job_id)
    assert queue.prune(3600.0) == 2
    assert {record.id for record in queue.list()} == {*ids["alice"][2:], *ids["bob"]}
    assert queue.prune(float("inf")) == 0
    assert queue.has_ended(ids["bob"][0])
    assert not queue.has_ended(ids["bob"][3])
    with pytest.raises(UnknownJobError):
        queue.has_ended(ids["alice"][0])


def test_memory_is_kept_with_the_job_and_a_key_tells_jobs_apart_by_it(queue: JobQueue) -> None:
    job = submit(queue, memory_bytes=2**30, idempotency_key="k")
    assert queue.get(job.id).memory_bytes == 2**30
    with pytest.raises(JobStateError, match="another memory bytes"):
        submit(queue, memory_bytes=2**31, idempotency_key="k")
    with pytest.raises(InputError, match="positive number of bytes"):
        submit(queue, 1, memory_bytes=0)
