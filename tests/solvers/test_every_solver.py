"""What every solver of the registry has to do, each in its variants.

The dense answer, also with noise by sample; several targets; a true gradient after float32 rounds; the same bits on any
number of threads and after a break; stopping rules; warm starts; what is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, InputError, InterruptedRunError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    Checkpointing,
    Cholesky,
    ConjugateGradient,
    CyclicSelection,
    DualityGap,
    FactorPreconditioning,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    KernelConjugateGradient,
    MaxIterations,
    MaxPasses,
    ParameterConjugateGradient,
    SequentialMinimalOptimization,
    Solution,
    StoppingRule,
    TiledCholesky,
    solve,
)
from dkgp.solvers.driver import Watch
from dkgp.solvers.registry import declaration_of, solver_names
from tests.solvers.problems import Problem, smooth_problem

SOLVERS: dict[str, Any] = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=40),
    "gbcd-growing": GreedyBlockCoordinateDescent(block_size=10, largest_block_size=60),
    "gbcd-paper": GreedyBlockCoordinateDescent(40, 0, GreedySelection(variables_per_step=1)),
    "gbcd-prefitting": GreedyBlockCoordinateDescent(30, selection=GreedySelection(prefitting=True)),
    "gbcd-exhaustive": GreedyBlockCoordinateDescent(30, selection=GreedySelection(exhaustive=True)),
    "bcdc": GreedyBlockCoordinateDescent(block_size=40, selection=CyclicSelection()),
    "bcdg": GreedyBlockCoordinateDescent(block_size=40, selection=GradientSelection()),
    "smo": SequentialMinimalOptimization(),
    "cg": ConjugateGradient(),
    "pcg": ConjugateGradient(FactorPreconditioning(40, 20, 10)),
    "pcg-low-rank": ConjugateGradient(FactorPreconditioning(0, rank=30)),
    "pcg-nystrom": ConjugateGradient(FactorPreconditioning(0, rank=30, landmarks="uniform")),
    "kcg": KernelConjugateGradient(),
    "paramcg": ParameterConjugateGradient(),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(tile_rows=64),
}
# Factors of the matrix; others come closer round by round.
DIRECT = ("cholesky", "tiled-cholesky")
# Other choices of the same steps, whose answer is asked for with noise by sample: the rest is seen by gbcd.
CHOICES = ("gbcd-prefitting", "gbcd-exhaustive")
# Short length scales and much noise: parameter CG squares the condition number, and is to end some day.
PROBLEM = smooth_problem(260, 3, targets=2, noise_variance=0.3, gamma=6.0)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


def all_but(*names: str) -> pytest.MarkDecorator:
    kept = {name: solver for name, solver in SOLVERS.items() if name not in names}
    return pytest.mark.parametrize("solver", kept.values(), ids=kept.keys())


def solved(
    solver: Any,
    executor: Any,
    problem: Problem = PROBLEM,
    *,
    tolerance: float = 1e-4,
    stopping: StoppingRule | None = None,
    initial: np.ndarray | None = None,
    **watch: Any,
) -> Solution:
    rule = stopping or GradientInfNorm(tolerance) | MaxPasses(2000.0)
    operator = problem.blocked(executor)
    return solve(operator, problem.y, solver=solver, stopping=rule, initial=initial, watch=Watch(**watch))


@pytest.fixture(scope="module")
def whole(executor: LocalExecutor) -> Callable[[Any], Solution]:
    """A solver's run to its end on two threads; each is made once."""
    return functools.cache(lambda solver: solved(solver, executor))


def in_double(solver: Any) -> Any:
    return solver if solver.precision == "double" else replace(solver, precision="double")


def bits(solution: Solution) -> tuple[bytes, bytes, int]:
    return solution.alpha.tobytes(), solution.gradient.tobytes(), len(solution.history)


def test_the_suite_has_every_solver_that_is_declared() -> None:
    named = {name.split("-")[0] if name != "tiled-cholesky" else name for name in SOLVERS}
    assert named == {name for name in solver_names() if declaration_of(name).build.__module__.startswith("dkgp.")}


