"""Vectors that workers hold by rows, and selection while a product is under way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import RoundTasks
from dkgp.errors import ClusterError
from dkgp.kernels import Linear
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    CyclicSelection,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxIterations,
    Solution,
    Watch,
    solve,
)
from dkgp.solvers.block_descent import gbcd, rows
from dkgp.solvers.block_descent.block_size import BlockSizes, pays_by_rows
from dkgp.solvers.block_descent.conjugate_memory import ConjugateMemory
from dkgp.solvers.block_descent.rows import Answer, GradientUnderWay, SelectionPipeline, SettledGradient
from dkgp.solvers.block_descent.selection import Turn
from tests.resuming import Resuming, require_same_bits
from tests.solvers.problems import OverlappingExecutor, rounds, smooth_problem

PROBLEM = smooth_problem(700, 3, targets=2)


class Workers(OverlappingExecutor):
    """Tasks as of other processes; `before_round` is called with the number of each round that a descent starts."""

    shares_memory = False

    def __init__(self) -> None:
        super().__init__(2)
        self.names: list[str] = []

    def before_round(self, name: str, number: int) -> None:
        """Override to lose rows."""

    def start(self, tasks: RoundTasks) -> Any:
        self.names.append(tasks.name)
        self.before_round(tasks.name, self.names.count(tasks.name))
        return super().start(tasks)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(gbcd, "pays_by_rows", lambda *_: True)
    executor = Workers()
    yield executor
    executor.close()


def lose_rows(every: int = 1) -> int:
    """Drop every so many-th block of the rows that are held in this process; return how many were lost."""
    cache = worker_cache()
    keys = [key for key in cache._values if isinstance(key, tuple) and "rows" in key and len(key) == 4]
    for key in keys[::every]:
        cache.discard(*key)
    return len(keys[::every])


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "paper": {"memory": 0},
    "double": {"precision": "double", "memory": 2},
    "cyclic": {"selection": CyclicSelection(), "memory": 1},
    # Each block looks at more samples than are there: what was drawn cannot all be foreseen.
    "many candidates": {"block_size": 200, "selection": GreedySelection(candidates=300)},
    "growing": {"block_size": 20, "largest_block_size": 160},
}


@pytest.mark.spread(2)
@pytest.mark.covering
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("noise", ["common", "by sample"])
@pytest.mark.parametrize("out_of_core", [False, True])
def test_steps_are_those_of_vectors_at_the_coordinator(
    case: str, noise: str, out_of_core: bool, overlapping: OverlappingExecutor, workers: Workers
) -> None:
    variances = 0.05 if noise == "common" else np.random.default_rng(1).uniform(0.05, 0.5, PROBLEM.n)
    solver = GreedyBlockCoordinateDescent(**{"block_size": 60, **CASES[case]})
    solutions = []
    for executor in (overlapping, workers):
        options = {"coordinator_input_bytes": 1} if out_of_core else {}
        operator = BlockedKernelOperator(PROBLEM.kernel, variances, ArrayInputs(PROBLEM.X), executor, **options)
        with operator:
            solutions.append(solve(operator, PROBLEM.y, solver=solver, stopping=GradientInfNorm(1e-4)))
    require_same_bits(solutions[1], solutions[0])
    assert solutions[0].converged
    assert "kblock" not in workers.names
    # At the start and after each verification, rows go out; nothing is lost in between.
    assert workers.names.count("krebuild") <= 1 + solutions[0].refreshes
    assert workers.names.count("kstep") > 5


def test_samples_of_unequal_prior_variance(overlapping: OverlappingExecutor, workers: Workers) -> None:
    """The steepest sample is weighed by k(x, x), which workers get with their rows."""
    kernel, solver = PROBLEM.kernel + Linear(n_features=3), GreedyBlockCoordinateDescent(block_size=60)
    solutions = []
    for executor in (overlapping, workers):
        with BlockedKernelOperator(kernel, 0.05, ArrayInputs(PROBLEM.X), executor) as operator:
            solutions.append(solve(operator, PROBLEM.y, solver=solver, stopping=MaxIterations(8)))
    require_same_bits(solutions[1], solutions[0])


@pytest.mark.parametrize("every", [1, 3])
def test_lost_rows_are_computed_again(
    every: int, overlapping: OverlappingExecutor, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    def before_round(name: str, number: int) -> None:
        if name == "kstep" and number in (3, 7):
            lost.append(lose_rows(every))

    monkeypatch.setattr(workers, "before_round", before_round)
    solver = GreedyBlockCoordinateDescent(block_size=60)
    expected, found = (
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(12))
        for executor in (overlapping, workers)
    )
    require_same_bits(found, expected)
    assert lost
    assert min(lost) > 0
    assert workers.names.count("krebuild") == 1 + len(lost)


def test_rows_that_are_lost_again_and_again_come_back_to_the_coordinator(
    overlapping: OverlappingExecutor, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the workers' caches are too small for them."""
    monkeypatch.setattr(workers, "before_round", lambda name, number: lose_rows() if name == "kstep" else None)
    monkeypatch.setattr("dkgp.solvers.block_descent.rows.MOST_REBUILT_ROUNDS", 4)
    solver = GreedyBlockCoordinateDescent(block_size=60)
    expected, found = (
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(12))
        for executor in (overlapping, workers)
    )
    require_same_bits(found, expected)
    assert workers.names.count("kblock") >= 5


