"""The history of a solve, and what it foretells."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray
from dkgp.operators.dense import DenseKernelOperator
from dkgp.solvers import ConjugateGradient, GradientInfNorm, Progress, solve
from dkgp.solvers.driver import Watch
from dkgp.solvers.method_run import Record
from tests.solvers.problems import smooth_problem
from tests.solvers.test_stopping import PROGRESS

PROBLEM = smooth_problem(300, 3)
RULE = GradientInfNorm(1e-4)


def recorded(norms: list[float]) -> Record:
    record = Record(PROBLEM.dense())
    for norm in norms:
        record.history.append(replace(PROGRESS, gradient_inf_norm=norm))
    return record


@pytest.mark.parametrize("fall", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("done", [3, 5, 20])
def test_rounds_left_are_those_of_a_residual_that_falls_on(fall: float, done: int) -> None:
    norms = [fall**round_ for round_ in range(done)]
    left, norm = 0, norms[-1]
    while norm > 1e-4:
        norm *= fall
        left += 1
    found = recorded(norms).rounds_left(RULE)
    assert found == 2.0 * done if left > 2 * done else left - 1.0 < found <= left


@pytest.mark.parametrize(
    ("norms", "rounds"),
    [
        ([], 0.0),
        ([1.0, 0.5], 0.0),
        ([1.0, 0.5, 1e-5], 0.0),  # done
        ([1.0, 0.5, math.nan], 0.0),
        ([1.0, 1.0, 1.0, 1.0], 8.0),  # it stands still
        ([1.0, 2.0, 3.0], 6.0),
    ],
)
def test_rounds_left_where_there_is_little_to_go_by(norms: list[float], rounds: float) -> None:
    assert recorded(norms).rounds_left(RULE) == rounds


class Told(DenseKernelOperator):
    """Notes what it is told, and the products that follow."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.notes: list[tuple[int, float]] = []
        self.products = 0

    def foresee(self, done: int, left: float) -> None:
        self.notes.append((done, left))

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        self.products += precision == "single"
        return super().matmat(V, precision)


def test_a_solve_tells_before_each_round_what_it_has_done_and_foresees() -> None:
    operator, seen = Told(PROBLEM.kernel, PROBLEM.noise_variance, PROBLEM.X), list[Progress]()
    solution = solve(operator, PROBLEM.y, solver=ConjugateGradient(), stopping=RULE, watch=Watch(callback=seen.append))
    assert solution.converged
    assert len(operator.notes) == operator.products > 6
    assert [left for _, left in operator.notes[:3]] == [0.0, 0.0, 0.0]
    for done, left in operator.notes[3:]:
        expected = recorded([each.gradient_inf_norm for each in seen[:done]]).rounds_left(RULE)
        assert left == expected
    assert np.median([left for _, left in operator.notes[3:]]) > 1.0
