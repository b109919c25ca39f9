"""Workers that die, join and vanish, coordinators that are killed and interrupted: the same bits, or a clear end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dkgp.cluster import ClusterOptions, open_executor, worker_cache
from dkgp.data import CheckpointStore, open_model
from dkgp.errors import ClusterError, ExitCode
from dkgp.solvers import Checkpointing, Progress
from tests.engine.helpers import (
    Bits,
    ManualCluster,
    Problem,
    bits,
    client_of,
    kill_one,
    opened,
    train_command,
    wait_for_rounds,
    with_a_worker_killed,
    worker_pids,
)

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]

StartProcess = Callable[..., subprocess.Popen[str]]


@pytest.mark.parametrize(("name", "count"), [("kblock", 8), ("kpass", 1)])
def test_a_worker_killed_in_mid_round(problem: Problem, reference: Bits, name: str, count: int) -> None:
    trained = with_a_worker_killed(name, count, problem.train)
    assert bits(trained) == reference


def test_results_that_went_down_with_their_worker_are_computed_again_soon() -> None:
    """The scheduler would try for a minute and a half to fetch them from it."""
    with opened("processes", 2) as executor:
        client = client_of(executor)
        for _ in range(3):  # the scheduler does not always run into it
            client.wait_for_workers(2, timeout=30)
            pids = worker_pids(client)
            pending = executor.submit("sorted", sorted, (), [[3, 2], [5, 4], [7, 6], [9, 8]])
            while not pending.done():
                time.sleep(0.001)
            os.kill(pids[0], signal.SIGKILL)
            started = time.monotonic()
            assert pending.result() == [2, 3, 4, 5, 6, 7, 8, 9]
            assert time.monotonic() - started < 25.0


@pytest.mark.slow
def test_workers_killed_again_and_again(problem: Problem, reference: Bits) -> None:
    """Also after a round is computed and before it is fetched: the results go down with the worker."""
    with opened("processes", 2) as executor:
        client = client_of(executor)

        def kill_now_and_then(progress: Progress) -> None:
            if progress.iteration in (10, 30, 45):
                client.wait_for_workers(2, timeout=30)
                kill_one(client)

        assert bits(problem.train(executor, callback=kill_now_and_then)) == reference


def cache_misses() -> int:
    return worker_cache().misses


def test_a_worker_that_joins_in_mid_solve_gets_work(
    problem: Problem, reference: Bits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.cluster.executors.dask.PARALLELISM_REFRESH_SECONDS", 0.1)
    with opened("processes", 1) as executor:
        client = client_of(executor)
        first = set(worker_pids(client))
        parallelism = []

        def grow(progress: Progress) -> None:
            if progress.iteration == 10:
                client.cluster.scale(2)
                client.wait_for_workers(2, timeout=30)
                time.sleep(0.2)
            parallelism.append(executor.parallelism)

        assert bits(problem.train(executor, callback=grow)) == reference
        assert (parallelism[0], parallelism[-1]) == (1, 2)
        # It has built features of its own, so tasks of this solve have run on it.
        misses = client.run(cache_misses)
        pids = client.run(os.getpid)
        late = [address for address, pid in pids.items() if pid not in first]
        assert len(late) == 1
        assert misses[late[0]] > 0


def test_all_workers_gone_is_an_error_in_time_and_can_be_resumed(
    problem: Problem, reference: Bits, tmp_path: Path
) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    with opened("processes", 1, round_deadline_seconds=3.0) as executor:
        client = client_of(executor)

        gone: list[float] = []

        def abandon(progress: Progress) -> None:
            if progress.iteration == 20:
                client.cluster.scale(0)
                gone.append(time.monotonic())

        with pytest.raises(ClusterError, match="resumed") as caught:
            problem.train(executor, callback=abandon, checkpointing=Checkpointing(store, every_seconds=0.0))
        assert time.monotonic() - gone[0] < 30.0
        assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    found = store.load_latest()
    assert found is not None
    assert 18 <= found.sequence_number <= 20
    with opened("none", 2) as executor:
        resumed = problem.train(executor, checkpointing=Checkpointing(store, 1000.0, resume=True))
    assert bits(resumed) == reference


def test_a_lost_scheduler_is_an_error_in_time_and_can_be_resumed(
    problem: Problem, reference: Bits, manual_cluster: Callable[..., ManualCluster], tmp_path: Path
) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    cluster = manual_cluster(1)
    options = ClusterOptions(
        scheduler_file=cluster.scheduler_file, connect_timeout_seconds=3.0, round_deadline_seconds=20.0
    )
    with open_executor(options, 1) as executor:
        gone: list[float] = []

        def lose(progress: Progress) -> None:
            if progress.iteration == 20:
                cluster.scheduler.kill()
                gone.append(time.monotonic())

        with pytest.raises(ClusterError):
            problem.train(executor, callback=lose, checkpointing=Checkpointing(store, every_seconds=0.0))
        assert time.monotonic() - gone[0] < 60.0
    with opened("none", 2) as executor:
        resumed = problem.train(executor, checkpointing=Checkpointing(store, 1000.0, resume=True))
    assert bits(resumed) == reference


# ------------------------------------------------------------------------------------------------ the command in whole


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_ctrl_c_with_worker_processes_saves_and_resumes(
    problem: Problem, reference: Bits, start_process: StartProcess, tmp_path: Path
) -> None:
    """A terminal's Ctrl-C goes to every process of the foreground group, the workers and their nannies included."""
    command = train_command(problem, tmp_path, "--cluster", "processes", "--workers", 2)
    process = start_process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_for_rounds(process, tmp_path / "run.jsonl", 15)
    helpers = descendants(process.pid)
    assert len(helpers) >= 2
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, stderr
    assert "Traceback" not in stderr
    error = json.loads(stdout)["error"]
    assert error["type"] == "InterruptedRunError"
    assert not psutil.wait_procs(helpers, timeout=10.0)[1]
    assert not (tmp_path / "model.zarr").exists()
    resumed = start_process(*train_command(problem, tmp_path, "--resume"), stdout=subprocess.PIPE)
    document = json.loads(resumed.communicate(timeout=60)[0])
    assert resumed.returncode == 0
    assert document["iterations"] == reference[2]
    assert open_model(tmp_path / "model.zarr").alpha.tobytes() == reference[0]


@pytest.mark.slow
def test_kill_9_of_the_coordinator_leaves_no_orphans_and_resumes(
    problem: Problem, reference: Bits, start_process: StartProcess, tmp_path: Path
) -> None:
    options = ("--cluster", "processes", "--workers", 1, "--checkpoint-every", 0.05)
    process = start_process(*train_command(problem, tmp_path, *options))
    wait_for_rounds(process, tmp_path / "run.jsonl", 25)
    helpers = descendants(process.pid)
    process.kill()
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert not psutil.wait_procs(helpers, timeout=30.0)[1]
    resumed = start_process(*train_command(problem, tmp_path, "--resume", "--cluster", "local"), stdout=subprocess.PIPE)
    document = json.loads(resumed.communicate(timeout=60)[0])
    assert resumed.returncode == 0
    assert document["resumed"] is True
    assert open_model(tmp_path / "model.zarr").alpha.tobytes() == reference[0]
