"""Risks on worker processes: the same bits on any number of them, and when one is killed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers.losses import LogisticLoss, SoftmaxLoss
from dkgp.solvers.risk import minimise_risk
from tests.engine.helpers import AfterSubmit, client_of, kill_one, opened, worker_pids

METHODS = ("kcg", "newton", "majorisation", "auto")
CENTRES = np.random.default_rng(1).standard_normal((3, 4))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X = np.random.default_rng(0).standard_normal((1300, 4))
    url = str(tmp_path_factory.mktemp("risk") / "train.zarr")
    return dataset_from_arrays(url, X, X[:, 0], chunk_rows=300)


def minimised(dataset: Dataset, executor: Any, method: str, coupled: bool) -> tuple[bytes, ...]:
    X = np.concatenate([dataset.inputs(start, min(start + 300, 1300)) for start in range(0, 1300, 300)])
    nearest = np.argmax(X @ CENTRES.T, axis=1)
    targets = np.eye(3)[nearest] if coupled else np.where(nearest == 0, 1.0, -1.0)
    kernel = SquaredExponential((0.3,) * 4)
    with BlockedKernelOperator(kernel, 1.0, dataset, executor) as operator:
        found = minimise_risk(
            operator,
            targets,
            loss=SoftmaxLoss() if coupled else LogisticLoss(),
            regularisation=2.0,
            weights=1.0 + np.arange(1300) % 2,
            method=method,
            gap=1e-5,
        )
    assert found.solution.converged
    return tuple(array.tobytes() for array in (found.solution.alpha, found.values, found.gradient_image))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_worker_processes(dataset: Dataset, workers: int) -> None:
    alone = LocalExecutor(1)
    expected = {(m, c): minimised(dataset, alone, m, c) for m in METHODS for c in (False, True)}
    alone.close()
    with opened("processes", workers) as executor:
        for (method, coupled), wanted in expected.items():
            assert minimised(dataset, executor, method, coupled) == wanted


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
@pytest.mark.parametrize("kind", ["kgram", "kproject"])
def test_a_killed_worker(dataset: Dataset, kind: str) -> None:
    alone = LocalExecutor(1)
    expected = minimised(dataset, alone, "newton", False)
    alone.close()
    with opened("processes", 2) as executor:
        client = client_of(executor)
        before = worker_pids(client)
        faulty = AfterSubmit(executor, kind, 2, lambda: kill_one(client))
        assert minimised(dataset, faulty, "newton", False) == expected
        assert faulty.done
        assert set(worker_pids(client)) != set(before)
