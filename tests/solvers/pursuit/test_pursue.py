"""Pursuits of given, streamed and kernel systems, and their rivals."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError
from dkgp.kernels import Matern32
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers import GramSystem, KernelSystem, PursuitPath, PursuitSettings, RowSystem, pursue
from dkgp.solvers.driver import Watch
from dkgp.solvers.pursuit.engine import drawn, stagnates
from dkgp.solvers.pursuit.rivals import HomotopyPath, homotopy, matching_pursuit
from dkgp.solvers.pursuit.systems import INTERCEPT_SHARE
from tests.resuming import Resuming, kill, require_same_bits
from tests.workers import on_dask


def system(rng: np.random.Generator, n: int = 60, d: int = 25) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) * np.exp(0.5 * rng.standard_normal(d))
    y = X @ (rng.standard_normal(d) * (rng.random(d) < 0.4)) + 0.3 * rng.standard_normal(n)
    return X, y, X.T @ X


def algorithm_3(A: np.ndarray, b: np.ndarray, steps: int) -> tuple[list[int], np.ndarray, np.ndarray]:
    """To the letter, line by line, with the misprints mended: s by the gradient after the step, B_k,k+1 over B_kk."""
    D = len(b)
    w, c = np.zeros(D), -b
    s = [int(np.argmax(np.abs(c)))]
    p = np.eye(D)[s[0]]
    P = [p]
    B = np.zeros((steps, steps))
    for k in range(steps):
        t = A @ p
        eta = -(c @ p) / (p @ t)
        w = w + eta * p
        c = c + eta * t
        if k + 1 == steps:
            break
        s.append(int(np.argmax(np.where(np.isin(np.arange(D), s), -1.0, np.abs(c)))))
        B[: k + 1, : k + 2] = np.array(P) @ A[:, s]
        p = np.zeros(D)
        p[s[-1]] = 1.0
        p[s[k]] = -B[k, k + 1] / B[k, k]
        for i in range(k - 1, -1, -1):
            p[s[i]] = (-B[i, k + 1] - sum(B[i, j] * p[s[j]] for j in range(i + 1, k + 1))) / B[i, i]
        P.append(p)
    return s, w, np.array(P)


def test_algorithm_3_to_the_letter(rng: np.random.Generator) -> None:
    _, y, A = X_y_A = system(rng)
    b = X_y_A[0].T @ y
    order, w, P = algorithm_3(A, b, 12)
    path = pursue(A, b, PursuitSettings(12))
    assert path.order.tolist() == order
    np.testing.assert_allclose(path.solution()[:, 0], w, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(path.directions, P[:, order].T, rtol=1e-8, atol=1e-10)
    # The path is the sum of its steps (8).
    for k in range(13):
        by_steps = P[:k, order[:k]].T @ path.steps[0, :k]
        np.testing.assert_allclose(path.weights_at(k)[:, 0], by_steps, rtol=1e-8, atol=1e-10)
        w_k = path.solution(k)[:, 0]
        assert path.objectives[k] == pytest.approx(0.5 * w_k @ A @ w_k - b @ w_k, rel=1e-10, abs=1e-12)


def test_it_is_orthogonal_matching_pursuit_on_a_hundred_systems(rng: np.random.Generator) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    for number in range(100):
        X, y, A = system(rng, int(rng.integers(20, 80)), int(rng.integers(2, 40)))
        k = int(rng.integers(1, min(X.shape) + 1))
        expected = linear_model.orthogonal_mp_gram(A, X.T @ y, n_nonzero_coefs=k)
        found = pursue(A, X.T @ y, PursuitSettings(k)).solution()[:, 0]
        assert np.array_equal(np.flatnonzero(found), np.flatnonzero(expected)), number
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def test_directions_are_conjugate_and_all_steps_solve_the_system(rng: np.random.Generator) -> None:
    X, y, A = system(rng)
    path = pursue(A, X.T @ y)
    P = np.zeros((25, 25))
    P[path.order] = path.directions
    products = P.T @ A @ P
    np.testing.assert_allclose(products, np.diag(path.curvatures), atol=1e-10 * np.abs(products).max())
    assert np.all(path.curvatures > 0.0)
    assert np.array_equal(np.diagonal(path.directions), np.ones(25))
    np.testing.assert_allclose(path.solution()[:, 0], np.linalg.solve(A, X.T @ y), rtol=1e-8)
    assert len(path) == 25


@pytest.mark.parametrize("score", ["gradient", "single", "refit"])
@pytest.mark.parametrize("t", [1, 3])
def test_every_choice_is_the_best_naively(score: Any, t: int, rng: np.random.Generator) -> None:
    X, y, A = system(rng)
    b = X.T @ np.column_stack([y, *rng.standard_normal((t - 1, len(y)))])
    order: list[int] = []
    for _ in range(9):
        beta = np.linalg.solve(A[np.ix_(order, order)], b[order]) if order else np.zeros((0, t))
        c = b - A[:, order] @ beta
        values = np.sum(c**2, axis=1)
        if score == "single":
            values = values / np.diagonal(A)
        if score == "refit":
            values = np.full(25, -1.0)
            for i in set(range(25)) - set(order):
                S = [*order, i]
                values[i] = np.sum(b[S] * np.linalg.solve(A[np.ix_(S, S)], b[S]))
        values[order] = -1.0
        order.append(int(np.argmax(values)))
    path = pursue(A, b, PursuitSettings(9, score=score))
    assert path.order.tolist() == order
    np.testing.assert_allclose(path.weights_at(9), np.linalg.solve(A[np.ix_(order, order)], b[order]), rtol=1e-9)


@pytest.mark.parametrize("score", ["gradient", "refit"])
def test_random_draws_choose_the_best_of_what_they_show(score: Any, rng: np.random.Generator) -> None:
    X, y, A = system(rng)
    b, out = X.T @ y, np.zeros(25, dtype=bool)
    order: list[int] = []
    for number in range(8):
        shown = drawn(3, number, 1, 6, out)
        assert len(set(shown.tolist())) == 6
        assert not out[shown].any()
        c = b - A[:, order] @ np.linalg.solve(A[np.ix_(order, order)], b[order])
        fall = c**2
        if score == "refit":
            for i in shown:
                S = [*order, int(i)]
                fall[i] = b[S] @ np.linalg.solve(A[np.ix_(S, S)], b[S])
        order.append(int(shown[np.argmax(fall[shown])]))
        out[order] = True
    path = pursue(A, b, PursuitSettings(8, candidates=6, seed=3, score=score))
    assert path.order.tolist() == order
    np.testing.assert_allclose(path.weights_at(8)[:, 0], np.linalg.solve(A[np.ix_(order, order)], b[order]), rtol=1e-9)
    # As many candidates as there are regressors: SCDP itself.
    assert np.array_equal(pursue(A, b, PursuitSettings(8, candidates=25)).order, pursue(A, b, PursuitSettings(8)).order)


def test_draws_share_what_they_can_between_paths() -> None:
    """Remark 8: of a seed and a round alone; another path loses what it has chosen, and no more."""
    nobody, some = np.zeros(50, dtype=bool), np.arange(50) < 5
    one, other = drawn(1, 4, 1, 10, nobody), drawn(1, 4, 1, 10, some)
    assert set(one.tolist()) - set(range(5)) <= set(other.tolist())
    assert not np.array_equal(one, drawn(1, 5, 1, 10, nobody))
    assert len(drawn(1, 0, 1, 10, np.arange(50) < 47)) == 3


@pytest.mark.parametrize("candidates", [None, 7])
def test_several_choices_a_round(candidates: int | None, rng: np.random.Generator) -> None:
    X, y, A = system(rng)
    b = X.T @ y
    path = pursue(A, b, PursuitSettings(10, candidates=candidates, per_round=4))
    assert [record.size for record in path.history] == [4, 8, 10]
    S = path.order[:8]
    np.testing.assert_allclose(path.weights_at(8)[:, 0], np.linalg.solve(A[np.ix_(S, S)], b[S]), rtol=1e-9)
    if candidates is None:
        assert set(path.order[:4].tolist()) == set(np.argsort(-np.abs(b))[:4].tolist())


@pytest.mark.parametrize("candidates", [None, 5])
def test_what_comes_first(candidates: int | None, rng: np.random.Generator) -> None:
    X, y, A = system(rng)
    path = pursue(A, X.T @ y, PursuitSettings(6, first=(7, 2), candidates=candidates))
    assert path.order[:2].tolist() == [7, 2]
    assert path.history[0].size == 2


def test_where_it_stops(rng: np.random.Generator) -> None:
    X, y, A = system(rng)
    b, square = X.T @ y, float(y @ y)
    given = GramSystem(A, square=square)
    path = pursue(given, b, PursuitSettings(residual=0.1 * square))
    assert path.residuals is not None
    assert path.reason.rule == "residual"
    assert path.residuals[-1] <= 0.1 * square < path.residuals[-2]
    S = path.order
    assert path.residuals[-1] == pytest.approx(np.sum((y - X[:, S] @ path.weights_at(len(S))[:, 0]) ** 2), rel=1e-9)
    path = pursue(A, b, PursuitSettings(tolerance=1.0))
    assert path.reason.rule == "gradient"
    assert np.abs(b - A @ path.solution()[:, 0]).max() <= 1.0 + 1e-9
    assert np.abs(b - A @ path.solution(len(path) - 1)[:, 0]).max() > 1.0
    path = pursue(given, b, PursuitSettings(stagnation=(3, 0.2)))
    residuals = path.residuals
    assert residuals is not None
    assert path.reason.rule == "stagnation"
    k = len(path)
    assert abs(residuals[k - 3 : k].mean() - residuals[k]) < 0.2 * residuals[k]
    assert not any(stagnates(residuals[1 : j + 1], 3, 0.2) for j in range(1, k))
    path = pursue(A, b, PursuitSettings(stagnation=(2, 0.5)), judge=lambda path: 1.0)
    assert len(path) == 3


def test_a_residual_of_nothing_is_found_exactly(rng: np.random.Generator) -> None:
    *_, A = system(rng)
    w = np.zeros(25)
    w[[3, 8, 20]] = 1.0, -2.0, 0.5
    path = pursue(A, A @ w, PursuitSettings())
    assert path.reason.rule in ("solved", "size")
    np.testing.assert_allclose(path.solution()[:, 0], w, atol=1e-12)


def test_nothing_to_do() -> None:
    path = pursue(np.eye(4), np.zeros(4))
    assert len(path) == 0
    assert path.reason.converged
    assert np.array_equal(path.solution(), np.zeros((4, 1)))
    assert path.directions.shape == (0, 0)


@pytest.mark.parametrize("candidates", [None, 30])
def test_duplicates_and_zero_columns_are_passed_over(candidates: int | None, rng: np.random.Generator) -> None:
    X, y, _ = system(rng)
    X = np.hstack([X[:, :8], X[:, :8], np.zeros((60, 3)), X[:, :4] + X[:, 4:8]])
    path = pursue(X.T @ X, X.T @ y, PursuitSettings(candidates=candidates))
    assert path.reason.converged
    assert len(path) == np.linalg.matrix_rank(X) == 8
    expected = X @ np.linalg.lstsq(X, y, rcond=None)[0]
    np.testing.assert_allclose(X @ path.solution()[:, 0], expected, atol=1e-9)


def test_an_ill_conditioned_system_is_solved_to_its_own_accuracy(rng: np.random.Generator) -> None:
    Q, _ = np.linalg.qr(rng.standard_normal((30, 30)))
    A = (Q * np.logspace(0, -9, 30)) @ Q.T
    A = (A + A.T) / 2
    w = rng.standard_normal(30)
    path = pursue(A, A @ w)
    found = path.solution()[:, 0]
    assert np.abs(A @ (found - w)).max() <= 1e-13
    assert len(path) <= 30


@pytest.mark.parametrize(
    ("matrix", "rhs", "settings", "words"),
    [
        (np.ones((2, 3)), np.ones(2), {}, r"shape \(D, D\)"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), np.ones(2), {}, "row 0, column 1"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), np.ones(2), {}, "symmetric"),
        (np.diag([1.0, -1.0]), np.ones(2), {}, "diagonal"),
        (np.eye(2), np.array([1.0, np.inf]), {}, "row 1, column 0"),
        (np.eye(2), np.ones(3), {}, r"\(2, t\)"),
        (np.eye(2), np.ones(2), {"size": 3}, "2 regressors"),
        (np.eye(2), np.ones(2), {"first": (2,)}, "from 0 to 1"),
        (np.eye(2), np.ones(2), {"first": (1, 1)}, "twice"),
        (np.eye(2), np.ones(2), {"residual": 0.1}, "`square`"),
        (np.eye(2), np.ones(2), {"stagnation": (2, 0.1)}, "scores"),
        (np.eye(2), np.ones(2), {"tolerance": 0.1, "candidates": 2}, "leave out one"),
        (np.eye(2), np.ones(2), {"score": "residual"}, "refit"),
        (np.eye(2), np.ones(2), {"per_round": 0}, "at least 1"),
        (np.eye(2), np.ones(2), {"size": 1.5}, "whole number"),
        (np.eye(2), np.ones(2), {"seed": -1}, "at least 0"),
        (np.eye(2), np.ones(2), {"stagnation": (2.5, 0.1)}, "whole number"),
        (np.eye(2), np.ones(2), {"stagnation": (2, np.nan)}, "not negative"),
        (np.eye(2), np.array([1e160, 1.0]), {}, "squares"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), np.ones(2), {}, "semidefinite.* row 0, column 1"),
        (np.array([[1.0, 1.2], [1.2, 1.0]]), np.ones(2), {}, "semidefinite"),
    ],
)
def test_what_cannot_be_pursued_is_refused(matrix: Any, rhs: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        pursue(matrix, rhs, PursuitSettings(**settings))


@pytest.mark.parametrize("candidates", [None, 9])
@pytest.mark.parametrize("score", ["gradient", "single", "refit"])
def test_targets_of_any_size_have_the_same_path(candidates: int | None, score: Any, rng: np.random.Generator) -> None:
    """By powers of two, whose squares float64 does not have: the order is the same, the weights are to the bit."""
    X, y, A = system(rng)
    settings = PursuitSettings(6, candidates=candidates, score=score)
    path, tiny = (pursue(A, scale * (X.T @ y), settings) for scale in (1.0, 2.0**-700))
    assert np.array_equal(tiny.order, path.order)
    assert np.array_equal(2.0**700 * tiny.solution(), path.solution())


def test_memory_is_refused_with_numbers() -> None:
    with pytest.raises(MemoryBudgetError, match=r"900 columns of 1,000 numbers.* take 13 MiB, more than the 1 MiB"):
        pursue(np.eye(1000), np.ones(1000), PursuitSettings(900, memory_bytes=2**20))
    # As long as fits, where nobody asked for a length.
    path = pursue(np.eye(1000), np.arange(1.0, 1001.0), PursuitSettings(memory_bytes=2**20))
    assert 50 < len(path) < 131
    with pytest.raises(MemoryBudgetError, match="by its rows"):
        GramSystem(np.eye(600, dtype=np.float32), memory_bytes=2**20)


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


@pytest.fixture
def executor() -> Any:
    executor = LocalExecutor(2)
    yield executor
    executor.close()


def rows(rng: np.random.Generator, n: int = 900, d: int = 40) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) * np.exp(0.3 * rng.standard_normal(d)) + 0.2
    return X, X @ (rng.standard_normal((d, 2)) * (rng.random((d, 1)) < 0.3)) + 0.3 * rng.standard_normal((n, 2))


@pytest.mark.parametrize("candidates", [None, 7])
@pytest.mark.parametrize("score", ["gradient", "refit"])
def test_rows_have_the_path_of_their_gram(
    candidates: int | None, score: Any, executor: LocalExecutor, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    settings = PursuitSettings(12, candidates=candidates, score=score)
    system = RowSystem(ArrayInputs(X), executor)
    found, dense = pursue(system, y, settings), pursue(X.T @ X, X.T @ y, settings)
    assert np.array_equal(found.order, dense.order)
    np.testing.assert_allclose(found.weights_at(12), dense.weights_at(12), rtol=1e-9)
    assert found.residuals is not None
    for k in (0, 5, 12):
        left = y - X[:, found.order[:k]] @ found.weights_at(k)
        assert found.residuals[k] == pytest.approx(np.sum(left**2), rel=1e-10)
    # X'y, and a pass for each choice.
    assert system.passes == 13


def test_shift_and_scale_are_those_of_the_columns(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X, y = rows(rng)
    system = RowSystem(ArrayInputs(X), executor)
    shift, scale = system.means(), rng.uniform(0.5, 2.0, 40)
    np.testing.assert_allclose(shift, X.mean(axis=0), rtol=1e-12)
    Z = (X - shift) * scale
    found = pursue(RowSystem(ArrayInputs(X), executor, shift=shift, scale=scale), y, PursuitSettings(9))
    dense = pursue(Z.T @ Z, Z.T @ y, PursuitSettings(9))
    assert np.array_equal(found.order, dense.order)
    np.testing.assert_allclose(found.weights_at(9), dense.weights_at(9), rtol=1e-9)


def test_a_constant_column_has_its_value_for_mean(executor: LocalExecutor, rng: np.random.Generator) -> None:
    """Sums over 997 rows round: what centring left of it would be a regressor, and one that `refit` likes."""
    values = np.array([0.1, -7.3e5, 1.0 / 3.0, 0.0])
    X = np.column_stack([np.tile(values, (997, 1)), rng.standard_normal(997) + 1e6])
    assert (X.mean(axis=0)[:3] != values[:3]).any()
    means = RowSystem(ArrayInputs(X), executor).means()
    assert np.array_equal(means[:4], values)
    assert means[4] == pytest.approx(X[:, 4].mean(), rel=1e-15)


def test_a_pass_tells_how_far_it_is(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X, y = rows(rng)
    heard: list[tuple[int, int]] = []
    system = RowSystem(ArrayInputs(X), executor, told=lambda done, of: heard.append((done, of)))
    pursue(system, y, PursuitSettings(3))
    assert max(done for done, _ in heard) == heard[0][1] > 1
    assert heard.count(heard[-1]) >= system.passes == 4

    def enough(done: int, of: int) -> None:
        raise InterruptedRunError("enough")

    with pytest.raises(InterruptedRunError, match="enough"):
        pursue(RowSystem(ArrayInputs(X), executor, told=enough), y, PursuitSettings(3))


KILLED = """
import os, signal, sys
from dkgp.cluster import LocalExecutor
from dkgp.data import open_dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.solvers import Checkpointing, PursuitSettings, RowSystem, Watch, pursue

