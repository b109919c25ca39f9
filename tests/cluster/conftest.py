from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from tests.cluster.helpers import Certificates, StartProcess, make_certificates

SETTINGS = {"distributed.worker.profile.enabled": False, "distributed.comm.retry.count": 1}

StartCluster = Callable[..., Client]


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Start clusters of this test's own, each with a client; all are closed afterwards."""
    opened: list[Client | LocalCluster] = []

    def start(*, settings: dict[str, object] | None = None, timeout: float = 120.0, **options: object) -> Client:
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


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    """Start `python -m ...` in the background; whatever still runs afterwards is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, log: Path | None = None, environment: dict[str, str] | None = None) -> Any:
        command = [sys.executable, "-m", *(str(argument) for argument in arguments)]
        with open(os.devnull if log is None else log, "w") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, stdout=output, stderr=output, text=True
            )
        started.append(process)
        return process

    yield start
    for process in reversed(started):
        process.terminate()
    for process in started:
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
