from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import dask
import pytest
from distributed import Client, LocalCluster

SETTINGS = {"distributed.worker.profile.enabled": False, "distributed.comm.retry.count": 1}

StartCluster = Callable[..., Client]


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Start clusters of this test's own, each with a client; all are closed afterwards."""
    opened: list[Client | LocalCluster] = []

    def start(*, settings: dict[str, object] | None = None, timeout: float = 10.0, **options: object) -> Client:
        given = {
            "n_workers": 1,
            "threads_per_worker": 1,
            "dashboard_address": "127.0.0.1:0",
            "silence_logs": 50,
            **options,
        }
        with dask.config.set({**SETTINGS, **(settings or {})}):
            cluster = LocalCluster(**given)  # type: ignore[arg-type]
            opened.append(cluster)
            client = Client(cluster, timeout=timeout, set_as_default=False)
            opened.append(client)
        return client

    yield start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tests here lose workers and schedulers on purpose
        for item in reversed(opened):
            item.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two workers of one thread in this process."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
