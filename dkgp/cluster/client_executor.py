"""Rounds on a Dask client: one that a caller brings and keeps, or one that `connect` has opened.

The versions of client, scheduler and workers are compared first: some differences are errors, others are warnings.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import dkgp
from dkgp.cluster.cache import TileBudget, budget_elsewhere, budget_here
from dkgp.cluster.configuration import configured_resources
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.options import ClusterOptions
from dkgp.errors import ClusterError, UsageError
from dkgp.registry import LaterModule

if TYPE_CHECKING:
    from distributed import Client

    from dkgp.cluster.executors.dask import DaskExecutor

dask: Any = LaterModule("dask")


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
    except Exception:  # however it fails, the scheduler then passes the results on
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
    """Return the executor of a client; by default the budget of tiles follows from the workers' memory limits."""
    from dkgp.cluster.executors.dask import DaskExecutor

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


# Where one of these differs, tasks fail or, worse, compute something else.
_DECISIVE = ("dkgp", "python", "dask", "distributed")
# Where one of these differs, tasks work as a rule, but the bits of a result may differ.
_OTHERS = ("numpy", "scipy", "numba", "llvmlite", "zarr", "cloudpickle", "msgpack")
_ANSWER_SECONDS = 60.0
_MOST_NAMED = 3
_SAME = (
    "Start the scheduler and all workers from the same image or environment as this process, for instance with `pip "
    "install -c constraints.txt dkgp=={version}`"
)


@dataclass(frozen=True)
class Software:
    """Versions by package, None where one is not installed: this process's, the scheduler's, each worker's."""

    client: Mapping[str, str | None]
    scheduler: Mapping[str, str | None]
    workers: Mapping[str, Mapping[str, str | None]]


def fetch_versions(client: Client) -> Software:
    """Ask scheduler and workers at the same time. They look at installed packages; nothing is imported there.

    `ClusterError` where somebody does not answer.
    """
    from distributed.versions import get_versions

    packages = [name for name in (*_DECISIVE, *_OTHERS) if name != "python"]

    async def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        scheduler: Any = client.scheduler
        of_scheduler, of_workers = await asyncio.gather(
            scheduler.versions(packages=packages),
            # A worker that leaves at this moment is not worth an error.
            scheduler.broadcast(msg={"op": "versions", "packages": packages}, on_error="ignore"),
        )
        return of_scheduler, of_workers

    try:
        scheduler, workers = client.sync(ask, callback_timeout=_ANSWER_SECONDS)
    except (TimeoutError, OSError) as error:
        raise ClusterError(
            f"scheduler and workers did not all answer within {_ANSWER_SECONDS:.0f} s ({type(error).__name__}). Look "
            "for a worker that is frozen or unreachable, and take it out of the cluster"
        ) from error
    return Software(
        _plain(get_versions(packages=packages)),
        _plain(scheduler),
        {address: _plain(installed) for address, installed in workers.items() if isinstance(installed, dict)},
    )


def _plain(installed: Mapping[str, Any]) -> dict[str, str | None]:
    packages = dict(installed["packages"])
    # Of "3.11.7.final.0" the minor version, which decides whether code can travel.
    packages["python"] = ".".join(str(packages["python"]).split(".")[:2])
    return packages


def compare_versions(software: Software) -> list[str]:
    """Warnings where packages differ; `ClusterError` where dkgp, Python, dask or distributed do.

    Both have a table of the versions.
    """
    wrong = [name for name in _DECISIVE if _differs(software, name)]
    if wrong:
        table = "\n".join(_table(software, wrong))
        advice = _SAME.format(version=dkgp.__version__)
        raise ClusterError(f"scheduler or workers run other versions than this process:\n{table}\n{advice}")
    others = [name for name in _OTHERS if _differs(software, name)]
    if not others:
        return []
    table = "\n".join(_table(software, others))
    return [
        f"scheduler or workers run other versions of some packages than this process; results may differ in their last "
        f"bits:\n{table}"
    ]


def _differs(software: Software, name: str) -> bool:
    expected = software.client.get(name)
    return software.scheduler.get(name) != expected or any(
        installed.get(name) != expected for installed in software.workers.values()
    )


def _table(software: Software, names: list[str]) -> list[str]:
    rows = [("package", "this process", "scheduler", "workers")]
    for name in names:
        hosts: dict[str, list[str]] = {}
        for address, installed in sorted(software.workers.items()):
            hosts.setdefault(_shown(installed.get(name)), []).append(address)
        expected = _shown(software.client.get(name))
        parts = [
            f"{version} ({_named(addresses)})" for version, addresses in sorted(hosts.items()) if version != expected
        ]
        same = len(hosts.get(expected, []))
        if same:
            parts.append(f"{expected} ({same} of {len(software.workers)})")
        rows.append((name, expected, _shown(software.scheduler.get(name)), "; ".join(parts)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]


def _shown(version: str | None) -> str:
    return version or "missing"


def _named(addresses: list[str]) -> str:
    more = len(addresses) - _MOST_NAMED
    return ", ".join(addresses[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
