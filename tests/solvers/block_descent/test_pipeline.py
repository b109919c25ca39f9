"""Blocks that are chosen while a product is under way: the same ones, by a gradient that is evaluated or waited for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import CyclicSelection, GradientInfNorm, GreedyBlockCoordinateDescent, GreedySelection, solve
from dkgp.solvers.block_descent.block_size import BlockSizes
from dkgp.solvers.block_descent.conjugate_memory import ConjugateMemory
from dkgp.solvers.block_descent.rows import GradientUnderWay, SelectionPipeline, SettledGradient
from tests.solvers.problems import OverlappingExecutor, rounds, smooth_problem

PROBLEM = smooth_problem(300, 3, targets=2)


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
    one, other = (list(rounds(solver, PROBLEM.blocked(each), PROBLEM.y, 8)) for each in (executor, overlapping))
    for expected, found in zip(one, other, strict=True):
        np.testing.assert_array_equal(found.alpha, expected.alpha)
        np.testing.assert_array_equal(found.gradient, expected.gradient)


def test_a_block_that_was_prepared_is_given_up_when_the_gradient_is_renewed(
    executor: LocalExecutor, overlapping: OverlappingExecutor
) -> None:
    solver, stopping = GreedyBlockCoordinateDescent(block_size=40), GradientInfNorm(1e-7)
    one, other = (
        solve(PROBLEM.blocked(each), PROBLEM.y, solver=solver, stopping=stopping) for each in (executor, overlapping)
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
    operator = PROBLEM.blocked(executor)
    state = solver.start(operator, PROBLEM.y)
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
    operator = BlockedKernelOperator(PROBLEM.kernel, noise, PROBLEM.blocked(overlapping)._source, overlapping)
    memory, before = ConjugateMemory(300, 2, 3), -PROBLEM.y.copy()
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
    operator, memory, gradient = PROBLEM.blocked(overlapping), ConjugateMemory(300, 2, 0), -PROBLEM.y.copy()
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
    operator = PROBLEM.blocked(overlapping if overlaps else executor, coordinator_input_bytes=1)
    announced: list[np.ndarray] = []
    monkeypatch.setattr(operator, "announce", announced.append)
    pipeline = SelectionPipeline(operator, CyclicSelection(), SIZES, 7, 2)
    pipeline.announce(lambda: 1.0, 0, 4)
    expected = CyclicSelection().announced(operator, 20, 7, 6 if overlaps else 5)
    np.testing.assert_array_equal(announced, [expected])
    # Where all inputs are here, or the choice cannot be foreseen, nothing is.
    held = PROBLEM.blocked(executor)
    monkeypatch.setattr(held, "announce", announced.append)
    SelectionPipeline(held, CyclicSelection(), SIZES, 7, 2).announce(lambda: 1.0, 0, 4)
    SelectionPipeline(operator, GreedySelection(exhaustive=True), SIZES, 7, 2).announce(lambda: 1.0, 0, 4)
    assert len(announced) == 1


def test_blocks_grow_once_it_is_known_that_they_should(executor: LocalExecutor) -> None:
    pipeline = SelectionPipeline(PROBLEM.blocked(executor), GreedySelection(candidates=60), SIZES, 0, 2)
    first = pipeline.select(SettledGradient(-PROBLEM.y), 0)
    assert (first.size, first.capacity) == (20, 20)
    pipeline.growth.size = 80
    larger = pipeline.select(SettledGradient(-PROBLEM.y), 1)
    assert (larger.size, larger.capacity) == (80, 80)
    assert len(set(larger.indices.tolist())) == 80
    pipeline.growth.review_norm = 3.0
    pipeline.forget()
    assert pipeline.growth.review_norm == 0.0
    again = pipeline.select(SettledGradient(-PROBLEM.y), 2)
    assert again.size == 80


@pytest.mark.parametrize(("double", "single"), [(None, True), (False, True), (True, False)])
def test_in_double_nothing_of_a_block_is_float32(executor: LocalExecutor, double: bool | None, single: bool) -> None:
    options = {} if double is None else {"double": double}
    pipeline = SelectionPipeline(PROBLEM.blocked(executor), GreedySelection(), SIZES, 0, 2, **options)
    block = pipeline.select(SettledGradient(-PROBLEM.y), 0)
    assert (block.single, block.scores_in_double) == (single, not single)


@pytest.mark.parametrize(("precision", "single"), [("mixed", True), ("double", False)])
def test_the_precision_of_a_solver_is_that_of_its_blocks(executor: LocalExecutor, precision: Any, single: bool) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=30, precision=precision).resolved(300, 3)
    state = solver.start(PROBLEM.blocked(executor), PROBLEM.y)
    block = state.blocks.select(state.view, 0)
    assert (block.single, block.scores_in_double) == (single, not single)


def test_without_an_overlap_nothing_is_prepared(executor: LocalExecutor) -> None:
    pipeline = SelectionPipeline(PROBLEM.blocked(executor), GreedySelection(), SIZES, 0, 2)

    class Unseen(SettledGradient):
        def everywhere(self) -> Any:
            raise AssertionError("nobody should look")

    pipeline.prepare(Unseen(-PROBLEM.y), 1)
    assert pipeline.select(SettledGradient(-PROBLEM.y), 0).size == 20


def test_seconds_of_a_round_are_told_by_phase(executor: LocalExecutor) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=30).resolved(300, 3)
    state = solver.start(PROBLEM.blocked(executor), PROBLEM.y)
    began = time.perf_counter()
    seconds = solver.advance(state=state, operator=PROBLEM.blocked(executor))
    whole = time.perf_counter() - began
    assert (state.iteration, state.columns) == (1, 30)
    assert set(seconds) == {"select", "vectors", "wait"}
    assert all(value > 0.0 for value in seconds.values())
    assert sum(seconds.values()) <= whole


def test_five_steps_are_remembered_by_default() -> None:
    solver = GreedyBlockCoordinateDescent()
    assert (solver.memory, solver.seed, solver.precision) == (5, 0, "mixed")
