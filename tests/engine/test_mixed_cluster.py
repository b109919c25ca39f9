"""A cluster of unlike processors: the same bits where dkgp's own loops are all that workers run, refused elsewhere."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.cluster.arithmetic import fetch_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.data import Dataset, open_model
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import ClusterError
from dkgp.kernels import Periodic, SquaredExponential
from dkgp.models import tune_dataset
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.cells.operator import CellKernelOperator
from dkgp.operators.contract_tasks import contract
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    MaxPasses,
    TiledCholesky,
    solve,
)
from tests.engine.conftest import REPOSITORY
from tests.engine.helpers import client_of, opened
from tests.targets import code_cache, environment, inherited, other_target, require_targets, vector_code

pytestmark = pytest.mark.portable

N = 1500


@pytest.fixture(scope="module")
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a scheduler with two workers: this processor as it is, and one that is another in all respects."""
    require_targets()
    folder = tmp_path_factory.mktemp("mixed")
    other = environment(
        code_cache(request.config), target=other_target(), blas="Sandybridge", without=vector_code()[-1]
    )
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **variables: str) -> None:
        command = [sys.executable, "-m", "dask", *(str(argument) for argument in arguments)]
        given: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, env={**inherited(), "PYTHONPATH": REPOSITORY, **variables}, **given))

    path = folder / "scheduler.json"
    worker = ("worker", "--scheduler-file", path, "--nthreads", 1, "--no-dashboard", "--no-nanny")
    try:
        start("scheduler", "--host", "127.0.0.1", "--port", 0, "--no-dashboard", "--scheduler-file", path)
        until = time.monotonic() + 240.0
        while not (path.exists() and path.read_text().rstrip().endswith("}")):
            assert started[0].poll() is None
            assert time.monotonic() < until, "the scheduler wrote no file"
            time.sleep(0.05)
        start(*worker, "--local-directory", folder)
        start(*worker, "--local-directory", folder, **other)
        yield str(json.loads(path.read_text())["address"])
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def on(address: str) -> Iterator[Any]:
    """An executor on both workers, each with its share of every round."""
    with open_executor(ClusterOptions(scheduler=address, workers=2, worker_wait_seconds=240.0), 10**6) as executor:
        executor.least_task_evaluations = 0  # type: ignore[misc]
        yield executor


Data = Callable[[int], Dataset]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """A dataset store of so many features."""
    folder = tmp_path_factory.mktemp("data")

    @cache
    def made(d: int) -> Dataset:
        generator = np.random.default_rng(d)
        X = generator.standard_normal((N, d))
        y = np.sin(X[:, :3]).sum(axis=1) + 0.1 * generator.standard_normal(N)
        return dataset_from_arrays(str(folder / f"{d}.zarr"), X, y)

    return made


def operator_of(executor: BlockExecutor, dataset: Dataset, kernel: Any = None) -> BlockedKernelOperator:
    d = dataset.n_features
    return BlockedKernelOperator(kernel or SquaredExponential(gamma=(0.5 / d,) * d), 0.05, dataset, executor)


def solved(executor: BlockExecutor, dataset: Dataset, kernel: Any = None, solver: Any = None) -> np.ndarray:
    with operator_of(executor, dataset, kernel) as operator:
        solution = solve(
            operator,
            dataset.targets(0, N),
            solver=solver or GreedyBlockCoordinateDescent(block_size=150),
            stopping=GradientInfNorm(1e-2) | MaxPasses(20),
        )
    return solution.alpha


def bits_of_alpha(executor: BlockExecutor, dataset: Dataset, kernel: Any = None) -> str:
    return hashlib.sha256(solved(executor, dataset, kernel).tobytes()).hexdigest()[:8]


