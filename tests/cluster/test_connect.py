"""Which cluster is taken, what happens where there is none, and who closes what."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, LocalExecutor, client_executor, connect, open_executor
from dkgp.cluster.connect import SMALL_PROBLEM_SAMPLES, UnreachableSchedulerError
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.errors import ClusterError, ExitCode, UsageError

FEW, MANY = SMALL_PROBLEM_SAMPLES, SMALL_PROBLEM_SAMPLES + 1

StartCluster = Callable[..., Client]


def doubled(group: list[int]) -> list[int]:
    return [2 * item for item in group]


@pytest.fixture
def scheduler_file(tmp_path: Path) -> str:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": "tcp://from-file:1"}))
    return str(path)


def test_address_precedence(scheduler_file: str) -> None:
    named = {"scheduler": "tcp://named:1", "scheduler_file": scheduler_file}
    with dask.config.set({"scheduler-address": "tcp://configured:1"}):
        assert ClusterOptions(**named, kind="none").address() == "tcp://named:1"
        assert ClusterOptions(scheduler_file=scheduler_file, kind="none").address() == "tcp://from-file:1"
        for kind in ("none", "local", "processes"):
            assert ClusterOptions(kind=kind).address() is None
        assert ClusterOptions().address() == "tcp://configured:1"
    with dask.config.set({"scheduler-address": None}):
        assert ClusterOptions().address() is None


def test_address_from_the_environment() -> None:
    code = "from dkgp.cluster import ClusterOptions as C; print(C().address(), C(kind='local').address())"
    environment = {**os.environ, "DASK_SCHEDULER_ADDRESS": "tcp://environment:1"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert output.stdout.split() == ["tcp://environment:1", "None"]


@pytest.mark.parametrize(
    ("options", "n_samples"), [(ClusterOptions(kind="none"), MANY), (ClusterOptions(kind="auto"), FEW)]
)
def test_small_problems_and_none_need_no_dask(options: ClusterOptions, n_samples: int) -> None:
    with open_executor(options, n_samples) as executor:
        assert isinstance(executor, LocalExecutor)
        assert (executor.shares_memory, executor.overlaps, executor.dashboard_link) == (True, False, None)
        assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]


def test_workers_of_no_dask_are_threads() -> None:
    with open_executor(ClusterOptions(kind="none", workers=3), FEW) as executor:
        assert executor.parallelism == 3


def test_large_problems_start_a_cluster_in_this_process_and_close_it() -> None:
    children = set(psutil.Process().children(recursive=True))
    with open_executor(ClusterOptions(workers=2, threads_per_worker=1), MANY) as executor:
        assert isinstance(executor, DaskExecutor)
        assert (executor.shares_memory, executor.overlaps, executor.parallelism) == (True, True, 2)
        assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]
        assert set(psutil.Process().children(recursive=True)) == children
    with pytest.raises(ClusterError, match="closed"):
        executor.submit("t", doubled, (), [[1]])


def test_a_started_cluster_is_closed_when_the_work_fails() -> None:
    with pytest.raises(ZeroDivisionError), open_executor(ClusterOptions(kind="local"), FEW) as executor:
        raise ZeroDivisionError
    with pytest.raises(ClusterError, match="closed"):
        executor.submit("t", doubled, (), [[1]])


def test_a_cluster_that_was_found_stays_open(start_cluster: StartCluster, tmp_path: Path) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=2)
    path = tmp_path / "scheduler.json"
    own.write_scheduler_file(str(path))
    for options in (ClusterOptions(scheduler=own.scheduler.address), ClusterOptions(scheduler_file=str(path))):
        with open_executor(options, FEW) as executor:
            assert (executor.shares_memory, executor.parallelism) == (False, 2)
            assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]
        assert own.submit(sum, [1, 2]).result(timeout=10) == 3
        assert len(own.nthreads()) == 2


@pytest.mark.parametrize("reachable", [True, False])
def test_results_come_from_workers_that_can_be_reached(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=2)
    scheduler = own.cluster.scheduler
    passed_on, gather = [], scheduler.handlers["gather"]

    async def counted(*arguments: object, **keywords: object) -> object:
        passed_on.append(keywords)
        return await gather(*arguments, **keywords)

    monkeypatch.setitem(scheduler.handlers, "gather", counted)
    if not reachable:
        monkeypatch.setattr(client_executor, "REACH_SECONDS", 0.0)
    with open_executor(ClusterOptions(scheduler=scheduler.address), FEW) as executor:
        assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]
    assert (passed_on == []) is reachable
    with client_executor.open_client_executor(own) as executor:
        assert executor.submit("t", doubled, (), [[3]]).result() == [6]
    assert own.direct_to_workers is None
    assert (passed_on == []) is reachable


def test_a_callers_client_is_left_open(client: Client) -> None:
    executor = DaskExecutor(client)
    assert executor.submit("t", doubled, (), [[1]]).result() == [2]
    executor.close()
    assert client.status == "running"
    assert client.submit(sum, [1, 2]).result(timeout=10) == 3


@pytest.fixture
def silent_port() -> int:
    """A port that accepts connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:1", "127.0.0.1:1", "tcp://no-such-host.invalid:8786", "nonsense", "carrier-pigeon://coop:1"],
)
def test_an_unreachable_scheduler_is_bad_input_within_seconds(address: str) -> None:
    started = time.monotonic()
    options = ClusterOptions(scheduler=address, connect_timeout_seconds=0.5)
    with (
        pytest.raises(UnreachableSchedulerError, match="no scheduler answered at") as caught,
        open_executor(options, 1),
    ):
        pass
    assert time.monotonic() - started < 6.0
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert address in str(caught.value)
    assert "dask scheduler" in str(caught.value)


def test_a_scheduler_that_never_answers_is_given_up(silent_port: int) -> None:
    started = time.monotonic()
    options = ClusterOptions(scheduler=f"tcp://127.0.0.1:{silent_port}", connect_timeout_seconds=0.5)
    with pytest.raises(UnreachableSchedulerError), open_executor(options, 1):
        pass
    assert time.monotonic() - started < 6.0


def test_default_patience_is_below_half_a_minute() -> None:
    assert ClusterOptions().connect_timeout_seconds < 30.0


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"address": '])
def test_a_damaged_scheduler_file_is_bad_input(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(content)
    with pytest.raises(UnreachableSchedulerError, match="cannot be read") as caught:
        ClusterOptions(scheduler_file=str(path)).address()
    assert str(path) in str(caught.value)


def test_a_missing_scheduler_file_is_not_waited_for(tmp_path: Path) -> None:
    options = ClusterOptions(scheduler_file=str(tmp_path / "absent.json"))
    with pytest.raises(UnreachableSchedulerError, match="does not exist") as caught, open_executor(options, 1):
        pass
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_a_scheduler_without_workers_is_a_cluster_error(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "WORKERS_WAIT_SECONDS", 0.3)
    own = start_cluster(processes=False, protocol="tcp", n_workers=0)
    options = ClusterOptions(scheduler=own.scheduler.address)
    with pytest.raises(ClusterError, match="no workers") as caught, open_executor(options, 1):
        pass
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    assert "dask worker" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"threads_per_worker": -1}, {"kind": "mesos"}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ClusterOptions(**wrong)  # type: ignore[arg-type]
