"""Every solver on kernels that are no bare squared exponential, also where k(x, x) varies by orders of magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    KernelConjugateGradient,
    SequentialMinimalOptimization,
    Solver,
    TiledCholesky,
    solve,
)
from dkgp.solvers.block_descent.selection import Subproblem

N, D, NOISE = 200, 3, 0.05
KERNELS = ("rbf", "matern32", "constant(variance=1.7) * rbf", "rbf + linear", "polynomial(degree=3)")
SOLVERS: dict[str, Solver] = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=40),
    "gbcd in float64": GreedyBlockCoordinateDescent(block_size=40, precision="double"),
    "cg": ConjugateGradient(),
    "pcg": ConjugateGradient(FactorPreconditioning(40, 20, 0)),
    "pcg low rank": ConjugateGradient(FactorPreconditioning(0, rank=60)),
    "pcg uniform": ConjugateGradient(FactorPreconditioning(0, rank=60, landmarks="uniform")),
    "kcg": KernelConjugateGradient(),
    "smo": SequentialMinimalOptimization(steps_per_round=200),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(tile_rows=64),
}


def problem(outliers: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, D))
    X[:3] *= outliers
    return X, np.sin(2.0 * X[:, :1]) + 0.3 * rng.normal(size=(N, 1))


@pytest.mark.covering
@pytest.mark.parametrize("text", KERNELS)
@pytest.mark.parametrize("name", SOLVERS)
def test_all_solvers_agree_with_dense_algebra(name: str, text: str, executor: LocalExecutor) -> None:
    X, y = problem()
    kernel = parse_kernel(text, D)
    Kbar = kernel(X, X) + NOISE * np.eye(N)
    with BlockedKernelOperator(kernel, NOISE, ArrayInputs(X), executor) as operator:
        solution = solve(operator, y, solver=SOLVERS[name], stopping=GradientInfNorm(1e-5))
    assert solution.converged
    assert np.abs(Kbar @ solution.alpha - y).max() <= 1.01e-5
    off = np.linalg.norm(solution.alpha - np.linalg.solve(Kbar, y))
    assert off <= np.linalg.norm(Kbar @ solution.alpha - y) / NOISE + 1e-9


@pytest.mark.parametrize("name", ["gbcd", "pcg", "pcg uniform", "cholesky", "tiled-cholesky"])
def test_entries_of_a_million_do_not_keep_them_from_the_tolerance(name: str, executor: LocalExecutor) -> None:
    X, y = problem(outliers=15.0)
    X[7] = 0.0  # of which a polynomial without an offset knows nothing
    kernel = parse_kernel("polynomial(degree=3, offset=0)", D) + parse_kernel("rbf", D)
    assert kernel.diagonal(X).max() > 1e5 * np.median(kernel.diagonal(X))
    Kbar = kernel(X, X) + NOISE * np.eye(N)
    with BlockedKernelOperator(kernel, NOISE, ArrayInputs(X), executor) as operator:
        solution = solve(operator, y, solver=SOLVERS[name], stopping=GradientInfNorm(1e-5))
    assert solution.converged
    assert np.abs(Kbar @ solution.alpha - y).max() <= 1.01e-5


def test_a_few_large_entries_do_not_cost_a_block_its_float32_factor(executor: LocalExecutor) -> None:
    """What counts is the largest trace that a block may have, not its size times the largest entry."""
    X, _ = problem(outliers=15.0)
    kernel = parse_kernel("polynomial(degree=3)", D)
    diagonal = np.sort(kernel.diagonal(X)) + 5.0
    limit = 5.0 / (20.0 * float(np.finfo(np.float32).eps))
    assert diagonal[-40:].sum() < limit < 40 * diagonal[-1]
    with BlockedKernelOperator(kernel, 5.0, ArrayInputs(X), executor) as operator:
        assert Subproblem(operator, 40, 1).single
    with BlockedKernelOperator(kernel, 0.01, ArrayInputs(X), executor) as operator:
        assert not Subproblem(operator, 40, 1).single
