"""Rounds of block tasks on a Dask cluster: submit, wait with a deadline, gather in block order, release.

Nothing that matters lives on a worker. A round whose results went down with a worker between computing and fetching
is submitted again; what the scheduler can repair by itself (a worker dies in mid-task, another joins) it does.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

from distributed import Client, Future, KilledWorker, wait

from dkgp.cluster.arithmetic import fetch_arithmetic, is_marked, require_fused_workers, require_one_arithmetic
from dkgp.cluster.executors.base import BlockTask, PendingRound
from dkgp.cluster.executors.mailbox import Desk, Mailbox, serve
from dkgp.cluster.executors.worker_setup import WorkerSetup
from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import ClusterError

__all__ = ["DaskExecutor", "WorkerSetup"]

PARALLELISM_REFRESH_SECONDS = 5.0
ROUND_ATTEMPTS = 4
# A task costs the scheduler, the worker and the client a few milliseconds of Python; this many entries take 15 to 20.
LEAST_TASK_EVALUATIONS = 40_000_000
# In one process the coordinator's own evaluations compete with the round for the cores: as many as hide the round trip.
IN_PROCESS_OVERLAP_EVALUATIONS = 4_000_000
# Storage over a network has its hiccups. (How many workers a task may kill is the scheduler's `allowed-failures`.)
TASK_RETRIES = 3
FIRST_FETCH_SECONDS = 5.0
RECONNECT_POLL_SECONDS = 0.05
ANSWER_SECONDS = 30.0
WATCH_SECONDS = 1.0
CLOSE_SECONDS = 5.0
CLIENT_BATCH_SECONDS = 0.001
RESUMABLE = "the last checkpoint can be resumed"


class DaskExecutor:
    """Runs rounds through a Dask client, which it never closes.

    Parameters
    ----------
    round_deadline_seconds : float, default 900
        A round that takes longer than this, or has had no workers for as long, is an error instead of a hang.
    cache_bytes : int
        Budget of each worker process's feature cache.
    in_process : bool
        Whether all workers share this process.
    owns_workers : bool
        Whether the workers were started by this process and get its terminal's signals.
    tiles : TileBudget, optional
        What each worker's process may keep of a kernel matrix; nothing by default.
    """

    overlaps = True
    least_task_evaluations = LEAST_TASK_EVALUATIONS

    def __init__(
        self,
        client: Client,
        *,
        round_deadline_seconds: float = 900.0,
        cache_bytes: int = 2 * 1024**3,
        in_process: bool = False,
        owns_workers: bool = False,
        tiles: TileBudget | None = None,
    ) -> None:
        self._client = client
        self.tiles = tiles or TileBudget()
        self._deadline = round_deadline_seconds
        self._run = uuid.uuid4().hex[:8]
        self._round = 0
        self._setup = WorkerSetup(cache_bytes, ignore_interrupts=owns_workers, client_id=client.id, run=self._run)
        self._lock = threading.Lock()
        self._threads: dict[str, int] = {}
        self._threads_known_at = -PARALLELISM_REFRESH_SECONDS
        self.shares_memory = in_process
        self.overlap_evaluations = IN_PROCESS_OVERLAP_EVALUATIONS if in_process else sys.maxsize
        # A client sends at most one message in 10 ms; a round's start would wait behind the last one's release.
        batch = getattr(client, "scheduler_comm", None)
        if batch is not None and hasattr(batch, "interval"):
            batch.interval = min(batch.interval, CLIENT_BATCH_SECONDS)
        self._calls = _Calls(client)  # where workers share this process
        # Where all workers are this process, they compute alike.
        self._one_arithmetic = in_process
        if not in_process:
            require_fused_workers(fetch_arithmetic(client))
        self._register()

    @property
    def dashboard_link(self) -> str | None:
        """Address of the cluster's dashboard, where it has one (it needs bokeh)."""
        return self._client.dashboard_link if importlib.util.find_spec("bokeh") else None

    @property
    def parallelism(self) -> int:
        """Worker threads of the cluster; asked anew every few seconds, so that joining workers get work."""
        return max(1, sum(self._known_threads().values()))

    @property
    def workers(self) -> Mapping[str, int]:
        """Threads by worker's address; asked anew every few seconds. One where all share this process."""
        threads = self._known_threads()
        return {"": self.parallelism} if self.shares_memory or not threads else threads

    @property
    def threads_per_process(self) -> int:
        """Threads of the largest worker; of all workers where they share this process."""
        threads = self._known_threads().values()
        return max(1, sum(threads) if self.shares_memory else max(threads, default=1))

    def _known_threads(self) -> dict[str, int]:
        now = time.monotonic()
        if not self._threads or now - self._threads_known_at > PARALLELISM_REFRESH_SECONDS:
            try:
                self._threads = _threads_by_worker(self._client)
            except (OSError, TimeoutError) as error:
                raise ClusterError(f"the scheduler no longer answers: {error}") from error
            self._threads_known_at = now
        return self._threads

    def require_one_arithmetic(self) -> None:
        """Refuse workers that compute with different libraries or vector code, now and for as long as this is open.

        Called before work starts; a task that is marked (`needs_one_arithmetic`) sees to it in any case.

        Raises
        ------
        ClusterError
            They differ; says which hosts have what.
        """
        if self._one_arithmetic:
            return
        common = require_one_arithmetic(fetch_arithmetic(self._client))
        if common is not None:
            self._setup = self._setup.requiring(common)
            self._register()
            self._one_arithmetic = True

    def _register(self) -> None:
        try:
            self._client.register_plugin(self._setup)
        except Exception as error:
            raise ClusterError(
                f"workers could not be set up: {error}. They need the same dkgp, Python and NumPy as this process"
            ) from error

    def submit(
        self,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        owners: Sequence[str] | None = None,
    ) -> PendingRound:
        """Start one round: one task for each group."""
        with self._lock:
            self._round += 1
            number = self._round
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(f"the cluster was lost: the client is {self._client.status}; {RESUMABLE}")
        # A task may be handed another one to run.
        if is_marked(task) or any(callable(argument) and is_marked(argument) for argument in arguments):
            self.require_one_arithmetic()
        label = (name, self._run, number)
        if self.shares_memory:
            mailbox = Mailbox(task, arguments, groups)
            self._calls.post(label, mailbox, min(self.parallelism, len(groups)))
            return _InProcessRound(self._calls, mailbox, number, self._deadline)
        return _DaskRound(self._client, label, task, arguments, groups, owners, self._deadline)

    def close(self) -> None:
        """Take the workers' set-up off the cluster, so that others may join it again; the client stays open."""
        self._calls.close()
        if self._client.status == "running":
            with suppress(Exception):  # a cluster that is lost has nothing to be taken off
                forget: Any = partial(self._client._unregister_worker_plugin, name=self._setup.name)
                self._client.sync(forget, callback_timeout=CLOSE_SECONDS)


