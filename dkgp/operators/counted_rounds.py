"""Rounds whose tasks tell how many kernel entries they have evaluated, wherever they ran.

The count comes back with a task's results: those of a task that was lost with its worker, and run again, count once.
"""

from __future__ import annotations

from typing import Any

from dkgp.cluster.executors.base import BlockTask, PendingRound
from dkgp.kernels import EntryCount, counting

__all__ = ["CountedRound", "counted_task"]


def counted_task(task: BlockTask, *arguments: Any) -> list[tuple[int, list[Any]]]:
    """Run a task on its group, the last of `arguments`: one pair of the entries evaluated and the task's results."""
    with counting() as count:
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
