"""Runs of blocks: the leaves of a sum over all samples. How samples are cut into them depends on n alone.

A run's task works on its blocks in pieces of rows, and comes with its own rows of the n-vectors that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import split_evenly
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

# More workers than this stay idle in a sum; a value passes through six additions at most.
MOST_RUNS = 64
LARGEST_PIECE, SMALLEST_PIECE, PIECE_ENTRIES = 1024, 256, 2**21


@dataclass(frozen=True)
class Run:
    """A leaf's work."""

    blocks: list[int]  # neighbours
    rows: Mapping[str, FloatArray]  # the run's rows of the n-vectors that its task takes, by name
    chosen: IndexArray | None = None  # samples of the blocks that are worked on, sorted; None for all of them

    def samples(self, context: BlockContext) -> int:
        """Number of its samples."""
        if self.chosen is not None:
            return len(self.chosen)
        return context.bounds(self.blocks[-1])[1] - context.bounds(self.blocks[0])[0]

    def pieces(self, context: BlockContext, precision: Precision, longest: int) -> Iterator[tuple[Features, slice]]:
        """Features of so many samples at a time, and which of the run's rows they are."""
        done = 0
        for block in self.blocks:
            start, stop = context.bounds(block)
            features = context.block_features(block, precision)
            if self.chosen is not None:
                first, last = np.searchsorted(self.chosen, (start, stop))
                features = features.take(self.chosen[first:last] - start)
            for begin in range(0, features.n, longest):
                end = min(begin + longest, features.n)
                yield features.slice(begin, end), slice(done + begin, done + end)
            done += features.n


@dataclass(frozen=True)
class RunSums:
    """Sums over samples, and perhaps rows of results, one for each of them."""

    sums: tuple[NDArray[np.float64], ...]
    rows: FloatArray | None = None  # of neighbouring samples, in their order


def added(left: RunSums, right: RunSums) -> RunSums:
    """The sums of two neighbours."""
    return RunSums(tuple(a + b for a, b in zip(left.sums, right.sums, strict=True)), _joined(left, right))


def accumulated(left: RunSums, right: RunSums) -> RunSums:
    """The sums of two neighbours in the memory of the left one: for sums in one process, where nothing is lost.

    One sum less is held while two are added, in half the time of an addition.
    """
    for total, more in zip(left.sums, right.sums, strict=True):
        total += more
    return RunSums(left.sums, _joined(left, right))


def _joined(left: RunSums, right: RunSums) -> FloatArray | None:
    return None if left.rows is None or right.rows is None else np.concatenate([left.rows, right.rows])


def piece_rows(prototypes: int) -> int:
    """Rows of a piece for so many prototypes: enough for BLAS to run at full speed, and some MiB at most."""
    return int(np.clip(PIECE_ENTRIES // max(1, prototypes) // 64 * 64, SMALLEST_PIECE, LARGEST_PIECE))


def runs_of(
    context: BlockContext, vectors: Mapping[str, FloatArray | None], samples: IndexArray | None = None
) -> list[list[Run]]:
    """Cut all samples into runs, one for each task, with their rows of the vectors that there are.

    `samples`, sorted, are those that are worked on, all by default; vectors have their rows alone.
    """
    runs = []
    for blocks in split_evenly(range(context.n_blocks), MOST_RUNS):
        bounds = context.bounds(blocks[0])[0], context.bounds(blocks[-1])[1]
        where = slice(*(bounds if samples is None else np.searchsorted(samples, bounds)))
        rows = {name: values[where] for name, values in vectors.items() if values is not None}
        runs.append([Run(blocks, rows, None if samples is None else samples[where])])
    return runs
