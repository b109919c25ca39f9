"""Running one round of block tasks: the interface, and those that need nothing but threads.

A round is a list of groups of blocks; each group is one stateless call `task(*arguments, group)` that returns one
result for each of its blocks. Results come back in block order, independently of workers and times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.sums import FinishedTotal, PendingTotal, TotalHere
from dkgp.cluster.threads import available_cores, in_parallel, process_threads
from dkgp.forks import ForkSafePool

BlockTask: TypeAlias = Callable[..., list[Any]]


@dataclass(frozen=True)
class RoundTasks:
    """The tasks of a round, `task(*arguments, group)` for each group; `name` labels them on a dashboard.

    `owners` names, for each group, the worker that it had better run on, because something is kept there (see
    `dkgp.cluster.executors.homes`). Another one runs it where that one is gone or behind.

    `values` are arguments that several tasks share, by name. `needs` lists the names that each group takes, and the
    call becomes `task(*arguments, {name: value}, group)`. Each value goes to a cluster once, and workers share it. With
    `one_value` all of them go as one, which is cheaper for small ones.

    `gives` lists, for each group of a total, the keys that are added apart, so that a part for one key does not take
    the parts of others along. Other keys go with the first one. Only the traffic depends on it.
    """

    task: BlockTask
    arguments: tuple[Any, ...]
    groups: Sequence[Sequence[Any]]
    owners: Sequence[str] | None = None
    name: str = ""
    values: Mapping[Hashable, Any] = field(default_factory=dict)
    needs: Sequence[Sequence[Hashable]] | None = None
    gives: Sequence[Sequence[Hashable]] | None = None
    one_value: bool = False

    def run(self, index: int) -> list[Any]:
        """Run one task here."""
        values = () if self.needs is None else ({name: self.values[name] for name in self.needs[index]},)
        return self.task(*self.arguments, *values, list(self.groups[index]))


class PendingRound(Protocol):
    """A round that was submitted."""

    def done(self) -> bool:
        """True if `result` would return without waiting."""

    def result(self) -> list[Any]:
        """Wait for all groups; return one result for each block, in block order."""


class Rounds(Protocol):
    """Runs rounds of tasks, and totals: an executor, or an operator that counts its tasks' evaluations."""

    def start(self, tasks: RoundTasks) -> PendingRound:
        """Start one round."""

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        """Start a round whose tasks each return `[Totals]`, integer arrays by key; the sum of each key is wanted.

        Sums of integers do not depend on their order, so tasks are added anywhere, and any number of times computed
        again. A task gives its arrays away. Only the totals come back.
        """

    def submit(
        self,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        owners: Sequence[str] | None = None,
    ) -> PendingRound:
        """Start one round of the tasks that the arguments describe, see `RoundTasks`."""
        return self.start(RoundTasks(task, arguments, groups, owners, name))


class BlockExecutor(Rounds, Protocol):
    """Runs rounds on threads or workers; `tiles` is the workers' budget of kernel matrix tiles, and may be set."""

    tiles: TileBudget

    @property
    def least_task_evaluations(self) -> int:
        """Kernel entries below which a task is not worth its messages."""

    @property
    def overlap_evaluations(self) -> int:
        """Kernel entries a round that the coordinator may evaluate itself rather than wait for the round's result."""

    @property
    def overlaps(self) -> bool:
        """True if the coordinator's own work costs a round nothing, because it waits on messages or machines."""

    @property
    def parallelism(self) -> int:
        """Tasks that run at once, now."""

    @property
    def threads_per_process(self) -> int:
        """Tasks that run at once in one process, and share its memory."""

    @property
    def dashboard_link(self) -> str | None:
        """Address of a dashboard, where there is one."""

    @property
    def shares_memory(self) -> bool:
        """True if tasks run in this process and may be handed references to its arrays."""

    @property
    def workers(self) -> Mapping[str, int]:
        """Threads by worker process that keeps things of its own between rounds; one, by any name, in one process."""

    def look_for_workers(self) -> None:
        """Have `workers` ask for them anew: some are gone."""
        return None

    def require_one_arithmetic(self) -> None:
        """Refuse workers whose BLAS and vector code differ, before work starts whose bits depend on them."""

    def sees_folder(self, folder: str) -> bool:
        """True if tasks see files that this process writes into a folder of this machine."""
        return True

    def close(self) -> None:
        """Release everything that the executor started itself."""


