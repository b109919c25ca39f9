"""The queue: jobs kept, claimed and ended; quotas; reserved places; turns between owners and memory."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dkgp.errors import InputError, StorageError, StoreError, UsageError
from dkgp.service.queue import database
from dkgp.service.queue.events import EventReader
from dkgp.service.queue.job_queue import JobQueue, MemoryRoom
from dkgp.service.queue.locks import FileLock
from dkgp.service.queue.records import JobRecord, JobStateError, QueueFullError, UnknownJobError
from tests.service.problem import claim


def tuning(number: int = 0) -> dict[str, Any]:
    return {"dataset": "/data/train.zarr", "out": f"/data/hyper-{number}.json"}


def submit(queue: JobQueue, number: int = 0, **more: Any) -> JobRecord:
    return queue.submit("tune", tuning(number), **more)[0]


def told(queue: JobQueue, job_id: str) -> list[str]:
    events = EventReader(queue.folder_of(job_id) / "events.jsonl").read()
    return [event["state"] for event in events if event["kind"] == "state"]


def test_a_new_job_is_kept_across_openings_with_defaults_left_out(queue: JobQueue) -> None:
    options = {**tuning(), "subset": 2000, "restarts": 3}
    record, is_new = queue.submit("tune", options, name="first", owner="ada", deadline_seconds=60.0)
    assert is_new
    assert len(record.id) == 12
    assert record.options == {**tuning(), "restarts": 3}
    assert (record.state, record.attempt, record.resume) == ("queued", 0, False)
    assert record.created.endswith("+00:00")
    assert JobQueue(queue.folder).get(record.id) == record
    assert JobRecord(**record.to_json()) == record
    assert told(queue, record.id) == ["queued"]


def test_folders_are_their_owners_alone(queue: JobQueue) -> None:
    record = submit(queue)
    for folder in (queue.folder, queue.folder / "jobs", queue.folder_of(record.id)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_options_that_do_not_validate_leave_nothing(queue: JobQueue) -> None:
    with pytest.raises(UsageError, match="subset"):
        queue.submit("tune", {**tuning(), "subset": "many"})
    with pytest.raises(InputError, match="deadline_seconds"):
        submit(queue, deadline_seconds=0.0)
    with pytest.raises(InputError, match="name of a job"):
        submit(queue, name="two\nlines")
    assert queue.counts()["queued"] == 0
    assert list((queue.folder / "jobs").iterdir()) == []


def test_jobs_are_claimed_in_their_order_and_listed_newest_first(queue: JobQueue) -> None:
    ids = [submit(queue, number).id for number in range(5)]
    assert [record.id for record in queue.list()] == ids[::-1]
    page = queue.list(limit=2)
    assert [record.id for record in queue.list(limit=2, before=page[-1].id)] == ids[2:0:-1]
    claimed = claim(queue)
    assert (claimed.id, claimed.state, claimed.attempt) == (ids[0], "running", 1)
    assert [record.id for record in queue.list(states=("running",))] == [ids[0]]
    assert queue.counts() == {
        "queued": 4,
        "running": 1,
        "done": 0,
        "not_converged": 0,
        "failed": 0,
        "cancelled": 0,
    }
    second = claim(queue)
    assert second.id == ids[1]


def test_a_claim_holds_the_lock_and_keeps_to_the_limit(queue: JobQueue) -> None:
    ids = [submit(queue, number).id for number in range(3)]
    claim = queue.ledger.claim("service", limit=1)
    assert claim is not None
    assert not FileLock.is_free(queue.folder_of(ids[0]) / "lock")
    assert queue.ledger.claim("service", limit=1) is None
    # A job whose last process is on its way out still is passed over.
    held = FileLock.acquire(queue.folder_of(ids[1]) / "lock")
    assert held is not None
    third = queue.ledger.claim("service", limit=2)
    assert third.record.id == ids[2]
    for lock in (claim.lock, held, third.lock):
        lock.release()


def test_a_job_whose_folder_was_tidied_away_does_not_hold_up_the_queue(queue: JobQueue) -> None:
    job = submit(queue)
    shutil.rmtree(queue.folder_of(job.id))
    claimed = claim(queue)
    assert claimed is not None
    assert queue.ledger.finish(job.id, 1, "done", 0)
    assert told(queue, job.id) == ["done"]


def test_a_key_makes_one_job_for_each_owner(queue: JobQueue) -> None:
    first = submit(queue, owner="ada", idempotency_key="k")
    assert queue.submit("tune", tuning(), owner="ada", idempotency_key="k") == (first, False)
    assert queue.submit("tune", {**tuning(), "subset": 2000}, owner="ada", idempotency_key="k") == (first, False)
    with pytest.raises(JobStateError, match=f"{first.id}, which has another options"):
        submit(queue, 1, owner="ada", idempotency_key="k")
    assert submit(queue, 2, owner="bob", idempotency_key="k").id != first.id
    assert submit(queue, 3, idempotency_key="k").id != first.id


def test_two_jobs_do_not_write_to_one_place(queue: JobQueue) -> None:
    first = submit(queue)
    for out in ("/data/hyper-0.json", "/data/./hyper-0.json", "/data/hyper-0.json/inside", "/data"):
        with pytest.raises(JobStateError, match=f"job {first.id} writes"):
            queue.submit("tune", {**tuning(), "out": out})
    # A neighbour whose name begins the same is another place.
    queue.submit("tune", {**tuning(), "out": "/data/hyper-0.json.old"})
    # The default place of a training's checkpoints counts too.
    training = {"dataset": "/d", "hyper": "/h", "out": "/data/model"}
    other, _ = queue.submit("train", training)
    with pytest.raises(JobStateError, match=other.id):
        queue.submit("tune", {**tuning(), "out": "/data/model.checkpoint"})
    queue.request_cancel(first.id)
    assert queue.submit("tune", tuning())[1]
    with pytest.raises(JobStateError, match="writes to"):
        queue.resume(first.id)
    assert queue.get(first.id).state == "cancelled"


def test_a_full_queue_takes_no_more(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "small", max_queued=2)
    first = submit(queue, 0, idempotency_key="k")
    submit(queue, 1)
    with pytest.raises(QueueFullError, match="2 jobs are waiting"):
        submit(queue, 2)
    assert submit(queue, 0, idempotency_key="k") == first
    claim(queue)
    submit(queue, 2)


def test_the_end_is_recorded_by_the_attempt_that_runs_alone(queue: JobQueue) -> None:
    job = submit(queue)
    claim(queue)
    assert not queue.ledger.finish(job.id, 2, "done", 0)
    assert queue.ledger.finish(job.id, 1, "done", 0, document={"command": "tune", "value": 1.5})
    assert not queue.ledger.finish(job.id, 1, "failed", 3)
    assert queue.ledger.died(job.id, 1, "killed") is None
    record = queue.get(job.id)
    assert (record.state, record.exit_code, record.document) == ("done", 0, {"command": "tune", "value": 1.5})
    assert record.finished is not None
    kinds = [event["kind"] for event in EventReader(queue.folder_of(job.id) / "events.jsonl").read()]
    assert kinds == ["state", "document", "state"]
    assert queue.submit("tune", tuning())[1]  # its place is free again


def test_a_job_that_died_is_first_in_the_queue_again_but_not_for_ever(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "queue", max_attempts=3)
    job, other = submit(queue, 0), submit(queue, 1)
    for attempt in (1, 2):
        claimed = claim(queue)
        assert (claimed.id, claimed.attempt, claimed.resume) == (job.id, attempt, attempt > 1)
        assert queue.ledger.died(job.id, attempt, "the process was killed by SIGKILL") == "queued"
    claim(queue)
    assert queue.ledger.died(job.id, 3, "the process was killed by SIGKILL") == "failed"
    record = queue.get(job.id)
    assert record.error["type"] == "JobDiedError"
    assert "SIGKILL; this happened 3 times" in record.error["message"]
    assert queue.resume(job.id).state == "queued"
    claimed = claim(queue)
    assert claimed.id == job.id != other.id
    assert queue.ledger.died(job.id, 4, "again") == "queued"  # the count began anew


def test_an_interruption_means_what_was_asked_for(queue: JobQueue) -> None:
    error = {"type": "InterruptedRunError", "message": "state saved", "exit_code": 130, "checkpoint": "/c"}
    states = {}
    for number, reason in enumerate((None, "stop", "cancel", "deadline")):
        job = submit(queue, number)
        while (claimed := claim(queue)) is not None and claimed.id != job.id:
            queue.ledger.finish(claimed.id, claimed.attempt, "done", 0)
        assert claimed is not None
        if reason is not None:
            assert queue.ledger.mark_stop(job.id, 1, reason)  # type: ignore[arg-type]
            assert not queue.ledger.mark_stop(job.id, 1, "stop")
        states[reason] = queue.ledger.interrupted(job.id, 1, error)
        record = queue.get(job.id)
        if reason in ("cancel", "deadline"):
            assert record.error["checkpoint"] == "/c"
            assert record.exit_code == 130
        if reason == "deadline":
            assert record.error["type"] == "DeadlineExceededError"
            assert "exceeded its deadline" in record.error["message"]
    assert states == {None: "queued", "stop": "queued", "cancel": "cancelled", "deadline": "failed"}


def test_cancelling_waits_for_a_running_job_and_outlives_its_death(queue: JobQueue) -> None:
    job = submit(queue)
    claim(queue)
    record = queue.request_cancel(job.id)
    assert (record.state, record.cancel_requested) == ("running", True)
    assert queue.ledger.died(job.id, 1, "killed") == "cancelled"
    with pytest.raises(JobStateError, match="has ended"):
        queue.request_cancel(job.id)
    resumed = queue.resume(job.id)
    assert (resumed.state, resumed.resume, resumed.cancel_requested, resumed.error) == ("queued", True, False, None)
    assert queue.request_cancel(job.id).state == "cancelled"
    assert told(queue, job.id) == ["queued", "cancelled", "queued", "cancelled"]


def test_only_what_ended_short_is_resumed(queue: JobQueue) -> None:
    job = submit(queue)
    for state in ("queued", "running", "done"):
        with pytest.raises(JobStateError, match=f"{job.id} is {state}"):
            queue.resume(job.id)
        if state == "queued":
            claim(queue)
        else:
            queue.ledger.finish(job.id, 1, "done", 0)
    with pytest.raises(UnknownJobError, match="no job 'ffffffffffff'"):
        queue.resume("ffffffffffff")
    with pytest.raises(UnknownJobError):
        queue.list(before="ffffffffffff")


def test_forgetting_takes_ended_jobs_and_their_folders_alone(queue: JobQueue, tmp_path: Path) -> None:
    output = tmp_path / "hyper.json"
    output.write_text("{}")
    ended, _ = queue.submit("tune", {**tuning(), "out": str(output)})
    waiting = submit(queue, 1)
    claim(queue)
    queue.ledger.finish(ended.id, 1, "done", 0)
    assert queue.prune(keep_seconds=3600.0) == 0
    held = FileLock.acquire(queue.folder_of(ended.id) / "lock")
    assert queue.prune(keep_seconds=0.0) == 0  # its process has not ended yet
    held.release()
    assert queue.prune(keep_seconds=0.0) == 1
    assert [record.id for record in queue.list()] == [waiting.id]
    assert [path.name for path in (queue.folder / "jobs").iterdir()] == [waiting.id]
    assert output.exists()


def test_other_folders_and_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("x")
    with pytest.raises(InputError, match=r"is no queue: it holds 'chapter.tex'"):
        JobQueue(foreign)
    assert [path.name for path in foreign.iterdir()] == ["chapter.tex"]
    with pytest.raises(InputError, match="is a file"):
        JobQueue(foreign / "chapter.tex")
    other = tmp_path / "other"
    other.mkdir()
    connection = sqlite3.connect(other / "queue.sqlite")
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    with pytest.raises(InputError, match="another program"):
        JobQueue(other)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "queue.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="damaged"):
        JobQueue(damaged)


def test_a_later_versions_queue_is_refused_unchanged(queue: JobQueue) -> None:
    job = submit(queue)
    connection = sqlite3.connect(queue.folder / "queue.sqlite")
    connection.execute(f"PRAGMA user_version = {database.SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(InputError, match=f"has the format {database.SCHEMA_VERSION + 1}"):
        JobQueue(queue.folder)
    assert queue.get(job.id) == job


def test_a_full_disk_is_an_error_and_leaves_no_half_job(queue: JobQueue) -> None:
    before = submit(queue)
    connection = queue._database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for number in range(1, 2000):
            submit(queue, number, name="x" * 200)

    with pytest.raises(StorageError, match=r"queue.sqlite.*full"):
        fill()
    known = {record.id for record in queue.list(limit=5000)}
    assert before.id in known
    assert {path.name for path in (queue.folder / "jobs").iterdir()} == known
    connection.execute("PRAGMA max_page_count = 1000000")
    assert submit(queue, 5000).state == "queued"


def _claim_all(folder: Path, results: Any) -> None:
    queue = JobQueue(folder)
    while (claimed := claim(queue)) is not None:
        results.put(claimed.id)


def test_processes_and_threads_claim_every_job_once(queue: JobQueue) -> None:
    ids = sorted(submit(queue, number).id for number in range(40))
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    processes = [context.Process(target=_claim_all, args=(queue.folder, results)) for _ in range(2)]
    threads = [threading.Thread(target=_claim_all, args=(queue.folder, results)) for _ in range(2)]
    for worker in (*processes, *threads):
        worker.start()
    claimed = sorted(results.get(timeout=240) for _ in ids)
    for worker in (*processes, *threads):
        worker.join()
    assert claimed == ids
    assert results.empty()


class Clock:
    """Time as the queue sees it, which counts the machine's uptime."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


