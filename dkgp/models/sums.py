"""Sums over a model's support points at other inputs: K(T, X) V, entry by entry or within a proven error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import NumericalError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross_sums import PIECE_ROWS as WIDE_PIECE_ROWS
from dkgp.operators.cross_sums import REGION_ROWS, cross_sums, near_order, require_cross_sums

# Rows that a task takes at a time where every entry is evaluated.
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
    """A way to take sums over support points.

    `errors` are proven bounds on the error of each sum, in its units: one for all columns of the weights, or
    one for each. None where every kernel entry is evaluated.
    """

    errors: float | tuple[float, ...] | None = None

    def products(
        self, context: BlockContext, inputs: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return K(inputs, X) @ weights for standardised inputs (r, d) and weights (n, t), in float64: (r, t).

        The second array bounds the errors of the sums, (r, t): zero for sums of all entries, which only rounding
        separates from the exact ones; None where all are such. With `errors`, `weights` are the same at each call.
        """
        if self.errors is None:
            return cross_products(context, inputs, weights), None
        errors = np.broadcast_to(np.asarray(self.errors, dtype=np.float64), (weights.shape[1],))
        sums, bounds = cross_sums(context, inputs, weights, errors)
        beyond = np.flatnonzero(~(bounds <= errors).all(axis=1))
        for start in range(0, len(beyond), PIECE_ROWS):
            rows = beyond[start : start + PIECE_ROWS]
            sums[rows], bounds[rows] = cross_products(context, inputs[rows], weights), 0.0
        return sums, bounds

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a store of predictions that they were used for."""
        if self.errors is None:
            return {}
        return {"product_error": list(self.errors) if isinstance(self.errors, tuple) else self.errors}

    @classmethod
    def of_attributes(cls, attributes: Mapping[str, Any]) -> Sums:
        """Return the sums that a store of predictions was begun with."""
        errors = attributes.get("product_error")
        return cls(tuple(float(each) for each in errors) if isinstance(errors, list) else errors)

    @property
    def region_rows(self) -> int | None:
        """Rows of a region of a store that suit them; None where any number does."""
        return None if self.errors is None else REGION_ROWS

    def require(self, context: BlockContext, executor: BlockExecutor, weights: FloatArray) -> None:
        """Refuse a kernel without a bound on such sums, or errors below their roundings (`InputError`).

        So are unlike workers (`ClusterError`).
        """
        if self.errors is not None:
            require_cross_sums(context.kernel, weights, self.errors if isinstance(self.errors, float) else None)
            executor.require_one_arithmetic()

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Cut a region into pieces, which depend on nothing else."""
        n, size = stop - start, PIECE_ROWS if self.errors is None else WIDE_PIECE_ROWS
        return [Piece(start, stop, first, min(first + size, n)) for first in range(0, n, size)]

    def read(self, context: BlockContext, test: Rows, piece: Piece) -> tuple[IndexArray, FloatArray]:
        """Return the rows of a piece, counted from the region's first, and their standardised inputs.

        Rows of one piece are neighbours where sums are quicker at these.
        """
        if self.errors is None:
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