folder, candidates, at = sys.argv[1], int(sys.argv[2]) or None, int(sys.argv[3])
dataset = open_dataset(folder + "/a.zarr")
passes = 0


def told(done, of):
    global passes
    passes += done == of
    if passes == at:
        os.kill(os.getpid(), signal.SIGKILL)


kept = Checkpointing(CheckpointStore(folder + "/checkpoints"), 0.0, {"data": dataset.fingerprint})
pursue(
    RowSystem(dataset, LocalExecutor(2), told=told), dataset.all_targets(), PursuitSettings(10, candidates=candidates),
    watch=Watch(checkpointing=kept),
)
"""


@pytest.mark.faults
@pytest.mark.parametrize("candidates", [None, 9])
def test_a_path_whose_process_is_killed_within_a_round_is_resumed_to_the_same_bits(
    candidates: int | None, executor: LocalExecutor, tmp_path: Path, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    dataset = dataset_from_arrays(tmp_path / "a.zarr", X, y, chunk_rows=100)
    settings, targets = PursuitSettings(10, candidates=candidates), dataset.all_targets()
    kill(KILLED, tmp_path, candidates or 0, 6)
    rounds: list[int] = []
    kept = Resuming(
        lambda **watch: pursue(RowSystem(dataset, executor), targets, settings, watch=Watch(**watch)),
        tmp_path,
        data=dataset.fingerprint,
    )
    kept.require_same(callback=lambda progress: rounds.append(progress.round))
    assert rounds[0] > 3, "nothing was kept of the rounds before"


def test_a_residual_near_nothing_is_found_from_residuals(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 200))
    w = np.zeros(200)
    w[[4, 90, 150]] = 1.0, -1.0, 1.0
    y = X @ w + 1e-7 * rng.standard_normal(80)
    square = float(y @ y)
    path = pursue(RowSystem(ArrayInputs(X), executor), y, PursuitSettings(residual=2e-14 * square))
    left = y - X @ path.solution()[:, 0]
    assert path.reason.rule == "residual"
    assert path.residuals is not None
    assert path.residuals[-1] == pytest.approx(left @ left, rel=1e-9)
    assert set(path.order.tolist()) == {4, 90, 150}


def test_rows_that_are_no_numbers_are_refused(executor: LocalExecutor, rng: np.random.Generator) -> None:
    class Source:
        n_samples, n_features = 30, 3

        def inputs(self, start: int, stop: int) -> np.ndarray:
            values = np.ones((stop - start, 3))
            values[0, 1] = np.nan
            return values

    with pytest.raises(InputError, match="column 1"):
        pursue(RowSystem(Source(), executor), np.ones(30))
    with pytest.raises(InputError, match="column 1"):
        RowSystem(Source(), executor).means()
    with pytest.raises(InputError, match=r"\(30, t\)"):
        pursue(RowSystem(Source(), executor), np.ones(29))
    with pytest.raises(InputError, match="`shift`"):
        RowSystem(Source(), executor, shift=np.zeros(2))


@pytest.mark.parametrize("candidates", [pytest.param(None, marks=pytest.mark.slow), 9])
def test_the_same_bits_on_any_number_of_workers(
    candidates: int | None, tmp_path: Path, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    dataset = dataset_from_arrays(tmp_path / "a.zarr", X, y, chunk_rows=100)
    targets, settings = dataset.all_targets(), PursuitSettings(8, candidates=candidates, per_round=3)
    found = []
    for threads in (1, 3):
        local = LocalExecutor(threads)
        found.append(pursue(RowSystem(dataset, local), targets, settings))
        local.close()
    with on_dask(5, processes=False) as (cluster, _):
        found.append(pursue(RowSystem(dataset, cluster), targets, settings))
    for other in found[1:]:
        require_same_bits(found[0], other)
    assert len(found[0]) == 8


@pytest.mark.parametrize("more", [{}, {"candidates": 9}, {"score": "refit", "per_round": 3}])
def test_an_interrupted_path_is_resumed_to_the_same_bits(
    more: dict[str, Any], executor: LocalExecutor, tmp_path: Path, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    system = RowSystem(ArrayInputs(X), executor)

    def run(size: int = 12, seed: int = 0, **watch: Any) -> PursuitPath:
        return pursue(system, y, PursuitSettings(size, residual=1e-30, seed=seed, **more), watch=Watch(**watch))

    kept = Resuming(run, tmp_path)
    kept.interrupt(3)
    assert len(kept.require_same().history) > 3
    # Once more at its end: nothing is left to do but X'y.
    before = system.passes
    kept.require_same()
    assert system.passes <= before + 1
    kept.require_refused("another run", seed=5)
    kept.require_refused("12 regressors", size=4)


class KernelProblem:
    """Equation (29) densely."""

    def __init__(self, by_sample: bool, intercept: bool, rng: np.random.Generator) -> None:
        self.X, n, m = rng.standard_normal((300, 3)), 300, 40
        self.Z = self.X[:m]
        self.noise: Any = rng.uniform(0.05, 0.2, n) if by_sample else 0.1
        self.y = np.sign(np.sin(2.0 * self.X[:, :1]) + 0.3 + 0.2 * rng.standard_normal((n, 1)))
        self.kernel = Matern32(gamma=(0.6, 0.9, 0.4), variance=1.2)
        K, D = self.kernel(self.X, self.Z), 1.0 / np.broadcast_to(self.noise, (n,))
        H = np.hstack([K, np.ones((n, int(intercept)))])
        self.A, self.b = H.T @ (D[:, None] * H), H.T @ (D[:, None] * self.y)
        self.A[:m, :m] += self.kernel(self.Z, self.Z)
        if intercept:
            self.A[m, m] += INTERCEPT_SHARE * D.sum()
        self.H, self.D, self.m = H, D, m

    def system(self, executor: LocalExecutor, intercept: bool) -> KernelSystem:
        operator = BlockedKernelOperator(self.kernel, self.noise, ArrayInputs(self.X), executor)
        return KernelSystem(CrossKernel(operator, self.Z), intercept)


@pytest.mark.parametrize("candidates", [None, 6])
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("first", [None, (), (40,)])
def test_kernels_have_the_path_of_equation_29(
    candidates: int | None,
    by_sample: bool,
    first: tuple[int, ...] | None,
    executor: LocalExecutor,
    rng: np.random.Generator,
) -> None:
    """Without an intercept, with one that competes, and with one that comes first."""
    problem = KernelProblem(by_sample, first is not None, rng)
    settings = PursuitSettings(11, candidates=candidates, first=first or ())
    system = problem.system(executor, first is not None)
    found, dense = pursue(system, problem.y, settings), pursue(problem.A, problem.b, settings)
    assert np.array_equal(found.order, dense.order)
    np.testing.assert_allclose(found.weights_at(11), dense.weights_at(11), rtol=1e-7)
    np.testing.assert_allclose(system.diagonal(), np.diagonal(problem.A), rtol=1e-12)
    w = found.solution()
    left = problem.y - problem.H @ w
    penalty = w.T @ (problem.A - problem.H.T @ (problem.D[:, None] * problem.H)) @ w
    expected = np.sum(left**2 * problem.D[:, None]) + penalty.item()
    assert system.misfit(problem.y, found.order, found.weights_at(11)) == pytest.approx(expected, rel=1e-10)
    assert found.residuals is not None
    assert found.residuals[-1] == pytest.approx(expected, rel=1e-9)
    system.close()


def test_an_intercept_is_drawn_like_any_other(executor: LocalExecutor, rng: np.random.Generator) -> None:
    problem = KernelProblem(False, True, rng)
    settings = PursuitSettings(20, candidates=41, per_round=2)
    found = pursue(problem.system(executor, True), problem.y, settings)
    assert np.array_equal(found.order, pursue(problem.A, problem.b, settings).order)
    assert 40 in found.order
