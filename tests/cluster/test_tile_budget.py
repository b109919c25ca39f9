"""Budgets of tiles: a user's own as it is, otherwise a share of the memory that a worker is known to have."""

from __future__ import annotations

import psutil
import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.cache import MODEST_BYTES, SHARE, TileBudget, budget_elsewhere, budget_here

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
