"""The engine against the papers' algorithms, line by line and with their own formulas; figures with `-s`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel, Linear, Matern12, Periodic, Polynomial, RationalQuadratic, SquaredExponential
from dkgp.solvers.greedy_basis import CANDIDATES, DUAL_STREAM, SCORES, GreedyBasis, GreedySettings, choose_greedily
from tests.solvers.greedy_basis.test_engine import Problem
from tests.solvers.paper import dealt, without

N = 60
KERNELS: dict[str, Kernel] = {
    "matern": Matern12(gamma=(0.6, 0.9), variance=1.2),
    "rational quadratic": RationalQuadratic(gamma=(0.5, 0.5), alpha=0.7),
    "periodic": Periodic(gamma=(0.5, 0.5), period=(1.0, 2.0)),
    "sum and product": SquaredExponential(gamma=(0.4, 0.4)) * Linear(weight=(1.0, 1.0)) + Matern12(gamma=(0.3, 2.0)),
    "polynomial": Polynomial(weight=(1.0, 0.5), offset=1.0, degree=4),
}


def chosen(problem: Problem, executor: Any, settings: GreedySettings) -> GreedyBasis:
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


@pytest.mark.covering(2)
@pytest.mark.parametrize("kappa", [9, CANDIDATES])  # the paper's 59 are all but one of so few samples
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_algorithm_1_to_the_letter(name: str, p: int, kappa: int, one_thread: LocalExecutor) -> None:
    """Q and Q* in turn, some candidates each, refitted one by one, until their gap is 0.025."""
    problem = Problem(n=N, p=p, kernel=KERNELS[name])
    S, S_star, gaps = SmolaBartlett(problem, kappa).run(0.025, seed=3, most=12)
    found = chosen(problem, one_thread, GreedySettings(12, candidates=kappa, gap=0.025, seed=3))
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
    problem = Problem(n=N)
    A, b, D = problem.A, problem.b[:, 0], N
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
    found = chosen(problem, one_thread, GreedySettings(steps, score="gradient", exhaustive=True))
    assert found.indices.tolist() == s
    np.testing.assert_allclose(found.weights[:, 0], w[s], rtol=1e-6, atol=1e-9)
    print(f"\nAlgorithm 3: {steps} directions, weights differ by {np.max(np.abs(found.weights[:, 0] - w[s])):.1e}")


@pytest.mark.parametrize("name", KERNELS)
def test_all_scores_of_all_kernels_are_naive_ones(name: str, one_thread: LocalExecutor) -> None:
    """Every candidate of every round by refitting it densely: one and three targets, one noise and the samples' own."""
    compared, apart = 0, 0.0
    for kind, (p, by_sample) in product(SCORES, ((1, True), (3, False))):
        problem = Problem(n=40, p=p, by_sample=by_sample, kernel=KERNELS[name])
        found = chosen(problem, one_thread, GreedySettings(6, score=kind, exhaustive=True))  # type: ignore[arg-type]
        assert found.indices.tolist() == problem.naive(kind, 6), (kind, p, by_sample)
        wanted = problem.beta(found.indices.tolist())
        apart = max(apart, float(np.max(np.abs(found.weights - wanted)) / np.max(np.abs(wanted))))
        compared += sum(40 - k for k in range(6))
    assert apart < 1e-7
    print(f"\n{name}: {compared:,} naive scores, the same choices; weights differ by {apart:.1e} of the largest")


@pytest.mark.parametrize(("p", "by_sample"), [(1, False), (3, True)])
@pytest.mark.parametrize("kind", SCORES)
def test_all_samples_are_the_exact_model(kind: Any, p: int, by_sample: bool, one_thread: LocalExecutor) -> None:
    problem = Problem(n=N, p=p, by_sample=by_sample, kernel=KERNELS["matern"])
    found = chosen(problem, one_thread, GreedySettings(N, score=kind, per_round=7, exhaustive=True, dual=True))
    assert sorted(found.indices) == sorted(found.dual) == list(range(N))
    exact = np.linalg.solve(problem.K + np.diag(1.0 / np.diag(problem.D)), problem.y)
    np.testing.assert_allclose(problem.K[:, found.indices] @ found.weights, problem.K @ exact, atol=1e-7)
    least = 0.5 * float(np.sum(problem.y * exact))
    last = found.history[-1]
    assert last.risk == pytest.approx(least, rel=1e-9)
    assert last.least == pytest.approx(least, rel=1e-9)
    assert last.gap == pytest.approx(0.0, abs=1e-8)
    print(f"\n{kind}, p = {p}: all {N} chosen, risk {last.risk:.9g}, exact {least:.9g}, gap {last.gap:.1e}")


@pytest.mark.parametrize("kind", SCORES)
def test_kept_candidates_and_screens_with_several_targets(kind: Any, one_thread: LocalExecutor) -> None:
    """What is kept joins every draw; of each run the best by `single` are scored: together, with three targets."""
    problem = Problem(n=N, p=3, by_sample=True, kernel=KERNELS["rational quadratic"])
    settings = GreedySettings(8, score=kind, candidates=6, per_round=2, kept=3, screen=2, seed=1)
    found = chosen(problem, one_thread, settings)
    S, kept = list[int](), list[int]()
    for number in range(4):
        before, taken, looked, seen = list(S), list[int](), list[int](), list[int]()
        draw = dealt(N, 6, 1, number)
        for _ in range(2):
            pool = draw(without(S, N)) + kept
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
    problem = Problem(n=N, kernel=KERNELS["matern"])
    base = GreedySettings(10, exhaustive=True)
    risks = {
        kappa: np.mean(
            [
                chosen(problem, one_thread, replace(base, exhaustive=False, candidates=kappa, seed=seed))
                .history[-1]
                .risk
                for seed in range(5)
            ]
        )
        for kappa in (1, 5, 59)
    }
    every = chosen(problem, one_thread, base)
    first = min(problem.risk([i]) for i in range(N))
    assert every.history[0].risk == pytest.approx(first, rel=1e-10)
    assert every.history[-1].risk <= risks[1]
    assert risks[59] < risks[5] < risks[1]
    print(f"\nrisk after 10 of {N}: " + ", ".join(f"{k} candidates {r:.2f}" for k, r in risks.items()), end=", ")
    print(f"all {every.history[-1].risk:.2f}")
