"""Results of a round on an in-process cluster, handed over in memory.

Fetching a result through the scheduler takes two more round trips than computing it, 5 to 10 ms in all. Where workers
share the coordinator's process a task can leave its result with the waiting thread instead, and what the scheduler
has to be told of the task's end is told while the coordinator already works on.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

from dkgp.cluster.executors.base import BlockTask

__all__ = ["Mailbox", "deliver"]

_numbers = itertools.count()
_open: dict[int, Mailbox] = {}


class Mailbox:
    """Collects the results of one round's tasks, in the order of their groups.

    Parameters
    ----------
    count : int
        Number of tasks.
    """

    def __init__(self, count: int) -> None:
        self.number = next(_numbers)
        self._results: list[Any] = [None] * count
        self._missing = set(range(count))
        self._error: BaseException | None = None
        self._complete = threading.Event()
        self._lock = threading.Lock()
        _open[self.number] = self

    def put(self, index: int, result: Any, error: BaseException | None) -> None:
        """Take a task's result, or what it raised; a task that ran twice is heard once."""
        with self._lock:
            if index not in self._missing:
                return
            self._missing.discard(index)
            self._results[index] = result
            self._error = self._error or error
            if error is not None or not self._missing:
                self._complete.set()

    def done(self) -> bool:
        """True once every result is here, or an error is."""
        return self._complete.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the last result or the first error; False when neither came in time."""
        return self._complete.wait(seconds)

    def take(self) -> list[Any]:
        """Return the results, or raise the first error; the mailbox is closed by either."""
        self.close()
        if self._error is not None:
            raise self._error
        return self._results

    def close(self) -> None:
        """Stop listening; what arrives later is dropped."""
        _open.pop(self.number, None)


def deliver(number: int, index: int, task: BlockTask, *arguments: Any) -> None:
    """Run a block task on a worker of this process and leave its result in a mailbox."""
    mailbox = _open.get(number)
    if mailbox is None:  # nobody waits any more
        return
    try:
        mailbox.put(index, task(*arguments), None)
    except BaseException as error:
        mailbox.put(index, None, error)
        raise
