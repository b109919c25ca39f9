"""Settings of the preconditioner: what is chosen from sizes alone, what is refused, what a checkpoint compares."""

from __future__ import annotations

from typing import Any

import pytest

from dkgp.errors import InputError
from dkgp.solvers import ConjugateGradient, FactorPreconditioning
from dkgp.solvers.prices import Sizes

GIBIBYTE = 1024**3


@pytest.mark.parametrize("n", [10, 300, 3_000, 30_000, 300_000, 1_000_000])
def test_what_is_chosen_fits_the_memory_and_the_samples(n: int) -> None:
    chosen = FactorPreconditioning().resolved(n, 8)
    assert 1 <= chosen.leaf <= chosen.halo <= n
    assert 0 <= chosen.rank <= min(n, 300)
    assert 4 * n * chosen.numbers <= max(GIBIBYTE, 2560 * n)
    assert chosen.resolved(n, 8) == chosen


def test_a_halo_follows_the_samples() -> None:
    assert FactorPreconditioning().resolved(20_000, 8) == FactorPreconditioning(1000, 500, 200)
    # 8 sqrt(n) of them, since a twentieth would cost as much as many products.
    assert FactorPreconditioning(rank=0).resolved(40_000, 8).halo == 1600
    assert FactorPreconditioning(900, rank=0).resolved(40_000, 8) == FactorPreconditioning(900, 450, 0)
    assert FactorPreconditioning(rank=0, leaf=100, memory_bytes=40_000_000).resolved(20_000, 8).halo == 400


def test_the_rank_alone_follows_memory_and_samples() -> None:
    assert FactorPreconditioning(0).resolved(10_000, 8).rank == 1000
    assert FactorPreconditioning(0, memory_bytes=4_000_000).resolved(10_000, 8).rank == 100
    assert FactorPreconditioning(0).resolved(50, 8).rank == 50
    assert FactorPreconditioning(0, rank=70).resolved(50, 8).rank == 50
    assert FactorPreconditioning(700, 60, 80).resolved(50, 8) == FactorPreconditioning(50, 50, 50)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": -1}, "rank must be 'auto' or at least 0; got -1"),
        ({"halo": -1}, "halo must be 'auto' or at least 0; got -1"),
        ({"leaf": 0}, "leaf must be 'auto' or at least 1; got 0"),
        ({"halo": 0, "rank": 0}, "got `halo` 0 and `rank` 0. Raise one of them, or.*`solver` cg"),
        ({"halo": 0, "leaf": 5}, "a leaf goes with a halo; got `leaf` 5 and `halo` 0"),
        ({"rank": 0, "landmarks": "uniform"}, "no landmarks to draw with `rank` 0; got `landmarks` uniform"),
        ({"landmarks": "best"}, "landmarks must be one of pivoted, uniform, polynomials; got 'best'"),
        ({"memory_bytes": 0}, "must not be negative"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FactorPreconditioning(**settings)


@pytest.mark.parametrize(
    ("settings", "numbers"), [({"halo": 0, "rank": 1000}, 1000), ({"halo": 600, "leaf": 300}, 906), ({"rank": 30}, 30)]
)
def test_what_is_named_beyond_its_memory_is_refused_with_numbers(settings: dict[str, Any], numbers: int) -> None:
    expected = f"takes {40_000 * numbers:,} bytes.*may take 1,000,000. Lower them to 25 in all"
    with pytest.raises(InputError, match=expected):
        FactorPreconditioning(**settings, memory_bytes=1_000_000).resolved(10_000, 8)
    # Where nobody gave a limit, the plan of the run's memory is to refuse.
    FactorPreconditioning(**settings).resolved(10**7, 8)


def test_a_low_rank_factor_alone_keeps_the_settings_of_before() -> None:
    """So that its checkpoints are gone on from."""
    solver = ConjugateGradient(FactorPreconditioning(0)).resolved(40_000, 8)
    assert solver.settings() == {
        "solver": "pcg",
        "precision": "mixed",
        "preconditioner": {"rank": 2000, "landmarks": "pivoted", "memory_bytes": GIBIBYTE, "seed": 0},
    }
    assert FactorPreconditioning(900, 450, 7).settings()["halo"] == 900


class TestGrowth:
    def test_it_doubles_halo_and_leaf_as_far_as_memory_goes(self) -> None:
        small = FactorPreconditioning(500, 250, 100, memory_bytes=4 * 30_000 * 4000)
        assert small.grown(30_000) == FactorPreconditioning(1000, 500, 100, memory_bytes=small.memory_bytes)
        assert small.grown(30_000, 2).halo == 2000
        assert small.grown(30_000, 3) == small.grown(30_000, 2)
        assert small.grown(1000) == small
        assert FactorPreconditioning(0, rank=100).grown(30_000).halo == 0
        # Memory is planned for the largest.
        held = small.memory(30_000, 8)
        assert held.cached_bytes > 4 * 30_000 * 2000 > FactorPreconditioning(500, 250, 100).numbers * 4 * 30_000
        assert held.own_bytes > 0
        assert FactorPreconditioning(0, rank=200).memory(30_000, 8).factor_bytes == 200 * (4 * 30_000 + 16 * 200)

    def test_its_price_is_that_of_its_operations(self) -> None:
        """At n = 30,000 and s = 1,500 it was measured to cost as much as 21 products, and an application a quarter.

        Prices are good to half of that.
        """
        price = FactorPreconditioning(1500, 750, 0).price(Sizes(30_000, 8))
        product = FactorPreconditioning(0, rank=1).price(Sizes(30_000, 8)).iteration
        assert 14 < price.build / product < 32
        assert 1.1 < price.iteration / product < 1.5
