"""What every solver has to do: the dense answer, several targets, the same bits for any threads and after a break."""

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
from dkgp.errors import CheckpointError, InputError, InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.solvers import (
    Checkpointing,
    ConjugateGradient,
    CyclicSelection,
    DualityGap,
    FactorPreconditioning,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    KernelConjugateGradient,
    MaxIterations,
    MaxPasses,
    ParameterConjugateGradient,
    SequentialMinimalOptimization,
    Solution,
    TiledCholesky,
    solve,
)
from tests.solvers.problems import Problem, smooth_problem

SOLVERS: dict[str, Any] = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=40),
    "gbcd-growing": GreedyBlockCoordinateDescent(block_size=10, largest_block_size=60),
    "bcdc": GreedyBlockCoordinateDescent(block_size=40, selection=CyclicSelection()),
    "bcdg": GreedyBlockCoordinateDescent(block_size=40, selection=GradientSelection()),
    "smo": SequentialMinimalOptimization(),
    "cg": ConjugateGradient(),
    "pcg": ConjugateGradient(FactorPreconditioning(40, 20, 10)),
    "pcg-low-rank": ConjugateGradient(FactorPreconditioning(0, rank=30)),
    "pcg-nystrom": ConjugateGradient(FactorPreconditioning(0, rank=30, landmarks="uniform")),
    "kcg": KernelConjugateGradient(),
    "paramcg": ParameterConjugateGradient(),
    "tiled-cholesky": TiledCholesky(tile_rows=64),
}
# Short length scales and much noise: parameter CG squares the condition number, and is to end some day.
PROBLEM = smooth_problem(300, 3, targets=2, noise_variance=0.3, gamma=6.0)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


def solved(solver: Any, executor: Any, problem: Problem = PROBLEM, tolerance: float = 1e-4, **options: Any) -> Solution:
    options = {"stopping": GradientInfNorm(tolerance) | MaxPasses(2000.0)} | options
    return solve(problem.blocked(executor), problem.y, solver=solver, **options)


@pytest.fixture(scope="module")
def whole(executor: LocalExecutor) -> Callable[[Any], Solution]:
    """A solver's run to its end on two threads; each is made once."""
    return functools.cache(lambda solver: solved(solver, executor))


def in_double(solver: Any) -> Any:
    return replace(solver, precision="double")


