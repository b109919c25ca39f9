"""Products by cells lie within their bounds of dense sums in long double, and depend on nothing but their arguments."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import (
    Constant,
    Cubic,
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
from dkgp.operators.cells import plan
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.products import CellProducts, Moments, finish, join, up
from dkgp.operators.cells.proof import Expansion
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
