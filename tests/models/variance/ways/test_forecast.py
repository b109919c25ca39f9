"""Forecasts of the ways to variances: against operations counted here, and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dkgp.models.variance.ways import FACTOR_EFFICIENCY, Forecast, Measured
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from tests.models.variance.variance_problems import draw

MANY = Forecast(20_000, 2_000, 10, 2, True, Measured.nominal(10))


def test_the_factor_takes_its_operations() -> None:
    prices, n, t = MANY.measured.prices, 20_000.0, 2_000.0
    operations = n**3 / (3.0 * FACTOR_EFFICIENCY) + n * n * t
    expected = (prices.double_operations * operations + prices.double_entries * (n * n / 2.0 + n * t)) / 2.0
    assert MANY.whole() == pytest.approx(expected, rel=1e-12)


def test_tiles_on_disk_and_single_samples_take_more() -> None:
    assert replace(MANY, in_memory=False).whole() > 1.2 * MANY.whole()
    one, forty = replace(MANY, tests=1), replace(MANY, tests=40)
    per_sample = MANY.measured.prices.double_operations * 20_000.0**2 / 2.0
    assert one.whole() - replace(MANY, tests=16).whole() > -16 * per_sample + 2.0 * per_sample
    assert forty.whole() < MANY.whole()


def test_the_worthwhile_rank_is_where_ways_meet() -> None:
    rank = MANY.worthwhile_rank(20_000)
    assert 1 < rank < 20_000
    assert MANY.alone(rank) <= MANY.whole() < MANY.alone(rank + 1)
    assert MANY.worthwhile_rank(50) == 50


@pytest.mark.parametrize("halo", [0, 2_000])
def test_affordable_products_take_the_seconds(halo: int) -> None:
    seconds = 3.0 * MANY.whole()
    most = MANY.affordable(1_000, halo, seconds)
    single, double = (most, 1.0) if halo else (0.0, most)
    assert MANY.iterative(1_000, halo, single, double) >= 0.9 * seconds
    assert MANY.affordable(1_000, halo, 1e-9) == 2.0


def test_seconds_are_told_as_they_go_by() -> None:
    assert MANY.shown(2.34) == "2.3 s"
    busy = replace(MANY, measured=replace(MANY.measured, slowdown=60.0))
    assert busy.shown(3.0) == "3 min"


def test_prices_are_this_machines() -> None:
    problem = draw(1, 600, 4, gamma=1.0, noise=0.1)
    measured = Measured.of(BlockContext("prices", ArrayInputs(problem.X), problem.kernel, problem.n))
    prices = measured.prices
    assert measured.slowdown >= 1.0
    assert 1e-11 < prices.entries < prices.double_entries * 1.5 < 1e-6
    assert 1e-13 < prices.operations < prices.double_operations < 1e-8
    ratio = prices.double_operations / Measured.nominal(4).prices.double_operations
    np.testing.assert_allclose(prices.vectors, ratio * Measured.nominal(4).prices.vectors)
