"""Workers of spot machines: a notice (SIGTERM) hands their tasks on at once; one that comes back gets tasks again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions, open_executor
from tests.cluster.helpers import StartProcess, start_scheduler


def once_slow(folder: str, group: list[int]) -> list[int]:
    """Sleep for a minute, unless another worker began the same task before."""
    begun = Path(folder) / f"begun-{group[0]}"
    if not begun.exists():
        begun.write_text(str(os.getpid()))
        time.sleep(60.0)
    return [2 * group[0]]


def pid(group: list[int]) -> list[int]:
    time.sleep(0.2)
    return [os.getpid()]


@pytest.mark.faults
def test_a_notice_hands_tasks_on_and_a_worker_that_comes_back_gets_some(
    start_process: StartProcess, tmp_path: Path
) -> None:
    address = start_scheduler(start_process, tmp_path)

    def start(name: str) -> Any:
        local = ("--nthreads", 1, "--no-dashboard", "--local-directory", tmp_path, "--host", "127.0.0.1")
        return start_process("dask", "worker", address, "--name", name, *local)

    noticed = start("spot")
    with open_executor(ClusterOptions(scheduler=address, round_deadline_seconds=50.0), 1) as executor:
        pending = executor.submit("t", once_slow, (str(tmp_path),), [[1]])
        begun = tmp_path / "begun-1"
        until = time.monotonic() + 30.0
        while not (begun.exists() and begun.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        start("other")
        while len(executor._client.nthreads()) < 2:  # type: ignore[attr-defined]
            assert time.monotonic() < until
            time.sleep(0.05)
        began = time.monotonic()
        noticed.send_signal(signal.SIGTERM)
        assert pending.result() == [2]
        assert time.monotonic() - began < 20.0  # neither the task's minute nor a heartbeat that is missed
        assert noticed.wait(timeout=20) == 0
        start("spot")
        while len(executor._client.nthreads()) < 2:  # type: ignore[attr-defined]
            assert time.monotonic() < until + 30.0
            time.sleep(0.05)
        assert len(set(executor.submit("t", pid, (), [[index] for index in range(8)]).result())) == 2