def test_workers_unlike_each_other_come_to_the_bits_of_one_thread(mixed: str, data: Data) -> None:
    periodic = Periodic(gamma=(0.2, 0.1, 0.3), period=(2.0, 3.1, 4.7))
    problems = ((data(10), None), (data(40), None), (data(3), periodic))
    with opened("none", 1) as executor:
        expected = [bits_of_alpha(executor, *given) for given in problems]
    assert len(set(expected)) == len(problems)
    with on(mixed) as executor:
        held = fetch_arithmetic(client_of(executor))
        assert len({arithmetic.parts["blas"] for arithmetic in held.values()}) == 2
        assert len({arithmetic.processor for arithmetic in held.values()}) == 2
        assert [bits_of_alpha(executor, *given) for given in problems] == expected
        assert all(misses > 0 for misses in client_of(executor).run(lambda: worker_cache().misses).values())


def test_products_by_cells_have_the_bits_of_one_thread(mixed: str, data: Data) -> None:
    def product(executor: BlockExecutor) -> bytes:
        dataset = data(3)
        with CellKernelOperator(SquaredExponential((9.0, 9.0, 9.0)), 0.05, dataset, executor) as operator:
            found = [operator.matmat(dataset.targets(0, N), precision) for precision in ("single", "double")]
            return b"".join(array.tobytes() for array in (*found, operator.error_rows))

    with opened("none", 1) as executor:
        expected = product(executor)
    with on(mixed) as executor:
        assert product(executor) == expected


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 9, 10, 12, 40])
def test_one_value_whoever_computes(mixed: str, data: Data, d: int) -> None:
    found: dict[str, str] = {}
    for kind, workers in (("none", 1), ("none", 2), ("local", 1), ("local", 2), ("local", 2), ("processes", 2)):
        with opened(kind, workers) as executor:
            name = f"{kind} {workers}"
            found[f"{name} again" if name in found else name] = bits_of_alpha(executor, data(d))
    with on(mixed) as executor:
        found["processes 2, one unlike the other"] = bits_of_alpha(executor, data(d))
    print(f"d = {d}: {found}")
    assert len(found) == 7
    assert len(set(found.values())) == 1, found


def preconditioned(executor: BlockExecutor, dataset: Dataset, folder: Path) -> None:
    solved(executor, dataset, solver=ConjugateGradient(preconditioner=FactorPreconditioning(0, rank=50)))


def tiled(executor: BlockExecutor, dataset: Dataset, folder: Path) -> None:
    solved(executor, dataset, solver=TiledCholesky(folder=str(folder / "tiles")))


def tuned(executor: BlockExecutor, dataset: Dataset, folder: Path) -> None:
    tune_dataset(dataset, subsets=2, subset=100, executor=executor)


def contracted(executor: BlockExecutor, dataset: Dataset, folder: Path) -> None:
    contract(operator_of(executor, dataset), dataset.targets(0, N), [np.eye(1)])


def variances(executor: BlockExecutor, dataset: Dataset, folder: Path) -> None:
    trained = train(dataset, SquaredExponential((0.2, 0.2, 0.2)), 0.05, executor, stopping=MaxPasses(1))
    with tempfile.TemporaryDirectory() as elsewhere:
        save(trained, f"{elsewhere}/model.zarr", dataset)
        model = open_model(f"{elsewhere}/model.zarr")
        predict(model, dataset, str(folder / "means.zarr"), executor)
        shutil.rmtree(folder / "means.zarr")
        predict(model, dataset, str(folder / "variances.zarr"), executor, variance=VarianceSettings())


WORK = (preconditioned, tiled, tuned, contracted, variances)


def test_work_that_takes_bits_from_a_library_is_refused_with_the_hosts(mixed: str, data: Data, tmp_path: Path) -> None:
    with on(mixed) as executor:
        addresses = list(fetch_arithmetic(client_of(executor)))
        for work in WORK:
            with pytest.raises(ClusterError, match="of libraries. The workers have different libraries") as caught:
                work(executor, data(3), tmp_path)
            message = str(caught.value)
            assert all(f"{address} (host " in message for address in addresses)
            assert "Sandybridge" in message
            assert "OPENBLAS_CORETYPE" in message
        assert list(tmp_path.iterdir()) == []  # nothing was begun
