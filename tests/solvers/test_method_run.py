"""The run of a linear method: the loop, verification, records and the base of solvers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import blas_libraries
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import ClusterError, InputError, InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators import DenseKernelOperator
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers import (
    Checkpointing,
    ConjugateGradient,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    MaxIterations,
    MaxPasses,
    MaxSeconds,
    ObjectiveGap,
    Progress,
    RelativeResidual,
    Solution,
    StoppingRule,
    method_run,
    solve,
)
from dkgp.solvers.base import Method, SolverState, as_columns
from dkgp.solvers.driver import Watch
from dkgp.solvers.method_run import PrecisionPolicy, Record, run
from dkgp.solvers.stopping import Standstill
from tests.resuming import Resuming
from tests.solvers.problems import OverlappingExecutor, Problem, rounds, smooth_problem
from tests.solvers.test_stopping import PROGRESS

PROBLEM = smooth_problem(60, 2, noise_variance=0.5)
FLAT = 2.0 / float(np.linalg.eigvalsh(PROBLEM.matrix)[[0, -1]].sum())


@dataclass(frozen=True)
class Descent(Method[SolverState]):
    """Steps of one length down the gradient, by a recursion; by float32 it lies about where that leads."""

    precision: Any = "double"
    renewing: bool = False
    lies: float = 0.0
    hopes_at: int = 0
    left: list[float] = field(default_factory=list)
    ended: list[SolverState] = field(default_factory=list)
    moves: list[tuple[Progress, bool]] = field(default_factory=list)

    name = "descent"
    state_type: ClassVar[type[SolverState]] = SolverState

    def advance(self, operator: KernelOperator, state: SolverState) -> dict[str, float]:
        self.left.append(state.needed_fall)
        step = -FLAT * state.gradient
        state.alpha = state.alpha + step
        state.gradient = state.gradient + operator.matmat(step)
        if self.lies and state.precision == "single":
            # Solved, to all appearances, and much farther than where it began.
            state.alpha, state.gradient = self.lies * np.sign(state.rhs), np.full_like(state.gradient, 1e-12)
        if self.hopes_at == len(self.left):  # on its way, and believes to be there
            state.gradient = np.full_like(state.gradient, 1e-12)
        state.note_step(np.zeros(1))
        state.iteration += 1
        state.columns += operator.n
        return {"half": 0.25, "whole": 0.5}

    def renews_in_rounds(self, operator: KernelOperator) -> bool:
        return self.renewing

    def renew(
        self, operator: KernelOperator, state: SolverState, moving: Callable[[Progress], bool] | None
    ) -> dict[str, float]:
        state.renew_gradient(operator)
        if moving is not None:
            stands = state.measured(operator)
            self.moves.append((stands, moving(stands)))
        return {}

    def finish(self, state: SolverState) -> None:
        self.ended.append(state)


def solved(
    method: Method[Any],
    rule: StoppingRule,
    problem: Problem = PROBLEM,
    initial: np.ndarray | None = None,
    **watch: Any,
) -> tuple[Solution, SolverState]:
    return run(problem.dense(), problem.y, method, rule, initial=initial, watch=Watch(**watch))


def test_a_round_knows_how_much_is_left() -> None:
    method, rule = Descent(), GradientInfNorm(1e-6) | MaxIterations(4)
    solution, _ = solved(method, rule)
    largest = [np.abs(PROBLEM.y).max(), *(progress.gradient_inf_norm for progress in solution.history)]
    np.testing.assert_allclose(method.left, [value / 1e-6 for value in largest[:-1]], rtol=1e-12)


@pytest.mark.parametrize("renewing", [True, False])
def test_only_a_method_that_renews_on_its_way_is_foreseen_the_end_of(
    monkeypatch: pytest.MonkeyPatch, renewing: bool
) -> None:
    asked: list[list[float]] = []

    def is_due(self: PrecisionPolicy, state: SolverState, progress: Progress, falls: Any) -> bool:
        asked.append(list(falls))
        return False

    monkeypatch.setattr(PrecisionPolicy, "is_due", is_due)
    rule = GradientInfNorm(1e-6)
    solution, _ = solved(Descent(renewing=renewing), rule | MaxIterations(7))
    expected = [[rule.needed_fall(progress) for progress in solution.history[:done]][-4:] for done in range(7)]
    assert asked == (expected if renewing else [[]] * 7)


@dataclass(frozen=True)
class Idle(Descent):
    """Steps down the gradient for so many rounds, and then goes on without coming closer."""

    works: int = 0
    counts_passes: bool = True
    wanders: float = 0.0
    stuck_at: int = 0

    def advance(self, operator: KernelOperator, state: SolverState) -> dict[str, float]:
        if state.iteration < self.works:
            return super().advance(operator, state)
        swing = 1.0 + self.wanders * (-1.0) ** state.iteration
        state.gradient = state.gradient * swing
        state.iteration += 1
        state.stuck = state.iteration == self.stuck_at
        state.columns += operator.n if self.counts_passes else 0
        return {}


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({}, 200),
        ({"counts_passes": False}, 50),
        ({"works": 7}, 7 + 200),
        ({"stuck_at": 3}, 3),
        ({"precision": "mixed"}, 400),  # float32 first, and then float64
        ({"renewing": True}, 200),
    ],
    ids=["idle", "idle, no passes", "works first", "says so", "in float32", "renewing"],
)
def test_a_method_that_comes_no_closer_ends(settings: dict[str, Any], rounds: int) -> None:
    """No rule limits the rounds."""
    solution, state = solved(Idle(**settings), GradientInfNorm(1e-12))
    assert (solution.reason.rule, solution.converged) == ("standstill", False)
    assert "max|g| stays at" in solution.reason.message
    assert "another solver" in solution.reason.advice
    assert rounds <= len(solution.history) <= rounds + 5
    assert state.precision == "double"


def test_a_solve_that_gains_a_little_goes_on() -> None:
    """One part in a hundred over as many passes as before them is enough; a rise and fall is not."""
    slow = [Progress(done, float(done), 0, 0.0, 0.99 ** (done / 100), 1.0, 1.0, 0.0, 1.0) for done in range(3000)]
    standstill = Standstill(GradientInfNorm(1e-12))
    assert all(standstill.check(progress) is None for progress in slow)
    still = [Progress(done, float(done), 0, 0.0, 2.0 + (done % 7), 1.0, 1.0, 0.0, 1.0) for done in range(3000, 9001)]
    reasons = [standstill.check(progress) for progress in still]
    first = next(number for number, reason in enumerate(reasons) if reason is not None)
    assert 2800 <= first <= 3000  # as many passes as there were until the last gain
    descending = [Progress(done, float(done), 0, 0.0, 1.0, 1.0, 1.0, -1.0 - 1e-6 * done, 1.0) for done in range(3000)]
    standstill = Standstill(GradientInfNorm(1e-12))
    assert all(standstill.check(progress) is None for progress in descending)


@pytest.mark.parametrize(
    ("power", "limit", "ends"),
    [(0.1, None, 10_000), (1.5, None, None), (0.1, MaxPasses(1e9), None)],
    ids=["too slow to end", "halves and halves", "limited by the user"],
)
def test_passes_are_limited_unless_the_rest_halves_as_they_double(
    power: float, limit: StoppingRule | None, ends: int | None
) -> None:
    rule: StoppingRule = GradientInfNorm(1e-12)
    standstill = Standstill(rule if limit is None else rule | limit)
    for passes in range(1, 50_000, 50):
        norm = passes**-power
        reason = standstill.check(Progress(passes, float(passes), 0, 0.0, norm, norm, 1.0, -1.0, 1.0))
        if reason is not None:
            break
    assert (passes, reason is not None) == ((50_000 - 49, False) if ends is None else (ends + 1, True))
    if reason is not None:
        assert "10,001 column passes, and the second half came little closer" in reason.message
        assert "`max_passes`" in reason.advice


def test_a_standstill_is_carried_through_checkpoints(tmp_path: Path) -> None:
    kept = Resuming(lambda **watch: solved(Idle(works=7), GradientInfNorm(1e-12), **watch)[0], tmp_path)
    kept.interrupt(150)
    kept.require_same()


def test_between_two_rounds_a_wish_to_end_is_heeded() -> None:
    method, heard = Descent(), []
    with pytest.raises(InterruptedRunError, match="interrupted after 3 rounds; nothing was saved"):
        solved(method, MaxIterations(9), callback=heard.append, interrupted=lambda: len(heard) == 3)
    assert len(method.left) == 3


def test_before_a_gradient_is_computed_anew_a_wish_to_end_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrecisionPolicy, "is_due", lambda self, state, progress, falls: state.iteration == 2)
    method, heard = Descent(renewing=True), []
    with pytest.raises(InterruptedRunError, match="interrupted after 2 rounds; nothing was saved"):
        solved(method, MaxIterations(9), callback=heard.append, interrupted=lambda: len(heard) == 2)
    assert (len(method.left), method.moves) == (2, [])


def test_operators_hear_how_long_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, float]] = []
    monkeypatch.setattr(
        DenseKernelOperator, "foresee", lambda self, done, left: heard.append((done, left)), raising=True
    )
    rule = GradientInfNorm(1e-6)
    solution, _ = solved(Descent(), rule)
    assert [done for done, _ in heard] == list(range(len(solution.history)))
    # Its gradient falls by about the same factor in every round: towards the end that is foreseen.
    assert heard[-1][1] == pytest.approx(1.0, abs=1.5)
    assert heard[len(heard) // 2][1] > 2.0


def saved_iterations(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    saved: list[int] = []
    save = store.save

    def watched(iteration: int, *contents: Any) -> None:
        saved.append(iteration)
        save(iteration, *contents)

    monkeypatch.setattr(store, "save", watched)
    return saved


def test_checkpoints_follow_rounds_and_a_solve_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    saved = saved_iterations(store, monkeypatch)
    solved(Descent(), MaxIterations(3), checkpointing=Checkpointing(store, 0.0, {}, False))
    # After each round, and once more where it stops short of the solution.
    assert saved == [1, 2, 3, 3]
    saved.clear()
    solution, _ = solved(Descent(), GradientInfNorm(1e-6), checkpointing=Checkpointing(store, 1e9, {}, False))
    assert solution.converged
    assert saved == []


def test_a_solve_that_meets_its_rounding_saves_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    saved = saved_iterations(store, monkeypatch)
    monkeypatch.setattr("dkgp.solvers.stopping.STANDSTILL_PASSES", 1e9)  # it comes no closer for long before
    problem = smooth_problem(40, 2, gamma=1.0, noise_variance=1e-6, seed=3)
    solution, _ = solved(
        ConjugateGradient(precision="double").resolved(40, 2),
        GradientInfNorm(1e-15) | MaxIterations(4000),  # on some processors 1e-13 is not below rounding
        problem,
        checkpointing=Checkpointing(store, 1e9, {}, False),
    )
    assert solution.reason.rule == "rounding"
    assert saved == [solution.progress.iteration]


def test_a_method_ends_what_it_keeps_where_it_has_converged_and_only_there() -> None:
    method = Descent()
    _, state = solved(method, GradientInfNorm(1e-6))
    assert method.ended == [state]
    method = Descent()
    solved(method, MaxIterations(2))
    assert method.ended == []


def test_a_gradient_that_is_exact_is_not_computed_again() -> None:
    solution, _ = solved(Descent(), GradientInfNorm(1e-6), initial=PROBLEM.solution)
    assert (solution.converged, solution.refreshes, solution.history) == (True, 0, [])


@pytest.mark.parametrize("lies", [100.0, -100.0], ids=["seen by the true gradient", "seen by the recursion's own"])
def test_lies_of_float32_begin_the_solve_again_in_float64(lies: float) -> None:
    # alpha'(g - y) / 2 is the objective by the recursion: far below that of zero, or above it.
    assert PROBLEM.objective(lies * np.sign(PROBLEM.y)) > 0.0
    method = Descent(precision="mixed", lies=lies)
    solution, state = solved(method, GradientInfNorm(1e-6))
    assert solution.converged
    assert solution.refreshes == (2 if lies > 0.0 else 1)
    assert state.precision == "double"
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-5)
    # The round that lied counts.
    assert solution.progress.iteration == len(method.left)
    assert method.left[1] == method.left[0]


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_a_recursion_that_hopes_too_soon_goes_on(precision: Any) -> None:
    """The true gradient alone stops a solve as converged."""
    method = Descent(precision=precision, hopes_at=3)
    solution, _ = solved(method, GradientInfNorm(1e-6))
    assert solution.converged
    assert solution.refreshes == 2
    assert len(method.left) > 3
    assert np.abs(PROBLEM.gradient(solution.alpha)).max() <= 1e-6 * (1.0 + 1e-6)
    # Spent and believed solved, together, is spent: what the true gradient says then is in the record.
    solution, _ = solved(Descent(precision=precision, hopes_at=3), GradientInfNorm(1e-6) & MaxIterations(3))
    assert (solution.converged, solution.progress.iteration) == (False, 3)
    assert solution.progress.gradient_inf_norm == pytest.approx(
        np.abs(PROBLEM.gradient(solution.alpha)).max(), rel=1e-9
    )


def test_a_start_above_the_objective_of_zero_is_no_breakdown() -> None:
    initial = -3.0 * PROBLEM.solution
    assert PROBLEM.objective(initial) > 0.0
    method = Descent()
    solution, _ = solved(method, GradientInfNorm(1e-6), initial=initial)
    assert solution.converged
    assert solution.history[0].objective > 0.0
    assert solution.progress.iteration == len(method.left)


def test_a_renewal_steps_only_short_of_the_tolerance() -> None:
    rule = GradientInfNorm(1e-6)
    method = Descent(renewing=True)
    solution, _ = solved(method, rule)
    assert solution.converged
    assert len(method.moves) == solution.refreshes >= 1
    # Foreseen in vain, it may move; verified at the tolerance, it must not.
    assert [moved for stands, moved in method.moves if stands.gradient_inf_norm > 1e-6] == [True] * (
        len(method.moves) - 1
    )
    assert [moved for stands, moved in method.moves if stands.gradient_inf_norm <= 1e-6] == [False]
    # Where it stops short of it, nothing moves after the last round.
    method = Descent(renewing=True)
    solved(method, MaxIterations(2))
    assert method.moves == []


def test_seconds_of_parts_are_those_of_all_rounds() -> None:
    solution, _ = solved(Descent(), MaxIterations(3))
    assert solution.seconds_by_part == {"half": 0.75, "whole": 1.5}


def test_rounds_have_one_blas_thread_and_the_process_has_its_own_back() -> None:
    with threadpool_limits(2, "blas"):
        before = [library.num_threads for library in blas_libraries()]
        _, state = solved(Descent(), MaxIterations(1))
        assert state.iteration == 1
        assert [library.num_threads for library in blas_libraries()] == before


def test_a_coordinator_with_several_blas_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_run, "single_threaded_blas", nullcontext)
    with threadpool_limits(2, "blas"), pytest.raises(ClusterError, match="the coordinator"):
        solved(Descent(), MaxIterations(1))


PROBLEM_DRIVER = smooth_problem(300, 3, targets=2, noise_variance=0.3)
SOLVER = GreedyBlockCoordinateDescent(block_size=40)


def test_warm_start_is_not_written_to(executor) -> None:
    initial = 0.9 * PROBLEM_DRIVER.solution
    before, y = initial.copy(), PROBLEM_DRIVER.y.copy()
    solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, initial=initial)
    np.testing.assert_array_equal(initial, before)
    np.testing.assert_array_equal(PROBLEM_DRIVER.y, y)


def test_one_target_may_be_a_vector(executor) -> None:
    y = PROBLEM_DRIVER.y[:, 0]
    flat = solve(PROBLEM_DRIVER.blocked(executor), y, solver=SOLVER, initial=np.zeros(300))
    column = solve(PROBLEM_DRIVER.blocked(executor), y[:, None], solver=SOLVER, initial=np.zeros((300, 1)))
    assert flat.alpha.shape == (300, 1)
    np.testing.assert_array_equal(flat.alpha, column.alpha)


def test_callback_hears_of_every_round(executor) -> None:
    heard: list[Progress] = []
    solution = solve(
        PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, watch=Watch(callback=heard.append)
    )
    assert heard == solution.history
    assert [progress.iteration for progress in heard] == list(range(1, len(heard) + 1))
    assert len(heard) > 3
    for name in ("column_passes", "kernel_evaluations", "seconds"):
        assert np.all(np.diff([getattr(progress, name) for progress in heard]) > 0), name
    assert np.all(np.diff([progress.objective for progress in heard]) <= 1e-9 * abs(heard[-1].objective))
    assert set(heard[0].timings) == {"select", "vectors", "wait"}


def test_progress_is_what_it_says(executor) -> None:
    solution = solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, stopping=MaxIterations(4))
    progress, gradient = solution.progress, PROBLEM_DRIVER.gradient(solution.alpha)
    np.testing.assert_allclose(solution.gradient, gradient, rtol=0, atol=1e-10)
    assert progress.column_passes == pytest.approx(4 * 40 / 300)
    assert progress.gradient_inf_norm == pytest.approx(np.abs(gradient).max(), rel=1e-9)
    assert progress.gradient_norm == pytest.approx(np.linalg.norm(gradient, axis=0).max(), rel=1e-9)
    residuals = np.linalg.norm(gradient, axis=0) / np.linalg.norm(PROBLEM_DRIVER.y, axis=0)
    assert progress.relative_residual == pytest.approx(residuals.max(), rel=1e-9)
    assert progress.objective == pytest.approx(PROBLEM_DRIVER.objective(solution.alpha), rel=1e-9)
    gap = PROBLEM_DRIVER.objective(solution.alpha) - PROBLEM_DRIVER.objective(PROBLEM_DRIVER.solution)
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
    solution = solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, stopping=stopping)
    assert solution.converged
    assert measure(PROBLEM_DRIVER.gradient(solution.alpha), PROBLEM_DRIVER, solution.alpha)


def test_effort_spent_is_not_convergence_and_comes_with_advice(executor) -> None:
    stopping = GradientInfNorm(1e-9) | MaxPasses(0.5)
    solution = solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, stopping=stopping)
    assert not solution.converged
    assert solution.reason.rule == "max_passes"
    assert "larger `max_passes`" in solution.reason.advice
    assert 0.5 <= solution.progress.column_passes < 0.5 + 40 / 300
    assert solution.progress.gradient_inf_norm == pytest.approx(np.abs(PROBLEM_DRIVER.gradient(solution.alpha)).max())


def test_time_spent_stops_after_the_round(executor) -> None:
    stopping = GradientInfNorm(1e-9) | MaxSeconds(1e-6)
    solution = solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, stopping=stopping)
    assert (solution.reason.rule, solution.converged) == ("max_seconds", False)
    assert solution.history == []
    assert "`max_seconds`" in solution.reason.advice


def test_effort_that_suffices_by_the_true_gradient_is_convergence(executor) -> None:
    # Both rules are met in the same round: solved is solved.
    exact = solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER)
    stopping = MaxIterations(exact.progress.iteration) | GradientInfNorm()
    assert solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, stopping=stopping).converged


def test_settings_are_reported_with_choices_made(executor) -> None:
    solution = solve(
        PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=GreedyBlockCoordinateDescent(seed=4, memory=2)
    )
    assert isinstance(solution.solver["block_size"], int)
    assert (solution.solver["seed"], solution.solver["memory"]) == (4, 2)
    assert solution.solver["selection"] == "GreedySelection"
    assert solution.solver["candidates"] == 60


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(executor, bad: float) -> None:
    y = PROBLEM_DRIVER.y.copy()
    y[17, 1] = bad
    with pytest.raises(InputError, match="the right-hand side must be finite; row 17 is not"):
        solve(PROBLEM_DRIVER.blocked(executor), y, solver=SOLVER)
    with pytest.raises(InputError, match="the warm start must be finite; row 17 is not"):
        solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, initial=y)


@pytest.mark.parametrize("shape", [(299,), (301, 1), (300, 0), (300, 1, 1), (1, 300)])
def test_other_shapes_are_refused(executor, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"must have shape \(300,\) or \(300, p\); got"):
        solve(PROBLEM_DRIVER.blocked(executor), np.zeros(shape), solver=SOLVER)


def test_warm_start_of_other_targets_is_refused(executor) -> None:
    with pytest.raises(InputError, match=r"the warm start has shape \(300, 1\); expected \(300, 2\)"):
        solve(PROBLEM_DRIVER.blocked(executor), PROBLEM_DRIVER.y, solver=SOLVER, initial=np.zeros(300))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1e38, 1e200])
def test_targets_beyond_float32_are_never_called_solved_wrongly(executor, size: float) -> None:
    y = size * PROBLEM_DRIVER.y
    stopping = RelativeResidual(1e-3) | MaxIterations(60)
    try:
        solution = solve(PROBLEM_DRIVER.blocked(executor), y, solver=SOLVER, stopping=stopping)
    except (ArithmeticError, InputError):
        return
    gradient = PROBLEM_DRIVER.matrix @ (solution.alpha / size) - PROBLEM_DRIVER.y
    assert not solution.converged or np.linalg.norm(gradient) <= 1e-2 * np.linalg.norm(PROBLEM_DRIVER.y)


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

    @pytest.mark.long
    def test_double_precision_is_verified_too(self, executor) -> None:
        solver = replace(SOLVER, precision="double")
        stopping = GradientInfNorm(self.TOLERANCE)
        solution = solve(self.PROBLEM.blocked(executor), self.PROBLEM.y, solver=solver, stopping=stopping)
        assert solution.refreshes == 1
        assert np.abs(self.PROBLEM.gradient(solution.alpha)).max() <= 1.01 * self.TOLERANCE

    def test_a_recursion_below_what_float64_can_do_is_not_believed(self, executor) -> None:
        """The recursion falls on and on, the gradient does not: the solve says so, and ends.

        The rule depends on the BLAS: its roundings decide how far apart the two come.
        """
        problem = smooth_problem(40, 2, gamma=1.0, noise_variance=1e-6, seed=3)
        stopping = GradientInfNorm(1e-13) | MaxPasses(1500)
        solver = ConjugateGradient(precision="double")
        solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping)
        assert not solution.converged
        assert solution.reason.rule in ("rounding", "standstill")
        assert "gained nothing" in solution.reason.message
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
@pytest.mark.spread(2)
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
        PROBLEM_DRIVER.blocked(executor),
        PROBLEM_DRIVER.y,
        solver=SOLVER,
        stopping=MaxIterations(5),
        watch=Watch(callback=seen.append),
    )
    s2, y, alpha = PROBLEM_DRIVER.noise_variance, PROBLEM_DRIVER.y, solution.alpha
    K = PROBLEM_DRIVER.matrix - s2 * np.eye(300)
    risk = np.sum(-y * (K @ alpha)) + 0.5 * np.sum(alpha * (s2 * K @ alpha + K @ (K @ alpha)))
    other = np.sum(-y * alpha) + 0.5 * np.sum(alpha * (PROBLEM_DRIVER.matrix @ alpha))
    above, below = risk, -s2 * other - 0.5 * np.sum(y * y)
    exact = np.linalg.solve(PROBLEM_DRIVER.matrix, y)
    least = np.sum(-y * (K @ exact)) + 0.5 * np.sum(exact * (s2 * K @ exact + K @ (K @ exact)))
    assert below < least < above
    expected = 2.0 * (above - below) / (abs(above) + abs(below))
    assert solution.progress.duality_gap == pytest.approx(expected, rel=1e-6)
    assert seen[0].duality_gap > seen[-1].duality_gap


PROBLEM_RECORD = smooth_problem(300, 3)
RULE = GradientInfNorm(1e-4)


def recorded(norms: list[float]) -> Record:
    record = Record(PROBLEM_RECORD.dense())
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
    operator, seen = Told(PROBLEM_RECORD.kernel, PROBLEM_RECORD.noise_variance, PROBLEM_RECORD.X), list[Progress]()
    solution = solve(
        operator, PROBLEM_RECORD.y, solver=ConjugateGradient(), stopping=RULE, watch=Watch(callback=seen.append)
    )
    assert solution.converged
    assert len(operator.notes) == operator.products > 6
    assert [left for _, left in operator.notes[:3]] == [0.0, 0.0, 0.0]
    for done, left in operator.notes[3:]:
        expected = recorded([each.gradient_inf_norm for each in seen[:done]]).rounds_left(RULE)
        assert left == expected
    assert np.median([left for _, left in operator.notes[3:]]) > 1.0


PROBLEM_BASE = smooth_problem(200, 3, targets=2, noise_variance=0.5, gamma=2.0)


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


def solved_base(executor: LocalExecutor, stopping: StoppingRule = STOPPING, **watch: Any) -> Solution:
    solver = SteepestDescent()
    return solve(PROBLEM_BASE.blocked(executor), PROBLEM_BASE.y, solver=solver, stopping=stopping, watch=Watch(**watch))


def test_it_ends_in_a_true_gradient(executor: LocalExecutor) -> None:
    solution = solved_base(executor)
    assert solution.converged
    assert solution.refreshes >= 1
    np.testing.assert_allclose(solution.gradient, PROBLEM_BASE.gradient(solution.alpha), rtol=0, atol=1e-10)
    assert np.abs(solution.gradient).max() <= 1e-4
    assert solution.solver == {"solver": "steepest", "precision": "mixed"}


def test_it_is_resumed_to_the_same_bits(executor: LocalExecutor, tmp_path: Path) -> None:
    kept = Resuming(partial(solved_base, executor), tmp_path, data="a")
    kept.start(stopping=MaxIterations(7))
    kept.require_same()
    kept.require_refused("its identity is", identity={"data": "b"})


def test_a_known_gradient_saves_its_first_pass(executor: LocalExecutor) -> None:
    near = 1.01 * PROBLEM_BASE.solution
    operator = PROBLEM_BASE.blocked(executor)
    counts = []
    for known in (None, PROBLEM_BASE.gradient(near)):
        before = operator.kernel_evaluations
        solution = solve(
            operator,
            PROBLEM_BASE.y,
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
