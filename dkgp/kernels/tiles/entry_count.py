"""Counts of evaluated kernel entries, taken where tiles are evaluated, on any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class EntryCount:
    """A sum that threads may add to at once.

    Attributes
    ----------
    value : int
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, entries: int) -> None:
        """Count so many more."""
        with self._lock:
            self.value += int(entries)


_current: ContextVar[EntryCount | None] = ContextVar("dkgp_entry_count", default=None)


@contextmanager
def counting() -> Iterator[EntryCount]:
    """Count what is evaluated while the context is open, as tasks do.

    By this thread, and by threads that run in a copy of its context; not by evaluators with a count of their own.
    """
    count = EntryCount()
    token = _current.set(count)
    try:
        yield count
    finally:
        _current.reset(token)


def count_entries(entries: int, count: EntryCount | None = None) -> None:
    """Count entries in `count`, else in the innermost open `counting`, if any."""
    count = count or _current.get()
    if count is not None:
        count.add(entries)
