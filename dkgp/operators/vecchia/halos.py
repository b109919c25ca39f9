"""The kd order of points, cut into leaves, and halos: the samples before a leaf that are nearest to any of its own.

Points are cut in two at the median of their widest feature, recursively. Equal values are ordered by the sample's
number, so that the order is the same in every process, duplicates included.

Distances are those of the kernel's tiles: differences squared and summed in one order, so that the nearest samples do
not depend on the processor. Leaves whose box is farther away than the nearest samples so far are skipped. Of the others
a search looks at a limited number, where there is a limit.

A tree over the leaves finds those near a box, level by level. Each level keeps the boxes that may hold a point within
the radius. If they exceed the budget, those with the nearest middles go on, and the least distance of the others bounds
the unseen ones. So a search takes at most two boxes of its budget a level, of log2(leaves) levels. In few dimensions it
is exact, since few boxes are within the radius; in many dimensions it may not be, and reports that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.compiler import cached_njit, intrinsic, types
from dkgp.kernels.tiles.blocks import LANES, TILE_COLUMNS, fill_differences
from dkgp.kernels.vector_math import FAST_MATH, prefer_full_vectors
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

    Return their number, and the least distance of the leaves left out.
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


# Points that are compared with a leaf's own at a time; their number is a multiple of the second.
_ROWS, _COLUMNS = 256, 4
# Points that the widest feature is estimated from.
_SAMPLED = 4096


def leaf_count(n: int, leaf: int) -> int:
    """Leaves of at most `leaf` samples."""
    return -(-n // leaf)


def kd_order(points: NDArray[np.float32], leaf: int) -> tuple[NDArray[np.int32], IndexArray]:
    """Order points (n, e) by median splits on the widest feature, into leaves of at most `leaf` samples, nearly equal.

    Returns the sample at each place (n,), ascending within a leaf, and the places where leaves begin, and n.
    """
    n = len(points)
    order = np.arange(n, dtype=np.int32)
    bounds = [0]
    pending = [(0, n, leaf_count(n, leaf))]
    while pending:
        start, stop, leaves = pending.pop()
        if leaves == 1:
            bounds.append(stop)
            continue
        samples = order[start:stop].copy()
        below = leaves // 2
        size = (stop - start) * below // leaves
        sampled = points[samples[:: -(-len(samples) // _SAMPLED)]]
        keys = _keys(points[samples, int(sampled.var(axis=0, dtype=np.float64).argmax())])
        first = keys < np.partition(keys, size)[size]
        order[start : start + size], order[start + size : stop] = samples[first], samples[~first]
        pending += [(start + size, stop, leaves - below), (start, start + size, below)]
    return order, np.asarray(bounds, dtype=np.intp)


def _keys(values: NDArray[np.float32]) -> NDArray[Any]:
    """Integers that are ordered as values (m,) are, equal ones by their place."""
    bits = (values + np.float32(0.0)).view(np.uint32)  # minus zero is zero
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)
    return (ascending << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)


class OrderedPoints:
    """Points (n, e) in kd order with a tree of their leaves; `order` and `bounds` as from `kd_order`.

    `searched` is how many leaves a search looks at, at most; by default as many as it takes to be exact.
    """

    def __init__(
        self,
        points: NDArray[np.float32],
        order: NDArray[np.int32],
        bounds: IndexArray,
        searched: int | None = None,
    ) -> None:
        self.order, self.bounds = order, bounds
        self._smallest = int(np.diff(bounds).min())  # samples of a leaf
        self._searched = len(bounds) if searched is None else searched
        self._low = np.minimum.reduceat(points, bounds[:-1], axis=0)
        self._high = np.maximum.reduceat(points, bounds[:-1], axis=0)
        self._tree = LeafTree(self._low, self._high)
        n, features = points.shape
        self._panels = np.zeros((-(-n // LANES), features, LANES), np.float32)
        whole = n // LANES
        self._panels[:whole] = points[: whole * LANES].reshape(whole, LANES, features).transpose(0, 2, 1)
        self._panels[whole:, :, : n - whole * LANES] = points[whole * LANES :].T

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.order, self.bounds, self._panels, self._low, self._high)
        return sum(array.nbytes for array in arrays) + self._tree.nbytes

    def halo(self, leaf: int, size: int) -> NDArray[np.int32]:
        """Places of the `size` points before a leaf that are nearest to any of its own, ascending; all, where fewer."""
        return self.searched_halo(leaf, size)[0]

    def searched_halo(self, leaf: int, size: int) -> tuple[NDArray[np.int32], bool]:
        """Return halos, and whether they are proven to be the nearest: always, where the search has no limit."""
        start = int(self.bounds[leaf])
        if start <= size or not size:
            return np.arange(min(start, size), dtype=np.int32), True
        of_leaf = self._points(np.arange(start, self.bounds[leaf + 1]))
        padding = np.repeat(of_leaf[-1:], -len(of_leaf) % _COLUMNS, axis=0)
        box = np.stack([self._low[leaf], self._high[leaf]])
        return self._nearest(np.concatenate([of_leaf, padding]), box, leaf, size)

    def near(self, point: NDArray[np.float32], size: int) -> tuple[NDArray[np.int32], bool]:
        """Places of the `size` points that are nearest to one (e,), ascending, all, where fewer; and if they are."""
        if len(self.order) <= size or not size:
            return np.arange(min(len(self.order), size), dtype=np.int32), True
        points = np.repeat(point[None], _COLUMNS, axis=0)
        return self._nearest(points, points[:2], len(self._low), size)

    def _nearest(
        self, points: NDArray[np.float32], box: NDArray[np.float32], leaf: int, size: int
    ) -> tuple[NDArray[np.int32], bool]:
        """Places of the `size` points before a leaf that are nearest to any of `points`, which lie in a box (2, e).

        The number of `points` (g, e) is a multiple of `_COLUMNS`.
        """
        # Enough leaves for a first guess; then those that may hold anything nearer, as far as they are looked at.
        count = min(leaf, 2 * size // self._smallest + 1)
        budget = min(leaf, max(self._searched, count))
        places = np.empty(size, np.int32)
        is_proven, _ = _search((self._tree.arrays, self._panels, self.bounds), points, box, leaf, count, budget, places)
        places.sort()
        return places, bool(is_proven)

    def _points(self, places: IndexArray) -> NDArray[np.float32]:
        return np.ascontiguousarray(self._panels[places // LANES, :, places % LANES])


@intrinsic
def _address(typing_context, array, offset):  # type: ignore[no-untyped-def]
    """Address of an array's element, as the tile loops' stages take it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.gep(data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), generate


