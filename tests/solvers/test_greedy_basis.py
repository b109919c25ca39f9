"""Greedy choices of a basis, against naive loops and the papers to the letter."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.data import dataset_from_arrays
from dkgp.errors import CheckpointError, InputError, NumericalError
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, Periodic, Polynomial, RationalQuadratic, SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers.block_descent.selection import round_generator
from dkgp.solvers.driver import Watch
from dkgp.solvers.greedy_basis import (
    CANDIDATES,
    DUAL_STREAM,
    ROWS_STREAM,
    SCORES,
    DualSubset,
    GreedyBasis,
    GreedyEngine,
    GreedyProgress,
    GreedySettings,
    choose_greedily,
)
from tests.resuming import Resuming
from tests.solvers.paper import dealt, without
from tests.workers import on_dask

N, M = 55, 9
KERNEL: Kernel = Matern32(gamma=(0.6, 0.9), variance=1.2)


class Problem:
    """A system A beta = b over all samples, densely: A = K D K + K, b = K D y."""

    def __init__(self, n: int = N, p: int = 1, by_sample: bool = False, kernel: Kernel = KERNEL) -> None:
        rng = np.random.default_rng(4)
        self.X = rng.standard_normal((n, 2))
        self.noise: Any = rng.uniform(0.02, 0.2, n) if by_sample else 0.07
        wave = np.sin(2.0 * self.X[:, :1] + np.arange(p))
        self.y = wave * self.X[:, 1:] + 0.2 * rng.standard_normal((n, p))
        self.K = kernel(self.X, self.X)
        self.D = np.diag(1.0 / np.broadcast_to(self.noise, (n,)))
        self.A, self.b = self.K @ self.D @ self.K + self.K, self.K @ self.D @ self.y
        self.kernel = kernel

    def operator(self, executor: Any) -> BlockedKernelOperator:
        return BlockedKernelOperator(self.kernel, self.noise, ArrayInputs(self.X), executor)

    def beta(self, S: list[int]) -> np.ndarray:
        return np.linalg.solve(self.A[np.ix_(S, S)], self.b[S]) if S else np.zeros((0, self.y.shape[1]))

    def risk(self, S: list[int]) -> float:
        """R of the best weights on S, by residuals."""
        beta = self.beta(S)
        r = self.y - self.K[:, S] @ beta
        return float(0.5 * np.trace(r.T @ self.D @ r) + 0.5 * np.trace(beta.T @ self.K[np.ix_(S, S)] @ beta))

    def value(self, kind: str, S: list[int], i: int) -> float:
        """A candidate's score, naively."""
        beta = self.beta(S)
        c = self.b[i] - self.A[i, S] @ beta
        if kind == "refit":
            return 2.0 * (self.risk(S) - self.risk([*S, i]))
        return {
            "single": float(np.sum(c**2) / self.A[i, i]),
            "gradient": float(np.sum(c**2)),
            "residual": float(np.sum((self.y[i] - self.K[i, S] @ beta) ** 2)),
        }[kind]

    def naive(self, kind: str, size: int) -> list[int]:
        """Exhaustive greedy choice by naive scores."""
        S: list[int] = []
        while len(S) < size:
            left = [i for i in range(len(self.X)) if i not in S]
            S.append(max(left, key=lambda i: self.value(kind, S, i)))
        return S


def chosen(problem: Problem, executor: Any, **settings: Any) -> GreedyBasis:
    return choose_greedily(problem.operator(executor), problem.y, GreedySettings(**settings))


@pytest.mark.covering
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("kind", ["refit", "single", "gradient", "residual"])
def test_every_choice_is_the_best_of_naive_scores(
    kind: Any, p: int, by_sample: bool, one_thread: LocalExecutor
) -> None:
    problem = Problem(p=p, by_sample=by_sample)
    found = chosen(problem, one_thread, size=M, score=kind, exhaustive=True)
    assert found.indices.tolist() == problem.naive(kind, M)
    np.testing.assert_allclose(found.weights, problem.beta(found.indices.tolist()), rtol=1e-7, atol=1e-9)
    for record in found.history:
        assert record.risk == pytest.approx(problem.risk(found.indices[: record.size].tolist()), rel=1e-9)