@all_but(*CHOICES)
def test_the_answer_of_dense_cholesky(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(in_double(solver), executor, tolerance=1e-9)
    assert solution.converged
    error = np.linalg.norm(solution.alpha - PROBLEM.solution) / np.linalg.norm(PROBLEM.solution)
    assert error < 1e-6


@all_but(*CHOICES)
def test_single_precision_tiles_end_in_a_true_gradient(solver: Any, whole: Callable[[Any], Solution]) -> None:
    solution = whole(solver)
    assert solution.converged
    true = PROBLEM.gradient(solution.alpha)
    assert np.abs(true).max() <= 1e-4 * (1 + 1e-6)
    np.testing.assert_allclose(solution.gradient, true, rtol=0, atol=1e-10)


@pytest.mark.parametrize("largest", [1e39, 1e150, 1e300])
@all_but(*CHOICES, "gbcd-growing", "gbcd-paper", "pcg-nystrom")
def test_noise_beyond_float32_ends_in_the_answer_or_in_words(
    solver: Any, largest: float, executor: LocalExecutor
) -> None:
    """No rule limits these solves; samples of such noise say nothing, and the others are as without them."""
    y = PROBLEM.y[:120] / 10.0
    X, noise = PROBLEM.X[:120], np.full(120, 0.3)
    y[:4], noise[:4] = y[:4] + 6.0, largest
    rule, operator = GradientInfNorm(1e-4), BlockedKernelOperator(PROBLEM.kernel, noise, ArrayInputs(X), executor)
    if solver.name == "paramcg":
        with pytest.raises(NumericalError, match="broke down in float64"):
            solve(operator, y, solver=solver, stopping=rule)
        return
    solution = solve(operator, y, solver=solver, stopping=rule)
    K = PROBLEM.kernel(X, X)
    np.testing.assert_allclose(solution.gradient, K @ solution.alpha + noise[:, None] * solution.alpha - y, atol=1e-9)
    if solver.name == "cg":  # without a preconditioner: its condition number is that of the noise
        # By the processor's roundings it is found by its rounds, or by the gradient in float64.
        assert solution.reason.rule in ("standstill", "rounding")
        assert not solution.converged
        return
    assert solution.converged
    kept = slice(4, None)
    expected = np.linalg.solve(K[kept, kept] + 0.3 * np.eye(116), y[kept])
    np.testing.assert_allclose(solution.alpha[kept], expected, atol=5e-4)
    np.testing.assert_allclose(noise[:4, None] * solution.alpha[:4], y[:4] - K[:4, kept] @ expected, atol=5e-4)
    warm = solve(operator, y, solver=solver, stopping=rule, initial=solution.alpha)
    assert (warm.converged, warm.history) == (True, [])


@pytest.mark.long
@all_but(*CHOICES)
def test_each_target_as_if_it_were_alone(solver: Any, executor: LocalExecutor) -> None:
    """A target that is solved at once (zero) or later must not disturb the others."""
    y = np.column_stack([PROBLEM.y[:, 0], np.zeros(260), 1e-3 * PROBLEM.y[:, 1]])
    solution = solved(in_double(solver), executor, replace(PROBLEM, y=y), tolerance=1e-10)
    assert solution.converged
    expected = np.column_stack([PROBLEM.solution[:, 0], np.zeros(260), 1e-3 * PROBLEM.solution[:, 1]])
    np.testing.assert_allclose(solution.alpha, expected, rtol=0, atol=1e-8)
    assert not solution.alpha[:, 1].any()


@all_but(*CHOICES)
def test_started_at_the_answer_it_does_nothing(solver: Any, executor: LocalExecutor) -> None:
    nothing = replace(PROBLEM, y=np.zeros((260, 2)))
    for problem, answer in ((PROBLEM, PROBLEM.solution), (nothing, None)):
        solution = solved(solver, executor, problem, initial=answer)
        assert solution.converged
        assert (solution.progress.iteration, solution.history) == (0, [])
        np.testing.assert_array_equal(solution.alpha, nothing.y if answer is None else answer)


@all_but(*DIRECT, *CHOICES)
def test_a_start_near_the_answer_saves_passes(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], rng: np.random.Generator
) -> None:
    near = PROBLEM.solution * (1 + 1e-3 * rng.standard_normal((260, 2)))
    warm, cold = solved(solver, executor, initial=near), whole(solver)
    assert warm.converged
    assert 0 < warm.progress.column_passes < cold.progress.column_passes


