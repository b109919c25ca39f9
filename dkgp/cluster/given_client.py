"""A cluster that a caller has and keeps: rounds on a Dask client that was handed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dask.config

from dkgp.cluster.announcer import Announcer, LogAnnouncer
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.options import ClusterOptions
from dkgp.cluster.tile_budget import budget_elsewhere, budget_here
from dkgp.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["is_in_process", "open_client_executor"]


def is_in_process(client: Client) -> bool:
    """True if the client's scheduler, and so its workers, live in this process."""
    scheduler: Any = client.scheduler
    return scheduler is not None and str(scheduler.address).startswith("inproc://")


@contextmanager
def open_client_executor(
    client: Client, options: ClusterOptions | None = None, announcer: Announcer | None = None
) -> Iterator[BlockExecutor]:
    """Run rounds on a client, which stays open.

    Parameters
    ----------
    client : distributed.Client
        Synchronous and connected.
    options : ClusterOptions, optional
        Deadlines and cache size.
    announcer : Announcer, optional
        Told of differences in versions.

    Raises
    ------
    UsageError
        Something else than such a client.
    ClusterError
        Its workers cannot be set up, or run other versions than this process.
    """
    from distributed import Client

    from dkgp.cluster.executors.dask import DaskExecutor
    from dkgp.cluster.versions import compare_versions, fetch_versions

    if not isinstance(client, Client) or client.asynchronous or client.status != "running":
        raise UsageError(
            f"client= takes a dask.distributed.Client that is connected and not asynchronous; got {client!r}"
        )
    chosen = options or ClusterOptions()
    settings = {
        "distributed.comm.retry.count": 3,
        "distributed.scheduler.no-workers-timeout": f"{chosen.round_deadline_seconds:.0f}s",
    }
    in_process = is_in_process(client)
    if not in_process:
        for warning in compare_versions(fetch_versions(client)):
            (announcer or LogAnnouncer()).warn(warning)
    with dask.config.set(settings):
        executor = DaskExecutor(
            client,
            round_deadline_seconds=chosen.round_deadline_seconds,
            cache_bytes=chosen.cache_bytes,
            in_process=in_process,
            tiles=(
                budget_here(chosen.cache_tiles)
                if in_process
                else budget_elsewhere(chosen.cache_tiles, client.scheduler_info(n_workers=-1)["workers"].values())
            ),
        )
        try:
            yield executor
        finally:
            executor.close()
