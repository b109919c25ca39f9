"""Rounds of block tasks and totals on a Dask cluster, of worker processes or in this process.

A round is one graph of tasks, whose roots alone are fetched; in one process results come back through memory. No
worker holds anything that cannot be computed again. Values go to the cluster as results of tasks, so that the scheduler
recomputes them after a worker is lost. A node that the scheduler gives up, because too many workers died with it, is
submitted again under a new key, with the nodes that need it, while the round goes on.

The scheduler gives a task up once more than its `allowed-failures` workers have died that had it, in work or in their
queue. With short-lived workers this happens to innocent tasks. So such a task is submitted again when the rest of its
round is done, one task a thread, so that a task that kills its worker takes no other along. As long as other tasks
finish in between, the deaths count as bad luck.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

import dask
from dask._expr import LLGExpr
from dask.base import annotate
from dask.task_spec import Task, TaskRef
from distributed import Client, Future, KilledWorker
from distributed.client import _wait
from distributed.scheduler import heartbeat_interval
from distributed.spans import SpanMetadata

from dkgp.cluster.arithmetic import (
    ask_workers,
    fetch_arithmetic,
    is_marked,
    require_fused_workers,
    require_one_arithmetic,
)
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.dashboard import Dashboard, find_dashboard
from dkgp.cluster.executors.base import BlockExecutor, BlockTask, PendingRound, RoundTasks
from dkgp.cluster.executors.mailbox import Desk, Mailbox, serve
from dkgp.cluster.executors.sums import PendingTotal, Progress, TotalHere, Totals, add_totals
from dkgp.cluster.executors.worker_setup import WorkerSetup
from dkgp.errors import ClusterError, InterruptedRunError

PARALLELISM_REFRESH_SECONDS = 5.0
# A task costs the scheduler, the worker and the client a few milliseconds of Python; this many entries take 15 to 20.
LEAST_TASK_EVALUATIONS = 40_000_000
# In one process the coordinator's own evaluations compete with the round for the cores: as many as hide the round trip.
IN_PROCESS_OVERLAP_EVALUATIONS = 4_000_000
CLOSE_SECONDS = 5.0
CLIENT_BATCH_SECONDS = 0.001
NO_DASHBOARD = "there is no dashboard: where the scheduler runs it takes bokeh, pip install 'dkgp[dashboard]'"
SEEN_PREFIX = ".dkgp-seen-"


class DaskExecutor(BlockExecutor):
    """Runs rounds through a Dask client, which it never closes.

    A round without a task done, or without workers, for as long as its deadline is an error instead of a hang.
    `cache_bytes` is the budget of each worker process's feature cache, `tiles` that of a kernel matrix's tiles.
    `in_process`: all workers share this process; `owns_workers`: they were started by it and get its terminal's
    signals. `most_workers`: workers that an adaptive cluster may have. `resources`: Dask's resources that each task
    takes of its worker. A round that waits for workers while none is there ends when `interrupted` returns true.
    """

    overlaps = True
    least_task_evaluations = LEAST_TASK_EVALUATIONS
    shares_memory = False
    overlap_evaluations = sys.maxsize

    def __init__(
        self,
        client: Client,
        *,
        round_deadline_seconds: float = 900.0,
        cache_bytes: int = 2 * 1024**3,
        in_process: bool = False,
        owns_workers: bool = False,
        tiles: TileBudget | None = None,
        most_workers: int = 0,
        resources: Mapping[str, float] | None = None,
        interrupted: Callable[[], bool] | None = None,
    ) -> None:
        self._client, self._most_workers = client, most_workers
        self.tiles = tiles or TileBudget()
        self._terms = Terms(round_deadline_seconds, resources or {}, interrupted)
        self._run = uuid.uuid4().hex[:8]
        self._round = 0
        self._setup = WorkerSetup(cache_bytes, ignore_interrupts=owns_workers, client_id=client.id, run=self._run)
        self._lock = threading.Lock()
        self._threads: dict[str, int] = {}
        self._threads_known_at = -PARALLELISM_REFRESH_SECONDS
        if in_process:
            self.shares_memory, self.overlap_evaluations = True, IN_PROCESS_OVERLAP_EVALUATIONS
        # A client sends at most one message in 10 ms; a round's start would wait behind the last one's release.
        batch = getattr(client, "scheduler_comm", None)
        if batch is not None and hasattr(batch, "interval"):
            batch.interval = min(batch.interval, CLIENT_BATCH_SECONDS)
        self._calls = Calls(client)  # where workers share this process
        # Where all workers are this process, they compute alike.
        self._one_arithmetic = in_process
        if not in_process:
            require_fused_workers(fetch_arithmetic(client))
        self._register()

    @property
    def dashboard_link(self) -> str | None:
        """Link to the cluster's dashboard; None without one (it needs bokeh at the scheduler)."""
        return self._dashboard.link if self._dashboard else None

    @property
    def dashboard_tunnel(self) -> str:
        """Words on how to reach a dashboard that another machine keeps to itself, or on the extra that one takes."""
        if self._dashboard is not None:
            return self._dashboard.tunnel
        return "" if self.shares_memory or find_spec("bokeh") is not None else NO_DASHBOARD

    @cached_property
    def _dashboard(self) -> Dashboard | None:
        return find_dashboard(self._client)

    @property
    def parallelism(self) -> int:
        """Worker threads of the cluster; asked anew every few seconds, so that joining workers get work.

        An adaptive cluster has those of its maximum: it only grows if a round has tasks for more workers.
        """
        threads = self._known_threads().values()
        return max(1, sum(threads), self._most_workers * max(threads, default=1))

    @property
    def workers(self) -> Mapping[str, int]:
        """Threads by worker's address; asked anew every few seconds. One where all share this process."""
        threads = self._known_threads()
        return {"": self.parallelism} if self.shares_memory or not threads else threads

    def look_for_workers(self) -> None:
        """Have `workers` ask for them anew: some are gone."""
        self._threads_known_at = -PARALLELISM_REFRESH_SECONDS

    @property
    def threads_per_process(self) -> int:
        """Threads of the largest worker; of all workers where they share this process."""
        threads = self._known_threads().values()
        return max(1, sum(threads) if self.shares_memory else max(threads, default=1))

    def _known_threads(self) -> dict[str, int]:
        now = time.monotonic()
        if not self._threads or now - self._threads_known_at > PARALLELISM_REFRESH_SECONDS:
            try:
                self._threads = threads_by_worker(self._client, self._terms.resources)
            except (OSError, TimeoutError) as error:
                raise ClusterError(f"the scheduler no longer answers: {error}; {RESUMABLE}") from error
            self._threads_known_at = now
        return self._threads

    def sees_folder(self, folder: str) -> bool:
        """True if all workers, asked now, see a file that this process writes there.

        An address does not tell: containers that share a network have folders of their own. `ClusterError` where a
        worker does not answer.
        """
        if self.shares_memory:
            return True
        with tempfile.NamedTemporaryFile(prefix=SEEN_PREFIX, dir=folder) as file:
            return all(ask_workers(self._client, partial(os.path.exists, file.name), "see of the folder").values())

    def require_one_arithmetic(self) -> None:
        """Refuse workers that compute with different libraries or vector code, now and for as long as this is open.

        Called before work starts; a task that is marked (`needs_one_arithmetic`) sees to it in any case. `ClusterError`
        lists the differences by host.
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

    def start(self, tasks: RoundTasks) -> PendingRound:
        """Start one round: one task for each group."""
        label = self._label(tasks)
        if self.shares_memory:
            mailbox = Mailbox(tasks)
            self._calls.post(label, mailbox, min(self.parallelism, len(tasks.groups)))
            return InProcessRound(self._calls, mailbox, label[2], self._terms.deadline_seconds)
        return DaskGraph(self._client, label, Graph.build_round(tasks), self._terms)

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        """Start a total: one task for each group, and tasks that add the parts on the workers."""
        if self.shares_memory:
            return TotalHere(self.submit, tasks.name, tasks.run, len(tasks.groups), InProcessRound.look)
        return DaskGraph(self._client, self._label(tasks), Graph.build_total(tasks), self._terms)

    def _label(self, tasks: RoundTasks) -> Label:
        """Number a round, where there is a cluster to run it and, if need be, one arithmetic."""
        with self._lock:
            self._round += 1
            number = self._round
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(f"the cluster was lost: the client is {self._client.status}; {RESUMABLE}")
        # A task may be handed another one to run.
        if any(callable(part) and is_marked(part) for part in (tasks.task, *tasks.arguments)):
            self.require_one_arithmetic()
        return tasks.name, self._run, number

    def close(self) -> None:
        """Take the workers' set-up off the cluster, so that others may join it again; the client stays open."""
        self._calls.close()
        if self._client.status == "running":
            with suppress(Exception):  # a cluster that is lost has nothing to be taken off
                forget: Any = partial(self._client._unregister_worker_plugin, name=self._setup.name)
                self._client.sync(forget, callback_timeout=CLOSE_SECONDS)