def _threads_by_worker(client: Client) -> dict[str, int]:
    if client.scheduler is None:
        raise ConnectionError(f"the client is {client.status}")
    threads: dict[str, int] = client.sync(client.scheduler.ncores, callback_timeout=ANSWER_SECONDS)
    return threads


class _Round:
    """The tasks of a round on their way, until they are let go."""

    def __init__(
        self,
        client: Client,
        label: tuple[str, str, int],
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        owners: Sequence[str] | None,
        deadline_seconds: float,
    ) -> None:
        self._client, self._label = client, label
        self._task, self._arguments, self._groups = task, arguments, groups
        self._owners = None if owners is None else list(owners)
        self._deadline_seconds = deadline_seconds
        self._attempt = self._moved = 0
        self._futures = self._start()

    def _start(self) -> list[Future[Any]]:
        return [self._begin(index) for index in range(len(self._groups))]

    def _begin(self, index: int) -> Future[Any]:
        return self._submit(index, self._task, *self._arguments, list(self._groups[index]), retries=TASK_RETRIES)

    def _submit(self, index: int, task: Callable[..., Any], *arguments: Any, retries: int = 0) -> Future[Any]:
        owner = self._owners[index] if self._owners else None
        # Tuple keys: the scheduler keeps statistics by key prefix for ever, and a tuple's prefix is its first element.
        return self._client.submit(
            task,
            *arguments,
            key=(*self._label, self._attempt, index, self._moved),
            pure=False,
            retries=retries,
            # A hint, never a condition: a task that only one worker may run hangs when that one is lost.
            workers=[owner] if owner else None,
            allow_other_workers=bool(owner),
        )

    def _release(self) -> None:
        for future in self._futures:
            future.release()