def split_evenly(items: Sequence[Any], parts: int) -> list[list[Any]]:
    """Cut `items` into at most `parts` runs of neighbours whose lengths differ by at most one; no run is empty."""
    parts = max(1, min(parts, len(items)))
    size, extra = divmod(len(items), parts)
    groups, start = [], 0
    for index in range(parts):
        stop = start + size + (index < extra)
        groups.append(list(items[start:stop]))
        start = stop
    return [group for group in groups if group]


class LocalRound:
    """A round of this process's threads."""

    def __init__(self, futures: list[Future[list[Any]]]) -> None:
        self._futures = futures

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return all(future.done() for future in self._futures)

    def result(self) -> list[Any]:
        """Wait for all groups; return one result for each block, in block order."""
        return [value for future in self._futures for value in future.result()]


class LocalExecutor(BlockExecutor):
    """Block tasks on this process's own threads: no scheduler, no messages.

    Parameters
    ----------
    threads : int, optional
        Defaults to the cores this process may use.
    tiles : TileBudget, optional
        Budget of a kernel matrix's tiles; nothing by default.
    """

    overlaps = False
    overlap_evaluations = 0
    least_task_evaluations = 0
    shares_memory = True
    dashboard_link: str | None = None

    def __init__(self, threads: int | None = None, tiles: TileBudget | None = None) -> None:
        self._threads = threads or available_cores()
        self.tiles = tiles or TileBudget()
        self._pool = ForkSafePool(self._threads, "dkgp-block")

    @property
    def parallelism(self) -> int:
        """Number of threads."""
        return self._threads

    @property
    def threads_per_process(self) -> int:
        """All of them."""
        return self._threads

    @property
    def workers(self) -> Mapping[str, int]:
        """All threads, of this process."""
        return {"": self._threads}

    def start(self, tasks: RoundTasks) -> PendingRound:
        """Start one round on the pool."""
        return LocalRound([self._pool.submit(tasks.run, index) for index in range(len(tasks.groups))])

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        """Start a total of tasks that run here."""
        return TotalHere(self.submit, tasks.name, tasks.run, len(tasks.groups))

    def require_one_arithmetic(self) -> None:
        """Threads of one process compute alike."""

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


# A task that takes less processor time than this is done before another thread has begun.
QUICK_SECONDS = 5e-4


class QuickExecutor(LocalExecutor):
    """Block tasks of small problems: on the thread that submits them, as long as they are quick.

    A round whose task takes longer gives the remaining ones to the pool, and so do all later rounds of its name. A
    round of one task stays on the thread: another one would only be waited for.
    """

    def __init__(self, threads: int | None = None, tiles: TileBudget | None = None) -> None:
        super().__init__(threads, tiles)
        self._slow: set[str] = set()

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        """Start a total; one task runs at once, and nothing is added."""
        if len(tasks.groups) == 1:
            return FinishedTotal(lambda: tasks.run(0))
        return super().start_total(tasks)

    def start(self, tasks: RoundTasks) -> PendingRound:
        """Run the tasks of one round while they are quick; start the others on the pool."""
        futures: list[Future[list[Any]]] = []
        for index in range(len(tasks.groups)):
            if tasks.name in self._slow and len(tasks.groups) > 1:
                futures.append(self._pool.submit(tasks.run, index))
                continue
            began = time.thread_time()
            futures.append(Future())
            try:
                futures[-1].set_result(tasks.run(index))
            except Exception as error:
                futures[-1].set_exception(error)
            if time.thread_time() - began > QUICK_SECONDS:
                self._slow.add(tasks.name)
        return LocalRound(futures)


class HereExecutor(LocalExecutor):
    """Block tasks on the thread that submits them, and its helpers: for work that others have shared out already.

    A round is done before its results are asked for. `threads` include the submitting one.
    """

    # Other threads of this process may do the like beside this one, and take memory of their own.
    shares_memory = False

    def __init__(self, threads: int = 1) -> None:
        self._threads, self.tiles = threads, TileBudget()

    @property
    def threads_per_process(self) -> int:
        """All of the process, at work or not."""
        return process_threads()

    def start(self, tasks: RoundTasks) -> PendingRound:
        """Run one round."""
        futures: list[Future[list[Any]]] = [Future() for _ in tasks.groups]
        in_parallel(lambda index: futures[index].set_result(tasks.run(index)), len(futures), self._threads)
        return LocalRound(futures)

    def close(self) -> None:
        """Nothing was started."""
