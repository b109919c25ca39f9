"""Sums over all samples at other points than the samples: K(T, X) V by a tree over X, each entry within an error."""

from __future__ import annotations

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.kernels import TileEvaluator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.tree.forest import WeightedTree, forest_of, scaled
from dkgp.operators.tree.kd_tree import LEAF_ROWS, KDTree


def near_order(context: BlockContext, inputs: FloatArray) -> IndexArray:
    """Order of points (r, d) in which neighbours of a kernel's profile stand together: (r,)."""
    return KDTree.of(scaled(context.evaluator("double"), inputs)).order


def cross_sums(
    context: BlockContext, inputs: FloatArray, weights: FloatArray, error: float
) -> tuple[FloatArray, FloatArray]:
    """K(inputs, X) @ weights in float64, and by how much each entry may miss that, roundings included: (r, t) both.

    Neighbouring points are the quicker the nearer they are to each other, so that many points are best given in
    `near_order`, some hundreds at a time. A result depends on the arguments alone.

    This process keeps the tree of the context's X, and the sums over its nodes of the `weights` (n, t), which are the
    same at each call. Pruning may cost an entry as much as `error`, in its own units.
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
