"""Totals of integers: the same for any workers, any cut, in any order, and whoever dies."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, RoundTasks
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.cluster.executors.sums import Totals, add_totals
from dkgp.errors import StoreError
from tests.cluster.executors.test_dask import forgotten

RANGES = 6


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
    return RoundTasks(square_task, (7,), groups, owners, "squares", values, names, names if gives else None)


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
    with (
        warnings.catch_warnings(),
        dask.config.set({"distributed.worker.profile.enabled": False} | settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=processes,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        warnings.simplefilter("ignore")  # workers are lost here on purpose
        executor = DaskExecutor(client, in_process=in_process, round_deadline_seconds=30.0)
        yield executor, client
        executor.close()


def test_totals_leave_their_parts_as_they_are() -> None:
    parts = [{"a": np.array([2**62])}, {"a": np.array([2**62]), "b": np.array([1])}, {"a": np.array([5])}]
    totals = add_totals(*parts)
    assert {key: part.tolist() for key, part in totals.items()} == {"a": [5 - 2**63], "b": [1]}
    assert [part["a"].tolist() for part in parts] == [[2**62], [2**62], [5]]


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
