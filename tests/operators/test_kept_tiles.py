"""Tiles that are kept: within the budget, and out of turn first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from dkgp.cluster.cache import TileBudget
from dkgp.kernels.tiles.evaluator import KeptTiles
from dkgp.operators import keeping as keeping_module
from dkgp.operators.keeping import Keeping, TileCache, TileRequest

ROOM = 100  # bytes of a pair


def room() -> KeptTiles:
    return KeptTiles(np.empty(ROOM, np.int8))


def fill(tiles: KeptTiles | None) -> None:
    if tiles is not None:
        tiles.filled = True


def use(cache: TileCache, pair: tuple[int, int], turn: int, budget: int = 3 * ROOM, run: str = "run") -> bool:
    return cache.use(TileRequest(run, pair, Keeping(TileBudget(budget), turn), room), fill)


def test_what_fits_is_kept_and_stays() -> None:
    cache = TileCache()
    pairs = [(i, 0) for i in range(5)]
    assert [use(cache, pair, 1) for pair in pairs] == [False] * 5
    # A cache that put out the oldest would hold none of the first three by now.
    for turn in (2, 3):
        assert [use(cache, pair, turn) for pair in pairs] == [True] * 3 + [False] * 2
    assert cache.nbytes == 3 * ROOM


def test_what_a_whole_product_passed_by_makes_room() -> None:
    cache = TileCache()
    for pair in [(0, 0), (1, 0), (2, 0)]:
        use(cache, pair, 1)
    for turn in (2, 3):
        assert [use(cache, pair, turn) for pair in [(0, 0), (1, 0)]] == [True] * 2
        assert not use(cache, (9, 0), turn)
    assert use(cache, (9, 0), 4)
    assert not use(cache, (2, 0), 4)
    assert cache.nbytes == 3 * ROOM


@pytest.mark.parametrize("later", [1.0, 800.0])
def test_tiles_of_another_run_stay_until_it_is_long_gone(monkeypatch: pytest.MonkeyPatch, later: float) -> None:
    cache, now = TileCache(), [1000.0]
    monkeypatch.setattr(keeping_module.time, "monotonic", lambda: now[0])
    use(cache, (0, 0), 7, ROOM, "old")
    use(cache, (0, 0), 1, ROOM, "new")
    assert not use(cache, (0, 0), 2, ROOM, "new")
    now[0] += keeping_module.FORGOTTEN_SECONDS + later
    use(cache, (0, 0), 3, ROOM, "new")
    assert use(cache, (0, 0), 4, ROOM, "new")
    assert not use(cache, (0, 0), 8, ROOM, "old")


def test_a_run_is_forgotten_as_a_whole() -> None:
    cache = TileCache()
    use(cache, (0, 0), 1, run="one")
    use(cache, (0, 0), 1, run="other")
    cache.discard_run("one")
    assert cache.nbytes == ROOM
    assert use(cache, (0, 0), 2, run="other")
    assert not use(cache, (0, 0), 2, run="one")


def test_nothing_is_kept_where_the_machine_has_little_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found = psutil.virtual_memory()
    monkeypatch.setattr(keeping_module.psutil, "virtual_memory", lambda: found._replace(available=found.total // 50))
    cache = TileCache()
    assert not use(cache, (0, 0), 1)
    assert not use(cache, (0, 0), 2)
    assert cache.nbytes == 0


@pytest.mark.parametrize(("more", "kept"), [(-1, False), (1, True)])
def test_what_is_kept_is_not_of_the_memory_that_stays_free(
    monkeypatch: pytest.MonkeyPatch, more: int, kept: bool
) -> None:
    found, total = psutil.virtual_memory(), 10**9
    free = int(keeping_module.SPARED_SHARE * total) + ROOM + more
    monkeypatch.setattr(keeping_module.psutil, "virtual_memory", lambda: found._replace(available=free, total=total))
    cache = TileCache()
    use(cache, (0, 0), 1)
    assert use(cache, (0, 0), 2) is kept


def test_work_that_fails_leaves_nothing_that_looks_filled() -> None:
    cache = TileCache()

    def fail(tiles: KeptTiles | None) -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        cache.use(TileRequest("run", (0, 0), Keeping(TileBudget(ROOM), 1), room), fail)
    assert not use(cache, (0, 0), 2)
    assert use(cache, (0, 0), 3)


def test_two_threads_at_one_pair_do_not_wait_for_each_other() -> None:
    cache, given = TileCache(), []
    both = threading.Barrier(2, timeout=10.0)

    def work(tiles: KeptTiles | None) -> None:
        given.append(tiles)
        both.wait()
        fill(tiles)

    with ThreadPoolExecutor(2) as pool:
        request = TileRequest("run", (0, 0), Keeping(TileBudget(ROOM), 1), room)
        tasks = [pool.submit(cache.use, request, work) for _ in range(2)]
        assert [task.result() for task in tasks] == [False, False]
    assert sum(tiles is None for tiles in given) == 1
    assert use(cache, (0, 0), 2, ROOM)
