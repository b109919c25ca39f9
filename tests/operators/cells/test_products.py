"""Products by cells lie within their bounds of dense sums in long double, and depend on nothing but their arguments."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import psutil
import pytest

from dkgp.cluster.cache import worker_cache
from dkgp.errors import InputError
from dkgp.kernels import (
    Constant,
    Cubic,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Spherical,
    SquaredExponential,
    Wendland,
)
from dkgp.kernels.terms import terms_of
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cells import plan
from dkgp.operators.cells.cross import SOURCE_LEAF, CrossSlopes, CrossSums
from dkgp.operators.cells.operator import estimated_bytes
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.products import CellProducts, Moments, finish, join, up
from dkgp.operators.cells.proof import Expansion
from dkgp.operators.cross_sums import cross_sums, forecast_sums, near_order, require_cross_sums
from tests.targets import (
    blas_architectures,
    code_cache,
    environment,
    inherited,
    other_target,
    require_targets,
    vector_code,
)

LD = np.longdouble


def dense(kernel, targets, inputs, V):
    """K(targets, inputs) V in long double from the terms' definitions."""
    terms = terms_of(kernel)
    K = np.full((len(targets), len(inputs)), LD(terms.constant))
    ln2 = np.log(LD(2))
    for term in terms.terms:
        with np.errstate(over="ignore"):
            s = sum(
                (LD(scale) * (targets[:, None, f].astype(LD) - inputs[None, :, f].astype(LD))) ** 2
                for f, scale in zip(term.features, term.scale, strict=True)
            )
        v, u = np.sqrt(s) * ln2, np.minimum(np.sqrt(s), 1)
        values = {
            "power_of_two": lambda s=s: np.exp2(-s),
            "rational_quadratic": lambda s=s, a=term.parameter: np.exp(-LD(a) * np.log1p(s)),
            "matern12": lambda v=v: np.exp(-v),
            "matern32": lambda v=v: (1 + v) * np.exp(-v),
            "matern52": lambda v=v: (1 + v + v * v / 3) * np.exp(-v),
            "spherical": lambda u=u: 1 - u * (3 - u * u) / 2,
            "cubic": lambda u=u: 1 - u**2 * (7 - u * (LD(35) / 4 - u**2 * (LD(7) / 2 - LD(3) / 4 * u**2))),
            "wendland": lambda u=u: (1 - u) ** 4 * (4 * u + 1),
        }[term.profile.name]()
        K += LD(term.amplitude) * np.where(np.isfinite(s), values, 0)
    return K @ V.astype(LD)


def check(kernel, X, V, tolerance, Z=None, leaf=None):
    """Compare a product with the dense one; return the largest bound relative to the weights' magnitudes."""
    products = CellProducts(terms_of(kernel), X, tolerance)
    result, bounds = products.matmat(V) if Z is None else products.cross(Z, V)
    error = np.abs(result - dense(kernel, X if Z is None else Z, X, V)).astype(float)
    assert (error <= bounds).all()
    return float((bounds / np.abs(V).sum(axis=0)).max())


KERNELS = {
    "se": lambda d: SquaredExponential.from_length_scales([0.3] * d),
    "matern12": lambda d: Matern12.from_length_scales([0.2] * d),
    "matern32": lambda d: Matern32.from_length_scales([0.1 * (1 + f) for f in range(d)]),
    "matern52": lambda d: Matern52.from_length_scales([0.2] * d),
    "rq": lambda d: RationalQuadratic.from_length_scales([0.2] * d, alpha=0.7),
    "spherical": lambda d: Spherical.from_length_scales([0.7] * d),
    "cubic": lambda d: Cubic.from_length_scales([2.0] * d),
    "wendland": lambda d: Wendland.from_length_scales([0.4] * d),
    "sum": lambda d: (
        2.0 * Matern32.from_length_scales([0.3] * d) + SquaredExponential.from_length_scales([0.5] * d) + Constant(0.5)
    ),
}


@pytest.mark.spread(7)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_bounds_hold_and_keep_the_tolerance(rng, d, name):
    kernel = KERNELS[name](d)
    X, V = rng.uniform(-1.0, 1.0, (600, d)), rng.standard_normal((600, 3))
    tolerance = 1e-5 if d == 3 else 1e-8
    assert check(kernel, X, V, tolerance) <= 2.0 * tolerance * terms_of(kernel).magnitude


def test_bounds_of_close_tolerances(rng):
    X, V = rng.uniform(-1.0, 1.0, (900, 2)), rng.standard_normal((900, 1))
    assert check(Matern32.from_length_scales([0.5, 0.5]), X, V, 1e-13) < 2e-13


