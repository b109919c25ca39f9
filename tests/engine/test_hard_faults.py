"""Workers frozen, coming, going, short of memory; a full disk; a shared cluster: the same bits or a clear error."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.data import CheckpointStore
from dkgp.errors import ClusterError, ExitCode
from dkgp.solvers import Checkpointing, Progress
from tests.engine.helpers import (
    Bits,
    ManualCluster,
    Problem,
    TrainCommand,
    bits,
    client_of,
    opened,
    worker_pids,
)
from tests.full_disk import fill, mounted

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]

StartProcess = Callable[..., subprocess.Popen[str]]
StartCluster = Callable[..., ManualCluster]


@contextlib.contextmanager
def joined(cluster: ManualCluster, workers: int, **options: Any) -> Iterator[tuple[Any, Client]]:
    """An executor on a cluster started by hand, all of whose workers have come."""
    chosen = ClusterOptions(scheduler_file=cluster.scheduler_file, **options)
    with open_executor(chosen, 1) as executor:
        client = client_of(executor)
        client.wait_for_workers(workers, timeout=240)
        yield executor, client


def test_a_worker_frozen_for_longer_than_its_time_out(
    problem: Problem, reference: Bits, manual_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP leaves its connections open: only its silence tells. It comes back when others have done its work."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "2s")
    cluster = manual_cluster(2, "--no-nanny")
    frozen: list[int] = []

    def freeze(progress: Progress) -> None:
        if progress.iteration == 15:
            frozen.append(cluster.workers[0].pid)
            os.kill(frozen[0], signal.SIGSTOP)
        if progress.iteration == 30:
            os.kill(frozen[0], signal.SIGCONT)

    with joined(cluster, 2, round_deadline_seconds=90.0) as (executor, _client):
        assert bits(problem.train(executor, callback=freeze)) == reference
        assert frozen


def test_all_workers_killed_at_once_and_started_again_by_their_nannies(problem: Problem, reference: Bits) -> None:
    with opened("processes", 2) as executor:
        client = client_of(executor)
        killed: list[int] = []

        def kill_all(progress: Progress) -> None:
            if progress.iteration == 20:
                killed.extend(worker_pids(client))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

        assert bits(problem.train(executor, callback=kill_all)) == reference
        assert len(killed) == 2
        assert not set(worker_pids(client)) & set(killed)


@pytest.mark.timeout(900)
def test_a_worker_joins_and_another_leaves_every_few_seconds(
    problem: Problem, reference: Bits, manual_cluster: StartCluster, start_process: StartProcess, tmp_path: Path
) -> None:
    """Six workers are waited for, one after the other, each for as long as a busy machine takes to start it."""
    cluster = manual_cluster(2, "--no-nanny")
    workers = list(cluster.workers)
    changes = itertools.count(1)
    happened = [0]
    command = ("dask", "worker", "--scheduler-file", cluster.scheduler_file, "--nthreads", 1, "--no-dashboard")
    command += ("--no-nanny", "--local-directory", tmp_path)

    with joined(cluster, 2) as (executor, client):

        def change() -> None:
            workers.append(start_process(*command))
            client.wait_for_workers(3)
            # By turns as a machine that fails, and as one that is asked to go.
            number = next(changes)
            workers.pop(0).send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
            while len(client.scheduler_info(n_workers=-1)["workers"]) > 2:
                time.sleep(0.05)
            happened[0] = number

        changing: list[threading.Thread] = []

        def come_and_go(progress: Progress) -> None:
            if progress.iteration % 8 == 0 and len(changing) < 6:
                if changing:
                    changing[-1].join()
                changing.append(threading.Thread(target=change, daemon=True))
                changing[-1].start()

        assert bits(problem.train(executor, callback=come_and_go)) == reference
        changing[-1].join()
        assert happened[0] == 6


def test_a_worker_without_enough_memory_leaves_the_work_to_the_others(
    problem: Problem, reference: Bits, manual_cluster: StartCluster, start_process: StartProcess, tmp_path: Path
) -> None:
    """Its nanny stops and restarts it over and over: 120 MB do not even hold the interpreter and its libraries."""
    cluster = manual_cluster(1)
    poor = ("dask", "worker", "--scheduler-file", cluster.scheduler_file, "--nthreads", 1, "--no-dashboard")
    log = tmp_path / "poor.log"
    with log.open("wb") as stderr, joined(cluster, 1) as (executor, _client):
        start_process(*poor, "--memory-limit", "120MB", "--local-directory", tmp_path / "poor", stderr=stderr)
        until = time.monotonic() + 240.0
        while b"memory budget. Restarting" not in log.read_bytes():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        assert bits(problem.train(executor)) == reference


def test_workers_all_out_of_memory_are_an_error_in_time_and_can_be_resumed(
    problem: Problem, reference: Bits, manual_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = manual_cluster(1, "--memory-limit", "120MB")
    options = ClusterOptions(scheduler_file=cluster.scheduler_file, round_deadline_seconds=15.0)
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    # It comes, dies and comes again: it cannot be waited for.
    with pytest.raises(ClusterError) as caught, open_executor(options, 1) as executor:
        problem.train(executor, checkpointing=Checkpointing(store, every_seconds=0.0))
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    with opened("none", 2) as executor:
        resumed = problem.train(executor, checkpointing=Checkpointing(store, 1000.0, resume=True))
    assert bits(resumed) == reference


def test_a_frozen_scheduler_is_exit_code_5_by_the_deadline_of_a_round(
    command: TrainCommand, manual_cluster: StartCluster
) -> None:
    cluster = manual_cluster(1)
    options = ("--scheduler-file", cluster.scheduler_file, "--checkpoint-every", 0.02, "--round-deadline", 6)
    process = command.start(*options, rounds=20)
    os.kill(cluster.scheduler.pid, signal.SIGSTOP)
    try:
        message = command.require_error(process, ExitCode.CLUSTER_LOST)["message"]
    finally:
        os.kill(cluster.scheduler.pid, signal.SIGCONT)
    assert "did not finish a task within 6 s" in message
    assert "--round-deadline" in message
    assert "resume" in message
    command.require_resumed()


def test_a_signal_ends_a_command_whose_workers_are_all_gone(
    command: TrainCommand, manual_cluster: StartCluster
) -> None:
    """A preempted job may lose its workers first: nobody waits for the round's deadline, 900 s by default."""
    cluster = manual_cluster(1, "--no-nanny")
    process = command.start("--scheduler-file", cluster.scheduler_file, "--checkpoint-every", 0.02, rounds=3)
    cluster.workers[0].kill()
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    message = command.require_error(process, ExitCode.INTERRUPTED)["message"]
    assert message.startswith("interrupted while the cluster had no workers; the state is saved in ")
    assert message.endswith("Continue with the same command and --resume")
    command.require_resumed()


