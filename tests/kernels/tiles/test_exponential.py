"""The compiled power of two over its whole range, seen through tiles of points at chosen distances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from dkgp import GPRegressor
from dkgp.errors import InputError
from dkgp.kernels import (
    Constant,
    Features,
    Kernel,
    Linear,
    SquaredExponential,
    TileEvaluator,
    UserKernel,
    register_function,
)
from dkgp.kernels.compiler import njit
from dkgp.kernels.tiles.encoding import require_digits
from dkgp.kernels.tiles.features import cosine_and_sine
from dkgp.kernels.vector_math import FAST_MATH, exp2, exp2_in_place

# The smallest normal number: what the profile gives for anything farther away.
FLOOR = {"single": 2.0**-96, "double": 2.0**-960}
EPSILON = {"single": 2.0**-24, "double": 2.0**-53}


def powers_of_two(precision: str, expanded: bool, distances: np.ndarray) -> np.ndarray:
    """2**(-r^2) from one column at the origin; gamma = ln 2 makes the exponential a bare power of two."""
    evaluator = TileEvaluator(SquaredExponential(gamma=(math.log(2.0),)), precision, expanded=expanded)
    return evaluator.tile(evaluator.prepare(distances[:, None]), evaluator.prepare([[0.0]]))[:, 0].astype(np.float64)


def test_accuracy_over_the_whole_range(precision: str, expanded: bool) -> None:
    last = -math.log2(FLOOR[precision])
    squared = np.linspace(0.0, last, 20_011)
    found = powers_of_two(precision, expanded, np.sqrt(squared))
    expected = np.exp2(-squared)
    # The polynomial's own error, and the rounding of r^2, which the exponential turns into a relative error.
    allowed = (4.0 + 4.0 * squared) * EPSILON[precision] * expected + FLOOR[precision]
    assert np.all(np.abs(found - expected) <= allowed)


def test_near_one_the_error_is_a_rounding(precision: str, expanded: bool) -> None:
    squared = np.linspace(0.0, 1.0, 10_007)
    found = powers_of_two(precision, expanded, np.sqrt(squared))
    assert np.max(np.abs(found - np.exp2(-squared))) <= 4 * EPSILON[precision]
    assert found[0] == 1.0


@pytest.mark.parametrize("last", [60.0, 96.0])
def test_strictly_decreasing(precision: str, expanded: bool, last: float) -> None:
    squared = np.arange(0.0, last, 1e-3)
    assert np.all(np.diff(powers_of_two(precision, expanded, np.sqrt(squared))) < 0.0)


def test_whole_powers_by_differences_are_exact(precision: str) -> None:
    # r^2 is exact for r = 1, 2, 3, ...
    distances = np.arange(0.0, 12.0 if precision == "single" else 32.0)
    np.testing.assert_allclose(
        powers_of_two(precision, False, distances)[:10], np.exp2(-(distances**2))[:10], rtol=2 * EPSILON[precision]
    )


def test_far_points_are_nothing_and_never_less(precision: str, expanded: bool) -> None:
    distances = np.concatenate([np.linspace(11.0, 60.0, 999), np.logspace(1.8, 15.0, 999)])
    found = powers_of_two(precision, expanded, distances)
    assert not np.isnan(found).any()
    assert found.min() >= 0.0
    beyond = distances**2 > -math.log2(FLOOR[precision])
    assert beyond.any()
    assert found[beyond].max() <= FLOOR[precision]
    assert np.all(np.diff(found) <= 0.0)


def test_far_points_add_nothing_to_a_product(precision: str, expanded: bool) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(1.0, 1.0), variance=5.0), precision, expanded=expanded)
    near, far = np.zeros((20, 2)), np.full((20, 2), 1e6)
    columns = evaluator.prepare(np.concatenate([near, far]))
    weights = np.concatenate([np.ones((20, 1)), np.full((20, 1), 1e6)])
    product = evaluator.matmat(evaluator.prepare(near), columns, weights)
    np.testing.assert_array_equal(product, np.full((20, 1), 100.0))


@njit(fastmath=FAST_MATH)
def _in_place(values, floor):  # type: ignore[no-untyped-def]
    exp2_in_place(values, floor)


@njit(fastmath=FAST_MATH)
def _one_by_one(values, floor):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        values[i] = exp2(values[i], floor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_have_the_bits_of_single_values(dtype: type) -> None:
    """Vectors of any length, slices, strided slices, and values at and below the floor."""
    floor = -math.log2(1.0 / FLOOR["single" if dtype == np.float32 else "double"])
    hard = [0.0, -0.0, -0.5, np.nextafter(-0.5, 0.0), -1.0, floor, floor - 0.25, 10.0 * floor, -np.inf, np.nan]
    powers = np.concatenate([hard, floor * np.random.default_rng(3).random(151)]).astype(dtype)
    for values in (*(powers[:count] for count in (0, 1, 7, 31, 32, 33, 64, 160)), powers[3:100], powers[::3]):
        expected, found = values.copy(), powers.copy()
        _one_by_one(expected, dtype(floor))
        # The very memory that `values` is a view of, in a copy.
        start = (values.__array_interface__["data"][0] - powers.__array_interface__["data"][0]) // powers.itemsize
        step = values.strides[0] // powers.itemsize
        view = found[start : start + step * len(values) : step]
        _in_place(view, dtype(floor))
        np.testing.assert_array_equal(view, expected)
        untouched = np.delete(np.arange(len(powers)), np.arange(start, start + step * len(values), step))
        np.testing.assert_array_equal(found[untouched], powers[untouched])


# Cosine and sine of turns: against extended precision, at the places where they are exact, and far out.


# 2 pi to 64 bits; a constant of float64 would be off by more than what is measured here.
TURN = np.longdouble("6.283185307179586476925286766559005768394")


def within(turns: np.ndarray) -> np.ndarray:
    """Turns less their whole number, exactly."""
    return turns - np.rint(turns)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
def test_within_two_units_in_the_last_place(rng: np.random.Generator) -> None:
    turns = np.concatenate([rng.uniform(-0.5, 0.5, 200_000), rng.uniform(-1e6, 1e6, 20_000), 0.125 * np.arange(-8, 9)])
    # Around its zeros an angle's rounding would be the sine's and the cosine's whole error: turned to the nearest axis.
    quarters = np.rint(4.0 * within(turns))
    rest = (within(turns) - 0.25 * quarters).astype(np.longdouble) * TURN
    sine, cosine = np.sin(rest), np.cos(rest)
    odd = np.abs(quarters) == 1.0
    exact_cosine = np.where(odd, -quarters * sine, np.where(quarters == 0.0, cosine, -cosine))
    exact_sine = np.where(odd, quarters * cosine, np.where(quarters == 0.0, sine, -sine))
    for found, exact in zip(cosine_and_sine(turns), (exact_cosine, exact_sine), strict=True):
        units = np.abs(found - exact) / np.spacing(np.abs(exact.astype(np.float64)))
        assert 0.5 < units.max() < 2.0


def test_exact_where_it_can_be() -> None:
    cosine, sine = cosine_and_sine(np.array([0.0, 0.25, 0.5, -0.25, -0.5, 3.0, 1e15 + 0.5, 2.0**60]))
    np.testing.assert_array_equal(cosine, [1.0, 0.0, -1.0, 0.0, -1.0, 1.0, -1.0, 1.0])
    np.testing.assert_array_equal(sine, [0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0])


def test_a_turn_more_changes_nothing(rng: np.random.Generator) -> None:
    turns = rng.integers(-(2**30), 2**30, 1000) / 2.0**31
    for whole in (1.0, -3.0, 2.0**20):
        np.testing.assert_array_equal(cosine_and_sine(turns + whole), cosine_and_sine(turns))


def test_what_is_not_finite_is_nowhere_on_the_circle() -> None:
    for values in cosine_and_sine(np.array([np.inf, -np.inf, np.nan])):
        assert np.isnan(values).all()


def test_bits_do_not_depend_on_place(rng: np.random.Generator) -> None:
    turns = rng.uniform(-2.0, 2.0, 1000)
    whole = np.stack(cosine_and_sine(turns))
    for start, step in ((0, 1), (1, 1), (3, 7)):
        np.testing.assert_array_equal(np.stack(cosine_and_sine(turns[start::step])), whole[:, start::step])


# Slices and selections of features: a row's bits depend on neither its neighbours nor its place.
# The engine's reproducibility rests on this: blocks, workers and the coordinator evaluate the same row in different
# company and must get the same bits.


N, M = 700, 150


class Rows:
    """All rows of a data set evaluated together, and any of them in other company."""

    def __init__(self, rng: np.random.Generator, d: int, precision: str, expanded: bool, targets: int = 2) -> None:
        kernel = SquaredExponential(gamma=tuple(rng.uniform(0.2, 1.0, d) / d), variance=1.9)
        self.evaluator = TileEvaluator(kernel, precision, expanded=expanded)
        self.X = rng.standard_normal((N, d))
        self.A = self.evaluator.prepare(self.X)
        self.B = self.evaluator.prepare(rng.standard_normal((M, d)))
        self.W = rng.standard_normal((M, targets))
        self.product, self.tile = self.evaluate(self.A)

    def evaluate(self, rows: Features) -> tuple[np.ndarray, np.ndarray]:
        return self.evaluator.matmat(rows, self.B, self.W), self.evaluator.tile(rows, self.B)

    def require_same_bits(self, rows: Features, indices: np.ndarray | slice) -> None:
        product, tile = self.evaluate(rows)
        np.testing.assert_array_equal(product, self.product[indices])
        np.testing.assert_array_equal(tile, self.tile[indices])


@pytest.fixture(params=[1, 4, 13])
def rows(request: pytest.FixtureRequest, rng: np.random.Generator, precision: str, expanded: bool) -> Rows:
    return Rows(rng, request.param, precision, expanded)


def test_slices(rows: Rows) -> None:
    for start, stop in [(0, 256), (256, 512), (512, N), (16, 17), (3, 3), (5, 250), (N - 1, N), (0, N)]:
        rows.require_same_bits(rows.A.slice(start, stop), slice(start, stop))


def test_taken_features_are_the_rows_prepared_alone(rng: np.random.Generator, precision: str) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.5, 0.25, 0.1)), precision)
    X = rng.standard_normal((50, 3))
    features = evaluator.prepare(X)
    for indices in (np.array([49, 0, 0, 17]), np.arange(50)[::-1].copy(), np.arange(16)):
        taken, alone = features.take(indices), evaluator.prepare(X[indices])
        assert taken.n == len(indices)
        np.testing.assert_array_equal(taken.values, alone.values)
        np.testing.assert_array_equal(taken.squared_norms, alone.squared_norms)
    assert features.take(np.array([], dtype=np.intp)).n == 0
    scale = np.sqrt(np.array([0.5, 0.25, 0.1]) / np.log(2.0))
    np.testing.assert_allclose(features.values[:, :50], (X * scale).T, rtol=1e-6 if precision == "single" else 1e-15)
    np.testing.assert_allclose(features.squared_norms[0, :50], ((X * scale) ** 2).sum(axis=1), rtol=1e-6)
    assert features.nbytes == (3 + 1) * 64 * features.values.itemsize


def test_slices_on_whole_vectors_are_views_and_others_copies(rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.5,)))
    features = evaluator.prepare(rng.standard_normal((50, 1)))
    for start, stop, view in [(0, 32, True), (16, 50, True), (32, 48, True), (1, 32, False), (16, 40, False)]:
        part = features.slice(start, stop)
        assert part.n == stop - start
        assert np.shares_memory(part.values, features.values) == view
        np.testing.assert_array_equal(part.values[:, : part.n], features.values[:, start:stop])
        np.testing.assert_array_equal(part.squared_norms[:, : part.n], features.squared_norms[:, start:stop])


# Products of kernels that underflow on the way are refused by name; what does not is as a hundred digits have it.


def se(variance: float) -> Kernel:
    return SquaredExponential((0.5,), variance=variance, n_features=2)


@register_function("tests_tiny_at_ones")
def tiny_at_ones(x, z):
    return 1.0 if x[0] < 0.5 and z[0] < 0.5 else 1e-250


def linear(weight: float) -> Kernel:
    return Linear(weight=(weight,), n_features=2)


# Each is of 1e-100 at ordinary inputs, and came to 0.
LOST: dict[str, Callable[[], Kernel]] = {
    "product": lambda: se(1e-200) * se(1e-200) * se(1e300),
    "product, the large one first": lambda: se(1e300) * linear(1e-200) * linear(1e-200),
    "multiple of a product": lambda: 1e300 * (se(1e-200) * se(1e-200)),
    "multiple of a multiple": lambda: 1e300 * (1e-200 * se(1e-200)),
    "constants": lambda: Constant(1e-200) * Constant(1e-200) * se(1e300),
    "weights": lambda: linear(1e-200) * linear(1e-200) * se(1e300),
    "within a sum": lambda: se(1.0) + 1e300 * (se(1e-200) * se(1e-200)),
    "of some features": lambda: (se(1e-200) * se(1e-200)).on((0, 1), 3) * Constant(1e300),
}


@pytest.mark.parametrize("name", LOST)
def test_what_underflows_on_the_way_is_refused(name: str) -> None:
    kernel = LOST[name]()
    for precision in ("single", "double"):
        with pytest.raises(InputError, match=r"magnitudes .*e-200.* is 0, and float64 is exact only above 1e-280"):
            TileEvaluator(kernel, precision)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["gbcd", "cholesky", "cg"])
def test_no_solver_takes_it(solver: str, rng: np.random.Generator) -> None:
    kernel = LOST["within a sum"]()
    X = rng.normal(size=(9, kernel.n_features))
    with pytest.raises(InputError, match="Choose other variances, scales or weights"):
        GPRegressor(kernel, noise_variance=1e-3, solver=solver).fit(X, X[:, 0])


@pytest.mark.parametrize(
    "kernel",
    [
        se(1e-90) * se(1e-90) * se(1e150),
        1e200 * (se(1e-130) * se(1e-130)),
        linear(1e-130) * linear(1e-130) * se(1e250),
    ],
)
def test_what_keeps_its_digits_is_taken(kernel: Kernel) -> None:
    X = np.random.default_rng(1).normal(size=(7, 2))
    evaluator = TileEvaluator(kernel, "double")
    features = evaluator.prepare(X)
    found = np.asarray(evaluator.tile(features, features))
    exact = np.array([[float(_exact(kernel, a, b)) for b in X] for a in X])
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    np.testing.assert_allclose(kernel(X, X), exact, rtol=1e-12)


def test_functions_of_two_rows_count_by_their_factor() -> None:
    mine = UserKernel(tiny_at_ones, of="pair", n_features=2)
    require_digits(1e-200 * mine)
    require_digits(mine * se(1e-200))
    with pytest.raises(InputError, match="0, and float64"):
        require_digits(replace(mine, variance=1e-200) * se(1e-200))


def _exact(kernel: Kernel, a: np.ndarray, b: np.ndarray) -> mp.mpf:
    parts = getattr(kernel, "parts", None)
    with mp.workdps(100):
        if parts is not None:
            values = [_exact(part, a, b) for part in parts]
            return mp.fsum(values) if type(kernel).__name__ == "Sum" else mp.fprod(values)
        if hasattr(kernel, "scale"):
            return mp.mpf(kernel.scale) * _exact(kernel.kernel, a, b)
        if isinstance(kernel, Linear):
            return mp.fsum(mp.mpf(kernel.weight[0]) * mp.mpf(x) * mp.mpf(z) for x, z in zip(a, b, strict=True))
        assert isinstance(kernel, SquaredExponential)
        squares = mp.fsum((mp.mpf(x) - mp.mpf(z)) ** 2 for x, z in zip(a, b, strict=True))
        return mp.mpf(kernel.variance) * mp.exp(-mp.mpf(kernel.gamma[0]) * squares)
