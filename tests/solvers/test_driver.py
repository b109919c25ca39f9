"""The loop around every method: stopping, verification in float64, history, callbacks, what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.solvers import (
    ConjugateGradient,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    MaxIterations,
    MaxPasses,
    MaxSeconds,
    ObjectiveGap,
    Progress,
    RelativeResidual,
    solve,
)
from dkgp.solvers.driver import Watch
from tests.solvers.problems import OverlappingExecutor, Problem, rounds, smooth_problem

PROBLEM = smooth_problem(300, 3, targets=2, noise_variance=0.3)
SOLVER = GreedyBlockCoordinateDescent(block_size=40)


def test_warm_start_is_not_written_to(executor) -> None:
    initial = 0.9 * PROBLEM.solution
    before, y = initial.copy(), PROBLEM.y.copy()
    solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, initial=initial)
    np.testing.assert_array_equal(initial, before)
    np.testing.assert_array_equal(PROBLEM.y, y)


def test_one_target_may_be_a_vector(executor) -> None:
    y = PROBLEM.y[:, 0]
    flat = solve(PROBLEM.blocked(executor), y, solver=SOLVER, initial=np.zeros(300))
    column = solve(PROBLEM.blocked(executor), y[:, None], solver=SOLVER, initial=np.zeros((300, 1)))
    assert flat.alpha.shape == (300, 1)
    np.testing.assert_array_equal(flat.alpha, column.alpha)


def test_callback_hears_of_every_round(executor) -> None:
    heard: list[Progress] = []
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, watch=Watch(callback=heard.append))
    assert heard == solution.history
    assert [progress.iteration for progress in heard] == list(range(1, len(heard) + 1))
    assert len(heard) > 3
    for name in ("column_passes", "kernel_evaluations", "seconds"):
        assert np.all(np.diff([getattr(progress, name) for progress in heard]) > 0), name
    assert np.all(np.diff([progress.objective for progress in heard]) <= 1e-9 * abs(heard[-1].objective))
    assert set(heard[0].timings) == {"select", "vectors", "wait"}


def test_progress_is_what_it_says(executor) -> None:
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=MaxIterations(4))
    progress, gradient = solution.progress, PROBLEM.gradient(solution.alpha)
    np.testing.assert_allclose(solution.gradient, gradient, rtol=0, atol=1e-10)
    assert progress.column_passes == pytest.approx(4 * 40 / 300)
    assert progress.gradient_inf_norm == pytest.approx(np.abs(gradient).max(), rel=1e-9)
    assert progress.gradient_norm == pytest.approx(np.linalg.norm(gradient, axis=0).max(), rel=1e-9)
    residuals = np.linalg.norm(gradient, axis=0) / np.linalg.norm(PROBLEM.y, axis=0)
    assert progress.relative_residual == pytest.approx(residuals.max(), rel=1e-9)
    assert progress.objective == pytest.approx(PROBLEM.objective(solution.alpha), rel=1e-9)
    gap = PROBLEM.objective(solution.alpha) - PROBLEM.objective(PROBLEM.solution)
    assert 0.0 < gap <= progress.objective_gap_bound
    # Four blocks for all rows, at least, and the pass that verified the gradient.
    assert progress.kernel_evaluations >= 4 * 40 * 300 + 300 * 301 // 2


@pytest.mark.parametrize(
    ("stopping", "measure"),
    [
        (GradientInfNorm(1e-3), lambda g, problem, alpha: np.abs(g).max() <= 1e-3 * 1.0001),
        (
            RelativeResidual(1e-3),
            lambda g, problem, alpha: np.all(np.linalg.norm(g, axis=0) <= 1e-3 * np.linalg.norm(problem.y, axis=0)),
        ),
        (
            ObjectiveGap(1e-5),
            lambda g, problem, alpha: problem.objective(alpha) <= (1 - 1e-5) * problem.objective(problem.solution),
        ),
    ],
    ids=["gradient", "residual", "objective"],
)
def test_converged_means_that_the_dense_gradient_agrees(executor, stopping, measure) -> None:
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=stopping)
    assert solution.converged
    assert measure(PROBLEM.gradient(solution.alpha), PROBLEM, solution.alpha)


def test_effort_spent_is_not_convergence_and_comes_with_advice(executor) -> None:
    stopping = GradientInfNorm(1e-9) | MaxPasses(0.5)
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=stopping)
    assert not solution.converged
    assert solution.reason.rule == "max_passes"
    assert "larger `max_passes`" in solution.reason.advice
    assert 0.5 <= solution.progress.column_passes < 0.5 + 40 / 300
    assert solution.progress.gradient_inf_norm == pytest.approx(np.abs(PROBLEM.gradient(solution.alpha)).max())


def test_time_spent_stops_after_the_round(executor) -> None:
    stopping = GradientInfNorm(1e-9) | MaxSeconds(1e-6)
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=stopping)
    assert (solution.reason.rule, solution.converged) == ("max_seconds", False)
    assert solution.history == []
    assert "`max_seconds`" in solution.reason.advice


def test_effort_that_suffices_by_the_true_gradient_is_convergence(executor) -> None:
    # Both rules are met in the same round: solved is solved.
    exact = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER)
    stopping = MaxIterations(exact.progress.iteration) | GradientInfNorm()
    assert solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=stopping).converged


def test_settings_are_reported_with_choices_made(executor) -> None:
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=GreedyBlockCoordinateDescent(seed=4, memory=2))
    assert isinstance(solution.solver["block_size"], int)
    assert (solution.solver["seed"], solution.solver["memory"]) == (4, 2)
    assert solution.solver["selection"] == "GreedySelection"
    assert solution.solver["candidates"] == 60


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(executor, bad: float) -> None:
    y = PROBLEM.y.copy()
    y[17, 1] = bad
    with pytest.raises(InputError, match="the right-hand side must be finite; row 17 is not"):
        solve(PROBLEM.blocked(executor), y, solver=SOLVER)
    with pytest.raises(InputError, match="the warm start must be finite; row 17 is not"):
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, initial=y)


@pytest.mark.parametrize("shape", [(299,), (301, 1), (300, 0), (300, 1, 1), (1, 300)])
def test_other_shapes_are_refused(executor, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"must have shape \(300,\) or \(300, p\); got"):
        solve(PROBLEM.blocked(executor), np.zeros(shape), solver=SOLVER)


def test_warm_start_of_other_targets_is_refused(executor) -> None:
    with pytest.raises(InputError, match=r"the warm start has shape \(300, 1\); expected \(300, 2\)"):
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, initial=np.zeros(300))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1e38, 1e200])
def test_targets_beyond_float32_are_never_called_solved_wrongly(executor, size: float) -> None:
    y = size * PROBLEM.y
    stopping = RelativeResidual(1e-3) | MaxIterations(60)
    try:
        solution = solve(PROBLEM.blocked(executor), y, solver=SOLVER, stopping=stopping)
    except (ArithmeticError, InputError):
        return
    gradient = PROBLEM.matrix @ (solution.alpha / size) - PROBLEM.y
    assert not solution.converged or np.linalg.norm(gradient) <= 1e-2 * np.linalg.norm(PROBLEM.y)


class TestDrift:
    """Many large float32 steps: the recursion's gradient and the true one part."""

    PROBLEM = smooth_problem(300, 2, noise_variance=1e-3, gamma=0.5)
    PROBLEM = replace(PROBLEM, y=PROBLEM.y + 0.5 * np.random.default_rng(8).standard_normal((300, 1)))
    TOLERANCE = 2e-5

    def test_bare_recursion_declares_convergence_wrongly(self, executor) -> None:
        for state in rounds(SOLVER, self.PROBLEM.blocked(executor), self.PROBLEM.y, 1500):
            recursion = np.abs(state.gradient).max()
            if recursion <= self.TOLERANCE:
                break
        true = np.abs(self.PROBLEM.gradient(state.alpha)).max()
        assert np.abs(state.alpha).max() > 100.0
        assert recursion <= self.TOLERANCE
        assert true > 2 * self.TOLERANCE

    @pytest.mark.parametrize("targets", [1, 2])
    def test_solve_meets_the_tolerance_truly(self, executor, targets: int) -> None:
        problem = replace(self.PROBLEM, y=np.repeat(self.PROBLEM.y, targets, axis=1) * np.arange(targets, 0, -1))
        solution = solve(problem.blocked(executor), problem.y, solver=SOLVER, stopping=GradientInfNorm(self.TOLERANCE))
        true = problem.gradient(solution.alpha)
        assert solution.converged
        assert solution.refreshes >= 1
        assert np.abs(true).max() <= 1.01 * self.TOLERANCE
        np.testing.assert_allclose(solution.gradient, true, rtol=0, atol=1e-3 * self.TOLERANCE)
        # Not at the price of a refresh every round.
        assert solution.refreshes < 0.1 * len(solution.history)

    def test_double_precision_is_verified_too(self, executor) -> None:
        solver = replace(SOLVER, precision="double")
        stopping = GradientInfNorm(self.TOLERANCE)
        solution = solve(self.PROBLEM.blocked(executor), self.PROBLEM.y, solver=solver, stopping=stopping)
        assert solution.refreshes == 1
        assert np.abs(self.PROBLEM.gradient(solution.alpha)).max() <= 1.01 * self.TOLERANCE

    def test_a_recursion_below_what_float64_can_do_is_not_believed(self, executor) -> None:
        """The recursion falls on and on, the gradient does not: the solve says so, and ends."""
        problem = smooth_problem(40, 2, gamma=1.0, noise_variance=1e-6, seed=3)
        stopping = GradientInfNorm(1e-13) | MaxPasses(1500)
        solver = ConjugateGradient(precision="double")
        solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping)
        assert not solution.converged
        assert solution.reason.rule == "rounding"
        assert "float64 does not come closer" in solution.reason.message
        true = np.abs(problem.gradient(solution.alpha)).max()
        assert np.abs(solution.gradient).max() == pytest.approx(true, rel=0.5)
        assert solution.progress.gradient_inf_norm == np.abs(solution.gradient).max() > 1e-13


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_nearly_equal_samples_with_little_noise_do_not_diverge(executor, precision: str) -> None:
    # Standardised inputs for which the expanded float32 kernel is at its worst, and too rough for this noise.
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((4, 40)), 100, axis=0) + 1e-3 * rng.standard_normal((400, 40))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.sin(2.0 * X[:, :1]) + 0.1 * rng.standard_normal((400, 1))
    problem = Problem(SquaredExponential(gamma=(1.0,) * 40), 3e-5, X, y)
    solver = GreedyBlockCoordinateDescent(block_size=80, precision=precision)
    solution = solve(problem.blocked(executor), y, solver=solver, stopping=GradientInfNorm(1e-2) | MaxPasses(30))
    assert problem.objective(solution.alpha) < 0.99 * problem.objective(problem.solution) < 0.0
    assert solution.converged