def test_workers_that_join_get_rows_once_the_vectors_were_fetched(
    overlapping: OverlappingExecutor, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two workers goes, and another one comes."""
    owners: list[set[str]] = []
    present = {"a": 1, "b": 1}
    monkeypatch.setattr(Workers, "workers", property(lambda self: dict(present)))
    monkeypatch.setattr("dkgp.solvers.block_descent.rows.JOIN_SECONDS", 0.0)
    start = Workers.start

    def noted(self: Workers, tasks: RoundTasks) -> Any:
        if tasks.name == "kstep":
            owners.append(set(tasks.owners or ()))
            if len(owners) == 3:
                del present["b"]
            elif len(owners) == 6:
                present["c"] = 1
        return start(self, tasks)

    monkeypatch.setattr(Workers, "start", noted)
    solver = GreedyBlockCoordinateDescent(block_size=60)
    expected, found = (
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(12))
        for executor in (overlapping, workers)
    )
    require_same_bits(found, expected)
    assert [sorted(each) for each in owners[:3]] == [["a", "b"]] * 3
    assert {"a"} in owners
    assert owners[-1] == {"a", "c"}


def test_rows_that_no_worker_can_hold_end_the_solve(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def rebuild(context: Any, recipe: Any, values: Any, asked: Any) -> list[Answer]:
        return [Answer(each.blocks, None, {}) for each in asked]

    monkeypatch.setattr(rows, "rebuild_rows_task", rebuild)
    with pytest.raises(ClusterError, match="lost their rows of the gradient 8 times in one round"):
        solve(PROBLEM.blocked(workers), PROBLEM.y, solver=GreedyBlockCoordinateDescent(block_size=60))


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_resumed_run_ends_in_the_bits_of_one_that_was_not_interrupted(
    first: bool, second: bool, overlapping: OverlappingExecutor, workers: Workers, tmp_path: Path
) -> None:
    """Whoever held the vectors before, and whoever does afterwards."""

    def run(by_rows: bool, rounds: int = 12, **watch: Any) -> Solution:
        operator = PROBLEM.blocked(workers if by_rows else overlapping)
        solver, stopping = GreedyBlockCoordinateDescent(block_size=60), MaxIterations(rounds)
        return solve(operator, PROBLEM.y, solver=solver, stopping=stopping, watch=Watch(**watch))

    kept = Resuming(run, tmp_path)
    kept.start(by_rows=first, rounds=7)
    # A checkpoint after each round: the steps since the last one are few, and many as well.
    require_same_bits(kept.resume(by_rows=second, every_seconds=0.0), run(False))


def test_steps_since_the_last_checkpoint_take_little_memory(
    overlapping: OverlappingExecutor, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are dropped, and the vectors fetched, before they take a share of the vectors' bytes."""
    monkeypatch.setattr("dkgp.solvers.block_descent.rows.LARGEST_LOG_SHARE", 0.1)
    collected: list[int] = []
    taken = gbcd.DescentRows.collect
    monkeypatch.setattr(gbcd.DescentRows, "collect", lambda self: (collected.append(len(self._log)), taken(self))[1])
    solver = GreedyBlockCoordinateDescent(block_size=60)
    expected, found = (
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(12))
        for executor in (overlapping, workers)
    )
    require_same_bits(found, expected)
    assert sum(steps > 0 for steps in collected) > 1
    assert max(collected) <= 6


