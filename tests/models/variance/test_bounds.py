"""The bounds by themselves, for any residual and any weights: true always, tight where theory says so."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from dkgp.models.rounding import UNIT, mean_roundings, product_roundings, sum_roundings
from dkgp.models.variance.bounds import (
    Queries,
    best_weights,
    factor_interval,
    loses_digits,
    plain_weights,
    residual_bound,
)
from dkgp.models.variance.nystrom import NystromFactor
from tests.models.variance.variance_problems import (
    KINDS,
    Coarse,
    Long,
    VarianceProblem,
    draw,
    exact_in_50_digits,
    long_kernel,
    solve,
)

PRECISIONS = pytest.mark.parametrize("precision", ["single", "double"])


def some_landmarks(problem: VarianceProblem, rank: int) -> np.ndarray:
    """At random, copies of each other among them: a bad factor."""
    return np.random.default_rng(rank).permutation(problem.n)[:rank]


def interval(problem: VarianceProblem, factor: NystromFactor) -> tuple[np.ndarray, np.ndarray]:
    """Of a new observation."""
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
