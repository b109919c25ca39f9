"""Rounds of block tasks on a Dask cluster, and sums: submit, wait with a deadline, gather in block order, release.

Nothing that matters lives on a worker. A round whose results went down with a worker between computing and fetching
is submitted again; what the scheduler can repair by itself (a worker dies in mid-task, another joins) it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import dask
from distributed import Client, Future, KilledWorker, wait

from dkgp.cluster.executors.base import BlockTask, RoundTasks
from dkgp.cluster.executors.mailbox import Desk, Mailbox, serve
from dkgp.cluster.executors.sums import Combine, Progress, nodes_of
from dkgp.errors import ClusterError

ROUND_ATTEMPTS = 4
# Storage over a network has its hiccups. (How many workers a task may kill is the scheduler's `allowed-failures`.)
TASK_RETRIES = 3
FIRST_FETCH_SECONDS = 5.0
RECONNECT_POLL_SECONDS = 0.05
ANSWER_SECONDS = 30.0
WATCH_SECONDS = 1.0
# distributed warns of large arguments, as if each task had them.
MOST_SHARED = "1TB"
RESUMABLE = "the last checkpoint can be resumed"

# The name of a round's tasks on a dashboard, its executor, and its number.
Label: TypeAlias = tuple[str, str, int]


def threads_by_worker(client: Client) -> dict[str, int]:
    """Threads of each worker, as the scheduler knows them now."""
    if client.scheduler is None:
        raise ConnectionError(f"the client is {client.status}")
    threads: dict[str, int] = client.sync(client.scheduler.ncores, callback_timeout=ANSWER_SECONDS)
    return threads


class _Round:
    """The tasks of a round on their way, until they are let go."""

    def __init__(self, client: Client, label: Label, tasks: RoundTasks, deadline_seconds: float) -> None:
        self._client, self._label, self._tasks = client, label, tasks
        self._owners = None if tasks.owners is None else list(tasks.owners)
        self._deadline_seconds = deadline_seconds
        self._attempt = self._moved = 0
        self._futures = self._start()

    def _start(self) -> list[Future[Any]]:
        return [self._begin(index) for index in range(len(self._tasks.groups))]

    def _begin(self, index: int) -> Future[Any]:
        tasks = self._tasks
        return self._submit(index, tasks.task, *tasks.arguments, list(tasks.groups[index]), retries=TASK_RETRIES)

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


class DaskRound(_Round):
    """A round on worker processes; what is lost with them is computed again."""

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return all(future.status == "finished" for future in self._futures)

    def result(self) -> list[Any]:
        """Wait for all groups; return one result for each block, in block order."""
        until = time.monotonic() + self._deadline_seconds
        patience = FIRST_FETCH_SECONDS
        try:
            while True:
                try:
                    self._wait(max(0.001, min(until - time.monotonic(), patience)))
                    failure = self._failure()
                    parts = self._gather(min(until, time.monotonic() + patience)) if failure is None else []
                except TimeoutError:
                    if time.monotonic() < until:  # by now the lost results may be on their way on another worker
                        patience *= 2.0
                        self._move_on()
                        continue
                    raise ClusterError(
                        f"round {self._label[2]} did not finish within {self._deadline_seconds:.0f} s; the cluster has "
                        f"{self._known_workers()} workers. Add workers, see whether the scheduler answers, or "
                        f"raise `round_deadline_seconds`; {RESUMABLE}"
                    ) from None
                except (CancelledError, OSError) as error:
                    self._start_over(error, until)
                    continue
                if failure is not None:
                    raise failure
                return [value for part in parts for value in part]
        finally:
            self._release()

    def _wait(self, seconds: float) -> None:
        with self._client.as_current():  # `wait` asks for a default client, which this need not be
            wait(self._futures, timeout=seconds)

    def _move_on(self) -> None:
        """Start tasks again whose owners are gone, for any worker to take.

        The scheduler does so itself while it has other workers. Where all workers were lost at once it forgets that the
        owner was a hint (distributed issue 7346).
        """
        if self._owners is None:
            return
        with suppress(OSError, TimeoutError):
            known = threads_by_worker(self._client)
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
        """Submit the round again, if the client has its scheduler back in time."""
        self._release()
        self._attempt += 1
        while self._client.status == "connecting" and time.monotonic() < until:
            time.sleep(RECONNECT_POLL_SECONDS)
        if self._attempt >= ROUND_ATTEMPTS or self._client.status != "running":
            raise ClusterError(f"the cluster was lost: {error}; {RESUMABLE}") from error
        self._futures = self._start()

    def _known_workers(self) -> str:
        try:
            return str(len(threads_by_worker(self._client)))
        except Exception:  # the message must not fail because the cluster has
            return "an unknown number of"


class DaskSum(DaskRound):
    """A sum on worker processes: tasks add what other tasks left on the workers, and the root alone is fetched.

    A value is released once it is added. One that is lost with its worker before is computed again.
    """

    def __init__(
        self, client: Client, label: Label, tasks: RoundTasks, deadline_seconds: float, combine: Combine
    ) -> None:
        self._combine = combine
        self._progress: Progress | None = None
        self._seen = 0
        if tasks.owners is not None:  # of the leaves alone
            nodes = nodes_of(len(tasks.groups))
            tasks = replace(tasks, owners=["" if level else tasks.owners[index] for level, index in nodes])
        super().__init__(client, label, tasks, deadline_seconds)

    def _start(self) -> list[Future[Any]]:
        # In the order in which values should be there: what was submitted first is run first.
        nodes: dict[tuple[int, int], Future[Any]] = {}
        leaves, root = len(self._tasks.groups), (0, 0)
        # What all leaves take, factors of m^2 numbers among it, goes to the scheduler once; workers share it.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": MOST_SHARED}):
            shared = self._submit(-1, _shared, *self._tasks.arguments, retries=TASK_RETRIES)
        self._parts: list[Future[Any]] = [shared]
        for number, (level, index) in enumerate(nodes_of(leaves)):
            root = level, index
            if level == 0:
                group = list(self._tasks.groups[index])
                nodes[root] = self._submit(number, _only, self._tasks.task, shared, group, retries=TASK_RETRIES)
                self._parts.append(nodes[root])
                continue
            below = [nodes[node] for node in ((level - 1, 2 * index), (level - 1, 2 * index + 1)) if node in nodes]
            if len(below) == 1:
                nodes[root] = below[0]
            else:
                nodes[root] = self._submit(number, self._combine, *below, retries=TASK_RETRIES)
                self._parts.append(nodes[root])
        self._parts.remove(nodes[root])
        # They are watched until they are done, and not held beyond: their values belong to the tree.
        self._leaves = [nodes[0, leaf] for leaf in range(leaves) if nodes[0, leaf] is not nodes[root]]
        return [nodes[root]]

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the root, and fetch it."""
        self._progress = progress
        root, leaves = super().result()[0], len(self._tasks.groups)
        if progress is not None and self._seen < leaves:
            progress(leaves, leaves)
        return root

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._futures[0].done():
            remaining = until - time.monotonic()
            if remaining <= 0.0:
                raise TimeoutError
            with suppress(TimeoutError):
                super()._wait(min(remaining, WATCH_SECONDS))
            self._look()

    def _look(self) -> None:
        """Let go of the values that are done, and report progress."""
        for part in [part for part in self._parts if part.status == "finished"]:
            self._parts.remove(part)
            part.release()
        done = sum(leaf not in self._parts for leaf in self._leaves)
        if self._progress is not None and done > self._seen:
            self._seen = done
            self._progress(done, len(self._tasks.groups))

    def _move_on(self) -> None:
        """Start the sum again, for any worker, where owners of leaves are gone (see `DaskRound`)."""
        if self._owners is None:
            return
        with suppress(OSError, TimeoutError):
            known = threads_by_worker(self._client)
            if any(owner and owner not in known for owner in self._owners):
                self._release()
                self._owners = None
                self._moved += 1
                self._futures = self._start()

    def _gather(self, until: float) -> list[list[Any]]:
        return [list(super()._gather(until))]

    def _release(self) -> None:
        super()._release()
        for part in self._parts:
            part.release()


