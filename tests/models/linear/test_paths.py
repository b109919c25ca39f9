"""Paths by cardinality against scikit-learn's, and naive loops."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.models.linear.paths import follow
from dkgp.solvers import GramSystem
from dkgp.solvers.pursuit.rivals import homotopy


def problem(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) + 0.7 * rng.standard_normal((n, 1))
    y = X @ (rng.standard_normal(d) * (rng.random(d) < 0.5)) + rng.standard_normal(n)
    return X, y, X.T @ X


@pytest.mark.parametrize("method", ["scdp", "omp"])
def test_pursuit_is_scikit_learns_at_every_cardinality(method: str, rng: np.random.Generator) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    for _ in range(20):
        X, y, A = problem(rng, int(rng.integers(20, 60)), int(rng.integers(2, 15)))
        d = A.shape[1]
        path = follow(method, GramSystem(A), X.T @ y, d)
        assert path.longest == d
        for k in range(1, d + 1):
            expected = linear_model.orthogonal_mp_gram(A, X.T @ y, n_nonzero_coefs=k)
            np.testing.assert_allclose(path.solution(k, d), expected, rtol=1e-9, atol=1e-10)
        assert not path.solution(0, d).any()


def test_lars_and_lasso_end_each_cardinality_where_scikit_learn_goes_beyond_it(rng: np.random.Generator) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    dropped = 0
    for _ in range(40):
        n, d = int(rng.integers(15, 60)), int(rng.integers(2, 14))
        X, y, A = problem(rng, n, d)
        # scikit-learn 1.9 leaves the least angles' path where a weight changes its sign.
        drops = any((at.weights == 0.0).any() for at in homotopy(A, X.T @ y).breaks[1:])
        dropped += drops
        for name, method in (("lasso", "lasso"), *(() if drops else (("lars", "lar"),))):
            *_, coefficients = linear_model.lars_path_gram(X.T @ y, A, n_samples=n, method=method)
            some = np.abs(coefficients) > 1e-12
            # Up to a break: what has a weight there, and what had one at the break before.
            counts = np.count_nonzero(some | np.roll(some, 1, axis=1) & (np.arange(some.shape[1]) > 0), axis=0)
            most = int(rng.integers(1, d + 1))
            path = follow(name, GramSystem(A), X.T @ y, most)
            assert path.longest == min(most, counts.max())
            for k in range(path.longest + 1):
                beyond = np.flatnonzero(counts > k)
                last = beyond[0] - 1 if len(beyond) else len(counts) - 1
                np.testing.assert_allclose(path.solution(k, d), coefficients[:, last], atol=1e-8)
    assert 0 < dropped < 40


def test_lasso_solves_its_own_problem(rng: np.random.Generator) -> None:
    """Against coordinate descent, by the penalty that the conditions of the minimum give."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y, A = problem(rng, 80, 10)
    path = follow("lasso", GramSystem(A), X.T @ y, 10)
    for k in range(1, 10):
        w = path.solution(k, 10)
        level = float(np.abs(X.T @ (y - X @ w)).max())
        _, expected, _ = linear_model.lasso_path(X, y, alphas=[level / 80], tol=1e-13, max_iter=100_000)
        np.testing.assert_allclose(w, expected[:, 0], atol=1e-6)


def test_matching_pursuit_is_its_loop(rng: np.random.Generator) -> None:
    X, y, A = problem(rng, 50, 12)
    path = follow("mp", GramSystem(A), X.T @ y, 6)
    w, order = np.zeros(12), list[int]()
    while True:
        c = X.T @ (y - X @ w)
        best = int(np.argmax(np.abs(c)))
        if best not in order:
            assert np.array_equal(path.supports[len(order)], order)
            np.testing.assert_allclose(path.solution(len(order), 12), w, rtol=1e-9, atol=1e-12)
            if len(order) == 6:
                break
            order.append(best)
        w[best] += c[best] / A[best, best]
    assert path.longest == 6


@pytest.mark.parametrize("method", ["scdp", "mp", "lars", "lasso"])
def test_errors_are_those_of_residuals(method: str, rng: np.random.Generator) -> None:
    X, y, A = problem(rng, 40, 9)
    path = follow(method, GramSystem(A), X.T @ y, 7)
    used = path.used()
    found = path.errors(A[np.ix_(used, used)], (X.T @ y)[used], float(y @ y), used)
    expected = [np.sum((y - X @ path.solution(k, 9)) ** 2) for k in range(8)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("method", ["scdp", "mp", "lars", "lasso"])
def test_a_target_that_no_feature_has_anything_of(method: str) -> None:
    path = follow(method, GramSystem(np.eye(4)), np.zeros(4), 3)
    assert path.longest == 0
    assert not path.solution(3, 4).any()
    assert path.used().tolist() == []
