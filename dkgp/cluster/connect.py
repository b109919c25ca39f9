"""Finding or starting a cluster: by address, by scheduler file, from dask's configuration, or one in this process.

Precedence: scheduler > scheduler file > kind > dask configuration (`scheduler-address`, `DASK_SCHEDULER_ADDRESS`) >
default. A cluster started here is always closed; one that was found never is.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import dask.config

from dkgp.cluster.executors import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.errors import ClusterError, InputError, UsageError

__all__ = ["ClusterKind", "ClusterOptions", "UnreachableSchedulerError", "open_executor"]

ClusterKind = Literal["auto", "none", "local", "processes"]

# Below this many samples a round is shorter than the scheduler's round trip.
SMALL_PROBLEM_SAMPLES = 20_000
WORKERS_WAIT_SECONDS = 120.0


class UnreachableSchedulerError(InputError):
    """No scheduler answered at the address given."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where rounds run.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, tcp://host:port.
    scheduler_file : str, optional
        A file that a scheduler wrote its address to.
    kind : {"auto", "none", "local", "processes"}
        "none" runs without Dask, on this process's threads; "local" starts an in-process cluster; "processes" one
        worker process for each core; "auto" takes a configured scheduler, else "none" for small problems and "local"
        for the rest.
    workers, threads_per_worker : int, optional
        Of a cluster that is started here.
    connect_timeout_seconds : float
        How long a scheduler may take to answer.
    round_deadline_seconds : float
        How long one round may take.
    cache_bytes : int
        Feature cache of each worker process.
    """

    scheduler: str | None = None
    scheduler_file: str | None = None
    kind: ClusterKind = "auto"
    workers: int | None = None
    threads_per_worker: int | None = None
    connect_timeout_seconds: float = 20.0
    round_deadline_seconds: float = 900.0
    cache_bytes: int = 2 * 1024**3

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("threads per worker", self.threads_per_worker)):
            if value is not None and value < 1:
                raise UsageError(f"the number of {name} must be at least 1; got {value}")
        if self.kind not in ("auto", "none", "local", "processes"):
            raise UsageError(f"unknown cluster kind {self.kind!r}; known: auto, none, local, processes")

    def address(self) -> str | None:
        """Return the address of the scheduler to use, where one was named or configured."""
        if self.scheduler:
            return self.scheduler
        if self.scheduler_file:
            return _address_from_file(self.scheduler_file)
        if self.kind == "auto":
            configured = dask.config.get("scheduler-address", None)
            return str(configured) if configured else None
        return None


@contextmanager
def open_executor(options: ClusterOptions, n_samples: int) -> Iterator[BlockExecutor]:
    """Find or start what the options ask for.

    Parameters
    ----------
    options : ClusterOptions
    n_samples : int
        Size of the problem; decides whether "auto" needs Dask at all.

    Yields
    ------
    BlockExecutor

    Raises
    ------
    UnreachableSchedulerError
        The scheduler did not answer in time.
    ClusterError
        It answered, but no worker came.
    """
    address = options.address()
    small = n_samples <= SMALL_PROBLEM_SAMPLES
    if address is None and (options.kind == "none" or (options.kind == "auto" and small)):
        executor = LocalExecutor(options.workers or options.threads_per_worker)
        try:
            yield executor
        finally:
            executor.close()
        return
    with ExitStack() as stack:
        yield _dask(options, address, stack)


def _dask(options: ClusterOptions, address: str | None, stack: ExitStack) -> BlockExecutor:
    from distributed import Client, LocalCluster

    from dkgp.cluster.dask_executor import DaskExecutor

    # A torn connection is retried and a cluster without workers gives up, where dask's defaults would wait for ever.
    stack.enter_context(
        dask.config.set(
            {
                "distributed.comm.retry.count": 3,
                "distributed.scheduler.no-workers-timeout": f"{options.round_deadline_seconds:.0f}s",
                "distributed.worker.profile.enabled": False,
            }
        )
    )
    in_process = False
    if address is None:
        in_process = options.kind in ("auto", "local")
        cores = available_cores()
        workers = options.workers or (1 if in_process else cores)
        threads = options.threads_per_worker or max(1, cores // workers)
        cluster = stack.enter_context(
            LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                processes=not in_process,
                dashboard_address="127.0.0.1:0",  # any free port, this machine only
                host=None if in_process else "127.0.0.1",
                memory_limit=0,  # memory is planned before the run; spilling a stateless task's results helps nobody
                silence_logs=logging.ERROR,
            )
        )
        client = stack.enter_context(Client(cluster, timeout=options.connect_timeout_seconds))
    else:
        try:
            _knock(address, options.connect_timeout_seconds)
            client = stack.enter_context(Client(address, timeout=options.connect_timeout_seconds, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise UnreachableSchedulerError(
                f"no scheduler answered at {address} within {options.connect_timeout_seconds:.0f} s ({error}). "
                "Check the address and that `dask scheduler` runs there, or leave the option out to run on this machine"
            ) from error
    try:
        client.wait_for_workers(1, timeout=WORKERS_WAIT_SECONDS)
    except TimeoutError:
        raise ClusterError(
            f"the scheduler at {client.scheduler.address} has had no workers for {WORKERS_WAIT_SECONDS:.0f} s; "
            "start some with `dask worker ADDRESS`"
        ) from None
    return DaskExecutor(
        client,
        round_deadline_seconds=options.round_deadline_seconds,
        cache_bytes=options.cache_bytes,
        in_process=in_process,
        owns_workers=address is None and not in_process,
    )


def _knock(address: str, timeout_seconds: float) -> None:
    """See that a scheduler answers: dask's own client would wait for ever on a port that accepts and says nothing."""
    from distributed import Security
    from distributed.comm.core import connect

    async def shake_hands() -> None:
        arguments = Security().get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=timeout_seconds, **arguments), timeout_seconds)
        await comm.close()

    # In a thread of its own: this one may be running an event loop, as a notebook's does.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, shake_hands()).result()


def _address_from_file(path: str) -> str:
    """Read a scheduler file now: dask's own client would wait for a missing one for ever."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return str(document["address"])
    except FileNotFoundError:
        raise UnreachableSchedulerError(
            f"the scheduler file {path} does not exist. Start one with `dask scheduler --scheduler-file {path}`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreachableSchedulerError(f"the scheduler file {path} cannot be read: {error}") from error