@all_but(*CHOICES)
def test_the_duality_gap_is_a_stopping_rule(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(solver, executor, stopping=DualityGap(1e-3) | MaxPasses(2000.0))
    assert solution.reason.rule == "duality_gap"
    least = PROBLEM.risk(PROBLEM.solution)
    assert 0.0 <= PROBLEM.risk(solution.alpha) - least <= 1e-3 * (0.5 * np.sum(PROBLEM.y**2) - least)


@all_but(*CHOICES)
def test_the_same_bits_on_any_number_of_threads(solver: Any, whole: Callable[[Any], Solution]) -> None:
    executor = LocalExecutor(5)  # one thread against three: tests/engine/test_every_solver.py
    assert bits(solved(solver, executor)) == bits(whole(solver))
    executor.close()


@every_solver
def test_broken_off_anywhere_and_resumed_it_ends_in_the_same_bits(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], tmp_path: Path
) -> None:
    """Interrupted, or stopped by a limit."""
    rounds = whole(solver).progress.iteration
    assert rounds >= (1 if solver.name == "cholesky" else 2)
    # Other choices of GBCD's steps halfway alone: what begins anew or has done one round is seen by it.
    early = () if solver.name == "gbcd" and solver != SOLVERS["gbcd"] else (0, 1)
    for stop in sorted({min(stop, rounds // 2) for stop in (*early, rounds)}):
        done, store = [0], CheckpointStore(tmp_path / f"interrupted-{stop}")
        with pytest.raises(InterruptedRunError):
            solved(
                solver,
                executor,
                callback=lambda progress, done=done: done.__setitem__(0, progress.iteration),
                interrupted=lambda done=done, stop=stop: done[0] >= stop,
                checkpointing=Checkpointing(store, 1e9, {"data": "a"}),
            )
        resumed = solved(solver, executor, checkpointing=Checkpointing(store, 1e9, {"data": "a"}, resume=True))
        assert bits(resumed) == bits(whole(solver))
    with pytest.raises(CheckpointError, match="another run"):
        solved(solver, executor, checkpointing=Checkpointing(store, 1e9, {"data": "b"}, resume=True))
    if rounds > 1:
        store, limit = CheckpointStore(tmp_path / "stopped"), GradientInfNorm(1e-4) | MaxIterations((rounds + 1) // 2)
        short = solved(solver, executor, stopping=limit, checkpointing=Checkpointing(store, 1e9, {"data": "a"}))
        assert (short.converged, short.reason.rule) == (False, "max_iterations")
        resumed = solved(solver, executor, checkpointing=Checkpointing(store, 1e9, {"data": "a"}, resume=True))
        assert bits(resumed) == bits(whole(solver))


@all_but("paramcg", *CHOICES)
def test_one_sample_and_equal_samples(solver: Any, executor: LocalExecutor) -> None:
    kernel = SquaredExponential((1.0, 2.0))
    for X in (np.ones((1, 2)), np.ones((7, 2)), np.repeat([[0.0, 1.0], [1.0, 0.0]], 5, axis=0)):
        problem = Problem(kernel, 0.1, X, np.linspace(-1.0, 1.0, len(X))[:, None] + 0.5)
        solution = solved(in_double(solver), executor, problem, tolerance=1e-8)
        assert solution.converged
        np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-6)


# From a twentieth to five: no one variance is near all of them.
NOISE = 0.05 * 100.0 ** np.random.default_rng(11).random(260)


def with_noise_by_sample(executor: LocalExecutor) -> BlockedKernelOperator:
    return BlockedKernelOperator(PROBLEM.kernel, NOISE, ArrayInputs(PROBLEM.X), executor)


@pytest.mark.long
@every_solver
def test_noise_by_sample(solver: Any, executor: LocalExecutor) -> None:
    stopping = GradientInfNorm(1e-5) | MaxPasses(2000.0)
    solution = solve(with_noise_by_sample(executor), PROBLEM.y, solver=solver, stopping=stopping)
    assert solution.converged
    matrix = PROBLEM.kernel(PROBLEM.X, PROBLEM.X) + np.diag(NOISE)
    np.testing.assert_allclose(solution.gradient, matrix @ solution.alpha - PROBLEM.y, rtol=0, atol=1e-11)
    answer = np.linalg.solve(matrix, PROBLEM.y)
    assert np.abs(solution.alpha - answer).max() <= 1e-5 * np.sqrt(260) / NOISE.min()


@all_but("cholesky")
def test_settings_are_checked_and_told(solver: Any) -> None:
    with pytest.raises(InputError, match="""precision must be ['"]mixed['"] or ['"]double['"]; got 'half'"""):
        replace(solver, precision="half")
    assert solver.resolved(260, 3, 2).settings()["solver"] == solver.name
