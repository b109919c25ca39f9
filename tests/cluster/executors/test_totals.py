"""Totals of integers: the same for any workers, any cut, in any order, and whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Scheduler, get_worker
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors import dask as dask_executors
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, RoundTasks
from dkgp.cluster.executors.dask import DaskExecutor, Graph
from dkgp.cluster.executors.sums import Accumulators, Totals, add_totals
from dkgp.errors import ClusterError, StoreError
from tests.cluster.executors.test_dask import forgotten
from tests.workers import local_cluster

RANGES = 6
begun: Counter[str] = Counter()
deaths: Counter[str] = Counter()
lock = threading.Lock()
scheduler: Scheduler


def squares(ranges: int) -> list[tuple[int, int]]:
    return [(r, s) for r in range(ranges) for s in range(r + 1)]


def square_task(seed: int, values: dict[int, Any], group: list[tuple[int, int]]) -> list[Totals]:
    """Parts of two ranges, of numbers up to the largest, so that sums wrap."""
    totals: Totals = {"count": np.zeros(1, np.int64)}
    for r, s in group:
        numbers = np.random.default_rng((seed, r, s)).integers(-(2**63), 2**63 - 1, (2, 5), endpoint=True)
        for key, other, part in ((r, s, numbers[0]), (s, r, numbers[1])):
            totals[key] = totals.get(key, np.zeros(5, np.int64)) + part * values[other]
        totals["count"] += 1
    return [totals]


def round_of(groups: list[list[tuple[int, int]]], gives: bool = True, owners: list[str] | None = None) -> RoundTasks:
    values = {r: np.int64(2 * r + 1) for r in range(RANGES)}
    names = [sorted({range_ for pair in group for range_ in pair}) for group in groups]
    return RoundTasks(square_task, (7,), groups, owners, "squares", values, names, names if gives else None, not gives)


def by_hand() -> dict[Hashable, list[int]]:
    """In Python's integers, which do not wrap."""
    sums: dict[Hashable, list[int]] = {r: [0] * 5 for r in range(RANGES)}
    for r, s in squares(RANGES):
        numbers = np.random.default_rng((7, r, s)).integers(-(2**63), 2**63 - 1, (2, 5), endpoint=True)
        for key, other, part in ((r, s, numbers[0]), (s, r, numbers[1])):
            sums[key] = [each + int(number) * (2 * other + 1) for each, number in zip(sums[key], part, strict=True)]
    return {key: [(each + 2**63) % 2**64 - 2**63 for each in values] for key, values in sums.items()}


def check_totals(totals: Totals) -> None:
    pairs = len(squares(RANGES))
    assert {key: part.tolist() for key, part in totals.items()} == by_hand() | {"count": [pairs]}


def check(executor: BlockExecutor) -> None:
    pairs = squares(RANGES)
    for size in (1, 2, 4, len(pairs)):
        groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        for gives in (False, True):
            told: list[tuple[int, int]] = []
            pending = executor.start_total(round_of(groups, gives))
            check_totals(pending.result(lambda done, of, told=told: told.append((done, of))))
            assert told[-1] == (len(groups), len(groups))
            assert sorted(set(told)) == told
    with pytest.raises(StoreError, match="chunk 5 is damaged"):
        executor.start_total(RoundTasks(damaged, (), [[leaf] for leaf in range(9)])).result()


def damaged(group: list[int]) -> list[Totals]:
    if group[0] == 5:
        raise StoreError("chunk 5 is damaged")
    return [{"": np.zeros(1, np.int64)}]


@contextmanager
def on_dask(workers: int, *, processes: bool = False, in_process: bool = False, **settings: Any) -> Iterator[Any]:
    """Workers of one thread; where they are in this process, they may be treated as if they were not."""
    with local_cluster(workers, processes=processes, **settings) as (cluster, client):
        global scheduler
        scheduler = cluster.scheduler
        begun.clear()
        deaths.clear()
        executor = DaskExecutor(client, in_process=in_process, round_deadline_seconds=240.0)
        yield executor, client
        executor.close()


