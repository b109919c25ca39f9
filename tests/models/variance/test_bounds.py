"""Bounds of variances hold for any residual, weights and roundings, and are tight where theory says so.

Each term is also told apart by dense algebra, for a factor whose roundings are declared large; where k(x, x) varies by
orders of magnitude; for blocks of the remainder, against the exact form; and through a triangular factor, against
extended precision.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from dkgp.cluster.executors.base import HereExecutor
from dkgp.kernels import SquaredExponential, TileEvaluator, parse_kernel
from dkgp.models.rounding import UNIT, mean_roundings, product_roundings, sum_roundings
from dkgp.models.variance.bounds import (
    Queries,
    _landmark_quadratic,
    best_weights,
    factor_interval,
    loses_digits,
    plain_weights,
    residual_bound,
)
from dkgp.models.variance.nystrom import GROUP, LARGE_GROUP, Interpolation, NystromFactor, factor_bytes, residual_slack
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.low_rank.pivots import jittered
from tests.models.variance.test_batch import REGIMES, landmarks
from tests.models.variance.variance_problems import (
    KINDS,
    Coarse,
    Long,
    VarianceProblem,
    draw,
    exact_in_50_digits,
    long_kernel,
    query_inputs,
    solve,
)

PRECISIONS = pytest.mark.parametrize("precision", ["single", "double"])


def some_landmarks(problem: VarianceProblem, rank: int) -> np.ndarray:
    """At random, copies of each other among them: a bad factor."""
    return np.random.default_rng(rank).permutation(problem.n)[:rank]


def interval(problem: VarianceProblem, factor: NystromFactor) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a new observation's variance."""
    test = Queries.of(factor, problem.T)
    found = factor_interval(factor, test, plain_weights(factor, test))
    return found.lower + problem.noise_variance, found.upper + problem.noise_variance


def kbar(problem: VarianceProblem) -> np.ndarray:
    return np.asarray(problem.kernel(problem.X, problem.X) + problem.noise_variance * np.eye(problem.n))


def explained(problem: VarianceProblem, r: np.ndarray) -> np.ndarray:
    """r' Kbar^-1 r, dense."""
    factor = scipy.linalg.cho_factor(kbar(problem))
    return np.asarray(np.einsum("it,it->t", r, scipy.linalg.cho_solve(factor, r)))


# -------------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-8])
def test_the_reference_has_the_digits(noise: float) -> None:
    problem = draw(20, 40, 2, gamma=0.2, noise=noise, kind="clusters")
    v = np.linalg.solve(kbar(problem), problem.kernel(problem.X, problem.T))
    # What rounding the entries of the matrix comes to; the bounds allow for several hundred times float64's.
    amplified = (1.0 + np.abs(v).sum(axis=0)) ** 2
    for found, exact, factor in zip(problem.exact, exact_in_50_digits(problem), amplified, strict=True):
        assert float(found) == pytest.approx(float(exact), abs=4.0 * float(np.finfo(Long).eps) * factor)


# --------------------------------------------------------------------------------------------- from the factor alone


@pytest.mark.parametrize("rank", [1, 2, 5, 60, 10**6])
@pytest.mark.parametrize("name", KINDS)
def test_the_factors_interval_contains_the_exact_variance(name: str, rank: int) -> None:
    problem = KINDS[name]
    lower, upper = interval(problem, problem.factor(some_landmarks(problem, rank), precision="double"))
    exact = problem.exact_of(latent=False)
    digit = np.spacing(problem.kernel.variance + problem.noise_variance)
    assert (lower - exact).max() <= digit
    assert (exact - upper).max() <= digit


@pytest.mark.parametrize("rank", [1, 5, 60])
@pytest.mark.parametrize("name", ["smooth", "rough", "clusters", "large noise", "large amplitude"])
def test_so_does_that_of_a_single_precision_factor(name: str, rank: int) -> None:
    """Its Q may exceed K: from above it proves nothing but the prior."""
    problem = KINDS[name]
    lower, upper = interval(problem, problem.factor(some_landmarks(problem, rank), precision="single"))
    prior = problem.kernel.variance + problem.noise_variance
    assert (lower - problem.exact_of(latent=False)).max() <= np.spacing(prior)
    np.testing.assert_allclose(upper, prior, rtol=1e-12)


@pytest.mark.parametrize("name", ["smooth", "rough", "many features", "large noise", "large amplitude"])
def test_a_complete_factor_leaves_no_gap(name: str) -> None:
    """With all samples as landmarks Q = K, and both bounds are attained: anything less would be a weaker theorem."""
    problem = KINDS[name]
    lower, upper = interval(problem, problem.factor(np.arange(problem.n), precision="double"))
    assert (upper - lower).max() <= 2e-3 * problem.noise_variance
    latent = (problem.exact / problem.kernel.variance).astype(float)
    assert latent.min() < 0.9  # not all of them just the prior's
    assert latent.max() == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["rough", "smooth"])