def test_workers_hold_rows_where_these_are_many_more_than_samples_that_are_looked_at() -> None:
    assert pays_by_rows(10_000_000, 1, 5, 1000, 60)
    assert not pays_by_rows(100_000, 1, 5, 1000, 60)
    # Targets weigh on both sides.
    assert pays_by_rows(1_440_000, 3, 5, 1000, 60)
    assert not pays_by_rows(1_439_999, 3, 5, 1000, 60)
    assert pays_by_rows(1_000_000, 1, 0, 1000, 60)
    assert not pays_by_rows(499_999, 1, 0, 1000, 1)


PROBLEM_PIPELINE = smooth_problem(300, 3, targets=2)


@pytest.mark.covering(2)
@pytest.mark.parametrize("memory", [0, 3])
@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("evaluations", [0, 30_000, None])
def test_what_is_chosen_meanwhile_is_what_is_chosen_afterwards(
    executor: LocalExecutor,
    overlapping: OverlappingExecutor,
    memory: int,
    precision: Any,
    evaluations: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the gradient is waited for at once, from some candidate on, or never."""
    if evaluations is not None:
        monkeypatch.setattr(OverlappingExecutor, "overlap_evaluations", evaluations)
    solver = GreedyBlockCoordinateDescent(block_size=40, memory=memory, precision=precision)
    one, other = (
        list(rounds(solver, PROBLEM_PIPELINE.blocked(each), PROBLEM_PIPELINE.y, 8)) for each in (executor, overlapping)
    )
    for expected, found in zip(one, other, strict=True):
        np.testing.assert_array_equal(found.alpha, expected.alpha)
        np.testing.assert_array_equal(found.gradient, expected.gradient)


@pytest.mark.long
def test_a_block_that_was_prepared_is_given_up_when_the_gradient_is_renewed(
    executor: LocalExecutor, overlapping: OverlappingExecutor
) -> None:
    solver, stopping = GreedyBlockCoordinateDescent(block_size=40), GradientInfNorm(1e-7)
    one, other = (
        solve(PROBLEM_PIPELINE.blocked(each), PROBLEM_PIPELINE.y, solver=solver, stopping=stopping)
        for each in (executor, overlapping)
    )
    assert one.refreshes == other.refreshes > 1
    assert one.progress.iteration == other.progress.iteration
    np.testing.assert_array_equal(other.alpha, one.alpha)


def test_the_next_block_is_chosen_before_a_round_is_waited_for() -> None:
    order: list[str] = []

    class Noting(CyclicSelection):
        def fill(self, *arguments: Any) -> None:
            order.append("chosen")
            super().fill(*arguments)

    class Waiting(OverlappingExecutor):
        def submit(self, *arguments: Any) -> Any:
            pending = super().submit(*arguments)
            result = pending.result
            pending.result = lambda: (order.append("waited for"), result())[1]
            return pending

    executor = Waiting(1)
    solver = GreedyBlockCoordinateDescent(block_size=40, selection=Noting()).resolved(300, 3)
    operator = PROBLEM_PIPELINE.blocked(executor)
    state = solver.start(operator, PROBLEM_PIPELINE.y)
    order.clear()  # what the operator asks for once
    for _ in range(3):
        solver.advance(operator, state)
    assert order == ["chosen", "chosen", "waited for", "chosen", "waited for", "chosen", "waited for"]
    executor.close()


class Pending:
    """A product that is under way until somebody waits for it."""

    def __init__(self, product: np.ndarray) -> None:
        self.product, self.waited, self.is_done = product, 0, False

    def done(self) -> bool:
        return self.is_done

    def result(self) -> np.ndarray:
        self.waited += 1
        return self.product


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("by_sample", [False, True])
def test_the_gradient_is_evaluated_while_that_is_cheaper_than_waiting(
    overlapping: OverlappingExecutor, rng: np.random.Generator, precision: Any, by_sample: bool
) -> None:
    noise = rng.uniform(0.05, 0.5, 300) if by_sample else 0.05
    operator = BlockedKernelOperator(
        PROBLEM_PIPELINE.kernel, noise, PROBLEM_PIPELINE.blocked(overlapping)._source, overlapping
    )
    memory, before = ConjugateMemory(300, 2, 3), -PROBLEM_PIPELINE.y.copy()
    B = rng.choice(300, 25, replace=False)
    delta = rng.standard_normal((25, 2))
    pending = Pending(operator.apply_columns(B, delta, precision))
    step = memory.conjugate(B, delta, before[B])
    memory.move(np.zeros((300, 2)), step)
    gradient = before.copy()

    class Counted(OverlappingExecutor):
        overlap_evaluations = 25 * 60

    operator.executor = Counted(1)
    view = GradientUnderWay(operator, gradient, memory, step, pending, precision)
    # Of the block itself, its first variable among them, and of others; in features of single precision or none.
    asked = np.r_[B[[0, 3]], np.setdiff1d(np.arange(300), B)[:28]]
    found = view.at(asked, None)
    again = view.at(asked, operator.features(asked, "single"))
    np.testing.assert_array_equal(again, found)
    assert pending.waited == 0
    np.testing.assert_array_equal(gradient, before)
    # All that may be evaluated is: the next one waits, and what comes then is there.
    late = view.at(asked, None)
    assert pending.waited == 1
    np.testing.assert_array_equal(late, found)
    expected = before + step.step * pending.product
    np.testing.assert_allclose(view.everywhere(), expected, rtol=0, atol=1e-12)
    view.settle()
    assert pending.waited == 1
    np.testing.assert_array_equal(view.at(np.arange(300), None), gradient)
    operator.executor.close()


def test_a_product_that_is_back_is_taken(overlapping: OverlappingExecutor, rng: np.random.Generator) -> None:
    operator, memory, gradient = (
        PROBLEM_PIPELINE.blocked(overlapping),
        ConjugateMemory(300, 2, 0),
        -PROBLEM_PIPELINE.y.copy(),
    )
    B, delta = np.arange(5), rng.standard_normal((5, 2))
    pending = Pending(operator.apply_columns(B, delta, "double"))
    step = memory.conjugate(B, delta, gradient[B])
    memory.move(np.zeros((300, 2)), step)
    view = GradientUnderWay(operator, gradient, memory, step, pending, "double")
    pending.is_done = True
    view.at(np.arange(3), None)
    assert pending.waited == 1


SIZES = BlockSizes(300, 3, 60, 20, 80)


@pytest.mark.parametrize("overlaps", [False, True])
def test_inputs_that_are_to_come_are_those_of_the_next_selection_that_can_use_them(
    executor: LocalExecutor, overlapping: OverlappingExecutor, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = PROBLEM_PIPELINE.blocked(overlapping if overlaps else executor, coordinator_input_bytes=1)
    announced: list[np.ndarray] = []
    monkeypatch.setattr(operator, "announce", announced.append)
    pipeline = SelectionPipeline(operator, CyclicSelection(), SIZES, 7, 2)
    pipeline.announce(lambda: 1.0, 0, 4)
    expected = CyclicSelection().announced(operator, Turn(20, 7, 6 if overlaps else 5))
    np.testing.assert_array_equal(announced, [expected])
    # Where all inputs are here, or the choice cannot be foreseen, nothing is.
    held = PROBLEM_PIPELINE.blocked(executor)
    monkeypatch.setattr(held, "announce", announced.append)
    SelectionPipeline(held, CyclicSelection(), SIZES, 7, 2).announce(lambda: 1.0, 0, 4)
    SelectionPipeline(operator, GreedySelection(exhaustive=True), SIZES, 7, 2).announce(lambda: 1.0, 0, 4)
    assert len(announced) == 1


def test_blocks_grow_once_it_is_known_that_they_should(executor: LocalExecutor) -> None:
    pipeline = SelectionPipeline(PROBLEM_PIPELINE.blocked(executor), GreedySelection(candidates=60), SIZES, 0, 2)
    first = pipeline.select(SettledGradient(-PROBLEM_PIPELINE.y), 0)
    assert (first.size, first.capacity) == (20, 20)
    pipeline.growth.size = 80
    larger = pipeline.select(SettledGradient(-PROBLEM_PIPELINE.y), 1)
    assert (larger.size, larger.capacity) == (80, 80)
    assert len(set(larger.indices.tolist())) == 80
    pipeline.growth.review_norm = 3.0
    pipeline.forget()
    assert pipeline.growth.review_norm == 0.0
    again = pipeline.select(SettledGradient(-PROBLEM_PIPELINE.y), 2)
    assert again.size == 80


@pytest.mark.parametrize(("double", "single"), [(None, True), (False, True), (True, False)])
def test_in_double_nothing_of_a_block_is_float32(executor: LocalExecutor, double: bool | None, single: bool) -> None:
    options = {} if double is None else {"double": double}
    pipeline = SelectionPipeline(PROBLEM_PIPELINE.blocked(executor), GreedySelection(), SIZES, 0, 2, **options)
    block = pipeline.select(SettledGradient(-PROBLEM_PIPELINE.y), 0)
    assert (block.single, block.scores_in_double) == (single, not single)


@pytest.mark.parametrize(("precision", "single"), [("mixed", True), ("double", False)])
def test_the_precision_of_a_solver_is_that_of_its_blocks(executor: LocalExecutor, precision: Any, single: bool) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=30, precision=precision).resolved(300, 3)
    state = solver.start(PROBLEM_PIPELINE.blocked(executor), PROBLEM_PIPELINE.y)
    block = state.blocks.select(state.view, 0)
    assert (block.single, block.scores_in_double) == (single, not single)


def test_without_an_overlap_nothing_is_prepared(executor: LocalExecutor) -> None:
    pipeline = SelectionPipeline(PROBLEM_PIPELINE.blocked(executor), GreedySelection(), SIZES, 0, 2)

    class Unseen(SettledGradient):
        def everywhere(self) -> Any:
            raise AssertionError("nobody should look")

    pipeline.prepare(Unseen(-PROBLEM_PIPELINE.y), 1)
    assert pipeline.select(SettledGradient(-PROBLEM_PIPELINE.y), 0).size == 20


def test_seconds_of_a_round_are_told_by_phase(executor: LocalExecutor) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=30).resolved(300, 3)
    state = solver.start(PROBLEM_PIPELINE.blocked(executor), PROBLEM_PIPELINE.y)
    began = time.perf_counter()
    seconds = solver.advance(state=state, operator=PROBLEM_PIPELINE.blocked(executor))
    whole = time.perf_counter() - began
    assert (state.iteration, state.columns) == (1, 30)
    assert set(seconds) == {"select", "vectors", "wait"}
    assert all(value > 0.0 for value in seconds.values())
    assert sum(seconds.values()) <= whole


def test_five_steps_are_remembered_by_default() -> None:
    solver = GreedyBlockCoordinateDescent()
    assert (solver.memory, solver.seed, solver.precision) == (5, 0, "mixed")
