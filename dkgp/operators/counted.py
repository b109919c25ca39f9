"""Rounds and totals whose tasks count the kernel entries that they evaluate, wherever they run.

The count comes back with a task's results: those of a task that was lost with its worker, and run again, count once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockTask, PendingRound
from dkgp.cluster.executors.sums import PendingTotal, Progress, Totals
from dkgp.kernels import EntryCount, counting

# The key of the entries that the tasks of a total evaluate.
ENTRIES = "entries evaluated"


def counted_task(task: BlockTask, *arguments: Any) -> list[tuple[int, list[Any]]]:
    """Run a task on its group, the last of `arguments`: one pair of the entries evaluated and the task's results.

    Where sums overflow, results are infinite or NaN, and their user refuses them or proves nothing by them; NumPy's
    warnings, one a thread and worker, would say no more.
    """
    with counting() as count, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        results = task(*arguments)
    return [(count.value, results)]


def counted_totals_task(task: BlockTask, *arguments: Any) -> list[Totals]:
    """Run a task of a total on its group; the entries evaluated are one more key of its totals."""
    ((entries, (totals,)),) = counted_task(task, *arguments)
    return [totals | {ENTRIES: np.array([entries], np.int64)}]


class CountedTotal:
    """A total of `counted_totals_task`, and a count that grows when it is taken."""

    def __init__(self, pending: PendingTotal, entries: EntryCount) -> None:
        self._pending, self._entries = pending, entries

    def result(self, progress: Progress | None = None) -> Totals:
        """Wait for the totals; to be called once."""
        totals = self._pending.result(progress)
        self._entries.add(int(totals.pop(ENTRIES)[0]))
        return totals


class CountedRound:
    """A round of `counted_task`: the tasks' results, and a count that grows when they are taken."""

    def __init__(self, pending: PendingRound, entries: EntryCount) -> None:
        self._pending, self._entries = pending, entries

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return self._pending.done()

    def result(self) -> list[Any]:
        """One result for each block, in block order; to be called once."""
        parts = self._pending.result()
        self._entries.add(sum(entries for entries, _ in parts))
        return [value for _, results in parts for value in results]
