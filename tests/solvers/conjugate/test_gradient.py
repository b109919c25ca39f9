"""Conjugate gradients against the textbook, preconditioned and plain; kernel CG against Algorithm 1 of its paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

from dkgp.cluster import LocalExecutor
from dkgp.errors import UsageError
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner
from dkgp.solvers import (
    ConjugateGradient,
    DualityGap,
    FactorPreconditioning,
    GradientInfNorm,
    KernelConjugateGradient,
    MaxIterations,
    ParameterConjugateGradient,
    solve,
)
from dkgp.solvers.conjugate.gradient import BlockDirections
from dkgp.solvers.conjugate.kernel_cg import LeastSquaresState
from dkgp.solvers.conjugate.preconditioner import Growth, Price
from dkgp.solvers.prices import Sizes
from dkgp.solvers.registry import SolverMemory, resuming, solver_memory
from tests.solvers.problems import arm_problem, smooth_problem

PROBLEM = smooth_problem(300, 3, noise_variance=0.1)


# One variance for all samples, and one for each.
by_noise = pytest.mark.parametrize(
    "noise", [0.1, 0.1 * 30.0 ** np.random.default_rng(3).random(300)], ids=["one", "by sample"]
)


def alphas(solver, executor: LocalExecutor, iterations: int, noise: Any = 0.1) -> list[np.ndarray]:
    """Solutions after 1, 2, ... iterations in float64."""
    return [
        solve(
            BlockedKernelOperator(PROBLEM.kernel, noise, ArrayInputs(PROBLEM.X), executor),
            PROBLEM.y,
            solver=solver,
            stopping=GradientInfNorm(1e-14) | MaxIterations(count),
        ).alpha[:, 0]
        for count in range(1, iterations + 1)
    ]


def textbook(A: np.ndarray, b: np.ndarray, iterations: int, M=None) -> list[np.ndarray]:
    """SciPy's conjugate gradients, iterate by iterate."""
    found: list[np.ndarray] = []
    scipy.sparse.linalg.cg(A, b, rtol=0.0, maxiter=iterations, M=M, callback=lambda x: found.append(x.copy()))
    return found


