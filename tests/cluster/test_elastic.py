"""An adaptive cluster's size follows its rounds: rounds are cut for the maximum, and workers that wait stay."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, elastic, open_executor
from dkgp.cluster.elastic import RoundAdaptive
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.cluster.starters.local import local_arguments
from dkgp.cluster.threads import available_cores
from tests.cluster.helpers import Listener


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
        until = time.monotonic() + 60.0
        while len(executor._client.nthreads()) < 2:  # type: ignore[attr-defined]
            assert time.monotonic() < until, "no second worker came"
            groups = [[number] for number in range(executor.parallelism)]
            assert executor.submit("t", napping, (), groups).result() == [0, 1]