def test_random_draws_are_those_of_the_seed(one_thread: LocalExecutor) -> None:
    """Algorithm 1 with its random subset: best of kappa by the risk after refitting, from I as drawn."""
    problem, S = Problem(), []
    for number in range(M):
        drawn = dealt(N, 6, 7, number)(without(S, N))
        S.append(min(drawn, key=lambda i: problem.risk([*S, i])))
    assert chosen(problem, one_thread, size=M, candidates=6, seed=7).indices.tolist() == S


def test_conjugate_directions_to_the_letter(one_thread: LocalExecutor) -> None:
    """Algorithm 3 of sparse conjugate directions pursuit: directions conjugate to all before, w and g by recursion."""
    problem = Problem()
    A, b = problem.A, problem.b[:, 0]
    w, g = np.zeros(N), -b.copy()
    P: list[np.ndarray] = []
    S: list[int] = []
    for _ in range(M):
        # s(k+1) by the gradient after the step; the direction has 1 there, and is conjugate to the others.
        s = int(np.argmax(np.where(np.isin(np.arange(N), S), -1.0, np.abs(g))))
        p = np.zeros(N)
        p[s] = 1.0
        for q in P:
            p -= (q @ A[:, s]) / (q @ A @ q) * q
        eta = -(g @ p) / (p @ A @ p)
        w, g = w + eta * p, g + eta * (A @ p)
        P.append(p)
        S.append(s)
    found = chosen(problem, one_thread, size=M, score="gradient", exhaustive=True)
    assert found.indices.tolist() == S
    np.testing.assert_allclose(found.weights[:, 0], w[S], rtol=1e-6, atol=1e-9)


def test_it_is_orthogonal_matching_pursuit_on_the_gram(one_thread: LocalExecutor) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    problem = Problem()
    expected = linear_model.orthogonal_mp_gram(problem.A, problem.b[:, 0], n_nonzero_coefs=M)
    found = chosen(problem, one_thread, size=M, score="gradient", exhaustive=True)
    assert sorted(found.indices) == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(found.weights[:, 0], expected[found.indices], rtol=1e-7)


@pytest.mark.parametrize("per_round", [1, 6])
def test_all_samples_chosen_give_the_exact_solution(per_round: int, one_thread: LocalExecutor) -> None:
    problem = Problem()
    found = chosen(problem, one_thread, size=N, per_round=per_round, candidates=8)
    assert sorted(found.indices) == list(range(N))
    alpha = np.empty((N, 1))
    alpha[found.indices] = found.weights
    np.testing.assert_allclose(
        problem.K @ alpha, problem.K @ np.linalg.solve(problem.K + 0.07 * np.eye(N), problem.y), atol=1e-6
    )
    assert found.history[-1].risk == pytest.approx(
        0.5 * (problem.y.T @ np.linalg.solve(problem.K + 0.07 * np.eye(N), problem.y)).item(), rel=1e-9
    )


@pytest.mark.parametrize("kind", ["refit", "single"])
def test_several_choices_a_round_are_the_best_of_their_own_draws(kind: Any, one_thread: LocalExecutor) -> None:
    problem, S = Problem(by_sample=True), []
    for number in range(3):
        draw, taken = dealt(N, 7, 0, number), list[int]()
        for _ in range(3):
            left = [i for i in draw(without(S, N)) if i not in taken]
            taken.append(max(left, key=lambda i: problem.value(kind, S, i)))
        S += taken
    found = chosen(problem, one_thread, size=9, per_round=3, candidates=7, score=kind)
    assert found.indices.tolist() == S
    np.testing.assert_allclose(found.weights, problem.beta(S), rtol=1e-7, atol=1e-9)
    assert [record.size for record in found.history] == [3, 6, 9]
    assert found.history[-1].risk == pytest.approx(problem.risk(S), rel=1e-9)


