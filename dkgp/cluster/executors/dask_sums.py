"""Sums on a Dask cluster: rounds whose results are added up where they are computed (see `sums`)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from distributed import Client, Future, wait

from dkgp.cluster.executors.base import BlockTask, RoundTasks
from dkgp.cluster.executors.dask_rounds import WATCH_SECONDS, DaskRound, Label, threads_by_worker
from dkgp.cluster.executors.sums import Combine, Progress, tree_of

# The place in a sum's tree of what all leaves take.
SHARED = -1


class DaskSum(DaskRound):
    """A sum on worker processes: tasks add what other tasks left on the workers, and the root alone is fetched.

    A value is released once it is added. One that is lost with its worker before is computed again. Tasks are numbered
    by their place in the tree.
    """

    def __init__(
        self, client: Client, label: Label, tasks: RoundTasks, deadline_seconds: float, combine: Combine
    ) -> None:
        self._combine = combine
        self._progress: Progress | None = None
        self._seen = 0
        self._tree = tree_of(len(tasks.groups))
        self._root = len(self._tree) - 1
        self._sums = {part: place for place, node in enumerate(self._tree) if isinstance(node, tuple) for part in node}
        super().__init__(client, label, tasks, deadline_seconds)

    def _start(self) -> list[Future[Any]]:
        self._held: dict[int, Future[Any]] = {}
        self._done: set[int] = set()
        self._suspect_sums: list[int] = []
        return [self._need(self._root)]

    def _need(self, place: int) -> Future[Any]:
        """A node's future; where none is held, it is submitted, and before it what it takes."""
        # So they are submitted in the order in which values should be there, which is the order in which they are run.
        if place not in self._held:
            self._held[place] = self._begin(place)
        return self._held[place]

    def _begin(self, index: int) -> Future[Any]:
        if index == SHARED:
            # What all leaves take, factors of m^2 numbers among it, goes to the scheduler once; workers share it.
            return self._submit(SHARED, "", _shared, *self._tasks.arguments)
        node = self._tree[index]
        if isinstance(node, tuple):
            return self._submit(index, "", self._combine, *[self._need(part) for part in node])
        group = list(self._tasks.groups[node])
        return self._submit(index, self._owners[node], _only, self._tasks.task, self._need(SHARED), group)

    def _renew(self, place: int) -> None:
        self._held.pop(place).release()
        self._need(place)

    def result(self, progress: Progress | None = None) -> Any:
        """Wait for the root, and fetch it."""
        self._progress = progress
        root, leaves = super().result()[0], len(self._tasks.groups)
        if progress is not None and self._seen < leaves:
            progress(leaves, leaves)
        return root

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while futures := self._under_way():
            remaining = until - time.monotonic()
            if remaining <= 0.0:
                raise TimeoutError
            with suppress(TimeoutError), self._client.as_current():
                wait(futures, timeout=min(remaining, WATCH_SECONDS))
            self._look()

    def _under_way(self) -> list[Future[Any]]:
        """Futures to wait for: the root; where it has failed, whatever has not."""
        root = self._held[self._root]
        futures = list(self._held.values()) if root.status == "error" else [root]
        return [future for future in futures if not future.done()]

    def _look(self) -> None:
        """Let go of what has been added, and report progress."""
        finished = {place for place, future in self._held.items() if future.status == "finished"}
        self._done |= finished
        leaves = sum(place >= 0 and not isinstance(self._tree[place], tuple) for place in self._done)
        # A node is needed until its sum is there, which may be given up with its workers.
        added = {place for place in self._held if self._sums.get(place) in finished}
        if leaves == len(self._tasks.groups):
            added |= finished & {SHARED}
        for place in added:
            self._held.pop(place).release()
        if self._progress is not None and leaves > self._seen:
            self._seen = leaves
            self._progress(leaves, len(self._tasks.groups))

    def _erred(self) -> list[Future[Any]]:
        """Nodes that failed, and all sums of them up to the root."""
        if self._held[self._root].status != "error":
            return []
        return [future for future in self._held.values() if future.status == "error"]

    def _count_done(self) -> int:
        return len(self._done)

    def _begin_again(self, indices: list[int]) -> None:
        """Submit again what was given up, now that the rest is done, and sums that have their parts.

        Leaves one for each thread; sums whose own workers died after all leaves, one by one. Leaves that lacked what
        all of them take, and sums that lacked a part, go out at once.
        """
        leaves = {place for place, node in enumerate(self._tree) if not isinstance(node, tuple)}
        self._suspects.extend(sorted(leaves.intersection(indices)))
        self._suspect_sums = sorted({*self._suspect_sums, *indices} - leaves - {SHARED})
        suspects = dict(self._next_suspects())
        if not suspects and self._suspect_sums:
            self._suspect_sums.pop(0)
        if SHARED in self._held and not self._is_sound(SHARED):
            self._renew(SHARED)
        for place, node in enumerate(self._tree):
            if isinstance(node, int):
                self._owners[node] = suspects.get(place, self._owners[node])
            failed = place in self._held and self._held[place].status == "error"
            waits = place in self._suspects or place in self._suspect_sums
            if failed and not waits and (isinstance(node, int) or all(self._is_sound(part) for part in node)):
                self._renew(place)
            elif place in suspects:
                self._need(place)
        self._futures = [self._held[self._root]]

    def _is_sound(self, place: int) -> bool:
        """True if what adds this node may be submitted."""
        if place in self._held:
            return self._held[place].status != "error"
        node = self._tree[place]  # it was let go, and is computed again
        if isinstance(node, tuple):
            return place not in self._suspect_sums and all(self._is_sound(part) for part in node)
        return place not in self._suspects

    def _move_on(self) -> None:
        """Start leaves again whose owners are gone, for any worker to take (see `DaskRound`), and sums of them."""
        if not any(self._owners):
            return
        with suppress(OSError, TimeoutError):
            known = {"", *threads_by_worker(self._client)}
            gone = {index for index, owner in enumerate(self._owners) if owner not in known}
            if not gone:
                return
            for index in gone:
                self._owners[index] = ""
            self._moved += 1
            renewed: set[int] = set()
            for place, node in enumerate(self._tree):
                if place not in self._held or self._held[place].status in ("finished", "error"):
                    continue
                # A sum that is computed again may wait for leaves that were let go.
                parts = isinstance(node, tuple) and any(part in renewed or part not in self._held for part in node)
                if parts or node in gone:
                    self._renew(place)
                    renewed.add(place)
            self._futures = [self._held[self._root]]

    def _values(self) -> list[Any]:
        return [self._fetched[0]]  # of the root

    def _release(self) -> None:
        for future in self._held.values():
            future.release()


def _shared(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _only(task: BlockTask, arguments: tuple[Any, ...], group: list[Any]) -> Any:
    """The one value of a task's list."""
    (value,) = task(*arguments, group)
    return value
