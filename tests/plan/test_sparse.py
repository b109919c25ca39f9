"""Sparse models foreseen: counts against those of a run, memory as the run plans it, and messages that grow with m."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, memory_dataset
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.sparse.ladder import sparse_phases
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.operators.block_tasks import feature_width
from dkgp.plan.foreseen import foresee_sparse

N = 2000
KERNEL = SquaredExponential((2.0, 1.0, 0.5))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    return memory_dataset(X, np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(N))


@pytest.mark.parametrize(
    "settings",
    [
        SparseSettings("sr", 150),
        SparseSettings("sggp", 150, per_round=3),
        SparseSettings("vif", 30),
        SparseSettings("vif", 150, neighbours=40),
    ],
)
def test_entries_are_foreseen_as_a_run_takes_them(dataset: Dataset, settings: SparseSettings) -> None:
    foreseen = foresee_sparse(dataset, Hyperparameters(KERNEL, 0.05), settings, 2**30)
    with closing(LocalExecutor(1)) as executor:
        taken = train_sparse(dataset, KERNEL, 0.05, executor, settings).summary["kernel_evaluations"]
    assert 0.5 * taken < foreseen.record["kernel_evaluations"] < 1.5 * taken


@pytest.mark.parametrize("method", ["mpgp", "vif"])
def test_memory_is_what_the_run_asks_for(dataset: Dataset, method: str) -> None:
    settings = SparseSettings(method, 300)
    foreseen = foresee_sparse(dataset, Hyperparameters(KERNEL, 0.05), settings, 2**20)
    with closing(LocalExecutor(2)) as executor:
        expected = settings.memory(N, 3, 1, executor, 2**20, feature_width(KERNEL))
    found = foreseen.memory(4, 2)
    assert found["worker_bytes"] == expected["worker_bytes"]
    # Workers are elsewhere in a plan.
    assert found.coordinator_bytes == expected.coordinator_bytes - expected["worker_bytes"]


def test_phases_are_those_of_the_basis(dataset: Dataset) -> None:
    def names(settings: SparseSettings) -> list[str]:
        foreseen = foresee_sparse(dataset, Hyperparameters(KERNEL, 0.05), settings, 2**30)
        return [phase.name for phase in foreseen.phases]

    assert names(SparseSettings("vfe", 100)) == ["fit", "algebra"]
    assert names(SparseSettings("vif", 100)) == ["fit", "algebra", "neighbours", "leaves", "sums"]
    assert names(SparseSettings("vfe", 100, "greedy")) == ["choice", "fit", "algebra"]
    one = foresee_sparse(dataset, Hyperparameters(KERNEL, 0.05), SparseSettings("sggp", 100, per_round=1), 2**30)
    many = foresee_sparse(dataset, Hyperparameters(KERNEL, 0.05), SparseSettings("sggp", 100, per_round=20), 2**30)
    # A search that has a limit is in proportion to n beyond it.
    settings = SparseSettings("vif", 100, search_samples=2_000)
    searched = [sparse_phases(settings, n, 20, 1)[2].shared for n in (10**5, 10**6)]
    assert 9.5 < searched[1].operations / searched[0].operations < 11.0
    everything = sparse_phases(SparseSettings("vif", 100, search_samples=10**6), 10**6, 20, 1)[2].shared
    assert everything.operations > 100.0 * searched[1].operations
    rounds = [each.phases[0].times * each.phases[0].rounds for each in (one, many)]
    assert rounds == [100.0, 10.0]
