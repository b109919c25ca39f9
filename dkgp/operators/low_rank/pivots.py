"""Randomly pivoted Cholesky: its landmarks, and products with F = K_nI L^-T that is never held.

Landmarks are drawn in proportion to the diagonal of the factor's residual. For the hundreds of vectors of a batch the
evaluation of the entries costs little beside the products, so F, the largest array of a worker, is not held: F Z = K_nI
(L^-T Z), F'V = L^-1 (K_In V), from kernel columns of the landmarks. Tasks on blocks of samples compute both on any
executor. Sums over the samples are integers, so bits depend neither on the executor nor on the cut into tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, BlockTask, RoundTasks, split_evenly
from dkgp.cluster.threads import in_parallel
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import Scale
from dkgp.operators.full_products import COUNTS, scale_of

# Pivots are drawn from so many samples each, and from so many in any case.
SAMPLES_PER_LANDMARK = 1.5
LEAST_SUBSET = 4000
PIVOTS_A_STEP = 128
# Samples that a thread works on at a time.
PIECE_SAMPLES = 1024
# Pivots whose own residual has sunk to this share of their k(x, x) would add rounding errors and little else.
LEAST_PIVOT = 1e-10
LEAST_PIVOT_SINGLE = 1e-5
# A kernel that so many landmarks leave rough is one for a preconditioner, for which float32 does, in half the time. Of
# fewer it would spare nothing, and a factor that could be ten times as good would end at its least pivot (Friedman1 at
# a million: with 519 of 778 landmarks, going on so from half of them).
SINGLE_FROM_RANK = 1024
LEAST_JITTER = 1e-9
# Of an entry, in units of eps, for rows that are not far out.
ENTRY_ERROR = 64.0
# Where k(x, x) varies, it counts as this share of the largest at least: no division by zero.
LEAST_COUNTED = 1e-20
# Where no k(x, x) is above this, the kernel is zero: its shares would underflow.
LEAST_PRIOR = 1e-250


def jitter(rank: int, largest_diagonal: float, entry_error: float = ENTRY_ERROR) -> float:
    """The jitter of K_II's diagonal: a billionth of it, or twice the most that rounding may have taken off it.

    It makes L L' at least the exact K_II, so that the factor's Q is smaller than the exact one and Q <= K stays true.
    Scaled by the diagonal D, entries of K_II are off by `entry_error` eps, and L L' by (R + 1) u / (1 - (R + 1) u)
    besides (Higham 2002, theorem 10.5); no matrix of R rows is longer than R times its largest entry.
    """
    eps = float(np.finfo(np.float64).eps)
    rounding = rank * (0.51 * (rank + 2) + entry_error) * eps
    return max(LEAST_JITTER, 2.0 * rounding) * largest_diagonal


def jittered(matrix: FloatArray, entry_error: float = ENTRY_ERROR) -> FloatArray:
    """K_II with `jitter` on its diagonal, in place: each landmark's in proportion to its own k(x, x).

    Rounding errors in K_II go with sqrt(k(x, x) k(x', x')): so scaled, they are as small beside the jitter everywhere.
    """
    diagonal = matrix.diagonal()
    matrix[np.diag_indices(len(matrix))] += jitter(len(matrix), 1.0, entry_error) * counted(diagonal)
    return matrix


def counted(diagonal: FloatArray, largest: float | None = None) -> FloatArray:
    """Values of k(x, x), raised to a tiny share of the largest, of these or of all, where they vanish beside it."""
    values: FloatArray = np.maximum(diagonal, LEAST_COUNTED * (diagonal.max() if largest is None else largest))
    return values


def regularised_factor(gram: FloatArray, noise_variance: float) -> FloatArray:
    """Cholesky factor of F'F + s2 I, from F'F as it was computed; `gram` (R, R) is overwritten.

    Where rounding errors in F'F's null space exceed s2 (little noise, a large kernel), the diagonal is raised by as
    large a share as it takes: a preconditioner, or an estimate, is then a little rougher. `NumericalError` where F'F is
    far from positive semidefinite, or not finite.
    """
    rank, diagonal, share = len(gram), gram.diagonal().copy(), 0.0
    while share < 1.0:
        gram[np.diag_indices(rank)] = diagonal + noise_variance + share * diagonal
        lower, trouble = scipy.linalg.lapack.dpotrf(gram, lower=1, clean=0, overwrite_a=1)
        if not trouble:
            for column in range(1, rank):
                lower[:column, column] = 0.0
            return np.asarray(lower)
        for column in range(rank):
            gram[column:, column] = gram[column, column:]  # restored from the other triangle
        share = max(10.0 * share, (rank + 10) * float(np.finfo(np.float64).eps))
    raise NumericalError(
        f"the partial Cholesky factor of rank {rank} has no positive definite product with itself: the kernel's values "
        f"(up to {diagonal.max():.3g} after summing) are so large that rounding hides the noise variance "
        f"{noise_variance:.3g}. "
        "Raise the noise variance, or remove outliers from the inputs"
    )


def samples_drawn_from(rank: int) -> int:
    """Samples that up to `rank` landmarks are chosen from, where there are as many."""
    return max(LEAST_SUBSET, int(SAMPLES_PER_LANDMARK * rank))


def stand_in(n: int, rank: int, rng: np.random.Generator) -> IndexArray:
    """Draw the samples, sorted, that stand for all n in the choice of up to `rank` landmarks.

    Measured on kin40k, n = 10,000, rank 2,000: drawing from 4,000, 8,000 or all samples gave the same gaps of variances
    after every pass; landmarks drawn uniformly, slightly wider ones.
    """
    return np.sort(rng.permutation(n)[: samples_drawn_from(rank)]).astype(np.intp)


class RandomlyPivotedCholesky:
    """A partial Cholesky factor of a kernel matrix that grows by blocks of random pivots.

    Pivots are drawn from m samples with prepared features and `prior` k(x_i, x_i) (m,), evaluated in float64;
    `residual` (m,) is the diagonal of K - Q. `InputError` where the kernel is zero at all, or not finite at some.

    References
    ----------
    Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, Randomly pivoted Cholesky (2023), algorithm 2 (blocks).
    """

    def __init__(
        self,
        evaluator: TileEvaluator,
        features: Features,
        prior: FloatArray,
        largest_rank: int,
        rng: np.random.Generator,
    ) -> None:
        self._evaluator, self._features, self._rng = evaluator, features, rng
        self._largest_rank = largest_rank
        self._largest_prior = float(prior.max())
        if not LEAST_PRIOR < self._largest_prior < np.inf:
            raise InputError(
                f"k(x, x) comes to {self._largest_prior:.3g} at most at {len(prior):,} samples, which is "
                f"{'zero' if self._largest_prior < 1.0 else 'not finite'} for a factor's purposes. Scale the inputs, "
                "or choose another kernel"
            )
        # Residuals are compared with each sample's own k(x, x): errors go with it. Ones where that is a constant.
        self._relative = np.sqrt(counted(prior) / self._largest_prior)
        self.residual = prior.copy()
        self._rows: NDArray[Any] = np.zeros((largest_rank, len(prior)))
        self._pivots: list[int] = []
        self._least = LEAST_PIVOT * self._largest_prior
        self._ended = False

    @property
    def rank(self) -> int:
        """Pivots so far."""
        return len(self._pivots)

    @property
    def complete(self) -> bool:
        """True once the largest rank, or the kernel's numerical rank, has been reached."""
        return self._ended or self.rank >= self._largest_rank or not self._largest_residual > self._least

    @property
    def _largest_residual(self) -> float:
        """The largest share of any sample's k(x, x) in the residual."""
        return float((self.residual / self._relative**2).max())

    @property
    def pivots(self) -> IndexArray:
        """Samples chosen, in order."""
        return np.asarray(self._pivots, dtype=np.intp)

    @property
    def rows(self) -> NDArray[Any]:
        """The factor so far: (rank, m), with Q = rows' rows."""
        return self._rows[: self.rank]

    def extend(self) -> None:
        """Draw up to 128 further pivots; fewer are kept where some are nearly dependent on others."""
        rank, rows = self.rank, self._rows
        step = min(PIVOTS_A_STEP, self._largest_rank - rank)
        residual = self.residual
        if self._relative.min() < 1.0:
            # Rounding errors of a large k(x, x) may exceed a small one.
            residual = np.where(residual > self._least * self._relative**2, residual, 0.0)
        drawn = np.unique(self._rng.choice(len(residual), step, p=residual / residual.sum()))
        pivots, weights = self._features.take(drawn), np.ascontiguousarray(rows[:rank, drawn])
        columns = np.empty((len(residual), len(drawn)))
        pieces = [slice(start, start + PIECE_SAMPLES) for start in range(0, len(residual), PIECE_SAMPLES)]

        def evaluate(index: int) -> None:
            piece = pieces[index]
            kernel = self._evaluator.tile(self._features.slice(piece.start, min(piece.stop, len(residual))), pivots)
            columns[piece] = (kernel - rows[:rank, piece].T @ weights) / self._relative[drawn]

        in_parallel(evaluate, len(pieces))
        block = columns[drawn] / self._relative[drawn, None]
        lower, order, count, _ = scipy.linalg.lapack.dpstrf(
            np.asarray(block + block.T, dtype=np.float64) / 2.0, lower=1, tol=self._least
        )
        if count == 0:
            self._ended = True
            return
        order = order[:count] - 1
        triangle = np.asfortranarray(np.tril(lower[:count, :count]))
        explained = np.empty(len(residual))

        def whiten(index: int) -> None:
            piece = pieces[index]
            new = np.asfortranarray(columns[piece][:, order].T)
            blas("trsm", b"L", b"L", b"N", b"N", count, new.shape[1], 1.0, triangle, count, new, count)
            rows[rank : rank + count, piece] = new
            new = new.astype(rows.dtype, copy=False)
            explained[piece] = np.einsum("ri,ri->i", new, new)

        in_parallel(whiten, len(pieces))
        self.residual = np.maximum(self.residual - explained, 0.0)
        self.residual[drawn[order]] = 0.0
        self._pivots.extend(int(index) for index in drawn[order])

    def continue_in_single_if_rough(self) -> None:
        """Go on in float32, at half the time and memory, where much is left of the diagonal."""
        if self._largest_residual > LEAST_PIVOT_SINGLE * self._largest_prior:
            self._rows, self._least = self._rows.astype(np.float32), LEAST_PIVOT_SINGLE * self._largest_prior