def test_gaps_shrink_with_the_rank(name: str) -> None:
    problem = KINDS[name]
    widths = []
    for rank in (5, 60, 300):
        lower, upper = interval(problem, problem.factor(some_landmarks(problem, rank), precision="double"))
        widths.append(np.mean(np.minimum(upper, problem.kernel.variance + problem.noise_variance) - lower))
    assert widths[0] > widths[1] > widths[2]


def test_the_stated_inequalities_in_numbers() -> None:
    """Both bounds are the formulas of the module, evaluated densely: v = M^-1 k_x, beta = L^-T z."""
    problem = draw(21, 150, 3, gamma=1.5, noise=0.2)
    chosen = some_landmarks(problem, 20)
    lower, upper = interval(problem, problem.factor(chosen, precision="double"))
    K, s2 = kbar(problem) - problem.noise_variance * np.eye(150), problem.noise_variance
    k, columns = problem.kernel(problem.X, problem.T), problem.kernel(problem.X, problem.X[chosen])
    Q = columns @ np.linalg.solve(columns[chosen], columns.T)
    v = np.linalg.solve(Q + s2 * np.eye(150), k)
    spread = np.sqrt(np.maximum(np.diag(K - Q), 0.0)) @ np.abs(v)
    form = np.einsum("it,it->t", v, Q @ v + s2 * v) + spread**2
    np.testing.assert_allclose(upper, 1.0 + s2 - 2.0 * np.einsum("it,it->t", v, k) + form, rtol=1e-3)
    np.testing.assert_allclose(lower, 1.0 + s2 - np.einsum("it,it->t", k, v), rtol=1e-4)


# ------------------------------------------------------------------------------------------------------ any z, the best


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("name", ["smooth", "rough", "duplicates", "clusters", "large amplitude", "small amplitude"])
def test_intervals_hold_for_any_z(name: str, size: float, rng: np.random.Generator) -> None:
    problem = KINDS[name]
    factor, exact = problem.factor(some_landmarks(problem, 40), precision="double"), problem.exact.astype(float)
    test = Queries.of(factor, problem.T)
    z = best_weights(factor, test)
    off = np.sqrt(problem.kernel.variance) * size * rng.normal(size=z.shape)
    best, found = factor_interval(factor, test, z), factor_interval(factor, test, z + off)
    for interval in (best, found):
        assert (interval.lower - exact).max() <= np.spacing(problem.kernel.variance)
        assert (exact - interval.upper).max() <= np.spacing(problem.kernel.variance)
    # What was lost, but for what the remainder and roundings take of either end.
    risen = found.upper - found.excess + found.lost - (best.upper - best.excess + best.lost)
    assert (risen <= 1.001 * found.lost + 1e-9 * problem.kernel.variance).all()


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["smooth", "rough", "clusters", "small amplitude", "little noise"])
def test_weights_are_the_solution_the_best_to_more_digits(name: str) -> None:
    """(F'F + s2 I)^-1 F'k_x in long arithmetic, from the inputs alone but for the factor's own L."""
    problem = draw(5, 300, 2, gamma=0.05, noise=1e-5) if name == "little noise" else KINDS[name]
    factor = problem.factor(np.arange(20), precision="double")
    test = Queries.of(factor, problem.T)
    with mpmath.workdps(40):
        lower = mpmath.matrix(factor.lower.tolist())
        F = mpmath.inverse(lower) * mpmath.matrix(long_kernel(problem.X[:20], problem.X, problem.kernel).tolist())
        k = mpmath.matrix(long_kernel(problem.X, problem.T, problem.kernel).tolist())
        z = mpmath.inverse(F * F.T + problem.noise_variance * mpmath.eye(20)) * (F * k)
    exact = np.array(z.tolist(), dtype=float)
    off = [np.abs(way(factor, test) - exact).max() / np.abs(exact).max() for way in (plain_weights, best_weights)]
    assert off[0] <= 1e-3
    assert off[1] <= min(1e-5, 0.7 * off[0])
    if name == "little noise":
        assert off[1] <= 1e-5 * off[0]


