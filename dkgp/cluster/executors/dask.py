"""Block tasks on a Dask cluster: what its workers are like, and rounds and totals for them (see `dask_graphs`)."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

from distributed import Client

from dkgp.cluster.arithmetic import (
    ask_workers,
    fetch_arithmetic,
    is_marked,
    require_fused_workers,
    require_one_arithmetic,
)
from dkgp.cluster.dashboard import Dashboard, find_dashboard
from dkgp.cluster.executors.base import BlockExecutor, PendingRound, RoundTasks
from dkgp.cluster.executors.dask_graphs import DaskGraph, Graph, Label, Terms, threads_by_worker
from dkgp.cluster.executors.in_process import Calls, InProcessRound
from dkgp.cluster.executors.kills import RESUMABLE
from dkgp.cluster.executors.mailbox import Mailbox
from dkgp.cluster.executors.sums import PendingTotal, TotalHere
from dkgp.cluster.executors.worker_setup import WorkerSetup
from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import ClusterError

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
        says which hosts have what.
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
        """Start a total: one task for each group, and tasks that add what is on the workers."""
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
