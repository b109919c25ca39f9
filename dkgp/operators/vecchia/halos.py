"""The kd order of points, cut into leaves, and halos: the samples before a leaf that are nearest to any of its own.

Points are cut in two at the median of their widest feature, recursively. Equal values are ordered by the sample's
number, so that the order is the same in every process, duplicates included.

Distances are those of the kernel's tiles: differences squared and summed in one order, so that the nearest samples do
not depend on the processor. Leaves whose box is farther away than the nearest samples so far are skipped; of the others
a search looks at a limited number, where there is a limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dkgp.kernels.tiles.blocks import LANES, TILE_COLUMNS, fill_differences
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.vector_math import FAST_MATH, prefer_full_vectors
from dkgp.operators.base import IndexArray
from dkgp.operators.vecchia.leaf_tree import LeafTree, find_near

# Points that are compared with a leaf's own at a time, and a multiple of which these are.
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
        """The same, and if they are proven to be the nearest: always, where the search has no limit."""
        start = int(self.bounds[leaf])
        if start <= size or not size:
            return np.arange(min(start, size), dtype=np.int32), True
        of_leaf = self._points(np.arange(start, self.bounds[leaf + 1]))
        return self._nearest(of_leaf, self._low[leaf], self._high[leaf], leaf, size)

    def near(self, point: NDArray[np.float32], size: int) -> tuple[NDArray[np.int32], bool]:
        """Places of the `size` points that are nearest to one (e,), ascending, all, where fewer; and if they are."""
        if len(self.order) <= size or not size:
            return np.arange(min(len(self.order), size), dtype=np.int32), True
        return self._nearest(point[None], point, point, len(self._low), size)

    def _nearest(
        self, points: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32], leaf: int, size: int
    ) -> tuple[NDArray[np.int32], bool]:
        """Places of the `size` points before a leaf that are nearest to any of `points` (g, e), in a box low..high."""
        # Enough leaves for a first guess; then those that may hold anything nearer, as far as they are looked at.
        count = min(leaf, 2 * size // self._smallest + 1)
        budget = min(leaf, max(self._searched, count))
        padding = np.repeat(points[-1:], -len(points) % _COLUMNS, axis=0)
        points = np.concatenate([points, padding]) if len(padding) else np.ascontiguousarray(points)
        places, at = np.empty(size, np.int32), np.stack([low, high])
        samples = self._tree.arrays, self._panels, self.bounds
        is_proven, _ = _search(samples, points, at, leaf, count, budget, places)
        return np.sort(places), bool(is_proven)

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