@pytest.mark.parametrize(("noise", "loses"), [(1e-5, True), (0.1, False)])
def test_a_factor_that_loses_digits_takes_the_best_weights_at_once(
    monkeypatch: pytest.MonkeyPatch, noise: float, loses: bool
) -> None:
    problem = draw(70, 600, 3, gamma=0.3, noise=noise)
    factor = problem.factor(np.random.default_rng(0).permutation(600)[:150], precision="double", proves=True)
    taken: list[tuple[str, int]] = []
    for name, way in {"plain": plain_weights, "best": best_weights}.items():

        def counted(factor: Any, test: Queries, name: str = name, way: Any = way) -> np.ndarray:
            taken.append((name, test.features.n))
            return np.asarray(way(factor, test))

        monkeypatch.setattr(f"dkgp.models.variance.batch.{name}_weights", counted)
    for _ in range(2):
        solve(problem, factor, gap=0.1, max_passes=0, latent=True)
    assert loses_digits(factor) is loses
    assert taken == 2 * [("best" if loses else "plain", len(problem.T))]


@pytest.mark.long
def test_where_rounding_is_the_width_the_best_weights_take_it_off() -> None:
    """A hundredth of a thousandth of the amplitude as noise: F'k_x has lost the digits that latent variances need."""
    problem = draw(70, 600, 3, gamma=0.3, noise=1e-5)
    factor = problem.factor(np.random.default_rng(0).permutation(600)[:150], precision="double", proves=True)
    test, exact = Queries.of(factor, problem.T), problem.exact.astype(float)
    before = factor_interval(factor, test, plain_weights(factor, test))
    after = factor_interval(factor, test, best_weights(factor, test))
    assert np.median((before.upper - exact) / exact) > 100.0
    assert np.median((after.upper - exact) / exact) < 10.0
    assert (before.lower <= exact).all()
    assert (after.lower <= exact).all()
    assert (after.upper >= exact).all()
    # Which is what a batch does by itself, where the gap is not met without it.
    bounds = solve(problem, factor, gap=0.1, max_passes=0, latent=True)
    problem.assert_holds(bounds, latent=True)
    np.testing.assert_array_less(bounds.upper, 1.001 * after.upper)


# --------------------------------------------------------------------------------------------- what a residual leaves


@PRECISIONS
@pytest.mark.parametrize("name", ["smooth", "rough", "many features", "duplicates", "large noise", "small amplitude"])
def test_the_residuals_bound_holds_for_any_residual_and_any_weights(
    name: str, precision: str, rng: np.random.Generator
) -> None:
    problem = KINDS[name]
    factor = problem.factor(some_landmarks(problem, 40), precision=precision)
    r = problem.kernel.variance * rng.normal(size=(problem.n, 6)) * np.geomspace(1e-8, 1e3, 6)
    truth, none = explained(problem, r), np.zeros(6)
    own = factor.preconditioner().solve(r)[1]
    weights = [own, np.zeros_like(own), own * rng.uniform(0.0, 2.0, own.shape), rng.normal(size=own.shape)]
    bounds = [residual_bound(factor, r, z, none) for z in weights]
    for bound in bounds:
        assert (bound >= truth * (1.0 - 1e-9)).all()
    # Without weights it is ||r||^2 / s2; and no weights do better than the factor's own.
    np.testing.assert_allclose(bounds[1], np.sum(r**2, axis=0) / problem.noise_variance, rtol=1e-9)
    if precision == "double":
        assert all((bounds[0] <= other * (1.0 + 1e-5)).all() for other in bounds[1:])


@pytest.mark.parametrize("name", ["smooth", "rough", "large noise"])
def test_it_is_attained_by_a_complete_factor(name: str, rng: np.random.Generator) -> None:
    """Then ||r - K beta||^2 / s2 + beta' K beta = r' Kbar^-1 r: either term alone, or half, would be too small."""
    problem = KINDS[name]
    factor = problem.factor(np.arange(problem.n), precision="double")
    axes = scipy.linalg.eigh(kbar(problem))[1]
    r = np.column_stack([problem.kernel(problem.X, problem.T[:4]), axes[:, [0, -1]], rng.normal(size=problem.n)])
    bound = residual_bound(factor, r, factor.preconditioner().solve(r)[1], np.zeros(r.shape[1]))
    np.testing.assert_allclose(bound, explained(problem, r), rtol=1e-3)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("name", ["smooth", "rough", "large noise"])
def test_it_counts_in_what_the_residual_may_be_off_by(name: str, size: float, rng: np.random.Generator) -> None:
    problem = KINDS[name]
    factor = problem.factor(some_landmarks(problem, 40), precision="double")
    computed = size * rng.normal(size=(problem.n, 5))
    off = size * np.asarray([0.0, 0.1, 1.0, 3.0, 10.0])
    # Off in the worst of directions: where Kbar is flattest, or away from zero.
    flat = np.sign(scipy.linalg.eigh(kbar(problem))[1][:, 0])[:, None]
    for direction in (flat, -flat, np.sign(computed), np.sign(rng.normal(size=computed.shape))):
        truth = explained(problem, computed + off * direction)
        bound = residual_bound(factor, computed, factor.preconditioner().solve(computed)[1], off)
        assert (bound >= truth * (1.0 - 1e-9)).all()


