"""A tree over the leaves of a kd order, which finds those near a box, level by level, on so many boxes at most.

On each level stand the boxes that may hold something within a radius. Where they are more than the budget, those whose
middles are nearest go on, and the least distance of the others says what the search has not seen. So a search takes at
most two boxes of its budget a level, of log2(leaves) levels: in few dimensions it is exact, since few boxes are within
the radius; in many, where all of them are, it is not, and says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.vector_math import FAST_MATH
from dkgp.operators.base import IndexArray

# Squared distances of boxes are rounded down by so much.
_ROUNDED_DOWN = np.float32(1.0 - 1e-4)


def tree_bytes(leaves: int, features: int) -> int:
    """Bytes of a tree of so many leaves."""
    return 2 * leaves * (8 * features + 8)


def search_bytes(leaves: int, features: int, searched: int) -> int:
    """Bytes of a search that looks at so many leaves of a tree's at most, beside their points' distances."""
    return 48 * min(leaves, searched) + 4 * features


class LeafTree:
    """Boxes of neighbouring leaves, of more and more of them, up to all; `low` and `high` (l, e) are the leaves'."""

    def __init__(self, low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
        self.n_leaves = len(low)
        # Cut as `kd_order` cuts. Numbers of a node's first leaf, and of the node of its first half, or -1 of a leaf.
        firsts, children = np.zeros(2 * self.n_leaves - 1, np.int32), np.full(2 * self.n_leaves - 1, -1, np.int32)
        counts, start, end, levels = np.full(1, self.n_leaves), 0, 1, []
        while start < end:
            cut = np.flatnonzero(counts > 1)
            parents, halves = cut + start, counts[cut] // 2
            children[parents] = end + 2 * np.arange(len(parents))
            stop = end + 2 * len(parents)
            firsts[end:stop:2], firsts[end + 1 : stop : 2] = firsts[parents], firsts[parents] + halves
            levels.append(parents)
            start, end, counts = end, stop, np.stack([halves, counts[cut] - halves], axis=1).ravel()
        self._firsts, self._children = firsts, children
        self._low, self._high = low[firsts], high[firsts]
        for parents in reversed(levels):
            first = children[parents]
            self._low[parents] = np.minimum(self._low[first], self._low[first + 1])
            self._high[parents] = np.maximum(self._high[first], self._high[first + 1])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        """As `find_near` takes them."""
        return self._firsts, self._children, self._low, self._high

    def near(
        self, low: NDArray[np.float32], high: NDArray[np.float32], before: int, radius: float, budget: int
    ) -> tuple[IndexArray, float]:
        """Leaves before one whose boxes are within a squared `radius` of the box low..high (e,), `budget` at most.

        Ascending; and the least squared distance, rounded down, at which a leaf may be that is within the radius and
        was left out: infinite where there is none.
        """
        places = np.empty(min(budget, before), np.intp)
        count, unseen = find_near(*self.arrays, np.stack([low, high]), before, np.float32(radius), places)
        return np.sort(places[:count]), unseen


@cached_njit(nogil=True, fastmath=FAST_MATH - {"ninf"})
def find_near(
    firsts: Any,
    children: Any,
    lows: Any,
    highs: Any,
    at: Any,
    before: Any,
    radius: Any,
    places: Any,
) -> Any:
    """Fill `places`, as far as the budget goes, with the leaves of `LeafTree.near` for a box `at` (2, e).

    Return how many there are, and what was left out.
    """
    (low, high), budget, features = at, len(places), lows.shape[1]
    nodes, boxes, middles = (
        np.empty(2 * budget + 2, np.int32),
        np.empty(2 * budget + 2, np.float32),
        np.empty(2 * budget + 2, np.float32),
    )
    frontier = np.empty(budget + 1, np.int32)
    frontier[0] = 0
    size, unseen, descends = 1, np.float32(np.inf), children[0] >= 0
    while descends:
        descends, count = False, 0
        for i in range(size):
            child = children[frontier[i]]
            for node in range(child, child + 2) if child >= 0 else range(frontier[i], frontier[i] + 1):
                if firsts[node] >= before:
                    continue
                box, middle = np.float32(0.0), np.float32(0.0)
                for f in range(features):
                    gap = max(lows[node, f] - high[f], low[f] - highs[node, f], np.float32(0.0))
                    box += gap * gap
                    apart = (lows[node, f] + highs[node, f]) - (low[f] + high[f])
                    middle += apart * apart
                box *= _ROUNDED_DOWN
                if box > radius:
                    continue
                nodes[count], boxes[count], middles[count] = node, box, middle
                count += 1
        if count > budget:
            limit = np.partition(middles[:count], budget - 1)[budget - 1]
            ties = budget
            for i in range(count):
                ties -= middles[i] < limit
            kept = 0
            for i in range(count):
                if middles[i] < limit or (middles[i] == limit and ties > 0):
                    ties -= middles[i] == limit
                    frontier[kept] = nodes[i]
                    kept += 1
                else:
                    unseen = min(unseen, boxes[i])
            size = kept
        else:
            size = count
            frontier[:size] = nodes[:size]
        for i in range(size):
            if children[frontier[i]] >= 0:
                descends = True
    for i in range(size):
        places[i] = firsts[frontier[i]]
    return size, unseen