@pytest.mark.parametrize("d", [1, 2, 3])
def test_targets_apart_from_sources(rng, d):
    X, Z, V = rng.uniform(0.0, 1.0, (500, d)), rng.uniform(-0.2, 1.3, (300, d)), rng.standard_normal((500, 2))
    assert check(Matern32.from_length_scales([0.2] * d), X, V, 1e-6, Z) < 2e-6


@pytest.mark.portable
def test_each_term_looks_at_its_own_features(rng):
    kernel = (
        Matern12.from_length_scales([0.2, 0.4]).on((0, 3), 5)
        + 0.5 * Matern32.from_length_scales([0.3]).on((1,), 5)
        + SquaredExponential.from_length_scales([0.4, 0.3, 0.5]).on((2, 3, 4), 5)
    )
    assert sorted(term.features for term in terms_of(kernel).terms) == [(0, 3), (1,), (2, 3, 4)]
    X, V = rng.uniform(0.0, 1.0, (400, 5)), rng.standard_normal((400, 2))
    check(kernel, X, V, 1e-5)


def clustered(rng, n, d):
    return rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-7.0, 0.0, (n, 1))


INPUTS = {
    "clusters": clustered,
    "line": lambda rng, n, d: np.outer(rng.uniform(0.0, 1.0, n), np.ones(d)),
    "duplicates": lambda rng, n, d: rng.integers(0, 4, (n, d)) / 3.0,
    "equal": lambda rng, n, d: np.full((n, d), 0.7),
    "one": lambda rng, n, d: np.full((1, d), -3.0),
    "two": lambda rng, n, d: np.arange(2.0)[:, None] * np.ones(d),
    "tiny": lambda rng, n, d: 1e-300 * rng.uniform(0.0, 1.0, (n, d)),
    "huge": lambda rng, n, d: 1e300 * rng.uniform(-1.0, 1.0, (n, d)),
    "far": lambda rng, n, d: 1e6 + rng.uniform(0.0, 1.0, (n, d)),
}


@pytest.mark.spread(9)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", INPUTS)
def test_bounds_hold_for_odd_inputs(rng, name, d):
    X = INPUTS[name](rng, 400, d)
    V = rng.standard_normal((len(X), 2)) * 10.0 ** rng.uniform(-6.0, 6.0, (len(X), 1))
    check(Matern12.from_length_scales([0.2] * d), X, V, 1e-4)


@pytest.mark.parametrize("d", [2, 3])
def test_offsets_of_small_cells_at_the_range_of_a_kernel_take_little_memory(rng, d):
    """Cells that straddle the range are divided down to leaves, whose offsets are as large as the tree is deep."""
    places = np.zeros((2, d))
    places[1, 0] = 0.5
    X = places[rng.integers(0, 2, 400)] + 1e-6 * rng.standard_normal((400, d))
    tracemalloc.start()
    try:
        check(Spherical.from_length_scales([0.5] * d), X, rng.standard_normal((400, 1)), 1e-6)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1e-300, 1e-310, 1e-322])
def test_bounds_count_underflow(rng, size):
    X, V = rng.uniform(0.0, 1.0, (300, 2)), size * rng.choice([-1.0, 1.0], (300, 2))
    V[:, 1] = 0.0
    products = CellProducts(terms_of(Matern12.from_length_scales([0.2, 0.2])), X, 1e-6)
    result, bounds = products.matmat(V)
    assert (np.abs(result - dense(Matern12.from_length_scales([0.2, 0.2]), X, X, V)) <= bounds).all()
    assert bounds.max() < 1e-280
    assert not bounds[:, 1].any()


@pytest.mark.filterwarnings("error")
def test_cells_much_smaller_than_the_length_scale_raise_no_warnings(rng):
    X, V = 1e-300 * rng.uniform(0.0, 1.0, (600, 2)), rng.standard_normal((600, 1))
    check(RationalQuadratic.from_length_scales([0.2, 0.2], alpha=0.01), X, V, 1e-9)


@pytest.mark.parametrize("scale", [1e-200, 1e-6, 1e6, 1e200])
def test_bounds_hold_for_odd_length_scales(rng, scale):
    X, V = rng.uniform(0.0, 1.0, (400, 2)), rng.standard_normal((400, 1))
    check(Matern32(gamma=0.5 * scale**-2 if scale > 1e-100 else 1e300, n_features=2), X, V, 1e-8)