@PRECISIONS
@pytest.mark.parametrize("name", ["rough", "clusters", "duplicates", "tinier noise"])
def test_the_landmarks_form_is_bounded_whatever_cancels(name: str, precision: str, rng: np.random.Generator) -> None:
    """With r = K_nI beta nothing but beta' K_II beta is left, and with weights like these most of it cancels."""
    problem = KINDS[name]
    chosen = some_landmarks(problem, 40)
    factor = problem.factor(chosen, precision=precision)
    z = rng.normal(size=(40, 4)) * np.geomspace(1e-6, 1e3, 4)
    beta = factor.landmark_weights(z)
    r = problem.kernel(problem.X, problem.X[chosen]) @ beta
    weights = beta.astype(Long)
    truth = np.einsum("rt,rt->t", weights, long_kernel(problem.X[chosen], problem.X[chosen], problem.kernel) @ weights)
    assert (residual_bound(factor, r, z, np.zeros(4)) >= truth).all()


@given(st.integers(1, 10**7))
def test_roundings_counted_are_those_of_runs_and_of_their_sum(n: int) -> None:
    assert min(n, 512) + n / 512 <= sum_roundings(n, 512) <= min(n, 512) + n / 512 + 7.0
    assert product_roundings(n) <= min(n + 7.01, 650.0)
    assert mean_roundings(n) <= min(n + 6.0, 1000.0 + n / 8000)


@pytest.mark.parametrize("n", [100, 600, 5000])
def test_a_product_with_the_matrix_rounds_to_less_than_allowed_for(n: int, rng: np.random.Generator) -> None:
    k, v = rng.uniform(0.0, 1.0, n), rng.normal(size=n)
    exact = np.sum(k.astype(Long) * v.astype(Long))
    assert abs(float(np.float64(k @ v) - exact)) <= sum_roundings(n, 512) * UNIT * np.abs(v).sum()


# ---------------------------------------------------------------------------------------- were arithmetic much coarser


@pytest.mark.covering
@pytest.mark.parametrize("coarseness", [1e-9, 1e-7, 1e-5])
@pytest.mark.parametrize("name", ["smooth", "one feature", "clusters", "tiny noise", "tinier noise", "large amplitude"])
def test_the_factors_interval_allows_for_roundings(
    monkeypatch: pytest.MonkeyPatch, name: str, coarseness: float
) -> None:
    problem = KINDS[name]
    exact, digit = problem.exact_of(latent=False), np.spacing(problem.kernel.variance + problem.noise_variance)
    for rank, of_landmarks, of_tests in itertools.product((5, 60, 10**6), (-1.0, 1.0), (-1.0, 1.0)):
        factor = problem.factor(some_landmarks(problem, rank), precision="double")
        coarse = Coarse(factor, coarseness, of_landmarks=of_landmarks, of_tests=of_tests, n_tests=len(problem.T))
        monkeypatch.setattr(factor, "evaluator", coarse)
        lower, upper = interval(problem, factor)
        assert (lower - exact).max() <= digit
        assert (exact - upper).max() <= digit


@PRECISIONS
@pytest.mark.parametrize("coarseness", [1e-7, 1e-5])
def test_the_residuals_bound_allows_for_roundings(
    monkeypatch: pytest.MonkeyPatch, precision: str, coarseness: float
) -> None:
    """A residual that the weights seem to leave nothing of, because both are off in the same way."""
    problem = KINDS["tinier noise"]
    factor = problem.factor(np.arange(problem.n), precision=precision)
    for z in (np.eye(problem.n)[:, :3], np.linalg.eigh(factor.lower.T @ factor.lower)[1][:, -3:]):
        beta = factor.landmark_weights(z)
        for sign in (-1.0, 1.0):
            coarse = Coarse(factor, coarseness, of_landmarks=sign, of_tests=sign)
            r = np.concatenate([coarse.tile(rows, factor.landmarks) @ beta for rows, _ in factor.pieces()])
            truth = explained(problem, r)
            with monkeypatch.context() as patch:
                patch.setattr(factor, "evaluator", coarse)
                assert (residual_bound(factor, r, z, np.zeros(3)) >= truth).all()


EPS, U = 2.0**-52, 2.0**-53
COARSE_UNIT, ENTRY_ERROR = 0.03, 1e12


class Loud:
    """A factor with roundings of its own choice."""

    unit, entry_error = COARSE_UNIT, ENTRY_ERROR

    def __init__(self, factor: Any) -> None:
        self._factor = factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factor, name)


