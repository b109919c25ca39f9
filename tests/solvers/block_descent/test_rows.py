"""Descents whose vectors workers hold by rows: the steps and bits of those whose coordinator holds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import RoundTasks
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import ClusterError
from dkgp.kernels import Linear
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    Checkpointing,
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
from dkgp.solvers.block_descent.block_size import pays_by_rows
from dkgp.solvers.block_descent.rows import Answer
from tests.solvers.problems import OverlappingExecutor, smooth_problem

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


def same(found: Solution, expected: Solution) -> None:
    """Assert the same bits of all that a solve says, but for times and entries evaluated."""
    np.testing.assert_array_equal(found.alpha, expected.alpha)
    np.testing.assert_array_equal(found.gradient, expected.gradient)
    assert (found.reason, found.refreshes) == (expected.reason, expected.refreshes)
    leave_out = {"seconds", "timings", "kernel_evaluations"}
    for one, other in zip(found.history, expected.history, strict=True):
        for name, value in one.to_json().items():
            assert name in leave_out or value == getattr(other, name), name


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "paper": {"memory": 0},
    "double": {"precision": "double", "memory": 2},
    "cyclic": {"selection": CyclicSelection(), "memory": 1},
    # Each block looks at more samples than are there: what was drawn cannot all be foreseen.
    "many candidates": {"block_size": 200, "selection": GreedySelection(candidates=300)},
    "growing": {"block_size": 20, "largest_block_size": 160},
}


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
    same(solutions[1], solutions[0])
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
    same(solutions[1], solutions[0])


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
    same(found, expected)
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
    same(found, expected)
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
    same(found, expected)
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
    solver = GreedyBlockCoordinateDescent(block_size=60)
    whole = solve(PROBLEM.blocked(overlapping), PROBLEM.y, solver=solver, stopping=MaxIterations(12))
    store = CheckpointStore(str(tmp_path / "checkpoint"))
    for by_rows, iterations in ((first, 7), (second, 12)):
        # A checkpoint after each round: the steps since the last one are few, and many as well.
        watch = Watch(
            checkpointing=Checkpointing(store, every_seconds=0.0 if iterations == 12 else 1e9, resume=iterations == 12)
        )
        executor = workers if by_rows else overlapping
        found = solve(
            PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(iterations), watch=watch
        )
    np.testing.assert_array_equal(found.alpha, whole.alpha)
    np.testing.assert_array_equal(found.gradient, whole.gradient)


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
    same(found, expected)
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
