"""Selection of a block while the last one's product is under way, and the gradient as a selection sees it then."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, PendingColumns
from dkgp.solvers.base import steepness
from dkgp.solvers.block_descent.block_size import BlockGrowth, BlockSizes
from dkgp.solvers.block_descent.conjugate_memory import BlockStep, ConjugateMemory
from dkgp.solvers.block_descent.selection import GradientView, Selection
from dkgp.solvers.block_descent.subproblem import Subproblem


class SelectionPipeline:
    """The active sets of a run, one after the other.

    Where the operator overlaps, the next set is chosen while the workers compute a round's product; elsewhere when its
    round begins. The sets are the same. `growth` holds the size of the next one; `selection` is that of the first
    size; in `double`, nothing of a block is float32.
    """

    def __init__(
        self,
        operator: KernelOperator,
        selection: Selection,
        sizes: BlockSizes,
        seed: int,
        targets: int,
        double: bool = False,
    ) -> None:
        self.growth = BlockGrowth(sizes, sizes.first)
        self._operator, self._selection, self._seed, self._targets = operator, selection, seed, targets
        self._typical_entry, self._single = operator.typical_entry(), False if double else None
        self._active = self._subproblem()
        self._spare = self._subproblem() if operator.overlaps else None
        self._prepared = False

    def select(self, view: GradientView, iteration: int) -> Subproblem:
        """Return the active set of a round: the one that was prepared for it, or else one chosen now."""
        if not self._prepared:
            self._choose(view, iteration)
        self._prepared = False
        return self._active

    def announce(
        self, gradient_norm: Callable[[], float], columns: int, iteration: int, by_rows: bool = False
    ) -> IndexArray | None:
        """Settle the size of the sets to come; tell an operator out of core whose inputs are to come with this round.

        Before the round's update, which the next selection need not wait for: so that its size does not either.

        - `gradient_norm`: see `BlockGrowth.review`.
        - `by_rows`: whether workers hold the gradient. Then return the samples at which it is to come with this round,
          if they can be known.
        """
        self.growth.review(columns, gradient_norm)
        if self._operator.holds_inputs and not by_rows:
            return None
        # What this round brings can be looked at once it is back: by the next selection, or, where that runs while
        # the round is under way, by the one after it.
        ahead = 2 if self._operator.overlaps or by_rows else 1
        coming = self._next.announced(self._operator, self.growth.size, self._seed, iteration + ahead)
        if coming is not None:
            self._operator.announce(coming)
        return coming

    def prepare(self, view: GradientView, iteration: int) -> None:
        """Choose the active set of a coming round, where the operator overlaps; the one taken stays as it is."""
        if self._spare is not None:
            self._active, self._spare = self._spare, self._active
            self._choose(view, iteration)
            self._prepared = True

    def forget(self) -> None:
        """Give up what was prepared, and what is known of the pace: the gradient has been renewed."""
        self._prepared = False
        self.growth.review_norm = 0.0

    @property
    def _next(self) -> Selection:
        return self._selection.grown(self.growth.sizes.first, self.growth.size)

    def _choose(self, view: GradientView, iteration: int) -> None:
        size = self.growth.size
        if self._active.capacity < size:
            self._active = self._subproblem()
        self._active.reset()
        self._next.fill(self._active, self._operator, view, size, self._seed, iteration)

    def _subproblem(self) -> Subproblem:
        size, typical_entry = self.growth.size, self._typical_entry
        return Subproblem(self._operator, size, self._targets, single=self._single, typical_entry=typical_entry)


class SettledGradient:
    """The gradient when nothing is under way."""

    def __init__(self, gradient: FloatArray) -> None:
        self._gradient = gradient

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples."""
        return self._gradient[indices]

    def everywhere(self) -> FloatArray:
        """Return g."""
        return self._gradient

    def steepest(self, diagonal: FloatArray) -> int:
        """Return the sample with the largest g_i^2 / Kbar_ii."""
        return int(np.argmax(steepness(self._gradient, diagonal)))


class StepProduct:
    """Kbar[:, B] delta of a step, evaluated at the coordinator at a few samples.

    The tile loops give the same bits for a row wherever it is evaluated.
    """

    def __init__(self, operator: KernelOperator, step: BlockStep, precision: Precision) -> None:
        self._operator, self._step, self._precision = operator, step, precision
        self._order = np.argsort(step.indices)
        self._sorted = step.indices[self._order]

    @cached_property
    def _columns(self) -> Features:
        return self._operator.features(self._step.indices, self._precision)

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return the product at some samples, (r, p), whose features the caller may have in single precision."""
        operator, step, precision = self._operator, self._step, self._precision
        if features is None or precision == "double":
            features = operator.features(indices, precision)
        product = np.ascontiguousarray(operator.evaluator(precision).matmat(features, self._columns, step.delta))
        place = np.minimum(np.searchsorted(self._sorted, indices), len(self._sorted) - 1)
        inside = self._sorted[place] == indices
        product[inside] += operator.noise_times(step.delta[self._order[place[inside]]], indices[inside])
        return product


class GradientUnderWay:
    """The gradient after a step whose update the workers may still be computing.

    At a few samples it is cheaper to evaluate K(candidates, B) delta here than to wait. The bits are the same.

    `gradient` is the one before the step, which `settle` updates in place; `pending` is Kbar[:, B] delta, by tiles of
    `precision`.
    """

    def __init__(
        self,
        operator: KernelOperator,
        gradient: FloatArray,
        memory: ConjugateMemory,
        step: BlockStep,
        pending: PendingColumns,
        precision: Precision,
    ) -> None:
        self._gradient, self._memory = gradient, memory
        self._step, self._pending = step, pending
        self._product = StepProduct(operator, step, precision)
        self._settled, self._moved = False, np.zeros(gradient.shape[1])
        self._affordable = operator.overlap_evaluations

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples, evaluated here while that is cheaper than waiting."""
        self._affordable -= len(indices) * len(self._step.indices)
        if self._settled or self._affordable < 0 or self._pending.done():
            return self.everywhere()[indices]
        product = self._product.at(indices, features)
        return self._memory.settled_at(indices, self._gradient, self._step, product)

    def everywhere(self) -> FloatArray:
        """Return g, waiting for the update."""
        self.settle()
        return self._gradient

    def steepest(self, diagonal: FloatArray) -> int:
        """Return the sample with the largest g_i^2 / Kbar_ii, waiting for the update."""
        return SettledGradient(self.everywhere()).steepest(diagonal)

    def move(self, alpha: FloatArray) -> None:
        """Take the step in alpha."""
        self._moved = self._memory.move(alpha, self._step)

    def settle(self) -> FloatArray:
        """Wait for the update and add it to g; return the squared length of the step in alpha by target: (p,)."""
        if not self._settled:
            self._memory.settle(self._gradient, self._step, self._pending.result())
            self._settled = True
        return self._moved
