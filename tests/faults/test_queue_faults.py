"""Jobs' processes and services that are killed: the same bits in the end, nothing lost, nothing run twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import CheckpointStore, open_model, open_prediction
from dkgp.service.queue.events import EventReader
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.locks import FileLock
from dkgp.service.queue.records import JobRecord
from dkgp.service.running.supervisor import Supervisor
from dkgp.service.specification import job_from_options, run_job
from tests.service.problem import Problem, make_problem, make_stand_in, until

pytestmark = pytest.mark.faults

NO_DASK = ClusterOptions(kind="none", threads_per_worker=1)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return make_problem(tmp_path_factory.mktemp("problem"))


@pytest.fixture(scope="module")
def uninterrupted(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the result of the long training without interruptions."""
    out = tmp_path_factory.mktemp("uninterrupted") / "model.zarr"
    run_job(job_from_options("train", problem.long_training(out, checkpoint_seconds=1e9)), SilentReporter())
    return open_model(out)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    made = JobQueue(tmp_path / "queue")
    yield made
    made.close()


@pytest.fixture
def supervisor(queue: JobQueue) -> Iterator[Supervisor]:
    made = Supervisor(queue, cluster=NO_DASK, concurrent_jobs=2)
    made.start()
    yield made
    made.stop(grace_seconds=0.0)


def ended(queue: JobQueue, job_id: str) -> JobRecord:
    until(lambda: queue.get(job_id).is_terminal, f"the end of job {job_id}")
    return queue.get(job_id)


def in_the_middle(queue: JobQueue, job_id: str, out: Path, attempt: int = 1) -> psutil.Process:
    """Wait until this attempt has saved a checkpoint of its own; return its process."""
    path = queue.folder_of(job_id) / "process.json"

    def process() -> psutil.Process | None:
        if not path.exists() or (content := json.loads(path.read_text()))["attempt"] != attempt:
            return None
        return psutil.Process(content["pid"])

    found = until(process, "the job's process")
    began = queue.get(job_id).progress
    before = -1 if began is None else int(began["iteration"])
    until(lambda: CheckpointStore(f"{out}.checkpoint").load_latest() is not None, "a checkpoint")
    until(
        lambda: (progress := queue.get(job_id).progress) is not None and progress["iteration"] > before + 20, "progress"
    )
    return found  # type: ignore[no-any-return]


