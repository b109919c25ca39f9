"""Workers as jobs of a queueing system, in full: the real classes against commands that start each job at once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.errors import ClusterError
from tests.cluster.helpers import Certificates, Listener

SBATCH = """#!/bin/sh
[ -e "$QUEUE/closed" ] && { echo "sbatch: error: invalid partition specified: short" >&2; exit 1; }
cp "$1" "$QUEUE/$$.sh"
setsid sh "$QUEUE/$$.sh" > "$QUEUE/$$.out" 2>&1 &
echo $! > "$QUEUE/$$.pid"
echo "Submitted batch job $$"
"""
SCANCEL = """#!/bin/sh
kill -s TERM -- "-$(cat "$QUEUE/$1.pid")"
"""


class Queue:
    """A queueing system of one machine, without a queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def scripts(self) -> list[Path]:
        return sorted(self.folder.glob("*.sh"), key=lambda path: path.stat().st_mtime)

    def alive(self) -> list[psutil.Process]:
        """Leaders of the jobs that run."""
        found = []
        for path in self.folder.glob("*.pid"):
            if path.read_text().strip() and psutil.pid_exists(pid := int(path.read_text())):
                found.append(psutil.Process(pid))
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]

    def wait_for_end(self, seconds: float = 240.0) -> None:
        until = time.monotonic() + seconds
        while self.alive():
            assert time.monotonic() < until, "a job outlived its cluster"
            time.sleep(0.1)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    if shutil.which("setsid") is None:
        pytest.skip("needs the command `setsid` (util-linux)")
    commands, folder = tmp_path / "bin", tmp_path / "queue"
    commands.mkdir()
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(folder))
    # Certificates of a run go there.
    monkeypatch.setenv("HOME", str(tmp_path))
    queue = Queue(folder)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}):
        yield queue
    for process in queue.alive():
        os.killpg(process.pid, signal.SIGKILL)


def options(**more: Any) -> ClusterOptions:
    settings = {"queue": "short", "interface": "lo", "walltime": "00:30:00"}
    given = {"threads_per_worker": 1, "worker_memory_bytes": 2**30, "settings": settings, **more}
    return ClusterOptions(kind="slurm", **given)


def doubled(group: list[int]) -> list[int]:
    return [2 * item for item in group]


def parent(dask_worker: Any) -> int:
    return os.getppid()


def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


@pytest.mark.slow
def test_jobs_are_submitted_replaced_and_cancelled(queue: Queue, certificates: Certificates) -> None:
    listener = Listener()
    with open_executor(options(workers=2, **certificates.options()), 1, listener) as executor:
        client = executor._client  # type: ignore[attr-defined]
        assert executor.parallelism == 2
        assert not executor.shares_memory
        assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]
        assert client.scheduler.address.startswith("tls://")
        assert len(queue.scripts()) == 2
        text = queue.scripts()[0].read_text()
        assert "#SBATCH -p short" in text
        assert re.search(r"--nthreads 1 --memory-limit 1.00GiB .*--lifetime 1620s --lifetime-stagger 90s", text)
        # A job that ends, by its walltime or by a fault, is submitted again.
        gone = next(iter(client.run(parent)))
        os.kill(client.run(parent, workers=[gone])[gone], signal.SIGKILL)
        until(lambda: gone not in client.nthreads() and len(client.nthreads()) == 2)
        assert len(queue.scripts()) == 3
        assert executor.submit("t", doubled, (), [[3], [4]]).result() == [6, 8]
    assert listener.warnings == []
    queue.wait_for_end()


@pytest.mark.slow
def test_an_adaptive_cluster_grows_with_the_work_and_keeps_its_limits(queue: Queue) -> None:
    with open_executor(options(adaptive=(1, 2)), 1) as executor:
        client = executor._client  # type: ignore[attr-defined]
        assert len(client.nthreads()) == 1
        assert len(queue.scripts()) == 1
        # Nobody gave certificates, so these are the run's own.
        assert client.scheduler.address.startswith("tls://")
        keys = list(queue.folder.parent.glob(".dkgp-certificates-*/*"))
        assert [stat.S_IMODE(key.stat().st_mode) for key in keys] == [0o600]
        assert stat.S_IMODE(keys[0].parent.stat().st_mode) == 0o700
        assert f"--tls-key {keys[0]}" in queue.scripts()[0].read_text()
        started = time.monotonic()
        while len(client.nthreads()) < 2:
            assert time.monotonic() < started + 120.0, "no second worker came"
            assert executor.submit("t", napping, (), [[1]] * 20).result() == [1] * 20
        assert executor.submit("t", napping, (), [[1]] * 20).result() == [1] * 20
        assert len(queue.scripts()) == 2
    queue.wait_for_end()
    assert not keys[0].parent.exists()


def napping(group: list[int]) -> list[int]:
    time.sleep(0.2)
    return group


def test_what_the_queueing_system_has_against_a_job_is_said_at_once(queue: Queue) -> None:
    (queue.folder / "closed").touch()
    with pytest.raises(ClusterError) as caught, open_executor(options(workers=2), 1):
        pass
    assert "`sbatch` did not take the workers' jobs: sbatch: error: invalid partition specified: short" in str(
        caught.value
    )
    assert queue.scripts() == []


@pytest.mark.long
def test_jobs_that_wait_in_the_queue_are_cancelled_when_time_is_up(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their turn has not come: the job is there, no worker is."""
    waiting = (
        (queue.folder.parent / "bin" / "sbatch").read_text().replace('setsid sh "$QUEUE/$$.sh"', "setsid sleep 600")
    )
    (queue.folder.parent / "bin" / "sbatch").write_text(waiting)
    with (
        pytest.raises(ClusterError, match="squeue --me"),
        open_executor(options(workers=1, worker_wait_seconds=1.0), 1),
    ):
        pass
    assert len(queue.scripts()) == 1
    queue.wait_for_end()


@pytest.mark.slow
def test_the_command_trains_on_a_queueing_system(queue: Queue, tmp_path: Path) -> None:
    import sys

    from dkgp.data import open_model

    def run(*arguments: object) -> None:
        command = [sys.executable, "-P", "-m", "dkgp", *(str(argument) for argument in arguments)]
        subprocess.run(command, check=True, timeout=240, capture_output=True, cwd=tmp_path)

    # Jobs begin in the folder that they are submitted from; what lies there runs in none of them.
    (tmp_path / "psutil.py").write_text("open('it-ran', 'w')")
    rows = "\n".join(f"{i / 100},{(i * 37 % 100) / 100},{(i % 17) / 10}" for i in range(400))
    (tmp_path / "data.csv").write_text("a,b,y\n" + rows + "\n")
    (tmp_path / "hyper.json").write_text(
        '{"kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.5, 0.5]}, "noise_variance": 0.1}'
    )
    run("ingest", "data.csv", "train.zarr", "--target", "y")
    train = ("train", "train.zarr", "--hyper", "hyper.json", "--block-size", 100)
    cluster = "--cluster slurm --workers 2 --threads-per-worker 1 --worker-memory 1GiB --cluster-option interface=lo"
    run(*train, "--out", "here.zarr", "--cluster", "none")
    run(*train, "--out", "there.zarr", *cluster.split())
    assert len(queue.scripts()) == 2
    models = [open_model(str(tmp_path / name)).alpha.tobytes() for name in ("here.zarr", "there.zarr")]
    assert models[0] == models[1]
    assert not (tmp_path / "it-ran").exists()
    queue.wait_for_end()