def test_totals_leave_their_parts_as_they_are() -> None:
    parts = [{"a": np.array([2**62])}, {"a": np.array([2**62]), "b": np.array([1])}, {"a": np.array([5])}]
    totals = add_totals(*parts)
    assert {key: part.tolist() for key, part in totals.items()} == {"a": [5 - 2**63], "b": [1]}
    assert [part["a"].tolist() for part in parts] == [[2**62], [2**62], [5]]


@given(st.data())
def test_graphs_of_any_cut_have_the_same_totals(data: st.DataObject) -> None:
    """A node of one key takes parts of this key alone, from few nodes; values are there once."""
    pairs = data.draw(st.permutations(squares(RANGES)))
    size, owned = data.draw(st.integers(1, len(pairs))), data.draw(st.booleans())
    groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    owners = [data.draw(st.sampled_from("abc")) for _ in groups] if owned else None
    gives = data.draw(st.booleans())
    graph = Graph.build_total(round_of(groups, gives, owners))
    results: list[Any] = []
    for node in graph.nodes:
        parts = [results[need] for need in node.needs]
        assert max(node.needs, default=-1) < len(results)
        if node.name == "squares-add":
            assert 2 <= len(parts) <= dask_executors.FAN_IN
            assert not gives or len(set().union(*parts) - {"count"}) == 1
        results.append(node.call(*node.arguments, *parts))
    assert [node.name for node in graph.nodes].count("squares-value") == (RANGES if gives else 1)
    check_totals(graph.finish([results[root] for root in graph.roots]))


def test_workers_that_leave_in_good_order_change_nothing() -> None:
    with on_dask(3) as (executor, client):

        def leave(done: int, of: int) -> None:
            if len(client.scheduler_info()["workers"]) > 1:
                client.retire_workers(n=1)

        groups = [[leaf] for leaf in range(10)]
        pending = executor.start_total(RoundTasks(slow, (), groups, None, "slow"))
        assert pending.result(leave)[""].tolist() == [sum(range(10))]
        assert len(client.scheduler_info()["workers"]) < 3


@pytest.mark.parametrize("threads", [1, 3])
def test_on_threads_of_this_process(threads: int) -> None:
    executor = LocalExecutor(threads)
    check(executor)
    executor.close()
    check(HereExecutor(threads))


def test_views_that_tasks_return_are_not_added_to() -> None:
    kept = np.ones((4, 3), np.int64)
    executor = LocalExecutor(2)
    totals = executor.start_total(
        RoundTasks(lambda group: [{"sum": kept[group[0]]}], (), [[0], [1], [2], [3]])
    ).result()
    executor.close()
    assert totals["sum"].tolist() == [4, 4, 4]
    assert (kept == 1).all()


@pytest.mark.parametrize("workers", [1, 3])
def test_on_workers_in_this_process(workers: int) -> None:
    with on_dask(workers, in_process=True) as (executor, _):
        check(executor)


@pytest.mark.parametrize("workers", [1, 3])
def test_on_workers_and_nothing_stays_on_the_scheduler(workers: int) -> None:
    with on_dask(workers) as (executor, client):
        check(executor)
        pairs, known = squares(RANGES), list(executor.workers)
        owners = [known[index % workers] for index in range(len(pairs))]
        check_totals(executor.start_total(round_of([[pair] for pair in pairs], owners=owners)).result())
        assert forgotten(client)


def end_this_worker() -> None:
    """Have the scheduler see a worker that dies in mid-task."""
    removal = scheduler.remove_worker(get_worker().address, expected=False, stimulus_id="a test")
    asyncio.run_coroutine_threadsafe(removal, scheduler.loop.asyncio_loop).result(240.0)


def die_in(phase: str, struck: bool) -> None:
    """End the worker the first times that the phase of one task is begun, as often as `deaths` says."""
    if not struck:
        return
    with lock:
        begun[phase] += 1
        dies = begun[phase] <= deaths[phase]
    if dies:
        end_this_worker()


def mortal_square_task(seed: int, values: dict[int, Any], group: list[tuple[int, int]]) -> list[Totals]:
    die_in("leaf", group[0] == (3, 1))
    return square_task(seed, values, group)


