"""Sums of a squared exponential kernel by a kd-tree that prunes far samples (kernel CG paper, section 6).

A query is a node of about a hundred samples. It meets the tree from the root: a node across which the kernel hardly
varies, seen from the query's box, contributes one number. Elsewhere the walk goes down, and the leaves that it reaches
go to the dense tiles. There the inputs are taken relative to the query's centre, so float32 tiles lose nothing on
length scales that are short against the extent of the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.stationary import EXP2
from dkgp.kernels.tiles.blocks import LANES
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.kernels.tiles.loops import FLUSH_COLUMNS, tile_matmat
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import PendingColumns, ReadyColumns, check_columns, check_vectors
from dkgp.operators.block_tasks import BlockContext, InputSource

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

# Small, so that little is evaluated that lies beyond reach; a tile needs more rows, so a query holds several leaves.
LEAF_ROWS = 32
QUERY_LEAVES = 4
# The walk holds at most one node a level.
STACK = 64
# Columns that go to the tiles together.
BATCH = 4096
# Queries of one result; which go together depends on nothing else.
QUERIES_A_GROUP = 16
TASKS_PER_THREAD = 4
_EPS = 2.0**-52
_LN2 = math.log(2.0)
_STEEPEST_AT, _BULGE_AT = math.sqrt(0.5 / _LN2), 1.0 / _LN2


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
def _value(squared_distance):  # type: ignore[no-untyped-def]
    """Kernel value of unit amplitude at one squared distance of scaled inputs."""
    return 2.0 ** (-squared_distance)


@cached_njit(nogil=True)
def _relative_slope(squared_distance):  # type: ignore[no-untyped-def]
    """The greatest |dk/d log s| anywhere beyond a squared distance s: the effect of its rounding on a value."""
    bulge = max(squared_distance, _BULGE_AT)
    return _LN2 * bulge * 2.0 ** (-bulge)


@cached_njit(nogil=True)
def _entry_rounding(nearest, farthest, rounding, largest, coordinate, features, unit):  # type: ignore[no-untyped-def]
    """Bound on the error of one entry of a tile, by the rounding of inputs, their differences, squares and the profile.

    The profile changes by at most max |dk/dr| |dr|, and by at most max |dk / d log r^2| times the relative error of
    r^2; both maxima are taken over the distances beyond the nearest.
    """
    shift = 2.0 * unit * np.sqrt(farthest) + 4.0 * _EPS * coordinate
    beyond = max(np.sqrt(nearest) - shift, 0.0)
    steepest = max(beyond, _STEEPEST_AT)
    slope = 2.0 * _LN2 * steepest * 2.0 ** (-steepest * steepest)
    relative = _relative_slope(beyond * beyond)
    return slope * shift + (features + 10) * unit * relative + (rounding + 2.0) * unit * largest


@cached_njit(nogil=True)
def sum_queries(  # type: ignore[no-untyped-def]
    asking, places, query_low, query_high, points, low, high, first, last, right, coordinate, active, starts, weights,
    sums, magnitudes, errors, rounding, program, like, out, bounds,
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
            largest, smallest = _value(nearest), _value(farthest)
            half = 0.5 * (largest - smallest)
            if _affordable(half, magnitudes, node, allowed):
                taken += 1
                sensitive = largest + _relative_slope(nearest)
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
                largest = _value(near_nearest[i])
                sensitive = largest + _relative_slope(near_nearest[i])
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
                largest = _value(near_nearest[i])
                entry = _entry_rounding(near_nearest[i], near_farthest[i], rounding, largest, coordinate, d, unit)
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


@dataclass(frozen=True)
class Forest:
    """A tree over all samples, its queries, and where each sample stands in it."""

    tree: KDTree  # of the samples as the kernel's profile sees them
    queries: IndexArray  # nodes that sums are taken at: (q,)
    place: IndexArray  # position of each sample in the tree's order: (n,)
    coordinate: float  # sum over features of the largest coordinate's magnitude

    @classmethod
    def of(cls, points: FloatArray) -> Forest:
        """Build it over points (n, d)."""
        tree = KDTree.of(points)
        place = np.empty_like(tree.order)
        place[tree.order] = np.arange(len(place))
        return cls(tree, tree.queries(), place, float(np.abs(points).max(axis=0).sum()))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.tree.nbytes + self.queries.nbytes + self.place.nbytes

    @property
    def n_groups(self) -> int:
        """Groups of queries that are answered together."""
        return -(-len(self.queries) // QUERIES_A_GROUP)

    def group(self, number: int) -> tuple[IndexArray, FloatArray, FloatArray]:
        """A group's queries: where each begins in the order and the last ends (q + 1,), and corners of boxes (q, d)."""
        queries = self.queries[number * QUERIES_A_GROUP : (number + 1) * QUERIES_A_GROUP]
        ends = np.append(self.tree.first[queries], self.tree.last[queries[-1]]) * LEAF_ROWS
        return np.minimum(ends, len(self.place)), self.tree.low[queries], self.tree.high[queries]


