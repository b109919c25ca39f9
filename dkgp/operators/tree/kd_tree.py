"""A kd-tree over scaled inputs, its memory, and the compiled walk that sums kernel contributions query by query.

A query is a node of about a hundred samples. It meets the tree from the root: a part across which the kernel hardly
varies, seen from the query's box, contributes one number; elsewhere the walk goes down, and the leaves that it reaches
go to the dense tiles. There the inputs are taken relative to the query's centre, so float32 tiles lose nothing on
length scales that are short against the extent of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.errors import MemoryBudgetError
from dkgp.kernels.tiles.blocks import LANES
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.tiles.loops import FLUSH_COLUMNS, tile_matmat
from dkgp.kernels.tiles.stages import BULGE, STEEPEST, VALUE, profile_at
from dkgp.operators.base import FloatArray, IndexArray

# Small, so that little is evaluated that lies beyond reach; a tile needs more rows, so a query holds several leaves.
LEAF_ROWS = 32
QUERY_LEAVES = 4
# The walk holds at most one node a level.
STACK = 64
# Columns that go to the tiles together.
BATCH = 4096
_EPS = 2.0**-52


@dataclass(frozen=True)
class KDTree:
    """Points, cut in two at the median of their widest feature, recursively.

    Leaves hold `LEAF_ROWS` neighbours, but for the last one. Nodes are in preorder: a node's left child is the next.
    """

    points: FloatArray  # in the order of the leaves: (n, d)
    order: IndexArray  # the sample that each of them is: (n,)
    low: FloatArray  # corners of a box around each node's points, wider by the points' own rounding: (nodes, d)
    high: FloatArray
    first: IndexArray  # leaves below each node: the first, and the first after them: (nodes,)
    last: IndexArray
    right: IndexArray  # right child, -1 for a leaf: (nodes,)

    @classmethod
    def of(cls, points: FloatArray) -> KDTree:
        """Build the tree of points (n, d), the same in every process."""
        n, d = points.shape
        n_leaves = -(-n // LEAF_ROWS)
        nodes = 2 * n_leaves - 1
        order = np.arange(n, dtype=np.intp)
        low, high = np.empty((nodes, d)), np.empty((nodes, d))
        first, last = np.empty(nodes, np.intp), np.empty(nodes, np.intp)
        right = np.full(nodes, -1, np.intp)
        pending: list[tuple[int, int, int]] = [(0, n_leaves, -1)]
        count = 0
        while pending:
            start, stop, parent = pending.pop()
            node, count = count, count + 1
            if parent >= 0:
                right[parent] = node
            rows = slice(start * LEAF_ROWS, min(stop * LEAF_ROWS, n))
            held = points[order[rows]]
            low[node], high[node] = held.min(axis=0), held.max(axis=0)
            first[node], last[node] = start, stop
            if stop - start > 1:
                middle = (start + stop) // 2
                values = held[:, int(np.argmax(high[node] - low[node]))]
                # Stable, so that equal values fall the same way everywhere.
                order[rows] = order[rows][np.argsort(values, kind="stable")]
                pending.append((middle, stop, node))
                pending.append((start, middle, -1))
        rounding = _EPS * np.abs(points).max(axis=0)
        return cls(points[order], order, low - rounding, high + rounding, first, last, right)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int(self.last[0])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.points, self.order, self.low, self.high, self.first, self.last, self.right)
        return sum(array.nbytes for array in arrays)

    def queries(self) -> IndexArray:
        """The largest nodes of at most `QUERY_LEAVES` leaves, in the order of the leaves."""
        small = self.last - self.first <= QUERY_LEAVES
        parents = np.flatnonzero(self.right >= 0)
        below_small = np.zeros(len(small), bool)
        below_small[parents + 1] = below_small[self.right[parents]] = small[parents]
        return np.flatnonzero(small & ~below_small).astype(np.intp)

    def leaf_starts(self, active: IndexArray) -> IndexArray:
        """Positions where each leaf begins in a sorted list of points, and the list's length: (leaves + 1,)."""
        return np.searchsorted(active, np.arange(self.n_leaves + 1) * LEAF_ROWS).astype(np.intp)


