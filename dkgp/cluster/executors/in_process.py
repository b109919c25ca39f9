"""Rounds on a Dask cluster whose workers share this process: results come back through memory."""

from __future__ import annotations

import threading
import time
from typing import Any

from distributed import Client, Future

from dkgp.cluster.executors.dask_graphs import Label
from dkgp.cluster.executors.kills import RESUMABLE
from dkgp.cluster.executors.mailbox import Desk, Mailbox, serve
from dkgp.errors import ClusterError

WATCH_SECONDS = 1.0


class InProcessRound:
    """A round whose results come back through memory; the cluster cannot be lost without this process."""

    def __init__(self, calls: Calls, mailbox: Mailbox, number: int, deadline_seconds: float) -> None:
        self._calls, self._mailbox = calls, mailbox
        self._number, self._deadline_seconds = number, deadline_seconds
        self._until = 0.0  # the deadline's moment, once somebody waits

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return self._mailbox.done()

    def result(self) -> list[Any]:
        """Wait for all groups; return one result for each block, in block order."""
        try:
            while not self._mailbox.wait(WATCH_SECONDS):
                self.look()
            return [value for part in self._mailbox.take() for value in part]
        finally:
            self._mailbox.close()

    def look(self) -> None:
        """Raise `ClusterError` where the scheduler has given the round up, or its deadline has passed."""
        self._until = self._until or time.monotonic() + self._deadline_seconds
        if self._mailbox.done():
            return
        failed = self._calls.failed()
        if failed is not None:  # the scheduler gave a task up before it could deliver anything
            raise ClusterError(f"round {self._number} was given up: a task is {failed}; {RESUMABLE}")
        if time.monotonic() > self._until:
            raise ClusterError(
                f"round {self._number} did not finish within {self._deadline_seconds:.0f} s. Raise "
                f"`round_deadline_seconds`; {RESUMABLE}"
            )


class Calls:
    """The tasks on an in-process cluster that work on an executor's rounds, one for each thread."""

    def __init__(self, client: Client) -> None:
        self._client, self._desk = client, Desk()
        self._futures: list[Future[Any]] = []
        self._lock = threading.Lock()

    def post(self, label: Label, mailbox: Mailbox, threads: int) -> None:
        """Put up to `threads` threads to work on a round: those that wait already, and others that are called."""
        missing = self._desk.post(mailbox, threads)
        called = [
            self._client.submit(serve, self._desk.number, key=(*label, index), pure=False) for index in range(missing)
        ]
        with self._lock:
            self._futures += called
        for future in called:
            future.add_done_callback(self._forget_finished)

    def _forget_finished(self, future: Future[Any]) -> None:
        # Nothing of a round stays on the scheduler when its threads have gone.
        with self._lock:
            if future.status == "finished" and future in self._futures:
                self._futures.remove(future)

    def failed(self) -> str | None:
        """Status of a task that has failed, which is then forgotten; None where none has."""
        with self._lock:
            for future in self._futures:
                if future.status in ("error", "cancelled", "lost"):
                    self._futures.remove(future)
                    self._desk.forget()
                    return str(future.status)
        return None

    def close(self) -> None:
        """Let the threads go."""
        self._desk.close()
