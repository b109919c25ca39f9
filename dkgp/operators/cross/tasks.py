"""Tasks on runs of blocks: stateless functions of the prototypes and a run, which return the run's sums.

A piece of K(Z, X_b), or of F' = L^-1 K(Z, X_b), lies column by column in memory, as BLAS takes it, and is changed in
place. Tiles, triangular solves and sums are float64: errors of float32 in K_mn D K_nm would swamp the noise's part of
its smallest eigenvalues. Products with n-vectors, (m, t, 1), have digits number by number.

Every page of new memory costs time, on virtual machines several times that of the entries written to it, so a thread
uses the same memory for all its pieces.

The columns of a growing basis are kept in slabs of `SLAB_COLUMNS` for each run of blocks, within a worker's budget of
tiles (`dkgp.operators.keeping`). Kept columns are read; those without room, or whose worker died, are evaluated. Slabs
have the same layout and pass the same operations either way, so that bits do not depend on it.

Runs are the units of a sum over all samples, and their cut depends on n alone. A run's task works on its blocks in
pieces of rows, and brings the rows of the n-vectors that it needs. Runs and pieces decide the memory of such sums
(`cross_bytes`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import split_evenly
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision, fresh_array
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import FEWEST_TASKS, RunSums, Triangles, unit_count
from dkgp.operators.keeping import Keeping, TileRequest, worker_tiles
from dkgp.operators.low_rank.products import LandmarkTriangle

SLAB_COLUMNS = 256

_threads = threading.local()


def scratch(name: str, rows: int, columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory of this thread, by name: (rows, columns), values left over; valid until the next call for the name."""
    arrays, key = _threads.__dict__, f"{name} {dtype.char}"
    if key not in arrays or len(arrays[key]) < rows * columns:
        arrays[key] = np.empty(rows * columns, dtype)
    numbers: NDArray[Any] = arrays[key]
    return numbers[: rows * columns].reshape(rows, columns)


def columns_between(evaluator: TileEvaluator, prototypes: Features, rows: Features, name: str) -> NDArray[Any]:
    """K(X_b, Z): (b, m), row by row in this thread's memory of that name, padded to whole vectors."""
    out = scratch(name, rows.n, prototypes.values.shape[1], evaluator.dtype)
    evaluator.fill(prototypes, rows, out)
    return out[:, : prototypes.n]


@dataclass
class KeptSlab:
    """Neighbouring columns of a growing basis in a run's rows."""

    entries: FloatArray  # (rows, SLAB_COLUMNS)
    count: int = 0  # columns that are filled

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.entries.nbytes

    @property
    def filled(self) -> bool:
        """True if all columns are."""
        return self.count == SLAB_COLUMNS


class Slab:
    """Columns first:last of a basis with `inputs` (k, d), for the pieces of one run; `kept`, if any, holds them."""

    def __init__(
        self, evaluator: TileEvaluator, inputs: FloatArray, first: int, last: int, kept: KeptSlab | None
    ) -> None:
        self._evaluator, self._kept = evaluator, kept
        self.first, self.last = first, last
        self._known = 0 if kept is None else min(kept.count, last - first)
        new = inputs[first + self._known : last]
        self._new = evaluator.prepare(new) if len(new) else None

    def columns(self, rows: Features, where: slice) -> FloatArray:
        """K(X_b, Z) of the slab for a piece, `where` of the run: (b, last - first), neighbouring in a row."""
        if self._new is None:
            assert self._kept is not None
            return self._kept.entries[where, : self.last - self.first]
        new = columns_between(self._evaluator, self._new, rows, "slab")
        if self._kept is None:
            return new
        self._kept.entries[where, self._known : self.last - self.first] = new
        return self._kept.entries[where, : self.last - self.first]

    def done(self) -> None:
        """Count the columns as filled, once all pieces of the run have been worked on."""
        if self._kept is not None:
            self._kept.count = max(self._kept.count, self.last - self.first)


@contextmanager
def slabs(
    evaluator: TileEvaluator, inputs: FloatArray, kept: tuple[str, Keeping] | None, run: int, rows: int
) -> Iterator[list[Slab]]:
    """Slabs of a basis with `inputs` (k, d) for a run of so many rows; a worker keeps those that have room.

    `kept` is the name of the choice that grows the basis, and the terms; nothing is kept without. Columns in a slab
    count only once the context has ended without an error.
    """

    def room() -> KeptSlab:
        return KeptSlab(fresh_array(rows * SLAB_COLUMNS, np.float64).reshape(rows, SLAB_COLUMNS))

    with ExitStack() as stack:
        result = []
        for number, first in enumerate(range(0, len(inputs), SLAB_COLUMNS)):
            tiles = None
            if kept is not None:
                request = TileRequest(kept[0], (run, number), kept[1], room)
                tiles = stack.enter_context(worker_tiles().lent(request))
            result.append(Slab(evaluator, inputs, first, min(first + SLAB_COLUMNS, len(inputs)), tiles))
        yield result
        for slab in result:
            slab.done()


