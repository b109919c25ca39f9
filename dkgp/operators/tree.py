"""Tree-augmented kernel sums: Kbar by a kd-tree that prunes what hardly contributes, for few features.

With short length scales in two or three dimensions most pairs of samples have nothing to do with each other. The
operator sums near ones in dense tiles and takes far ones as a whole, each entry of a product within the error asked for
(kernel CG paper, section 6; Gray and Moore). Any solver takes it in place of the blocked operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors import BlockExecutor, split_evenly
from dkgp.errors import InputError
from dkgp.kernels import Features, Kernel
from dkgp.kernels.tiles import Precision
from dkgp.operators.base import FloatArray, IndexArray, PendingColumns, ReadyColumns, check_columns
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.inputs import InputSource
from dkgp.operators.kd_tree import LEAF_ROWS, KDTree, sum_leaves

__all__ = ["TreeKernelOperator"]

# Boxes in more dimensions than this have too many neighbours for anything to be pruned.
MOST_FEATURES = 6
# Leaves of one result; which leaves go together depends on nothing else.
LEAVES_A_GROUP = 16
# What sums in each precision may be off by for their own rounding, in units of the sum of magnitudes.
ROUNDING = {"double": 1e-13, "single": 1e-6}


@dataclass(frozen=True)
class _Forest:
    """A tree and its points, prepared for the tiles in leaf order."""

    tree: KDTree
    features: Features
    leaf_nodes: IndexArray

    @property
    def nbytes(self) -> int:
        tree = self.tree
        held = (tree.order, tree.low, tree.high, tree.first, tree.last, tree.right, self.leaf_nodes)
        return self.features.nbytes + sum(array.nbytes for array in held)


def _forest(context: BlockContext, precision: Precision) -> _Forest:
    """The tree over all samples, from this worker's cache or built anew."""

    def build() -> _Forest:
        evaluator = context.evaluator("double")
        inputs = np.concatenate([context.source.inputs(*context.bounds(b)) for b in range(context.n_blocks)])
        scaled = evaluator.prepare(inputs).values[:, : context.n].T
        tree = KDTree.of(np.ascontiguousarray(scaled, dtype=np.float64))
        features = context.evaluator(precision).prepare(inputs[tree.order])
        return _Forest(tree, features, tree.leaf_nodes)

    return worker_cache().get((context.run_id, "tree", precision), build)


def tree_task(
    context: BlockContext, vectors: FloatArray, error: float, precision: Precision, groups: list[int]
) -> list[tuple[FloatArray, FloatArray, int]]:
    """K V for the queries in groups of leaves, in leaf order (rows, t); bounds on its error (t,); entries evaluated."""
    forest = _forest(context, precision)
    tree, evaluator = forest.tree, context.evaluator(precision)
    amplitude = float(evaluator.program[3])
    ordered = amplitude * vectors[tree.order]
    sums, magnitudes = tree.node_sums(ordered), tree.node_sums(np.abs(ordered))
    total = magnitudes[0]
    allowed = np.divide(error, total, out=np.full_like(total, np.inf), where=total > 0.0)
    weights = ordered.astype(evaluator.dtype)
    results = []
    for group in groups:
        first = group * LEAVES_A_GROUP
        last = min(first + LEAVES_A_GROUP, tree.n_leaves)
        rows = slice(first * LEAF_ROWS, min(last * LEAF_ROWS, context.n))
        out = np.zeros((vectors.shape[1], (last - first) * LEAF_ROWS))
        bounds = np.zeros(vectors.shape[1])
        evaluated = sum_leaves(
            first, last, forest.leaf_nodes, tree.low, tree.high, tree.first, tree.last, tree.right,
            forest.features.values, forest.features.squared_norms, evaluator.program, weights, sums, magnitudes,
            allowed, out, bounds,
        )  # fmt: skip
        results.append((out[:, : rows.stop - rows.start].T.copy(), bounds + ROUNDING[precision] * total, evaluated))
    return results


class TreeKernelOperator(BlockedKernelOperator):
    """Kbar by pruned sums; every entry of a product is within `error` of the exact one, rounding aside.

    Parameters
    ----------
    kernel : Kernel
        One that falls with the distance.
    noise_variance : float
    source : InputSource
        Standardised inputs, of at most 6 features that matter; each worker holds all of them.
    executor : BlockExecutor
    error : float
        Largest error of an entry of K V that pruning may cause, in the units of K V: a tenth of the tolerance on the
        gradient, say.
    coordinator_input_bytes : int, optional
        As for `BlockedKernelOperator`.

    Attributes
    ----------
    error_bound : float
        Proven bound on the entries' errors in the last product, rounding included; at most about `error`.

    References
    ----------
    N. Ratliff and J. A. Bagnell (2007), section 6; A. Gray and A. Moore, N-body problems in statistical learning.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        source: InputSource,
        executor: BlockExecutor,
        *,
        error: float = 1e-5,
        **options: int,
    ) -> None:
        super().__init__(kernel, noise_variance, source, executor, **options)
        if not error > 0.0 or not np.isfinite(error):
            raise InputError(f"the error of tree sums must be finite and positive; got {error!r}")
        active = self.double.prepare(np.zeros((1, kernel.n_features))).values.shape[0]
        if active > MOST_FEATURES:
            raise InputError(
                f"tree sums are for up to {MOST_FEATURES} features; got {active}, where boxes have too many neighbours "
                "to prune anything. Use the blocked operator"
            )
        self.error = float(error)
        self.error_bound = 0.0

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V, what is far away taken as a whole."""
        if V.ndim != 2 or V.shape[0] != self.n:
            raise InputError(f"expected an array of shape ({self.n}, t); got {V.shape}")
        return self._sums(V, precision) + self.noise_variance * V

    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Kbar[:, B] @ delta; only the parts of the tree that hold some of B are walked."""
        check_columns(self.n, indices, delta)
        weights = np.zeros((self.n, delta.shape[1]))
        weights[indices] = delta
        product = self._sums(weights, precision)
        product[indices] += self.noise_variance * delta
        return ReadyColumns(product)

    def _sums(self, vectors: FloatArray, precision: Precision) -> FloatArray:
        tree = _forest(self.context, precision).tree
        n_groups = -(-tree.n_leaves // LEAVES_A_GROUP)
        groups = split_evenly(range(n_groups), 4 * self.executor.parallelism)
        arguments = (self.context, vectors, self.error, precision)
        found = self.executor.submit("ktree", tree_task, arguments, groups).result()
        result = np.empty_like(vectors)
        result[tree.order] = np.concatenate([rows for rows, _, _ in found])
        self.error_bound = float(max((bounds.max(initial=0.0) for _, bounds, _ in found), default=0.0))
        self.kernel_evaluations += sum(evaluated for _, _, evaluated in found)
        return result
