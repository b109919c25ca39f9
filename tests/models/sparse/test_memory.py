"""Memory of sparse models: what is planned, what is kept, and what does not grow with the samples."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget, worker_cache
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import MemoryBudgetError
from dkgp.kernels import Matern32
from dkgp.models.context import RunContext
from dkgp.models.sparse.settings import SparseMemory, plan_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.operators.cross.tasks import SLAB_COLUMNS, slab_bytes
from dkgp.solvers.greedy_basis import GreedySettings

GIBIBYTE = 2**30


def plan(greedy: bool = True, shares_memory: bool = True) -> SparseMemory:
    executor: Any = SimpleNamespace(threads_per_process=2, shares_memory=shares_memory)
    settings = GreedySettings(2000, "refit", candidates=59, per_round=40) if greedy else None
    return plan_sparse(100_000, 10, 2000, 1, executor, 2**28, greedy=settings)


def test_what_is_kept_is_what_is_of_use_and_fits() -> None:
    lean = plan()
    assert lean.useful_bytes == slab_bytes(100_000, 2000) == 8 * 100_000 * 8 * SLAB_COLUMNS
    assert lean.kept_bytes == 0
    spare = GIBIBYTE
    budget, auto = lean.coordinator_bytes + spare, TileBudget(64 * GIBIBYTE, measured=True)
    assert lean.with_kept(auto, budget).kept_bytes == spare // 2
    assert lean.with_kept(auto, budget, resident_bytes=spare).kept_bytes == 0
    assert lean.with_kept(auto, 100 * GIBIBYTE).kept_bytes == lean.useful_bytes
    assert lean.with_kept(TileBudget(5 * 2**20), budget).kept_bytes == 5 * 2**20
    fits = lean.with_kept(auto, budget)
    assert fits.coordinator_bytes == lean.coordinator_bytes + fits.kept_bytes
    # Elsewhere it takes nothing here, and a budget of this process says nothing of it.
    there = plan(shares_memory=False).with_kept(TileBudget(GIBIBYTE), 2**20)
    assert there.kept_bytes == GIBIBYTE
    assert there.coordinator_bytes == plan(shares_memory=False).coordinator_bytes


def test_a_users_own_budget_that_does_not_fit_is_refused() -> None:
    lean = plan()
    with pytest.raises(MemoryBudgetError, match=r"1,024 MiB of the basis' columns to be kept; .* 512 MiB are left"):
        lean.with_kept(TileBudget(GIBIBYTE), lean.coordinator_bytes + GIBIBYTE // 2)


def test_a_basis_that_is_not_greedy_keeps_nothing() -> None:
    assert plan(greedy=False).useful_bytes == 0
    assert plan(greedy=False).with_kept(TileBudget(GIBIBYTE), 100 * GIBIBYTE).kept_bytes == 0


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    folder, rng, found = tmp_path_factory.mktemp("stores"), np.random.default_rng(0), []
    for n in (65_536, 163_840):
        X = rng.standard_normal((n, 4))
        y = np.sin(X[:, :1]) + 0.1 * rng.standard_normal((n, 1))
        found.append(dataset_from_arrays(folder / f"{n}", X, y, chunk_rows=8_192))
    return found


@pytest.mark.slow
def test_memory_of_a_fit_grows_by_vectors_alone(stores: list[Dataset]) -> None:
    """From a store, with the caches of features full: a hundred columns of K would be 79 MB more."""
    peaks, settings = [], SparseSettings("vfe", 100, "uniform")
    before, worker_cache().budget_bytes = worker_cache().budget_bytes, 2**18
    executor = LocalExecutor(2)
    try:
        for dataset in (stores[0], *stores):  # what is made but once is made by the first
            tracemalloc.start()
            train_sparse(
                dataset, Matern32(gamma=(0.3,) * 4), 0.05, RunContext(executor, coordinator_input_bytes=0), settings
            )
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    finally:
        worker_cache().budget_bytes = before
        executor.close()
    small, large = (plan_sparse(dataset.n_samples, 4, 100, 1, executor, 2**18) for dataset in stores)
    assert peaks[2] - peaks[1] < large.vectors_bytes - small.vectors_bytes < 8 * 98_304 * 20
    assert peaks[2] < 40 * 2**20
