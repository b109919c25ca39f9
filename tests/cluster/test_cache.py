"""The worker's cache: a byte budget, oldest use out first, each value built once whoever asks."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest

from dkgp.cluster import ClusterOptions, FeatureCache, open_executor
from dkgp.cluster.cache import MODEST_BYTES, SHARE, TileBudget, budget_elsewhere, budget_here


@dataclass(frozen=True)
class Value:
    nbytes: int
    name: str = ""


def never() -> Value:
    raise AssertionError("built although it was there")


def held(cache: FeatureCache, *keys: object) -> list[object]:
    """Return the keys in the cache, in the order of the request, without changing the order of use."""
    return [key for key in keys if key in cache._values]


def test_values_are_built_once_and_then_found() -> None:
    cache = FeatureCache(100)
    first = cache.get("a", lambda: Value(10))
    assert cache.get("a", never) is first
    assert (cache.hits, cache.misses, cache.nbytes) == (1, 1, 10)


def test_oldest_use_is_evicted_first() -> None:
    cache = FeatureCache(30)
    for key in "abc":
        cache.get(key, lambda: Value(10))
    cache.get("a", never)
    cache.get("d", lambda: Value(15))
    assert held(cache, *"abcd") == ["a", "d"]
    assert cache.nbytes == 25


def test_budget_is_never_exceeded() -> None:
    cache = FeatureCache(100)
    for size in (60, 50, 1, 99, 40, 100, 7):
        cache.get(size, lambda size=size: Value(size))
        assert cache.nbytes <= 100
        assert cache.nbytes == sum(value.nbytes for value in cache._values.values())


def test_a_value_above_the_budget_is_returned_but_not_kept() -> None:
    cache = FeatureCache(30)
    cache.get("small", lambda: Value(30))
    assert cache.get("large", lambda: Value(31)).nbytes == 31
    assert held(cache, "small", "large") == ["small"]
    assert cache.get("large", lambda: Value(31, "again")).name == "again"


def test_threads_share_one_build() -> None:
    cache, started, builds = FeatureCache(100), threading.Event(), []

    def build() -> Value:
        builds.append(threading.get_ident())
        started.wait()
        return Value(10)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(cache.get, "a", build) for _ in range(8)]
        started.set()
        values = {id(future.result(timeout=240)) for future in futures}
    assert len(builds) == len(values) == 1
    assert cache.nbytes == 10


def test_different_keys_are_built_side_by_side() -> None:
    cache = FeatureCache(100)
    meeting = threading.Barrier(2, timeout=240)

    def build() -> Value:
        meeting.wait()
        return Value(10)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(cache.get, key, build) for key in "ab"]
        assert [future.result(timeout=240).nbytes for future in futures] == [10, 10]


def test_bytes_stay_true_when_threads_evict_each_others_values() -> None:
    cache = FeatureCache(25)

    def work(seed: int) -> None:
        for step in range(400):
            key = (seed * step) % 5
            assert cache.get(key, lambda: Value(10)).nbytes == 10

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (1, 2, 3, 4)))
    assert cache.nbytes == 10 * len(cache._values) <= 25
    assert not cache._building


def test_a_failed_build_leaves_nothing_and_may_be_tried_again() -> None:
    cache = FeatureCache(100)

    def fail() -> Value:
        raise OSError("the store is away")

    with pytest.raises(OSError, match="away"):
        cache.get("a", fail)
    assert not cache._building
    assert cache.nbytes == 0
    assert cache.get("a", lambda: Value(10)).nbytes == 10


def test_discard_run_forgets_that_run_alone() -> None:
    cache = FeatureCache(100)
    for key in (("run-1", 0, "single"), ("run-1", 1, "double"), ("run-2", 0, "single"), "run-1"):
        cache.get(key, lambda: Value(10))
    cache.discard_run("run-1")
    assert list(cache._values) == [("run-2", 0, "single"), "run-1"]
    assert cache.nbytes == 20


def test_the_garbage_collector_may_come_while_the_cache_is_locked() -> None:
    """An estimator's finalizer abandons its values, on whatever thread the collector finds its object."""
    cache = FeatureCache(100)
    cache.get(("gone", 0), lambda: Value(10))

    class Estimator:
        def __init__(self) -> None:
            self.own = self  # only the collector can free it
            weakref.finalize(self, cache.abandon, "gone")

    class Collecting:
        @property
        def nbytes(self) -> int:
            if cache._lock.locked():
                gc.collect()
            return 10

    Estimator()
    thread = threading.Thread(target=cache.get, args=(("run", 0), Collecting), daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive(), "the finalizer waits for a lock that its own thread holds"
    assert held(cache, ("gone", 0), ("run", 0)) == [("gone", 0), ("run", 0)]
    cache.get(("run", 0), never)
    assert held(cache, ("gone", 0), ("run", 0)) == [("run", 0)]
    cache.abandon("run")
    assert cache.nbytes == 0


def test_values_of_a_family_are_weighed_and_forgotten_together() -> None:
    cache = FeatureCache(40)
    for key in (("run", 0), ("run", "leaves", "a", 0), ("run", "leaves", "a", 1), ("run", "leaves", "b", 0)):
        cache.get(key, lambda: Value(10))
    assert [cache.bytes_of("run", "leaves", name) for name in "abc"] == [20, 10, 0]
    cache.get(("run", 0), never)
    cache.get(("run", "leaves", "b", 1), lambda: Value(10))  # the first of a's is put out
    assert [cache.bytes_of("run", "leaves", name) for name in "abc"] == [10, 20, 0]
    cache.get("large", lambda: Value(50))  # is not kept
    cache.discard("run", "leaves", but="b")
    assert [cache.bytes_of("run", "leaves", name) for name in "abc"] == [0, 20, 0]
    cache.discard("run", "leaves")
    assert list(cache._values) == [("run", 0)]
    assert (cache.nbytes, dict(cache._sums)) == (10, {("run",): 10})
    cache.clear()
    assert not cache._sums


def test_a_value_may_be_returned_and_not_kept() -> None:
    cache = FeatureCache(100)
    for _ in range(2):
        assert cache.get("a", lambda: Value(10), keep=lambda value: value.nbytes > 10).nbytes == 10
    assert (cache.nbytes, cache.hits, len(cache._building)) == (0, 0, 0)
    cache.get("a", lambda: Value(20), keep=lambda value: value.nbytes > 10)
    assert cache.get("a", never).nbytes == 20


def test_clear_forgets_everything() -> None:
    cache = FeatureCache(100)
    cache.get("a", lambda: Value(10))
    cache.clear()
    assert (cache.nbytes, len(cache._values)) == (0, 0)


@pytest.mark.parametrize("budget", [0, 5])
def test_no_room_at_all_still_works(budget: int) -> None:
    cache = FeatureCache(budget)
    build: Callable[[], Value] = lambda: Value(10)  # noqa: E731
    assert [cache.get("a", build).nbytes for _ in range(2)] == [10, 10]
    assert (cache.misses, cache.nbytes) == (2, 0)


# Budgets of tiles: a user's own as it is, otherwise a share of the memory that a worker is known to have.


GIB = 2**30


def test_a_users_figure_is_taken_as_it_is() -> None:
    assert budget_here(5 * GIB, 3, GIB) == budget_elsewhere(5 * GIB, []) == TileBudget(5 * GIB)
    assert budget_here(0) == TileBudget()


def test_dkgps_own_is_a_share_of_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = psutil.virtual_memory()._replace(available=12 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: found)
    assert budget_here("auto") == TileBudget(12 * GIB // SHARE, measured=True)
    assert budget_here("auto", 4).bytes == GIB * 3 // SHARE
    assert budget_here("auto", 4, 6 * GIB).bytes == 6 * GIB // SHARE


def test_elsewhere_the_least_worker_counts_and_one_without_a_limit_keeps_nothing() -> None:
    workers = [{"memory_limit": 8 * GIB}, {"memory_limit": 6 * GIB}]
    assert budget_elsewhere("auto", workers).bytes == 6 * GIB // SHARE
    assert budget_elsewhere("auto", [*workers, {"memory_limit": None}]).bytes == 0
    assert budget_elsewhere("auto", []).bytes == 0


@pytest.mark.parametrize("kind", ["none", "local"])
def test_executors_bring_it(kind: str) -> None:
    with open_executor(ClusterOptions(kind=kind, workers=1, cache_tiles=GIB), 10**6) as executor:
        assert executor.tiles == TileBudget(GIB)
    with open_executor(ClusterOptions(kind=kind, workers=1), 10**6) as executor:
        assert executor.tiles.measured
        assert 0 < executor.tiles.bytes < psutil.virtual_memory().total // 2


def test_what_is_modest_is_of_dkgps_own_choice_alone() -> None:
    assert TileBudget(8 * GIB, measured=True).modest_bytes == GIB == MODEST_BYTES
    assert TileBudget(GIB // 2, measured=True).modest_bytes == GIB // 2
    assert TileBudget(8 * GIB).modest_bytes == 8 * GIB
