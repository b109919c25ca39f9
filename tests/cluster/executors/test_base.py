"""Cutting rounds into groups, and the executor that needs no Dask."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import split_evenly
from dkgp.errors import StoreError


@given(st.integers(0, 200), st.integers(-1, 50))
def test_split_is_even_in_order_and_complete(count: int, parts: int) -> None:
    groups = split_evenly(range(count), parts)
    assert [item for group in groups for item in group] == list(range(count))
    assert all(groups)
    assert len(groups) == min(max(1, parts), count)
    lengths = [len(group) for group in groups]
    assert not lengths or max(lengths) - min(lengths) <= 1


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    local = LocalExecutor(3)
    yield local
    local.close()


def late_first(factor: int, group: list[int]) -> list[int]:
    time.sleep(0.05 if 0 in group else 0.0)
    return [factor * item for item in group]


def damaged(group: list[int]) -> list[int]:
    raise StoreError(f"chunk {group[0]} is damaged")


def test_results_come_in_block_order(executor: LocalExecutor) -> None:
    pending = executor.submit("blocks", late_first, (10,), split_evenly(range(10), 4))
    assert pending.result() == [10 * item for item in range(10)]
    assert pending.done()


def test_tasks_run_side_by_side(executor: LocalExecutor) -> None:
    meeting = threading.Barrier(3, timeout=10.0)
    pending = executor.submit("blocks", lambda group: [meeting.wait() >= 0 for _ in group], (), [[0], [1], [2]])
    assert pending.result() == [True, True, True]
    assert executor.parallelism == 3


def test_a_tasks_error_comes_through_as_itself(executor: LocalExecutor) -> None:
    with pytest.raises(StoreError, match="chunk 5 is damaged"):
        executor.submit("blocks", damaged, (), [[5], [6]]).result()
    assert executor.submit("blocks", late_first, (1,), [[1]]).result() == [1]