def tree_bytes(n: int, d: int) -> int:
    """Bytes of the tree over n samples that each process keeps: points, their order and places, and the nodes."""
    nodes = 2 * -(-n // LEAF_ROWS)
    return n * (8 * d + 16) + nodes * (16 * d + 24) + 8 * nodes


def building_bytes(n: int, d: int) -> int:
    """Bytes that making the tree takes besides: the inputs in blocks, joined, and by node."""
    return 3 * 8 * n * d


def require_room(n: int, d: int) -> None:
    """Refuse a tree over n samples that this process's cache cannot keep, so that each product would build it anew."""
    needed, budget = tree_bytes(n, d), worker_cache().budget_bytes
    if needed > budget:
        raise MemoryBudgetError(
            f"the tree over {n:,} samples takes {needed:,} bytes in each process; its cache holds {budget:,}. Allow a "
            "larger cache, or leave tree sums out"
        )


@cached_njit(nogil=True)
def node_sums(starts, weights, first, right, sums, magnitudes):  # type: ignore[no-untyped-def]
    """Sums of weights (m, t) over each node, and of their absolute values: (nodes, t)."""
    for node in range(right.shape[0] - 1, -1, -1):
        for t in range(weights.shape[1]):
            if right[node] >= 0:
                sums[node, t] = sums[node + 1, t] + sums[right[node], t]
                magnitudes[node, t] = magnitudes[node + 1, t] + magnitudes[right[node], t]
            else:
                total, magnitude = 0.0, 0.0
                for i in range(starts[first[node]], starts[first[node] + 1]):
                    total += weights[i, t]
                    magnitude += abs(weights[i, t])
                sums[node, t], magnitudes[node, t] = total, magnitude


@cached_njit(nogil=True)
def _distances(low, high, node, query_low, query_high, query):  # type: ignore[no-untyped-def]
    """Squared distances between the nearest and between the farthest points of two boxes."""
    nearest, farthest = 0.0, 0.0
    for f in range(low.shape[1]):
        gap = max(low[node, f] - query_high[query, f], query_low[query, f] - high[node, f], 0.0)
        span = max(high[node, f] - query_low[query, f], query_high[query, f] - low[node, f])
        nearest += gap * gap
        farthest += span * span
    return nearest, farthest


@cached_njit(nogil=True)
def _affordable(half, magnitudes, node, allowed):  # type: ignore[no-untyped-def]
    """True if a node may be taken as one number: for each target whose weights there are not all zero."""
    affordable = True
    for t in range(allowed.shape[0]):
        affordable = affordable and (magnitudes[node, t] == 0.0 or half <= allowed[t])
    return affordable


@cached_njit(nogil=True)
def _entry_rounding(  # type: ignore[no-untyped-def]
    nearest, farthest, profile, parameter, rounding, largest, coordinate, features, unit
):
    """Bound on the error of one entry of a tile, by the rounding of inputs, their differences, squares and the profile.

    A profile changes by at most max |dk/dr| |dr|, and by at most max |dk / d log r^2| times the relative error of r^2;
    both maxima are taken over the distances beyond the nearest.
    """
    shift = 2.0 * unit * np.sqrt(farthest) + 4.0 * _EPS * coordinate
    beyond = max(np.sqrt(nearest) - shift, 0.0)
    slope, relative = profile_at(profile[STEEPEST], beyond, parameter), profile_at(profile[BULGE], beyond, parameter)
    return slope * shift + (features + 10) * unit * relative + (rounding + 2.0) * unit * largest


@cached_njit(nogil=True)
def _value(squared_distance, profile, parameter):  # type: ignore[no-untyped-def]
    """Kernel value of unit amplitude at one squared distance of scaled inputs."""
    return profile_at(profile[VALUE], squared_distance, parameter)


@cached_njit(nogil=True)
def _relative_slope(squared_distance, profile, parameter):  # type: ignore[no-untyped-def]
    """The greatest |dk/d log s| anywhere beyond a squared distance s: the effect of its rounding on a value."""
    return profile_at(profile[BULGE], np.sqrt(squared_distance), parameter)


@cached_njit(nogil=True)
def sum_queries(  # type: ignore[no-untyped-def]
    asking, places, query_low, query_high, points, low, high, first, last, right, coordinate, active, starts, weights,
    sums, magnitudes, errors, profile, parameter, rounding, program, like, out, bounds,
):  # fmt: skip
    """Sum the contributions of a tree's weighted points to the points of some queries; return the entries evaluated.

    Plain arrays, for Numba. Queries begin and end at `places` (q + 1,) of the points `asking` (r, d), at most
    `QUERY_LEAVES` leaves of them each, within boxes from `query_low` to `query_high` (q, d). Of the tree's `points`,
    `active` (m,) have `weights` (m, t), amplitude included; those of each leaf begin at `starts`; `sums` and
    `magnitudes` are their `node_sums`. `coordinate` is the sum over features of the largest coordinate's magnitude, of
    all points; `errors` (t,) is the most that pruning may cost an entry; `rounding` the profile's roundings; `program`
    the kernel's for `tile_matmat`, by differences; `like` an empty array of the tiles' type. Sums go to `out` (t,
    points of these queries), and the largest bounds on an entry's error, rounding included, to `bounds` (t,).
    """
    d, targets = low.shape[1], weights.shape[1]
    base, n_leaves = places[0], last[0]
    unit = 2.0**-24 if like.itemsize == 4 else 2.0**-53
    stack = np.empty(STACK, np.intp)
    near, near_half = np.empty(n_leaves, np.intp), np.empty(n_leaves)
    near_nearest, near_farthest = np.empty(n_leaves), np.empty(n_leaves)
    constant, spent, rounded, mass, allowed = (
        np.empty(targets), np.empty(targets), np.empty(targets), np.empty(targets), np.empty(targets),
    )  # fmt: skip
    centre = np.empty(d)
    nothing = np.empty((0, 0), like.dtype)
    rows_held = np.empty(d * QUERY_LEAVES * LEAF_ROWS, like.dtype)
    columns_held = np.empty(d * BATCH, like.dtype)
    weights_held = np.empty(targets * BATCH, like.dtype)
    part_held = np.empty(targets * QUERY_LEAVES * LEAF_ROWS)
    evaluated = 0
    for query in range(places.shape[0] - 1):
        start = places[query]
        count = places[query + 1] - start
        padded = -(-count // LANES) * LANES
        for t in range(targets):
            constant[t], spent[t], rounded[t], mass[t] = 0.0, 0.0, 0.0, 0.0
            allowed[t] = errors[t] / magnitudes[0, t] if magnitudes[0, t] > 0.0 else 0.0
        # Down the tree: every part may cost its share of the weights.
        near_count, taken, depth = 0, 0, 1
        stack[0] = 0
        while depth > 0:
            depth -= 1
            node = stack[depth]
            if starts[first[node]] == starts[last[node]]:
                continue
            nearest, farthest = _distances(low, high, node, query_low, query_high, query)
            largest, smallest = _value(nearest, profile, parameter), _value(farthest, profile, parameter)
            half = 0.5 * (largest - smallest)
            if _affordable(half, magnitudes, node, allowed):
                taken += 1
                sensitive = largest + _relative_slope(nearest, profile, parameter)
                for t in range(targets):
                    constant[t] += 0.5 * (largest + smallest) * sums[node, t]
                    spent[t] += half * magnitudes[node, t]
                    mass[t] += sensitive * magnitudes[node, t]
            elif right[node] >= 0:
                stack[depth], stack[depth + 1] = right[node], node + 1
                depth += 2
            else:
                near[near_count], near_half[near_count] = node, half
                near_nearest[near_count], near_farthest[near_count] = nearest, farthest
                near_count += 1
        # Nearly all weights are far away and cost next to nothing; the error that remains goes to leaves, the cheapest
        # first.
        for i in np.argsort(near_half[:near_count]):
            node = near[i]
            fits = True
            for t in range(targets):
                fits = fits and spent[t] + near_half[i] * magnitudes[node, t] <= errors[t]
            if fits:
                taken += 1
                largest = _value(near_nearest[i], profile, parameter)
                sensitive = largest + _relative_slope(near_nearest[i], profile, parameter)
                for t in range(targets):
                    constant[t] += (largest - near_half[i]) * sums[node, t]
                    spent[t] += near_half[i] * magnitudes[node, t]
                    mass[t] += sensitive * magnitudes[node, t]
                near[i] = -1
        kept = 0
        for i in range(near_count):
            if near[i] >= 0:
                near[kept], near_nearest[kept], near_farthest[kept] = near[i], near_nearest[i], near_farthest[i]
                kept += 1
        near_count = kept
        for t in range(targets):
            out[t, start - base : start - base + count] = constant[t]
        # The rest, evaluated.
        rows = rows_held[: d * padded].reshape(d, padded)
        for f in range(d):
            centre[f] = 0.5 * (query_low[query, f] + query_high[query, f])
            for i in range(padded):
                rows[f, i] = asking[start + min(i, count - 1), f] - centre[f]
        part = part_held[: targets * padded].reshape(targets, padded)
        columns_of_query = 0
        i = 0
        while i < near_count:
            stop, size = i, 0
            while stop < near_count:
                leaf = first[near[stop]]
                if size + starts[leaf + 1] - starts[leaf] > BATCH:
                    break
                size += starts[leaf + 1] - starts[leaf]
                stop += 1
            columns = columns_held[: d * size].reshape(d, size)
            near_weights = weights_held[: size * targets].reshape(size, targets)
            filled = 0
            while i < stop:
                leaf = first[near[i]]
                largest = _value(near_nearest[i], profile, parameter)
                entry = _entry_rounding(
                    near_nearest[i], near_farthest[i], profile, parameter, rounding, largest, coordinate, d, unit
                )  # fmt: skip
                for t in range(targets):
                    # A run of FLUSH_COLUMNS products is summed in the tiles' precision.
                    rounded[t] += (entry + (FLUSH_COLUMNS + 3) * unit * largest) * magnitudes[near[i], t]
                    mass[t] += largest * magnitudes[near[i], t]
                for c in range(starts[leaf], starts[leaf + 1]):
                    for f in range(d):
                        columns[f, filled] = points[active[c], f] - centre[f]
                    for t in range(targets):
                        near_weights[filled, t] = weights[c, t]
                    filled += 1
                i += 1
            tile_matmat(
                rows, nothing, columns, nothing, size, near_weights, part, program, QUERY_LEAVES * LEAF_ROWS
            )  # fmt: skip
            for t in range(targets):
                for row in range(count):
                    out[t, start - base + row] += part[t, row]
            columns_of_query += size
        evaluated += columns_of_query * count
        # The sums over nodes, the constants and the runs of the tiles are added up in float64.
        additions = 2 * LEAF_ROWS + STACK + taken + columns_of_query / FLUSH_COLUMNS + 4 * d
        for t in range(targets):
            bounds[t] = max(bounds[t], spent[t] + rounded[t] + additions * _EPS * mass[t])
    return evaluated
