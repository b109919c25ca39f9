"""Products by cells on Dask: the same bits for any number of workers, and for those that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.kernels import Matern12, SquaredExponential
from dkgp.operators.cells.operator import CellKernelOperator
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, solve
from tests.workers import local_cluster

N = 1500
KERNEL = Matern12((8.0, 5.0)) + 0.5 * SquaredExponential((0.3, 0.2))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A store, which worker processes read too."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    return dataset_from_arrays(tmp_path_factory.mktemp("store") / "data", X, np.sin(2.0 * X[:, 0]) + X[:, 1])


def operator(dataset: Dataset, executor: Any) -> CellKernelOperator:
    return CellKernelOperator(KERNEL, 0.05, dataset, executor, error=1e-6)


def products(dataset: Dataset, executor: Any) -> list[np.ndarray]:
    """Products of both precisions, with their bounds, and the count of entries."""
    V = np.random.default_rng(1).standard_normal((N, 2))
    with operator(dataset, executor) as cells:
        loose = cells.matmat(V, "single"), cells.error_rows
        return [*loose, cells.matmat(V), cells.error_rows, np.array(cells.kernel_evaluations)]


@pytest.fixture(scope="module")
def expected(dataset: Dataset) -> list[np.ndarray]:
    """Products by threads of this process."""
    made = products(dataset, LocalExecutor(1))
    worker_cache().clear()
    return made


@contextmanager
def dask_executor(workers: int, processes: bool) -> Iterator[tuple[DaskExecutor, Client]]:
    with local_cluster(workers, processes=processes, threads=2) as (_, client):
        executor = DaskExecutor(client, in_process=not processes)
        yield executor, client
        executor.close()


def is_same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_bit(workers: int, dataset: Dataset, expected: list[np.ndarray]) -> None:
    with dask_executor(workers, processes=False) as (executor, _):
        assert is_same(products(dataset, executor), expected)


def test_two_clients_of_one_scheduler_get_the_same_bits(dataset: Dataset, expected: list[np.ndarray]) -> None:
    with local_cluster(2, threads=2) as (cluster, first), Client(cluster, set_as_default=False) as second:
        executors = [DaskExecutor(client) for client in (first, second)]
        with ThreadPoolExecutor(2) as threads:
            for made in threads.map(partial(products, dataset), executors):
                assert is_same(made, expected)
        for executor in executors:
            executor.close()


@pytest.mark.faults
def test_processes_change_no_bit_and_solve_alike(dataset: Dataset, expected: list[np.ndarray]) -> None:
    solver, y = ConjugateGradient(FactorPreconditioning(64, 32, 0)), dataset.targets(0, N)
    with operator(dataset, LocalExecutor(2)) as cells:
        alone = solve(cells, y, solver=solver)
    with dask_executor(2, processes=True) as (executor, _):
        assert is_same(products(dataset, executor), expected)
        with operator(dataset, executor) as cells:
            assert np.array_equal(solve(cells, y, solver=solver).alpha, alone.alpha)


def doom(name: str) -> None:
    """Have this worker process die where it next calls a function of the operator's module."""
    import dkgp.operators.cells.operator as module

    setattr(module, name, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.faults
@pytest.mark.parametrize("name", ["CellProducts", "up", "join", "finish"])
def test_a_worker_that_is_killed_in_a_phase_changes_no_bit(
    name: str, dataset: Dataset, expected: list[np.ndarray]
) -> None:
    with dask_executor(2, processes=True) as (executor, client):
        lost = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        client.run(doom, name, workers=[lost])
        assert is_same(products(dataset, executor), expected)
        assert lost not in client.scheduler_info(n_workers=-1)["workers"]
