"""Halos: the samples of lower order that are nearest to any sample of a leaf.

Distances are differences squared and summed in one order, so that what is nearest does not depend on the processor.
Parts of the order whose box is farther away than the last of those found are not looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.vector_math import prefer_full_vectors
from dkgp.operators.base import IndexArray

__all__ = ["OrderedPoints"]

_PANEL = 64


class OrderedPoints:
    """Points in kd order with the boxes of their leaves.

    Parameters
    ----------
    points : (n, e) float32
        In kd order.
    order : (n,) int32
        Sample at each place.
    bounds : (leaves + 1,) intp
        Places where leaves begin, and n.
    """

    def __init__(self, points: NDArray[np.float32], order: NDArray[np.int32], bounds: IndexArray) -> None:
        self.order, self.bounds = order, bounds
        self._points = np.ascontiguousarray(points)
        self._low = np.minimum.reduceat(self._points, bounds[:-1], axis=0)
        self._high = np.maximum.reduceat(self._points, bounds[:-1], axis=0)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.order, self.bounds, self._points, self._low, self._high)
        return sum(array.nbytes for array in arrays)

    def halo(self, leaf: int, size: int) -> NDArray[np.int32]:
        """Places of the `size` points before a leaf that are nearest to any of its own, ascending; all, where fewer."""
        start = int(self.bounds[leaf])
        if start <= size or not size:
            return np.arange(min(start, size), dtype=np.int32)
        gaps = self._gaps(leaf)
        nearest = np.argsort(gaps, kind="stable")
        sizes = np.diff(self.bounds[: leaf + 1])[nearest]
        # Enough leaves for a first guess; then those that may hold anything nearer.
        count = int(np.searchsorted(np.cumsum(sizes), 2 * size)) + 1
        places, distances = self._distances(leaf, nearest[:count])
        rest = nearest[count:]
        if len(rest):
            farthest = np.partition(distances, size - 1)[size - 1]
            more = self._distances(leaf, rest[gaps[rest] <= farthest])
            places, distances = np.concatenate([places, more[0]]), np.concatenate([distances, more[1]])
        farthest = np.partition(distances, size - 1)[size - 1]
        within = places[distances < farthest]
        ties = np.sort(places[distances == farthest])[: size - len(within)]
        return np.sort(np.concatenate([within, ties]))

    def _gaps(self, leaf: int) -> NDArray[np.float32]:
        """Squared distances between a leaf's box and those of the leaves before it, rounded down."""
        gap = np.maximum(self._low[:leaf] - self._high[leaf], self._low[leaf] - self._high[:leaf])
        np.maximum(gap, 0.0, out=gap)
        gaps: NDArray[np.float32] = np.einsum("le,le->l", gap, gap) * np.float32(1.0 - 1e-4)
        return gaps

    def _distances(self, leaf: int, leaves: IndexArray) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Places of the points of some leaves, and each one's squared distance from the nearest of a leaf's own."""
        own = self._points[self.bounds[leaf] : self.bounds[leaf + 1]]
        starts, stops = self.bounds[leaves], self.bounds[leaves + 1]
        places = np.empty(int((stops - starts).sum()), np.int32)
        distances = np.empty(len(places), np.float32)
        _least_distances(self._points, starts, stops, own, places, distances)
        return places, distances


@cached_njit(nogil=True, fastmath={"nnan", "ninf"})
def _least_distances(points: Any, starts: Any, stops: Any, own: Any, places: Any, distances: Any) -> None:
    """Fill `places` with the ranges' places, and `distances` with min_j |points[place] - own[j]|^2."""
    prefer_full_vectors()
    features = points.shape[1]
    panel = np.zeros((features, _PANEL), points.dtype)
    sums, least = np.empty(_PANEL, points.dtype), np.empty(_PANEL, points.dtype)
    filled = 0
    for k in range(len(starts)):
        for first in range(starts[k], stops[k], _PANEL):
            count = min(_PANEL, stops[k] - first)
            for i in range(count):
                for f in range(features):
                    panel[f, i] = points[first + i, f]
            least[:] = np.inf
            for j in range(own.shape[0]):
                sums[:] = 0.0
                for f in range(features):
                    at = own[j, f]
                    for i in range(_PANEL):
                        difference = panel[f, i] - at
                        sums[i] += difference * difference
                for i in range(_PANEL):
                    least[i] = min(least[i], sums[i])
            for i in range(count):
                places[filled] = first + i
                distances[filled] = least[i]
                filled += 1