@pytest.mark.spread(1)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_results_do_not_depend_on_ranges(rng, d):
    X, V = clustered(rng, 1500, d), rng.standard_normal((1500, 2))
    X[100:160] = X[100]
    products = CellProducts(terms_of(Matern12.from_length_scales([0.3] * d)), X, 1e-3)
    (plan,) = products.plans()
    whole, bounds = products.matmat(V)
    for count in (2, 7):
        moments, ranges = Moments.room(plan, V), plan.source_ranges(count)
        assert len(ranges) > 1
        for leaves in reversed(ranges):
            up(plan, moments, leaves)
        join(plan, moments, ranges)
        result, bound = products.begin(len(X), V)
        pieces = plan.ranges(count)
        assert len(pieces) > 1
        for leaves in reversed(pieces):
            products.add(plan, finish(plan, moments, leaves), result, bound)
        assert (result == whole).all()
        assert (bound == bounds).all()


def test_columns_have_the_bits_that_they_have_alone(rng):
    X, V = rng.uniform(0.0, 1.0, (700, 2)), rng.standard_normal((700, 5))
    products = CellProducts(terms_of(Matern32.from_length_scales([0.2, 0.2])), X, 1e-6)
    together, bounds = products.matmat(V)
    for column in range(5):
        alone, bound = products.matmat(V[:, [column]])
        assert (alone[:, 0] == together[:, column]).all()
        assert (bound[:, 0] == bounds[:, column]).all()


def test_equal_points_are_one(rng):
    X = np.repeat(rng.uniform(0.0, 1.0, (50, 2)), 40, axis=0)
    products = CellProducts(terms_of(Matern12.from_length_scales([0.2, 0.2])), X, 1e-6)
    (plan,) = products.plans()
    assert plan.sources.n_points == 50
    assert products.cost().near_entries <= 50 * 50


def test_smooth_kernels_have_shallow_trees(rng):
    X = rng.uniform(0.0, 1.0, (20_000, 2))
    smooth, rough = (
        CellProducts(terms_of(kernel), X, 1e-4).plans()[0]
        for kernel in (SquaredExponential.from_length_scales([3.0] * 2), Matern12.from_length_scales([0.1] * 2))
    )
    assert smooth.sources.n_cells < 0.1 * rough.sources.n_cells
    assert smooth.near_entries < rough.near_entries


def test_refusals_say_why():
    with pytest.raises(InputError, match="at most 3 features .* has 4"):
        terms_of(Matern32.from_length_scales([1.0] * 4))
    with pytest.raises(InputError, match="dot products"):
        terms_of(Linear(n_features=2))
    with pytest.raises(InputError, match="periodic"):
        terms_of(Periodic(gamma=1.0, period=1.0, n_features=2))
    with pytest.raises(InputError, match="this kernel has another product"):
        terms_of(Matern32.from_length_scales([1.0] * 2) * Matern12.from_length_scales([1.0] * 2))
    squared = SquaredExponential(gamma=1.0, n_features=2)
    assert len(terms_of(squared * squared).terms) == 1


SCRIPT = """
import hashlib, sys
import numpy as np
from dkgp.kernels import Matern12, RationalQuadratic, SquaredExponential
from dkgp.operators.cells.products import CellProducts
from dkgp.kernels.terms import terms_of
rng, digest = np.random.default_rng(5), hashlib.sha256()
for d, tolerance in ((1, 1e-9), (2, 1e-5), (2, 1e-10), (3, 1e-4)):
    X, V = rng.uniform(0.0, 1.0, (1200, d)), rng.standard_normal((1200, 3))
    kernel = Matern12.from_length_scales([0.3] * d) + RationalQuadratic.from_length_scales([0.3] * d, alpha=0.6)
    for part in CellProducts(terms_of(kernel), X, tolerance).matmat(V):
        digest.update(np.ascontiguousarray(part).tobytes())
print(digest.hexdigest())
"""


def digest(variables):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=inherited() | variables,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    ).stdout


@pytest.mark.portable
def test_bits_are_those_of_another_processor(request):
    require_targets()
    variables = environment(code_cache(request.config), target=other_target(), without=vector_code()[1])
    assert digest(variables) == digest({})


@pytest.mark.portable
def test_bits_are_those_of_another_blas():
    assert len({digest(environment(Path(), blas=name)) for name in blas_architectures()[:2]}) == 1