def test_candidates_that_were_kept_are_scored_again(one_thread: LocalExecutor) -> None:
    problem, S = Problem(), []
    kept: list[int] = []
    for number in range(M):
        pool = sorted({*dealt(N, 4, 0, number)(without(S, N)), *kept})
        values = {i: problem.value("single", S, i) for i in pool}
        S.append(max(pool, key=lambda i: values[i]))
        kept = sorted((i for i in pool if i != S[-1]), key=lambda i: -values[i])[:5]
    found = chosen(problem, one_thread, size=M, score="single", candidates=4, kept=5)
    assert found.indices.tolist() == S


def test_candidates_that_were_kept_leave_every_draw_its_own(one_thread: LocalExecutor) -> None:
    """They are in all draws: the best of them must not be all that every draw sends on."""
    found = chosen(
        Problem(n=400), one_thread, size=24, score="single", per_round=8, candidates=20, kept=20, score_rows=300
    )
    assert [record.size for record in found.history] == [8, 16, 24]


@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("rows", [None, 120])
def test_candidates_that_are_screened(rows: int | None, by_sample: bool, one_thread: LocalExecutor) -> None:
    """The best three of each draw by `single`, on a sample of rows and the candidate's own, go on to `refit`.

    Whom an earlier draw sent, a later one leaves out.
    """
    problem, n = Problem(n=200, by_sample=by_sample), 200
    noise = np.broadcast_to(problem.noise, (n,))

    def screening(S: list[int], i: int, number: int) -> float:
        if rows is None:
            return problem.value("single", S, i)
        drawn = round_generator(ROWS_STREAM, number).choice(n, rows, replace=False)
        others, beta = np.setdiff1d(drawn, [i]), problem.beta(S)
        r = problem.y - problem.K[:, S] @ beta
        share = (n - 1.0) / len(others)
        term, square = problem.K[:, i : i + 1] * r / noise[:, None], problem.K[:, i] ** 2 / noise
        c = share * term[others].sum(axis=0) + term[i] - problem.K[i, S] @ beta
        return float(np.sum(c**2) / (share * square[others].sum() + square[i] + problem.K[i, i]))

    S: list[int] = []
    for number in range(4):
        taken: list[int] = []
        sent: list[int] = []
        draw = dealt(n, 9, 0, number)
        for _ in range(2):
            free = {i for i in draw(without(S, n)) if i not in sent}
            best = sorted(free, key=lambda i: -screening(S, i, number))[:3]
            sent += best
            taken.append(max(best, key=lambda i: problem.value("refit", S, i)))
        S += taken
    found = chosen(problem, one_thread, size=8, per_round=2, candidates=9, screen=3, score_rows=rows)
    assert found.indices.tolist() == S
    np.testing.assert_allclose(found.weights, problem.beta(S), rtol=1e-6, atol=1e-9)
    assert found.history[-1].risk == pytest.approx(problem.risk(S), rel=1e-9)


def test_the_gap_closes_and_ends_the_choice(one_thread: LocalExecutor) -> None:
    problem = Problem()
    found = chosen(problem, one_thread, size=N, candidates=20, gap=0.05)
    gaps = [record.gap for record in found.history]
    assert found.reason.rule == "gap"
    assert found.reason.converged
    assert len(found.indices) < N
    assert gaps[-1] is not None
    assert gaps[-1] <= 0.05
    assert all(before > 0.05 for before in gaps[:-1] if before is not None)
    S, dual = found.indices.tolist(), found.dual.tolist()
    least = 0.5 * float(
        problem.y[dual, 0]
        @ np.linalg.solve(problem.K[np.ix_(dual, dual)] + 0.07 * np.eye(len(dual)), problem.y[dual, 0])
    )
    square = float(problem.y[:, 0] @ problem.y[:, 0]) / 0.07
    assert gaps[-1] == pytest.approx(2.0 * (problem.risk(S) - least) / (square - problem.risk(S) - least), rel=1e-8)
    assert all(later.risk <= before.risk for before, later in pairwise(found.history))
    short = chosen(problem, one_thread, size=3, candidates=20, gap=1e-6)
    assert not short.reason.converged
    assert "the duality gap is" in short.reason.message
    assert "larger basis" in short.reason.advice


