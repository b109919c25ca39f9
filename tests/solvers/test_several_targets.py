"""Seven targets at once: the coefficients of seven single solves, for about the kernel columns of the worst of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    MaxPasses,
    Solution,
    TiledCholesky,
    solve,
)
from tests.benchmark_data import standardised
from tests.covering import few
from tests.solvers.problems import Problem, smooth_problem
from tests.solvers.test_every_solver import SOLVERS, in_double

NAMES = ("gbcd", "bcdc", "bcdg", "smo", "cg", "pcg", "pcg-low-rank", "kcg", "cholesky", "tiled-cholesky")
# Passes of all together against those of the target that needs most. Blocks are chosen for all targets at once, so
# none has the block that it would choose for itself.
LARGEST_RATIO = {"gbcd": 2.5, "bcdc": 1.2, "bcdg": 2.0}


def solved(problem: Problem, executor: LocalExecutor, solver: Any, y: np.ndarray, tolerance: float) -> Solution:
    stopping = GradientInfNorm(tolerance) | MaxPasses(20_000.0)
    solution = solve(problem.blocked(executor), y, solver=solver, stopping=stopping)
    assert solution.converged
    return solution


def compared(problem: Problem, executor: LocalExecutor, solver: Any, tolerance: float) -> tuple[float, float, float]:
    """Largest relative difference of a target's alpha; passes together over the worst's, and over all singles'."""
    together = solved(problem, executor, solver, problem.y, tolerance)
    singles = [solved(problem, executor, solver, problem.y[:, t], tolerance) for t in range(problem.y.shape[1])]
    difference = max(
        float(np.linalg.norm(together.alpha[:, [t]] - single.alpha) / np.linalg.norm(single.alpha))
        for t, single in enumerate(singles)
    )
    passes = [single.progress.column_passes for single in singles]
    return difference, together.progress.column_passes / max(passes), together.progress.column_passes / sum(passes)


@pytest.mark.long
@pytest.mark.parametrize("name", few(NAMES, "gbcd", "smo", "cg", "pcg-low-rank", "cholesky"))
def test_seven_targets_cost_about_as_much_as_the_worst_of_them(executor: LocalExecutor, name: str) -> None:
    problem = smooth_problem(140, 3, targets=7, noise_variance=0.1, gamma=1.0)
    difference, over_worst, over_sum = compared(problem, executor, in_double(SOLVERS[name]), 1e-8)
    assert difference < 1e-6
    if name == "smo":  # pairs are a target's own, and so are their columns
        assert over_sum == pytest.approx(1.0, rel=0.1)
    else:
        assert over_worst <= LARGEST_RATIO.get(name, 1.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["gbcd", "bcdc", "cg", "pcg", "pcg-low-rank", "kcg", "tiled-cholesky"])
def test_the_seven_torques_of_a_robot_arm(executor: LocalExecutor, name: str) -> None:
    """SARCOS: 21 joint positions, velocities and accelerations, and seven torques."""
    data = standardised("sarcos_test4449", 3559, "Y7")
    problem = Problem(SquaredExponential(data.gamma), data.noise_variance, data.X, data.y)
    solver = in_double(SOLVERS[name])
    if name in ("gbcd", "bcdc"):
        solver = replace(solver, block_size=500)
    if name.startswith("pcg"):
        solver = ConjugateGradient(FactorPreconditioning(0 if name == "pcg-low-rank" else "auto"), "double")
    if name == "tiled-cholesky":
        solver = TiledCholesky(precision="double")
    difference, over_worst, over_sum = compared(problem, executor, solver, 1e-7 * problem.noise_variance)
    print(f"\n{name}: alpha to {difference:.1e}; passes: {over_worst:.2f} of the worst's, {over_sum:.2f} of the sum's")
    assert difference < 1e-6
    assert over_worst <= LARGEST_RATIO.get(name, 1.1)
    assert over_sum < 0.5