@pytest.fixture(scope="module")
def problem() -> VarianceProblem:
    return draw(3, 40, 2, gamma=0.5, noise=0.02, variance=7.0)


def landmark_terms(problem: VarianceProblem, factor: Any, beta: np.ndarray, double: bool) -> tuple[Any, Any]:
    """Return the rounding error of K_nI beta over w_i, and the largest beta' K_II beta."""
    chosen = np.arange(12)
    scaled, rank, largest = factor.landmark_scale @ np.abs(beta), len(chosen), factor.largest
    rounding = 1.01 * ((rank + 4) * U + ENTRY_ERROR * EPS) * largest * scaled
    if double:
        off = (rank + 2) * U * np.sqrt(largest) * scaled
        return rounding, (np.linalg.norm(factor.lower.T @ beta, axis=0) + 1.01 * off) ** 2
    K = problem.kernel(problem.X[chosen], problem.X[chosen])
    return rounding, np.einsum("rt,rs,st->t", beta, K, beta) + 2.0 * rounding * scaled


@pytest.mark.parametrize("precision", ["double", "single"])
def test_intervals_of_a_factor(problem: VarianceProblem, precision: Any) -> None:
    factor, s2, double = (
        problem.factor(np.arange(12), precision=precision),
        problem.noise_variance,
        precision == "double",
    )
    queries = Queries.of(factor, problem.T)
    found = factor_interval(Loud(factor), queries, plain_weights(factor, queries))  # type: ignore[arg-type]
    lower, upper, excess = found.lower, found.upper, found.excess

    k, columns = problem.kernel(problem.X, problem.T), problem.kernel(problem.X, problem.X[:12])
    beta = factor.landmark_weights(
        factor.preconditioner().weights(np.linalg.solve(np.asarray(factor.lower, float), columns.T @ k))
    )
    v = (k - columns @ beta) / s2
    square, spread = np.sum(v * v, axis=0), np.sqrt(factor.residual_diagonal) @ np.abs(v)
    absolute, image, largest, share = factor.weights @ np.abs(v), columns.T @ v, factor.largest, queries.share
    assert largest == pytest.approx(7.0 + s2, rel=0.1)
    np.testing.assert_allclose(excess, spread**2, rtol=1e-4 if double else 0.02)
    if double:
        assert factor.whitening is not None
        error = COARSE_UNIT * np.sqrt(largest) * absolute
        quadratic = factor.whitening.square(factor.lower, image, factor.landmark_scale, np.sqrt(largest), error)
        expected = 7.0 - 2.0 * np.sum(v * k, axis=0) + quadratic + s2 * square + spread**2
        slack = largest * share * (share + absolute) + quadratic + s2 * square + spread**2
        np.testing.assert_allclose(upper, expected + 4.0 * 1.01 * COARSE_UNIT * slack, rtol=1e-6)
    else:
        np.testing.assert_array_equal(upper, queries.highest)
    rounding, landmark_quadratic = landmark_terms(problem, factor, beta, double)
    left = s2 * np.sqrt(square) * (1.0 + COARSE_UNIT) + factor.weight_norm * (
        rounding + 1.01 * COARSE_UNIT * largest * share
    )
    lowest = 7.0 - left**2 / s2 - landmark_quadratic - 4.0 * 1.01 * COARSE_UNIT * largest * share**2
    np.testing.assert_allclose(lower, lowest, rtol=1e-6 if double else 0.02)


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("threads", [1, 2])
def test_bounds_of_residuals(problem: VarianceProblem, rng: np.random.Generator, precision: Any, threads: int) -> None:
    factor, s2 = problem.factor(np.arange(12), precision=precision), problem.noise_variance
    residual, z, rounding = rng.normal(size=(40, 5)), rng.normal(size=(12, 2)), np.array([0.25, 3.0])
    chosen = np.array([3, 1])
    beta = factor.landmark_weights(z)
    left = residual[:, chosen] - problem.kernel(problem.X, problem.X[:12]) @ beta
    own, quadratic = landmark_terms(problem, factor, beta, precision == "double")
    norm = np.linalg.norm(left, axis=0) * (1.0 + COARSE_UNIT) + factor.weight_norm * (rounding + own)
    loud: Any = Loud(factor)
    found = residual_bound(loud, residual, z, rounding, chosen, HereExecutor(threads))
    np.testing.assert_allclose(found, norm**2 / s2 + quadratic, rtol=1e-6)
    # All columns by default.
    np.testing.assert_array_equal(residual_bound(loud, residual[:, chosen], z, rounding), found)