def slab_bytes(n: int, m: int) -> int:
    """Bytes of all slabs of a basis of m samples."""
    return 8 * n * -(-m // SLAB_COLUMNS) * SLAB_COLUMNS


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


@dataclass(frozen=True)
class Prototypes:
    """Prototypes Z as tasks see them."""

    context: BlockContext
    inputs: FloatArray  # (m, d)
    label: str  # tells prototypes of one run apart

    @property
    def count(self) -> int:
        """Number of prototypes, m."""
        return len(self.inputs)

    def features(self, precision: Precision = "double") -> Features:
        """Prepared prototypes, from this worker's cache or made anew."""
        return worker_cache().get(
            (self.context.run_id, self.label, precision),
            lambda: self.context.evaluator(precision).prepare(self.inputs),
        )

    def triangle(self) -> LandmarkTriangle:
        """L L' = K_mm, its jitter included, from this worker's cache or made anew."""
        return LandmarkTriangle.cached(self.context, self.inputs, self.label)


def _columns(evaluator: TileEvaluator, prototypes: Features, rows: Features) -> NDArray[Any]:
    """K(Z, X_b): (m, b), columns whole in memory; valid until this thread's next call."""
    return columns_between(evaluator, prototypes, rows, "columns").T


@needs_one_arithmetic
def gram_task(prototypes: Prototypes, whitened: bool, fitc: bool, product: bool, runs: list[Run]) -> list[RunSums]:
    """C D C' and C D V for each run, C = K(Z, X_b) or, whitened, F'; and the squared length of each column of C.

    A run's `variances` are D's inverses; fitc adds the run's `prior`, k(x, x), less F F' to them. Without them D = I.
    C D C' (1, m, m) is (0, 0, 0) without `product`.
    """
    return [_gram(prototypes, whitened, fitc, product, run) for run in runs]


def _gram(prototypes: Prototypes, whitened: bool, fitc: bool, product: bool, run: Run) -> RunSums:
    context, m = prototypes.context, prototypes.count
    evaluator = context.evaluator("double")
    triangle = prototypes.triangle() if whitened else None
    features = prototypes.features() if triangle is None else triangle.features
    right, variances = run.rows.get("right"), run.rows.get("variances")
    gram = np.zeros((m, m) if product else (0, 0), order="F")
    projected = np.zeros((m, 0 if right is None else right.shape[1]))
    squares = np.empty(run.samples(context))
    for rows, where in run.pieces(context, "double", piece_rows(m)):
        columns = _columns(evaluator, features, rows)
        stride = leading_dimension(columns)
        if triangle is not None:
            blas("trsm", b"L", b"L", b"N", b"N", m, rows.n, 1.0, triangle.lower, m, columns, stride)
        squares[where] = np.einsum("ij,ij->i", columns.T, columns.T)
        targets = None if right is None else right[where]
        if variances is not None:
            remainder = np.maximum(run.rows["prior"][where] - squares[where], 0.0) if fitc else 0.0
            scale = 1.0 / np.sqrt(variances[where] + remainder)
            columns *= scale
            targets = None if targets is None else scale[:, None] * targets
        if targets is not None:
            projected += columns @ targets
        if product:
            blas("syrk", b"L", b"N", m, rows.n, 1.0, columns, stride, 1.0, gram, m)
    return RunSums((Triangles(gram.T[None] if product else np.empty((0, 0, 0))), projected[..., None]), squares)


def project_task(prototypes: Prototypes, runs: list[Run]) -> list[RunSums]:
    """K(Z, X_b) V for the `right` of each run: (m, t)."""
    context, results = prototypes.context, []
    evaluator, features = context.evaluator("double"), prototypes.features()
    for run in runs:
        total = np.zeros((prototypes.count, run.rows["right"].shape[1]))
        for rows, where in run.pieces(context, "double", context.block_rows):
            total += evaluator.matmat(features, rows, np.ascontiguousarray(run.rows["right"][where]))
        results.append(RunSums((total[..., None],)))
    return results


@needs_one_arithmetic
def residual_task(prototypes: Prototypes, weights: FloatArray, returned: bool, runs: list[Run]) -> list[RunSums]:
    """K(Z, X_b) D r (m, t) and r' D r (t,) for r = V - K(X_b, Z) W, each entry evaluated once; r itself on request.

    V is a run's `right`, D the inverse of its `variances` or I. Without `right` r = K(X_b, Z) W.
    """
    context = prototypes.context
    evaluator, features = context.evaluator("double"), prototypes.features()
    results = []
    for run in runs:
        total, squares = np.zeros(weights.shape), np.zeros(weights.shape[1])
        residuals = np.empty((run.samples(context), weights.shape[1])) if returned else None
        for rows, where in run.pieces(context, "double", piece_rows(prototypes.count)):
            columns = _columns(evaluator, features, rows)
            image = columns.T @ weights
            residual = run.rows["right"][where] - image if "right" in run.rows else image
            weighted = residual / run.rows["variances"][where, None] if "variances" in run.rows else residual
            squares += np.einsum("it,it->t", residual, weighted)
            total += columns @ weighted
            if residuals is not None:
                residuals[where] = residual
        results.append(RunSums((total[..., None], squares), residuals))
    return results
