"""The choice of the cluster, errors if there is none, and who closes it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import psutil
import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, LocalExecutor, client_executor, connect, elastic, open_executor
from dkgp.cluster.connect import SMALL_PROBLEM_SAMPLES, UnreachableSchedulerError, performance_report
from dkgp.cluster.elastic import RoundAdaptive
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.cluster.starters.local import local_arguments
from dkgp.cluster.threads import available_cores
from dkgp.errors import ClusterError, ExitCode, InputError, UsageError
from tests.cluster.helpers import Listener, StartProcess, start_scheduler

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
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=240
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
        assert own.submit(sum, [1, 2]).result(timeout=240) == 3
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
    assert client.submit(sum, [1, 2]).result(timeout=240) == 3


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
    options = ClusterOptions(scheduler=address, connect_timeout_seconds=0.5)
    with (
        pytest.raises(UnreachableSchedulerError, match="no scheduler answered at") as caught,
        open_executor(options, 1),
    ):
        pass
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert address in str(caught.value)
    assert "dask scheduler" in str(caught.value)


def test_a_scheduler_that_never_answers_is_given_up(silent_port: int) -> None:
    options = ClusterOptions(scheduler=f"tcp://127.0.0.1:{silent_port}", connect_timeout_seconds=0.5)
    with pytest.raises(UnreachableSchedulerError), open_executor(options, 1):
        pass


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


# Waiting for workers: how many, how long, and what is said meanwhile and afterwards.


class Waiting(Listener):
    """A listener that acts once it is told that workers are waited for."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def note(self, message: str) -> None:
        super().note(message)
        if len(self.notes) == 1:
            self._act()


@pytest.mark.long
def test_the_number_asked_for_is_waited_for(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=1)
    listener = Waiting(partial(own.cluster.scale, 3))
    options = ClusterOptions(scheduler=own.scheduler.address, workers=3, worker_wait_seconds=240.0)
    with open_executor(options, 1, listener) as executor:
        assert executor.parallelism == 3
    assert listener.warnings == []
    assert listener.notes[0].startswith("waiting for workers: 1 of 3, at most")
    assert listener.notes[-1].startswith("3 of 3 workers are there after")


def test_fewer_than_asked_for_are_gone_on_with(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=2)
    listener = Listener()
    options = ClusterOptions(scheduler=own.scheduler.address, workers=5, worker_wait_seconds=0.3)
    with open_executor(options, 1, listener) as executor:
        assert executor.parallelism == 2
    (warning,) = listener.warnings
    assert "2 of 5 workers came within 0 s; going on with these" in warning


def test_none_at_all_is_an_error(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=0)
    options = ClusterOptions(scheduler=own.scheduler.address, worker_wait_seconds=0.3)
    with pytest.raises(ClusterError, match="no workers") as caught, open_executor(options, 1):
        pass
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST


@pytest.mark.long
def test_a_scheduler_that_goes_away_meanwhile_is_an_error(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=0)

    def close() -> None:
        for client in list(Client._instances):
            client._timeout = 0.5  # it was found within longer
        own.cluster.close()

    listener = Waiting(close)
    options = ClusterOptions(scheduler=own.scheduler.address, worker_wait_seconds=240.0)
    with (
        pytest.raises(ClusterError, match="stopped answering while workers were waited for"),
        open_executor(options, 1, listener),
    ):
        pass


# Dask's performance report of a run: written whole, for a run that fails too, or refused before any cluster sta.


class FakeClient:
    """A client whose scheduler draws a page of two words, or fails at it."""

    def __init__(self, bokeh: bool = True, error: Exception | None = None) -> None:
        self._bokeh, self._error, self.streams = bokeh, error, 0
        self.scheduler = type("Scheduler", (), {"performance_report": None})

    def run_on_scheduler(self, function: Any) -> object:
        return self._bokeh

    def get_task_stream(self, start: float, stop: float) -> None:
        self.streams += 1

    def sync(self, function: Any, **options: Any) -> str:
        if self._error is not None:
            raise self._error
        return "<html>tasks</html>"


