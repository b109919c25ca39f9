"""Tasks whose workers died: submitted again while the round gets on, refused by name where they kill."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from distributed import Client, KilledWorker, Scheduler, get_worker, wait
from distributed.scheduler import WorkerState
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster.executors.dask import KILLS_IN_VAIN, MOST_KILLS, DaskExecutor, Kills
from dkgp.errors import ClusterError
from tests.cluster.executors.test_dask import forgotten
from tests.workers import local_cluster

pytestmark = pytest.mark.usefixtures("stage")

begun: Counter[int] = Counter()
lock = threading.Lock()
scheduler: Scheduler


@pytest.fixture
def stage() -> None:
    begun.clear()


@contextmanager
def mortal_workers(count: int, allowed_failures: int = 0) -> Iterator[tuple[DaskExecutor, Client]]:
    """Workers of one thread in this process, none of whom is replaced; tasks go over the wire as to others."""
    global scheduler
    with local_cluster(count, **{"distributed.scheduler.allowed-failures": allowed_failures}) as (cluster, client):
        scheduler = cluster.scheduler
        executor = DaskExecutor(client, round_deadline_seconds=240.0)
        yield executor, client
        executor.close()


def end_this_worker() -> None:
    """End the process as a worker that dies during a task."""
    removal = scheduler.remove_worker(get_worker().address, expected=False, stimulus_id="a test")
    asyncio.run_coroutine_threadsafe(removal, scheduler.loop.asyncio_loop).result(240.0)


def deadly(deaths: dict[int, int], group: list[int]) -> list[str]:
    """Ends its worker so many times, by the group's first item; the others take their time."""
    with lock:
        begun[group[0]] += 1
        times = begun[group[0]]
    if times <= deaths.get(group[0], 0):
        end_this_worker()
    time.sleep(0.02)
    return [str(item) for item in group]


def test_a_round_goes_on_with_the_tasks_that_failed() -> None:
    with mortal_workers(6) as (executor, client):
        owners = list(client.scheduler_info()["workers"])[:4]
        pending = executor.submit("round", deadly, ({2: 1},), [[0], [1], [2, 20], [3]], owners)
        assert pending.result() == ["0", "1", "2", "20", "3"]
        assert forgotten(client)
    # One on each worker: nothing but what died was begun twice.
    assert begun == {0: 1, 1: 1, 2: 2, 3: 1}


def test_a_task_that_always_kills_is_refused_by_name_after_few_attempts() -> None:
    with mortal_workers(6) as (executor, client):
        with pytest.raises(
            ClusterError, match=r"same task: \d of them on task 1 of round 1, the last one inproc:"
        ) as caught:
            executor.submit("round", deadly, ({1: 99},), [[0], [1], [2]]).result()
        assert isinstance(caught.value.__cause__, KilledWorker)
        assert "the last checkpoint can be resumed" in str(caught.value)
        assert begun[1] == KILLS_IN_VAIN
        assert max(begun.values()) == KILLS_IN_VAIN  # the others' results may have gone down with it
        # The cluster is of use to others.
        assert executor.submit("round", deadly, ({},), [[5], [6]]).result() == ["5", "6"]
        del caught
        assert forgotten(client)


def test_the_only_task_of_a_round_is_tried_again_and_then_refused() -> None:
    with mortal_workers(5) as (executor, _):
        assert executor.submit("round", deadly, ({0: KILLS_IN_VAIN - 1},), [[0]]).result() == ["0"]
        with pytest.raises(ClusterError, match="on task 0 of round 2"):
            executor.submit("round", deadly, ({1: 99},), [[1]]).result()
    assert begun == {0: KILLS_IN_VAIN, 1: KILLS_IN_VAIN}


def test_each_attempt_has_the_failures_that_the_scheduler_allows() -> None:
    with mortal_workers(7, allowed_failures=2) as (executor, _):
        pending: Any = executor.submit("round", deadly, ({0: 5},), [[0]])
        assert pending.result() == ["0"]
        assert pending._kills._counts == {0: 1}
    assert begun == {0: 6}


def second_time_deadly(group: list[int]) -> list[str]:
    """Ends its worker where it computes the first item again."""
    with lock:
        begun[group[0]] += 1
        times = begun[group[0]]
    if group[0] == 0 and times == 2:
        end_this_worker()
    return [str(item) for item in group]