Pieces = Sequence[tuple[Features, slice]]
# Rows of a tile; landmarks that a thread takes at a time; landmarks whose sums are added up together.
PIECE_ROWS, LANDMARKS_AT_ONCE, LANDMARKS_TOGETHER = 512, 512, 4096
# Rows of F that are held at once while F'F is computed.
ROWS_AT_ONCE = 4096
# Columns that OpenBLAS computes at a time, or a multiple of them.
_COLUMNS = 8
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
    """L^-1 B, or L^-T B, for L (R, R) in Fortran order and B (R, t): in L's type, Fortran order.

    The bits of a column do not depend on the other columns.
    """
    result = pad_columns(right, lower.dtype)
    rank, count = result.shape
    if count:
        flag = b"T" if transposed else b"N"
        blas("trsm", b"L", b"L", flag, b"N", rank, count, 1.0, lower, rank, result, rank)
    return result[:, : right.shape[1]]


def solve_by_factor(lower: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return (L L')^-1 B as `whiten` does, by two triangular solves."""
    return whiten(lower, whiten(lower, right, transposed=False), transposed=True)


def pad_columns(matrix: NDArray[Any], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return a copy of B (R, t) in Fortran order, with columns of zeros up to a multiple of eight.

    OpenBLAS computes the last columns by other code than the others if their number is no multiple of four (double
    precision, Haswell and Zen) or eight (Nehalem). A column would then depend on their number.
    """
    rank, count = matrix.shape
    result = np.zeros((rank, -(-count // _COLUMNS) * _COLUMNS), dtype, order="F")
    result[:, :count] = matrix
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
