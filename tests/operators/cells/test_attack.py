"""Products by cells withstand attacks on their bounds; attacks break bounds that are half as large."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dkgp.kernels.terms import terms_of
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.proof import CHEAP_ORDERS
from tests.covering import covering
from tests.operators.cells import attacks
from tests.operators.cells.attacks import KERNELS, NOT_DIFFERENTIABLE, SHAPES, Row, attack, bounds_times, scales_of
from tests.operators.cells.exact import ENTRY_ROUNDINGS, SLOPE_ROUNDINGS, UNIT, dense, dense_slopes, exact_entry


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


@pytest.mark.spread(3)
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


@pytest.mark.spread(4)
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
        for name, make in KERNELS.items():
            kernel = make(scales_of(X, 0.4, True))
            K, magnitude = dense(kernel, X, X), terms_of(kernel).magnitude
            slopes = None if name in NOT_DIFFERENTIABLE else dense_slopes(kernel, X, X)
            for i, j in itertools.product((0, 7, 31), (0, 3, 20)):
                exact = exact_entry(kernel, X[i], X[j])
                assert abs(mp.mpf(str(K[i, j])) - exact) <= ENTRY_ROUNDINGS * UNIT * magnitude
                for axis, scale in enumerate(() if slopes is None else terms_of(kernel).terms[0].scale):
                    exact = exact_entry(kernel, X[i], X[j], axis)
                    assert abs(mp.mpf(str(slopes[axis, i, j])) - exact) <= SLOPE_ROUNDINGS * UNIT * magnitude * scale


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in NOT_DIFFERENTIABLE])
def test_attacks_take_the_derivatives_of_the_kernel(name: str) -> None:
    kernel, x, y = KERNELS[name]([0.7, 1.1]), np.array([0.3125, -0.25]), np.array([0.05, 0.1])
    with mp.workdps(40):
        for axis in (0, 1):
            step = np.eye(2)[axis] * 2.0**-40
            difference = (exact_entry(kernel, x + step, y) - exact_entry(kernel, x - step, y)) / mp.mpf(2.0**-39)
            assert abs(difference - exact_entry(kernel, x, y, axis)) < 1e-20


@pytest.mark.parametrize(
    ("kind", "kernel", "d", "points"),
    [
        ("cross", "Matern 1/2", 1, "clusters"),
        ("cross", "spherical", 2, "uniform"),
        ("slopes", "Matern 3/2", 1, "far_away"),
        ("slopes", "rational quadratic 30", 2, "gridded"),
        pytest.param("cross", "sum and constant", 3, "duplicated", marks=pytest.mark.portable),
        pytest.param("slopes", "wendland", 3, "clustered", marks=pytest.mark.portable),
    ],
)
def test_no_sum_at_other_inputs_is_beyond_its_bound(kind: str, kernel: str, d: int, points: str) -> None:
    outcome = Row(kind, kernel, d, points, "1e-5 to 1e-7", 0).attack(1)
    assert outcome.broken == 0
    assert outcome.entries > 2000
    assert outcome.exact >= 6


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "row",
    [
        Row("products", "Matern 3/2", 1, "uniform", "1e-2 to 1e-4", 0),
        Row("products", "Matern 3/2", 2, "far_away", "1e-5 to 1e-7", 0),
        Row("cross", "Matern 3/2", 1, "uniform", "1e-5 to 1e-7", 0),
        Row("slopes", "Matern 5/2", 1, "uniform", "1e-2 to 1e-4", 0),
    ],
)
def test_attacks_break_bounds_that_are_half_as_large(row: Row) -> None:
    with bounds_times(0.5):
        assert row.attack(0).broken > 10


def test_the_table_goes_on_after_the_rows_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Row, "attack", lambda self, seed: attacks.Outcome(10 * self.d, int(self.d == 2), 0.5))
    command = ["attacks", "--kind", "slopes", "--kernel", "Matern", "--d", "1,2", "--points", "uniform", "--out"]
    monkeypatch.setattr("sys.argv", [*command, str(tmp_path / "rows")])
    for rows, status in ((16, 1), (0, 1)):
        with pytest.raises(SystemExit) as end:
            attacks.main()
        assert end.value.code == status
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("slopes   Matern") for line in lines) == rows
        total = next(line for line in lines if line.startswith("slopes  ") and "Matern" not in line and "240" in line)
        assert total.split()[:5] == ["slopes", "16", "8", "240", "8"]
