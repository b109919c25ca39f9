"""SMO against a plain loop over the dense matrix, and its column cache."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, UsageError
from dkgp.solvers import GradientInfNorm, MaxIterations, SequentialMinimalOptimization, solve
from tests.solvers.problems import smooth_problem

PROBLEM = smooth_problem(200, 3, targets=2, noise_variance=0.2)
COLUMN = 8 * 208  # 200 samples in whole vectors of 16


def naive(steps: int) -> np.ndarray:
    """Pair by pair, from the whole matrix."""
    alpha = np.zeros_like(PROBLEM.y)
    for target in range(2):
        for _ in range(steps):
            gradient = PROBLEM.matrix @ alpha[:, target] - PROBLEM.y[:, target]
            pair = [int(np.argmax(gradient)), int(np.argmin(gradient))]
            alpha[pair, target] -= np.linalg.solve(PROBLEM.matrix[np.ix_(pair, pair)], gradient[pair])
    return alpha


def after(steps: int, executor: LocalExecutor, **settings: int):
    solver = SequentialMinimalOptimization(steps_per_round=steps, precision="double", **settings)
    stopping = GradientInfNorm(1e-14) | MaxIterations(1)
    return solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=stopping)


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_steps_are_those_of_a_plain_loop(steps: int, executor: LocalExecutor) -> None:
    solution = after(steps, executor)
    np.testing.assert_allclose(solution.alpha, naive(steps), rtol=0, atol=1e-10)
    np.testing.assert_allclose(solution.gradient, PROBLEM.gradient(solution.alpha), rtol=0, atol=1e-10)


def test_the_cache_saves_columns_and_changes_nothing(executor: LocalExecutor) -> None:
    found = {slots: after(300, executor, cache_bytes=slots * COLUMN) for slots in (0, 2, 7, 50, 1000)}
    columns = [solution.progress.kernel_evaluations // 200 for solution in found.values()]
    assert {solution.progress.column_passes for solution in found.values()} == {2 * 2 * 300 / 200}
    assert columns[0] == columns[1]
    assert columns[1] > columns[2] > columns[3] > columns[4]
    verification = 200  # of one block: its product is not halved by symmetry
    assert columns[1] <= 2 * 2 * 300 + verification
    assert columns[4] <= 200 + verification
    assert len({solution.alpha.tobytes() for solution in found.values()}) == 1


def test_each_step_descends(executor: LocalExecutor) -> None:
    objectives = [PROBLEM.objective(after(steps, executor).alpha) for steps in (1, 2, 3, 10, 30)]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[0] < 0.0


def test_settings_out_of_range() -> None:
    with pytest.raises(InputError, match="at least 1; got 0"):
        SequentialMinimalOptimization(steps_per_round=0)
    with pytest.raises(InputError, match="cannot take -1 bytes"):
        SequentialMinimalOptimization(cache_bytes=-1)
    assert SequentialMinimalOptimization().resolved(10_000, 8).steps_per_round == 500


def test_inputs_that_do_not_fit_the_coordinator_are_refused(executor: LocalExecutor) -> None:
    operator = PROBLEM.blocked(executor, coordinator_input_bytes=100)
    with pytest.raises(
        UsageError, match="inputs of all 200 samples in the coordinator's memory.*another solver, such as gbcd"
    ):
        solve(operator, PROBLEM.y, solver=SequentialMinimalOptimization())
