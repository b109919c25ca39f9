"""Interrupted and resumed, a solve ends in the bits of one that was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, ExitCode, InterruptedRunError
from dkgp.solvers import (
    Checkpointing,
    ConjugateGradient,
    CyclicSelection,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxPasses,
    Progress,
    Solution,
    Solver,
    StoppingRule,
    solve,
)
from dkgp.solvers.block_descent.selection import Subproblem
from dkgp.solvers.driver import Watch
from dkgp.solvers.risk.newton import AutoState
from tests.resuming import NEVER, Resuming, require_same_bits
from tests.solvers.problems import OverlappingExecutor, Problem, smooth_problem

# Large targets: float32 drift calls for a float64 refresh on the way, and another before convergence is declared.
PROBLEM = smooth_problem(300, 2, targets=2, noise_variance=0.1)
PROBLEM = replace(PROBLEM, y=100.0 * PROBLEM.y)
STOPPING = GradientInfNorm(1e-3)
SOLVER = GreedyBlockCoordinateDescent(block_size=40, memory=3)
IDENTITY = {"data": "a1b2", "noise_variance": 0.1}


def runs(folder: Path, executor: Any, problem: Problem = PROBLEM) -> Resuming[Solution]:
    def run(solver: Solver = SOLVER, stopping: StoppingRule = STOPPING, **watch: Any) -> Solution:
        return solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping, watch=Watch(**watch))

    return Resuming(run, folder, **IDENTITY)


@pytest.fixture
def run(tmp_path: Path, executor: LocalExecutor) -> Resuming[Solution]:
    return runs(tmp_path, executor)


def die_after(run: Resuming[Solution], rounds: int, **options: Any) -> None:
    """Break off without notice."""

    def die(progress: Progress) -> None:
        if progress.iteration == rounds:
            raise SystemError("killed")

    with pytest.raises(SystemError, match="killed"):
        run.start(callback=die, **options)


def timeless(progress: Progress) -> Progress:
    return replace(progress, seconds=0.0, timings={})


def refresh_rounds(problem: Problem, executor: Any, **options: Any) -> list[int]:
    """After which rounds of a solve the gradient is computed anew."""
    operator, done, found = problem.blocked(executor), [0], []
    matmat: Callable[..., np.ndarray] = operator.matmat

    def watched(*arguments: Any) -> np.ndarray:
        found.append(done[0])
        return matmat(*arguments)

    operator.matmat = watched  # type: ignore[method-assign]
    options = {"solver": SOLVER, "stopping": STOPPING} | options
    solve(
        operator, problem.y, watch=Watch(callback=lambda progress: done.__setitem__(0, progress.iteration)), **options
    )
    return found


@pytest.fixture(scope="module")
def refreshes(executor) -> list[int]:
    return refresh_rounds(PROBLEM, executor)


@pytest.fixture(scope="module")
def whole(executor) -> Solution:
    return solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=STOPPING)


def test_the_problem_is_refreshed_on_the_way(refreshes: list[int], whole: Solution) -> None:
    assert len(refreshes) == whole.refreshes >= 2
    assert 2 < refreshes[0] < len(whole.history) - 2


@pytest.mark.spread(2)
@pytest.mark.parametrize("rounds", [0, 1, 2, 5, 9])
def test_resumed_from_any_round_it_is_the_same(run: Resuming[Solution], whole: Solution, rounds: int) -> None:
    error = run.interrupt(rounds)
    assert f"interrupted after {rounds} rounds; state saved in" in str(error)
    assert str(error.checkpoint) == run.store.url
    assert error.exit_code == ExitCode.INTERRUPTED
    run.require_same(whole)


@pytest.mark.spread(1)
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_resumed_around_a_refresh_it_is_the_same(
    run: Resuming[Solution], whole: Solution, refreshes: list[int], offset: int
) -> None:
    for refresh in refreshes[:-1]:
        run.interrupt(refresh + offset)
        run.require_same(whole)


def test_interrupted_again_and_again_it_is_the_same(run: Resuming[Solution], whole: Solution) -> None:
    run.interrupt(2)
    for rounds in range(3, len(whole.history)):
        run.interrupt(rounds, again=True)
    run.require_same(whole)


def test_resumed_with_selection_during_the_round_it_is_the_same(
    tmp_path: Path, whole: Solution, overlapping: OverlappingExecutor
) -> None:
    during = runs(tmp_path, overlapping)
    during.interrupt(5)
    resumed = during.resume()
    np.testing.assert_array_equal(resumed.alpha, whole.alpha)
    np.testing.assert_array_equal(resumed.gradient, whole.gradient)


@pytest.mark.long
def test_float32_breakdown_does_not_change_what_a_resumed_run_finds(
    run: Resuming[Solution], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A block in which float32 breaks down is finished in float64; which blocks these are depends on the blocks alone.
    steepest, breakdowns, extend = int(np.argmax(np.abs(PROBLEM.y).max(axis=1))), [], Subproblem._extend

    def break_down(self: Subproblem, *arguments: Any) -> None:
        if self.single and steepest in self.indices:
            breakdowns.append(self.size)
            raise np.linalg.LinAlgError
        extend(self, *arguments)

    monkeypatch.setattr(Subproblem, "_extend", break_down)
    expected = run.start()
    first = len(breakdowns)
    assert first >= 2
    run.interrupt(5)
    assert len(breakdowns) > first
    run.require_same(expected)


def test_killed_it_resumes_from_the_last_checkpoint(run: Resuming[Solution], whole: Solution) -> None:
    die_after(run, 7, every_seconds=0.0)
    assert run.store.load_latest().sequence_number == 6
    run.require_same(whole)


def test_a_checkpoint_is_read_once_whoever_looks_first(
    run: Resuming[Solution], whole: Solution, executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.interrupt(5)
    reads, load = [], CheckpointStore.load_latest

    def watched(store: CheckpointStore) -> Any:
        reads.append(store.url)
        return load(store)

    monkeypatch.setattr(CheckpointStore, "load_latest", watched)
    checkpointing = Checkpointing(run.store, NEVER, IDENTITY, resume=True)
    found = checkpointing.latest()
    assert found is not None
    assert found.sequence_number == 5
    assert checkpointing.held_bytes == sum(array.nbytes for array in found.arrays.values()) > 0
    resumed = solve(
        PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, stopping=STOPPING, watch=Watch(checkpointing=checkpointing)
    )
    assert (len(reads), checkpointing.held_bytes) == (1, 0)
    require_same_bits(resumed, whole)


def test_torn_newest_checkpoint_falls_back_to_the_one_before(run: Resuming[Solution], whole: Solution) -> None:
    die_after(run, 7, every_seconds=0.0)
    newest = max(Path(run.store.url).glob("*.dkgp"))
    newest.write_bytes(newest.read_bytes()[:-100])
    assert run.store.load_latest().sequence_number == 5
    run.require_same(whole)


def test_no_whole_checkpoint_is_an_error_and_no_fresh_start(run: Resuming[Solution]) -> None:
    die_after(run, 7, every_seconds=0.0)
    for file in Path(run.store.url).glob("*.dkgp"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="No checkpoint in .* is whole"):
        run.resume()


def test_checkpoints_are_saved_as_often_as_asked(run: Resuming[Solution]) -> None:
    die_after(run, 7)
    assert run.store.load_latest() is None


def test_nothing_to_resume_is_a_fresh_start(run: Resuming[Solution], whole: Solution) -> None:
    run.require_same(whole)


def test_without_resume_it_starts_afresh(run: Resuming[Solution], whole: Solution) -> None:
    run.interrupt(5)
    require_same_bits(run.start(), whole)


def test_stopped_short_it_can_be_resumed_with_more(run: Resuming[Solution], whole: Solution) -> None:
    short = run.start(stopping=STOPPING | MaxPasses(0.8))
    assert not short.converged
    resumed = run.resume()
    assert resumed.converged
    assert [timeless(p) for p in resumed.history[: len(short.history)]] == [timeless(p) for p in short.history]
    assert np.abs(PROBLEM.gradient(resumed.alpha)).max() <= 1.01e-3
    assert resumed.progress.seconds > short.progress.seconds
    assert resumed.progress.kernel_evaluations > short.progress.kernel_evaluations


class WishInProduct:
    """A user who asks for the end within a product, once so many are done.

    A product on a busy machine may be told of once only, at its end: the wish has to be there before this call.
    """

    def __init__(self, products: int) -> None:
        self._products_left, self._questions = products, 0

    def hear(self, work: Any) -> None:
        self._products_left -= work.done == work.total

    def asked(self) -> bool:
        # The first question after a product is the one between two rounds.
        self._questions += self._products_left <= 0
        return self._questions > 1


@pytest.mark.parametrize(
    ("every_seconds", "when"),
    [(0.0, "in round 4"), (NEVER, "after 4 rounds")],
    ids=["rounds are saved: at once", "they are not: after the round"],
)
def test_interrupted_in_a_product_no_finished_round_is_lost(
    tmp_path: Path, executor, every_seconds: float, when: str
) -> None:
    run = runs(tmp_path, executor, smooth_problem(2048, 2))
    options = {"solver": ConjugateGradient(), "every_seconds": every_seconds}
    heard: list[tuple[str, int, int]] = []
    whole = run.start(within=lambda work: heard.append((work.phase, work.done, work.total)), **options)
    # Each product is told to its end.
    tasks = heard[-1][2]
    assert heard[-1] == ("float64 product", tasks, tasks)
    ends = [at for at, (_, done, total) in enumerate(heard) if done == total]
    assert len(ends) > 4
    assert all(phase == "product" for phase, *_ in heard[: ends[3]])

    wish = WishInProduct(3)
    with pytest.raises(InterruptedRunError, match=f"interrupted {when}; state saved in") as caught:
        run.start(within=wish.hear, interrupted=wish.asked, **options)
    assert caught.value.checkpoint == run.store.url
    run.require_same(whole, **options)


def test_interrupted_without_checkpoints_it_says_that_nothing_was_saved(executor) -> None:
    with pytest.raises(InterruptedRunError, match="after 0 rounds; nothing was saved") as caught:
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=SOLVER, watch=Watch(interrupted=lambda: True))
    assert caught.value.checkpoint is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"identity": IDENTITY | {"data": "c3d4"}}, "its identity is .*a1b2.*; this run's is .*c3d4"),
        ({"identity": {}}, "its identity is .*a1b2"),
        ({"solver": replace(SOLVER, block_size=41)}, "its solver is .*'block_size': 40.*; this run's is .*41"),
        ({"solver": replace(SOLVER, memory=4)}, "its solver is .*'memory': 3.*; this run's is .*'memory': 4"),
        ({"solver": replace(SOLVER, seed=1)}, "its solver is .*'seed': 0.*; this run's is .*'seed': 1"),
        ({"solver": replace(SOLVER, precision="double")}, "its solver is .*mixed.*; this run's is .*double"),
        ({"solver": replace(SOLVER, selection=CyclicSelection())}, "Greedy.*; this run's is .*Cyclic"),
        ({"solver": replace(SOLVER, selection=GreedySelection(candidates=61))}, "60.*; this run's is .*61"),
        ({"solver": replace(SOLVER, selection=GreedySelection(exhaustive=True))}, "False.*; this run's is .*True"),
    ],
)
def test_checkpoint_of_another_run_is_refused(run: Resuming[Solution], options: dict[str, Any], message: str) -> None:
    run.interrupt(3)
    saved = {file: file.read_bytes() for file in Path(run.store.url).iterdir()}
    run.require_refused(f"belongs to another run: {message}" if "its" in message else message, **options)
    assert {file: file.read_bytes() for file in Path(run.store.url).iterdir()} == saved


def test_threads_and_stopping_may_change_between_runs(run: Resuming[Solution], whole: Solution) -> None:
    run.interrupt(4, stopping=GradientInfNorm(1e-9))
    other = replace(SOLVER, selection=GreedySelection(threads=1))
    run.require_same(whole, solver=other)


def test_an_older_checkpoint_has_fewer_numbers() -> None:
    """Missing numbers of a single method begin as in a fresh run. Missing numbers of all methods are an error."""
    written, read = (AutoState(np.zeros(3), np.zeros(3), np.zeros(3)) for _ in range(2))
    written.iteration, written.descents, written.poor, written.hasty = 7, 5, 1, 2
    numbers = written.metadata()
    older = {name: value for name, value in numbers.items() if name not in ("poor", "whole", "hasty", "handed")}
    read.restore(written.arrays(), older)
    assert (read.iteration, read.descents) == (7, 5)
    assert (read.poor, read.whole, read.hasty, read.handed) == (0, False, 0, -1)
    read.restore(written.arrays(), numbers)
    assert read.metadata() == numbers
    with pytest.raises(KeyError, match="iteration"):
        read.restore(written.arrays(), {name: value for name, value in numbers.items() if name != "iteration"})
