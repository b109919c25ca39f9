"""Block conjugate gradients behind the solvers' driver, and landmarks that are kept."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.refinement.solve import BlockConjugateGradient, FrozenLandmarks
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import ConjugateGradient, MaxPasses, PartialCholesky, RelativeResidual, solve

KERNEL, NOISE, N = SquaredExponential((2.0, 2.0)), 0.01, 500


@pytest.fixture
def operator(rng: np.random.Generator) -> Iterator[BlockedKernelOperator]:
    executor = LocalExecutor(2)
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(rng.normal(size=(N, 2))), executor) as operator:
        yield operator
    executor.close()


def dense(operator: BlockedKernelOperator) -> np.ndarray:
    X = operator.inputs(np.arange(N))
    return KERNEL(X, X) + NOISE * np.eye(N)


@pytest.mark.parametrize("rank", [None, 40])
def test_it_solves_all_right_hand_sides(
    operator: BlockedKernelOperator, rng: np.random.Generator, rank: int | None
) -> None:
    rhs = rng.normal(size=(N, 5))
    preconditioner = None if rank is None else FrozenLandmarks(PartialCholesky(rank)).preconditioner(operator)
    found = solve(operator, rhs, solver=BlockConjugateGradient(preconditioner), stopping=RelativeResidual(1e-6))
    residual = rhs - dense(operator) @ found.alpha
    assert (np.linalg.norm(residual, axis=0) <= 1e-6 * np.linalg.norm(rhs, axis=0)).all()
    np.testing.assert_allclose(found.gradient, -residual, atol=1e-9)


def test_sharing_directions_saves_passes(operator: BlockedKernelOperator, rng: np.random.Generator) -> None:
    rhs, settings = rng.normal(size=(N, 12)), PartialCholesky(20)
    block = BlockConjugateGradient(FrozenLandmarks(settings).preconditioner(operator))
    passes = [
        solve(operator, rhs, solver=solver, stopping=RelativeResidual(1e-3)).progress.column_passes
        for solver in (block, ConjugateGradient(settings))
    ]
    assert passes[0] < 0.7 * passes[1]


def test_dependent_right_hand_sides_do_no_harm(operator: BlockedKernelOperator, rng: np.random.Generator) -> None:
    one = rng.normal(size=(N, 1))
    rhs = np.hstack([one, one, -2.0 * one, np.zeros((N, 1))])
    method = BlockConjugateGradient(FrozenLandmarks(PartialCholesky(100)).preconditioner(operator))
    found = solve(operator, rhs, solver=method, stopping=RelativeResidual(1e-4) | MaxPasses(200))
    assert found.converged
    np.testing.assert_allclose(found.alpha[:, 2], -2.0 * found.alpha[:, 0], atol=1e-6 * np.abs(found.alpha).max())
    assert not found.alpha[:, 3].any()


def test_started_at_the_answer_it_has_nothing_to_do(operator: BlockedKernelOperator, rng: np.random.Generator) -> None:
    rhs = rng.normal(size=(N, 2))
    answer = np.linalg.solve(dense(operator), rhs)
    found = solve(operator, rhs, solver=BlockConjugateGradient(), stopping=RelativeResidual(1e-6), initial=answer)
    assert found.progress.iteration == 0
    np.testing.assert_array_equal(found.alpha, answer)


def test_it_remembers_the_first_solution_that_is_near(
    operator: BlockedKernelOperator, rng: np.random.Generator
) -> None:
    rhs = rng.normal(size=(N, 3))
    method = BlockConjugateGradient(remember_at=0.04)
    found = solve(operator, rhs, solver=method, stopping=RelativeResidual(0.01))
    assert method.remembered is not None
    residual = rhs - dense(operator) @ method.remembered
    largest = float(np.max(np.linalg.norm(residual, axis=0) / np.linalg.norm(rhs, axis=0)))
    assert largest == pytest.approx(method.remembered_residual, rel=1e-3)
    assert found.progress.relative_residual < largest <= 0.04


def test_landmarks_are_kept(operator: BlockedKernelOperator) -> None:
    landmarks = FrozenLandmarks(PartialCholesky(30))
    assert landmarks.preconditioner(operator).rank == 30
    assert landmarks.indices is not None
    first = landmarks.indices.copy()
    with BlockedKernelOperator(
        SquaredExponential((1.9, 2.1)), 0.02, operator.context.source, operator.executor
    ) as other:
        landmarks.preconditioner(other)
    np.testing.assert_array_equal(landmarks.indices, first)


def test_a_checkpoints_state_goes_on(operator: BlockedKernelOperator, rng: np.random.Generator) -> None:
    rhs = rng.normal(size=(N, 3))
    method = BlockConjugateGradient()
    state = method.start(operator, rhs)
    for _ in range(3):
        method.advance(operator, state)
    arrays = {name: values.copy() for name, values in state.arrays().items()}
    again = BlockConjugateGradient().restore(operator, rhs, arrays, state.metadata())
    for one in (state, again):
        method.advance(operator, one)
    assert again.alpha.tobytes() == state.alpha.tobytes()
    assert again.iteration == state.iteration == 4
