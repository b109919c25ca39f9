"""Sums by cells at other inputs: within their bounds of sums in long double, wherever the inputs lie."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from dkgp.cluster.cache import worker_cache
from dkgp.errors import InputError
from dkgp.kernels import Constant, Kernel, Linear, Matern12, Matern32, RationalQuadratic, SquaredExponential
from dkgp.kernels.terms import terms_of
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cells.cross import SOURCE_LEAF, CrossSlopes, CrossSums
from dkgp.operators.cells.operator import estimated_bytes
from dkgp.operators.cross_sums import cross_sums, forecast_sums, near_order, require_cross_sums
from tests.operators.cells.test_products import dense

KERNELS = {
    "rbf": SquaredExponential.from_length_scales((0.3, 0.2)),
    "rough": Matern12.from_length_scales((0.2, 0.2)),
    "smooth": Matern32.from_length_scales((0.1, 0.4)),
    "heavy": RationalQuadratic.from_length_scales((0.2, 0.2), alpha=0.7),
    "sum": 2.0 * Matern32.from_length_scales((0.3, 0.3)) + Matern12.from_length_scales((0.9, 0.5)) + Constant(0.5),
}
N = 1500


def context_of(kernel: Kernel, X: np.ndarray, name: str) -> BlockContext:
    return BlockContext(name, ArrayInputs(X), kernel, len(X))


def targets(rng: np.random.Generator, X: np.ndarray) -> np.ndarray:
    """Inside the box of X, around it, far outside, very far outside, and at the points themselves."""
    d = X.shape[1]
    around = rng.uniform(-1.0, 2.0, (60, d))
    corners = np.array([[0.5, 1.5, -0.5][:d], [2.0, -1.0, 0.0][:d], [0.0, 0.0, 1.0][:d]])
    far = rng.standard_normal((12, d)) * 10.0 ** rng.uniform(1.0, 5.0, (12, 1))
    return np.concatenate([rng.uniform(size=(150, d)), around, corners, far, X[:10], np.full((1, d), -1e60)])


@pytest.mark.parametrize(("name", "error"), [*((name, 1e-1) for name in KERNELS), ("smooth", 1e-6)])
def test_sums_are_within_their_bounds_wherever_the_targets_lie(
    rng: np.random.Generator, name: str, error: float
) -> None:
    X = np.concatenate([rng.uniform(size=(N - 300, 2)), rng.uniform(0.4, 0.401, (300, 2))])
    T, V = targets(rng, X), rng.standard_normal((N, 2)) * [1.0, 30.0]
    context = context_of(KERNELS[name], X, f"{name}{error}")
    sums, bounds = cross_sums(context, T, V, np.array([error, 30.0 * error]))
    with np.errstate(over="ignore"):
        away = np.abs(np.asarray(sums - dense(KERNELS[name], T, X, V), dtype=np.float64))
    assert (away <= bounds)[:-1].all()
    # Few are left to the caller; some error was taken where that was allowed.
    assert (bounds <= [error, 30.0 * error]).all(axis=1).mean() >= (0.9 if name == "heavy" else 0.98)
    assert not sums[-1].any() or name == "sum"
    assert (np.nanmax(away[:210, 0]) > 1e-8) == (error == 1e-1)
    worker_cache().discard_run(context.run_id)


@pytest.mark.parametrize("d", [1, 3])
def test_one_and_three_features(rng: np.random.Generator, d: int) -> None:
    kernel = Matern32.from_length_scales([0.7] * d)
    X = rng.uniform(size=(N, d))
    T, V = targets(rng, X)[:-1], rng.standard_normal((N, 1))
    within = (sums := CrossSums(terms_of(kernel), X, V)).within(1e-4)
    values, bounds = sums.at(T, within)
    away = np.abs(np.asarray(values - dense(kernel, T, X, V), dtype=np.float64))
    assert (away <= bounds).all()
    assert np.quantile(bounds, 0.9) <= 1e-3 * np.abs(V).sum()


@pytest.mark.parametrize("name", ["rough", "smooth"])
def test_no_signs_of_the_weights_break_a_bound(rng: np.random.Generator, name: str) -> None:
    """Column by column of the matrix of errors, put together with the worst signs for each target."""
    X, T = rng.uniform(size=(600, 2)), rng.uniform(-0.3, 1.3, (90, 2))
    chosen = rng.choice(600, 40, replace=False)
    V = np.zeros((600, 41))
    V[chosen, np.arange(40)] = V[chosen, 40] = 1.0
    sums = CrossSums(terms_of(KERNELS[name]), X, V)
    values, bounds = sums.at(T, sums.within(1e-3))
    errors = np.asarray(values - dense(KERNELS[name], T, X, V), dtype=np.float64)
    worst = np.abs(errors[:, :40]).sum(axis=1)
    assert (worst <= bounds[:, 40]).all()
    assert (worst / bounds[:, 40]).max() > 1e-2


def test_a_sum_of_few_or_equal_points() -> None:
    kernel = KERNELS["rough"]
    for X in (np.zeros((1, 2)), np.zeros((300, 2)), np.array([[0.0, 0.0], [1e-300, 0.0], [1.0, 1.0]])):
        V = np.ones((len(X), 1))
        sums = CrossSums(terms_of(kernel), X, V)
        T = np.array([[0.0, 0.0], [3.0, 4.0], [-1e3, 2.0]])
        values, bounds = sums.at(T, sums.within(1e-6))
        assert (np.abs(np.asarray(values - dense(kernel, T, X, V), dtype=float)) <= bounds).all()


@pytest.mark.parametrize(
    ("name", "d"),
    [
        pytest.param(name, d, marks=[pytest.mark.portable] if d == 3 and name != "rbf" else [])
        for name in ("rbf", "smooth", "heavy")
        for d in (1, 2, 3)
    ],
)
def test_derivatives_are_within_their_bounds(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str, d: int
) -> None:
    monkeypatch.setitem(SOURCE_LEAF, d, 8)
    scales = [0.3, 0.2, 0.4][:d]
    kernel = {
        "rbf": SquaredExponential.from_length_scales(scales),
        "smooth": 3.0 * Matern32.from_length_scales(scales) + Constant(0.5),
        "heavy": RationalQuadratic.from_length_scales(scales, alpha=0.7),
    }[name]
    X, V = rng.uniform(size=(800, d)), rng.standard_normal((800, 2)) * [1.0, 30.0]
    T = targets(rng, X)[:-1]
    evaluator = SlopeEvaluator(kernel)
    slopes = CrossSlopes(terms_of(kernel), evaluator, X, V, 1e-3)
    values, bounds = slopes.at(T)
    away = np.abs(values - evaluator.sums(T, evaluator.coordinates(X), V))
    # The reference has roundings of its own.
    rounding = 1e-12 * np.abs(V).sum(axis=0)[:, None]
    assert (away <= bounds + rounding).all()
    ratio = away / (bounds + rounding)
    assert ratio.max() > 1e-3
    # Worst signs: one column a sample.
    one = np.eye(800)[:, rng.choice(800, 12, replace=False)]
    columns = np.column_stack([one, one.sum(axis=1)])
    values, bounds = CrossSlopes(terms_of(kernel), evaluator, X, columns, 1e-3).at(T)
    away = np.abs(values - evaluator.sums(T, evaluator.coordinates(X), columns))
    assert (away[:, :12].sum(axis=1) <= bounds[:, 12] + 1e-11).all()


def test_bounds_of_derivatives_count_underflow(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCE_LEAF, 1, 2)
    X, V = rng.uniform(size=(90, 1)), np.column_stack([1e-320 * rng.standard_normal(90), np.zeros(90)])
    kernel = 1e3 * Matern32.from_length_scales([0.1])
    _, bounds = CrossSlopes(terms_of(kernel), SlopeEvaluator(kernel), X, V, 1e-3).at(np.array([[0.5], [99.0]]))
    assert (bounds[:, 0] >= 1e-290).all()
    assert (bounds[:, 1] == 0.0).all()


def test_neighbours_stand_together(rng: np.random.Generator) -> None:
    X, T = rng.uniform(size=(50, 2)), rng.uniform(size=(4096, 2))
    order = near_order(context_of(KERNELS["rbf"], X, "order"), T)
    np.testing.assert_array_equal(np.sort(order), np.arange(4096))
    steps = np.linalg.norm(np.diff(T[order], axis=0), axis=1)
    assert np.median(steps) < 0.1 * np.median(np.linalg.norm(np.diff(T, axis=0), axis=1))


def test_kernels_without_a_bound_are_refused() -> None:
    with pytest.raises(InputError, match="dot products"):
        require_cross_sums(Linear((1.0, 1.0)), np.ones((9, 1)), None)
    with pytest.raises(InputError, match="at most 3 features"):
        require_cross_sums(SquaredExponential((1.0,) * 4), np.ones((9, 1)), None)


def test_a_forecast_goes_by_counts_and_memory_and_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(kernel: Kernel, n: int, tests: int, error: float = 1e-3) -> tuple[bool, str]:
        context = BlockContext("forecast", ArrayInputs(np.zeros((1, kernel.n_features))), kernel, n)
        forecast = forecast_sums(context, tests, np.array([float(n)]), np.array([error]))
        return forecast.pays, forecast.reason or ""

    pays, reason = told(KERNELS["smooth"], 800_000, 4_000_000)
    assert pays
    assert "proven errors" in reason
    assert told(KERNELS["smooth"], 2000, 4_000_000) == (False, "")
    assert told(KERNELS["smooth"], 800_000, 100) == (False, "")
    needed = estimated_bytes(KERNELS["smooth"], 800_000)[0]
    for free, pays_too in ((2 * needed, True), (2 * needed - 2, False)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        pays, reason = told(KERNELS["smooth"], 800_000, 4_000_000)
        assert pays == pays_too
        assert pays or f"evaluate every kernel entry, 3.2e+12 in all: others keep {needed:,} bytes" in reason
    for kernel, error, why in (
        (SquaredExponential((1.0,) * 4), 1e-3, "3 features"),
        (KERNELS["smooth"], 1e-9, "no other bound"),
    ):
        pays, reason = told(kernel, 800_000, 4_000_000, error)
        assert not pays
        assert why in reason
