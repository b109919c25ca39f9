"""Totals on a Dask cluster: one graph of tasks whose results are added up where they are, until few are fetched.

Values go to the cluster as results of tasks, so that the scheduler computes them again where a worker takes them along.
Every node of the graph is a function of others' results. Nodes whose workers died are submitted again under new keys,
with the nodes that need them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import dask
from dask._expr import LLGExpr
from dask.task_spec import Task, TaskRef
from distributed import Client, Future, KilledWorker, wait
from distributed.client import SpanMetadata
from distributed.scheduler import heartbeat_interval

from dkgp.cluster.executors.base import BlockTask, RoundTasks
from dkgp.cluster.executors.dask_rounds import (
    ANSWER_SECONDS,
    FIRST_FETCH_SECONDS,
    MOST_SHARED,
    RECONNECT_POLL_SECONDS,
    ROUND_ATTEMPTS,
    TASK_RETRIES,
    WAIT_SECONDS,
    WATCH_SECONDS,
    Label,
    threads_by_worker,
)
from dkgp.cluster.executors.kills import RESUMABLE, Kills, TaskKey
from dkgp.cluster.executors.sums import Progress, Totals, add_totals
from dkgp.errors import ClusterError

# A worker that has not answered the scheduler for so long does not come back in time; others take its tasks.
SILENT_SECONDS = 60.0
# Parts that one task adds: so many wait on their workers for the last of them, and travel to one worker.
FAN_IN = 8


@dataclass(frozen=True)
class Node:
    """A task of a graph, `call(*arguments, *results of needs)`; it comes after the nodes that it needs.

    `name` is shown on a dashboard, `owner` is the worker that had better run it. A `leaf` is counted as progress.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    needs: tuple[int, ...] = ()
    owner: str = ""
    leaf: bool = False


def total_graph(tasks: RoundTasks) -> tuple[list[Node], list[int]]:
    """Return the nodes of a total, and those whose results together are the totals."""
    nodes: list[Node] = []

    def add(*parts: Any) -> int:
        nodes.append(Node(*parts))
        return len(nodes) - 1

    shared = add(f"{tasks.name}-arguments", _together, tasks.arguments)
    values = {name: add(f"{tasks.name}-value", _same, (value,)) for name, value in tasks.values.items()}
    parts: defaultdict[Hashable, list[tuple[str, int]]] = defaultdict(list)
    for index, group in enumerate(tasks.groups):
        names = None if tasks.needs is None else tuple(tasks.needs[index])
        needs = (shared, *(values[name] for name in names or ()))
        owner = tasks.owners[index] if tasks.owners else ""
        leaf = add(tasks.name, _run_leaf, (tasks.task, list(group), names), needs, owner, True)
        keys = tuple(tasks.gives[index]) if tasks.gives else ()
        if len(keys) < 2:
            parts[keys[0] if keys else None].append((owner, leaf))
            continue
        for key in keys:
            # The first part takes the keys that are not named.
            part = add(f"{tasks.name}-part", _part, (key, keys[1:] if key == keys[0] else None), (leaf,), owner)
            parts[key].append((owner, part))
    roots = []
    for places in parts.values():
        # Parts of one worker are added first.
        level = [place for _, place in (sorted(places, key=lambda place: place[0]) if tasks.owners else places)]
        while len(level) > 1:
            level = [
                add(f"{tasks.name}-add", add_totals, (), tuple(level[start : start + FAN_IN]))
                if start + 1 < len(level)
                else level[start]
                for start in range(0, len(level), FAN_IN)
            ]
        roots += level
    return nodes, roots


