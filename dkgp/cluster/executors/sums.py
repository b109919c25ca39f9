"""Sums of what tasks return, in a binary tree that the number of tasks alone determines.

The leaves are a round's tasks in order. The node (level, i) adds the nodes (level - 1, 2 i) and (level - 1, 2 i + 1);
the last node of a level of odd length goes up as it is. The additions, and so the bits, are the same whichever worker
computes which node, and when.

In one process the thread that brings the second of two neighbours adds them: one value is held for each thread at work,
and one for each level of the tree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

Combine: TypeAlias = Callable[[Any, Any], Any]
"""The sum of two values, which must leave both as they are: a node that is lost with its worker is added again"""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of leaves that are done, and of all"""
WATCH_SECONDS = 0.2


class PendingSum(Protocol):
    """A sum that was started."""

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the root, and return it; what `progress` raises ends the wait, and the sum."""


def nodes_of(leaves: int) -> Iterator[tuple[int, int]]:
    """Nodes (level, index) of a tree with so many leaves, each as soon as the two that it adds are there."""
    return (node for leaf in range(leaves) for node in _up_from(leaf, leaves))


def _up_from(leaf: int, leaves: int) -> Iterator[tuple[int, int]]:
    """The leaf, and the nodes that it is the last leaf of."""
    level, index, width = 0, leaf, leaves
    yield level, index
    while width > 1:
        if index % 2 == 0 and index != width - 1:
            return
        level, index, width = level + 1, index // 2, -(-width // 2)
        yield level, index


def tree_of(leaves: int) -> list[int | tuple[int, int]]:
    """Return the tree in the order of `nodes_of`, root last: a leaf as its index, a sum as the places of what it adds.

    Nodes that go up as they are have no place of their own.
    """
    tree: list[int | tuple[int, int]] = []
    places: dict[tuple[int, int], int] = {}
    for level, index in nodes_of(leaves):
        below = [(level - 1, 2 * index), (level - 1, 2 * index + 1)] if level else []
        parts = [places[node] for node in below if node in places]
        if len(parts) == 1:
            places[level, index] = parts[0]
            continue
        tree.append((parts[0], parts[1]) if level else index)
        places[level, index] = len(tree) - 1
    return tree


class _Tree:
    """Values on their way up."""

    def __init__(self, leaves: int, combine: Combine) -> None:
        self.leaves, self._combine = leaves, combine
        self._waiting: dict[tuple[int, int], Any] = {}
        self._changed = threading.Condition()
        self.done, self.abandoned = 0, False
        self.root: Any = None

    def put(self, leaf: int, value: Any) -> None:
        """Take a leaf's value as far up as there are neighbours to add it to."""
        level, index, width = 0, leaf, self.leaves
        while width > 1:
            if not (index % 2 == 0 and index == width - 1):
                with self._changed:
                    neighbour = self._waiting.pop((level, index ^ 1), None)
                    if neighbour is None:
                        self._waiting[level, index] = value
                        break
                value = self._combine(value, neighbour) if index % 2 == 0 else self._combine(neighbour, value)
                del neighbour
            level, index, width = level + 1, index // 2, -(-width // 2)
        else:
            self.root = value
        with self._changed:
            self.done += 1
            self._changed.notify_all()

    def wait(self, seen: int) -> None:
        """Wait a moment, at most until more than `seen` leaves are done."""
        with self._changed:
            if self.done == seen:
                self._changed.wait(WATCH_SECONDS)


def _put_leaf(
    tree: _Tree, task: Callable[..., list[Any]], arguments: tuple[Any, ...], leaves: list[tuple[int, Sequence[Any]]]
) -> list[None]:
    for leaf, group in leaves:
        if not tree.abandoned:
            (value,) = task(*arguments, list(group))
            tree.put(leaf, value)
            del value
    return [None for _ in leaves]


class SumHere:
    """A sum whose tasks run in this process, as rounds of the executor that `submit` belongs to.

    `look` raises where the round that it is given will not end. See `BlockExecutor.submit_sum` for the others.
    """

    def __init__(
        self,
        submit: Callable[..., Any],
        name: str,
        task: Callable[..., list[Any]],
        arguments: tuple[Any, ...],
        groups: Sequence[Sequence[Any]],
        combine: Combine,
        look: Callable[[Any], None] | None = None,
    ) -> None:
        self._look = look
        self._tree = _Tree(len(groups), combine)
        leaves = [[(leaf, group)] for leaf, group in enumerate(groups)]
        self._pending = submit(name, _put_leaf, (self._tree, task, arguments), leaves)

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the root, and return it."""
        tree, seen = self._tree, 0
        try:
            while not self._pending.done():
                tree.wait(seen)
                if self._look is not None:
                    self._look(self._pending)
                if progress is not None and tree.done > seen:
                    seen = tree.done
                    progress(seen, tree.leaves)
            self._pending.result()
            if progress is not None and seen < tree.leaves:
                progress(tree.leaves, tree.leaves)
        finally:
            tree.abandoned = True
        root, tree.root = tree.root, None
        return root