def test_plans_have_the_same_bits_by_any_number_of_threads(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests share expansions; here each plan builds them.
    monkeypatch.setattr("dkgp.operators.cells.plan.Expansion", Expansion)
    term = terms_of(Matern32.from_length_scales([0.5] * 3)).terms[0]
    X, tables, builders = rng.uniform(size=(300, 3)), [], []
    for threads in (1, 3):
        monkeypatch.setattr("dkgp.operators.cells.plan.process_threads", lambda threads=threads: threads)
        with patch.object(plan, "in_parallel", wraps=plan.in_parallel) as parallel:
            made = Plan(term, X, 1e-3, leaf=8)
        builders.append({call.args[2] for call in parallel.call_args_list})
        tables.append([values.tobytes() for part in made.translations.values() for values in tables_of(part)])
    assert builders == [{1}, {3}]
    assert len(tables[0]) > 0
    assert tables[0] == tables[1]


def tables_of(part: plan.Translations) -> list[np.ndarray]:
    """Return the arrays of accepted pairs."""
    return [part.operators, part.weights, part.remainder, part.keys, part.sources, part.counts]


# Sums by cells at other inputs: within their bounds of sums in long double, wherever the inputs lie.


CROSS_KERNELS = {
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


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "error"), [*((name, 1e-1) for name in CROSS_KERNELS), ("smooth", 1e-6)])
def test_sums_are_within_their_bounds_wherever_the_targets_lie(
    rng: np.random.Generator, name: str, error: float
) -> None:
    X = np.concatenate([rng.uniform(size=(N - 300, 2)), rng.uniform(0.4, 0.401, (300, 2))])
    T, V = targets(rng, X), rng.standard_normal((N, 2)) * [1.0, 30.0]
    context = context_of(CROSS_KERNELS[name], X, f"{name}{error}")
    sums, bounds = cross_sums(context, T, V, np.array([error, 30.0 * error]))
    with np.errstate(over="ignore"):
        away = np.abs(np.asarray(sums - dense(CROSS_KERNELS[name], T, X, V), dtype=np.float64))
    assert (away <= bounds)[:-1].all()
    # Few are left to the caller; some error was taken where that was allowed.
    assert (bounds <= [error, 30.0 * error]).all(axis=1).mean() >= (0.9 if name == "heavy" else 0.98)
    assert not sums[-1].any() or name == "sum"
    assert (np.nanmax(away[:210, 0]) > 1e-8) == (error == 1e-1)
    worker_cache().discard_run(context.run_id)


@pytest.mark.spread(1)
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
    sums = CrossSums(terms_of(CROSS_KERNELS[name]), X, V)
    values, bounds = sums.at(T, sums.within(1e-3))
    errors = np.asarray(values - dense(CROSS_KERNELS[name], T, X, V), dtype=np.float64)
    worst = np.abs(errors[:, :40]).sum(axis=1)
    assert (worst <= bounds[:, 40]).all()
    assert (worst / bounds[:, 40]).max() > 1e-2


def test_a_sum_of_few_or_equal_points() -> None:
    kernel = CROSS_KERNELS["rough"]
    for X in (np.zeros((1, 2)), np.zeros((300, 2)), np.array([[0.0, 0.0], [1e-300, 0.0], [1.0, 1.0]])):
        V = np.ones((len(X), 1))
        sums = CrossSums(terms_of(kernel), X, V)
        T = np.array([[0.0, 0.0], [3.0, 4.0], [-1e3, 2.0]])
        values, bounds = sums.at(T, sums.within(1e-6))
        assert (np.abs(np.asarray(values - dense(kernel, T, X, V), dtype=float)) <= bounds).all()


@pytest.mark.spread(2)
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
    order = near_order(context_of(CROSS_KERNELS["rbf"], X, "order"), T)
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

    pays, reason = told(CROSS_KERNELS["smooth"], 800_000, 4_000_000)
    assert pays
    assert "proven errors" in reason
    assert told(CROSS_KERNELS["smooth"], 2000, 4_000_000) == (False, "")
    assert told(CROSS_KERNELS["smooth"], 800_000, 100) == (False, "")
    needed = estimated_bytes(CROSS_KERNELS["smooth"], 800_000)[0]
    for free, pays_too in ((2 * needed, True), (2 * needed - 2, False)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        pays, reason = told(CROSS_KERNELS["smooth"], 800_000, 4_000_000)
        assert pays == pays_too
        assert pays or f"evaluate every kernel entry, 3.2e+12 in all: other sums need {needed:,} bytes" in reason
    for kernel, error, why in (
        (SquaredExponential((1.0,) * 4), 1e-3, "3 features"),
        (CROSS_KERNELS["smooth"], 1e-9, "no other bound"),
    ):
        pays, reason = told(kernel, 800_000, 4_000_000, error)
        assert not pays
        assert why in reason
