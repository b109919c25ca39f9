"""The factor on Dask: the same bits for any number of workers, and for those that were lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import HereExecutor, LocalExecutor, RoundTasks
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.vecchia.factor import VecchiaFactor
from tests.workers import on_dask

N = 700
KERNEL = SquaredExponential(gamma=(0.5, 0.8, 1.1), variance=1.3)
MARKS = np.arange(0, N, 20)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A store, which worker processes read too."""
    rng = np.random.default_rng(0)
    return dataset_from_arrays(tmp_path_factory.mktemp("store") / "data", rng.standard_normal((N, 3)), np.arange(N))


def operator(dataset: Dataset, executor: Any) -> BlockedKernelOperator:
    noise = np.random.default_rng(1).uniform(0.01, 0.1, N)
    return BlockedKernelOperator(KERNEL, noise, dataset, executor)


def vectors() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((N, 2))


@pytest.fixture(scope="module")
def expected(dataset: Dataset) -> dict[int, np.ndarray]:
    """M^-1 r by threads of this process, without and with a low-rank part."""
    executor = LocalExecutor(1)
    found = {
        rank: VecchiaFactor(operator(dataset, executor), 80, 35, MARKS[:rank]).apply(vectors())
        for rank in (0, len(MARKS))
    }
    executor.close()
    worker_cache().clear()
    return found


class Watched(HereExecutor):
    """Notes the bundles of each task that builds."""

    def __init__(self) -> None:
        super().__init__(2)
        self.tasks: list[list[int]] = []

    def start(self, tasks: RoundTasks) -> Any:
        if tasks.name == "kvbuild":
            self.tasks += [list(group) for group in tasks.groups]
        return super().start(tasks)


@pytest.mark.parametrize("rank", [0, len(MARKS)])
@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({}, 4),
        ({"MOST_BUNDLES": 7}, 7),
        ({"TASK_OPERATIONS": 1.0}, 1),
        ({"LOT_BYTES": 2 * 2 * 8 * len(MARKS) ** 2}, 2),
    ],
)
def test_tasks_build_a_few_bundles_each_to_the_same_bits(
    limits: dict[str, float],
    most: int,
    rank: int,
    dataset: Dataset,
    expected: dict[int, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(f"dkgp.operators.vecchia.factor.{name}", value)
    executor = Watched()
    factor = VecchiaFactor(operator(dataset, executor), 80, 35, MARKS[:rank])
    np.testing.assert_array_equal(factor.apply(vectors()), expected[rank])
    built = [bundle for task in executor.tasks for bundle in task]
    assert sorted(built) == list(range(factor.recipe.leaves.n_bundles))
    # Without landmarks no matrices come back.
    assert max(map(len, executor.tasks)) == (4 if "LOT_BYTES" in limits and not rank else most)
    assert factor.memory_bytes + factor.disk_bytes == factor.nbytes > 0


@pytest.mark.faults
def test_processes_of_which_one_is_lost(dataset: Dataset, expected: dict[int, np.ndarray]) -> None:
    with on_dask(2, processes=True) as (executor, client):
        factors = {rank: VecchiaFactor(operator(dataset, executor), 80, 35, MARKS[:rank]) for rank in expected}
        for rank, result in expected.items():
            np.testing.assert_array_equal(factors[rank].apply(vectors()), result)
        lost = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        client.retire_workers([lost], close_workers=True)
        for rank, result in expected.items():
            np.testing.assert_array_equal(factors[rank].apply(vectors()), result)


@pytest.mark.slow
def test_processes_with_little_room(dataset: Dataset, expected: dict[int, np.ndarray]) -> None:
    with on_dask(2, processes=True, cache_bytes=150_000) as (executor, _):
        for rank, result in expected.items():
            factor = VecchiaFactor(operator(dataset, executor), 80, 35, MARKS[:rank])
            assert factor.disk_bytes > 0
            np.testing.assert_array_equal(factor.apply(vectors()), result)
