"""Rounds of block tasks on a Dask cluster: submit, wait with a deadline, gather in block order, release.

Nothing that matters lives on a worker. A round whose results went down with a worker between computing and fetching
is submitted again; what the scheduler can repair by itself (a worker dies in mid-task, another joins) it does.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from distributed import Client, Future, KilledWorker, WorkerPlugin, wait
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors import BlockTask, PendingRound
from dkgp.cluster.threads import limit_blas_threads, require_single_threaded_blas
from dkgp.errors import ClusterError

__all__ = ["DaskExecutor", "WorkerSetup"]

PARALLELISM_REFRESH_SECONDS = 5.0
ROUND_ATTEMPTS = 4
# A worker lost twice by the same task is bad luck on a busy cluster; lost this often, the task is what kills it.
TASK_RETRIES = 3


class WorkerSetup(WorkerPlugin):
    """Prepares a worker for block tasks, late joiners included: one BLAS thread, a feature cache within a budget.

    Parameters
    ----------
    cache_bytes : int
        What prepared features may take in the worker's process.
    ignore_interrupts : bool
        Leave a terminal's Ctrl-C to the coordinator, which stops in good order; for worker processes that it started
        itself.
    """

    name = "dkgp-worker-setup"
    idempotent = False

    def __init__(self, cache_bytes: int, *, ignore_interrupts: bool = False) -> None:
        self._cache_bytes = cache_bytes
        self._ignore_interrupts = ignore_interrupts
        self._coordinator = (socket.gethostname(), os.getpid())

    def setup(self, worker: Any) -> None:
        """Set this worker's process up; the coordinator's own process keeps its BLAS threads (a solve limits them
        itself).
        """
        worker_cache().budget_bytes = self._cache_bytes
        if (socket.gethostname(), os.getpid()) != self._coordinator:
            if self._ignore_interrupts and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            limit_blas_threads(1)
            require_single_threaded_blas(f"worker {worker.address}")


class DaskExecutor:
    """Runs rounds through a Dask client, which it never closes.

    Parameters
    ----------
    client : distributed.Client
    round_deadline_seconds : float, default 900
        A round that takes longer than this, or has had no workers for as long, is an error instead of a hang.
    cache_bytes : int
        Budget of each worker process's feature cache.
    in_process : bool
        Whether all workers share this process.
    owns_workers : bool
        Whether the workers were started by this process and get its terminal's signals.
    """

    overlaps = True

    def __init__(
        self,
        client: Client,
        *,
        round_deadline_seconds: float = 900.0,
        cache_bytes: int = 2 * 1024**3,
        in_process: bool = False,
        owns_workers: bool = False,
    ) -> None:
        self._client = client
        self._deadline = round_deadline_seconds
        self._run = uuid.uuid4().hex[:8]
        self._round = 0
        self._lock = threading.Lock()
        self._threads = 0
        self._threads_known_at = -PARALLELISM_REFRESH_SECONDS
        self.shares_memory = in_process
        try:
            client.register_plugin(WorkerSetup(cache_bytes, ignore_interrupts=owns_workers))
        except Exception as error:
            raise ClusterError(
                f"workers could not be set up: {error}. They need the same dkgp, Python and NumPy as this process"
            ) from error

    @property
    def dashboard_link(self) -> str | None:
        """Address of the cluster's dashboard, where it has one (it needs bokeh)."""
        return self._client.dashboard_link if importlib.util.find_spec("bokeh") else None

    @property
    def parallelism(self) -> int:
        """Worker threads of the cluster; asked anew every few seconds, so that joining workers get work."""
        now = time.monotonic()
        if self._threads == 0 or now - self._threads_known_at > PARALLELISM_REFRESH_SECONDS:
            try:
                self._threads = sum(self._client.nthreads().values())
            except (OSError, TimeoutError) as error:
                raise ClusterError(f"the scheduler no longer answers: {error}") from error
            self._threads_known_at = now
        return max(1, self._threads)

    def submit(
        self, name: str, task: BlockTask, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]]
    ) -> PendingRound:
        """Start one round: one task for each group."""
        with self._lock:
            self._round += 1
            number = self._round
        return _DaskRound(self._client, name, self._run, number, task, arguments, groups, self._deadline)

    def close(self) -> None:
        """Nothing: the client belongs to whoever made it."""


class _DaskRound:
    def __init__(
        self,
        client: Client,
        name: str,
        run: str,
        number: int,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        deadline_seconds: float,
    ) -> None:
        self._client, self._label = client, (name, run, number)
        self._task, self._arguments, self._groups = task, arguments, groups
        self._deadline_seconds = deadline_seconds
        self._attempt = 0
        self._futures = self._start()

    def _start(self) -> list[Future]:
        # Tuple keys: the scheduler keeps statistics by key prefix for ever, and a tuple's prefix is its first element.
        return [
            self._client.submit(
                self._task,
                *self._arguments,
                list(group),
                key=(*self._label, self._attempt, index),
                pure=False,
                retries=TASK_RETRIES,
            )
            for index, group in enumerate(self._groups)
        ]

    def done(self) -> bool:
        return all(future.status == "finished" for future in self._futures)

    def result(self) -> list[Any]:
        until = time.monotonic() + self._deadline_seconds
        while True:
            try:
                wait(self._futures, timeout=max(0.001, until - time.monotonic()))
                parts = self._client.gather(self._futures)
                self._release()
                return [value for part in parts for value in part]
            except TimeoutError:
                self._release()
                raise ClusterError(
                    f"round {self._label[2]} did not finish within {self._deadline_seconds:.0f} s; the cluster has "
                    f"{self._known_workers()} workers. Add workers, or raise the deadline; the last checkpoint can be resumed"
                ) from None
            except KilledWorker as error:
                self._release()
                raise ClusterError(
                    f"workers keep dying on the same task ({error}); out of memory is the usual cause. "
                    "Lower the block size or give workers more memory; the last checkpoint can be resumed"
                ) from error
            except (FutureCancelledError, CommClosedError, OSError) as error:
                self._attempt += 1
                self._release()
                if self._attempt >= ROUND_ATTEMPTS or self._client.status != "running":
                    raise ClusterError(f"the cluster was lost: {error}; the last checkpoint can be resumed") from error
                self._futures = self._start()

    def _release(self) -> None:
        for future in self._futures:
            future.release()

    def _known_workers(self) -> str:
        try:
            return str(len(self._client.nthreads()))
        except Exception:  # the message must not fail because the cluster has
            return "an unknown number of"
