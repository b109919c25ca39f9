"""Runs of blocks: the units of a sum over all samples. How samples are cut into them depends on n alone.

A run's task works on its blocks in pieces of rows, and brings the rows of the n-vectors that it needs. Runs and pieces
decide what memory such sums take (`cross_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dkgp.cluster.executors.base import split_evenly
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import FEWEST_TASKS, unit_count

# Sums that wait on a worker for others that they are added to, at most.
WAITING_SUMS = 6
LARGEST_PIECE, SMALLEST_PIECE, PIECE_ENTRIES = 1024, 256, 2**21


@dataclass(frozen=True)
class Run:
    """A unit of a sum, or of other work."""

    blocks: list[int]  # neighbours
    rows: Mapping[str, FloatArray]  # the run's rows of the n-vectors that its task takes, by name
    selected: IndexArray | None = None  # samples of the blocks that are worked on, sorted; None for all of them

    def samples(self, context: BlockContext) -> int:
        """Number of its samples."""
        if self.selected is not None:
            return len(self.selected)
        return context.bounds(self.blocks[-1])[1] - context.bounds(self.blocks[0])[0]

    def pieces(self, context: BlockContext, precision: Precision, longest: int) -> Iterator[tuple[Features, slice]]:
        """Features of so many samples at a time, and which of the run's rows they are."""
        done = 0
        for block in self.blocks:
            start, stop = context.bounds(block)
            features = context.block_features(block, precision)
            if self.selected is not None:
                first, last = np.searchsorted(self.selected, (start, stop))
                features = features.take(self.selected[first:last] - start)
            for begin in range(0, features.n, longest):
                end = min(begin + longest, features.n)
                yield features.slice(begin, end), slice(done + begin, done + end)
            done += features.n


def piece_rows(prototypes: int) -> int:
    """Rows of a piece for so many prototypes: enough for BLAS to run at full speed, and some MiB at most."""
    return int(np.clip(PIECE_ENTRIES // max(1, prototypes) // 64 * 64, SMALLEST_PIECE, LARGEST_PIECE))


def runs_of(
    context: BlockContext,
    vectors: Mapping[str, FloatArray | None],
    samples: IndexArray | None = None,
    most: int | None = None,
) -> list[Run]:
    """Cut all samples into runs, `most` of them by default `unit_count`, with their rows of the vectors that there are.

    `samples`, sorted, are those that are worked on, all by default; vectors have their rows alone.
    """
    runs = []
    for blocks in split_evenly(range(context.n_blocks), most or unit_count(context.n)):
        bounds = context.bounds(blocks[0])[0], context.bounds(blocks[-1])[1]
        where = slice(*(bounds if samples is None else np.searchsorted(samples, bounds)))
        rows = {name: values[where] for name, values in vectors.items() if values is not None}
        runs.append(Run(blocks, rows, None if samples is None else samples[where]))
    return runs


@dataclass(frozen=True)
class CrossBytes:
    """Projected bytes of a whitened Gram."""

    thread: int  # of each thread of a worker: a unit's sum, its digits, and its piece of F; or an addition of digits
    process: int  # L and the prototypes' features, while L is made, and sums that wait for their neighbours
    coordinator: int  # the sum, F' D V, and n-vectors on their way

    def worker(self, threads: int) -> int:
        """Bytes of a worker's process with so many threads."""
        return self.process + threads * self.thread

    def in_process(self, threads: int) -> int:
        """Bytes of one process that does everything itself, with so many threads."""
        return self.worker(threads) + self.coordinator


def cross_bytes(n: int, d: int, m: int, t: int = 1) -> CrossBytes:
    """Project the memory of a whitened Gram of n samples of d features with m prototypes and t right-hand sides."""
    matrix = 8 * m * m
    piece = 8 * (m + 16) * piece_rows(m)
    run = -(-n // FEWEST_TASKS) * 8 * (2 * t + 3)
    return CrossBytes(
        thread=3 * matrix + 2 * piece + run,
        process=3 * matrix + WAITING_SUMS * matrix + 16 * m * (d + 2),
        coordinator=2 * matrix + 8 * (m + n) * (t + 2),
    )
