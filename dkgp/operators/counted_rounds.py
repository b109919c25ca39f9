"""Rounds whose tasks tell how many kernel entries they have evaluated, wherever they ran.

The count comes back with a task's results: those of a task that was lost with its worker, and run again, count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, BlockTask, PendingRound
from dkgp.cluster.executors.sums import Combine, Told
from dkgp.kernels import EntryCount, counting

__all__ = ["CountedRound", "CountedSum", "counted_task"]


def counted_task(task: BlockTask, *arguments: Any) -> list[tuple[int, list[Any]]]:
    """Run a task on its group, the last of `arguments`: one pair of the entries evaluated and the task's results.

    Of kernels so large that sums overflow they are infinite, or no numbers, and whoever asked refuses them or proves
    nothing by them; NumPy's warnings, one a thread and worker, would say no more.
    """
    with counting() as count, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        results = task(*arguments)
    return [(count.value, results)]


class CountedRound:
    """A round of `counted_task`: the tasks' own results, and a count that grows when they are taken.

    Parameters
    ----------
    pending : PendingRound
    entries : EntryCount
    """

    def __init__(self, pending: PendingRound, entries: EntryCount) -> None:
        self._pending, self._entries = pending, entries

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return self._pending.done()

    def result(self) -> list[Any]:
        """One result for each block, in block order; to be asked for once."""
        parts = self._pending.result()
        self._entries.add(sum(entries for entries, _ in parts))
        return [value for _, results in parts for value in results]


class CountedSum:
    """A sum of what tasks return, started, and a count that grows when it is taken.

    Parameters
    ----------
    executor, name, task, arguments, groups, combine, owners
        See `BlockExecutor.submit_sum`.
    entries : EntryCount
    """

    def __init__(
        self,
        executor: BlockExecutor,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        combine: Combine,
        entries: EntryCount,
        owners: Sequence[str] | None = None,
    ) -> None:
        both, hints = partial(_add_counted, combine), () if owners is None else (owners,)
        self._pending = executor.submit_sum(name, counted_task, (task, *arguments), groups, both, *hints)
        self._entries = entries

    def result(self, told: Told | None = None) -> Any:
        """Wait for the sum; to be asked for once."""
        entries, (value,) = self._pending.result(told)
        self._entries.add(entries)
        return value


def _add_counted(combine: Combine, left: tuple[int, list[Any]], right: tuple[int, list[Any]]) -> tuple[int, list[Any]]:
    return left[0] + right[0], [combine(left[1][0], right[1][0])]