def test_a_runner_killed_twice_resumes_to_the_same_bits(
    queue: JobQueue, supervisor: Supervisor, problem: Problem, uninterrupted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    job, _ = queue.submit("train", problem.long_training(out))
    supervisor.wake()
    for attempt in (1, 2):
        in_the_middle(queue, job.id, out, attempt).kill()
    record = ended(queue, job.id)
    assert (record.state, record.attempt) == ("not_converged", 3)
    assert open_model(out).alpha.tobytes() == uninterrupted.alpha.tobytes()
    assert record.document["resumed"] is True
    assert record.document["iterations"] == uninterrupted.summary["iterations"]
    events = EventReader(queue.folder_of(job.id) / "events.jsonl").read(limit=10**6)
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert sum("killed by SIGKILL" in event.get("message", "") for event in events if event["kind"] == "warning") == 2


def test_cancelling_saves_a_checkpoint_and_resuming_ends_at_the_same_bits(
    queue: JobQueue, supervisor: Supervisor, problem: Problem, uninterrupted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    job, _ = queue.submit("train", problem.long_training(out))
    supervisor.wake()
    in_the_middle(queue, job.id, out)
    queue.request_cancel(job.id)
    supervisor.wake()
    record = ended(queue, job.id)
    assert (record.state, record.exit_code) == ("cancelled", 130)
    assert record.error["checkpoint"] == f"{out}.checkpoint"
    assert not out.exists()
    queue.resume(job.id)
    supervisor.wake()
    again = ended(queue, job.id)
    assert (again.state, again.attempt) == ("not_converged", 2)
    assert open_model(out).alpha.tobytes() == uninterrupted.alpha.tobytes()


def test_a_service_that_stops_in_order_has_its_job_go_on_under_the_next(
    queue: JobQueue, problem: Problem, uninterrupted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    job, _ = queue.submit("train", problem.long_training(out))
    first = Supervisor(queue, cluster=NO_DASK)
    first.start()
    process = in_the_middle(queue, job.id, out)
    # The terminal's or the service manager's signal reaches the job's process as well.
    process.terminate()
    first.stop(grace_seconds=60.0)
    record = queue.get(job.id)
    assert (record.state, record.resume) == ("queued", True)
    assert CheckpointStore(f"{out}.checkpoint").load_latest() is not None
    second = Supervisor(queue, cluster=NO_DASK)
    second.start()
    assert ended(queue, job.id).attempt == 2
    second.stop()
    assert open_model(out).alpha.tobytes() == uninterrupted.alpha.tobytes()


_SERVICE = """
    import sys, time
    from pathlib import Path
    from dkgp.cluster import ClusterOptions
    from dkgp.service.queue.job_queue import JobQueue
    from dkgp.service.running.supervisor import Supervisor
    python = sys.argv[3] if len(sys.argv) > 3 else sys.executable
    cluster = ClusterOptions(kind="none", threads_per_worker=1)
    Supervisor(JobQueue(Path(sys.argv[1])), cluster=cluster, concurrent_jobs=int(sys.argv[2]), python=python).start()
    while True:
        time.sleep(3600)
"""


def service(queue: JobQueue, concurrent_jobs: int, *more: str) -> subprocess.Popen[bytes]:
    """A process of its own with a supervisor in it."""
    command = [sys.executable, "-c", textwrap.dedent(_SERVICE), str(queue.folder), str(concurrent_jobs), *more]
    return subprocess.Popen(command)


def test_a_job_outlives_its_service_and_is_adopted_by_the_next(
    queue: JobQueue, problem: Problem, uninterrupted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    job, _ = queue.submit("train", problem.long_training(out))
    first = service(queue, 1)
    try:
        process = in_the_middle(queue, job.id, out)
    finally:
        first.kill()
        first.wait()
    assert process.is_running()
    second = Supervisor(queue, cluster=NO_DASK)
    second.start()
    until(lambda: all(found.service == second.name for found in queue.ledger.running()), "the adoption")
    record = ended(queue, job.id)
    # The same process all along.
    assert (record.state, record.attempt) == ("not_converged", 1)
    assert open_model(out).alpha.tobytes() == uninterrupted.alpha.tobytes()
    # One that it adopted is as much its own: it can be cancelled.
    other = tmp_path / "other.zarr"
    job, _ = queue.submit("train", problem.long_training(other))
    second.stop()
    third = service(queue, 1)
    try:
        in_the_middle(queue, job.id, other)
    finally:
        third.kill()
        third.wait()
    fourth = Supervisor(queue, cluster=NO_DASK)
    fourth.start()
    queue.request_cancel(job.id)
    assert ended(queue, job.id).state == "cancelled"
    fourth.stop()


def test_a_service_and_its_job_killed_together_go_on_at_the_next_start(
    queue: JobQueue, problem: Problem, uninterrupted: Any, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    job, _ = queue.submit("train", problem.long_training(out))
    first = service(queue, 1)
    process = in_the_middle(queue, job.id, out)
    first.kill()
    process.kill()
    first.wait()
    assert queue.get(job.id).state == "running"
    second = Supervisor(queue, cluster=NO_DASK)
    second.start()
    assert ended(queue, job.id).attempt == 2
    second.stop()
    assert open_model(out).alpha.tobytes() == uninterrupted.alpha.tobytes()


def test_services_killed_again_and_again_lose_no_job_and_start_none_twice_at_once(
    queue: JobQueue, tmp_path: Path
) -> None:
    stand_in = make_stand_in(tmp_path)
    ids = {
        queue.submit("tune", {"dataset": "/d.zarr", "out": f"/out-{number}.json"}, name="done")[0].id
        for number in range(60)
    }
    for _ in range(3):
        services = [service(queue, 4, stand_in) for _ in range(2)]
        before = queue.counts()["done"]
        until(lambda before=before: queue.counts()["done"] >= min(before + 8, len(ids)), "some jobs")  # type: ignore[misc]
        for process in services:
            process.kill()
            process.wait()
    last = Supervisor(queue, python=stand_in, concurrent_jobs=4)
    last.start()
    until(lambda: queue.counts()["done"] == len(ids), "all jobs")
    last.stop()
    lines = (queue.folder / ".started").read_text().splitlines()
    started = Counter((line.split()[0], line.split()[1]) for line in lines)
    assert {job_id for job_id, _ in started} == ids
    # A job whose service died between claiming and starting it gets another attempt; no attempt starts twice.
    assert set(started.values()) == {1}


# Dies right after the output is complete, before anything is recorded: once, in the first attempt.
_DYING = """\
#!{python}
import os, sys
sys.argv = ["runner", *sys.argv[3:]]
from dkgp.service import specification
from dkgp.service.running import runner
real = specification.run_job
def run_job(job, reporter):
    document = real(job, reporter)
    if sys.argv[3] == "1":
        os.kill(os.getpid(), {number})
    return document
specification.run_job = run_job
runner._leave(runner.main(sys.argv[1:]))
"""


def test_a_death_between_output_and_record_counts_as_done(queue: JobQueue, problem: Problem, tmp_path: Path) -> None:
    dying = tmp_path / "dying"
    dying.write_text(_DYING.format(python=sys.executable, number=int(signal.SIGKILL)))
    dying.chmod(0o755)
    out, prediction, hyper = tmp_path / "model.zarr", tmp_path / "prediction.zarr", tmp_path / "tuned.json"
    supervisor = Supervisor(queue, cluster=NO_DASK, python=str(dying))
    supervisor.start()
    commands: list[tuple[str, dict[str, Any]]] = [
        ("train", problem.training(out)),
        ("predict", {"model": str(out), "dataset": problem.dataset, "out": str(prediction)}),
        ("tune", {"dataset": problem.dataset, "out": str(hyper), "subset": 60}),
        ("evaluate", {"prediction": str(prediction), "dataset": problem.dataset}),
    ]
    for command, options in commands:
        job, _ = queue.submit(command, options)
        supervisor.wake()
        record = ended(queue, job.id)
        assert (record.state, record.attempt, record.error) == ("done", 2, None), command
    supervisor.stop()
    expected = tmp_path / "expected.zarr"
    run_job(job_from_options("train", problem.training(expected)), SilentReporter())
    assert open_model(out).alpha.tobytes() == open_model(expected).alpha.tobytes()
    assert np.isfinite(open_prediction(prediction).read("mean")).all()


def test_a_deadline_names_the_checkpoint_to_go_on_from(
    queue: JobQueue, supervisor: Supervisor, problem: Problem, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    endless = {"block_size": 4, "tolerance": 1e-14}
    options = {**problem.long_training(out), "solver": endless}
    job, _ = queue.submit("train", options, deadline_seconds=2.0)
    supervisor.wake()
    record = ended(queue, job.id)
    assert record.state == "failed"
    assert record.error["type"] == "DeadlineExceededError"
    assert "2" in record.error["message"]
    assert record.error.get("checkpoint") in (None, f"{out}.checkpoint")  # none where it came before the first round
    until(lambda: FileLock.is_free(queue.folder_of(job.id) / "lock"), "the process's end")


def test_a_process_that_hangs_is_ended_all_the_same(queue: JobQueue, problem: Problem, tmp_path: Path) -> None:
    out = tmp_path / "model.zarr"
    supervisor = Supervisor(queue, cluster=NO_DASK, end_seconds=1.0)
    supervisor.start()
    job, _ = queue.submit("train", problem.long_training(out))
    supervisor.wake()
    process = in_the_middle(queue, job.id, out)
    process.suspend()  # SIGTERM does not reach it now
    queue.request_cancel(job.id)
    supervisor.wake()
    assert ended(queue, job.id).state == "cancelled"
    supervisor.stop()
    until(lambda: not psutil.pid_exists(process.pid), "the process's end")
