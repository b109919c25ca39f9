"""Whose job is next: turns between owners, memory; and how long jobs waited."""

from __future__ import annotations

from typing import Any

import pytest

from dkgp.service.queue import database
from dkgp.service.queue.job_queue import JobQueue, MemoryRoom


def submit(queue: JobQueue, name: str, owner: str, **more: Any) -> str:
    options = {"dataset": "/data/train.zarr", "out": f"/data/{name}.json"}
    return queue.submit("tune", options, name=name, owner=owner, **more)[0].id


def claimed(queue: JobQueue, **limits: Any) -> str | None:
    claim = queue.ledger.claim("service", **limits)
    if claim is None:
        return None
    claim.lock.release()
    return claim.record.name


def finish(queue: JobQueue) -> None:
    for job in queue.ledger.running():
        queue.ledger.finish(job.id, job.attempt, "done", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The queue's time, which only a test moves."""
    seconds = [1000.0]
    monkeypatch.setattr(database, "_time", lambda clock: seconds[0])
    return seconds


def test_owners_take_turns(queue: JobQueue, clock: list[float]) -> None:
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        submit(queue, name, name[0])
    order = []
    while (name := claimed(queue, limit=1)) is not None:
        order.append(name)
        clock[0] += 1.0
        finish(queue)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_running_jobs_are_shared_out_between_owners(queue: JobQueue, clock: list[float]) -> None:
    for name in ("a1", "a2", "a3", "b1", "b2", "b3"):
        submit(queue, name, name[0])
    order = []
    while (name := claimed(queue, limit=4)) is not None:
        order.append(name)
        clock[0] += 1.0
    assert order == ["a1", "b1", "a2", "b2"]
    # Two of b's end: b has fewer than a.
    for job in queue.ledger.running():
        if queue.get(job.id).owner == "b":
            queue.ledger.finish(job.id, job.attempt, "done", 0)
    assert claimed(queue, limit=4) == "b3"
    assert claimed(queue, limit=4, limit_per_owner=2) is None


def test_a_restarted_service_goes_on_with_the_job_that_ran(queue: JobQueue, clock: list[float]) -> None:
    for name in ("a1", "b1", "a2"):
        submit(queue, name, name[0])
    assert claimed(queue, limit=1) == "a1"
    clock[0] += 1.0
    job = queue.ledger.running()[0]
    queue.ledger.mark_stop(job.id, job.attempt, "stop")
    assert queue.ledger.interrupted(job.id, job.attempt, {"message": "asked to end"}) == "queued"
    assert claimed(queue, limit=1) == "a1"
    finish(queue)
    assert claimed(queue, limit=1) == "b1"


def test_jobs_start_when_their_memory_is_free(queue: JobQueue) -> None:
    room = MemoryRoom(job_bytes=8, total_bytes=10)
    first = submit(queue, "a1", "a", memory_bytes=2)
    for name, n_bytes in (("b1", 6), ("c1", None), ("d1", 1)):
        submit(queue, name, name[0], memory_bytes=n_bytes)
    assert [claimed(queue, memory=room) for _ in range(3)] == ["a1", "b1", None]
    # 6 and 8 are more than 10; d's job, which would fit, does not overtake.
    queue.ledger.finish(first, 1, "done", 0)
    assert claimed(queue, memory=room) is None
    finish(queue)
    assert [claimed(queue, memory=room) for _ in range(3)] == ["c1", "d1", None]
    assert MemoryRoom(job_bytes=20, total_bytes=10).fits(None, [])


def test_waits_and_attempts_are_counted_together(queue: JobQueue, clock: list[float]) -> None:
    job = submit(queue, "a1", "a")
    clock[0] += 10.0
    assert queue.get(job).waited_seconds == 0.0
    claimed(queue)
    clock[0] += 100.0
    queue.ledger.died(job, 1, "was killed")
    back = queue.get(job)
    assert (back.state, back.waited_seconds, back.ran_seconds) == ("queued", 10.0, 100.0)
    assert back.queued is not None
    assert back.queued >= back.created
    clock[0] += 5.0
    claimed(queue)
    clock[0] += 20.0
    queue.ledger.finish(job, 2, "failed", 1)
    ended = queue.get(job)
    assert (ended.waited_seconds, ended.ran_seconds) == (15.0, 120.0)
    queue.resume(job)
    clock[0] += 3.0
    assert queue.request_cancel(job).waited_seconds == 3.0
    assert queue.list()[0].bare().waited_seconds == 3.0