@every_solver
def test_the_answer_of_dense_cholesky(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(in_double(solver), executor, tolerance=1e-9)
    assert solution.converged
    error = np.linalg.norm(solution.alpha - PROBLEM.solution) / np.linalg.norm(PROBLEM.solution)
    assert error < 1e-6


@every_solver
def test_single_precision_tiles_end_in_a_true_gradient(solver: Any, whole: Callable[[Any], Solution]) -> None:
    solution = whole(solver)
    assert solution.converged
    true = PROBLEM.gradient(solution.alpha)
    assert np.abs(true).max() <= 1e-4 * (1 + 1e-6)
    np.testing.assert_allclose(solution.gradient, true, rtol=0, atol=1e-10)


@every_solver
def test_each_target_as_if_it_were_alone(solver: Any, executor: LocalExecutor) -> None:
    """A target that is solved at once (zero) or later must not disturb the others."""
    y = np.column_stack([PROBLEM.y[:, 0], np.zeros(300), 1e-3 * PROBLEM.y[:, 1]])
    solution = solved(in_double(solver), executor, replace(PROBLEM, y=y), tolerance=1e-10)
    assert solution.converged
    expected = np.column_stack([PROBLEM.solution[:, 0], np.zeros(300), 1e-3 * PROBLEM.solution[:, 1]])
    np.testing.assert_allclose(solution.alpha, expected, rtol=0, atol=1e-8)
    assert not solution.alpha[:, 1].any()


@every_solver
def test_started_at_the_answer_it_does_nothing(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(solver, executor, initial=PROBLEM.solution)
    assert solution.converged
    assert solution.progress.iteration == 0


@pytest.mark.parametrize("solver", [solver for name, solver in SOLVERS.items() if name != "tiled-cholesky"])
def test_a_start_near_the_answer_saves_passes(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], rng: np.random.Generator
) -> None:
    near = PROBLEM.solution * (1 + 1e-3 * rng.standard_normal((300, 2)))
    warm, cold = solved(solver, executor, initial=near), whole(solver)
    assert warm.converged
    assert 0 < warm.progress.column_passes < cold.progress.column_passes


@every_solver
def test_the_duality_gap_is_a_stopping_rule(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(solver, executor, stopping=DualityGap(1e-3) | MaxPasses(2000.0))
    assert solution.reason.rule == "duality_gap"
    least = PROBLEM.risk(PROBLEM.solution)
    assert 0.0 <= PROBLEM.risk(solution.alpha) - least <= 1e-3 * (0.5 * np.sum(PROBLEM.y**2) - least)


@every_solver
def test_the_same_bits_on_any_number_of_threads(solver: Any, whole: Callable[[Any], Solution]) -> None:
    of_two = whole(solver)
    found = [(of_two.alpha.tobytes(), of_two.gradient.tobytes(), of_two.progress.iteration)]
    for threads in (1, 3):
        executor = LocalExecutor(threads)
        solution = solved(solver, executor)
        executor.close()
        found.append((solution.alpha.tobytes(), solution.gradient.tobytes(), solution.progress.iteration))
    assert found[0] == found[1] == found[2]


@every_solver
def test_interrupted_and_resumed_it_ends_in_the_same_bits(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], tmp_path: Path
) -> None:
    uninterrupted = whole(solver)
    assert uninterrupted.progress.iteration >= 2
    done = [0]
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(InterruptedRunError):
        solved(
            solver,
            executor,
            callback=lambda progress: done.__setitem__(0, progress.iteration),
            interrupted=lambda: done[0] >= (uninterrupted.progress.iteration + 1) // 2,
            checkpointing=Checkpointing(store, 1e9, {"data": "a"}),
        )
    resumed = solved(solver, executor, checkpointing=Checkpointing(store, 1e9, {"data": "a"}, resume=True))
    assert resumed.alpha.tobytes() == uninterrupted.alpha.tobytes()
    assert resumed.gradient.tobytes() == uninterrupted.gradient.tobytes()
    assert len(resumed.history) == len(uninterrupted.history)
    with pytest.raises(CheckpointError, match="another run"):
        solved(in_double(solver), executor, checkpointing=Checkpointing(store, 1e9, {"data": "b"}, resume=True))


@every_solver
def test_stopped_by_a_limit_and_resumed_it_ends_in_the_same_bits(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], tmp_path: Path
) -> None:
    uninterrupted = whole(solver)
    store = CheckpointStore(tmp_path / "checkpoints")
    limit = GradientInfNorm(1e-4) | MaxIterations((uninterrupted.progress.iteration + 1) // 2)
    short = solved(solver, executor, stopping=limit, checkpointing=Checkpointing(store, 1e9, {"data": "a"}))
    assert not short.converged
    resumed = solved(solver, executor, checkpointing=Checkpointing(store, 1e9, {"data": "a"}, resume=True))
    assert resumed.alpha.tobytes() == uninterrupted.alpha.tobytes()
    assert len(resumed.history) == len(uninterrupted.history)


@pytest.mark.parametrize("solver", [solver for name, solver in SOLVERS.items() if name != "paramcg"])
def test_one_sample_and_equal_samples(solver: Any, executor: LocalExecutor) -> None:
    kernel = SquaredExponential((1.0, 2.0))
    for X in (np.ones((1, 2)), np.ones((7, 2)), np.repeat([[0.0, 1.0], [1.0, 0.0]], 5, axis=0)):
        problem = Problem(kernel, 0.1, X, np.linspace(-1.0, 1.0, len(X))[:, None] + 0.5)
        solution = solved(in_double(solver), executor, problem, tolerance=1e-8)
        assert solution.converged
        np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-6)


@every_solver
def test_settings_are_checked_and_told(solver: Any) -> None:
    with pytest.raises(InputError, match="""precision must be ['"]mixed['"] or ['"]double['"]; got 'half'"""):
        replace(solver, precision="half")
    assert solver.resolved(300, 3, 2).settings()["solver"] == solver.name
