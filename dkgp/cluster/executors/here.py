"""Rounds run where they are submitted: for work that others have shared out already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.cluster.executors.base import BlockTask, PendingRound
from dkgp.cluster.executors.sums import Combine, PendingSum, SumHere
from dkgp.cluster.threads import in_parallel, process_threads
from dkgp.cluster.tile_budget import TileBudget

__all__ = ["HereExecutor"]


class HereExecutor:
    """Block tasks on the thread that submits them, and its helpers; done before they are asked for.

    Parameters
    ----------
    threads : int
        The submitting one included.
    """

    overlaps = False
    overlap_evaluations = 0
    least_task_evaluations = 0
    # Other threads of this process may do the like beside this one, and take memory of their own.
    shares_memory = False
    dashboard_link: str | None = None
    tiles = TileBudget()

    def __init__(self, threads: int = 1) -> None:
        self.parallelism = threads

    @property
    def threads_per_process(self) -> int:
        """All of the process, at work or not."""
        return process_threads()

    @property
    def workers(self) -> Mapping[str, int]:
        """One, this process."""
        return {"": self.parallelism}

    def submit(
        self,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        owners: Sequence[str] | None = None,
    ) -> PendingRound:
        """Run one round."""
        results: list[list[Any]] = [[] for _ in groups]

        def run(index: int) -> None:
            results[index] = task(*arguments, list(groups[index]))

        in_parallel(run, len(groups), self.parallelism)
        return _Done([value for part in results for value in part])

    def submit_sum(
        self,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        combine: Combine,
    ) -> PendingSum:
        """Run a sum's tasks."""
        return SumHere(self.submit, name, task, arguments, groups, combine)

    def require_one_arithmetic(self) -> None:
        """Threads of one process compute alike."""

    def close(self) -> None:
        """Nothing was started."""


class _Done:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def done(self) -> bool:
        return True

    def result(self) -> list[Any]:
        return self._values