def test_the_gap_of_an_error_bar_bounds_what_is_taken_off_a_variance(one_thread: LocalExecutor) -> None:
    """Equation (10) with y := k_x: both ends of Theorem 1, apart by no more than the gap asked for."""
    problem = Problem()
    problem.y = problem.kernel(problem.X, np.array([[0.2, -0.4]]))
    found = chosen(problem, one_thread, size=N, candidates=20, gap=0.02, gap_of="risk")
    assert found.reason.rule == "gap"
    last = found.history[-1]
    assert last.least is not None
    taken = float(problem.y[:, 0] @ np.linalg.solve(problem.K + 0.07 * np.eye(N), problem.y[:, 0]))
    assert 2.0 * last.least <= taken <= 2.0 * last.risk
    assert last.risk - last.least <= 0.01 * (last.risk + last.least) * (1.0 + 1e-12)
    assert len(found.indices) < N


@pytest.mark.parametrize("kind", ["refit", "single"])
def test_duplicates_join_once(kind: Any, one_thread: LocalExecutor) -> None:
    problem = Problem(kernel=SquaredExponential(gamma=(0.5, 0.5)))
    problem.X = np.repeat(problem.X[:11], 5, axis=0)
    found = chosen(problem, one_thread, size=N, score=kind, candidates=10)
    assert len(np.unique(problem.X[found.indices], axis=0)) == len(found.indices) == 11
    assert found.reason.rule == "dependent"
    assert "11 basis samples" in found.reason.message


@pytest.mark.parametrize("more", [{}, {"per_round": 3, "score_rows": 40}, {"score": "single", "kept": 4, "dual": True}])
def test_a_choice_that_is_resumed_ends_in_the_same_bits(
    more: dict[str, Any], one_thread: LocalExecutor, tmp_path: Path
) -> None:
    problem, seen = Problem(by_sample=True), list[int]()
    settings = GreedySettings(12, candidates=8, **more)

    def run(settings: GreedySettings = settings, **watch: Any) -> GreedyBasis:
        return choose_greedily(problem.operator(one_thread), problem.y, settings, watch=Watch(**watch))

    kept = Resuming(run, tmp_path, of="this")
    assert "interrupted after 2 rounds; state saved in" in str(kept.interrupt(2))
    found = kept.require_same(callback=lambda progress: seen.append(progress.round))
    assert seen == list(range(3, len(found.history) + 1))
    kept.require_same(callback=lambda progress: pytest.fail("it was done"))
    kept.require_refused("belongs to another run: its solver", settings=replace(settings, seed=5))


@pytest.mark.parametrize("score", ["refit", "single"])
@pytest.mark.parametrize("per_round", [1, 4])
def test_the_system_of_the_basis_is_handed_on(per_round: int, score: Any, one_thread: LocalExecutor) -> None:
    problem = Problem(by_sample=True)
    found = chosen(problem, one_thread, size=11, score=score, per_round=per_round)
    basis = problem.X[found.indices]
    columns = problem.kernel(problem.X, basis)
    system = columns.T @ (columns / problem.noise[:, None]) + problem.kernel(basis, basis)
    np.testing.assert_allclose(found.system, system, rtol=1e-13)


