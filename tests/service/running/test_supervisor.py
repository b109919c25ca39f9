"""Supervisors: starting, counting, cancelling, deadlines, deaths, stopping; two on one queue; one real job of each end.

Where nothing depends on what a job does, a stand-in that starts in no time takes its process's place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.service.queue.events import EventReader
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord
from dkgp.service.running import supervisor as supervisor_module
from dkgp.service.running.processes import held_bytes, machine_bytes, session_bytes
from dkgp.service.running.supervisor import Supervisor
from tests.service.problem import Problem, claim, until

Start = Callable[..., Supervisor]
MIB = 2**20
GROWN = "import time; held = b'x' * (60 << 20); print('grown', flush=True); time.sleep(600)"


@pytest.fixture
def start(queue: JobQueue, stand_in: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts supervisors of stand-ins, which look ten times as often as a service's, and stops them at the end."""
    for name in ("POLL_SECONDS", "WEIGH_EVERY_SECONDS"):
        monkeypatch.setattr(supervisor_module, name, getattr(supervisor_module, name) / 10.0)
    made: list[Supervisor] = []

    def start(**settings: Any) -> Supervisor:
        supervisor = Supervisor(settings.pop("queue", queue), **{"python": stand_in, **settings})
        supervisor.start()
        made.append(supervisor)
        return supervisor

    yield start
    (queue.folder / ".go").touch()
    for supervisor in made:
        supervisor.stop(grace_seconds=0.0)
    until(lambda: not zombies(), "the last process to be waited for")


