"""Tasks on a worker: stateless functions of (context, payload, blocks), and the features they cache.

The rows of X come from an `InputSource`: any object that reads a range of standardised rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.data.stores.row_arrays import MemoryArray
from dkgp.data.types import block_rows
from dkgp.errors import InputError
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.kernels.tiles.blocks import LANES
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray


class InputSource(Protocol):
    """Rows of standardised inputs, readable by range. Must pickle to something small: it travels with every task."""

    @property
    def n_samples(self) -> int:
        """Number of rows n."""

    @property
    def n_features(self) -> int:
        """Number of features d."""

    def inputs(self, start: int, stop: int) -> NDArray[np.float64]:
        """Rows start:stop: (stop - start, d) float64."""


def centre_of(source: InputSource) -> NDArray[np.float64] | None:
    """The point taken off a source's rows before distances are; None where their mean is zero, as a data set's.

    It belongs to the source, so that every process evaluates an entry to the same bits.
    """
    centre: NDArray[np.float64] | None = getattr(source, "centre", None)
    return centre


class ArrayInputs(MemoryArray):
    """An array in this process's memory as an input source.

    Parameters
    ----------
    X : (n, d) array_like
        Already standardised; finite.

    Attributes
    ----------
    centre : (d,) float64 or None
        The features' means, zero where a mean lies within the feature's spread and nothing is gained; None for all so.
    """

    def __init__(self, X: ArrayLike) -> None:
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or 0 in values.shape:
            raise InputError(f"inputs must be an array of shape (n, d) with n, d >= 1; got shape {values.shape}")
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(f"inputs must be finite; got {values[row, column]} in row {row}, column {column}")
        super().__init__(values)
        self.centre = _centre(values)

    @property
    def n_samples(self) -> int:
        """Number of rows n."""
        return self.shape[0]

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self.shape[1]

    def inputs(self, start: int, stop: int) -> NDArray[np.float64]:
        """Rows start:stop, a view."""
        return self.read(start, stop)


def _centre(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0)
        far = np.isfinite(mean) & (np.abs(mean) > np.abs(values - mean).max(axis=0))
    return np.where(far, mean, 0.0) if far.any() else None


def feature_width(kernel: Kernel) -> int:
    """Numbers that prepared features hold of a sample, a norm apart; d at least.

    More where the parts of a kernel each have their own. Memory is planned by it.
    """
    one = TileEvaluator(kernel, "single").prepare(np.zeros((1, kernel.n_features)))
    return max(kernel.n_features, one.nbytes // (LANES * one.values.itemsize) - 1)


@dataclass(frozen=True)
class CachedRows:
    """Standardised inputs of a block; kept where candidates' inputs travel back to the coordinator."""

    values: FloatArray

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes


@dataclass(frozen=True)
class BlockContext:
    """Everything that a block task needs besides its payload; a few hundred bytes on the wire.

    The cut into blocks depends on n alone, not on who computes, so that results do not either.
    """

    run_id: str
    source: InputSource
    kernel: Kernel
    n: int

    @property
    def block_rows(self) -> int:
        """Rows of a block: about 8,192, fewer where that would leave less than eight blocks, whole vectors always."""
        return block_rows(self.n)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n // self.block_rows)

    def bounds(self, block: int) -> tuple[int, int]:
        """First row of a block and the first row after it."""
        start = block * self.block_rows
        return start, min(start + self.block_rows, self.n)

    def block_features(self, block: int, precision: Precision) -> Features:
        """A block's prepared features, from this worker's cache or the store."""

        def build() -> Features:
            start, stop = self.bounds(block)
            return self.evaluator(precision).prepare(self.source.inputs(start, stop))

        return worker_cache().get((self.run_id, block, precision), build)

    def block_rows_cached(self, block: int) -> CachedRows:
        """A block's standardised inputs, from this worker's cache or the store."""
        return worker_cache().get(
            (self.run_id, block, "rows"), lambda: CachedRows(self.source.inputs(*self.bounds(block)))
        )

    def evaluator(self, precision: Precision) -> TileEvaluator:
        """Return the kernel's tile evaluator."""
        return TileEvaluator(self.kernel, precision, centre=centre_of(self.source))


def apply_columns_task(
    context: BlockContext,
    columns: Features,
    delta: FloatArray,
    precision: Precision,
    samples: IndexArray | None,
    blocks: list[int],
) -> list[tuple[FloatArray, FloatArray | None]]:
    """K(X_block, X_B) @ delta for each block, and the inputs of the `samples` (sorted) that lie in it."""
    evaluator = context.evaluator(precision)
    results = []
    for block in blocks:
        product = evaluator.matmat(context.block_features(block, precision), columns, delta)
        results.append((product, None if samples is None else _rows_of(context, block, samples)))
    return results


def diagonal_task(context: BlockContext, blocks: list[int]) -> list[FloatArray]:
    """k(x, x) for the samples of each block, in float64; not cached, since it is needed once."""
    return [
        np.asarray(context.kernel.diagonal(context.source.inputs(*context.bounds(block))), dtype=np.float64)
        for block in blocks
    ]


def row_errors_task(context: BlockContext, blocks: list[int]) -> list[FloatArray]:
    """Errors that the rounding of each block's samples adds to float64 entries; see `TileEvaluator.row_errors`."""
    evaluator = context.evaluator("double")
    return [evaluator.row_errors(context.source.inputs(*context.bounds(block))) for block in blocks]


def rows_task(context: BlockContext, samples: IndexArray, blocks: list[int]) -> list[FloatArray]:
    """Standardised inputs of the `samples` (sorted) that lie in each block."""
    return [_rows_of(context, block, samples) for block in blocks]


def _rows_of(context: BlockContext, block: int, samples: IndexArray) -> FloatArray:
    start, stop = context.bounds(block)
    first, last = np.searchsorted(samples, (start, stop))
    return context.block_rows_cached(block).values[samples[first:last] - start]