ROUND_ATTEMPTS = 4
# Storage over a network has its hiccups. (Workers that die are counted by `Kills`.)
TASK_RETRIES = 3
FIRST_FETCH_SECONDS = 5.0
# Between two looks whether a result that is fetched was lost.
LOST_SECONDS = 0.01
# Between two looks for tasks that wait for a worker that is gone.
WAIT_SECONDS = 5.0
RECONNECT_POLL_SECONDS = 0.05
ANSWER_SECONDS = 30.0
# Between two looks at the tasks that are done.
WATCH_SECONDS = 1.0
# distributed warns of large arguments, as if each task had them.
MOST_SHARED = "1TB"
# A worker that has not answered the scheduler for so long does not come back in time; others take its tasks.
SILENT_SECONDS = 60.0
# A round that was asked to end waits for so long for a worker to come back, if none is there.
DESERTED_SECONDS = 5.0
# Parts that one task adds: so many wait on their workers for the last of them, and travel to one worker.
FAN_IN = 8


# The name of a round's tasks on a dashboard, its executor, and its number.
Label: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True)
class Terms:
    """The terms on which a cluster runs rounds.

    A round ends after `deadline_seconds` without a task done, or when `interrupted` returns true while no worker is
    there. Each task takes `resources` of its worker, by Dask's meaning of the word.
    """

    deadline_seconds: float = 900.0
    resources: Mapping[str, float] = field(default_factory=dict)
    interrupted: Callable[[], bool] | None = None


