"""Rounds run where they are submitted: for work that others have shared out already."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dkgp.cluster.executors.base import BlockTask, LocalExecutor, LocalRound, PendingRound
from dkgp.cluster.threads import in_parallel, process_threads
from dkgp.cluster.tile_budget import TileBudget

__all__ = ["HereExecutor"]


class HereExecutor(LocalExecutor):
    """Block tasks on the thread that submits them, and its helpers; done before they are asked for.

    Parameters
    ----------
    threads : int
        The submitting one included.
    """

    # Other threads of this process may do the like beside this one, and take memory of their own.
    shares_memory = False

    def __init__(self, threads: int = 1) -> None:
        self._threads, self.tiles = threads, TileBudget()

    @property
    def threads_per_process(self) -> int:
        """All of the process, at work or not."""
        return process_threads()

    def submit(
        self,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        owners: Sequence[str] | None = None,
    ) -> PendingRound:
        """Run one round."""
        futures: list[Future[list[Any]]] = [Future() for _ in groups]

        def run(index: int) -> None:
            futures[index].set_result(task(*arguments, list(groups[index])))

        in_parallel(run, len(groups), self._threads)
        return LocalRound(futures)

    def close(self) -> None:
        """Nothing was started."""