def mortal_value(value: Any) -> Any:
    die_in("value", value == 5)
    return value


def mortal_part(*arguments: Any) -> Totals:
    die_in("part", arguments[0] == 2)
    return part_of(*arguments)


def mortal_add(*parts: Totals) -> Totals:
    die_in("add", 2 in parts[0])
    return add_totals(*parts)


part_of = dask_executors._part
REFUSED = r"same task: \d of them on task \d+ of squares{} 1"


def mortal_round(monkeypatch: pytest.MonkeyPatch) -> RoundTasks:
    """A round whose values, tasks, parts and additions may end their workers."""
    for name, function in (("_same", mortal_value), ("_part", mortal_part), ("add_totals", mortal_add)):
        monkeypatch.setattr(dask_executors, name, function)
    tasks = round_of([[pair] for pair in squares(RANGES)])
    return RoundTasks(mortal_square_task, (7,), tasks.groups, None, "squares", tasks.values, tasks.needs, tasks.gives)


@pytest.mark.parametrize("phase", ["value", "leaf", "part", "add"])
@pytest.mark.parametrize("allowed", [0, 2])
def test_a_worker_that_dies_in_any_phase_changes_nothing(
    phase: str, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_dask(5, **{"distributed.scheduler.allowed-failures": allowed}) as (executor, client):
        deaths[phase] = 4 if allowed else 1
        pending: Any = executor.start_total(mortal_round(monkeypatch))
        monkeypatch.undo()
        told: list[tuple[int, int]] = []
        check_totals(pending.result(lambda done, of: told.append((done, of))))
        assert begun[phase] > deaths[phase]
        assert sorted(set(told)) == told
        assert told[-1] == (len(squares(RANGES)),) * 2
        assert forgotten(client)


@pytest.mark.parametrize(("phase", "name"), [("leaf", ""), ("add", "-add"), ("value", "-value")])
def test_a_phase_that_always_kills_is_refused_by_name(phase: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_dask(9, **{"distributed.scheduler.allowed-failures": 0}) as (executor, client):
        deaths[phase] = 99
        pending = executor.start_total(mortal_round(monkeypatch))
        with pytest.raises(ClusterError, match=REFUSED.format(name)):
            pending.result()
        assert forgotten(client)


def test_parts_that_are_lost_before_they_are_fetched_are_computed_again() -> None:
    with on_dask(3) as (executor, client):
        pending = executor.start_total(round_of([[pair] for pair in squares(RANGES)]))
        fetch, lost = pending._fetch, []

        def fetch_late(seconds: float) -> Any:
            if not lost and pending._status(pending._roots[0]) == "finished":
                lost.append(next(iter(client.who_has([pending._futures[pending._roots[0]]]).values()))[0])
                removal = scheduler.remove_worker(lost[0], expected=False, stimulus_id="a test")
                asyncio.run_coroutine_threadsafe(removal, scheduler.loop.asyncio_loop).result(240.0)
            return fetch(seconds)

        pending._fetch = fetch_late
        check_totals(pending.result())
        assert lost
        assert forgotten(client)


def test_a_total_outlives_its_scheduler_by_an_error() -> None:
    with on_dask(2) as (executor, client):
        pending = executor.start_total(RoundTasks(slow, (), [[leaf] for leaf in range(8)], None, "slow"))
        client.cluster.close()
        with pytest.raises(ClusterError, match="the last checkpoint can be resumed"):
            pending.result()


def slow(group: list[int]) -> list[Totals]:
    time.sleep(0.2)
    return [{"": np.array(group)}]


def test_tasks_of_an_owner_run_elsewhere_when_all_workers_were_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executors, "WAIT_SECONDS", 0.2)
    with on_dask(1) as (executor, client):
        (owner,) = executor.workers
        pending = executor.start_total(RoundTasks(slow, (), [[1], [2], [3]], [owner] * 3, "slow"))
        removal = scheduler.remove_worker(owner, expected=False, stimulus_id="a test")
        asyncio.run_coroutine_threadsafe(removal, scheduler.loop.asyncio_loop).result(240.0)
        client.cluster.scale(2)
        assert pending.result()[""].tolist() == [6]
        assert forgotten(client)


# The time of a clock that only tasks advance; how many tasks were counted and not followed by another; the end.
now, counted, over = [0.0], threading.Semaphore(), threading.Event()


def second(group: list[int]) -> list[Totals]:
    """Take a second, once the task before was counted."""
    assert counted.acquire(timeout=240.0)
    now[0] += 1.0
    return [{"": np.array(group)}]


def endless(group: list[int]) -> list[Totals]:
    while not over.wait(0.01):
        now[0] += 0.1
    return [{"": np.array(group)}]


def test_the_deadline_counts_from_the_last_task_that_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_dask(1) as (executor, _):
        monkeypatch.setattr(executor, "_terms", replace(executor._terms, deadline_seconds=1.5))
        monkeypatch.setattr(dask_executors, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: now[0]}))
        monkeypatch.setattr(dask_executors, "WATCH_SECONDS", 0.05)
        pending = executor.start_total(RoundTasks(second, (), [[1]] * 4, None, "second"))
        assert pending.result(lambda *_: counted.release())[""].tolist() == [4]
        pending = executor.start_total(RoundTasks(endless, (), [[1]], None, "endless"))
        try:
            with pytest.raises(ClusterError, match="did not finish a task within 2 s; the cluster has 1 workers"):
                pending.result()
        finally:
            over.set()