def forest_of(context: BlockContext) -> Forest:
    """Return the tree over all samples, from this process's cache or built anew."""

    def build() -> Forest:
        evaluator = context.evaluator("double")
        parts = [scaled(evaluator, context.source.inputs(*context.bounds(b))) for b in range(context.n_blocks)]
        return Forest.of(np.concatenate(parts))

    return worker_cache().get((context.run_id, "tree"), build)


def scaled(evaluator: TileEvaluator, inputs: FloatArray) -> FloatArray:
    """Inputs (r, d) as the kernel's profile sees them: (r, features that it looks at)."""
    features = evaluator.prepare(inputs)
    # A kernel that looks at no feature finds all samples in one place.
    values = features.values if evaluator.inputs else np.zeros((1, features.n))
    return np.asarray(values[:, : features.n].T)


@dataclass(frozen=True)
class WeightedTree:
    """Weights of some of a tree's points, and their sums over its nodes."""

    forest: Forest
    active: IndexArray  # points that have a weight, ascending, in the tree's order: (m,)
    starts: IndexArray  # where each leaf's begin: (leaves + 1,)
    weights: FloatArray  # the kernel's amplitude included: (m, t)
    sums: FloatArray  # see `node_sums`: (nodes, t)
    magnitudes: FloatArray

    @classmethod
    def of(cls, forest: Forest, weights: FloatArray, active: IndexArray | None = None) -> WeightedTree:
        """Add up weights (m, t) of the points `active` (all of them if None)."""
        tree = forest.tree
        # Arrays from a message may be read-only, which is another type to compiled code.
        weights = np.require(weights, requirements=["C", "W"])
        points = np.arange(len(tree.order)) if active is None else np.require(active, requirements=["C", "W"])
        starts = tree.leaf_starts(points)
        sums, magnitudes = np.empty((2, len(tree.right), weights.shape[1]))
        node_sums(starts, weights, tree.first, tree.right, sums, magnitudes)
        return cls(forest, points, starts, weights, sums, magnitudes)

    def at(
        self,
        evaluator: TileEvaluator,
        targets: FloatArray,
        places: IndexArray,
        low: FloatArray,
        high: FloatArray,
        errors: FloatArray,
        coordinate: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Sums at the points of some queries, (r, t), each within its `errors` (t,) of pruning; and bounds (t,).

        The evaluator takes differences (not `expanded`); see `sum_queries` for the rest. Sums are at rows places[0] to
        places[-1] of `targets`, points as the kernel's profile sees them.
        """
        tree, like = self.forest.tree, np.empty(0, evaluator.dtype)
        out, bounds = np.empty((self.weights.shape[1], places[-1] - places[0])), np.zeros(self.weights.shape[1])
        evaluated = sum_queries(
            targets, places, low, high, tree.points, tree.low, tree.high, tree.first, tree.last, tree.right, coordinate,
            self.active, self.starts, self.weights, self.sums, self.magnitudes, errors.copy(),
            EXP2.rounding, evaluator.program, like, out, bounds,
        )  # fmt: skip
        evaluator.count(evaluated)
        return np.ascontiguousarray(out.T), bounds


@needs_one_arithmetic
def tree_task(
    context: BlockContext,
    active: IndexArray | None,
    weights: FloatArray,
    errors: FloatArray,
    precision: Precision,
    groups: list[int],
) -> list[tuple[FloatArray, FloatArray]]:
    """Sums for groups of queries, in the tree's order (rows, t), and bounds on their errors (t,).

    `weights` (m, t) are of the points `active` (all of them if None), in the tree's order.
    """
    forest, evaluator = forest_of(context), TileEvaluator(context.kernel, precision, expanded=False)
    walk = WeightedTree.of(forest, weights, active)
    return [
        walk.at(evaluator, forest.tree.points, *forest.group(number), errors, forest.coordinate) for number in groups
    ]


class TreeKernelOperator(BlockedKernelOperator):
    """Kbar by pruned sums; every entry of a product is within `error` of the exact one, rounding aside.

    Parameters
    ----------
    kernel : SquaredExponential
    noise_variance : float
    source : InputSource
        Standardised inputs of few features.
    executor : BlockExecutor
    error : float
        Largest error of an entry of K V that pruning may cause, in the units of K V. Where the entries of a column of V
        are all below one, the error is in proportion to the largest of them.
    """

    # An entry that the coordinator evaluates meanwhile is not the one that the round brings, bit by bit.
    overlaps = False
    overlap_evaluations = 0
    approximate = True

    def __init__(
        self,
        kernel: SquaredExponential,
        noise_variance: float,
        source: InputSource,
        executor: BlockExecutor,
        *,
        error: float,
    ) -> None:
        super().__init__(kernel, noise_variance, source, executor)
        self.error = error
        executor.require_one_arithmetic()

    def announce(self, indices: IndexArray) -> None:
        """Nothing: no round brings inputs."""

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V, samples far away taken as a whole."""
        check_vectors(self.n, V)
        rows = np.flatnonzero(V.any(axis=1))
        product = self._sums(rows, V[rows], precision) + self.noise_times(V)
        self._count_addition(product)
        return product

    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Kbar[:, B] @ delta; only the parts of the tree that hold some of B are walked."""
        check_columns(self.n, indices, delta)
        product = self._sums(indices, delta, precision)
        product[indices] += self.noise_times(delta, indices)
        self._count_addition(product)
        return ReadyColumns(product)

    def _count_addition(self, product: FloatArray) -> None:
        self.error_rows += 2.0 * _EPS * np.abs(product)

    def _sums(self, indices: IndexArray, weights: FloatArray, precision: Precision) -> FloatArray:
        """K[:, indices] @ weights."""
        result = np.zeros((self.n, weights.shape[1]))
        self.error_rows = np.zeros(result.shape)
        if not len(indices):
            return result
        forest = forest_of(self.context)
        position = np.full(self.n, -1, np.intp)
        position[forest.place[indices]] = np.arange(len(indices))
        active = np.flatnonzero(position >= 0)
        ordered = self.double.amplitude * weights[position[active]]
        # Targets with weights that are not finite are left out; their sums are NaN, and bound nothing.
        finite = np.isfinite(ordered).all(axis=0)
        ordered[:, ~finite] = 0.0
        errors = self.error * np.minimum(1.0, np.abs(weights).max(axis=0, initial=0.0, where=finite))
        parts = self.submit(
            "ktree",
            tree_task,
            (self.context, None if len(active) == self.n else active, ordered, errors, precision),
            self._cut(forest.n_groups, TASKS_PER_THREAD, self.n * len(indices)),
        ).result()
        result[forest.tree.order] = np.concatenate([rows for rows, _ in parts])
        result[:, ~finite] = np.nan
        self.error_rows[forest.tree.order] = np.concatenate(
            [np.broadcast_to(bounds, rows.shape) for rows, bounds in parts]
        )
        return result
