"""The bounds term by term, by dense algebra, of a factor whose roundings are told to be large: so that each term shows.

Bounds hold for whatever the roundings are; here they are neither what they are nor small, and the bounds are no bounds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.executors.base import HereExecutor
from dkgp.models.variance.bounds import Queries, _landmark_quadratic, factor_interval, plain_weights, residual_bound
from tests.models.variance.variance_problems import VarianceProblem, draw

EPS, U = 2.0**-52, 2.0**-53
UNIT, ENTRY_ERROR = 0.03, 1e12


class Loud:
    """A factor with roundings of its own choice."""

    unit, entry_error = UNIT, ENTRY_ERROR

    def __init__(self, factor: Any) -> None:
        self._factor = factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factor, name)


@pytest.fixture(scope="module")
def problem() -> VarianceProblem:
    return draw(3, 40, 2, gamma=0.5, noise=0.02, variance=7.0)


def landmark_terms(problem: VarianceProblem, factor: Any, beta: np.ndarray, double: bool) -> tuple[Any, Any]:
    """What K_nI beta rounds, over w_i, and beta' K_II beta at most."""
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
        error = UNIT * np.sqrt(largest) * absolute
        quadratic = factor.whitening.square(factor.lower, image, factor.landmark_scale, np.sqrt(largest), error)
        expected = 7.0 - 2.0 * np.sum(v * k, axis=0) + quadratic + s2 * square + spread**2
        slack = largest * share * (share + absolute) + quadratic + s2 * square + spread**2
        np.testing.assert_allclose(upper, expected + 4.0 * 1.01 * UNIT * slack, rtol=1e-6)
    else:
        np.testing.assert_array_equal(upper, queries.highest)
    rounding, landmark_quadratic = landmark_terms(problem, factor, beta, double)
    left = s2 * np.sqrt(square) * (1.0 + UNIT) + factor.weight_norm * (rounding + 1.01 * UNIT * largest * share)
    lowest = 7.0 - left**2 / s2 - landmark_quadratic - 4.0 * 1.01 * UNIT * largest * share**2
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
    norm = np.linalg.norm(left, axis=0) * (1.0 + UNIT) + factor.weight_norm * (rounding + own)
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