def test_a_length_is_rounded_up_by_its_sum() -> None:
    """(R + 4) u of ||L'beta||, where nothing else is added."""
    factor: Any = SimpleNamespace(lower=np.eye(12), rank=12, largest=1.0, landmark_scale=np.zeros(12))
    beta = np.zeros((12, 1))
    beta[3] = 1.0
    assert (_landmark_quadratic(factor, beta)[0] - 1.0) / U == pytest.approx(2.0 * 16.0, abs=4.0)


def test_queries_are_taken_with_all_that_they_are(problem: VarianceProblem) -> None:
    factor = problem.factor(np.arange(12), precision="double")
    queries = Queries.of(factor, problem.T)
    # k(x, x) is the amplitude, and not off by more than a few roundings.
    np.testing.assert_array_equal(queries.prior, np.full(len(problem.T), 7.0))
    assert (queries.highest > queries.prior).all()
    assert (queries.highest < 7.0 * (1.0 + 1e-12)).all()
    taken = queries.take(np.array([2, 0]))
    for name in ("prior", "highest", "share"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(queries, name)[[2, 0]])
    interval, whole = (factor_interval(factor, these, plain_weights(factor, these)) for these in (taken, queries))
    for name in ("lower", "upper", "excess"):
        np.testing.assert_allclose(getattr(interval, name), getattr(whole, name)[[2, 0]], rtol=1e-9)


D = 3
KERNELS = {
    "polynomial": "polynomial(degree=3)",
    "linear": "linear",
    "linear and rough": "linear + rbf(length_scale=0.5)",
    "product": "linear * rbf",
}


@dataclass(frozen=True, eq=False)
class VaryingProblem(VarianceProblem):
    """One whose kernel is evaluated naively, and whose first samples are far out."""

    @cached_property
    def exact(self) -> np.ndarray:
        """Variances of the function, without the noise: (t,) longdouble."""
        K = self.kernel(self.X, self.X).astype(Long) + Long(self.noise_variance) * np.eye(self.n, dtype=Long)
        R, explained = self.kernel(self.X, self.T).astype(Long), np.zeros(len(self.T), Long)
        for j in range(self.n):
            explained += R[j] * R[j] / K[j, j]
            share = K[j + 1 :, j] / K[j, j]
            R[j + 1 :] -= np.outer(share, R[j])
            K[j + 1 :, j + 1 :] -= np.outer(share, K[j + 1 :, j])
        return np.asarray(self.prior.astype(Long) - explained)

    @property
    def prior(self) -> np.ndarray:
        """k(x, x) of the test samples."""
        return self.kernel.diagonal(self.T)

    @property
    def digit(self) -> np.ndarray:
        """Return a bound on the reference's own error."""
        return 1e-13 * (self.prior + self.noise_variance)


def draw_varying(name: str, noise: float = 0.05, outliers: float = 8.0) -> VaryingProblem:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(70, D))
    X[:3] *= outliers
    X[5] = 0.0
    tests = np.concatenate([query_inputs(X, rng)[:-1], np.zeros((1, D)), 10.0 * rng.normal(size=(1, D))])
    return VaryingProblem(X, tests, parse_kernel(KERNELS[name], D), noise)


@pytest.mark.parametrize("coarseness", [1e-10, 1e-7])
@pytest.mark.parametrize("name", KERNELS)
def test_the_factors_interval_allows_for_roundings_of_varying_samples(
    monkeypatch: pytest.MonkeyPatch, name: str, coarseness: float
) -> None:
    problem = draw_varying(name)
    exact = problem.exact_of(latent=False)
    for rank, of_landmarks, of_tests in itertools.product((4, 30), (-1.0, 1.0), (-1.0, 1.0)):
        factor = problem.factor(np.arange(rank), precision="double")
        coarse = Coarse(factor, coarseness, of_landmarks=of_landmarks, of_tests=of_tests, n_tests=len(problem.T))
        monkeypatch.setattr(factor, "evaluator", coarse)
        test = Queries.of(factor, problem.T)
        for weights in (plain_weights, best_weights):
            found = factor_interval(factor, test, weights(factor, test))
            lower, upper = found.lower + problem.noise_variance, found.upper + problem.noise_variance
            assert (lower <= exact + problem.digit).all()
            assert (upper >= exact - problem.digit).all()


