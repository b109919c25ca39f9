"""A tree over all samples as each process keeps it, and the kernels that it serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.errors import InputError
from dkgp.kernels import TileEvaluator
from dkgp.kernels.program import Profile
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.tree.kd_tree import LEAF_ROWS, KDTree

__all__ = ["MOST_FEATURES", "Forest", "forest_of", "radial_of", "require_few_features", "scaled"]

# Boxes in more dimensions than this have too many neighbours for anything to be pruned.
MOST_FEATURES = 6
# Queries of one result; which go together depends on nothing else.
QUERIES_A_GROUP = 16


@dataclass(frozen=True)
class Forest:
    """A tree over all samples, its queries, and where each sample stands in it.

    Attributes
    ----------
    tree : KDTree
        Of the samples as the kernel's profile sees them.
    queries : (q,) intp
        Its own nodes that ask for sums.
    place : (n,) intp
        Position of each sample in the tree's order.
    coordinate : float
        Sum over features of the largest coordinate's magnitude.
    """

    tree: KDTree
    queries: IndexArray
    place: IndexArray
    coordinate: float

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
        """Return a group's queries: where each begins in the order and where the last ends, and corners of their boxes.

        Shapes (q + 1,), (q, d) and (q, d).
        """
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