def test_a_report_is_written_at_the_end(tmp_path: Path) -> None:
    path, client, listener = tmp_path / "report.html", FakeClient(), Listener()
    with performance_report(client, str(path), listener):  # type: ignore[arg-type]
        assert client.streams == 1
        assert list(tmp_path.iterdir()) == []
    assert path.read_text() == "<html>tasks</html>"
    assert list(tmp_path.iterdir()) == [path]
    assert listener.notes == [f"performance report: {path}"]


def test_a_run_that_fails_has_its_report_too(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with pytest.raises(ZeroDivisionError), performance_report(FakeClient(), str(path), Listener()):  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert path.exists()


def test_a_lost_cluster_takes_its_records_along(tmp_path: Path) -> None:
    path, listener = tmp_path / "report.html", Listener()
    with performance_report(FakeClient(error=OSError("scheduler is gone")), str(path), listener):  # type: ignore[arg-type]
        pass
    assert listener.warnings == [f"the performance report '{path}' could not be written: scheduler is gone"]
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_without_bokeh_is_refused(tmp_path: Path) -> None:
    client: Any = FakeClient(bokeh=False)
    with (
        pytest.raises(
            UsageError, match=r"`performance_report` needs bokeh in the scheduler.s environment.*dkgp\[dashboard\]"
        ),
        performance_report(client, str(tmp_path / "report.html"), Listener()),
    ):
        pass
    assert client.streams == 0


def test_what_no_report_can_describe_or_be_written_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="describes work on Dask, and `cluster` none runs without"):
        ClusterOptions(kind="none", performance_report="report.html")
    for path in (tmp_path, tmp_path / "no" / "folder.html"):
        options = ClusterOptions(kind="slurm", workers=1, performance_report=str(path))
        with pytest.raises(InputError, match="`performance_report`: .* cannot be written"), open_executor(options, 1):
            pass
    assert ClusterOptions(performance_report="a.html").anchored().performance_report == str(Path("a.html").absolute())