def zombies() -> list[int]:
    """Processes that have ended and that nobody has waited for."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


def submit(queue: JobQueue, number: int = 0, name: str = "done", **more: Any) -> JobRecord:
    return queue.submit("tune", {"dataset": "/d.zarr", "out": f"/out-{number}.json"}, name=name, **more)[0]


def started(queue: JobQueue) -> list[tuple[str, int]]:
    """Job and attempt of each stand-in, in the order in which they were started."""
    path = queue.folder / ".started"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def ended(queue: JobQueue, job_id: str) -> JobRecord:
    until(lambda: queue.get(job_id).is_terminal, f"the end of job {job_id}")
    return queue.get(job_id)


def test_waiting_jobs_are_run_in_order_one_at_a_time(queue: JobQueue, start: Start) -> None:
    ids = [submit(queue, number).id for number in range(3)]
    supervisor = start()
    until(lambda: queue.counts()["done"] == 3, "three jobs")
    assert started(queue) == [(job_id, 1) for job_id in ids]
    later = submit(queue, 9).id
    supervisor.wake()
    assert ended(queue, later).state == "done"


def test_as_many_run_at_once_as_the_queue_may(queue: JobQueue, start: Start) -> None:
    for number in range(6):
        submit(queue, number, "wait")
    start(concurrent_jobs=2)
    start(concurrent_jobs=2, queue=JobQueue(queue.folder))
    until(lambda: len(started(queue)) == 2, "two jobs")
    # Both have a place free by their own count; the queue as a whole has none.
    with pytest.raises(AssertionError, match="waited"):
        until(lambda: len(started(queue)) > 2, "a third", seconds=0.8)
    assert queue.counts()["running"] == 2


def test_two_supervisors_share_a_queue_and_start_no_job_twice(queue: JobQueue, start: Start) -> None:
    ids = {submit(queue, number).id for number in range(12)}
    start(concurrent_jobs=3)
    start(concurrent_jobs=3, queue=JobQueue(queue.folder))
    until(lambda: queue.counts()["done"] == len(ids), "all jobs")
    assert Counter(started(queue)) == {(job_id, 1): 1 for job_id in ids}


def test_a_job_that_is_cancelled_is_asked_to_end(queue: JobQueue, start: Start) -> None:
    job = submit(queue, name="wait")
    supervisor = start()
    until(lambda: started(queue), "the start")
    queue.request_cancel(job.id)
    supervisor.wake()
    record = ended(queue, job.id)
    assert (record.state, record.exit_code) == ("cancelled", 130)
    assert "SIGTERM" in record.error["message"]


def test_a_process_that_does_not_listen_is_killed(queue: JobQueue, start: Start) -> None:
    job = submit(queue, name="deaf")
    supervisor = start(end_seconds=0.2)
    log = queue.folder_of(job.id) / "log.txt"
    until(lambda: log.exists() and "deaf" in log.read_text(), "its word")
    queue.request_cancel(job.id)
    supervisor.wake()
    record = ended(queue, job.id)
    assert record.state == "cancelled"
    assert "SIGKILL" in record.error["message"]


@pytest.mark.parametrize(("own", "everybodys"), [(0.2, None), (None, 0.2), (500.0, 0.2)])
def test_a_job_past_its_deadline_fails_with_that_reason(
    queue: JobQueue, start: Start, own: float | None, everybodys: float | None
) -> None:
    job = submit(queue, name="wait", deadline_seconds=own)
    start(deadline_seconds=everybodys)
    record = ended(queue, job.id)
    assert record.state == "failed"
    assert record.error["type"] == "DeadlineExceededError"
    assert record.exit_code == 130


@pytest.mark.parametrize(("own", "everybodys"), [(96, None), (None, 96), (4096, 96)])
def test_a_job_that_holds_too_much_is_asked_to_end_and_says_so(
    queue: JobQueue, start: Start, own: int | None, everybodys: int | None
) -> None:
    # Two processes of 50 MiB and an interpreter each: neither alone is too much, and it is no runaway.
    job = submit(queue, name="grow 50", memory_bytes=None if own is None else own * MIB)
    start(memory_bytes=None if everybodys is None else everybodys * MIB)
    record = ended(queue, job.id)
    assert (record.state, record.exit_code) == ("failed", 130)
    assert record.error["type"] == "MemoryExceededError"
    assert "SIGTERM" in record.error["message"]
    # More than one of the two can have, however far the second had grown when they were weighed.
    taken = re.search(r"\((0\.\d+) GiB of 0\.0938\)", record.error["message"])
    assert taken is not None, record.error["message"]
    assert 0.0938 < float(taken[1]) < 0.2
    assert "`resume`" in record.error["message"]
    # Kept, and it can go on, which it may do at once.
    assert queue.resume(job.id).state in ("queued", "running")


def test_one_that_grows_on_is_killed_at_once_and_one_within_its_limit_is_left_alone(
    queue: JobQueue, start: Start
) -> None:
    runaway = submit(queue, 0, "grow 100 deaf", memory_bytes=64 * MIB)
    modest = submit(queue, 1, "grow 20", memory_bytes=128 * MIB)
    start(concurrent_jobs=2, end_seconds=600.0)
    record = ended(queue, runaway.id)
    assert record.error["type"] == "MemoryExceededError"
    assert "SIGKILL" in record.error["message"]
    time.sleep(5.0 * supervisor_module.WEIGH_EVERY_SECONDS)
    assert queue.get(modest.id).state == "running"


def test_an_adopted_jobs_memory_is_weighed_too(queue: JobQueue, tmp_path: Path) -> None:
    from dkgp.service.running.processes import process_id, write_process_file

    folder = tmp_path / "job"
    folder.mkdir()
    assert process_id(folder, 1) is None
    write_process_file(folder, 1)
    assert process_id(folder, 1) == os.getpid()
    assert process_id(folder, 2) is None
    with subprocess.Popen([sys.executable, "-c", GROWN], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        assert 50 * MIB < session_bytes([process.pid])[process.pid] < 200 * MIB
        # Pages that were mapped from a file and can be dropped are not held.
        assert 50 * MIB < held_bytes(process.pid) < session_bytes([process.pid])[process.pid]
        process.kill()
    assert held_bytes(process.pid) == 0


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("1048576\n")
    (tmp_path / "none").write_text("max\n")
    assert machine_bytes([str(tmp_path / "limit"), str(tmp_path / "none")]) == 2**20
    assert machine_bytes([str(tmp_path / "none"), "/nowhere"]) == psutil.virtual_memory().total


@pytest.mark.long
def test_so_many_of_one_owner_run_at_once(queue: JobQueue, start: Start) -> None:
    for number in range(4):
        submit(queue, number, "wait", owner="alice")
    bobs = submit(queue, 9, "wait", owner="bob")
    start(concurrent_jobs=3, concurrent_per_owner=1)
    until(lambda: len(started(queue)) == 2, "a job of each")
    assert bobs.id in {job_id for job_id, _ in started(queue)}
    with pytest.raises(AssertionError, match="waited"):
        until(lambda: len(started(queue)) > 2, "a second of alice's", seconds=0.8)


@pytest.mark.long
def test_so_many_run_at_once_as_memory_allows(queue: JobQueue, start: Start) -> None:
    for number in range(4):
        submit(queue, number, "wait")
    start(concurrent_jobs=4, memory_bytes=2**30, total_memory_bytes=5 * 2**29)
    until(lambda: len(started(queue)) == 2, "two jobs of one gibibyte within two and a half")
    with pytest.raises(AssertionError, match="waited"):
        until(lambda: len(started(queue)) > 2, "a third", seconds=0.8)


def test_the_folders_are_kept_small_by_forgetting_the_oldest(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dkgp.service.running.supervisor.PRUNE_EVERY_SECONDS", 0.0)
    queue = JobQueue(tmp_path / "small", max_folder_bytes=3 * MIB)
    result = tmp_path / "result.json"
    result.write_text("{}")
    ids = [submit(queue, number).id for number in range(4)]
    for job_id in ids:
        (queue.folder_of(job_id) / "log.txt").write_bytes(b"x" * MIB)
        (queue.folder_of(job_id) / "link").symlink_to(result)
    start(queue=queue)
    until(lambda: queue.forgotten["size"] == 2, "two jobs to be forgotten")
    assert [record.id for record in queue.list()] == ids[:1:-1]
    assert result.read_text() == "{}"
    assert "2 oldest" in caplog.text or caplog.text.count("1 oldest") == 2


def test_a_process_that_dies_is_started_again(queue: JobQueue, start: Start) -> None:
    job = submit(queue, name="die 2")
    start()
    assert ended(queue, job.id).state == "done"
    assert started(queue) == [(job.id, 1), (job.id, 2), (job.id, 3)]
    warnings = [event for event in EventReader(queue.folder_of(job.id) / "events.jsonl").read() if "message" in event]
    assert "killed by SIGKILL" in warnings[0]["message"]
    assert "the last words" in warnings[0]["message"]


def test_one_that_always_dies_is_given_up(tmp_path: Path, start: Start) -> None:
    queue = JobQueue(tmp_path / "impatient", max_attempts=2)
    job = submit(queue, name="die 9")
    start(queue=queue)
    record = ended(queue, job.id)
    assert record.state == "failed"
    assert "killed by SIGKILL" in record.error["message"]
    assert "happened 2 times" in record.error["message"]
    assert record.attempt == 2


def test_a_process_that_cannot_begin_fails_at_once_with_what_it_said(
    queue: JobQueue, start: Start, tmp_path: Path
) -> None:
    job, other = submit(queue, 0, "exit"), submit(queue, 1)
    start()
    record = ended(queue, job.id)
    assert (record.state, record.attempt, record.exit_code) == ("failed", 1, 5)
    assert "exit code 3" in record.error["message"]
    assert "cannot begin" in record.error["message"]
    assert ended(queue, other.id).state == "done"


def test_an_interpreter_that_is_not_there_fails_the_job(queue: JobQueue, start: Start, tmp_path: Path) -> None:
    job = submit(queue)
    start(python=str(tmp_path / "no-python"))
    record = ended(queue, job.id)
    assert record.state == "failed"
    assert "no-python" in record.error["message"]
    assert started(queue) == []


def test_a_start_that_fails_for_want_of_something_is_tried_again(
    queue: JobQueue, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = subprocess.Popen, iter([OSError(errno.EAGAIN, "no more processes"), None])

    def popen(*arguments: Any, **more: Any) -> Any:
        failure = next(failures)
        if failure is not None:
            raise failure
        return real(*arguments, **more)

    monkeypatch.setattr("dkgp.service.running.supervisor.subprocess.Popen", popen)
    job = submit(queue)
    start()
    assert ended(queue, job.id).state == "done"
    assert started(queue) == [(job.id, 2)]


def test_locks_of_services_long_dead_are_removed(queue: JobQueue, start: Start) -> None:
    old, new = (queue.folder / "services" / f"{name}.lock" for name in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (1.0, 1.0))
    start()
    assert not old.exists()
    assert new.exists()


def test_stopping_sends_jobs_back_and_the_next_service_goes_on(queue: JobQueue, start: Start) -> None:
    job, waiting = submit(queue, 0, "wait"), submit(queue, 1)
    supervisor = start()
    until(lambda: started(queue), "the start")
    supervisor.stop(grace_seconds=60.0)
    record = queue.get(job.id)
    assert (record.state, record.resume) == ("queued", True)
    assert queue.get(waiting.id).state == "queued"
    assert list((queue.folder / "services").iterdir()) == []
    (queue.folder / ".go").touch()
    start()
    assert ended(queue, waiting.id).state == "done"
    assert started(queue) == [(job.id, 1), (job.id, 2), (waiting.id, 1)]


def test_stopping_kills_what_does_not_end(queue: JobQueue, start: Start) -> None:
    job = submit(queue, name="deaf")
    supervisor = start()
    log = queue.folder_of(job.id) / "log.txt"
    until(lambda: log.exists() and "deaf" in log.read_text(), "its word")
    supervisor.stop(grace_seconds=0.2)
    assert queue.get(job.id).state == "queued"
    assert queue.ledger.running() == []


def test_a_row_that_runs_without_a_process_goes_back(queue: JobQueue, start: Start) -> None:
    job = submit(queue)
    claim(queue)  # by a service that died at once
    start()
    assert ended(queue, job.id).state == "done"
    assert started(queue) == [(job.id, 2)]


def test_the_cluster_is_told_over_a_pipe_and_its_secrets_are_nowhere_else(
    queue: JobQueue, start: Start, tmp_path: Path
) -> None:
    cluster = ClusterOptions(kind="gateway", workers=2, settings={"password": "hunter2-hunter2"})
    (queue.folder / "cluster.json").write_text("left by an earlier version: hunter2-hunter2")
    stand_in = tmp_path / "telling"
    script = (
        "import os, shutil, sys, time",
        "shutil.copy('/proc/self/cmdline', 'line'); shutil.copy('/proc/self/environ', 'environment')",
        "open(sys.argv[3] + '/.told', 'w').write(sys.stdin.read()); time.sleep(60)",
    )
    stand_in.write_text("\n".join([f"#!{sys.executable} -IS", *script]))
    stand_in.chmod(0o755)
    job = submit(queue)
    supervisor = start(cluster=cluster, python=str(stand_in))
    told = queue.folder / ".told"
    until(lambda: told.exists() and told.read_text(), "the cluster to be told")
    assert ClusterOptions(**json.loads(told.read_text())) == cluster
    told.unlink()
    assert (queue.folder_of(job.id) / "line").stat().st_size
    supervisor.stop(grace_seconds=0.0)
    for path in queue.folder.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_ended_jobs_are_forgotten_in_time(queue: JobQueue, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.service.running.supervisor.PRUNE_EVERY_SECONDS", 0.0)
    submit(queue)
    start(keep_seconds=0.0)
    until(lambda: started(queue) and os.listdir(queue.folder / "jobs") == [], "the job's end and removal")
    assert queue.list() == []


@pytest.mark.long
def test_a_real_job_ends_with_its_document_and_a_wrong_one_with_its_error(
    queue: JobQueue, start: Start, problem: Problem, tmp_path: Path
) -> None:
    options = {"dataset": problem.dataset, "out": str(tmp_path / "hyper.json"), "subset": 60}
    right, _ = queue.submit("tune", options)
    wrong, _ = queue.submit("tune", {**options, "dataset": str(tmp_path / "nowhere.zarr"), "out": str(tmp_path / "b")})
    start(python=sys.executable, concurrent_jobs=2)
    record = ended(queue, right.id)
    assert (record.state, record.exit_code, record.error) == ("done", 0, None)
    assert record.document["subset_size"] == 60
    assert json.loads((tmp_path / "hyper.json").read_text())["noise_variance"] == record.document["noise_variance"]
    events = EventReader(queue.folder_of(right.id) / "events.jsonl").read()
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert [event["state"] for event in events if event["kind"] == "state"] == ["queued", "running", "done"]
    assert record.progress == [event for event in events if event["kind"] == "progress"][-1]
    failed = ended(queue, wrong.id)
    assert (failed.state, failed.exit_code) == ("failed", 3)
    assert failed.error["type"] == "StoreError"
    assert "nowhere.zarr" in failed.error["message"]