def test_plain_iterates_are_the_textbooks(executor: LocalExecutor) -> None:
    ours = alphas(ConjugateGradient(precision="double"), executor, 8)
    for mine, theirs in zip(ours, textbook(PROBLEM.matrix, PROBLEM.y[:, 0], 8), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


def test_preconditioned_iterates_are_the_textbooks(executor: LocalExecutor) -> None:
    settings = FactorPreconditioning(0, rank=20)
    preconditioner = settings.build(PROBLEM.blocked(executor))
    M = scipy.sparse.linalg.LinearOperator(
        (300, 300), matvec=lambda r: preconditioner.apply(np.reshape(r, (300, 1)))[:, 0], dtype=np.float64
    )
    ours = alphas(ConjugateGradient(settings, precision="double"), executor, 6)
    for mine, theirs in zip(ours, textbook(PROBLEM.matrix, PROBLEM.y[:, 0], 6, M), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


@by_noise
def test_kernel_cg_is_algorithm_1(executor: LocalExecutor, noise: Any) -> None:
    """Of the risk whose squares W weighs: its functional gradient is W (K alpha - y) + s2 alpha."""
    s2 = np.min(noise)
    K = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(300)
    W = np.diag(s2 / np.broadcast_to(noise, 300))
    y = PROBLEM.y[:, 0]
    A = K @ W @ K + s2 * K
    alpha, gamma = np.zeros(300), -W @ y
    h = -gamma
    expected = []
    for _ in range(8):
        alpha = alpha - (gamma @ K @ h) / (h @ A @ h) * h
        new = W @ (K @ alpha - y) + s2 * alpha
        eta = ((new - gamma) @ K @ new) / (gamma @ K @ gamma)
        h, gamma = -new + eta * h, new
        expected.append(alpha)
    for mine, theirs in zip(alphas(KernelConjugateGradient("double"), executor, 8, noise), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


@by_noise
def test_parameter_cg_is_cg_on_the_risks_hessian(executor: LocalExecutor, noise: Any) -> None:
    s2 = np.min(noise)
    K = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(300)
    W = np.diag(s2 / np.broadcast_to(noise, 300))
    A, b = K @ W @ K + s2 * K, K @ W @ PROBLEM.y[:, 0]
    ours = alphas(ParameterConjugateGradient("double"), executor, 6, noise)
    for mine, theirs in zip(ours, textbook(A, b, 6), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


@by_noise
def test_parameter_cg_knows_how_far_its_risk_is_from_the_least(executor: LocalExecutor, noise: Any) -> None:
    s2 = np.min(noise)
    K = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(300)
    weights = s2 / np.broadcast_to(noise, 300)
    y = PROBLEM.y[:, 0]

    def risk(alpha: np.ndarray) -> float:
        left = y - K @ alpha
        return float(0.5 * weights @ left**2 + 0.5 * s2 * alpha @ K @ alpha)

    least = risk(np.linalg.solve(K + np.diag(np.broadcast_to(noise, 300)), y))
    operator = BlockedKernelOperator(PROBLEM.kernel, noise, ArrayInputs(PROBLEM.X), executor)
    zero = np.zeros_like(PROBLEM.y)
    state = LeastSquaresState(zero.copy(), zero, PROBLEM.y, precision="double")
    state.begin(operator, False, None)
    solver = ParameterConjugateGradient("double")
    for _ in range(5):
        alpha = state.alpha[:, 0].copy()
        beta = weights * (y - K @ alpha) / s2
        solver.advance(operator, state)
        # The gap to that function's dual, no smaller than what is left.
        np.testing.assert_allclose(state.risk_width, (alpha - beta) @ K @ (alpha - beta) * s2 / 2.0, rtol=1e-9)
        assert risk(alpha) - least <= state.risk_width


def test_products_are_counted(executor: LocalExecutor) -> None:
    for solver, each in ((ConjugateGradient(), 1), (KernelConjugateGradient(), 1), (ParameterConjugateGradient(), 2)):
        solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(5))
        assert solution.progress.column_passes == 5 * each


def test_kernel_cg_needs_at_most_twice_the_root_of_parameter_cgs_iterations(executor: LocalExecutor) -> None:
    """The theorem of section 5, on a kernel matrix regular enough for parameter CG to end."""
    problem = smooth_problem(300, 3, noise_variance=0.3, gamma=6.0)
    stopping = GradientInfNorm(1e-3) | MaxIterations(4000)
    counts = {}
    for solver in (KernelConjugateGradient("double"), ParameterConjugateGradient("double")):
        solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping)
        assert solution.converged
        counts[solver.name] = solution.progress.iteration
    assert counts["kcg"] <= 2.0 * np.sqrt(counts["paramcg"])


class TestLowRankAlone:
    def test_it_is_the_inverse_of_its_own_matrix(self, executor: LocalExecutor, rng: np.random.Generator) -> None:
        operator = PROBLEM.blocked(executor)
        landmarks = np.array([5, 17, 40, 100, 299])
        factor = LowRankFactor(operator, landmarks)
        K = PROBLEM.matrix - 0.1 * np.eye(300)
        Q = K[:, landmarks] @ np.linalg.solve(K[np.ix_(landmarks, landmarks)], K[landmarks])
        R = rng.standard_normal((300, 3))
        np.testing.assert_allclose(factor.expand(factor.project(R)), Q @ R, rtol=0, atol=1e-5)
        np.testing.assert_allclose(
            LowRankPreconditioner(factor, 0.1).apply(R), np.linalg.solve(Q + 0.1 * np.eye(300), R), rtol=0, atol=1e-4
        )

    def test_of_full_rank_it_solves_in_a_few_iterations(self, executor: LocalExecutor) -> None:
        problem = arm_problem(400)
        plain, full = (
            solve(problem.blocked(executor), problem.y, solver=ConjugateGradient(chosen))
            for chosen in (None, FactorPreconditioning(0, rank=400))
        )
        assert full.converged
        assert full.progress.iteration <= 5
        assert plain.progress.iteration > 10 * full.progress.iteration

    def test_pivots_beat_chance(self, executor: LocalExecutor) -> None:
        """Clustered inputs: a uniform draw leaves the rare ones out."""
        problem = smooth_problem(600, 2, noise_variance=1e-3)
        problem.X[:560] *= 0.05
        counts = {}
        for landmarks in ("pivoted", "uniform"):
            solver = ConjugateGradient(FactorPreconditioning(0, rank=40, landmarks=landmarks))
            solution = solve(problem.blocked(executor), problem.y, solver=solver)
            assert solution.converged
            counts[landmarks] = solution.progress.iteration
        assert counts["pivoted"] < counts["uniform"]

    def test_an_operator_without_blocks_is_refused(self) -> None:
        with pytest.raises(UsageError, match="BlockedKernelOperator; got DenseKernelOperator"):
            solve(PROBLEM.dense(), PROBLEM.y, solver=ConjugateGradient(FactorPreconditioning(0, rank=5)))


@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_parameter_cg_knows_how_near_the_risk_is(executor: LocalExecutor, precision: str) -> None:
    """On a smooth kernel most of g lies where K sees nothing of it: the bound of Theorem 1 hardly comes down."""
    problem = smooth_problem(300, 2, targets=2, noise_variance=0.1, gamma=0.2)
    least = problem.risk(problem.solution)
    solver, seen = ParameterConjugateGradient(precision), []
    with problem.blocked(executor) as operator:
        state = solver.start(operator, problem.y)
        for _ in range(30):
            before = problem.risk(state.alpha)
            solver.advance(operator, state)
            # The width is of the risk before the step, and the step lowers that.
            assert before - least <= state.risk_width * (1 + 1e-5) + 1e-9
            assert problem.risk(state.alpha) <= before + 1e-9
            seen.append((state.risk_width, 0.5 * float(np.sum(state.gradient**2))))
    assert seen[-1][0] < (1e-2 if precision == "double" else 1e-1) * seen[-1][1]
    solution = solve(
        problem.blocked(executor), problem.y, solver=solver, stopping=DualityGap(1e-3) | MaxIterations(300)
    )
    assert solution.reason.rule == "duality_gap"
    assert problem.risk(solution.alpha) - least <= 1e-3 * (0.5 * float(np.sum(problem.y**2)) - least)


def test_what_parameter_cg_knows_of_the_risk_outlives_a_break() -> None:
    problem = smooth_problem(60, 2)
    solver, operator = ParameterConjugateGradient("double"), problem.dense()
    state = solver.start(operator, problem.y)
    assert state.metadata()["risk_width"] is None
    solver.advance(operator, state)
    again = solver.restore(operator, problem.y, dict(state.arrays()), state.metadata())
    assert again.risk_width == state.risk_width < np.inf
    # Checkpoints of before there was such a bound.
    old = {name: value for name, value in state.metadata().items() if name != "risk_width"}
    assert solver.restore(operator, problem.y, dict(state.arrays()), old).risk_width == np.inf
    # Evaluated in float32, it is not proven.
    state.precision = "single"
    state.renew_gradient(operator)
    assert state.risk_width == np.inf


@pytest.mark.parametrize(
    ("solver", "preconditioning"),
    [
        (ConjugateGradient(), {"precondition": 0}),
        (ConjugateGradient(FactorPreconditioning(0, rank=5)), {"factor": 1_000, "precondition": 100}),
    ],
)
def test_seconds_are_reported_by_phase(
    executor: LocalExecutor,
    solver: ConjugateGradient,
    preconditioning: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("dkgp.solvers.conjugate.gradient.time", clock)
    monkeypatch.setattr("dkgp.solvers.conjugate.gradient.time", clock)

    def lasting(owner: type, name: str, seconds: int) -> None:
        method = getattr(owner, name)

        def timed(*args: Any) -> Any:
            now[0] += seconds
            return method(*args)

        monkeypatch.setattr(owner, name, timed)

    with PROBLEM.blocked(executor) as operator:
        state = solver.start(operator, PROBLEM.y)
        lasting(FactorPreconditioning, "build", 1_000)
        lasting(LowRankPreconditioner, "apply", 100)
        lasting(BlockedKernelOperator, "matmat", 10)
        lasting(BlockDirections, "advance", 1)
        assert solver.advance(operator, state) == {**preconditioning, "product": 10, "update": 1}
        if "factor" in preconditioning:  # it is built once
            preconditioning = {"factor": 0, "precondition": 100}
        assert solver.advance(operator, state) == {**preconditioning, "product": 10, "update": 1}


def test_gradients_are_renewed_by_a_rounds_own_product_unless_products_are_approximate() -> None:
    solver: Any = ConjugateGradient()
    assert solver.renews_in_rounds(SimpleNamespace(approximate=False)) is True
    assert solver.renews_in_rounds(SimpleNamespace(approximate=True)) is False


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_larger_factor_is_weighed_by_the_prices_of_the_rounds_to_come(
    executor: LocalExecutor, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, Price, Price]] = []
    monkeypatch.setattr(Growth, "is_worth", lambda self, *terms: asked.append(terms) or True)
    first = FactorPreconditioning(16, 16, 0)
    solver = ConjugateGradient(first)
    with PROBLEM.blocked(executor) as operator:
        state = solver.start(operator, PROBLEM.y)
        state.precision, state.needed_fall = precision, 77.0
        for _ in range(2):
            solver.advance(operator, state)
    sizes = Sizes(300, 3, 1, precision == "double")
    factors = [first.grown(300, level) for level in range(3)]
    assert [factor.halo for factor in factors] == [16, 32, 64]
    prices = [factor.price(sizes) for factor in factors]
    assert asked == [(77.0, prices[0], prices[1]), (77.0, prices[1], prices[2])]
    assert state.growth.level == 2


def test_a_factor_that_cannot_grow_does_not(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Growth, "is_worth", lambda self, *terms: True)
    solver = ConjugateGradient(FactorPreconditioning(200, 100, 0))
    with PROBLEM.blocked(executor) as operator:
        state = solver.start(operator, PROBLEM.y)
        solver.advance(operator, state)
        factor = state.preconditioner
        solver.advance(operator, state)
    assert state.growth.level == 0
    assert state.preconditioner is factor


def test_memory_is_of_the_directions_the_round_that_verifies_and_the_factor() -> None:
    assert solver_memory(ConjugateGradient(), 10_000, 8) == SolverMemory(memory=2, repeats_products=True)
    factor = FactorPreconditioning().resolved(10_000, 8)
    found, own = solver_memory(ConjugateGradient(factor), 10_000, 8), factor.memory(10_000, 8)
    assert (found.memory, found.repeats_products) == (2, True)
    assert (found.own_bytes, found.factor_bytes, found.cached_bytes) == (
        own.own_bytes,
        own.factor_bytes,
        own.cached_bytes,
    )


@pytest.mark.parametrize(
    ("preconditioner", "expected"),
    [
        (FactorPreconditioning(40, 20, 0).settings(), "`solver` pcg, `halo` 40, `leaf` 20, `rank` 0"),
        (FactorPreconditioning(0, rank=7).settings(), "`solver` pcg, `halo` 0, `rank` 7"),
        ({}, "`solver` pcg, `halo` 0"),  # of before there was a halo
    ],
)
def test_a_checkpoint_tells_which_options_resume_it(preconditioner: dict[str, Any], expected: str) -> None:
    assert resuming({"solver": "pcg", "preconditioner": preconditioner}) == expected
