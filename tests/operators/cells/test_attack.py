"""Products by cells withstand attacks on their bounds; attacks break bounds that are half as large."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import mpmath as mp
import numpy as np
import pytest

from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.proof import CHEAP_ORDERS, Expansion
from tests.covering import covering
from tests.operators.cells import attacks
from tests.operators.cells.attacks import KERNELS, SHAPES, attack, dense, exact_entry, scales_of


def combinations() -> list[Any]:
    """Cases that hold each pair of values; those that hold each value are quick tests, the others run as portable."""
    axes = {"shape": SHAPES, "kernel": tuple(KERNELS), "d": (1, 2, 3), "tolerance": (1e-4, 1e-8, 1e-13)}
    cases = [
        {(name,): value for name, value in zip(axes, values, strict=True)}
        for values in itertools.product(*axes.values())
    ]
    quick = covering(cases, 1)
    return [
        pytest.param(*cases[place].values(), marks=[] if place in quick else pytest.mark.portable)
        for place in sorted({*quick, *covering(cases, 2)})
    ]


@pytest.mark.parametrize(("shape", "kernel", "d", "tolerance"), combinations())
def test_no_entry_is_beyond_its_bound(
    rng: np.random.Generator, shape: Any, kernel: str, d: int, tolerance: float
) -> None:
    X = shape(120 if d < 3 else 100, d, rng)
    made = KERNELS[kernel](scales_of(X, float(rng.choice([0.05, 0.3, 2.0])), bool(rng.integers(2))))
    outcome = attack(made, X, tolerance, rng, leaf=4 if d < 3 else 12, columns=40 if d < 3 else 8)
    assert outcome.broken == 0
    assert outcome.entries > 2000
    if shape in (attacks.uniform, attacks.gridded):
        assert outcome.bound <= 100.0 * tolerance + 1e-11  # a bound that says something


@pytest.mark.portable
def test_high_orders_in_three_dimensions(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    # Orders above ten, which otherwise many pairs of cells have to share.
    monkeypatch.setattr("dkgp.operators.cells.plan._MANY_PAIRS", 0)
    settle, orders = Plan._settle, []

    def settled(plan: Plan, *arguments: Any) -> None:
        settle(plan, *arguments)
        orders.append(plan.order)

    monkeypatch.setattr(Plan, "_settle", settled)
    X = attacks.uniform(150, 3, rng)
    outcome = attack(KERNELS["Matern 3/2"]([1.2] * 3), X, 1e-11, rng, leaf=12, columns=8)
    assert orders[0] > CHEAP_ORDERS[3]
    assert outcome.broken == 0
    assert 1e-14 < outcome.bound <= 1e-9  # of single weights: the tolerance is for even ones


@pytest.mark.parametrize("d", [1, 2, pytest.param(3, marks=pytest.mark.portable)])
@pytest.mark.parametrize("kernel", ["Matern 1/2", "squared exponential"])
def test_targets_apart(rng: np.random.Generator, kernel: str, d: int) -> None:
    X = attacks.clusters(120, d, rng)
    targets = np.concatenate([X[:20], rng.uniform(-1.5, 1.5, (40, d)), 30.0 + rng.uniform(size=(3, d))])
    made = KERNELS[kernel](scales_of(X, 0.3, True))
    outcome = attack(made, X, 1e-6, rng, targets=targets, leaf=5, columns=12)
    assert outcome.broken == 0


@pytest.mark.parametrize("distance", [1e5, 1e10, 1e13])
@pytest.mark.parametrize("kernel", ["spherical", "wendland", "Matern 3/2", "squared exponential"])
def test_points_that_lie_far_from_another_one(rng: np.random.Generator, kernel: str, distance: float) -> None:
    # Coordinates keep few digits of the distances between the many: all that is left to say is how many.
    X = np.concatenate([[[0.0, 0.0]], distance + rng.uniform(0.0, 3.0, (100, 2))])
    outcome = attack(KERNELS[kernel]([1.0, 1.0]), X, 1e-9, rng, leaf=3)
    assert outcome.broken == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_attacks_compare_with_the_exact_kernel(rng: np.random.Generator, shape: Any) -> None:
    X = shape(60, 2, rng)
    with mp.workdps(40):
        for make in KERNELS.values():
            kernel = make(scales_of(X, 0.4, True))
            K = dense(kernel, X, X)
            for i, j in itertools.product((0, 7, 31), (0, 3, 20)):
                exact = exact_entry(kernel, X[i], X[j])
                assert abs(mp.mpf(str(K[i, j])) - exact) <= 2e-17


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_attacks_break_bounds_that_are_half_as_large(rng: np.random.Generator, tolerance: float) -> None:
    row_weights = Expansion.row_weights

    def halved(self: Expansion, *arguments: object) -> tuple[np.ndarray, float]:
        weights, remainder = row_weights(self, *arguments)  # type: ignore[arg-type]
        return 0.5 * weights, 0.5 * remainder

    broken = 0
    with mock.patch.object(Expansion, "row_weights", halved):
        for shape, d in ((attacks.uniform, 1), (attacks.clustered, 2), (attacks.far_away, 2)):
            X = shape(150, d, rng)
            kernel = KERNELS["Matern 3/2"](scales_of(X, 0.2, False))
            broken += attack(kernel, X, tolerance, rng, leaf=4, columns=60).broken
    assert broken > 10
