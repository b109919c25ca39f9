"""Quotas of a queue: jobs that wait of one owner, bytes of the jobs' own folders, and the memory of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dkgp.errors import InputError
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord, JobStateError, QueueFullError


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
    monkeypatch.setattr("dkgp.service.queue.sizes.FRESH_SECONDS", -1.0)
    queue = JobQueue(tmp_path / "queue", max_folder_bytes=5000)
    first, running = submit(queue), submit(queue, 1)
    for job_id in (first.id, running.id):
        (queue.folder_of(job_id) / "log.txt").write_bytes(b"x" * 5000)
        queue.claim()
    with pytest.raises(QueueFullError, match="may take 5,000"):
        submit(queue, 2)
    assert queue.prune_to(5000) == 0  # both run
    queue.ledger.finish(first.id, 1, "done", 0)
    assert queue.prune_to(5000) == 1
    assert [record.id for record in queue.list()] == [running.id]
    assert queue.is_full()
    queue.close()


def test_memory_is_kept_with_the_job_and_a_key_tells_jobs_apart_by_it(queue: JobQueue) -> None:
    job = submit(queue, memory_bytes=2**30, idempotency_key="k")
    assert queue.get(job.id).memory_bytes == 2**30
    with pytest.raises(JobStateError, match="another memory bytes"):
        submit(queue, memory_bytes=2**31, idempotency_key="k")
    with pytest.raises(InputError, match="positive number of bytes"):
        submit(queue, 1, memory_bytes=0)
