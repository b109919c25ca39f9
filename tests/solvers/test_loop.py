"""What the loop asks of a method, of a rule and of checkpoints, and when: by a method that writes it all down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dkgp.cluster.threads import blas_libraries
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import ClusterError, InterruptedRunError
from dkgp.operators import DenseKernelOperator
from dkgp.operators.base import KernelOperator
from dkgp.solvers import (
    Checkpointing,
    ConjugateGradient,
    GradientInfNorm,
    MaxIterations,
    MaxPasses,
    Progress,
    StoppingRule,
    method_run,
)
from dkgp.solvers.base import Method, SolverState
from dkgp.solvers.driver import Watch
from dkgp.solvers.method_run import PrecisionPolicy, Solution, run
from dkgp.solvers.stopping import Standstill
from tests.solvers.problems import Problem, smooth_problem

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
        assert "10,001 column passes, of which the latter half came little closer" in reason.message
        assert "`max_passes`" in reason.advice


def test_a_standstill_is_carried_through_checkpoints(tmp_path: Path) -> None:
    store, whole = CheckpointStore(tmp_path / "checkpoints"), solved(Idle(works=7), GradientInfNorm(1e-12))[0]
    heard: list[Progress] = []
    with pytest.raises(InterruptedRunError):
        solved(
            Idle(works=7),
            GradientInfNorm(1e-12),
            callback=heard.append,
            interrupted=lambda: len(heard) == 150,
            checkpointing=Checkpointing(store, 1e9, {}, False),
        )
    resumed, _ = solved(Idle(works=7), GradientInfNorm(1e-12), checkpointing=Checkpointing(store, 1e9, {}, True))
    assert resumed.reason == whole.reason
    assert len(resumed.history) == len(whole.history)


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
    """What stops a solve as converged is the true gradient."""
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