@pytest.mark.covering
@pytest.mark.parametrize("coarseness", [1e-10, 1e-8])
@pytest.mark.parametrize("name", KERNELS)
def test_roundings_of_a_batch_are_allowed_for(monkeypatch: pytest.MonkeyPatch, name: str, coarseness: float) -> None:
    problem = draw_varying(name)
    exact = problem.exact_of(latent=False)
    for of_landmarks, of_tests, of_samples in itertools.product((-1.0, 1.0), repeat=3):
        factor = problem.factor(np.arange(problem.n), precision="double")
        signs = {"of_landmarks": of_landmarks, "of_tests": of_tests, "of_samples": of_samples}
        monkeypatch.setattr(factor, "evaluator", Coarse(factor, coarseness, n_tests=len(problem.T), **signs))
        for max_passes in (1, 3, 10):
            bounds = solve(problem, factor, gap=1e-12, max_passes=max_passes, factor_first=False)
            assert (bounds.lower <= exact + problem.digit).all()
            assert (bounds.upper >= exact - problem.digit).all()


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise", [1e-6, 1e-2, 10.0])
def test_batches_are_certified_whatever_the_noise(name: str, noise: float, precision: str) -> None:
    problem = draw_varying(name, noise=noise, outliers=30.0)
    factor = problem.factor(np.arange(0, problem.n, 2), precision=precision)
    for latent in (False, True):
        bounds = solve(problem, factor, gap=1e-3, latent=latent)
        exact = problem.exact_of(latent)
        assert (bounds.lower <= exact + problem.digit).all()
        assert (bounds.upper >= exact - problem.digit).all()
        near = problem.prior < 100.0
        if noise >= 1e-2 and not latent and precision == "double":
            assert ((bounds.upper - bounds.lower)[near] <= 1e-3 * bounds.upper[near]).all()


def proving(problem: VarianceProblem, rank: int, **options: Any) -> NystromFactor:
    return NystromFactor.of(problem.source(landmarks(problem, rank), precision="double", proves=True, **options))


def left_by(problem: VarianceProblem, factor: NystromFactor) -> np.ndarray:
    """E = K - K_nI (L L')^-1 K_In, by substitution in extended precision."""
    lower = factor.lower.astype(Long)
    kernel = long_kernel(factor._landmark_inputs, problem.X, problem.kernel)
    for row in range(len(lower)):
        kernel[row] = (kernel[row] - lower[row, :row] @ kernel[:row]) / lower[row, row]
    return np.asarray(long_kernel(problem.X, problem.X, problem.kernel) - kernel.T @ kernel)


def spread(factor: NystromFactor, v: np.ndarray, *, grouped: bool = True) -> np.ndarray:
    total = np.zeros(v.shape[1])
    for _, where in factor.pieces():
        single = np.sqrt(factor.residual_diagonal[where])
        assert factor.remainder is not None
        total += factor.remainder.spread(where, v[where], single) if grouped else single @ np.abs(v[where])
    return total**2


@pytest.mark.spread(6)
@pytest.mark.covering
@pytest.mark.parametrize("group", [7, GROUP, LARGE_GROUP])
@pytest.mark.parametrize("name", REGIMES)
def test_the_bound_is_above_the_form(name: str, group: int) -> None:
    """Along vectors at random, the solutions that it is for, and the blocks' own leading ones."""
    problem = REGIMES[name]
    factor = proving(problem, 30, group=group)
    left = left_by(problem, factor)
    rng = np.random.default_rng(0)
    leading = np.linalg.eigh(left[:group, :group].astype(np.float64))[1]
    v = np.hstack([rng.normal(size=(problem.n, 3)), np.zeros((problem.n, leading.shape[1]))])
    v[: len(leading), 3:] = leading
    exact = np.einsum("it,it->t", v.astype(Long), left @ v.astype(Long))
    bound = spread(factor, v)
    assert np.all(exact <= bound)
    assert np.all(bound <= spread(factor, v, grouped=False) * (1.0 + 1e-12))


@pytest.mark.parametrize("name", REGIMES)
def test_every_interval_contains_the_exact_variance(name: str) -> None:
    problem = REGIMES[name]
    for group in (5, GROUP, LARGE_GROUP):
        for rank in (10, 60):
            factor = proving(problem, min(rank, problem.n), group=group)
            for latent in (False, True):
                problem.assert_holds(solve(problem, factor, gap=1e-3, max_passes=0, latent=latent), latent)


def test_a_smooth_kernels_intervals_are_several_times_narrower() -> None:
    problem = draw(70, 1500, 4, gamma=0.3, noise=0.05, fresh=60)
    factor = proving(problem, 150)
    plain = problem.factor(landmarks(problem, 150), precision="double")
    test = Queries.of(factor, problem.T)
    found, before = (factor_interval(each, test, plain_weights(each, test)) for each in (factor, plain))
    assert np.median((found.upper - found.lower) / (before.upper - found.lower)) < 0.25


@pytest.mark.parametrize("group", [GROUP, LARGE_GROUP])
def test_bytes_are_those_planned_for(group: int) -> None:
    problem = draw(71, 1500, 4, gamma=0.3, noise=0.05, fresh=5)
    for held in (True, False):
        factor = proving(problem, 60, held=held, group=group)
        planned = factor_bytes(1500, 60, "double", held=held, proves=True, group=group)
        assert planned <= factor.nbytes < 1.2 * planned


