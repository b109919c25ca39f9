"""Tasks whose workers died: bad luck, which another attempt mends, or tasks that end whatever worker they meet.

The scheduler gives a task up once more than its `allowed-failures` workers have died that held it, whether they were
at work on it or had it in their queue. Among workers that live briefly this befalls tasks that are innocent. So what
was given up is submitted again once the rest of its round is done, one for each thread, so that none is there when
another kills. And as long as the round gets on, as long as other tasks finish in between, it was bad luck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from distributed import KilledWorker

from dkgp.errors import ClusterError

# Of one task, in a row, with no other task of the round finished in between.
KILLS_IN_VAIN = 2
# Of one task, whatever else the round does: four workers each, where `allowed-failures` is three, as by default.
MOST_KILLS = 8
RESUMABLE = "the last checkpoint can be resumed"

# The name of a round's tasks on a dashboard, its executor, and its number; attempt, index and move of the task.
TaskKey = tuple[str, str, int, int, int, int]


class Kills:
    """Counts how often the scheduler gave each task of a round up, and what finished in between."""

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
            What the scheduler says of each task of the round that it has given up; those of former calls are passed by.
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
