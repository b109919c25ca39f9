"""Products with F = K_nI L^-T that is not held: from kernel columns of the landmarks, evaluated as they are needed.

For the hundreds of vectors of a batch evaluating the entries costs little beside the products, and F, the largest
array of a worker, is not held. F Z = K_nI (L^-T Z), F'V = L^-1 (K_In V). Tasks on blocks of samples compute both on any
executor. Sums over the samples are integers, so bits depend neither on the executor nor on the cut into tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, BlockTask, RoundTasks, split_evenly
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.fixed_point import Scale
from dkgp.operators.full_products import COUNTS, scale_of

Pieces = Sequence[tuple[Features, slice]]
# Rows of a tile; landmarks that a thread takes at a time; landmarks whose sums are added up together.
PIECE_ROWS, LANDMARKS_AT_ONCE, LANDMARKS_TOGETHER = 512, 512, 4096
# Rows of F that are held at once while F'F is computed.
ROWS_AT_ONCE = 4096
_UNPROVEN = np.errstate(over="ignore", invalid="ignore", divide="ignore")


def multiply_pieces(
    evaluator: TileEvaluator, rows: Pieces, columns: Pieces, vectors: NDArray[Any], images: NDArray[Any]
) -> None:
    """Add K(rows, columns) V to the images, in their type, in place, a tile and a BLAS product at a time.

    A term passes through the additions of one tile's sum, in any order, and one more for each tile of its row.
    """
    if not images.flags.c_contiguous:
        raise AssertionError("images must lie row by row")
    count, dtype = vectors.shape[1], images.dtype
    if not count:
        return
    weights = np.ascontiguousarray(vectors, dtype=dtype)
    for features, where in rows:
        target = images[where]
        for others, columns_where in columns:
            stored = evaluator.tile(features, others).T
            if stored.strides[1] != stored.itemsize:
                stored = np.ascontiguousarray(stored)
            stride, sizes = leading_dimension(stored), (count, features.n, others.n)
            blas("gemm", b"N", b"T", *sizes, 1.0, weights[columns_where], count, stored, stride, 1.0, target, count)


def pieces_of(features: Features, length: int = PIECE_ROWS) -> list[tuple[Features, slice]]:
    """Cut features into runs of at most `length`, with the places of their rows."""
    starts = range(0, features.n, length)
    places = [slice(start, min(start + length, features.n)) for start in starts]
    return [(features.slice(place.start, place.stop), place) for place in places]


def whiten(lower: NDArray[Any], right: NDArray[Any], *, transposed: bool) -> NDArray[Any]:
    """L^-1 B, or L^-T B, for L (R, R) in Fortran order and B (R, t): in L's type, Fortran order."""
    result = np.array(right, dtype=lower.dtype, order="F")
    rank, count = result.shape
    if count:
        flag = b"T" if transposed else b"N"
        blas("trsm", b"L", b"L", flag, b"N", rank, count, 1.0, lower, rank, result, rank)
    return result


@needs_one_arithmetic
@_UNPROVEN
def project_task(
    context: BlockContext, precision: Precision, scale: Scale, values: dict[Any, Any], blocks: list[int]
) -> list[dict[Any, NDArray[np.int64]]]:
    """Return the words of K_Ib V_b, summed over the blocks, by range of landmarks; V_b is the block's value."""
    evaluator, landmarks = context.evaluator(precision), pieces_of(values["landmarks"], LANDMARKS_AT_ONCE)
    count = values[blocks[0]].shape[1]
    words, refused = scale.zeros(values["landmarks"].n), np.zeros(count, np.int64)
    for block in blocks:
        part = np.zeros((words.shape[1], count), evaluator.dtype)
        pieces = pieces_of(context.block_features(block, precision))
        multiply_pieces(evaluator, landmarks, pieces, values[block], part)
        refused += scale.add(words, part.astype(np.float64, copy=False))
    ranges = _ranges(words.shape[1])
    return [{**{k: words[:, where].swapaxes(1, 2) for k, where in enumerate(ranges)}, COUNTS: refused}]


@needs_one_arithmetic
@_UNPROVEN
def expand_task(
    context: BlockContext, precision: Precision, values: dict[Any, Any], blocks: list[int]
) -> list[NDArray[Any]]:
    """K_bI B for each block, in the evaluator's precision: (rows, t)."""
    evaluator, landmarks, weights, results = context.evaluator(precision), values["landmarks"], values["weights"], []
    whole = [(landmarks, slice(0, landmarks.n))]
    for block in blocks:
        features = context.block_features(block, precision)
        out = np.zeros((features.n, weights.shape[1]), evaluator.dtype)
        multiply_pieces(evaluator, pieces_of(features), whole, weights, out)
        results.append(out)
    return results