def kinds(queue: JobQueue, job_id: str) -> list[str]:
    return [event["kind"] for event in EventReader(queue.folder_of(job_id) / "events.jsonl").read()]


def test_attempts_add_up_to_what_a_job_has_run(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, about = Clock(), partial(pytest.approx, abs=1e-5)
    monkeypatch.setattr(database, "time", clock)
    job = submit(queue, deadline_seconds=100.0)
    claim(queue)
    clock.now += 0.25
    assert queue.ledger.running()[0].ran_seconds == about(0.25)
    assert queue.ledger.interrupted(job.id, 1, {"message": "state saved"}) == "queued"
    clock.now += 500.0  # waiting does not count
    assert queue.ledger.running() == []
    claim(queue)
    clock.now += 99.0
    running = queue.ledger.attempt(job.id, 2)
    assert (running.ran_seconds, running.deadline_seconds, running.attempt) == (about(99.25), 100.0, 2)
    assert queue.ledger.attempt(job.id, 1) is None
    assert queue.ledger.attempt("ffffffffffff", 2) is None
    clock.now -= 1000.0  # never happens; no attempt took less than nothing
    assert queue.ledger.running()[0].ran_seconds == about(0.25)
    clock.now += 1001.0
    assert queue.ledger.mark_stop(job.id, 2, "deadline")
    assert queue.ledger.interrupted(job.id, 2, {"message": "state saved"}) == "failed"
    record = queue.get(job.id)
    assert "exceeded its deadline (100 seconds); state saved" in record.error["message"]
    queue.resume(job.id)
    claim(queue)
    assert queue.ledger.running()[0].ran_seconds == about(0.0)


def test_only_deaths_that_nobody_asked_for_count(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "queue", max_attempts=2)
    job = submit(queue)
    for attempt in range(1, 4):
        claim(queue)
        assert queue.ledger.interrupted(job.id, attempt, {"message": "state saved"}) == "queued"
    for attempt in range(4, 7):
        claim(queue)
        queue.ledger.mark_stop(job.id, attempt, "stop")
        assert queue.ledger.died(job.id, attempt, "killed") == "queued"
    assert "warning" not in kinds(queue, job.id)[:4]
    claim(queue)
    assert queue.ledger.died(job.id, 7, "killed") == "queued"
    claim(queue)
    assert queue.ledger.died(job.id, 8, "killed") == "failed"
    told_of = kinds(queue, job.id)
    # Of each that goes back to the queue a word, of the last its error.
    assert told_of == ["state"] * 4 + ["warning", "state"] * 4 + ["error", "state"]


def test_five_deaths_are_the_end_by_default(queue: JobQueue) -> None:
    job = submit(queue)
    ends = []
    for attempt in range(1, 6):
        claim(queue)
        ends.append(queue.ledger.died(job.id, attempt, "killed"))
    assert ends == ["queued"] * 4 + ["failed"]


@pytest.mark.parametrize(("held", "claimed"), [(19, True), (20, False)])
def test_a_claim_looks_at_the_twenty_that_wait_longest(queue: JobQueue, held: int, claimed: bool) -> None:
    ids = [submit(queue, number).id for number in range(21)]
    locks = [FileLock.acquire(queue.folder_of(job_id) / "lock") for job_id in ids[:held]]
    found = claim(queue)
    assert (found is not None and found.id == ids[held]) is claimed
    for lock in locks:
        lock.release()


def test_labels_and_deadlines_at_their_limits(queue: JobQueue) -> None:
    longest = "x" * 200
    record = submit(queue, name=longest, owner=longest, idempotency_key=longest, deadline_seconds=1e-3)
    assert (record.name, record.deadline_seconds) == (longest, 1e-3)
    for more in ({"name": longest + "x"}, {"owner": ""}, {"idempotency_key": "a\tb"}):
        with pytest.raises(InputError, match="1 to 200 characters without control characters"):
            submit(queue, 1, **more)
    for deadline in (-1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="expected a positive number"):
            submit(queue, 1, deadline_seconds=deadline)


def test_a_list_ends_at_a_hundred_by_default(queue: JobQueue) -> None:
    ids = [submit(queue, number).id for number in range(102)]
    assert [record.id for record in queue.list()] == ids[:1:-1]


def test_folders_of_no_job_go_and_those_of_submissions_under_way_stay(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue.folder / "jobs"
    for name in ("cut-off", "claimed"):
        (jobs / name).mkdir()
    (jobs / "claimed" / "lock").touch()
    known = submit(queue)
    made, pruned, tell = threading.Event(), threading.Event(), queue.ledger.tell
    other = JobQueue(queue.folder)

    def tell_slowly(*parts: Any, **content: Any) -> None:
        # The folder is there, and its job not recorded yet.
        made.set()
        assert not pruned.wait(0.3)
        tell(*parts, **content)

    monkeypatch.setattr(queue.ledger, "tell", tell_slowly)
    with ThreadPoolExecutor(2) as threads:
        under_way = threads.submit(submit, queue, 1)
        assert made.wait(120)
        threads.submit(lambda: other.prune(keep_seconds=0.0)).add_done_callback(lambda _: pruned.set())
        submitted = under_way.result(120)
        assert pruned.wait(120)
    other.close()
    assert {path.name for path in jobs.iterdir()} == {known.id, submitted.id}
    assert (queue.folder_of(submitted.id) / "events.jsonl").exists()


def moved(by: float = 0.0, uptime: float = 0.0) -> SimpleNamespace:
    """The module `time`, with the clock and the machine's uptime moved."""
    clocks = {"time": lambda: time.time() + by, "monotonic": lambda: time.monotonic() + uptime}
    return SimpleNamespace(sleep=time.sleep, **clocks)


@pytest.mark.parametrize("days", [100.0, -100.0])
def test_a_clock_that_jumps_ends_and_forgets_no_job(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    ended, running = submit(queue, 0), submit(queue, 1)
    for _ in range(2):
        claim(queue)
    queue.ledger.finish(ended.id, 1, "done", 0)
    monkeypatch.setattr(database, "time", moved(by=days * 86_400.0))
    for opened in (queue, JobQueue(queue.folder)):
        assert opened.prune(keep_seconds=3600.0) == 0
        (job,) = opened.ledger.running()
        assert (job.id, job.ran_seconds < 60.0) == (running.id, True)
    # The machine's own time counts.
    monkeypatch.setattr(database, "time", moved(uptime=5000.0))
    assert queue.ledger.running()[0].ran_seconds == pytest.approx(5000.0, abs=60.0)
    assert queue.prune(keep_seconds=3600.0) == 1


def test_time_stands_still_while_the_machine_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = JobQueue(tmp_path / "queue")
    ended = submit(queue)
    claim(queue)
    monkeypatch.setattr(database, "time", moved(uptime=3000.0))
    queue.prune(keep_seconds=1e6)
    (job,) = queue.ledger.running()
    queue.close()
    # Another start of the machine, or another machine, which has run for longer than the first.
    monkeypatch.setattr(database, "_boot", lambda: "another")
    monkeypatch.setattr(database, "time", moved(uptime=9e6))
    queue = JobQueue(tmp_path / "queue")
    (later,) = queue.ledger.running()
    assert job.ran_seconds == pytest.approx(3000.0, abs=60.0)
    assert later.ran_seconds == pytest.approx(job.ran_seconds, abs=60.0)
    queue.ledger.finish(ended.id, 1, "done", 0)
    assert queue.prune(keep_seconds=3600.0) == 0
    queue.close()


def test_one_owner_does_not_fill_the_queue(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "queue", max_queued=5, max_queued_per_owner=2)
    for number in range(2):
        submit(queue, number, owner="alice")
    with pytest.raises(QueueFullError, match="2 of your jobs are waiting"):
        submit(queue, 2, owner="alice")
    submit(queue, 3, owner="bob")
    assert queue.counts()["queued"] == 3
    claim(queue)
    submit(queue, 4, owner="alice")
    queue.close()


def test_a_folder_that_is_full_takes_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.service.queue.database.FRESH_SECONDS", -1.0)
    queue = JobQueue(tmp_path / "queue", max_folder_bytes=500_000)
    first, running = submit(queue), submit(queue, 1)
    for job_id in (first.id, running.id):
        (queue.folder_of(job_id) / "log.txt").write_bytes(b"x" * 500_000)
        claim(queue)
    with pytest.raises(QueueFullError, match="the limit is 500,000"):
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
    with pytest.raises(QueueFullError, match="the limit is 2,000,000"):
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
    assert queue.get(job.id).options == tuning(0)
    claim(queue)
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


def reserve(queue: JobQueue, out: str) -> str:
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
    job_id = reserve(queue, first)
    with pytest.raises(JobStateError, match=f"job {job_id} writes to"):
        reserve(queue, second)
    queue.request_cancel(job_id)
    second_id = reserve(queue, second)
    with pytest.raises(JobStateError, match=f"job {second_id} writes to"):
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
        reserve(queue, text.replace("BASE", str(folder)))
    assert queue.counts()["queued"] == 2


def test_places_that_an_earlier_version_kept_by_their_spelling_are_kept(tmp_path: Path, folder: Path) -> None:
    queue = JobQueue(tmp_path / "queue")
    job_id = reserve(queue, f"{folder}/real/x.json")
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
        reserve(queue, f"{folder}/real/x.json")
    queue.close()


def submit_as(queue: JobQueue, name: str, owner: str, **more: Any) -> str:
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
        submit_as(queue, name, name[0])
    order = []
    while (name := claimed(queue, limit=1)) is not None:
        order.append(name)
        clock[0] += 1.0
        finish(queue)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_running_jobs_are_shared_out_between_owners(queue: JobQueue, clock: list[float]) -> None:
    for name in ("a1", "a2", "a3", "b1", "b2", "b3"):
        submit_as(queue, name, name[0])
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
        submit_as(queue, name, name[0])
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
    first = submit_as(queue, "a1", "a", memory_bytes=2)
    for name, n_bytes in (("b1", 6), ("c1", None), ("d1", 1)):
        submit_as(queue, name, name[0], memory_bytes=n_bytes)
    assert [claimed(queue, memory=room) for _ in range(3)] == ["a1", "b1", None]
    # 6 and 8 are more than 10; d's job, which would fit, does not overtake.
    queue.ledger.finish(first, 1, "done", 0)
    assert claimed(queue, memory=room) is None
    finish(queue)
    assert [claimed(queue, memory=room) for _ in range(3)] == ["c1", "d1", None]
    assert MemoryRoom(job_bytes=20, total_bytes=10).fits(None, [])


def test_waits_and_attempts_are_counted_together(queue: JobQueue, clock: list[float]) -> None:
    job = submit_as(queue, "a1", "a")
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
