"""Rounds of block tasks on a Dask cluster: submit, wait with a deadline, gather in block order, release.

Nothing that matters lives on a worker. A round whose results went down with a worker between computing and fetching
is submitted again; what the scheduler can repair by itself (a worker dies in mid-task, another joins) it does. A task
that it gives up, because too many workers died that held it, is submitted again while the round gets on (see `kills`).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeAlias, cast

import dask
from distributed import Client, Future, KilledWorker, wait

from dkgp.cluster.executors.base import RoundTasks
from dkgp.cluster.executors.kills import RESUMABLE, Kills, TaskKey
from dkgp.cluster.executors.mailbox import Desk, Mailbox, serve
from dkgp.errors import ClusterError

ROUND_ATTEMPTS = 4
# Storage over a network has its hiccups. (Workers that die are counted by `Kills`.)
TASK_RETRIES = 3
FIRST_FETCH_SECONDS = 5.0
# Between two looks for tasks that wait for a worker that is gone.
WAIT_SECONDS = 5.0
RECONNECT_POLL_SECONDS = 0.05
ANSWER_SECONDS = 30.0
WATCH_SECONDS = 1.0
# Results are fetched while at least so many tasks are still under way, half of what is missing at a time.
FETCH_TASKS = 4
# distributed warns of large arguments, as if each task had them.
MOST_SHARED = "1TB"

# The name of a round's tasks on a dashboard, its executor, and its number.
Label: TypeAlias = tuple[str, str, int]


def threads_by_worker(client: Client) -> dict[str, int]:
    """Threads of each worker, as the scheduler knows them now."""
    if client.scheduler is None:
        raise ConnectionError(f"the client is {client.status}")
    threads: dict[str, int] = client.sync(client.scheduler.ncores, callback_timeout=ANSWER_SECONDS)
    return threads


def _terms(owner: str) -> dict[str, Any]:
    """Keywords of a submission."""
    # The owner is a hint, never a condition: a task that only one worker may run hangs when that one is lost.
    return {
        "pure": False,
        "retries": TASK_RETRIES,
        "workers": [owner] if owner else None,
        "allow_other_workers": bool(owner),
        # What is submitted within a tenth of a second would otherwise run in any order: two rounds in turns.
        "fifo_timeout": "0 ms",
    }


class _Round:
    """The tasks of a round on their way, until they are let go."""

    def __init__(self, client: Client, label: Label, tasks: RoundTasks, deadline_seconds: float) -> None:
        self._client, self._label, self._tasks = client, label, tasks
        self._owners = list(tasks.owners or [""] * len(tasks.groups))
        seen: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._turns = [next(seen[owner]) for owner in self._owners]  # each owner runs its tasks in their order
        self._deadline_seconds = deadline_seconds
        self._attempt = self._moved = 0
        self._kills = Kills()
        self._suspects: deque[int] = deque()
        self._fetched: dict[int, Any] = {}  # results by task, whose futures were let go
        self._fetches_early = True
        self._until = float("inf")  # the deadline's moment, once somebody waits
        self._futures = self._start()

    def _start(self) -> list[Future[Any]]:
        """Submit all tasks: of each owner one, so that all have work at once, and then the others of each together.

        A message of many tasks costs the scheduler a quarter of what as many messages do.
        """
        firsts = [self._owners.index(owner) for owner in dict.fromkeys(self._owners) if owner]
        futures = dict(zip(firsts, map(self._begin, firsts), strict=True))
        for owner in dict.fromkeys(self._owners):
            others = [index for index, each in enumerate(self._owners) if each == owner and index not in futures]
            if others:
                futures.update(zip(others, self._begin_together(others, owner), strict=True))
        return [futures[index] for index in range(len(self._owners))]

    def _begin(self, index: int) -> Future[Any]:
        tasks = self._tasks
        return self._submit(index, self._owners[index], tasks.task, *tasks.arguments, list(tasks.groups[index]))

    def _begin_together(self, indices: list[int], owner: str) -> list[Future[Any]]:
        tasks = self._tasks
        groups = [list(tasks.groups[index]) for index in indices]
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": MOST_SHARED}):
            return self._client.map(
                tasks.task,
                *[[argument] * len(indices) for argument in tasks.arguments],
                groups,
                key=[self._key(index) for index in indices],
                **_terms(owner),
            )

    def _submit(self, index: int, owner: str, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": MOST_SHARED}):
            return self._client.submit(task, *arguments, key=self._key(index), **_terms(owner))

    def _key(self, index: int) -> tuple[Any, ...]:
        # Tuple keys: the scheduler keeps statistics by key prefix for ever, and a tuple's prefix is its first element.
        return (*self._label, self._attempt, index, self._moved)

    def _release(self) -> None:
        for future in self._futures:
            future.release()


class DaskRound(_Round):
    """A round on worker processes; what is lost with them is computed again."""

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return all(self._futures[index].status == "finished" for index in self._missing())

    def _missing(self) -> list[int]:
        """Tasks whose results are not here."""
        return [index for index in range(len(self._futures)) if index not in self._fetched]

    def result(self) -> list[Any]:
        """Wait for all groups; return one result for each block, in block order."""
        until = self._until = time.monotonic() + self._deadline_seconds
        patience = FIRST_FETCH_SECONDS
        try:
            while True:
                try:
                    while not self._is_settled(min(until - time.monotonic(), WAIT_SECONDS)):
                        if time.monotonic() > until:
                            raise TimeoutError
                        self._move_on()
                    failures = self._failures()
                    if not failures:
                        self._fetch(self._missing(), patience)
                except TimeoutError:
                    if time.monotonic() < until:  # by now the lost results may be on their way on another worker
                        patience *= 2.0
                        self._move_on()
                        continue
                    raise ClusterError(
                        f"round {self._label[2]} did not finish within {self._deadline_seconds:.0f} s; the cluster has "
                        f"{self._known_workers()} workers{self._kills.told()}. Add workers, see whether the scheduler "
                        f"answers, or raise `round_deadline_seconds`; {RESUMABLE}"
                    ) from None
                except (CancelledError, OSError) as error:
                    self._start_over(error, until)
                    continue
                if failures:
                    self._try_again(failures)
                elif not self._missing():
                    return self._values()
        finally:
            self._release()

    def _is_settled(self, seconds: float) -> bool:
        """Wait so long for all tasks to end, one way or the other."""
        with suppress(TimeoutError):
            self._wait(max(0.001, seconds))
            return True
        return False

    def _wait(self, seconds: float) -> None:
        """Wait for all tasks, and fetch early what is done: workers compute the others meanwhile."""
        until = time.monotonic() + seconds
        while under_way := [index for index in self._missing() if not self._futures[index].done()]:
            early = self._fetches_early and len(under_way) >= FETCH_TASKS
            with self._client.as_current():  # `wait` asks for a default client, which this need not be
                in_turn = sorted(under_way, key=self._turns.__getitem__)
                awaited = [self._futures[index] for index in in_turn[: len(in_turn) // (1 + early)]]
                wait(awaited, timeout=max(0.001, until - time.monotonic()))
            done = [index for index in self._missing() if self._futures[index].status == "finished"]
            if early and done and not self._erred():
                self._fetches_early = False  # what takes too long is not asked for every few seconds from now on
                self._fetch(done, FIRST_FETCH_SECONDS)
                self._fetches_early = True

    def _move_on(self) -> None:
        """Start tasks again whose owners are gone, for any worker to take.

        The scheduler does so itself while it has other workers. Where all workers were lost at once it forgets that the
        owner was a hint (distributed issue 7346).
        """
        if not any(self._owners):
            return
        with suppress(OSError, TimeoutError):
            known = {"", *threads_by_worker(self._client)}
            for index in self._missing():
                future = self._futures[index]
                if future.status in ("pending", "lost") and self._owners[index] not in known:
                    self._owners[index] = ""
                    self._moved += 1
                    self._futures[index] = self._begin(index)
                    future.release()

    def _values(self) -> list[Any]:
        """All results, in block order."""
        return [value for index in range(len(self._futures)) for value in self._fetched[index]]

    def _fetch(self, indices: list[int], seconds: float) -> None:
        """Fetch results of tasks that are done, and let their futures go: nothing computes them again.

        What was lost is waited for; where it fails as it is computed again, nothing is fetched, and `_failures` tells.
        `TimeoutError` where it takes longer.
        """
        # By itself the client's `gather` has no timeout: it would wait for ever on a worker that is frozen, and for one
        # and a half minutes on one that died with its results, to which the scheduler keeps trying to connect.
        seconds = min(seconds, self._until - time.monotonic())
        gather = partial(self._client.gather, [self._futures[index] for index in indices], asynchronous=True)
        try:
            parts: list[Any] = self._client.sync(gather, callback_timeout=max(0.001, seconds))
        except Exception:
            if any(self._futures[index].status == "error" for index in indices):
                return
            raise
        self._fetched.update(zip(indices, parts, strict=True))
        for index in indices:
            self._futures[index].release()

    def _erred(self) -> list[Future[Any]]:
        return [future for future in self._futures if future.status == "error"]

    def _failures(self) -> list[BaseException]:
        """Errors that tasks of this round raised, and what the scheduler says of others."""
        failures = []
        for future in self._erred():
            error: BaseException | None = future.exception()
            assert error is not None
            scheduler = type(error).__module__ == KilledWorker.__module__
            failures.append(error if scheduler else error.with_traceback(future.traceback()))
        return failures

    def _try_again(self, failures: list[BaseException]) -> None:
        """Submit again what lost its workers; raise what a task raised, and a `ClusterError` for the scheduler."""
        killed: dict[TaskKey, KilledWorker] = {}
        for error in failures:
            if isinstance(error, KilledWorker):
                killed[cast(TaskKey, error.task)] = error
            elif type(error).__module__ != KilledWorker.__module__:
                raise error
            else:
                raise ClusterError(f"round {self._label[2]} could not be run: {error}; {RESUMABLE}") from error
        self._begin_again(self._kills.judge(killed, self._count_done()))

    def _count_done(self) -> int:
        """Tasks that have finished at one time or another."""
        return len(self._futures) - len(self._erred())

    def _begin_again(self, indices: list[int]) -> None:
        """Submit again what was given up, now that the others are done: one for each thread, the others then."""
        self._suspects.extend(indices)
        for index, worker in self._next_suspects():
            self._owners[index] = worker
            self._futures[index].release()
            self._futures[index] = self._begin(index)

    def _next_suspects(self) -> list[tuple[int, str]]:
        """Tasks to submit again, as many as there are threads, and the worker of each."""
        threads: dict[str, int] = {}
        with suppress(OSError, TimeoutError):
            threads = threads_by_worker(self._client)
        self._moved += 1
        most = max(threads.values(), default=0)
        places = [worker for turn in range(most) for worker, count in threads.items() if turn < count] or [""]
        return [(self._suspects.popleft(), worker) for worker in places if self._suspects]

    def _start_over(self, error: BaseException, until: float) -> None:
        """Submit the round again, if the client has its scheduler back in time."""
        self._release()
        self._suspects.clear()
        self._fetched.clear()
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
