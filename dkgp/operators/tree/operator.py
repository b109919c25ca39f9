"""Tree-augmented kernel sums: Kbar by a kd-tree that prunes what hardly contributes, for few features.

With short length scales in two or three dimensions most pairs of samples have nothing to do with each other. The
operator sums near ones in dense tiles and takes far ones as a whole, each entry of a product within a given error
(kernel CG paper, section 6; Gray and Moore). Any solver takes it in place of the blocked operator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, PendingColumns, ReadyColumns, check_columns, check_vectors
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.inputs import InputSource
from dkgp.operators.tree.forest import WeightedTree, forest_of, require_few_features
from dkgp.operators.tree.kd_tree import require_room

# Regions differ in how many neighbours their samples have. Where tasks travel, each takes all weights with it.
TASKS_PER_THREAD = {True: 4, False: 2}
_EPS = float(np.finfo(np.float64).eps)


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
    kernel : Kernel
        One whose profile falls with the distance, such as a squared exponential, maybe scaled.
    noise_variance : float or (n,) array_like
    source : InputSource
        Standardised inputs, of at most 6 features that the kernel looks at; each worker, and the coordinator, holds
        those of all samples.
    error : float
        Largest error of an entry of K V that pruning may cause, in the units of K V. Where the entries of a column of V
        are all below one, the error is in proportion to the largest of them, so that the short steps near the end of a
        solve are as good as the first. A tenth of the tolerance on the gradient, say.
    coordinator_input_bytes : int, optional
        As for `BlockedKernelOperator`.

    Attributes
    ----------
    error_bound : float
        Proven bound on the entries' errors in the last product, rounding included. In double precision that is hardly
        more than `error`. In single it allows for the worst case of float32 sums, far above their actual errors.

    Raises
    ------
    InputError
        An error that is not positive, a kernel that does not fall with the distance, or too many features.
    MemoryBudgetError
        The tree does not fit this process's cache.

    Notes
    -----
    The approximate Kbar is not quite symmetric. Every entry of a product keeps to the error, and solvers that refresh
    their gradient take it as they take float32 tiles.

    References
    ----------
    N. Ratliff and J. A. Bagnell (2007), section 6; A. Gray and A. Moore, N-body problems in statistical learning.
    """

    # An entry that the coordinator evaluates meanwhile is not the one that the round brings, bit by bit.
    overlaps = False
    overlap_evaluations = 0
    approximate = True

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float | ArrayLike,
        source: InputSource,
        executor: BlockExecutor,
        *,
        error: float = 1e-5,
        **options: int,
    ) -> None:
        super().__init__(kernel, noise_variance, source, executor, **options)
        if not error > 0.0 or not np.isfinite(error):
            raise InputError(f"the error of tree sums must be finite and positive; got {error!r}")
        require_few_features(self.double)
        self.error = float(error)
        self.error_bound = 0.0
        require_room(self.n, self.double.inputs)
        # Samples far away are taken by the C library's exponential.
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
        self.error_bound += 2.0 * _EPS * float(np.max(np.abs(product), initial=0.0))

    def _sums(self, indices: IndexArray, weights: FloatArray, precision: Precision) -> FloatArray:
        """K[:, indices] @ weights."""
        result = np.zeros((self.n, weights.shape[1]))
        self.error_bound = 0.0
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
            self._cut(forest.n_groups, TASKS_PER_THREAD[self.executor.shares_memory], self.n * len(indices)),
        ).result()
        result[forest.tree.order] = np.concatenate([rows for rows, _ in parts])
        result[:, ~finite] = np.nan
        self.error_bound = float(max(bounds.max(initial=0.0) for _, bounds in parts))
        return result
