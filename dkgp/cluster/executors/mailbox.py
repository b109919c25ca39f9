"""Arguments and results of rounds on an in-process cluster, handed over in memory.

Fetching a result through the scheduler takes two more round trips than computing it, 5 to 10 ms in all; arguments and
results are pickled; and each task costs all threads 2 ms of Python. Where workers share the coordinator's process the
scheduler therefore sees one task for each thread. It works on the rounds' tasks as long as there are any, takes their
arguments from the waiting thread, and hands results back in memory. It waits a moment for the next round of a solve,
which mostly follows at once and then begins without a message to the scheduler.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from typing import Any

from dkgp.cluster.executors.base import RoundTasks

# How long a thread waits for the next round. Others who use the same workers wait that long, too.
LINGER_SECONDS = 0.05

_numbers = itertools.count()
# Nobody listens to a desk that nobody holds any more.
_open: weakref.WeakValueDictionary[int, Desk] = weakref.WeakValueDictionary()


class Mailbox:
    """Hands out the work of one round's tasks and collects their results, in the order of their groups."""

    def __init__(self, tasks: RoundTasks) -> None:
        self._tasks = tasks
        count = len(tasks.groups)
        self._indices = iter(range(count))  # next() on it is atomic
        self._results: list[Any] = [None] * count
        self._missing = set(range(count))
        self._error: BaseException | None = None
        self._complete = threading.Event()
        self._lock = threading.Lock()
        self._closed = False

    def work(self) -> None:
        """Run one task after the other that nobody has begun, until none is left."""
        for index in self._indices:
            if self._closed:
                return
            try:
                result = self._tasks.run(index)
            except BaseException as error:
                self.put(index, None, error)
                if not isinstance(error, Exception):
                    raise
                return
            self.put(index, result, None)

    def put(self, index: int, result: Any, error: BaseException | None) -> None:
        """Take a task's result, or its exception."""
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
        """Return the results, or raise the first error."""
        if self._error is not None:
            raise self._error
        return self._results

    def close(self) -> None:
        """Begin no further task of the round."""
        self._closed = True


class Desk:
    """An executor's rounds, for the cluster's threads that work on them; these find the desk by its `number`."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        # A round that nobody holds any more is not worked on.
        self._rounds: deque[weakref.ref[Mailbox]] = deque()
        self._called = 0  # threads that were called and have not left
        self._closed = False
        self._changed = threading.Condition()
        _open[self.number] = self

    def post(self, mailbox: Mailbox, threads: int) -> int:
        """Put a round on the desk; return how many threads must be called, so that `threads` work on it."""
        with self._changed:
            self._rounds.append(weakref.ref(mailbox))
            self._changed.notify_all()
            missing = max(0, threads - self._called)
            self._called += missing
            return missing

    def serve(self) -> None:
        """Work on the rounds, in their order, as long as there are any and a moment longer."""
        try:
            while True:
                mailbox = self._next()
                if mailbox is None:
                    return
                mailbox.work()
                with self._changed:
                    if self._rounds and self._rounds[0]() is mailbox:  # all of it is begun, at least
                        self._rounds.popleft()
                del mailbox  # with its arguments
        except BaseException:
            self.forget()
            raise

    def _next(self) -> Mailbox | None:
        until = time.monotonic() + LINGER_SECONDS
        with self._changed:
            while True:
                while self._rounds:
                    if (mailbox := self._rounds[0]()) is not None:
                        return mailbox
                    self._rounds.popleft()
                remaining = until - time.monotonic()
                if self._closed or remaining <= 0.0:
                    self._called -= 1
                    return None
                self._changed.wait(remaining)

    def forget(self) -> None:
        """Count one thread less: it has gone, or will not come."""
        with self._changed:
            self._called = max(0, self._called - 1)

    def close(self) -> None:
        """Let the threads go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _open.pop(self.number, None)


def serve(number: int) -> None:
    """Work at a desk on a worker of this process; nothing where there is none any more."""
    desk = _open.get(number)
    if desk is not None:
        desk.serve()
