"""A tree over all samples as each process keeps it, the kernels that it serves, and sums over its weighted points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.errors import InputError
from dkgp.kernels import TileEvaluator
from dkgp.kernels.program import Profile
from dkgp.kernels.tiles.stages import falling_functions
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.tree.kd_tree import LEAF_ROWS, KDTree, node_sums, sum_queries

# Boxes in more dimensions than this have too many neighbours for anything to be pruned.
MOST_FEATURES = 6
# Queries of one result; which go together depends on nothing else.
QUERIES_A_GROUP = 16


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


def radial_of(evaluator: TileEvaluator) -> tuple[Profile, float]:
    """Return the profile and its parameter of a kernel that falls with the distance; `InputError` for others."""
    if evaluator.radial is None:
        raise InputError(
            "tree sums are for one kernel that falls with the distance, such as a squared exponential, maybe times a "
            f"constant; got one of type {evaluator.kernel.type_name!r}. Use the blocked operator"
        )
    return evaluator.radial


def require_few_features(evaluator: TileEvaluator) -> None:
    """Refuse a kernel that a tree cannot serve; `InputError`."""
    radial_of(evaluator)
    if evaluator.inputs > MOST_FEATURES:
        raise InputError(
            f"tree sums are for up to {MOST_FEATURES} features; got {evaluator.inputs}, where boxes have too many "
            "neighbours to prune anything (a periodic feature counts twice). Use the blocked operator"
        )


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

    @property
    def nbytes(self) -> int:
        """Bytes held beside the forest."""
        arrays = (self.active, self.starts, self.weights, self.sums, self.magnitudes)
        return sum(array.nbytes for array in arrays)

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
        profile, parameter = radial_of(evaluator)
        tree, like = self.forest.tree, np.empty(0, evaluator.dtype)
        out, bounds = np.empty((self.weights.shape[1], places[-1] - places[0])), np.zeros(self.weights.shape[1])
        evaluated = sum_queries(
            targets, places, low, high, tree.points, tree.low, tree.high, tree.first, tree.last, tree.right, coordinate,
            self.active, self.starts, self.weights, self.sums, self.magnitudes, errors.copy(),
            falling_functions(profile), parameter, profile.rounding, evaluator.program, like, out, bounds,
        )  # fmt: skip
        evaluator.count(evaluated)
        return np.ascontiguousarray(out.T), bounds


def near_order(context: BlockContext, inputs: FloatArray) -> IndexArray:
    """Order of points (r, d) in which neighbours of a kernel's profile stand together: (r,)."""
    return KDTree.of(scaled(context.evaluator("double"), inputs)).order


def cross_sums(
    context: BlockContext, inputs: FloatArray, weights: FloatArray, error: float
) -> tuple[FloatArray, FloatArray]:
    """K(inputs, X) @ weights in float64, and by how much each entry may miss that, roundings included: (r, t) both.

    Points that are near each other are quick to sum at: pass many points in `near_order`, some hundreds at a time. A
    result depends on the arguments alone.

    This process keeps the tree of the context's X, and the sums over its nodes of the `weights` (n, t), which must be
    the same at each call. Pruning costs an entry at most `error`.
    """
    forest, evaluator = forest_of(context), TileEvaluator(context.kernel, "double", expanded=False)
    walk = worker_cache().get(
        (context.run_id, "weighted tree"),
        lambda: WeightedTree.of(forest, evaluator.amplitude * weights[forest.tree.order]),
    )
    tree = KDTree.of(scaled(context.evaluator("double"), inputs))
    leaves = np.flatnonzero(tree.right < 0)
    coordinate = max(forest.coordinate, float(np.abs(tree.points).max(axis=0).sum()))
    errors = np.full(weights.shape[1], error)
    sums, bounds = np.empty((2, len(inputs), weights.shape[1]))
    for leaf in leaves:
        places = np.array([tree.first[leaf] * LEAF_ROWS, min(int(tree.last[leaf]) * LEAF_ROWS, len(inputs))])
        box = (tree.low[leaf : leaf + 1], tree.high[leaf : leaf + 1])
        rows = tree.order[places[0] : places[1]]
        sums[rows], bounds[rows] = walk.at(evaluator, tree.points, places, *box, errors, coordinate)
    return sums, bounds
