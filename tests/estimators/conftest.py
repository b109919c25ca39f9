from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dkgp import GPRegressor
from dkgp.estimators import outputs
from dkgp.kernels import SquaredExponential

NOISE = 0.01
KERNEL = SquaredExponential(gamma=(0.8, 0.3, 0.05))


@dataclass(frozen=True)
class Problem:
    """Samples with a constant feature, units far apart, and new points."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray


def make_problem(n: int, new: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n + new, 3)) * (3.0, 1.0, 0.01) + (100.0, 0.0, 5.0)
    X = np.column_stack([features[:, 0], np.full(n + new, 7.0), features[:, 1:]])
    signal = np.sin(features[:, 0] / 2.0) + features[:, 1] ** 2
    y = 50.0 + 20.0 * (signal + 0.1 * rng.normal(size=n + new))
    return Problem(X[:n], y[:n], X[n:], y[n:])


@pytest.fixture(scope="session")
def problem() -> Problem:
    return make_problem(300, 60, seed=3)


@pytest.fixture(scope="session")
def fitted(problem: Problem) -> GPRegressor:
    """With hyperparameters that are given; not to be changed by a test."""
    return GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Samples of each block that is predicted."""
    found, compute = [], outputs._PredictBlock.__call__
    monkeypatch.setattr(
        outputs._PredictBlock, "__call__", lambda self, block: found.append(len(block)) or compute(self, block)
    )
    return found


@pytest.fixture(scope="module")
def inner_client() -> Iterator[Client]:
    """Workers in this process."""
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


# A cluster of a process is started for all tests of this folder, and ended before others run: it takes its share of a
# core even when it rests.
_HELD = ExitStack()
_CLIENTS: list[Client] = []


@pytest.fixture
def outer_client() -> Client:
    """A worker in a process of its own."""
    if not _CLIENTS:
        own = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        with dask.config.set({"distributed.worker.profile.enabled": False}):
            cluster = _HELD.enter_context(LocalCluster(processes=True, **own))
            _CLIENTS.append(_HELD.enter_context(Client(cluster, set_as_default=False)))
    return _CLIENTS[0]


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _CLIENTS.clear()
        _HELD.close()
