"""Sums in a fixed tree, by additions that tell in which order they were made."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from distributed import Client

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.errors import ClusterError, StoreError
from tests.workers import local_cluster


def by_hand(leaves: list[str]) -> str:
    """Level by level; the last of an odd number goes up as it is."""
    while len(leaves) > 1:
        pairs = [leaves[start : start + 2] for start in range(0, len(leaves), 2)]
        leaves = [added(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return leaves[0]


def added(left: str, right: str) -> str:
    return f"({left}+{right})"


def named(group: list[int]) -> list[str]:
    time.sleep(0.002 * (group[0] % 3))  # so that they do not end in order
    return [",".join(map(str, group))]


def damaged(group: list[int]) -> list[str]:
    if group[0] == 5:
        raise StoreError("chunk 5 is damaged")
    return ["fine"]


def groups_of(leaves: int) -> list[list[int]]:
    return [[leaf, -leaf] for leaf in range(leaves)]


@contextmanager
def on_dask(workers: int, processes: bool) -> Iterator[tuple[DaskExecutor, Client]]:
    with local_cluster(workers, processes=processes) as (_, client):
        executor = DaskExecutor(client, in_process=not processes)
        yield executor, client
        executor.close()


def check(executor: BlockExecutor) -> None:
    for leaves in (1, 2, 3, 7, 8, 13):
        told: list[tuple[int, int]] = []
        pending = executor.submit_sum("sum", named, (), groups_of(leaves), added)
        found = pending.result(lambda done, of, told=told: told.append((done, of)))
        assert found == by_hand([named(group)[0] for group in groups_of(leaves)])
        assert told[-1] == (leaves, leaves)
        assert sorted(set(told)) == told
    with pytest.raises(StoreError, match="chunk 5 is damaged"):
        executor.submit_sum("sum", damaged, (), groups_of(9), added).result()


class Heavy:
    """An argument that counts how often it is pickled here."""

    pickled = 0

    def __reduce__(self) -> tuple[type[bytearray], tuple[int]]:
        Heavy.pickled += 1
        return bytearray, (2_000_000,)


def weighed(heavy: bytearray, group: list[int]) -> list[str]:
    return [f"{len(heavy)}:{group[0]}"]


@pytest.fixture(scope="module")
def on_processes() -> Iterator[tuple[DaskExecutor, Client]]:
    """Two processes."""
    with on_dask(2, processes=True) as executor_and_client:
        yield executor_and_client


@pytest.mark.long
def test_what_all_leaves_take_is_sent_once(on_processes: tuple[DaskExecutor, Client]) -> None:
    Heavy.pickled = 0
    found = on_processes[0].submit_sum("sum", weighed, (Heavy(),), groups_of(16), added).result()
    assert found == by_hand([f"2000000:{leaf}" for leaf in range(16)])
    assert Heavy.pickled <= 2  # distributed may try once more, by cloudpickle


@pytest.mark.parametrize("threads", [1, 3])
def test_on_threads_of_this_process(threads: int) -> None:
    executor = LocalExecutor(threads)
    check(executor)
    executor.close()
    check(HereExecutor(threads))


def test_few_values_wait_at_a_time() -> None:
    alive, most, lock = 0, 0, threading.Lock()

    class Value:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    executor = LocalExecutor(2)
    executor.submit_sum("sum", lambda group: [Value()], (), groups_of(64), lambda left, right: Value()).result()
    executor.close()
    # One that is made by each thread, two that it adds, and one for each level.
    assert most <= 2 * 3 + 7


def test_who_is_told_may_end_it() -> None:
    executor, done = LocalExecutor(1), []

    def note(group: list[int]) -> list[int]:
        done.append(group)
        time.sleep(0.01)
        return [0]

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.submit_sum("sum", note, (), groups_of(200), added).result(stop)
    executor.close()
    assert len(done) < 100


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_on_any_number_of_workers_in_this_process(workers: int) -> None:
    with on_dask(workers, processes=False) as (executor, _):
        check(executor)


@pytest.mark.long
def test_on_processes_and_nothing_is_left_on_the_scheduler(on_processes: tuple[DaskExecutor, Client]) -> None:
    executor, client = on_processes
    check(executor)
    until = time.monotonic() + 5.0
    left = 1
    while left and time.monotonic() < until:
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    assert left == 0


@pytest.mark.long
def test_a_sum_that_hangs_is_an_error_by_its_deadline(
    on_processes: tuple[DaskExecutor, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_dask(1, processes=False) as here:
        for executor, _ in (here, on_processes):
            monkeypatch.setattr(executor, "_terms", replace(executor._terms, deadline_seconds=0.5))
            began = time.monotonic()
            with pytest.raises(ClusterError, match=r"did not finish .*within [01] s"):
                executor.submit_sum("sum", hanging, (), groups_of(3), added).result()
            assert time.monotonic() - began < 10.0


def hanging(group: list[int]) -> list[str]:
    time.sleep(1.5)
    return [""]


def slow(group: list[int]) -> list[str]:
    time.sleep(0.15)
    return [",".join(map(str, group))]


@pytest.mark.faults
def test_a_worker_that_is_killed_in_mid_tree_changes_nothing() -> None:
    with on_dask(3, processes=True) as (executor, client):
        killed = False

        def kill(done: int, of: int) -> None:
            nonlocal killed
            if not killed and done >= 6:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
                killed = True

        pending = executor.submit_sum("sum", slow, (), groups_of(24), added)
        found = pending.result(kill)
        assert killed
        assert found == by_hand([named(group)[0] for group in groups_of(24)])