# Nothing, what a few of a block's selection steps take, and everything.
@pytest.mark.parametrize(
    ("affordable", "precision", "targets", "in_core"),
    [  # every pair of settings meets
        (0, "mixed", 1, True),
        (0, "double", 2, False),
        (100_000, "mixed", 2, True),
        (100_000, "double", 1, False),
        (sys.maxsize, "mixed", 2, False),
        (sys.maxsize, "double", 1, True),
    ],
)
def test_selection_during_a_round_changes_no_bit(
    executor,
    overlapping: OverlappingExecutor,
    monkeypatch: pytest.MonkeyPatch,
    affordable: int,
    precision: str,
    targets: int,
    in_core: bool,
) -> None:
    options = {} if in_core else {"coordinator_input_bytes": 1}
    monkeypatch.setattr(overlapping, "overlap_evaluations", affordable)
    # Several row blocks; targets large enough for a float64 refresh on the way.
    problem = smooth_problem(300, 2, targets=targets, noise_variance=0.1)
    y = 100.0 * problem.y
    solver = GreedyBlockCoordinateDescent(block_size=80, precision=precision)
    solutions = []
    for settings, chosen in [({}, executor), (options, overlapping)]:
        operator = problem.blocked(chosen, **settings)
        assert operator.overlaps is (chosen is overlapping)
        solutions.append(solve(operator, y, solver=solver, stopping=GradientInfNorm(1e-3)))
    alone, during = solutions
    np.testing.assert_array_equal(during.alpha, alone.alpha)
    np.testing.assert_array_equal(during.gradient, alone.gradient)
    assert [progress.objective for progress in during.history] == [progress.objective for progress in alone.history]
    assert during.refreshes == alone.refreshes
    assert (alone.refreshes > 1) is (precision == "mixed")
    assert len(alone.history) > 10