def threads_by_worker(
    client: Client, resources: Mapping[str, float] | None = None, seconds: float = ANSWER_SECONDS
) -> dict[str, int]:
    """Return the tasks that each worker runs at once, as the scheduler knows them now.

    Workers without the resources that a task takes are left out.
    """
    if client.scheduler is None:
        raise ConnectionError(f"the client is {client.status}")
    scheduler: Any = client.scheduler
    if not resources:
        threads: dict[str, int] = client.sync(scheduler.ncores, callback_timeout=seconds)
        return threads
    workers = client.sync(partial(scheduler.identity, n_workers=-1), callback_timeout=seconds)["workers"]
    tasks = {
        address: min(
            worker["nthreads"],
            *(int(worker["resources"].get(name, 0.0) / amount) for name, amount in resources.items()),
        )
        for address, worker in workers.items()
    }
    return {address: count for address, count in tasks.items() if count > 0}


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


class Graph:
    """Nodes of a round, those whose results are fetched, and the function that makes the round's result of them."""

    def __init__(self, tasks: RoundTasks, finish: Callable[[list[Any]], Any]) -> None:
        self.name, self.finish = tasks.name, finish
        self.nodes: list[Node] = []
        self.roots: list[int] = []
        self._tasks = tasks
        if tasks.one_value:
            self._values = dict.fromkeys(tasks.values, self.add("-value", _same, (_Values(tasks.values),)))
        else:
            self._values = {name: self.add("-value", _same, (value,)) for name, value in tasks.values.items()}

    @classmethod
    def build_round(cls, tasks: RoundTasks) -> Graph:
        """Return the graph of a round: its result is one list of the tasks' results."""
        graph = cls(tasks, lambda parts: [value for part in parts for value in part])
        graph.roots = [graph._leaf(_run, index, (tasks.arguments,), ()) for index in range(len(tasks.groups))]
        return graph

    @classmethod
    def build_total(cls, tasks: RoundTasks) -> Graph:
        """Return the graph of a total: trees of additions, one for each key that the tasks give apart."""
        graph = cls(tasks, lambda parts: add_totals(*parts))
        parts: defaultdict[Hashable, list[tuple[str, int]]] = defaultdict(list)
        for index, leaf in enumerate(graph._leaves()):
            keys, owner = tuple(tasks.gives[index]) if tasks.gives else (), graph.nodes[leaf].owner
            if len(keys) < 2:
                parts[keys[0] if keys else None].append((owner, leaf))
                continue
            for key in keys:
                # The first part takes the keys that are not named.
                part = graph.add("-part", _part, (key, keys[1:] if key == keys[0] else None), (leaf,), owner)
                parts[key].append((owner, part))
        for places in parts.values():
            # Parts of one worker are added first; large ones by twos, so that few wait on a worker.
            graph._reduce([place for _, place in sorted(places)], FAN_IN if tasks.gives or tasks.one_value else 2)
        return graph

    def add(self, suffix: str, *parts: Any) -> int:
        """Add a node, and return its place."""
        self.nodes.append(Node(self.name + suffix, *parts))
        return len(self.nodes) - 1

    def _leaves(self) -> list[int]:
        """Add the round's tasks; the arguments, factors of m^2 numbers among them, go to the cluster once."""
        shared = self.add("-arguments", _together, self._tasks.arguments)
        return [self._leaf(_run_one, index, (), (shared,)) for index in range(len(self._tasks.groups))]

    def _leaf(self, run: Callable[..., Any], index: int, arguments: tuple[Any, ...], shared: tuple[int, ...]) -> int:
        tasks = self._tasks
        names = None if tasks.needs is None else tuple(tasks.needs[index])
        needs = (*shared, *dict.fromkeys(self._values[name] for name in names or ()))
        owner = tasks.owners[index] if tasks.owners else ""
        return self.add("", run, (tasks.task, list(tasks.groups[index]), names, *arguments), needs, owner, True)

    def _reduce(self, level: list[int], fan_in: int) -> None:
        """Add the nodes of a tree over some nodes; the last of a level goes up as it is where it is alone."""
        while len(level) > 1:
            groups = [tuple(level[start : start + fan_in]) for start in range(0, len(level), fan_in)]
            level = [self.add("-add", add_totals, (), group) if len(group) > 1 else group[0] for group in groups]
        self.roots += level


