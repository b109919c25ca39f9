"""Workers whose lifetimes are Poisson's, ended by a segmentation fault, under each kind of work: the same bits."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data import ModelRecord, open_prediction
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import ClusterError
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import BlockedKernelOperator
from tests.engine.helpers import Problem, bits, client_of, opened
from tests.engine.plugins import Mortal
from tests.engine.test_faults import chosen_greedily, classified, fitted

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]

Work = Callable[[BlockExecutor, Path], list[bytes]]


@pytest.fixture
def works(problem: Problem, model: ModelRecord, tmp_path: Path) -> dict[str, Work]:
    X, _ = friedman1(120, n_features=6, seed=8, test=True)
    tests = dataset_from_arrays(str(tmp_path / "test.zarr"), X, None)
    y = problem.dataset.all_targets()

    def on_operator(work: Callable[[BlockedKernelOperator, np.ndarray], list[np.ndarray]]) -> Work:
        def run(executor: BlockExecutor, _: Path) -> list[bytes]:
            with BlockedKernelOperator(problem.kernel, 0.05, problem.dataset, executor) as operator:
                return [np.ascontiguousarray(part).tobytes() for part in work(operator, y)]

        return run

    def exact(executor: BlockExecutor, _: Path) -> list[bytes]:
        alpha, gradient, rounds = bits(problem.train(executor))
        return [alpha, gradient, str(rounds).encode()]

    def variances(executor: BlockExecutor, out: Path) -> list[bytes]:
        settings = VarianceSettings(gap=1e-3, rank=150, halo=0, batch_size=30)
        predict(model, tests, str(out), executor, variance=settings)
        stored = open_prediction(str(out))
        return [stored.read(name).tobytes() for name in sorted(stored.variables)]

    return {
        "exact": exact,
        "variances": variances,
        "sparse": on_operator(lambda operator, y: fitted(operator, y, "vfe")),
        "greedy": on_operator(chosen_greedily),
        "classifier": on_operator(classified),
    }


@pytest.fixture
def no_cores() -> Iterator[None]:
    """Workers that start have this process's limits."""
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, limits)


@pytest.mark.usefixtures("no_cores")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "mean_seconds"),
    # A batch of variances keeps more on its workers, and takes longer to be there again.
    [("exact", 4.0), ("variances", 20.0), ("sparse", 4.0), ("greedy", 4.0), ("classifier", 4.0)],
)
def test_workers_that_live_no_longer_than_chance_has_it(
    name: str, mean_seconds: float, works: dict[str, Work], tmp_path: Path
) -> None:
    work, deaths = works[name], tmp_path / "deaths"
    deaths.mkdir()
    here, began = LocalExecutor(1), time.monotonic()
    expected = work(here, tmp_path / "expected")
    here.close()
    # On a busy machine, too, workers live for as long as the work takes, by which it is done, and die when they have
    # started: distributed replaces none that dies before its nanny has heard of it.
    mean_seconds = max(mean_seconds, 2.0 * (time.monotonic() - began))
    runs, until = 0, time.monotonic() + max(100.0, 10.0 * mean_seconds)
    # Here it is not the task that ends its workers, however often it was there, which distributed may take it for.
    with opened("processes", 2) as executor:
        client_of(executor).register_plugin(Mortal(str(deaths), mean_seconds, least_seconds=0.5 * mean_seconds))
        while len(list(deaths.iterdir())) < 2 and time.monotonic() < until:
            found = work(executor, tmp_path / f"run-{runs}")
            assert found == expected
            runs += 1
    died = len(list(deaths.iterdir()))
    print(f"\n{name}: {runs} runs over {died} deaths of workers, who live {mean_seconds:.1f} s, the same bits")
    assert died >= 2


def lethal(group: list[int]) -> list[int]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return group


@pytest.mark.usefixtures("no_cores")
def test_a_task_that_kills_every_worker_is_an_error_that_says_so() -> None:
    """A task that kills each of its workers is given up: distributed counts `allowed-failures`."""
    with opened("processes", 2, round_deadline_seconds=90.0) as executor:
        pending: Any = executor.submit("lethal", lethal, (), [[1], [2]])
        with pytest.raises(ClusterError, match="worker"):
            pending.result()
