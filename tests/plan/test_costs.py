"""What a run is made of: tasks as the operator cuts them, memory as training plans it, sums as they add up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench.scaling.study import Scaling, compare_with_model
from dkgp.cluster.executors.base import BlockTask, LocalExecutor, PendingRound
from dkgp.data import dataset_from_arrays
from dkgp.errors import UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models.memory import RUNTIME_BYTES, plan_training
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.blocked import coordinator_input_bytes_needed
from dkgp.plan.costs import (
    Effort,
    Problem,
    most_useful_workers,
    pass_seconds,
    project,
    round_work,
    update_alone_seconds,
)
from dkgp.plan.figures import MachineFigures
from dkgp.plan.network import ClusterFigures
from dkgp.plan.problem import memory_of, problem_of, worker_memory_bytes
from dkgp.plan.simulation import Fleet, Network
from dkgp.solvers import CyclicSelection, GreedyBlockCoordinateDescent, GreedySelection
from dkgp.solvers.registry import SolverMemory

FREE = Network(0.0, 0.0, 0.0, 1e30)
NETWORK = Network(0.008, 0.001, 0.0002, 1e9)
MACHINE = MachineFigures(
    d=8,
    p=1,
    entry_seconds=4e-10,
    entry_double_seconds=1e-9,
    pair_seconds=1.4e-9,
    candidate_seconds=(5e-10, 1e-8),
    dense_seconds=(1e-6, 1e-9, 8e-12),
    solve_seconds=(1e-6, 5e-9),
    vector_seconds=1e-9,
    read_seconds=2e-8,
    speedups=(1.0, 1.9, 2.8, 3.6),
)
PROBLEM = Problem(
    n=1_000_000,
    d=8,
    p=1,
    block_size=4000,
    candidates=60,
    memory=5,
    precision="mixed",
    block_rows=8192,
    least_task_evaluations=40_000_000,
)


def fleet(workers: int, network: Network = NETWORK, **others: Any) -> Fleet:
    return Fleet(workers, 1, MACHINE.speedups, 4, network, **others)


class Recorder(LocalExecutor):
    """Notes how a round was cut into tasks."""

    least_task_evaluations = 100_000

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.groups: list[list[Any]] = []

    def submit(
        self, name: str, task: BlockTask, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]], *hints: Any
    ) -> PendingRound:
        self.groups = [list(group) for group in groups]
        return super().submit(name, task, arguments, groups, *hints)


@pytest.mark.parametrize(("n", "m", "threads"), [(3000, 100, 2), (3000, 1000, 5), (5000, 700, 64), (700, 40, 8)])
def test_tasks_are_cut_as_the_operator_cuts_them(
    n: int, m: int, threads: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    X, kernel = rng.standard_normal((n, 3)), SquaredExponential(gamma=(1.0, 1.0, 1.0))
    dataset = dataset_from_arrays(tmp_path / "d.zarr", X, rng.standard_normal((n, 1)))
    executor = Recorder(threads)
    problem = problem_of(dataset, kernel, GreedyBlockCoordinateDescent(block_size=m), executor.least_task_evaluations)
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor) as operator:
        operator.apply_columns(np.arange(m), np.ones((m, 1)))
        bounds = [operator._context.bounds(block) for block in range(operator._context.n_blocks)]
    executor.close()
    rows = [[stop - start for start, stop in (bounds[block] for block in group)] for group in executor.groups]
    assert problem.tasks(threads) == rows
    assert sum(problem.blocks) == n


def test_only_the_greedy_selection_of_random_candidates_is_planned_for(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    kernel = SquaredExponential(gamma=(1.0,))
    dataset = dataset_from_arrays(tmp_path / "d.zarr", rng.standard_normal((50, 1)), rng.standard_normal((50, 1)))
    for selection in (CyclicSelection(), GreedySelection(exhaustive=True)):
        with pytest.raises(UsageError, match="greedy selection"):
            problem_of(dataset, kernel, GreedyBlockCoordinateDescent(block_size=5, selection=selection), 0)


def test_memory_is_what_training_plans() -> None:
    for n in (PROBLEM.n, 20_000_000):
        problem = replace(PROBLEM, n=n)
        found = memory_of(problem, resident_bytes=10**8, cache_bytes=2 * 1024**3)
        expected = plan_training(
            n,
            8,
            1,
            SolverMemory(memory=5, block_size=4000, candidates=60),
            resident_bytes=10**8,
            shares_process=False,
            overlaps=True,
            holds_inputs=coordinator_input_bytes_needed(n, 8) <= 2 * 1024**3,
            cache_bytes=2 * 1024**3,
        )
        assert found == expected
        assert worker_memory_bytes(found, 7) == 7 + RUNTIME_BYTES + expected.worker_bytes


def test_work_adds_up_to_the_totals_that_the_figures_say() -> None:
    work = round_work(PROBLEM, MACHINE, 16)
    m = PROBLEM.block_size
    assert sum(work.task_seconds) == pytest.approx(PROBLEM.n * m * 4e-10)
    assert sum(step.serial_seconds for step in work.selection) == pytest.approx(MACHINE.dense(m))
    # Candidates are scored against the variables chosen before their own step: m^2 / 2 but for the last half step.
    scored = 60 * (5e-10 * (m * m - m * m / 20) / 2 + 1e-8 * m)
    assert sum(step.parallel_seconds for step in work.selection) == pytest.approx(scored)
    assert sum(work.result_bytes) == 8 * PROBLEM.n
    double = round_work(PROBLEM, MACHINE, 16, "double")
    assert sum(double.task_seconds) == pytest.approx(2.5 * sum(work.task_seconds))


def test_a_pass_takes_each_pair_once() -> None:
    alone = pass_seconds(PROBLEM, MACHINE, fleet(1, FREE))
    assert alone == pytest.approx(PROBLEM.n**2 / 2 * MACHINE.pair_seconds)
    assert pass_seconds(PROBLEM, MACHINE, fleet(16, FREE)) == pytest.approx(alone / 16, rel=0.05)
    assert update_alone_seconds(PROBLEM, MACHINE, fleet(1, FREE)) == pytest.approx(PROBLEM.n * 4000 * 4e-10)


def test_a_projection_is_the_sum_of_its_parts() -> None:
    effort = Effort(passes=3.0, double_passes=0.0, refreshes=2)
    found = project(PROBLEM, MACHINE, fleet(4), effort)
    rounds = 3.0 * PROBLEM.n / PROBLEM.block_size
    assert found.seconds == pytest.approx(found.start_seconds + found.refresh_seconds + rounds * found.round.seconds)
    assert found.refresh_seconds == pytest.approx(2 * pass_seconds(PROBLEM, MACHINE, fleet(4)))
    half = project(PROBLEM, MACHINE, fleet(4), replace(effort, double_passes=1.5))
    double = project(replace(PROBLEM, precision="double"), MACHINE, fleet(4), effort)
    assert half.seconds == pytest.approx((found.seconds + double.seconds) / 2)
    assert double.seconds > found.seconds


def test_more_workers_help_until_the_coordinator_is_the_limit() -> None:
    effort = Effort(3.0, 0.3, 2)
    workers = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    found = {count: project(PROBLEM, MACHINE, fleet(count), effort) for count in workers}
    seconds = [found[count].seconds for count in workers]
    best = seconds.index(min(seconds))
    assert all(later < earlier for earlier, later in itertools.pairwise(seconds[: best + 1]))
    # Beyond that there are only more messages.
    assert max(seconds[best:]) <= 1.05 * min(seconds)
    assert found[1].limit == "workers"
    assert found[256].limit in ("selection", "solve")
    # A round cannot be shorter than what the coordinator has to do in it.
    work = round_work(PROBLEM, MACHINE, 256)
    own = work.solve_seconds + work.vectors_seconds + work.arrival_seconds + work.selection_seconds(3.6)
    assert found[256].round.seconds >= own
    assert found[256].round.seconds == pytest.approx(own, rel=0.6)
    useful = most_useful_workers(workers, seconds)
    assert 2 <= useful <= 64
    assert min(seconds) > 0.9 * found[useful].seconds


def test_slow_messages_are_the_limit_where_they_are() -> None:
    small = replace(PROBLEM, n=20_000, block_size=500, block_rows=2504)
    slow = project(small, MACHINE, fleet(8, Network(0.5, 0.001, 0.0002, 1e9)), Effort(3.0, 0.0, 2))
    assert slow.limit == "messages"
    assert slow.round.seconds > 0.5


def test_the_most_useful_number_of_workers() -> None:
    assert most_useful_workers((1, 2, 4, 8), (8.0, 4.0, 2.0, 1.0)) == 8
    assert most_useful_workers((1, 2, 4, 8), (8.0, 4.0, 3.9, 3.8)) == 2
    assert most_useful_workers((1, 2, 4), (1.0, 1.0, 2.0)) == 1
    # A tenth that comes late is a tenth all the same.
    assert most_useful_workers((1, 2, 4, 8), (8.0, 7.9, 7.8, 2.0)) == 8


def test_what_was_measured_is_set_beside_the_model() -> None:
    def run(seconds: float, update: float) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "update_seconds": update,
            "column_passes": 3.0,
            "double_passes": 0.1,
            "refreshes": 2,
            "update_seconds_in_solve": 1.0,
            "select_seconds": 1.0,
            "wait_seconds": 1.0,
            "refresh_seconds": 1.0,
            "worker_peak_bytes": 3e8,
            "coordinator_peak_bytes": 3e8,
        }

    scaling = Scaling(
        {1: [run(10.0, 0.2), run(20.0, 0.4), run(12.0, 0.2)], 2: [run(8.0, 0.1), run(10.0, 0.25), run(9.0, 0.1)]},
        {1: [1e9, 1e9, 1e9], 2: [1.9e9, 1.6e9, 1.7e9]},
    )
    small = replace(PROBLEM, n=100_000, block_size=1500)
    one, two = compare_with_model(scaling, small, MACHINE, ClusterFigures(NETWORK, 1, 10**8))
    assert (one["update_speedup"], one["ceiling"], one["speedup"]) == (1.0, 1.0, 1.0)
    assert two["update_speedup"] == pytest.approx(2.0)  # the median of 2, 1.6 and 2
    assert two["ceiling"] == pytest.approx(1.7)
    assert two["share_of_ceiling"] == pytest.approx(2.0 / 1.7)
    assert two["speedup"] == pytest.approx(12.0 / 9.0)
    assert one["seconds"] == 12.0
    assert one["seconds_to_model"] == pytest.approx(12.0 / one["seconds_model"])
    assert one["update_to_model"] == pytest.approx(0.2 / one["update_seconds_model"])