@pytest.mark.parametrize("count", [2, 8])
def test_a_result_that_is_lost_before_it_is_fetched_and_kills_when_computed_again(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mortal_workers(6) as (executor, client):
        pending: Any = executor.submit("round", second_time_deadly, (), [[item] for item in range(count)])
        fetch = pending._fetch
        lost: list[int] = []

        def fetch_late(seconds: float) -> None:
            if not lost:
                with client.as_current():
                    wait(list(pending._futures.values()), timeout=240.0)
                held = client.who_has(list(pending._futures.values()))
                places = {future.key: index for index, future in pending._futures.items()}
                (holder,) = held[pending._futures[0].key]
                lost.extend(places[key] for key, workers in held.items() if holder in workers)
                removal = scheduler.remove_worker(holder, expected=False, stimulus_id="a test")
                asyncio.run_coroutine_threadsafe(removal, scheduler.loop.asyncio_loop).result(240.0)
            fetch(seconds)

        monkeypatch.setattr(pending, "_fetch", fetch_late)
        assert pending.result() == [str(item) for item in range(count)]
        # With it go others that the worker held; whether they are begun twice before they are fetched is chance.
        counts = pending._kills._counts
        assert counts[0] == 1
        assert set(counts) <= set(lost)
        assert forgotten(client)
    assert begun[0] == 3


def test_what_a_task_raises_comes_before_what_the_scheduler_says() -> None:
    def raising(group: list[int]) -> list[str]:
        if group[0] == 2:
            raise ZeroDivisionError("a bug")
        return deadly({0: 99}, group)

    with (
        mortal_workers(5) as (executor, _),
        pytest.raises(ZeroDivisionError, match="a bug"),
    ):
        executor.submit("round", raising, (), [[0], [1], [2]]).result()


@pytest.mark.long
def test_what_belongs_to_nobody_is_not_started_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.cluster.executors.dask.WAIT_SECONDS", 0.05)
    (first, second) = client.scheduler_info()["workers"]
    executor = DaskExecutor(client)
    assert executor.submit("round", slow, (), [[0], [1], [2]], ["", first, second]).result() == ["0", "1", "2"]
    assert set(begun.values()) == {1}
    executor.close()


def slow(group: list[int]) -> list[str]:
    with lock:
        begun[group[0]] += 1
    time.sleep(0.3)
    return [str(group[0])]


def killed(*keys: tuple[int, int]) -> dict[Any, KilledWorker]:
    """Return the errors of workers that died, by index and move of the task."""
    told = {"server_id": "1", "services": {}, "versions": {}, "extra": {}, "local_directory": "", "nanny": ""}
    counts = {"pid": 1, "nthreads": 1, "memory_limit": 1}
    worker = WorkerState(address="tcp://10.0.0.1:1", status="closed", name="1", scheduler=None, **counts, **told)  # type: ignore[arg-type]
    tasks = [("round", "run", 7, 0, index, move) for index, move in keys]
    return {task: KilledWorker(task, worker, allowed_failures=3) for task in tasks}


def test_the_same_failure_told_twice_counts_once() -> None:
    kills = Kills()
    for _ in range(5):
        kills.judge(killed((3, 0)), done=0)
    with pytest.raises(ClusterError, match="8 of them on task 3 of round 7"):
        kills.judge(killed((3, 1)), done=0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_rounds_that_get_on_are_refused_for_one_tasks_kills_alone(steps: list[int]) -> None:
    """However the others get on, a task is submitted `MOST_KILLS` times at most, `KILLS_IN_VAIN` where they do not."""
    kills, done, times, in_vain = Kills(), 0, 0, 0
    for move, step in enumerate(steps):
        done += step
        times, in_vain = times + 1, 1 if step else in_vain + 1
        if times == MOST_KILLS or in_vain == KILLS_IN_VAIN:
            with pytest.raises(ClusterError, match=f"{4 * times} of them"):
                kills.judge(killed((0, move)), done)
            return
        kills.judge(killed((0, move)), done)


def test_a_round_that_takes_too_long_tells_of_the_task() -> None:
    kills = Kills()
    assert kills.explanation() == ""
    kills.judge(killed((4, 0)), done=3)
    assert "task 4, which was submitted 2 times" in kills.explanation()
