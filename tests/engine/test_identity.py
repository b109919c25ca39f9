"""Bits are equal on threads, workers and processes, with all inputs at the coordinator or with none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor
from dkgp.cluster.cache import TileBudget
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.keeping import kept_bytes_of, worker_tiles
from dkgp.solvers import (
    CyclicSelection,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxIterations,
)
from tests.engine.helpers import Bits, ManualCluster, Problem, bits, client_of, opened, worker_pids

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
        executor._client.wait_for_workers(2, timeout=240)  # type: ignore[attr-defined]
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


# Tiles that worker processes keep: found again product after product, freed with the run, and lost without a tr.


VECTORS = np.random.default_rng(3).standard_normal((2000, 2))


def kept_bytes() -> int:
    return worker_tiles().nbytes


@pytest.fixture(scope="module")
def expected(problem: Problem) -> np.ndarray:
    executor = LocalExecutor(1)
    with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
        product = operator.matmat(VECTORS, "single")
    executor.close()
    return product


@pytest.mark.slow
def test_each_worker_keeps_its_own_and_frees_it(problem: Problem, expected: np.ndarray) -> None:
    budget = kept_bytes_of(2000)
    with opened("processes", 2, cache_tiles=budget) as executor:
        client = client_of(executor)
        with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
            for _ in range(3):
                np.testing.assert_array_equal(operator.matmat(VECTORS, "single"), expected)
            # Work that is stolen by an idle worker is evaluated there, the first time.
            assert operator.kept_share > 0.5
            held = client.run(kept_bytes)
            assert len(held) == 2
            assert all(0 < count <= budget for count in held.values())
            assert kept_bytes() == 0
        assert set(client.run(kept_bytes).values()) == {0}
    with opened("local", 2, cache_tiles=budget) as executor:
        with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
            for _ in range(2):
                np.testing.assert_array_equal(operator.matmat(VECTORS, "single"), expected)
            assert operator.kept_share == 1.0
        assert kept_bytes() == 0


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
def test_a_worker_that_is_killed_takes_its_tiles_and_no_bits(problem: Problem, expected: np.ndarray) -> None:
    with opened("processes", 2, cache_tiles=kept_bytes_of(2000)) as executor:
        executor.tiles = TileBudget(kept_bytes_of(2000))
        with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
            for turn in range(6):
                if turn in (2, 4):
                    os.kill(worker_pids(client_of(executor))[turn % 4 // 2], signal.SIGKILL)
                    time.sleep(0.2 if turn == 4 else 0.0)
                np.testing.assert_array_equal(operator.matmat(VECTORS, "single"), expected)
            for _ in range(4):  # whoever came back has its share again
                operator.matmat(VECTORS, "single")
            assert operator.kept_share > 0.4


# What a training process takes at its peak, against what was projected before it started.


Train = Callable[..., dict[str, Any]]


@pytest.fixture
def train(start_process: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Train:
    """Train in a process of its own, for about a pass and its verification; return the document.

    What is counted for the libraries is for compiling: each process does, and alone. What helpers leave to it chance
    decides, and the document's peak is of all processes.
    """
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    def run(n: int, d: int, *options: object) -> dict[str, Any]:
        X, y = friedman1(n, n_features=max(d, 5))
        dataset_from_arrays(str(tmp_path / "train.zarr"), X[:, :d], y)
        hyper = tmp_path / "hyper.json"
        hyper.write_text(
            json.dumps({"kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.3] * d}, "noise_variance": 0.1})
        )
        command = ("train", tmp_path / "train.zarr", "--hyper", hyper, "--out", tmp_path / "model.zarr", "--json")
        alone = "tests.engine.without_helpers"
        process = start_process(alone, *command, *options, stdout=subprocess.PIPE, environment=environment)
        document = json.loads(process.communicate(timeout=240)[0])
        assert process.returncode in (0, 4), document
        return document  # type: ignore[no-any-return]

    return run


def assert_projected(document: dict[str, Any]) -> None:
    """Peak at or below the projection, and the projection within a factor of 2 of it."""
    peak_bytes, projected_bytes = document["peak_memory_bytes"], document["memory_plan"]["coordinator_bytes"]
    assert peak_bytes <= projected_bytes <= 2 * peak_bytes


# Blocks of one size: what is planned for growing ones is not used by a solve that is cut off before they grow.
FIXED = ("--block-size", 1000)


@pytest.mark.portable
def test_small(train: Train) -> None:
    assert_projected(train(20_000, 8, *FIXED, "--max-passes", 0.2, "--cluster", "none"))


@pytest.mark.slow
def test_blocks_that_may_grow_are_planned_for_at_their_largest(train: Train) -> None:
    document = train(6_000, 4, "--block-size", 250, "--largest-block-size", 3000, "--max-passes", 0.1)
    fixed = 2 * 4 * 3000**2  # a float64 triangle, or two in float32, at the least
    assert document["memory_plan"]["block_bytes"] > fixed
    assert document["peak_memory_bytes"] <= document["memory_plan"]["coordinator_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["none", "local"])
@pytest.mark.parametrize(("n", "d"), [(20_000, 8), (60_000, 4), (20_000, 40)])
def test_sizes(train: Train, n: int, d: int, cluster: str) -> None:
    assert_projected(train(n, d, *FIXED, "--max-passes", 1.2, "--cluster", cluster))


@pytest.mark.slow
def test_checkpoints_in_mid_run_are_counted(train: Train) -> None:
    """With many remembered steps, of a hundred rounds, gathering them for a checkpoint is what takes most."""
    document = train(60_000, 4, "--memory", 80, "--block-size", 150, "--max-passes", 0.25, "--checkpoint-every", 1)
    assert document["memory_plan"]["vectors_bytes"] > 150e6
    assert_projected(document)


@pytest.mark.slow
def test_a_run_that_does_little_but_compile(train: Train) -> None:
    assert_projected(train(2000, 4, "--max-passes", 1.2))