def _together(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _same(value: Any) -> Any:
    return value


def _run_leaf(
    task: BlockTask, group: list[Any], names: Sequence[Hashable] | None, arguments: tuple[Any, ...], *values: Any
) -> Any:
    """The one result of a task's list."""
    named = () if names is None else (dict(zip(names, values, strict=True)),)
    (result,) = task(*arguments, *named, group)
    return result


def _part(key: Hashable, others: Sequence[Hashable] | None, totals: Totals) -> Totals:
    """Return one key of the totals, or all but `others`."""
    if others is None:
        return {key: totals[key]} if key in totals else {}
    return {name: values for name, values in totals.items() if name not in others}


def _repair(silent_seconds: float, dask_scheduler: Any) -> set[Any]:
    """Restart workers that were silent for so long, and return the keys of tasks that no worker may run.

    Where all workers were lost at once the scheduler forgets that an owner was a hint (distributed issue 7346).
    """
    workers, now = dask_scheduler.workers, time.time()
    least = max(silent_seconds, 10.0 * heartbeat_interval(len(workers)))
    silent = [address for address, worker in workers.items() if now - worker.last_seen > least]
    if silent:
        restart = partial(dask_scheduler.restart_workers, silent, wait_for_workers=False, stimulus_id="dkgp-silent")
        dask_scheduler.loop.add_callback(restart)
    return {task.key for task in dask_scheduler.unrunnable} if len(workers) > len(silent) else set()


class DaskGraph:
    """A graph on worker processes: `result` waits for its roots, and fetches them alone.

    A node's result is released once the nodes that need it are done. The deadline counts from the last node that was
    done.
    """

    def __init__(
        self, client: Client, label: Label, graph: tuple[list[Node], list[int]], deadline_seconds: float
    ) -> None:
        self._client, self._label, self._deadline_seconds = client, label, deadline_seconds
        self._nodes, self._roots = graph
        self._users: list[list[int]] = [[] for _ in self._nodes]
        for place, node in enumerate(self._nodes):
            for need in node.needs:
                self._users[need].append(place)
        self._leaves = sum(node.leaf for node in self._nodes)
        self._owners = [node.owner for node in self._nodes]
        self._attempt = self._moved = self._seen = 0
        self._kills = Kills()
        self._suspects: set[int] = set()
        self._keys: dict[int, tuple[Any, ...]] = {}
        self._futures: dict[int, Future[Any]] = {}
        self._done: set[int] = set()
        self._submit(range(len(self._nodes)))

    def _submit(self, places: Iterable[int]) -> None:
        """Submit nodes in one message, under new keys; others that they need are there."""
        self._moved += 1
        fresh = sorted(places)
        for place in fresh:
            self._keys[place] = (self._nodes[place].name, *self._label[1:], self._attempt, place, self._moved)
        tasks, order = {}, {}
        for turn, place in enumerate(fresh):
            node, key = self._nodes[place], self._keys[place]
            needs = [TaskRef(self._keys[need]) for need in node.needs]
            # Leaves wait at the scheduler for a thread that is free, unless they have owners.
            tasks[key] = Task(key, node.call, *node.arguments, *needs, _data_producer=node.leaf)
            order[key] = turn if node.leaf else turn - len(self._nodes)  # additions first: they free memory
        owners = {self._keys[place]: [self._owners[place]] if self._owners[place] else [] for place in fresh}
        with ExitStack() as stack:
            stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": MOST_SHARED}))
            if any(owners.values()):
                # An owner is a hint: a task that only one worker may run hangs when that one is lost.
                stack.enter_context(dask.annotate(workers=owners.__getitem__, allow_other_workers=True))
            futures = self._client._graph_to_futures(
                LLGExpr(tasks),
                list(tasks),
                SpanMetadata(collections=[]),
                internal_priority=order,
                retries=TASK_RETRIES,
                fifo_timeout="0 ms",
            )
        for place in fresh:
            if place in self._futures:
                self._futures[place].release()
            self._futures[place] = futures[self._keys[place]]

    def _renew(self, places: Iterable[int]) -> None:
        """Submit nodes again, those that wait for them, and those that they need and that were released."""
        fresh, blocked = set(places), set(self._suspects)
        for place, node in enumerate(self._nodes):
            if self._status(place) == "finished" or place not in self._futures or place in fresh:
                continue
            if any(need in blocked for need in node.needs):
                blocked.add(place)
            elif any(need in fresh for need in node.needs) or self._status(place) == "error":
                fresh.add(place)
        fresh -= blocked
        for place in reversed(range(len(self._nodes))):
            if place in fresh:
                fresh.update(need for need in self._nodes[place].needs if need not in self._futures)
        self._submit(fresh)

    def _status(self, place: int) -> str:
        return str(self._futures[place].status) if place in self._futures else ""

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the roots, and return their sum."""
        patience, until = FIRST_FETCH_SECONDS, self._new_deadline()
        moves = time.monotonic() + WAIT_SECONDS
        try:
            while True:
                try:
                    if self._look(progress):
                        until = self._new_deadline()
                    if (pending := self._under_way()) and time.monotonic() < until:
                        with suppress(TimeoutError), self._client.as_current():
                            wait(pending, timeout=WATCH_SECONDS)
                        if time.monotonic() > moves:
                            moves = time.monotonic() + WAIT_SECONDS
                            self._move_on()
                        continue
                    if pending:
                        raise self._too_late()
                    if any(self._status(root) == "error" for root in self._roots):
                        self._try_again()
                        continue
                    parts = self._fetch(min(patience, until - time.monotonic()))
                    self._look(progress)
                    return parts
                except TimeoutError:  # by now lost results may be on their way on another worker
                    patience *= 2.0
                    if time.monotonic() > until:
                        raise self._too_late() from None
                except (CancelledError, OSError) as error:
                    self._start_over(error, until)
        finally:
            self._release()

    def _new_deadline(self) -> float:
        return time.monotonic() + self._deadline_seconds

    def _under_way(self) -> list[Future[Any]]:
        """Futures to wait for: the roots; where one of them has failed, all others first."""
        failed = any(self._status(root) == "error" for root in self._roots)
        places = self._futures if failed else self._roots
        return [self._futures[place] for place in places if not self._futures[place].done()]

    def _look(self, progress: Progress | None) -> bool:
        """Release results that are not needed any more, and report progress; true if there was any."""
        status = {place: future.status for place, future in self._futures.items()}
        if "cancelled" in status.values():
            raise CancelledError("the scheduler forgot the tasks")
        finished = {place for place, each in status.items() if each == "finished"}
        before = len(self._done)
        self._done |= finished
        for place in finished.difference(self._roots):
            # A node that is done and was released has users that are done.
            if all(user in finished or user not in status for user in self._users[place]):
                self._futures.pop(place).release()
        for place, each in status.items():
            if each == "error" and self._nodes[place].leaf:
                self._require_kill(self._futures[place])
        leaves = sum(self._nodes[place].leaf for place in self._done)
        if progress is not None and leaves > self._seen:
            self._seen = leaves
            progress(leaves, self._leaves)
        return len(self._done) > before

    def _require_kill(self, future: Future[Any]) -> KilledWorker:
        """Return the error of a task whose workers died; raise an error of the task or the scheduler."""
        error = future.exception()
        assert error is not None
        if isinstance(error, KilledWorker):
            return error
        if type(error).__module__ != KilledWorker.__module__:
            raise error.with_traceback(future.traceback())
        raise ClusterError(f"round {self._label[2]} could not be run: {error}; {RESUMABLE}") from error

    def _try_again(self) -> None:
        """Submit nodes again whose workers died, now that the others are done: one for each thread."""
        killed: dict[TaskKey, KilledWorker] = {}
        for future in self._futures.values():
            if future.status == "error":
                error = self._require_kill(future)
                killed[cast(TaskKey, error.task)] = error
        self._suspects.update(self._kills.judge(killed, len(self._done)))
        threads: Mapping[str, int] = {}
        with suppress(OSError, TimeoutError):
            threads = threads_by_worker(self._client)
        turns = range(max(threads.values(), default=0))
        places = [worker for turn in turns for worker, count in threads.items() if turn < count] or [""]
        batch = dict(zip(sorted(self._suspects), places, strict=False))
        self._suspects -= batch.keys()
        for place, worker in batch.items():
            self._owners[place] = worker
        self._renew(batch)

    def _move_on(self) -> None:
        """Have silent workers restarted, and submit nodes again that wait for an owner that is gone."""
        with suppress(OSError, TimeoutError):
            ask = self._client._run_on_scheduler
            stranded = self._client.sync(ask, _repair, SILENT_SECONDS, callback_timeout=ANSWER_SECONDS)
            places = {place for place, key in self._keys.items() if key in stranded and self._owners[place]}
            for place in places:
                self._owners[place] = ""
            if places:
                self._renew(places)

    def _fetch(self, seconds: float) -> Any:
        """Fetch the roots' results and add them."""
        # By itself `gather` has no timeout: it would wait for ever on a worker that is frozen.
        gather = partial(self._client.gather, [self._futures[root] for root in self._roots], asynchronous=True)
        return add_totals(*self._client.sync(gather, callback_timeout=max(0.001, seconds)))

    def _start_over(self, error: BaseException, until: float) -> None:
        """Submit all nodes again, if the client has its scheduler back in time."""
        self._release()
        self._suspects.clear()
        self._attempt += 1
        while self._client.status == "connecting" and time.monotonic() < until:
            time.sleep(RECONNECT_POLL_SECONDS)
        if self._attempt >= ROUND_ATTEMPTS or self._client.status != "running":
            raise ClusterError(f"the cluster was lost: {error}; {RESUMABLE}") from error
        self._submit(range(len(self._nodes)))

    def _too_late(self) -> ClusterError:
        try:
            workers = str(len(threads_by_worker(self._client)))
        except Exception:  # the message must not fail because the cluster has
            workers = "an unknown number of"
        return ClusterError(
            f"round {self._label[2]} did not finish a task within {self._deadline_seconds:.0f} s; the cluster has "
            f"{workers} workers{self._kills.told()}. Add workers, see whether the scheduler answers, or raise "
            f"`round_deadline_seconds`; {RESUMABLE}"
        )

    def _release(self) -> None:
        for future in self._futures.values():
            future.release()
        self._futures.clear()
