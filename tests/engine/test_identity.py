"""The same bits whoever computes: threads, workers, processes; with all inputs at the coordinator or with none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.solvers import (
    CyclicSelection,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxIterations,
)
from tests.engine.helpers import Bits, ManualCluster, Problem, bits, opened

# Across processes, fetching candidates costs a message for every selection step.
OUT_OF_CORE_IS_SLOW = pytest.mark.parametrize(
    "resident", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["resident", "out_of_core"]
)


@pytest.mark.long
@pytest.mark.parametrize(("threads", "resident"), [pytest.param(2, True, marks=pytest.mark.portable), (4, False)])
def test_threads_without_dask(problem: Problem, reference: Bits, threads: int, resident: bool) -> None:
    with opened("none", threads) as executor:
        assert bits(problem.train(executor, resident=resident)) == reference


@pytest.mark.long
@pytest.mark.parametrize(("workers", "resident"), [pytest.param(1, True, marks=pytest.mark.portable), (4, False)])
def test_workers_in_this_process(problem: Problem, reference: Bits, workers: int, resident: bool) -> None:
    with opened("local", workers) as executor:
        assert executor.parallelism == workers
        assert bits(problem.train(executor, resident=resident)) == reference


@pytest.mark.portable
@OUT_OF_CORE_IS_SLOW
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_worker_processes(problem: Problem, reference: Bits, workers: int, resident: bool) -> None:
    with opened("processes", workers) as executor:
        assert executor.parallelism == workers
        assert bits(problem.train(executor, resident=resident)) == reference


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "out_of_core"])
def test_scheduler_and_workers_started_by_hand(
    problem: Problem, reference: Bits, manual_cluster: Callable[..., ManualCluster], resident: bool
) -> None:
    cluster = manual_cluster(2)
    with open_executor(ClusterOptions(scheduler_file=cluster.scheduler_file), 1) as executor:
        executor._client.wait_for_workers(2, timeout=30)  # type: ignore[attr-defined]
        assert executor.parallelism == 2
        assert not executor.shares_memory
        assert bits(problem.train(executor, resident=resident)) == reference
    assert all(process.poll() is None for process in (cluster.scheduler, *cluster.workers))


SOLVERS = {
    "paper": GreedyBlockCoordinateDescent(block_size=20, memory=0, selection=GreedySelection(variables_per_step=1)),
    "growing": GreedyBlockCoordinateDescent(block_size=250, largest_block_size=500),
    "double": GreedyBlockCoordinateDescent(block_size=100, precision="double"),
    "prefitting": GreedyBlockCoordinateDescent(block_size=30, selection=GreedySelection(prefitting=True)),
    "cyclic": GreedyBlockCoordinateDescent(block_size=100, selection=CyclicSelection()),
    "gradient": GreedyBlockCoordinateDescent(block_size=100, selection=GradientSelection()),
}


# The others, on threads alone: tests/solvers/test_every_solver.py.
PORTABLE = ("paper", "growing", "cyclic", "gradient")


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.portable) if name in PORTABLE else name for name in SOLVERS]
)
def test_other_methods(problem: Problem, name: str) -> None:
    options = {"solver": SOLVERS[name], "stopping": MaxIterations(12)}
    with opened("none", 1) as executor:
        expected = bits(problem.train(executor, **options))
    with opened("local", 2) as executor:
        assert bits(problem.train(executor, resident=False, **options)) == expected


def test_the_seed_matters(problem: Problem) -> None:
    """Otherwise equal bits would say little."""
    results = set()
    with opened("none", 1) as executor:
        for seed in (0, 1):
            solver = GreedyBlockCoordinateDescent(block_size=100, seed=seed)
            results.add(bits(problem.train(executor, solver=solver, stopping=MaxIterations(3))))
    assert len(results) == 2
