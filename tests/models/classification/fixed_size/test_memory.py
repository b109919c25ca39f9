"""Memory of a fixed-size classifier: what is planned, what is refused, and that it does not grow with the samples."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import MemoryBudgetError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.fixed_size.settings import FixedSizeMemory, FixedSizeSettings
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.memory import TrainingSizes

MEBIBYTE = 2**20


def plan(n: int = 100_000, **changed: Any) -> FixedSizeMemory:
    settings = FixedSizeSettings(pool=changed.pop("pool", 1000))
    executor: Any = SimpleNamespace(threads_per_process=2, shares_memory=changed.pop("shares_memory", True))
    return settings.memory(TrainingSizes(n, 20, 1, executor, 2**20), **changed)


def test_fewer_kernels_go_together_where_all_would_not_fit() -> None:
    most, one = plan(), plan(together=1)
    assert (most.together, one.together) == (3, 1)
    assert one.coordinator_bytes < most.coordinator_bytes
    assert plan(budget_bytes=most.coordinator_bytes).together == 3
    assert plan(budget_bytes=most.coordinator_bytes - 1).together == 2
    assert plan(budget_bytes=1).together == 1
    # Elsewhere a worker takes nothing here.
    assert plan(shares_memory=False).coordinator_bytes < most.coordinator_bytes


def test_a_plan_that_does_not_fit_is_refused_with_numbers() -> None:
    found = plan(together=1)
    found.require(found.coordinator_bytes)
    with pytest.raises(MemoryBudgetError, match=r"a pool of 1,000 prototypes and 5 folds .* budget is 100 MiB.*`pool`"):
        found.require(100 * MEBIBYTE)
    with pytest.raises(MemoryBudgetError, match="2 MiB held already"):
        found.require(found.coordinator_bytes, 2 * MEBIBYTE)
    small = plan(pool=100)
    assert small.coordinator_bytes < found.coordinator_bytes
    assert small.to_json()["coordinator_bytes"] == small.coordinator_bytes


def test_more_samples_take_n_vectors_and_no_more() -> None:
    few, many = plan(200_000, pool=200), plan(3_200_000, pool=200)
    assert many.coordinator_bytes - few.coordinator_bytes < 3_000_000 * 300


def test_what_is_taken_is_less_than_what_was_planned(rng: np.random.Generator) -> None:
    n, pool = 6000, 500
    X = rng.standard_normal((n, 3))
    codes = (np.sin(X[:, 0]) + X[:, 1] > 0.0).astype(int)
    dataset, labels = memory_dataset(X, codes.astype(float)), Labels(("a", "b"), codes)
    settings = FixedSizeSettings(pool=pool, search="none", prototypes="uniform", noise_variances=(0.1,), stop=None)
    executor = LocalExecutor(2)
    kernel = SquaredExponential(gamma=(0.5, 0.5, 0.5))
    tracemalloc.start()
    train_fixed_size(LabelledData(dataset, labels), settings, executor, kernel=kernel)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    executor.close()
    planned = settings.memory(TrainingSizes(n, 3, 1, executor, 2**20)).coordinator_bytes - 256 * MEBIBYTE
    assert 0.3 * planned < taken < 1.1 * planned
