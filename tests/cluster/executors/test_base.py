"""Cutting rounds into groups, and the executor that needs no Dask."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import QuickExecutor, split_evenly
from dkgp.cluster.executors.homes import Homes
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
    meeting = threading.Barrier(3, timeout=240)
    pending = executor.submit("blocks", lambda group: [meeting.wait() >= 0 for _ in group], (), [[0], [1], [2]])
    assert pending.result() == [True, True, True]
    assert executor.parallelism == 3


def test_a_tasks_error_comes_through_as_itself(executor: LocalExecutor) -> None:
    with pytest.raises(StoreError, match="chunk 5 is damaged"):
        executor.submit("blocks", damaged, (), [[5], [6]]).result()
    assert executor.submit("blocks", late_first, (1,), [[1]]).result() == [1]


# Homes: even from the start, kept while a worker lives, and shared anew with as few moves as a change asks for.


def homes_of(homes: Homes, workers: dict[str, int], pieces: int) -> dict[int, str]:
    groups, owners = homes.groups(workers, range(pieces))
    assert sorted(itertools.chain(*groups)) == list(range(pieces))
    return {piece: owner for group, owner in zip(groups, owners, strict=True) for piece in group}


def count(found: dict[int, str], worker: str) -> int:
    return list(found.values()).count(worker)


@pytest.mark.parametrize("workers", [{"a": 1}, {"a": 1, "b": 1}, {"b": 4, "a": 1, "c": 2}])
def test_a_worker_gets_its_threads_share_of_every_stretch(workers: dict[str, int]) -> None:
    homes, threads = Homes(70), sum(workers.values())
    for start in (0, 10, 35):
        stretch = range(start, start + 5 * threads)
        groups, owners = homes.groups(workers, stretch)
        for worker, own in workers.items():
            held = sum(len(group) for group, owner in zip(groups, owners, strict=True) if owner == worker)
            assert abs(held - 5 * own) <= own


def test_groups_are_no_more_than_asked_for() -> None:
    groups, owners = Homes(40).groups({"a": 2, "b": 1}, range(40), parts=3)
    assert owners == ["a"] * 6 + ["b"] * 3
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert Homes(2).groups({"a": 8}, [1]) == ([[1]], ["a"])


def test_pieces_stay_while_their_worker_lives() -> None:
    homes = Homes(60)
    before = homes_of(homes, {"a": 1, "b": 1, "c": 1}, 60)
    assert homes_of(homes, {"c": 1, "a": 1, "b": 1}, 60) == before
    after = homes_of(homes, {"a": 1, "c": 1}, 60)
    assert {piece: after[piece] for piece in before if before[piece] != "b"} == {
        piece: home for piece, home in before.items() if home != "b"
    }
    assert count(after, "a") == count(after, "c") == 30


def test_a_worker_that_joins_gets_its_share_and_no_other_piece_moves() -> None:
    homes = Homes(60)
    before = homes_of(homes, {"a": 1, "b": 1}, 60)
    after = homes_of(homes, {"a": 1, "b": 1, "c": 1}, 60)
    moved = [piece for piece in before if after[piece] != before[piece]]
    assert {after[piece] for piece in moved} == {"c"}
    assert count(after, "c") == len(moved) == 20
    # A round takes a stretch of the pieces at a time: the new one must have work in each.
    for start in range(0, 60, 12):
        assert 2 <= sum(after[piece] == "c" for piece in range(start, start + 12)) <= 6


def test_all_workers_may_be_new() -> None:
    homes = Homes(9)
    homes_of(homes, {"a": 2, "b": 1}, 9)
    assert set(homes_of(homes, {"x": 1}, 9).values()) == {"x"}


def test_rounds_of_the_same_workers_do_not_look_through_all_pieces() -> None:
    # As many pieces as ten million samples have; looked through in each round they took 60 ms.
    class Watched(list[str | None]):
        looks = 0

        def __iter__(self) -> Iterator[str | None]:
            self.looks += 1
            return super().__iter__()

    homes, workers = Homes(187_000), {f"worker-{number}": 1 for number in range(64)}
    homes.groups(workers, range(256))
    homes._homes = watched = Watched(homes._homes)
    for start in range(256, 100 * 256, 256):
        groups, owners = homes.groups(dict(reversed(workers.items())), range(start, start + 256))
        assert sorted(owners) == sorted(workers)
        assert all(len(group) == 4 for group in groups)
    assert watched.looks == 0
    homes.groups({**workers, "one more": 1}, range(256))
    assert watched.looks > 0


def test_quick_tasks_run_on_the_thread_that_submits_them_and_slow_ones_do_not() -> None:
    executor, threads = QuickExecutor(2), []

    def task(seconds: float, group: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return [10 * block for block in group]

    here = threading.current_thread()
    assert executor.submit("quick", task, (0.0,), [[0], [1, 2]]).result() == [0, 10, 20]
    assert threads == [here, here]
    threads.clear()
    assert executor.submit("slow", task, (0.005,), [[0], [1], [2]]).result() == [0, 10, 20]
    assert executor.submit("slow", task, (0.005,), [[3], [4]]).result() == [30, 40]
    assert threads.count(here) == 1  # the first task, which shows that they are slow
    executor.close()


def test_an_error_of_a_quick_task_is_raised_where_its_result_is_asked_for() -> None:
    def task(group: list[int]) -> list[int]:
        raise ValueError(f"block {group[0]}")

    pending = QuickExecutor(1).submit("fails", task, (), [[3]])
    with pytest.raises(ValueError, match="block 3"):
        pending.result()