def _shared(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _only(task: BlockTask, arguments: tuple[Any, ...], group: list[Any]) -> Any:
    """The one value of a task's list."""
    (value,) = task(*arguments, group)
    return value


class InProcessRound:
    """A round whose results come back through memory; the cluster cannot be lost without this process."""

    def __init__(self, calls: Calls, mailbox: Mailbox, number: int, deadline_seconds: float) -> None:
        self._calls, self._mailbox = calls, mailbox
        self._number, self._deadline_seconds = number, deadline_seconds
        self._until = 0.0  # the deadline's moment, once somebody waits

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return self._mailbox.done()

    def result(self) -> list[Any]:
        """Wait for all groups; return one result for each block, in block order."""
        try:
            while not self._mailbox.wait(WATCH_SECONDS):
                self.look()
            return [value for part in self._mailbox.take() for value in part]
        finally:
            self._mailbox.close()

    def look(self) -> None:
        """Raise `ClusterError` where the scheduler has given the round up, or its deadline has passed."""
        self._until = self._until or time.monotonic() + self._deadline_seconds
        if self._mailbox.done():
            return
        failed = self._calls.failed()
        if failed is not None:  # the scheduler gave a task up before it could deliver anything
            raise ClusterError(f"round {self._number} was given up: a task is {failed}; {RESUMABLE}")
        if time.monotonic() > self._until:
            raise ClusterError(
                f"round {self._number} did not finish within {self._deadline_seconds:.0f} s. Raise "
                f"`round_deadline_seconds`; {RESUMABLE}"
            )


class Calls:
    """The tasks on an in-process cluster that work on an executor's rounds, one for each thread."""

    def __init__(self, client: Client) -> None:
        self._client, self._desk = client, Desk()
        self._futures: list[Future[Any]] = []
        self._lock = threading.Lock()

    def post(self, label: Label, mailbox: Mailbox, threads: int) -> None:
        """Put up to `threads` threads to work on a round: those that wait already, and others that are called."""
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
        """Status of a task that has failed, which is then forgotten; None where none has."""
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