def test_a_small_problem_runs_on_dask_for_its_report(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    path = tmp_path / "report.html"
    options = ClusterOptions(threads_per_worker=1, performance_report=str(path))
    with open_executor(options, 10, Listener()) as executor:
        assert not isinstance(executor, LocalExecutor)
        assert executor.submit("kproduct", doubled, (), [[1]]).result() == [2]
    assert "kproduct" in path.read_text()


# Workers of spot machines: a notice (SIGTERM) hands their tasks on at once; one that comes back gets tasks agai.


def once_slow(folder: str, group: list[int]) -> list[int]:
    """Sleep for longer than the round may take, unless another worker began the same task before."""
    begun = Path(folder) / f"begun-{group[0]}"
    if not begun.exists():
        begun.write_text(str(os.getpid()))
        time.sleep(3600.0)
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
    with open_executor(ClusterOptions(scheduler=address, round_deadline_seconds=240.0), 1) as executor:
        pending = executor.submit("t", once_slow, (str(tmp_path),), [[1]])
        begun = tmp_path / "begun-1"
        until = time.monotonic() + 240.0
        while not (begun.exists() and begun.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        start("other")
        while len(executor._client.nthreads()) < 2:  # type: ignore[attr-defined]
            assert time.monotonic() < until
            time.sleep(0.05)
        noticed.send_signal(signal.SIGTERM)
        assert pending.result() == [2]
        assert noticed.wait() == 0
        start("spot")
        while len(executor._client.nthreads()) < 2:  # type: ignore[attr-defined]
            assert time.monotonic() < until
            time.sleep(0.05)
        assert len(set(executor.submit("t", pid, (), [[index] for index in range(8)]).result())) == 2


# An adaptive cluster's size follows its rounds: rounds are cut for the maximum, and workers that wait stay.


@dataclass(frozen=True)
class Task:
    key: int


def tasks(*numbers: int) -> set[Any]:
    return set(map(Task, numbers))


class Workers:
    """A cluster whose workers of two threads run the tasks that a test puts there."""

    def __init__(self, count: int) -> None:
        self.worker_spec: dict[Any, dict[str, Any]] = {name: {} for name in range(count)}
        self.scheduler = SimpleNamespace(workers={}, queued=set(), unrunnable={})
        for name in range(count):
            self.scheduler.workers[name] = SimpleNamespace(name=name, nthreads=2, processing=set(), nbytes=10 - name)


def test_a_round_that_lasts_asks_for_a_thread_for_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = Workers(1), [0.0]
    monkeypatch.setattr(elastic.time, "monotonic", lambda: clock[0])
    rule = RoundAdaptive(cluster, interval=0)
    cluster.scheduler.workers[0].processing = tasks(0, 1)
    cluster.scheduler.queued = tasks(2, 3, 4)
    assert asyncio.run(rule.target()) == 0  # the round may be over at the next look
    cluster.scheduler.queued, cluster.scheduler.unrunnable = tasks(3), dict.fromkeys(tasks(4, 5, 6))
    assert asyncio.run(rule.target()) == 3
    # The coordinator computes, then a round of two tasks runs: workers that wait are not closed.
    cluster.scheduler.workers[0].processing, cluster.scheduler.queued, cluster.scheduler.unrunnable = set(), set(), {}
    clock[0] = elastic.HOLD_SECONDS
    assert asyncio.run(rule.target()) == 3
    clock[0] += 1.0
    assert asyncio.run(rule.target()) == 0


def test_short_rounds_ask_for_workers_if_one_follows_the_other() -> None:
    """Rounds of block descent take less than a second each, and there are thousands of them."""
    cluster = Workers(1)
    rule = RoundAdaptive(cluster, interval=0)

    def targets(looks: int, every: int) -> list[int]:
        """Each look sees other tasks, five of them, and none in between."""
        found = []
        for number in range(looks):
            cluster.scheduler.workers[0].processing = set() if number % every else tasks(2 * number, 2 * number + 1)
            cluster.scheduler.queued = set() if number % every else tasks(*range(-3 * number - 3, -3 * number))
            found.append(asyncio.run(rule.target()))
        return found

    assert targets(40, 2) == [0] * 40  # the coordinator works for as long as the workers
    cluster.scheduler.queued = set()
    assert targets(10, 1)[-1] == 3
    assert set(targets(10, 1)) == {3}


def test_only_idle_workers_are_closed_and_jobs_as_a_whole() -> None:
    cluster = Workers(4)
    rule = RoundAdaptive(cluster, interval=0)
    cluster.scheduler.workers[3].processing = tasks(0)
    assert asyncio.run(rule.workers_to_close(2)) == [2, 1]
    assert asyncio.run(rule.workers_to_close(0)) == [2, 1, 0]
    for number, worker in enumerate(cluster.scheduler.workers.values()):
        worker.name = f"job-{number // 2}-{number % 2}"
    cluster.worker_spec = {f"job-{number}": {"group": ["-0", "-1"]} for number in range(2)}
    assert asyncio.run(rule.workers_to_close(1)) == ["job-0-1", "job-0-0"]


def test_rounds_are_cut_for_the_most_workers(client: Client) -> None:
    executor = DaskExecutor(client, most_workers=5)
    assert (executor.parallelism, sum(executor.workers.values())) == (5, 2)
    executor.close()


def test_workers_on_this_machine_share_its_cores_at_their_most() -> None:
    options = ClusterOptions(kind="processes", adaptive=(1, available_cores()))
    assert local_arguments(options, None)["threads_per_worker"] == 1


def napping(group: list[int]) -> list[int]:
    time.sleep(2.5)
    return group


@pytest.mark.long
def test_a_cluster_of_processes_grows_where_a_round_has_one_task_a_thread() -> None:
    options = ClusterOptions(kind="processes", adaptive=(1, 2), threads_per_worker=1, plain_text=True)
    with open_executor(options, 1, Listener()) as executor:
        until = time.monotonic() + 240.0
        while len(executor._client.nthreads()) < 2:  # type: ignore[attr-defined]
            assert time.monotonic() < until, "no second worker came"
            groups = [[number] for number in range(executor.parallelism)]
            assert executor.submit("t", napping, (), groups).result() == [0, 1]