@pytest.mark.parametrize("more", [{}, {"per_round": 3, "score_rows": 40}, {"score": "single", "kept": 4, "dual": True}])
def test_a_choice_that_grows_is_a_choice_of_the_larger_size(more: dict[str, Any], one_thread: LocalExecutor) -> None:
    problem, larger = Problem(by_sample=True), GreedySettings(15, candidates=8, **more)
    whole = choose_greedily(problem.operator(one_thread), problem.y, larger)

    def grown(size: int) -> tuple[GreedyEngine, GreedyBasis]:
        first = GreedyEngine(problem.operator(one_thread), problem.y, replace(larger, size=size))
        while first.stop() is None:
            first.advance()
        second = GreedyEngine(problem.operator(one_thread), problem.y, larger)
        second.restore(first.arrays(), first.metadata())
        while (reason := second.stop()) is None:
            second.advance()
        found = second.result(reason)
        assert len(found.indices) == 15
        np.testing.assert_array_equal(found.indices[:size], first.chosen)
        return second, found

    # From the end of a round.
    state, found = grown(whole.history[2].size)
    np.testing.assert_array_equal(found.indices, whole.indices)
    np.testing.assert_array_equal(found.weights, whole.weights)
    np.testing.assert_array_equal(found.dual, whole.dual)
    assert [record.risk for record in found.history] == [record.risk for record in whole.history]
    # A round that the size cut short is not made up for: what was chosen stays.
    grown(7)
    small = GreedyEngine(problem.operator(one_thread), problem.y, replace(larger, size=6))
    with pytest.raises(CheckpointError, match="a basis that has 15 samples already; got a size of 6"):
        small.restore(state.arrays(), state.metadata())


def test_any_number_of_workers_chooses_the_same(one_thread: LocalExecutor) -> None:
    problem, settings = Problem(n=900, p=2), {"size": 12, "per_round": 4, "dual": True, "score_rows": 500}
    mine = chosen(problem, one_thread, **settings)
    with on_dask(5, processes=False) as (executor, _):
        executor.tiles = TileBudget(2**20)  # room for some columns
        theirs = chosen(problem, executor, **settings)
    np.testing.assert_array_equal(mine.indices, theirs.indices)
    np.testing.assert_array_equal(mine.weights, theirs.weights)