@pytest.mark.faults
def test_workers_that_are_killed_or_frozen_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_executors, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(dask_executors, "SILENT_SECONDS", 15.0)
    groups = [[leaf] for leaf in range(24)]
    with on_dask(3, processes=True) as (executor, client):
        for end in (signal.SIGKILL, signal.SIGSTOP):
            struck: list[int] = []

            def strike(done: int, of: int, end: int = end, struck: list[int] = struck) -> None:
                if not struck and done >= 6:
                    struck.append(next(iter(client.run(os.getpid).values())))
                    os.kill(struck[0], end)

            # A round that waited for the lost worker would end in an error, by its deadline.
            pending = executor.start_total(RoundTasks(slow, (), groups, None, "slow"))
            assert pending.result(strike)[""].tolist() == [sum(range(24))]
            assert struck


class Heavy:
    """An argument that counts how often it is pickled here."""

    pickled = 0

    def __reduce__(self) -> tuple[type[bytearray], tuple[int]]:
        Heavy.pickled += 1
        return bytearray, (2_000_000,)


def weighed(heavy: bytearray, group: list[int]) -> list[Totals]:
    return [{"": np.array([len(heavy) + group[0]], np.int64)}]


@pytest.mark.long
def test_what_all_tasks_take_is_sent_once() -> None:
    Heavy.pickled = 0
    with on_dask(2, processes=True) as (executor, *_):
        totals = executor.start_total(RoundTasks(weighed, (Heavy(),), [[leaf] for leaf in range(16)])).result()
    assert totals[""].tolist() == [16 * 2_000_000 + 120]
    assert Heavy.pickled <= 2  # distributed may try once more, by cloudpickle


def test_who_is_told_may_end_it() -> None:
    executor, done, stopped = LocalExecutor(1), [], threading.Event()

    def note(group: list[int]) -> list[Totals]:
        done.append(group)
        if len(done) > 1:
            stopped.wait(240.0)
        return [{}]

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.start_total(RoundTasks(note, (), [[leaf] for leaf in range(200)])).result(stop)
    stopped.set()
    executor.close()
    assert len(done) <= 2


def test_a_total_without_progress_waits_without_looking_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    wait = Accumulators.wait
    monkeypatch.setattr(Accumulators, "wait", lambda self, seen: (waits.append(seen), wait(self, seen))[1])
    executor, slow = LocalExecutor(2), threading.Event()

    def task(group: list[int]) -> list[Totals]:
        if group != [0]:
            slow.wait(0.05)
        return [{"sum": np.ones(1, np.int64)}]

    totals = executor.start_total(RoundTasks(task, (), [[leaf] for leaf in range(4)])).result()
    executor.close()
    assert totals["sum"] == 4
    assert len(waits) <= 4 + 1  # once for each leaf, not for as long as the others take
