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
from dkgp.operators.vecchia.leaf_tree import LeafTree

# Points that are compared with a leaf's own at a time.
_ROWS = 256
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
        first, unseen = self._tree.near(low, high, leaf, np.inf, count)
        places, distances = self._distances(points, first)
        if len(first) < leaf:
            farthest = np.partition(distances, size - 1)[size - 1]
            near, unseen = self._tree.near(low, high, leaf, farthest, max(self._searched, count))
            more = self._distances(points, np.setdiff1d(near, first, assume_unique=True))
            places, distances = np.concatenate([places, more[0]]), np.concatenate([distances, more[1]])
        farthest = np.partition(distances, size - 1)[size - 1]
        within = places[distances < farthest]
        ties = np.sort(places[distances == farthest])[: size - len(within)]
        return np.sort(np.concatenate([within, ties])), bool(unseen > farthest)

    def _points(self, places: IndexArray) -> NDArray[np.float32]:
        return np.ascontiguousarray(self._panels[places // LANES, :, places % LANES])

    def _distances(
        self, of_leaf: NDArray[np.float32], leaves: IndexArray
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Places of the points of some leaves, and each one's squared distance from the nearest of `of_leaf` (g, e)."""
        of_leaf = np.concatenate([of_leaf, np.repeat(of_leaf[-1:], -len(of_leaf) % TILE_COLUMNS, axis=0)])
        starts, stops = self.bounds[leaves], self.bounds[leaves + 1]
        places = np.empty(int((stops - starts).sum()), np.int32)
        distances = np.empty(len(places), np.float32)
        _least_distances(self._panels, starts, stops, of_leaf, places, distances)
        return places, distances


@intrinsic
def _address(typing_context, array, offset):  # type: ignore[no-untyped-def]
    """Address of an array's element, as the tile loops' stages take it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.gep(data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), generate


@cached_njit(nogil=True, fastmath=FAST_MATH)
def _least_distances(panels: Any, starts: Any, stops: Any, leaf_points: Any, places: Any, distances: Any) -> None:
    """Fill `places` with the ranges' places, and `distances` with min_j |point - leaf_points[j]|^2 of each.

    Points lie in panels of `LANES`, feature by feature; `leaf_points` in whole tiles of columns, the last one repeated.
    """
    prefer_full_vectors()
    features = panels.shape[1]
    tile, greatest = np.empty((TILE_COLUMNS, _ROWS), leaf_points.dtype), np.empty(_ROWS, leaf_points.dtype)
    filled = 0
    for k in range(len(starts)):
        first = starts[k] // LANES * LANES
        while first < stops[k]:
            rows = min(_ROWS, -(-(stops[k] - first) // LANES) * LANES)
            greatest[:] = -np.inf
            for column in range(0, leaf_points.shape[0], TILE_COLUMNS):
                fill_differences(
                    _address(tile, 0),
                    _ROWS,
                    TILE_COLUMNS,
                    rows,
                    _address(panels, first * features),
                    features,
                    _address(leaf_points, column * features),
                )
                for j in range(TILE_COLUMNS):
                    for i in range(rows):
                        greatest[i] = max(greatest[i], tile[j, i])
            for i in range(max(starts[k] - first, 0), min(rows, stops[k] - first)):
                places[filled] = first + i
                distances[filled] = -greatest[i]
                filled += 1
            first += rows