@pytest.mark.parametrize("score", ["refit", "single"])
@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.faults)]
)
def test_what_worker_processes_keep_changes_no_bits(killed: bool, score: Any, tmp_path: Path) -> None:
    """Two slabs of columns; a worker that dies takes its columns along, and the other one makes them anew."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 2))
    y = np.sin(3.0 * X[:, :1]) + 0.1 * rng.standard_normal((1500, 1))
    dataset = dataset_from_arrays(tmp_path / "data", X, y)
    settings = GreedySettings(300, score, candidates=20, per_round=60)

    def run(executor: Any, callback: Any = None) -> tuple[GreedyBasis, int]:
        with BlockedKernelOperator(Matern32(gamma=(9.0, 9.0)), 0.01, dataset, executor) as operator:
            return choose_greedily(
                operator, dataset.all_targets(), settings, watch=Watch(callback=callback)
            ), operator.entries.value

    executor = LocalExecutor(1)
    wanted, evaluated = run(executor)
    executor.close()
    with on_dask(2, processes=True) as (executor, client):
        executor.tiles = TileBudget(2**28)
        pids = list(client.run(os.getpid).values())

        def kill(progress: GreedyProgress) -> None:
            if killed and progress.round == 2:
                os.kill(pids[0], signal.SIGKILL)

        found, evaluated_there = run(executor, kill)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.weights, wanted.weights)
    assert [record.risk for record in found.history] == [record.risk for record in wanted.history]
    assert evaluated_there < evaluated


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": N + 1}, "there are 55 samples for the basis; got a size of 56"),
        ({"size": 0}, "`size` must be at least 1; got 0"),
        ({"size": 3, "score": "best"}, "`score` must be one of refit, single, gradient, residual; got 'best'"),
        ({"size": 3, "gap": 0.0}, "the duality gap must be positive; got 0.0"),
        ({"size": 3, "score_rows": 0}, "`score_rows` must be at least 2; got 0"),
        ({"size": 3, "kept": -1}, "`kept` must be at least 0"),
        ({"size": 3, "gap_of": "mean"}, "`gap_of` must be posterior or risk; got 'mean'"),
        ({"size": 3, "screen": -1}, "`screen` must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, words: str, one_thread: LocalExecutor) -> None:
    with pytest.raises(InputError, match=words):
        chosen(Problem(), one_thread, **settings)


def test_a_gap_that_no_sample_can_be_scored_for_ends_in_words(one_thread: LocalExecutor) -> None:
    problem = Problem()
    chosen = DualSubset(problem.operator(one_thread), np.full((N, 1), np.nan), 5, 10, 0)
    with pytest.raises(NumericalError, match="none of those drawn has a score that is a number.*leave `gap` out"):
        chosen.grow(3)


N_TO_THE_LETTER = 60
KERNELS: dict[str, Kernel] = {
    "matern": Matern12(gamma=(0.6, 0.9), variance=1.2),
    "rational quadratic": RationalQuadratic(gamma=(0.5, 0.5), alpha=0.7),
    "periodic": Periodic(gamma=(0.5, 0.5), period=(1.0, 2.0)),
    "sum and product": SquaredExponential(gamma=(0.4, 0.4)) * Linear(weight=(1.0, 1.0)) + Matern12(gamma=(0.3, 2.0)),
    "polynomial": Polynomial(weight=(1.0, 0.5), offset=1.0, degree=4),
}


def chosen_to_the_letter(problem: Problem, executor: Any, settings: GreedySettings) -> GreedyBasis:
    return choose_greedily(problem.operator(executor), problem.y, settings)


class SmolaBartlett:
    """Their quadratic forms Q (5), Q* (6) and solutions (12), with extension matrices P as they are printed."""

    def __init__(self, problem: Problem, kappa: int = CANDIDATES) -> None:
        self.kappa = kappa
        self.K, self.s2, self.y = problem.K, float(problem.noise), problem.y
        self.eye = np.eye(len(self.y))

    def p_of(self, S: list[int]) -> np.ndarray:
        return self.eye[:, S]

    def beta(self, S: list[int]) -> np.ndarray:
        P, K = self.p_of(S), self.K
        return np.linalg.solve(P.T @ (self.s2 * K + K.T @ K) @ P, P.T @ K.T @ self.y)

    def q_of(self, alpha: np.ndarray) -> float:
        K, y = self.K, self.y
        return float(np.trace(-y.T @ K @ alpha + 0.5 * alpha.T @ (self.s2 * K + K.T @ K) @ alpha))

    def beta_star(self, S: list[int]) -> np.ndarray:
        P = self.p_of(S)
        return np.linalg.solve(P.T @ (self.s2 * self.eye + self.K) @ P, P.T @ self.y)

    def q_star_of(self, alpha: np.ndarray) -> float:
        return float(np.trace(-self.y.T @ alpha + 0.5 * alpha.T @ (self.s2 * self.eye + self.K) @ alpha))

    def run(self, precision: float, seed: int, most: int) -> tuple[list[int], list[int], list[float]]:
        """Algorithm 1, S and S* each from its own random subsets, until the gap is as asked; and its gaps."""
        n = len(self.y)
        S, S_star = list[int](), list[int]()
        gaps = list[float]()
        while True:
            # Random subsets M of I and M* of I*, of size kappa.
            M = dealt(n, self.kappa, seed, len(S))(without(S, n))
            M_star = dealt(n, self.kappa, seed + DUAL_STREAM, len(S))(without(S_star, n))
            S.append(min(M, key=lambda i: self.q_of(self.p_of([*S, i]) @ self.beta([*S, i]))))
            S_star.append(
                min(M_star, key=lambda i: self.q_star_of(self.p_of([*S_star, i]) @ self.beta_star([*S_star, i])))
            )
            Q, Q_star = (
                self.q_of(self.p_of(S) @ self.beta(S)),
                self.q_star_of(self.p_of(S_star) @ self.beta_star(S_star)),
            )
            half = 0.5 * float(np.sum(self.y**2))
            gaps.append(2.0 * (Q + self.s2 * Q_star + half) / (-Q + self.s2 * Q_star + half))
            if gaps[-1] <= precision or len(S) == most:
                return S, S_star, gaps


@pytest.mark.spread(4)
@pytest.mark.covering(2)
@pytest.mark.parametrize("kappa", [9, CANDIDATES])  # the paper's 59 are all but one of so few samples
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_algorithm_1_to_the_letter(name: str, p: int, kappa: int, one_thread: LocalExecutor) -> None:
    """Q and Q* in turn, some candidates each, refitted one by one, until their gap is 0.025."""
    problem = Problem(n=N_TO_THE_LETTER, p=p, kernel=KERNELS[name])
    S, S_star, gaps = SmolaBartlett(problem, kappa).run(0.025, seed=3, most=12)
    found = chosen_to_the_letter(problem, one_thread, GreedySettings(12, candidates=kappa, gap=0.025, seed=3))
    assert found.indices.tolist() == S
    assert found.dual.tolist() == S_star
    np.testing.assert_allclose([record.gap for record in found.history], gaps, rtol=1e-6)
    np.testing.assert_allclose(found.weights, SmolaBartlett(problem).beta(S), rtol=1e-5, atol=1e-8)
    print(f"\nAlgorithm 1, {name}, p = {p}: {len(S)} kernels, gap {gaps[-1]:.4f}, the same as by the engine")


def test_algorithm_3_of_scdp_to_the_letter(one_thread: LocalExecutor) -> None:
    """Line by line, B by (20)'s definition and its system by backward substitution.

    Two slips of the print apart: s is chosen by the residual after the step, as (19) and the text have it, and the last
    entry but one of p is -B_k,k+1 / B_kk, as (18) has it.
    """
    problem = Problem(n=N_TO_THE_LETTER)
    A, b, D = problem.A, problem.b[:, 0], N_TO_THE_LETTER
    w, c = np.zeros(D), -b
    s = [int(np.argmax(np.abs(c)))]
    p = np.eye(D)[:, s[0]]
    P, steps = p[:, None], 9
    for k in range(1, steps + 1):
        t = A @ p
        eta = -(c @ p) / (p @ t)
        w, c = w + eta * p, c + eta * t
        if k == steps:
            break
        left = np.where(np.isin(np.arange(D), s), -1.0, np.abs(c))
        s.append(int(np.argmax(left)))
        B = P.T @ A[:, s]  # (k, k + 1): upper triangular but for its last column
        np.testing.assert_allclose(np.tril(B[:, :k], -1), 0.0, atol=1e-9 * np.abs(B).max())
        entries = np.zeros(k + 1)
        entries[k] = 1.0
        for i in range(k - 1, -1, -1):
            entries[i] = (-B[i, k] - sum(B[i, j] * entries[j] for j in range(i + 1, k))) / B[i, i]
        p = np.zeros(D)
        p[s] = entries
        P = np.column_stack([P, p])
    found = chosen_to_the_letter(problem, one_thread, GreedySettings(steps, score="gradient", exhaustive=True))
    assert found.indices.tolist() == s
    np.testing.assert_allclose(found.weights[:, 0], w[s], rtol=1e-6, atol=1e-9)
    print(f"\nAlgorithm 3: {steps} directions, weights differ by {np.max(np.abs(found.weights[:, 0] - w[s])):.1e}")


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", KERNELS)
def test_all_scores_of_all_kernels_are_naive_ones(name: str, one_thread: LocalExecutor) -> None:
    """Every candidate of every round by refitting it densely: one and three targets, one noise and the samples' own."""
    compared, apart = 0, 0.0
    for kind, (p, by_sample) in product(SCORES, ((1, True), (3, False))):
        problem = Problem(n=40, p=p, by_sample=by_sample, kernel=KERNELS[name])
        found = chosen_to_the_letter(problem, one_thread, GreedySettings(6, score=kind, exhaustive=True))  # type: ignore[arg-type]
        assert found.indices.tolist() == problem.naive(kind, 6), (kind, p, by_sample)
        wanted = problem.beta(found.indices.tolist())
        apart = max(apart, float(np.max(np.abs(found.weights - wanted)) / np.max(np.abs(wanted))))
        compared += sum(40 - k for k in range(6))
    assert apart < 1e-7
    print(f"\n{name}: {compared:,} naive scores, the same choices; weights differ by {apart:.1e} of the largest")


