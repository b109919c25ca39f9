"""A method of a few lines has all that the driver gives: verification, checkpoints, warm starts, what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, InputError
from dkgp.operators.base import KernelOperator
from dkgp.solvers import Checkpointing, GradientInfNorm, MaxIterations, MaxPasses, Solution, StoppingRule, solve
from dkgp.solvers.base import Method, SolverState, as_columns
from dkgp.solvers.driver import Watch
from tests.solvers.problems import smooth_problem

PROBLEM = smooth_problem(200, 3, targets=2, noise_variance=0.5, gamma=2.0)


@dataclass(frozen=True)
class SteepestDescent(Method[SolverState]):
    """Steps along the gradient, each with its exact length."""

    precision: Literal["mixed", "double"] = "mixed"

    name = "steepest"
    state_type = SolverState

    def advance(self, operator: KernelOperator, state: SolverState) -> dict[str, float]:
        g = state.gradient
        image = operator.matmat(g, state.precision)
        step = np.einsum("ip,ip->p", g, g) / np.einsum("ip,ip->p", g, image)
        state.alpha = state.alpha - step * g
        state.gradient = g - step * image
        state.note_step(np.einsum("ip,ip->p", g, g) * step**2)
        state.iteration += 1
        state.columns += operator.n
        return {}


STOPPING = GradientInfNorm(1e-4) | MaxPasses(2000.0)


def solved(executor: LocalExecutor, stopping: StoppingRule = STOPPING, **watch: Any) -> Solution:
    solver = SteepestDescent()
    return solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=stopping, watch=Watch(**watch))


def test_it_ends_in_a_true_gradient(executor: LocalExecutor) -> None:
    solution = solved(executor)
    assert solution.converged
    assert solution.refreshes >= 1
    np.testing.assert_allclose(solution.gradient, PROBLEM.gradient(solution.alpha), rtol=0, atol=1e-10)
    assert np.abs(solution.gradient).max() <= 1e-4
    assert solution.solver == {"solver": "steepest", "precision": "mixed"}


def test_it_is_resumed_to_the_same_bits(executor: LocalExecutor, tmp_path: Path) -> None:
    whole, store = solved(executor), CheckpointStore(tmp_path / "checkpoints")
    solved(executor, stopping=MaxIterations(7), checkpointing=Checkpointing(store, 1e9, {"data": "a"}))
    resumed = solved(executor, checkpointing=Checkpointing(store, 1e9, {"data": "a"}, resume=True))
    assert resumed.alpha.tobytes() == whole.alpha.tobytes()
    assert [progress.objective for progress in resumed.history] == [progress.objective for progress in whole.history]
    with pytest.raises(CheckpointError, match="its identity is"):
        solved(executor, checkpointing=Checkpointing(store, 1e9, {"data": "b"}, resume=True))


def test_a_known_gradient_saves_its_first_pass(executor: LocalExecutor) -> None:
    near = 1.01 * PROBLEM.solution
    operator = PROBLEM.blocked(executor)
    counts = []
    for known in (None, PROBLEM.gradient(near)):
        before = operator.kernel_evaluations
        solution = solve(
            operator,
            PROBLEM.y,
            solver=SteepestDescent(),
            stopping=MaxIterations(1),
            initial=near,
            initial_gradient=known,
        )
        counts.append(operator.kernel_evaluations - before)
        assert solution.progress.iteration == 1
    assert counts[0] - counts[1] >= 200 * 200 / 2


def test_another_precision_is_refused() -> None:
    with pytest.raises(InputError, match="precision must be 'mixed' or 'double'; got 'half'"):
        SteepestDescent("half")  # type: ignore[arg-type]


def test_columns_of_another_shape_are_refused() -> None:
    assert as_columns([1, 2, 3], 3, "y").tolist() == [[1.0], [2.0], [3.0]]
    with pytest.raises(InputError, match=r"y must have shape \(3,\) or \(3, p\); got \(2, 1\)"):
        as_columns([1, 2], 3, "y")
    with pytest.raises(InputError, match=r"y has shape \(3, 2\); expected \(3, 1\)"):
        as_columns(np.zeros((3, 2)), 3, "y", 1)
    with pytest.raises(InputError, match="y must be finite; row 1 is not"):
        as_columns([1.0, np.nan, 2.0], 3, "y")