class _DaskRound(_Round):
    """A round on worker processes; what is lost with them is computed again."""

    def done(self) -> bool:
        return all(future.status == "finished" for future in self._futures)

    def result(self) -> list[Any]:
        until = time.monotonic() + self._deadline_seconds
        patience = FIRST_FETCH_SECONDS
        try:
            while True:
                try:
                    with self._client.as_current():  # `wait` asks for a default client, which this need not be
                        wait(self._futures, timeout=max(0.001, min(until - time.monotonic(), patience)))
                    failure = self._failure()
                    parts = self._gather(min(until, time.monotonic() + patience)) if failure is None else []
                except TimeoutError:
                    if time.monotonic() < until:  # by now the lost results may be on their way on another worker
                        patience *= 2.0
                        self._move_on()
                        continue
                    raise ClusterError(
                        f"round {self._label[2]} did not finish within {self._deadline_seconds:.0f} s; the cluster has "
                        f"{self._known_workers()} workers. Add workers, or raise the deadline; {RESUMABLE}"
                    ) from None
                except (CancelledError, OSError) as error:
                    self._start_over(error, until)
                    continue
                if failure is not None:
                    raise failure
                return [value for part in parts for value in part]
        finally:
            self._release()

    def _move_on(self) -> None:
        """Begin tasks whose owners are gone again, for anybody.

        The scheduler does so itself while it has other workers. Where all were lost at once it forgets, when others
        come, that the owner was a hint (distributed issue 7346).
        """
        if self._owners is None:
            return
        with suppress(OSError, TimeoutError):
            known = _threads_by_worker(self._client)
            for index, future in enumerate(self._futures):
                if future.status == "pending" and self._owners[index] not in known:
                    self._owners[index] = ""
                    self._moved += 1
                    self._futures[index] = self._begin(index)
                    future.release()

    def _gather(self, until: float) -> list[list[Any]]:
        # By itself the client's `gather` has no timeout: it would wait for ever on a worker that is frozen, and for one
        # and a half minutes on one that died with its results, to which the scheduler keeps trying to connect.
        gather = partial(self._client.gather, self._futures, asynchronous=True)
        parts: list[list[Any]] = self._client.sync(gather, callback_timeout=max(0.001, until - time.monotonic()))
        return parts

    def _failure(self) -> BaseException | None:
        """Return what a task of this round raised, as itself; what the scheduler has to say, as a `ClusterError`."""
        failed = next((future for future in self._futures if future.status == "error"), None)
        if failed is None:
            return None
        error: BaseException | None = failed.exception()
        assert error is not None
        if type(error).__module__ != KilledWorker.__module__:
            return error.with_traceback(failed.traceback())
        if isinstance(error, KilledWorker):
            failure = ClusterError(
                f"workers keep dying on the same task ({error}); out of memory is the usual cause. "
                f"Lower the block size or give workers more memory; {RESUMABLE}"
            )
        else:
            failure = ClusterError(f"round {self._label[2]} could not be run: {error}; {RESUMABLE}")
        failure.__cause__ = error
        return failure

    def _start_over(self, error: BaseException, until: float) -> None:
        """Submit the round again once the client has its scheduler back, where it gets it back in time."""
        self._release()
        self._attempt += 1
        while self._client.status == "connecting" and time.monotonic() < until:
            time.sleep(RECONNECT_POLL_SECONDS)
        if self._attempt >= ROUND_ATTEMPTS or self._client.status != "running":
            raise ClusterError(f"the cluster was lost: {error}; {RESUMABLE}") from error
        self._futures = self._start()

    def _known_workers(self) -> str:
        try:
            return str(len(_threads_by_worker(self._client)))
        except Exception:  # the message must not fail because the cluster has
            return "an unknown number of"


class _InProcessRound:
    """A round whose results come back through memory; the cluster cannot be lost without this process."""

    def __init__(self, calls: _Calls, mailbox: Mailbox, number: int, deadline_seconds: float) -> None:
        self._calls, self._mailbox = calls, mailbox
        self._number, self._deadline_seconds = number, deadline_seconds

    def done(self) -> bool:
        return self._mailbox.done()

    def result(self) -> list[Any]:
        try:
            until = time.monotonic() + self._deadline_seconds
            while not self._mailbox.wait(WATCH_SECONDS):
                failed = self._calls.failed()
                if failed is not None:  # the scheduler gave a task up before it could deliver anything
                    raise ClusterError(f"round {self._number} was given up: a task is {failed}; {RESUMABLE}")
                if time.monotonic() > until:
                    raise ClusterError(
                        f"round {self._number} did not finish within {self._deadline_seconds:.0f} s; {RESUMABLE}"
                    )
            return [value for part in self._mailbox.take() for value in part]
        finally:
            self._mailbox.close()


class _Calls:
    """The tasks on an in-process cluster that work on an executor's rounds, one for each thread."""

    def __init__(self, client: Client) -> None:
        self._client, self._desk = client, Desk()
        self._futures: list[Future[Any]] = []
        self._lock = threading.Lock()

    def post(self, label: tuple[str, str, int], mailbox: Mailbox, threads: int) -> None:
        """Have so many threads work on a round, those that are there and others that are called."""
        missing = self._desk.post(mailbox, threads)
        called = [
            self._client.submit(serve, self._desk.number, key=(*label, index), pure=False) for index in range(missing)
        ]
        with self._lock:
            self._futures += called
        for future in called:
            future.add_done_callback(self._forget_finished)

    def _forget_finished(self, future: Future[Any]) -> None:
        # Nothing of a round stays on the scheduler when its threads have gone.
        with self._lock:
            if future.status == "finished" and future in self._futures:
                self._futures.remove(future)

    def failed(self) -> str | None:
        """Status of a task that will not work on anything any more; whoever asks next is told of the others."""
        with self._lock:
            for future in self._futures:
                if future.status in ("error", "cancelled", "lost"):
                    self._futures.remove(future)
                    self._desk.forget()
                    return str(future.status)
        return None

    def close(self) -> None:
        """Let the threads go."""
        self._desk.close()