@pytest.mark.parametrize(("p", "by_sample"), [(1, False), (3, True)])
@pytest.mark.parametrize("kind", SCORES)
def test_all_samples_are_the_exact_model(kind: Any, p: int, by_sample: bool, one_thread: LocalExecutor) -> None:
    problem = Problem(n=N_TO_THE_LETTER, p=p, by_sample=by_sample, kernel=KERNELS["matern"])
    found = chosen_to_the_letter(
        problem, one_thread, GreedySettings(N_TO_THE_LETTER, score=kind, per_round=7, exhaustive=True, dual=True)
    )
    assert sorted(found.indices) == sorted(found.dual) == list(range(N_TO_THE_LETTER))
    exact = np.linalg.solve(problem.K + np.diag(1.0 / np.diag(problem.D)), problem.y)
    np.testing.assert_allclose(problem.K[:, found.indices] @ found.weights, problem.K @ exact, atol=1e-7)
    least = 0.5 * float(np.sum(problem.y * exact))
    last = found.history[-1]
    assert last.risk == pytest.approx(least, rel=1e-9)
    assert last.least == pytest.approx(least, rel=1e-9)
    assert last.gap == pytest.approx(0.0, abs=1e-8)
    print(
        f"\n{kind}, p = {p}: all {N_TO_THE_LETTER} chosen, risk {last.risk:.9g}, exact {least:.9g}, gap {last.gap:.1e}"
    )


