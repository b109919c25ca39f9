"""A Dask cluster of this machine for tests whose workers may be killed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster

from dkgp.cluster.executors.dask import DaskExecutor


@contextmanager
def local_cluster(
    workers: int, *, processes: bool = False, threads: int = 1, **settings: Any
) -> Iterator[tuple[LocalCluster, Client]]:
    """Start workers, in processes of their own or in this one, and a client; warnings of workers that die are hidden.

    `settings` are Dask's.
    """
    with (
        warnings.catch_warnings(),
        dask.config.set({"distributed.worker.profile.enabled": False} | settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=processes,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        warnings.simplefilter("ignore")
        yield cluster, client


@contextmanager
def on_dask(
    workers: int, processes: bool, *, threads: int = 1, **settings: Any
) -> Iterator[tuple[DaskExecutor, Client]]:
    """Start workers, and an executor for them with these settings."""
    with local_cluster(workers, processes=processes, threads=threads) as (_, client):
        executor = DaskExecutor(client, in_process=not processes, **settings)
        yield executor, client
        executor.close()