@cached_njit(nogil=True)
def _search(samples: Any, points: Any, at: Any, before: Any, count: Any, budget: Any, places: Any) -> Any:
    """Fill `places` with those of the nearest before a leaf, in a heap: of equal distances, the first places.

    A first guess looks at `count` leaves, the search at `budget` of those that may hold anything nearer. Return if the
    places are proven to be the nearest, and how many points were looked at. `samples` are the leaves' tree, panels and
    bounds; `at` (2, e) is the box of `points`.
    """
    (firsts, children, lows, highs), panels, bounds = samples
    distances = np.full(len(places), np.float32(np.inf))
    places[:] = np.iinfo(np.int32).max
    first, near = np.empty(count, np.intp), np.empty(budget, np.intp)
    taken, unseen = find_near(firsts, children, lows, highs, at, before, np.float32(np.inf), first)
    looked = _look_at(panels, bounds, first[:taken], points, distances, places)
    if taken < before:
        more, unseen = find_near(firsts, children, lows, highs, at, before, distances[0], near)
        seen, rest = np.sort(first[:taken]), 0
        for i in range(more):
            place = np.searchsorted(seen, near[i])
            if place == taken or seen[place] != near[i]:
                near[rest] = near[i]
                rest += 1
        looked += _look_at(panels, bounds, near[:rest], points, distances, places)
    return unseen > distances[0], looked


@cached_njit(nogil=True, fastmath=FAST_MATH - {"ninf"})
def _look_at(panels: Any, bounds: Any, leaves: Any, points: Any, distances: Any, places: Any) -> Any:
    """Put the points of some leaves into a heap where they are nearer to any of `points` than its farthest, its first.

    Points lie in panels of `LANES`, feature by feature; `points` are a multiple of `_COLUMNS`, the last one repeated.
    Return how many there were.
    """
    prefer_full_vectors()
    features, columns = panels.shape[1], points.shape[0]
    tile, greatest = np.empty((TILE_COLUMNS, _ROWS), points.dtype), np.empty(_ROWS, points.dtype)
    looked = 0
    for k in range(len(leaves)):
        start, stop = bounds[leaves[k]], bounds[leaves[k] + 1]
        looked += stop - start
        first = start // LANES * LANES
        while first < stop:
            rows = min(_ROWS, -(-(stop - first) // LANES) * LANES)
            greatest[:] = -np.inf
            for column in range(0, columns, TILE_COLUMNS):
                width = min(TILE_COLUMNS, columns - column)
                fill_differences(
                    _address(tile, 0),
                    _ROWS,
                    width,
                    rows,
                    _address(panels, first * features),
                    features,
                    _address(points, column * features),
                )
                for j in range(width):
                    for i in range(rows):
                        greatest[i] = max(greatest[i], tile[j, i])
            for i in range(max(start - first, 0), min(rows, stop - first)):
                distance = -greatest[i]
                if distance < distances[0] or (distance == distances[0] and first + i < places[0]):
                    _put_first(distances, places, distance, first + i)
            first += rows
    return looked


@cached_njit(nogil=True)
def _put_first(distances: Any, places: Any, distance: Any, place: Any) -> None:
    """Put a point where a heap's first is, the farthest, or of those as far the last place; and let it sink."""
    at, size = 0, len(distances)
    while 2 * at + 1 < size:
        child = 2 * at + 1
        other = child + 1
        if other < size and (
            distances[other] > distances[child]
            or (distances[other] == distances[child] and places[other] > places[child])
        ):
            child = other
        if distances[child] < distance or (distances[child] == distance and places[child] < place):
            break
        distances[at], places[at] = distances[child], places[child]
        at = child
    distances[at], places[at] = distance, place
