"""Rounds on a Dask client: one that a caller brings and keeps, or one that `connect` has opened."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import dask.config

from dkgp.cluster.configuration import configured_resources
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.options import ClusterOptions
from dkgp.cluster.tile_budget import TileBudget, budget_elsewhere, budget_here
from dkgp.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client

    from dkgp.cluster.executors.dask import DaskExecutor


logger = logging.getLogger("dkgp.cluster")

REACH_SECONDS = 2.0
_MOST_PROBES = 16


class Announcer(Protocol):
    """Takes messages; a job's reporter is one."""

    def note(self, message: str) -> None:
        """Say something worth knowing."""

    def warn(self, message: str) -> None:
        """Say something that may need the user's attention."""


class LogAnnouncer:
    """Writes messages to Python's log, for callers that take them in no other way."""

    def note(self, message: str) -> None:
        """Log at level INFO."""
        logger.info(message)

    def warn(self, message: str) -> None:
        """Log at level WARNING."""
        logger.warning(message)


# Clients that a forked child has from its parent, where the threads that serve them stayed.
_of_parent: weakref.WeakSet[Any] = weakref.WeakSet()


def _note_clients_of_parent() -> None:
    module = sys.modules.get("distributed.client")
    _of_parent.update(getattr(getattr(module, "Client", None), "_instances", ()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_clients_of_parent)


def require_this_process(client: Any) -> None:
    """Refuse a client of the parent in a forked child, where it would wait without end; `UsageError`."""
    if client in _of_parent:
        raise UsageError(
            "client= was connected before this process was forked, and a forked process cannot use it; make a "
            "distributed.Client in this process, or start it by 'spawn'"
        )


def is_in_process(client: Client) -> bool:
    """True if the client's scheduler, and so its workers, live in this process."""
    scheduler: Any = client.scheduler
    if scheduler is not None and str(scheduler.address).startswith("inproc://"):
        return True
    require_this_process(client)
    return False


def client_around() -> Client | None:
    """Return this process's default client, the one that `distributed.Client()` made last; None without one.

    None as well within a task, which would wait for workers that it may hold itself, for a client that is asynchronous,
    not connected or a forked process's parent's, and where dask's configuration names another scheduler. distributed is
    not imported here.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or dask.config.get("scheduler", None) not in (None, "dask.distributed", "distributed"):
        return None
    try:
        distributed.get_worker()
    except (ValueError, AttributeError):  # not within a task; or distributed is still being imported
        pass
    else:
        return None
    try:
        client: Client = distributed.default_client()
    except (ValueError, AttributeError):
        return None
    return None if client.asynchronous or client.status != "running" or client in _of_parent else client


@contextmanager
def open_client_executor(client: Client) -> Iterator[BlockExecutor]:
    """Run rounds on a client, synchronous and connected, which stays open; differences in versions are logged.

    `UsageError` for something else than such a client; `ClusterError` where its workers cannot be set up, or run other
    versions than this process.
    """
    from distributed import Client

    if not isinstance(client, Client) or client.asynchronous or client.status != "running":
        raise UsageError(
            f"client= takes a dask.distributed.Client that is connected and not asynchronous; got {client!r}"
        )
    require_this_process(client)
    options = ClusterOptions(resources=configured_resources())
    in_process = is_in_process(client)
    with (
        dask.config.set(patience(options)),
        direct_results(client, in_process),
        closing(executor_on(client, options, LogAnnouncer(), in_process)) as executor,
    ):
        yield executor


@contextmanager
def direct_results(client: Client, in_process: bool = False) -> Iterator[None]:
    """Fetch results from the workers themselves while the context is open, if this process can connect to them.

    By itself a client fetches them through the scheduler, whose process then copies all of them. A user's own choice
    (`direct_to_workers`) stays.
    """
    # Another thread's context may have set it, and resets it then.
    if in_process or client.direct_to_workers is not None or not client.sync(_reaches_workers, client):
        yield
        return
    client.direct_to_workers = True
    try:
        yield
    finally:
        client.direct_to_workers = None


async def _reaches_workers(client: Client) -> bool:
    """Return True if the first few workers all take a connection; behind a gateway or a forwarded port none does."""
    from distributed.comm.core import connect

    async def reach(address: str) -> None:
        comm = await connect(address, timeout=REACH_SECONDS, **client.connection_args)
        await comm.close()

    try:
        scheduler: Any = client.scheduler
        addresses = list(await scheduler.ncores())[:_MOST_PROBES]
        await asyncio.wait_for(asyncio.gather(*map(reach, addresses)), 2.0 * REACH_SECONDS)
    except Exception:  # by whatever way it cannot be reached, the scheduler hands the results on
        return False
    return bool(addresses)


def patience(options: ClusterOptions) -> dict[str, Any]:
    """Configuration of a client: a torn connection is retried, and a cluster without workers gives up.

    Dask's defaults would wait for ever.
    """
    return {
        "distributed.comm.retry.count": 3,
        "distributed.scheduler.no-workers-timeout": f"{options.round_deadline_seconds:.0f}s",
    }


def executor_on(
    client: Client,
    options: ClusterOptions,
    announcer: Announcer,
    in_process: bool,
    *,
    owns_workers: bool = False,
    tiles: TileBudget | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> DaskExecutor:
    """Return the executor of a client; by default the budget of tiles follows from what the workers say they have."""
    from dkgp.cluster.executors.dask import DaskExecutor
    from dkgp.cluster.versions import compare_versions, fetch_versions

    if not in_process:
        for warning in compare_versions(fetch_versions(client)):
            announcer.warn(warning)
    if in_process:
        tiles = budget_here(options.cache_tiles)
    elif tiles is None:
        tiles = budget_elsewhere(options.cache_tiles, client.scheduler_info(n_workers=-1)["workers"].values())
    return DaskExecutor(
        client,
        round_deadline_seconds=options.round_deadline_seconds,
        cache_bytes=options.cache_bytes,
        in_process=in_process,
        owns_workers=owns_workers,
        tiles=tiles,
        most_workers=options.most_workers,
        resources=options.resources,
        interrupted=interrupted,
    )
