"""Sums of what tasks return, in a binary tree that the number of tasks alone determines.

The leaves are a round's tasks in order. The node (level, i) adds the nodes (level - 1, 2 i) and (level - 1, 2 i + 1);
the last node of a level of odd length goes up as it is. The additions, and so the bits, are the same whichever worker
computes which node, and when.

In one process the thread that brings the second of two neighbours adds them: one value is held for each thread at work,
and one for each level of the tree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.forks import fork_safe

Totals: TypeAlias = dict[Hashable, NDArray[np.int64]]
"""Integer arrays by key; of each key all have one shape"""
Combine: TypeAlias = Callable[[Any, Any], Any]
"""The sum of two values, which must leave both as they are: a node that is lost with its worker is added again"""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of leaves that are done, and of all"""
WATCH_SECONDS = 0.2


class PendingSum(Protocol):
    """A sum that was started."""

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the root, and return it; what `progress` raises ends the wait, and the sum."""


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


class _Gathering:
    """Results of tasks of this process, which are put together as they come."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._changed = threading.Condition()
        self.done, self.abandoned = 0, False

    def put(self, leaf: int, value: Any) -> None:
        """Take the result of a task."""
        self._add(leaf, value)
        with self._changed:
            self.done += 1
            self._changed.notify_all()

    def wait(self, seen: int) -> None:
        """Wait a moment, at most until more than `seen` leaves are done."""
        with self._changed:
            if self.done == seen:
                self._changed.wait(WATCH_SECONDS)

    def _add(self, leaf: int, value: Any) -> None:
        raise NotImplementedError

    def take(self) -> Any:
        """Return the sum of all results, and forget it."""
        raise NotImplementedError


class Tree(_Gathering):
    """Values on their way up a tree."""

    def __init__(self, leaves: int, combine: Combine) -> None:
        super().__init__(leaves)
        self._combine = combine
        self._waiting: dict[tuple[int, int], Any] = {}
        self._root: Any = None

    def _add(self, leaf: int, value: Any) -> None:
        """Take a leaf's value as far up as there are neighbours to add it to."""
        level, index, width = 0, leaf, self.leaves
        while width > 1:
            if not (index % 2 == 0 and index == width - 1):
                with self._changed:
                    neighbour = self._waiting.pop((level, index ^ 1), None)
                    if neighbour is None:
                        self._waiting[level, index] = value
                        return
                value = self._combine(value, neighbour) if index % 2 == 0 else self._combine(neighbour, value)
                del neighbour
            level, index, width = level + 1, index // 2, -(-width // 2)
        self._root = value

    def take(self) -> Any:
        """Return the root's value, and forget it."""
        root, self._root = self._root, None
        return root


class Accumulators(_Gathering):
    """One array for each key, to which threads add in place; one thread at a time adds to an array."""

    def __init__(self, leaves: int) -> None:
        super().__init__(leaves)
        self._totals: Totals = {}
        self._locks: dict[Hashable, threading.Lock] = {}

    def _add(self, leaf: int, value: Totals) -> None:
        for key, part in value.items():
            with self._changed:
                lock = self._locks.setdefault(key, fork_safe(threading.Lock()))
            with lock:
                if key in self._totals:
                    np.add(self._totals[key], part, out=self._totals[key])
                else:  # the task gave its array away, unless that is a view
                    self._totals[key] = part if part.flags.owndata and part.flags.writeable else part.copy()

    def take(self) -> Totals:
        """Return the totals, and forget them."""
        totals, self._totals = self._totals, {}
        return totals


def _put_leaf(gathering: _Gathering, run: Callable[[int], list[Any]], leaves: list[int]) -> list[None]:
    for leaf in leaves:
        if not gathering.abandoned:
            (value,) = run(leaf)
            gathering.put(leaf, value)
            del value
    return [None for _ in leaves]


class SumHere:
    """A sum of tasks that run in this process, as a round of the executor that `submit` belongs to.

    `run` runs the task of a number. `look` raises where the round that it is given will not end.
    """

    def __init__(
        self,
        submit: Callable[..., Any],
        name: str,
        run: Callable[[int], list[Any]],
        gathering: _Gathering,
        look: Callable[[Any], None] | None = None,
    ) -> None:
        self._look, self._gathering = look, gathering
        self._pending = submit(name, _put_leaf, (gathering, run), [[leaf] for leaf in range(gathering.leaves)])

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for all tasks, and return their sum."""
        gathering, seen = self._gathering, 0
        try:
            while gathering.done < gathering.leaves and not self._pending.done():
                gathering.wait(seen)
                if self._look is not None:
                    self._look(self._pending)
                if progress is not None and gathering.done > seen:
                    seen = gathering.done
                    progress(seen, gathering.leaves)
            self._pending.result()
            if progress is not None and seen < gathering.leaves:
                progress(gathering.leaves, gathering.leaves)
        finally:
            gathering.abandoned = True
        return gathering.take()
