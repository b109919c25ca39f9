"""A solution that is remembered on the way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.refinement.estimates import Remembered
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import ConjugateGradient, RelativeResidual, solve

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


def test_it_remembers_the_first_solution_that_is_near(
    operator: BlockedKernelOperator, rng: np.random.Generator
) -> None:
    rhs = rng.normal(size=(N, 3))
    remembered = Remembered(0.04)
    found = solve(operator, rhs, solver=ConjugateGradient(observe=remembered), stopping=RelativeResidual(0.01))
    residual = rhs - dense(operator) @ remembered.solution
    largest = float(np.max(np.linalg.norm(residual, axis=0) / np.linalg.norm(rhs, axis=0)))
    assert largest == pytest.approx(remembered.residual, rel=1e-3)
    assert found.progress.relative_residual < largest <= 0.04
