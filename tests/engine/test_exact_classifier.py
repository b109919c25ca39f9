"""The exact LS-SVM on worker processes, some of them killed: the same bits as on one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data import Dataset
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.exact.train import TrainedExact, train_exact
from dkgp.models.classification.labels import labels_of
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, GreedyBlockCoordinateDescent
from tests.engine.helpers import AfterSubmit, client_of, kill_one, opened, worker_pids

SOLVERS = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=100),
    "pcg": ConjugateGradient(FactorPreconditioning(halo=100, leaf=50)),
}
Bits = tuple[bytes, bytes, bytes, Any]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X, y = friedman1(1500, n_features=6, seed=7)
    codes = np.digitize(y, np.quantile(y, (0.3, 0.6)))
    url = str(tmp_path_factory.mktemp("labelled") / "train.zarr")
    return dataset_from_arrays(url, X, codes, chunk_rows=300, classes=("low", "middle", "high"))


def trained(dataset: Dataset, executor: BlockExecutor, solver: str) -> TrainedExact:
    found = Hyperparameters(SquaredExponential((0.2, 0.2, 0.15, 0.05, 0.05, 0.01)), 0.1)
    weights = np.where(np.arange(dataset.n_samples) % 3 == 0, 2.0, 0.5)
    return train_exact(dataset, labels_of(dataset), found, executor, solver=SOLVERS[solver], weights=weights)


def bits(found: TrainedExact) -> Bits:
    return found.alpha.tobytes(), found.ones.tobytes(), found.intercept.tobytes(), found.certificate


@pytest.fixture(scope="module")
def of_one_thread(labelled: Dataset) -> dict[str, Bits]:
    executor = LocalExecutor(1)
    try:
        return {solver: bits(trained(labelled, executor, solver)) for solver in SOLVERS}
    finally:
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_worker_processes(labelled: Dataset, of_one_thread: dict[str, Bits], workers: int) -> None:
    with opened("processes", workers) as executor:
        assert executor.parallelism == workers
        for solver in SOLVERS:
            assert bits(trained(labelled, executor, solver)) == of_one_thread[solver]


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
@pytest.mark.parametrize(("solver", "kind", "count"), [("gbcd", "kblock", 3), ("pcg", "kvforward", 3)])
def test_a_killed_worker(labelled: Dataset, of_one_thread: dict[str, Bits], solver: str, kind: str, count: int) -> None:
    with opened("processes", 2) as executor:
        client = client_of(executor)
        before = worker_pids(client)
        faulty = AfterSubmit(executor, kind, count, lambda: kill_one(client))
        assert bits(trained(labelled, faulty, solver)) == of_one_thread[solver]
        assert faulty.done
        assert set(worker_pids(client)) != set(before)
