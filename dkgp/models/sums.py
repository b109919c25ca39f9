"""Sums over a model's support points at other inputs: K(T, X) V, entry by entry or by a tree that prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.tree.forest import cross_sums, near_order, require_few_features

# Rows that a task takes at a time.
PIECE_ROWS = 512


@dataclass(frozen=True)
class Piece:
    """Rows of a region that are predicted together: [first, last) of the order in which its rows are taken."""

    # The region, in rows of the test set.
    start: int
    stop: int
    # Places in the region's order.
    first: int
    last: int


class Rows(Protocol):
    """A test set, as far as it is read here."""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised inputs [start, stop)."""


@dataclass(frozen=True)
class Sums:
    """A way to take sums over support points."""

    # Error that pruning by a tree may cause in each sum, in its own units; None for every entry, without a tree.
    product_error: float | None = None

    def products(
        self, context: BlockContext, inputs: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray | None]:
        """K(inputs, X) @ weights for standardised inputs (r, d) and weights (n, t), in float64: (r, t).

        Returned beside it is a bound on each sum's error, (r, t); None for sums of all entries, which only rounding
        separates from the exact ones. By a tree, `weights` are the same at each call for a context.
        """
        if self.product_error is None:
            return cross_products(context, inputs, weights), None
        return cross_sums(context, inputs, weights, self.product_error)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a store of predictions that they were used for."""
        return {} if self.product_error is None else {"product_error": self.product_error}

    def require(self, context: BlockContext, executor: BlockExecutor) -> None:
        """Refuse a kernel that a tree cannot serve (`InputError`), and unlike workers (`ClusterError`)."""
        if self.product_error is not None:
            require_few_features(context.evaluator("double"))
            executor.require_one_arithmetic()

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Cut a region into pieces, which depend on nothing else."""
        n = stop - start
        return [Piece(start, stop, first, min(first + PIECE_ROWS, n)) for first in range(0, n, PIECE_ROWS)]

    def read(self, context: BlockContext, test: Rows, piece: Piece) -> tuple[IndexArray, FloatArray]:
        """Rows of a piece, counted from the region's first, and their standardised inputs; a tree takes neighbours."""
        if self.product_error is None:
            rows = np.arange(piece.first, piece.last)
            return rows, test.inputs(piece.start + piece.first, piece.start + piece.last)
        inputs = test.inputs(piece.start, piece.stop)
        # The region's other pieces take the same order.
        key = (context.run_id, "order", piece.start, piece.stop)
        rows = worker_cache().get(key, lambda: near_order(context, inputs))[piece.first : piece.last]
        return rows, inputs[rows]


EVERY_ENTRY = Sums()


def joined(results: Sequence[tuple[IndexArray, *tuple[FloatArray, ...]]]) -> list[FloatArray]:
    """Put pieces' values, (k, t) each after the numbers of their rows, in the order of the rows: (r, t) each."""
    order = np.concatenate([rows for rows, *_ in results])
    values_in_order = []
    for parts in zip(*(values for _, *values in results), strict=True):
        whole = np.concatenate(parts)
        values_in_order.append(np.empty_like(whole))
        values_in_order[-1][order] = whole
    return values_in_order


def cross_products(context: BlockContext, inputs: FloatArray, weights: FloatArray) -> FloatArray:
    """K(inputs, X) @ weights for standardised inputs (rows, d) and weights (n, t), in float64: (rows, t)."""
    evaluator = context.evaluator("double")
    rows = evaluator.prepare(inputs)
    product = np.zeros((rows.n, weights.shape[1]))
    for block in range(context.n_blocks):
        first, last = context.bounds(block)
        product += evaluator.matmat(rows, context.block_features(block, "double"), weights[first:last])
    return finite_sums(product, inputs)


def finite_sums(sums: FloatArray, inputs: FloatArray) -> FloatArray:
    """Return sums (r, t) of kernel entries at standardised inputs (r, d); `NumericalError` where one is not finite."""
    if not np.isfinite(sums).all():
        row, column = np.argwhere(~np.isfinite(sums))[0]
        where = np.array2string(inputs[row], precision=3, threshold=6)
        raise NumericalError(
            f"a sum of kernel entries comes to {sums[row, column]} at the standardised inputs {where}: entries "
            "overflow there. Leave out samples that are so far out, scale the inputs, or choose another kernel"
        )
    return sums
