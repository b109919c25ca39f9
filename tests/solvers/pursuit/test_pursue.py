"""Sparse conjugate directions pursuit against the paper's Algorithm 3, scikit-learn, and dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError, MemoryBudgetError
from dkgp.solvers import GramSystem, PursuitSettings, pursue
from dkgp.solvers.pursuit.engine import drawn, stagnates


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
