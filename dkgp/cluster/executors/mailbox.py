"""Arguments and results of a round on an in-process cluster, handed over in memory.

Fetching a result through the scheduler takes two more round trips than computing it, 5 to 10 ms in all; what it sends
it pickles; and each task of its own takes 2 ms of everybody's Python. Where workers share the coordinator's process
the scheduler sees one task for each thread instead, which works on the round's tasks as long as there are any: it takes
their arguments from the waiting thread and leaves their results there, and what the scheduler has to be told of the end
is told while the coordinator already works on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from dkgp.cluster.executors.base import BlockTask

__all__ = ["Mailbox", "deliver"]

_numbers = itertools.count()
# Nobody listens to a round that nobody holds any more.
_open: WeakValueDictionary[int, Mailbox] = WeakValueDictionary()


class Mailbox:
    """Hands out the work of one round's tasks and collects their results, in the order of their groups."""

    def __init__(self, task: BlockTask, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]]) -> None:
        self._task, self._arguments, self._groups = task, arguments, groups
        count = len(groups)
        self._left = iter(range(count))  # next() on it is atomic
        self.number = next(_numbers)
        self._results: list[Any] = [None] * count
        self._missing = set(range(count))
        self._error: BaseException | None = None
        self._complete = threading.Event()
        self._lock = threading.Lock()
        _open[self.number] = self

    def work(self) -> None:
        """Run one task after the other that nobody has begun, until none is left."""
        for index in self._left:
            try:
                result = self._task(*self._arguments, list(self._groups[index]))
            except BaseException as error:
                self.put(index, None, error)
                raise
            self.put(index, result, None)

    def put(self, index: int, result: Any, error: BaseException | None) -> None:
        """Take a task's result, or what it raised."""
        with self._lock:
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


def deliver(number: int) -> None:
    """Work on a mailbox's round on a worker of this process; nothing where nobody waits any more."""
    mailbox = _open.get(number)
    if mailbox is not None:
        mailbox.work()
