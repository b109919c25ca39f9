from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.solvers import Checkpointing, GradientInfNorm, MaxIterations, Solution, solve
from dkgp.solvers.cholesky import in_memory as module
from dkgp.solvers.cholesky.dense import factor_strips, solve_strips, strip_bounds
from dkgp.solvers.cholesky.in_memory import Cholesky, cholesky_bytes
from dkgp.solvers.driver import Watch
from tests.solvers.problems import Problem, smooth_problem

PROBLEM = smooth_problem(300, 3, targets=2)


@pytest.fixture(params=[512, 96, 7], ids=["one strip", "four strips", "narrow strips"])
def strip_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "STRIP_ROWS", request.param)
    return int(request.param)


def solved(
    executor: Any,
    problem: Problem = PROBLEM,
    tolerance: float = 1e-9,
    stopping: Any = None,
    initial: Any = None,
    **watch: Any,
) -> Solution:
    rule, operator = stopping or GradientInfNorm(tolerance), problem.blocked(executor)
    return solve(operator, problem.y, solver=Cholesky(), stopping=rule, initial=initial, watch=Watch(**watch))


@pytest.mark.usefixtures("strip_rows")
def test_one_round_gives_the_answer(executor: LocalExecutor) -> None:
    solution = solved(executor)
    assert solution.converged
    assert solution.progress.iteration == 1
    assert solution.progress.column_passes == 1.0
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-9 * np.abs(PROBLEM.solution).max())
    np.testing.assert_allclose(solution.gradient, PROBLEM.gradient(solution.alpha), rtol=0, atol=1e-11)
    assert solution.refreshes == 0


def test_on_an_operator_that_holds_the_matrix() -> None:
    solution = solve(PROBLEM.dense(), PROBLEM.y, solver=Cholesky(), stopping=GradientInfNorm(1e-9))
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=1e-8, atol=1e-8)


def test_without_inputs_at_the_coordinator(executor: LocalExecutor) -> None:
    operator = PROBLEM.blocked(executor, coordinator_input_bytes=0)
    solution = solve(operator, PROBLEM.y, solver=Cholesky(), stopping=GradientInfNorm(1e-9))
    assert solution.alpha.tobytes() == solved(executor).alpha.tobytes()


@pytest.mark.parametrize("rows", [7, 64, 150, 400])
def test_the_factor_is_lapacks(rng: np.random.Generator, rows: int) -> None:
    half = rng.standard_normal((150, 150))
    matrix = half @ half.T + 150 * np.eye(150)
    given = matrix.copy()
    strips = [given[start:stop, :stop] for start, stop in strip_bounds(150, rows)]
    factor_strips(strips)
    expected = scipy.linalg.cholesky(matrix, lower=True)
    np.testing.assert_allclose(np.tril(given), expected, rtol=0, atol=1e-12)
    for start, stop in strip_bounds(150, rows):  # what is right of the strips is not theirs
        np.testing.assert_array_equal(given[start:stop, stop:], matrix[start:stop, stop:])
    right = rng.standard_normal((150, 3))
    kept = right.copy()
    np.testing.assert_allclose(matrix @ solve_strips(strips, right), right, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(right, kept)


@pytest.mark.usefixtures("strip_rows")
def test_the_same_bits_on_any_number_of_threads() -> None:
    found = set()
    for threads in (1, 2, 3):
        executor = LocalExecutor(threads)
        solution = solved(executor)
        executor.close()
        found.add((solution.alpha.tobytes(), solution.gradient.tobytes()))
    assert len(found) == 1


def test_a_warm_start_is_corrected(executor: LocalExecutor, rng: np.random.Generator) -> None:
    solution = solved(executor, initial=rng.standard_normal((300, 2)))
    assert solution.progress.iteration == 1
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-8)


def test_further_rounds_refine(executor: LocalExecutor) -> None:
    """With little noise the first solution leaves a gradient above what a second solve can reach."""
    problem = smooth_problem(300, 2, noise_variance=1e-9)
    first = solved(executor, problem, stopping=MaxIterations(1))
    reached = first.progress.gradient_inf_norm
    with pytest.raises(NumericalError, match=r"float64 does not come closer: max\|g\| = .* Raise the tolerance"):
        solved(executor, problem, tolerance=1e-30)
    assert reached < 1e-5


def test_interrupted_before_and_after_its_round(executor: LocalExecutor, tmp_path: Path) -> None:
    whole = solved(executor, tolerance=1e-9)
    for rounds in (0, 1):
        store = CheckpointStore(tmp_path / f"checkpoints-{rounds}")
        done: list[int] = []
        with pytest.raises(InterruptedRunError):
            solved(
                executor,
                tolerance=1e-30,
                callback=lambda progress, done=done: done.append(progress.iteration),
                interrupted=lambda done=done, rounds=rounds: len(done) >= rounds,
                checkpointing=Checkpointing(store, 1e9),
            )
        resumed = solved(executor, checkpointing=Checkpointing(store, 1e9, resume=True))
        assert resumed.alpha.tobytes() == whole.alpha.tobytes()
        assert resumed.gradient.tobytes() == whole.gradient.tobytes()
        assert len(resumed.history) == 1


@pytest.mark.parametrize("n", [1, 7, 513])
def test_one_sample_and_equal_samples(executor: LocalExecutor, n: int) -> None:
    problem = Problem(
        SquaredExponential((1.0, 2.0), variance=2.5), 0.1, np.ones((n, 2)), np.linspace(-1, 2, n)[:, None]
    )
    solution = solved(executor, problem)
    np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-8)


def test_a_matrix_that_is_not_positive_definite(executor: LocalExecutor) -> None:
    problem = Problem(SquaredExponential((1.0, 2.0)), 1e-18, np.ones((9, 2)), np.linspace(-1.0, 1.0, 9)[:, None])
    with pytest.raises(NumericalError, match=r"breaks down at sample \d of 9\. Raise the noise variance"):
        solved(executor, problem)


def test_a_budget_that_does_not_suffice_is_refused_with_numbers(executor: LocalExecutor) -> None:
    needed = cholesky_bytes(300, 3, 2)
    assert needed > 8 * 300 * 300  # one strip: the whole matrix
    Cholesky(budget_bytes=needed).resolved(300, 3, 2)
    with pytest.raises(MemoryBudgetError) as caught:
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=Cholesky(budget_bytes=needed - 1))
    for part in (f"{needed:,}", f"{needed - 1:,}", "'tiled-cholesky'", "'gbcd'"):
        assert part in str(caught.value)
    assert Cholesky().resolved(32_000, 8)
    with pytest.raises(MemoryBudgetError):
        Cholesky().resolved(33_000, 8)


def test_half_of_the_matrix_is_enough() -> None:
    assert cholesky_bytes(20_000, 8) < 0.53 * 8 * 20_000**2


def test_settings() -> None:
    assert Cholesky().settings() == {"solver": "cholesky", "precision": "double"}
    with pytest.raises(InputError, match="budget must be positive; got 0"):
        Cholesky(budget_bytes=0)
