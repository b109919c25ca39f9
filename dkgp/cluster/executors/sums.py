"""Totals of integer arrays that tasks return: exact, in any order. In one process threads add them up in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.forks import fork_safe

Totals: TypeAlias = dict[Hashable, NDArray[np.int64]]
"""Integer arrays by key; of each key all have one shape"""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of leaves that are done, and of all"""
WATCH_SECONDS = 0.2


class PendingTotal(Protocol):
    """A total that was started."""

    def result(self, progress: Progress | None = None) -> Totals:
        """Wait for all tasks, and return the sum of each key; an exception of `progress` ends the wait and the total.

        `progress` is called with the number of tasks that are done, and of all.
        """


def add_totals(*parts: Mapping[Hashable, NDArray[np.int64]]) -> Totals:
    """Return the sum of each key; the parts stay as they are."""
    totals: Totals = {}
    new: set[Hashable] = set()
    for part in parts:
        for key, values in part.items():
            if key not in totals:
                totals[key] = values
            elif key in new:
                np.add(totals[key], values, out=totals[key])
            else:
                totals[key] = np.add(totals[key], values)
                new.add(key)
    return totals


class Accumulators:
    """Totals of tasks of this process: threads add to the array of a key in place, one thread at a time."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._changed = threading.Condition()
        self.done, self.abandoned = 0, False
        self._totals: Totals = {}
        self._locks: dict[Hashable, threading.Lock] = {}

    def put(self, value: Totals) -> None:
        """Take the result of a task."""
        for key, part in value.items():
            with self._changed:
                lock = self._locks.setdefault(key, fork_safe(threading.Lock()))
            with lock:
                if key in self._totals:
                    np.add(self._totals[key], part, out=self._totals[key])
                else:  # the task gave its array away, unless that is a view
                    self._totals[key] = part if part.flags.owndata and part.flags.writeable else part.copy()
        with self._changed:
            self.done += 1
            self._changed.notify_all()

    def wait(self, seen: int) -> None:
        """Wait a moment, at most until more than `seen` leaves are done."""
        with self._changed:
            if self.done == seen:
                self._changed.wait(WATCH_SECONDS)

    def take(self) -> Totals:
        """Return the totals, and forget them."""
        totals, self._totals = self._totals, {}
        return totals


def _put_leaf(accumulators: Accumulators, run: Callable[[int], list[Totals]], leaves: list[int]) -> list[None]:
    for leaf in leaves:
        if not accumulators.abandoned:
            (value,) = run(leaf)
            accumulators.put(value)
            del value
    return [None for _ in leaves]


class FinishedTotal:
    """The total of one task that has run; `run` returns its result, or raises its error when the total is asked for."""

    def __init__(self, run: Callable[[], list[Totals]]) -> None:
        self._totals: Totals = {}
        self._error: Exception | None = None
        try:
            (self._totals,) = run()
        except Exception as error:
            self._error = error

    def result(self, progress: Progress | None = None) -> Totals:
        """Return the arrays of the task; those that are views are copied."""
        if self._error is not None:
            raise self._error
        if progress is not None:
            progress(1, 1)
        return {
            key: part if part.flags.owndata and part.flags.writeable else part.copy()
            for key, part in self._totals.items()
        }


class TotalHere:
    """A total of tasks that run in this process, as a round of the executor that `submit` belongs to.

    `run` runs the task of a number below `leaves`. `look` raises an error for a round that will not end.
    """

    def __init__(
        self,
        submit: Callable[..., Any],
        name: str,
        run: Callable[[int], list[Totals]],
        leaves: int,
        look: Callable[[Any], None] | None = None,
    ) -> None:
        self._look, self._accumulators = look, Accumulators(leaves)
        self._pending = submit(name, _put_leaf, (self._accumulators, run), [[leaf] for leaf in range(leaves)])

    def result(self, progress: Progress | None = None) -> Totals:
        """Wait for all tasks, and return the sum of each key."""
        gathering, seen = self._accumulators, 0
        try:
            while gathering.done < gathering.leaves and not self._pending.done():
                gathering.wait(seen)
                if self._look is not None:
                    self._look(self._pending)
                before, seen = seen, gathering.done
                if progress is not None and seen > before:
                    progress(seen, gathering.leaves)
            self._pending.result()
            if progress is not None and seen < gathering.leaves:
                progress(gathering.leaves, gathering.leaves)
        finally:
            gathering.abandoned = True
        return gathering.take()
