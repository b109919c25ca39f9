"""Homes of repeated work: a piece goes again to the worker that keeps values for it.

Only time depends on it. A worker that has nothing of a piece computes it anew, as another one does while the piece's
home is busy or gone.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count

from dkgp.cluster.executors.base import split_evenly


class Homes:
    """The worker of each of `pieces` pieces of work, numbered from 0.

    A piece stays with its worker while that lives. A worker that joins takes its share from the others, spread over
    their pieces; the pieces of one that is gone go to the worker with the fewest for its threads.
    """

    def __init__(self, pieces: int) -> None:
        self._homes: list[str | None] = [None] * pieces
        self._settled: dict[str, int] = {}

    def groups(
        self, workers: Mapping[str, int], pieces: Sequence[int], parts: int = 1
    ) -> tuple[list[list[int]], list[str]]:
        """Cut `pieces` into groups of one worker, at most `parts` for each thread, and name the worker of each group.

        `workers` are threads by worker, as `BlockExecutor.workers` has them.
        """
        self._settle(workers)
        groups: list[list[int]] = []
        owners: list[str] = []
        for worker, threads in sorted(workers.items()):
            at_home = [piece for piece in pieces if self._homes[piece] == worker]
            if at_home:
                cut = split_evenly(at_home, parts * threads)
                groups += cut
                owners += [worker] * len(cut)
        return groups, owners

    def owners(self, workers: Mapping[str, int]) -> list[str]:
        """The worker of each piece."""
        self._settle(workers)
        return [home or "" for home in self._homes]

    def _settle(self, workers: Mapping[str, int]) -> None:
        if workers == self._settled:  # as in nearly every round; a large matrix has 200,000 pieces
            return
        self._settled = dict(workers)
        total = sum(workers.values())
        counts = Counter(home for home in self._homes if home in workers)
        # A worker that has more than its share gives some of it up: not its first ones, but one in so many.
        shares = {worker: -(-len(self._homes) * threads // total) for worker, threads in workers.items()}
        seen = {worker: count() for worker in workers}
        for piece, home in enumerate(self._homes):
            if home is None or home not in workers:
                self._homes[piece] = None
                continue
            surplus, place = max(0, counts[home] - shares[home]), next(seen[home])
            if (place + 1) * surplus // counts[home] > place * surplus // counts[home]:
                self._homes[piece] = None
        counts = Counter(home for home in self._homes if home is not None)
        fullness = [((counts[worker] + 1) / threads, worker) for worker, threads in workers.items()]
        heapq.heapify(fullness)
        for piece, home in enumerate(self._homes):
            if home is None:
                worker = fullness[0][1]
                self._homes[piece] = worker
                counts[worker] += 1
                heapq.heapreplace(fullness, ((counts[worker] + 1) / workers[worker], worker))