@pytest.mark.parametrize("kind", SCORES)
def test_kept_candidates_and_screens_with_several_targets(kind: Any, one_thread: LocalExecutor) -> None:
    """Kept candidates join every draw; the best of each run by `single` are scored together, with three targets."""
    problem = Problem(n=N_TO_THE_LETTER, p=3, by_sample=True, kernel=KERNELS["rational quadratic"])
    settings = GreedySettings(8, score=kind, candidates=6, per_round=2, kept=3, screen=2, seed=1)
    found = chosen_to_the_letter(problem, one_thread, settings)
    S, kept = list[int](), list[int]()
    for number in range(4):
        before, taken, looked, seen = list(S), list[int](), list[int](), list[int]()
        draw = dealt(N_TO_THE_LETTER, 6, 1, number)
        for _ in range(2):
            pool = draw(without(S, N_TO_THE_LETTER)) + kept
            looked += pool
            # The best two of each run that no run before it looked at.
            own = [i for i in dict.fromkeys(pool) if i not in before and i not in seen]
            best = sorted(own, key=lambda i: -problem.value("single", before, i))[:2]
            seen += best
            taken.append(max(best, key=lambda i: problem.value(kind, before, i)))
        S += taken
        left = {i for i in looked if i not in S}
        kept = sorted(sorted(left, key=lambda i: -problem.value("single", before, i))[:3])
    assert found.indices.tolist() == S


def test_an_exhaustive_search_is_never_worse_at_first_and_beats_draws_of_one(one_thread: LocalExecutor) -> None:
    problem = Problem(n=N_TO_THE_LETTER, kernel=KERNELS["matern"])
    base = GreedySettings(10, exhaustive=True)
    risks = {
        kappa: np.mean(
            [
                chosen_to_the_letter(problem, one_thread, replace(base, exhaustive=False, candidates=kappa, seed=seed))
                .history[-1]
                .risk
                for seed in range(5)
            ]
        )
        for kappa in (1, 5, 59)
    }
    every = chosen_to_the_letter(problem, one_thread, base)
    first = min(problem.risk([i]) for i in range(N_TO_THE_LETTER))
    assert every.history[0].risk == pytest.approx(first, rel=1e-10)
    assert every.history[-1].risk <= risks[1]
    assert risks[59] < risks[5] < risks[1]
    print(
        f"\nrisk after 10 of {N_TO_THE_LETTER}: " + ", ".join(f"{k} candidates {r:.2f}" for k, r in risks.items()),
        end=", ",
    )
    print(f"all {every.history[-1].risk:.2f}")