def test_the_duality_gap_is_what_dense_algebra_says(executor) -> None:
    """Smola and Bartlett (2001), Theorem 1, from the kernel matrix itself."""
    seen: list[Progress] = []
    solution = solve(
        PROBLEM.blocked(executor),
        PROBLEM.y,
        solver=SOLVER,
        stopping=MaxIterations(5),
        watch=Watch(callback=seen.append),
    )
    s2, y, alpha = PROBLEM.noise_variance, PROBLEM.y, solution.alpha
    K = PROBLEM.matrix - s2 * np.eye(300)
    risk = np.sum(-y * (K @ alpha)) + 0.5 * np.sum(alpha * (s2 * K @ alpha + K @ (K @ alpha)))
    other = np.sum(-y * alpha) + 0.5 * np.sum(alpha * (PROBLEM.matrix @ alpha))
    above, below = risk, -s2 * other - 0.5 * np.sum(y * y)
    exact = np.linalg.solve(PROBLEM.matrix, y)
    least = np.sum(-y * (K @ exact)) + 0.5 * np.sum(exact * (s2 * K @ exact + K @ (K @ exact)))
    assert below < least < above
    expected = 2.0 * (above - below) / (abs(above) + abs(below))
    assert solution.progress.duality_gap == pytest.approx(expected, rel=1e-6)
    assert seen[0].duality_gap > seen[-1].duality_gap