def _with(resources: Mapping[str, float]) -> str:
    """Return words on the resources of a worker; empty without any."""
    named = ", ".join(f"{name}={amount:g}" for name, amount in resources.items())
    return f" with the resources {named}" if named else ""


class _Values(dict[Hashable, Any]):
    """All values of a round, by name."""


def _together(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _same(value: Any) -> Any:
    return value


def _run(
    task: BlockTask, group: list[Any], names: Sequence[Hashable] | None, arguments: tuple[Any, ...], *values: Any
) -> list[Any]:
    if len(values) == 1 and isinstance(values[0], _Values):
        values = tuple(values[0][name] for name in names or ())
    named = () if names is None else (dict(zip(names, values, strict=True)),)
    return task(*arguments, *named, group)


def _run_one(*arguments: Any) -> Any:
    """Return the one result of a task's list."""
    (result,) = _run(*arguments)
    return result


def _part(key: Hashable, others: Sequence[Hashable] | None, totals: Totals) -> Totals:
    """Return one key of the totals, or all but `others`."""
    if others is None:
        return {key: totals[key]} if key in totals else {}
    return {name: values for name, values in totals.items() if name not in others}


async def _gather(client: Client, futures: list[Future[Any]]) -> list[Any]:
    """Gather results; `TimeoutError` as soon as one of them is lost.

    The client would try to connect to the dead worker for longer than the result takes to compute again.
    """
    gathering = asyncio.ensure_future(client.gather(futures, asynchronous=True))
    try:
        while not (await asyncio.wait([gathering], timeout=LOST_SECONDS))[0]:
            if any(future.status != "finished" for future in futures):
                raise TimeoutError("a result was lost with its worker")
        results: list[Any] = gathering.result()
        return results
    finally:
        gathering.cancel()


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

    def __init__(self, client: Client, label: Label, graph: Graph, terms: Terms) -> None:
        self._client, self._label, self._terms = client, label, terms
        self._deadline_seconds = terms.deadline_seconds
        self._deserted_at: float | None = None
        self._nodes, self._roots, self._finish = graph.nodes, graph.roots, graph.finish
        self._users: list[list[int]] = [[] for _ in self._nodes]
        for place, node in enumerate(self._nodes):
            for need in node.needs:
                self._users[need].append(place)
        self._leaves = sum(node.leaf for node in self._nodes)
        self._owners = [node.owner for node in self._nodes]
        self._attempt = self._moved = self._seen = 0
        self._until = float("inf")  # the deadline's moment, once somebody waits
        self._kills = Kills()
        self._suspects: set[int] = set()
        self._keys: dict[int, tuple[Any, ...]] = {}
        self._futures: dict[int, Future[Any]] = {}
        self._errors: dict[Any, BaseException] = {}  # by key
        self._done: set[int] = set()
        self._fetched: dict[int, Any] = {}
        self._renew(self._roots)

    def _submit(self, places: Iterable[int]) -> None:
        """Submit nodes in one message, under new keys; others that they need are there."""
        fresh = sorted(places)
        if not fresh:
            return
        self._moved += 1
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
                stack.enter_context(annotate(workers=owners.__getitem__, allow_other_workers=True))
            futures = self._client._graph_to_futures(
                # By itself the expression would hash all values for its name.
                LLGExpr(tasks, _determ_token="-".join(map(str, (*self._label, self._attempt, self._moved)))),
                list(tasks),
                SpanMetadata(collections=[]),
                internal_priority=order,
                resources=dict(self._terms.resources) or None,
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

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return all(self._status(root) == "finished" for root in self._missing())

    def _missing(self) -> list[int]:
        return [root for root in self._roots if root not in self._fetched]

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the roots, and return the result that is made of theirs."""
        patience, moves = FIRST_FETCH_SECONDS, time.monotonic() + WAIT_SECONDS
        self._until = time.monotonic() + self._deadline_seconds
        try:
            while True:
                error: BaseException | None = None
                try:
                    self._wait()
                    if self._look(progress):
                        self._until = time.monotonic() + self._deadline_seconds
                    error = self._find_error()
                    if error is None:
                        self._fetch(patience)
                        if not self._missing():
                            return self._finish([self._fetched[root] for root in self._roots])
                        if time.monotonic() > moves:
                            moves = time.monotonic() + WAIT_SECONDS
                            self._move_on()
                except TimeoutError:  # by now lost results may be on their way on another worker
                    patience *= 2.0
                except (CancelledError, OSError) as lost:
                    self._start_over(lost)
                    continue
                if error is not None:
                    raise error
                self._heed()
                if time.monotonic() > self._until:
                    raise self._too_late()
                if self._errors and not self._under_way():
                    self._try_again()
        finally:
            self._release()

    def _heed(self) -> None:
        """Raise `InterruptedRunError` if the round was asked to end, and no worker has been there for a while."""
        if self._terms.interrupted is None or not self._terms.interrupted():
            return
        try:
            deserted = not threads_by_worker(self._client, self._terms.resources, DESERTED_SECONDS)
        except (OSError, TimeoutError):  # nor does the scheduler answer
            deserted = True
        now = time.monotonic()
        self._deserted_at = (self._deserted_at or now) if deserted else None
        if self._deserted_at is not None and now - self._deserted_at >= DESERTED_SECONDS:
            raise InterruptedRunError("interrupted while the cluster had no workers")

    def _wait(self) -> None:
        """Wait a moment for the roots; where one of them has failed, for all nodes that have not."""
        if pending := self._under_way():
            # The public `wait` asks for a default client, which sets Dask's scheduler for all threads of the process.
            with suppress(TimeoutError):
                seconds = max(0.001, min(WATCH_SECONDS, self._until - time.monotonic()))
                self._client.sync(_wait, pending, timeout=seconds)

    def _under_way(self) -> list[Future[Any]]:
        missing = self._missing()
        failed = any(self._status(root) == "error" for root in missing)
        return [self._futures[place] for place in (self._futures if failed else missing) if self._is_open(place)]

    def _is_open(self, place: int) -> bool:
        return not self._futures[place].done()

    def _look(self, progress: Progress | None) -> bool:
        """Release results that are not needed any more, and report progress; true if there was any."""
        status = {place: future.status for place, future in self._futures.items()}
        if "cancelled" in status.values():
            raise CancelledError("the scheduler forgot the tasks")
        finished, before = {place for place, each in status.items() if each == "finished"}, len(self._done)
        self._done |= finished
        for place in finished.difference(self._roots):
            # A node that was done and released has users that are done.
            if all(user in finished or user not in status for user in self._users[place]):
                self._futures.pop(place).release()
        leaves = sum(self._nodes[place].leaf for place in self._done)
        if progress is not None and leaves > self._seen:
            self._seen = leaves
            progress(leaves, self._leaves)
        return len(self._done) > before

    def _find_error(self) -> BaseException | None:
        """Note errors of nodes; return an error of a task, or of the scheduler, that another attempt does not mend."""
        for future in [future for future in self._futures.values() if future.status == "error"]:
            if future.key in self._errors:
                continue
            error: BaseException | None = future.exception()
            assert error is not None
            if type(error).__module__ != KilledWorker.__module__:
                return error.with_traceback(future.traceback())
            if not isinstance(error, KilledWorker):
                refusal = ClusterError(f"round {self._label[2]} could not be run: {error}; {RESUMABLE}")
                refusal.__cause__ = error
                return refusal
            self._errors[future.key] = error
        return None

    def _try_again(self) -> None:
        """Submit nodes again whose workers died, now that the others are done: one for each thread."""
        killed = {cast(TaskKey, error.task): error for error in cast("list[KilledWorker]", [*self._errors.values()])}
        self._errors.clear()
        self._suspects.update(self._kills.judge(killed, len(self._done)))
        threads: Mapping[str, int] = {}
        with suppress(OSError, TimeoutError):
            threads = threads_by_worker(self._client, self._terms.resources)
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
            seconds = max(0.001, min(ANSWER_SECONDS, self._until - time.monotonic()))
            stranded = self._client.sync(ask, _repair, SILENT_SECONDS, callback_timeout=seconds)
            places = {place for place, key in self._keys.items() if key in stranded and self._owners[place]}
            for place in places:
                self._owners[place] = ""
            if places:
                self._renew(places)

    def _fetch(self, seconds: float) -> None:
        """Fetch results of roots that are done, and release them. `TimeoutError` where it takes longer."""
        places = [root for root in self._missing() if self._status(root) == "finished"]
        if not places:
            return
        # By itself `gather` has no timeout: it would wait for ever on a worker that is frozen, and for one and a half
        # minutes on one that died with its results, to which the scheduler keeps trying to connect.
        gather = partial(_gather, self._client, [self._futures[root] for root in places])
        try:
            parts: list[Any] = self._client.sync(gather, callback_timeout=max(0.001, seconds))
        except Exception:
            if any(self._status(root) == "error" for root in places):  # lost, and failed as it was computed again
                return
            raise
        self._fetched.update(zip(places, parts, strict=True))
        for root in places:
            self._futures.pop(root).release()

    def _start_over(self, error: BaseException) -> None:
        """Submit all that is missing again, if the client has its scheduler back in time."""
        self._release()
        self._suspects.clear()
        self._errors.clear()
        self._attempt += 1
        while self._client.status == "connecting" and time.monotonic() < self._until:
            self._heed()
            time.sleep(RECONNECT_POLL_SECONDS)
        if self._attempt >= ROUND_ATTEMPTS or self._client.status != "running":
            raise ClusterError(f"the cluster was lost: {error}; {RESUMABLE}") from error
        self._renew(self._missing())

    def _too_late(self) -> ClusterError:
        try:
            workers = str(len(threads_by_worker(self._client, self._terms.resources)))
        except Exception:  # the message must not fail because the cluster has
            workers = "an unknown number of"
        return ClusterError(
            f"round {self._label[2]} did not finish a task within {self._deadline_seconds:.0f} s; the cluster has "
            f"{workers} workers{_with(self._terms.resources)}{self._kills.explanation()}. Add workers, see whether the "
            f"scheduler answers, or raise `round_deadline_seconds`; {RESUMABLE}"
        )

    def _release(self) -> None:
        for future in self._futures.values():
            future.release()
        self._futures.clear()


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


# Of one task, in a row, with no other task of the round finished in between.
KILLS_IN_VAIN = 2
# Of one task, however the round goes on: four workers each, where `allowed-failures` is three, as by default.
MOST_KILLS = 8
RESUMABLE = "the last checkpoint can be resumed"

# The name of a round's tasks on a dashboard, its executor, and its number; attempt, index and move of the task.
TaskKey = tuple[str, str, int, int, int, int]


class Kills:
    """Counts how often the scheduler gave up each task of a round, and the tasks that finished in between."""

    def __init__(self) -> None:
        self._seen: set[TaskKey] = set()
        self._counts: Counter[int] = Counter()
        self._in_vain: Counter[int] = Counter()
        self._done = 0

    def judge(self, killed: Mapping[TaskKey, KilledWorker], done: int) -> list[int]:
        """Return those to be submitted again; `ClusterError` where there is no use in it.

        Parameters
        ----------
        killed : mapping
            The scheduler's error for each task of the round that it has given up; those of former calls are ignored.
        done : int
            Tasks of the round that have finished at one time or another.
        """
        if done > self._done:
            self._done = done
            self._in_vain.clear()
        new = [key for key in killed if key not in self._seen]
        self._seen.update(new)
        for key in new:
            self._counts[key[4]] += 1
            self._in_vain[key[4]] += 1
        for key in sorted(new, key=lambda key: -self._counts[key[4]]):
            times = self._counts[key[4]]
            if self._in_vain[key[4]] >= KILLS_IN_VAIN or times >= MOST_KILLS:
                raise _refusal(key, killed[key], times)
        return [key[4] for key in new]

    def explanation(self) -> str:
        """Words on this for the message of a round that took too long."""
        if not self._counts:
            return ""
        ((index, times),) = self._counts.most_common(1)
        return f"; workers keep dying on its task {index}, which was submitted {times + 1} times"


def _refusal(key: TaskKey, error: KilledWorker, times: int) -> ClusterError:
    workers = times * (error.allowed_failures + 1)
    refusal = ClusterError(
        f"workers keep dying on the same task: {workers} of them on task {key[4]} of {key[0] or 'round'} {key[2]}, the "
        f"last one {error.last_worker.address}; out of memory is the usual cause. Lower the block size or give workers "
        f"more memory; {RESUMABLE}"
    )
    refusal.__cause__ = error
    return refusal
