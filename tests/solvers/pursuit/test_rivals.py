"""Rivals of pursuit against naive loops and scikit-learn's paths."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.operators import ArrayInputs
from dkgp.solvers import PursuitSettings, RowSystem, pursue
from dkgp.solvers.pursuit.rivals import HomotopyPath, homotopy, matching_pursuit


def problem(rng: np.random.Generator, n: int = 50, d: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) + 0.7 * rng.standard_normal((n, 1))
    y = X @ (rng.standard_normal(d) * (rng.random(d) < 0.5)) + rng.standard_normal(n)
    return X, y, X.T @ X


@pytest.mark.parametrize("shrinkage", [1.0, 0.1])
def test_stagewise_is_the_loop_of_algorithm_1(shrinkage: float, rng: np.random.Generator) -> None:
    X, y, A = problem(rng)
    w, r = np.zeros(12), y.copy()
    solutions, order = [], []
    for _ in range(400):
        j = int(np.argmax(np.abs(X.T @ r)))
        if j not in order:
            if order:
                solutions.append(w.copy())
            order.append(j)
        w[j] += shrinkage * (X[:, j] @ r) / (X[:, j] @ X[:, j])
        r = y - X @ w
    solutions.append(w)
    path = matching_pursuit(A, X.T @ y, shrinkage=shrinkage, iterations=400)
    assert path.order.tolist() == order
    for k, expected in enumerate(solutions, 1):
        np.testing.assert_allclose(path.solution(k, 12), expected, rtol=1e-9, atol=1e-10)
    assert path.iterations[-1] == 400
    if shrinkage == 1.0:
        other = matching_pursuit(A, X.T @ y, most=3)
        assert other.order.tolist() == order[:3]
        np.testing.assert_allclose(other.solution(3, 12), solutions[2], rtol=1e-9, atol=1e-10)


def test_matching_pursuit_comes_to_the_solution_in_the_end(rng: np.random.Generator) -> None:
    X, y, A = problem(rng)
    path = matching_pursuit(A, X.T @ y, tolerance=1e-9)
    np.testing.assert_allclose(path.solution(len(path.order), 12), np.linalg.solve(A, X.T @ y), atol=1e-9)
    assert path.iterations[-1] > 12


def test_the_largest_of_two_steps_is_orthogonal_least_squares(rng: np.random.Generator) -> None:
    """`refit` lowers the residual at least as much as any other choice of one more."""
    X, y, A = problem(rng)
    path = pursue(A, X.T @ y, PursuitSettings(5, score="refit"))
    for k in range(5):
        S = path.order[:k].tolist()
        left = {i: np.linalg.lstsq(X[:, [*S, i]], y, rcond=None)[1].item() for i in range(12) if i not in S}
        assert min(left, key=lambda i: left[i]) == path.order[k]


def check(path: HomotopyPath, alphas: np.ndarray, coefficients: np.ndarray, n: int) -> None:
    for alpha, expected in zip(alphas, coefficients.T, strict=True):
        np.testing.assert_allclose(path.at(alpha * n), expected, atol=1e-8)


@pytest.mark.parametrize("method", ["lar", "lasso"])
def test_paths_are_those_of_scikit_learn(method: str, rng: np.random.Generator) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    dropped = 0
    for _ in range(30):
        n, d = int(rng.integers(15, 60)), int(rng.integers(2, 14))
        X, y, A = problem(rng, n, d)
        X = X * np.exp(rng.standard_normal(d))
        A = X.T @ X
        alphas, _, coefficients = linear_model.lars_path_gram(X.T @ y, A, n_samples=n, method=method)
        lasso = homotopy(A, X.T @ y)
        drops = sum(bool((at.weights == 0.0).any()) for at in lasso.breaks[1:])
        dropped += drops
        if method == "lasso":
            check(lasso, alphas, coefficients, n)
        elif not drops:
            # Where a weight changes its sign, scikit-learn 1.9 turns that of its gradient, and leaves the path.
            check(homotopy(A, X.T @ y, drops=False), alphas, coefficients, n)
    assert 5 < dropped < 60


def test_least_angles_are_least(rng: np.random.Generator) -> None:
    """All that are active correlate alike with the residual, all others less, weights through zero or not."""
    turned = 0
    for _ in range(20):
        X, y, A = problem(rng)
        b, signs = X.T @ y, {}
        path = homotopy(A, b, drops=False)
        assert len(path) == 13
        for number, at in enumerate(path):
            c = b - A @ path.solution(number)
            assert np.abs(c).max() <= at.level + 1e-9 * np.abs(b).max()
            np.testing.assert_allclose(np.abs(c[at.support]), at.level, atol=1e-9 * np.abs(b).max())
            for index, weight in zip(at.support.tolist(), at.weights, strict=True):
                turned += signs.setdefault(index, np.sign(weight)) != np.sign(weight)
        np.testing.assert_allclose(path.at(0.0), np.linalg.solve(A, b), atol=1e-9)
    assert turned > 0


def test_every_break_meets_the_conditions_of_the_lasso(rng: np.random.Generator) -> None:
    """|c_j| <= lambda everywhere, c_j = lambda sign(w_j) where w_j is not zero: with drops, ties and duplicates."""
    for kind in range(20):
        X, y, A = problem(rng, 30, 40 if kind % 2 else 10)
        if kind % 4 < 2:
            X = np.hstack([X, X[:, :2]])  # the very same, twice
        else:
            X = np.sign(X)  # many ties
            y = np.sign(y)
        A, b = X.T @ X, X.T @ y
        path = homotopy(A, b, most=25)
        levels = [at.level for at in path]
        assert all(later <= before for before, later in pairwise(levels))
        for number, at in enumerate(path):
            w = path.solution(number)
            c = b - A @ w
            assert np.abs(c).max() <= at.level * (1.0 + 1e-9) + 1e-9
            inside = w != 0.0
            np.testing.assert_allclose(c[inside], at.level * np.sign(w[inside]), atol=1e-9 * levels[0])
        assert len(path) > 5


def test_ties_from_the_start(rng: np.random.Generator) -> None:
    A = np.eye(4)
    path = homotopy(A, np.array([1.0, -1.0, 0.5, 0.5]))
    np.testing.assert_allclose(path.at(0.75), [0.25, -0.25, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(path.at(0.25), [0.75, -0.75, 0.25, 0.25], atol=1e-15)
    np.testing.assert_allclose(path.at(0.0), [1.0, -1.0, 0.5, 0.5], atol=1e-15)
    assert len(homotopy(A, np.zeros(4))) == 1


def test_a_path_ends_where_it_is_told_to(rng: np.random.Generator) -> None:
    X, y, A = problem(rng)
    whole = homotopy(A, X.T @ y)
    level = 0.3 * np.abs(X.T @ y).max()
    part = homotopy(A, X.T @ y, until=level)
    assert part.breaks[-1].level == pytest.approx(level, rel=1e-12)
    np.testing.assert_allclose(part.solution(len(part) - 1), whole.at(level), atol=1e-12)
    with pytest.raises(InputError, match="ends at lambda"):
        part.at(0.5 * level)
    few = homotopy(A, X.T @ y, most=4)
    assert max(len(at.support) for at in few) == 4
    with pytest.raises(InputError, match="`until`"):
        homotopy(A, X.T @ y, until=-1.0)
    with pytest.raises(InputError, match="one right-hand side"):
        homotopy(A, np.ones((12, 2)))
    with pytest.raises(InputError, match="`shrinkage`"):
        matching_pursuit(A, X.T @ y, shrinkage=0.0)


def test_paths_of_rows_need_no_gram(rng: np.random.Generator) -> None:
    X, y, A = problem(rng)
    executor = LocalExecutor(1)
    system = RowSystem(ArrayInputs(X), executor)
    path = homotopy(system, y)
    np.testing.assert_allclose(path.at(0.0), np.linalg.solve(A, X.T @ y), rtol=1e-8)
    assert matching_pursuit(system, y, most=4).order.tolist() == matching_pursuit(A, X.T @ y, most=4).order.tolist()
    executor.close()


def test_numbers_of_regressors_that_make_no_sense_are_refused() -> None:
    for rival in (matching_pursuit, homotopy):
        with pytest.raises(InputError, match="`most` must not be negative; got -1"):
            rival(np.eye(3), np.ones(3), most=-1)