def test_threads_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw(72, 1300, 4, gamma=0.3, noise=0.05, fresh=20)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("dkgp.models.variance.nystrom.process_threads", lambda threads=threads: threads)
        factor = proving(problem, 60)
        found.append(solve(problem, factor, gap=1e-3, max_passes=0))
    assert found[0].upper.tobytes() == found[1].upper.tobytes()


ROUNDING = 0.5 * float(np.finfo(np.float64).eps)


def factor(rng: np.random.Generator, rank: int, gamma: float) -> np.ndarray:
    X = rng.normal(size=(rank, 2))
    K = SquaredExponential((gamma, gamma))(X, X)
    return np.asarray(scipy.linalg.cholesky(jittered(K), lower=True))


@pytest.mark.parametrize("gamma", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("rank", [1, 30, 200])
def test_solves_are_off_by_no_more_than_is_said(rng: np.random.Generator, rank: int, gamma: float) -> None:
    L, d = factor(rng, rank, gamma), rng.uniform(0.1, 1.0, rank)
    found = Whitening.of(L, d)
    assert found is not None
    inverse = np.abs(scipy.linalg.solve_triangular(L, np.eye(rank), lower=True))
    # No less than the norms, and not much more: a percent, and what the power iteration has left.
    norm = np.linalg.norm(inverse @ np.abs(L), 2)
    assert norm <= found.solving / ((rank + 1) * ROUNDING) <= 1.1 * norm
    assert np.linalg.norm(inverse @ d) <= found.entries <= 1.1 * np.linalg.norm(inverse @ d)
    c = rng.normal(size=(rank, 5))
    computed = scipy.linalg.solve_triangular(L, c, lower=True)
    exact = np.zeros((rank, 5), np.longdouble)
    for i in range(rank):
        exact[i] = (c[i] - L[i, :i].astype(np.longdouble) @ exact[:i]) / L[i, i]
    off = np.linalg.norm((computed - exact).astype(np.float64), axis=0)
    assert (off <= found.solving * np.linalg.norm(computed, axis=0)).all()


def test_nothing_is_said_of_float32_or_of_what_is_next_to_singular(rng: np.random.Generator) -> None:
    L = factor(rng, 20, 1.0)
    assert Whitening.of(L.astype(np.float32), np.ones(20)) is None
    L[-1, -1] = 1e-18
    assert Whitening.of(L, np.ones(20)) is None
    L[-1, -1] = 0.0
    assert Whitening.of(L, np.ones(20)) is None


def test_what_the_factor_leaves_is_never_less_than_computed_and_hardly_more(rng: np.random.Generator) -> None:
    """diag(K - Q) of an ill-conditioned factor against 60 digits, with the factor taken as it is."""
    kernel = SquaredExponential(gamma=(0.4, 0.3))
    landmarks, rows = rng.standard_normal((40, 2)), rng.standard_normal((30, 2))
    evaluator = TileEvaluator(kernel, "double", expanded=False)
    Z, X = evaluator.prepare(landmarks), evaluator.prepare(rows)
    errors = evaluator.row_errors(landmarks)
    lower = np.linalg.cholesky(jittered(np.array(evaluator.tile(Z, Z)), 2.0 * float(errors.max())))
    f = scipy.linalg.solve_triangular(lower, evaluator.tile(X, Z).T, lower=True)
    slack = residual_slack(Interpolation.of(lower, f, errors), f, np.ones(30), evaluator.row_errors(rows))
    upper = 1.0 - np.einsum("ri,ri->i", f, f) + slack
    with mp.workdps(60):
        gamma = [mp.mpf(value) for value in kernel.gamma]
        for i in range(0, 30, 2):
            half: list[Any] = []
            for L, z in zip(lower, landmarks, strict=True):
                squares = (g * (mp.mpf(a) - mp.mpf(b)) ** 2 for g, a, b in zip(gamma, rows[i], z, strict=True))
                below = mp.fsum(mp.mpf(a) * b for a, b in zip(L, half, strict=False))
                half.append((mp.exp(-mp.fsum(squares)) - below) / mp.mpf(L[len(half)]))
            exact = 1 - mp.fsum(value**2 for value in half)
            assert upper[i] >= exact
            assert upper[i] <= exact + 2 * slack[i]
    whitening = Whitening.of(lower, np.ones(40))
    assert whitening is not None
    # Twice the growth of what the triangular solve rounds is what the norm would have made of it.
    assert np.median(slack) < 0.05 * 2.0 * whitening.solving
