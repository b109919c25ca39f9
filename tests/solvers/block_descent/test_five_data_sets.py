"""Every solver on five real data sets, n = 2,000, in float64: dense Cholesky's answer, or the duality gap asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    CyclicSelection,
    DualityGap,
    FactorPreconditioning,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    KernelConjugateGradient,
    MaxPasses,
    ParameterConjugateGradient,
    SequentialMinimalOptimization,
    TiledCholesky,
    solve,
)
from tests.benchmark_data import standardised
from tests.solvers.problems import Problem

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N = 2000
DATA_SETS = ["kin40k", "california", "abalone", "pumadyn32nm", "concrete_raw"]
# To be within 1e-6 of the answer; the gradient's error is alpha's times s2 at least.
TOLERANCE, GAP = 1e-8, 1e-3
SOLVERS: dict[str, Any] = {
    "gbcd": GreedyBlockCoordinateDescent(precision="double"),
    "bcdc": GreedyBlockCoordinateDescent(selection=CyclicSelection(), precision="double"),
    "bcdg": GreedyBlockCoordinateDescent(selection=GradientSelection(), precision="double"),
    "smo": SequentialMinimalOptimization(precision="double"),
    "cg": ConjugateGradient(precision="double"),
    "pcg": ConjugateGradient(FactorPreconditioning(0), "double"),
    "pcg-nystrom": ConjugateGradient(FactorPreconditioning(0, landmarks="uniform"), "double"),
    "kcg": KernelConjugateGradient("double"),
    "paramcg": ParameterConjugateGradient("double"),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(precision="double"),
}
# It minimises the risk, whose gradient K g does not see what a smooth kernel takes away: to the duality gap.
BY_GAP = ("paramcg",)
every_data_set = pytest.mark.parametrize("data", DATA_SETS)
every_solver = pytest.mark.parametrize("name", SOLVERS)


@cache
def problem_of(data: str) -> Problem:
    found = standardised(data, N)
    return Problem(SquaredExponential(found.gamma), found.noise_variance, found.X, found.y)


@pytest.fixture(scope="module")
def note() -> Iterator[Callable[..., None]]:
    """Collects one line for each run; prints them as a table at the end."""
    lines = ["| data set | n | solver | alpha's relative error | max abs gradient | passes | rounds | seconds |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    yield lambda *cells: lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    print("\n" + "\n".join(lines))


@every_data_set
@every_solver
def test_the_answer_of_dense_cholesky(executor: LocalExecutor, note: Callable[..., None], data: str, name: str) -> None:
    problem = problem_of(data)
    stopping = DualityGap(GAP) if name in BY_GAP else GradientInfNorm(TOLERANCE * problem.noise_variance)
    started = time.perf_counter()
    solution = solve(problem.blocked(executor), problem.y, solver=SOLVERS[name], stopping=stopping | MaxPasses(20_000))
    seconds = time.perf_counter() - started
    exact = problem.solution
    error = np.linalg.norm(solution.alpha - exact) / np.linalg.norm(exact)
    progress = solution.progress
    note(
        data,
        problem.n,
        name,
        f"{error:.1e}",
        f"{progress.gradient_inf_norm:.1e}",
        f"{progress.column_passes:.1f}",
        progress.iteration,
        f"{seconds:.1f}",
    )
    assert solution.converged
    if name not in BY_GAP:
        assert error < 1e-6
        return
    assert solution.reason.rule == "duality_gap"
    least = problem.risk(exact)
    assert 0.0 <= problem.risk(solution.alpha) - least <= GAP * (0.5 * float(np.sum(problem.y**2)) - least)


@every_data_set
@every_solver
def test_started_at_the_answer_it_does_nothing(executor: LocalExecutor, data: str, name: str) -> None:
    problem = problem_of(data)
    solution = solve(problem.blocked(executor), problem.y, solver=SOLVERS[name], initial=problem.solution)
    assert solution.converged
    assert solution.progress.iteration == 0
    assert solution.progress.column_passes == 0.0
    assert solution.alpha.tobytes() == problem.solution.tobytes()