@needs_one_arithmetic
@_UNPROVEN
def misfit_task(
    context: BlockContext, precision: Precision, values: dict[Any, Any], blocks: list[int]
) -> list[FloatArray]:
    """Squared lengths of V - K_nI B by column, for each short run of rows of each block: (runs, t)."""
    evaluator, landmarks, weights, results = context.evaluator(precision), values["landmarks"], values["weights"], []
    for block in blocks:
        for rows, where in pieces_of(context.block_features(block, precision)):
            misfit = values[block][where] - evaluator.tile(rows, landmarks) @ weights
            results.append(np.einsum("it,it->t", misfit, misfit))
    return results


def _ranges(rank: int) -> list[slice]:
    return [slice(start, start + LANDMARKS_TOGETHER) for start in range(0, rank, LANDMARKS_TOGETHER)]


@dataclass(frozen=True)
class LandmarkRows:
    """All rows of F, with the products of `dkgp.operators.low_rank.products.FactorRows`.

    Attributes
    ----------
    context : BlockContext
        Training inputs and kernel.
    precision : Precision
        That of entries and of products within a block.
    landmarks : Features
    lower : (R, R) float32 or float64
        L, in Fortran order; its type is that of L^-1's images.
    roots : (n,) float64
        sqrt(k(x, x)) of the training samples, the landmarks among them: they bound the sums.
    executor : BlockExecutor
        Runs the tasks.
    """

    context: BlockContext
    precision: Precision
    landmarks: Features
    lower: NDArray[Any]
    roots: FloatArray
    executor: BlockExecutor

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return self.landmarks.n

    def expand(self, weights: NDArray[Any]) -> FloatArray:
        """F Z for Z (R, t): (n, t) float64."""
        beta = np.ascontiguousarray(whiten(self.lower, weights, transposed=True))
        out = np.empty((self.context.n, beta.shape[1]))
        parts = self.executor.start(self._tasks("kexpand", expand_task, (), None, beta)).result()
        for block, part in enumerate(parts):
            out[slice(*self.context.bounds(block))] = part
        return out

    def project(self, vectors: NDArray[Any]) -> FloatArray:
        """F' V for V (n, t): (R, t) float64."""
        scale = scale_of(vectors, self.roots, self.precision, self.context.n_blocks)
        tasks = self._tasks("kproject", project_task, (scale,), vectors, None)
        totals = self.executor.start_total(tasks).result()
        refused, total = totals.pop(COUNTS), np.empty((self.rank, vectors.shape[1]))
        for k, where in enumerate(_ranges(self.rank)):
            total[where] = scale.decode(totals.pop(k).swapaxes(1, 2))
        total[:, refused > 0] = np.nan
        return whiten(self.lower, total, transposed=False).astype(np.float64)

    def misfit(self, vectors: NDArray[Any], beta: FloatArray) -> FloatArray:
        """Squared lengths of the columns of V - K_nI B, in float64: (t,)."""
        return np.asarray(
            np.sum(self.executor.start(self._tasks("kmisfit", misfit_task, (), vectors, beta)).result(), axis=0)
        )

    def _tasks(
        self,
        name: str,
        task: BlockTask,
        arguments: tuple[Any, ...],
        vectors: NDArray[Any] | None,
        weights: NDArray[Any] | None,
    ) -> RoundTasks:
        """Tasks on runs of blocks, which take the landmarks, the weights and the blocks' rows of the vectors."""
        context = self.context
        groups = split_evenly(range(context.n_blocks), self.executor.parallelism)
        values: dict[Any, Any] = {"landmarks": self.landmarks}
        if weights is not None:
            values["weights"] = weights
        shared = list(values)
        if vectors is not None:
            values |= {block: vectors[slice(*context.bounds(block))] for block in range(context.n_blocks)}
        needs = [[*shared, *(group if vectors is not None else ())] for group in groups]
        gives = [[*range(len(_ranges(self.rank)))] for _ in groups] if task is project_task else None
        return RoundTasks(task, (context, self.precision, *arguments), groups, None, name, values, needs, gives)