def test_a_scheduler_killed_under_a_command_is_exit_code_5_and_another_takes_over(
    command: TrainCommand, manual_cluster: StartCluster
) -> None:
    cluster = manual_cluster(1)
    process = command.start("--scheduler-file", cluster.scheduler_file, "--checkpoint-every", 0.02, rounds=20)
    cluster.scheduler.kill()
    assert "resume" in command.require_error(process, ExitCode.CLUSTER_LOST)["message"]
    Path(cluster.scheduler_file).unlink()
    another = manual_cluster(1)
    command.require_resumed("--scheduler-file", another.scheduler_file)


def test_two_jobs_at_once_on_one_cluster(
    command: TrainCommand, reference: Bits, manual_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = manual_cluster(2)
    jobs = [replace(command, folder=tmp_path / name) for name in ("one", "two")]
    for job in jobs:
        job.folder.mkdir()
    processes = [job.start("--scheduler-file", cluster.scheduler_file) for job in jobs]
    for process, job in zip(processes, jobs, strict=True):
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
        assert json.loads(stdout)["iterations"] == reference[2]
        job.require_model()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with mounted(tmp_path / "disk", "8m") as folder:
        yield folder


def test_a_disk_that_fills_up_leaves_a_checkpoint_that_resumes(command: TrainCommand, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    options = ("--checkpoint", small_disk / "checkpoints", "--checkpoint-every", 0.02)
    process = command.start(*options, rounds=10)
    with contextlib.suppress(OSError):
        ballast.write_bytes(bytes(16 * 1024**2))
    error = command.require_error(process, ExitCode.BAD_INPUT)
    assert error["type"] == "StorageError"
    assert "the disk is full" in error["message"]
    ballast.unlink()
    command.require_resumed(*options)


def test_a_disk_too_full_for_the_model_keeps_the_checkpoint(
    command: TrainCommand, small_disk: Path, tmp_path: Path
) -> None:
    """The model does not fit where it is to go; nothing that looks like one is left, and the work is not lost."""
    ballast, model = fill(small_disk, 16 * 1024), small_disk / "out/model.zarr"
    model.parent.mkdir()
    options = ("--checkpoint", tmp_path / "checkpoints", "--checkpoint-every", 0.02, "--out", model)
    error = command.require_error(command.start(*options), ExitCode.BAD_INPUT)
    assert "the disk is full" in error["message"]
    ballast.unlink()
    command.require_resumed(*options, "--overwrite", model=model)
