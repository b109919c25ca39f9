"""A model's partial Cholesky factor on a worker: starting point, preconditioner and minorant for variances.

`dkgp.operators.low_rank` builds F and applies M^-1. This module adds diag(K - Q) and error bounds for variances. F is
kept in float32, since it need not be exact: `dkgp.models.variance.bounds` evaluates the *proofs* from kernel columns in
float64, and they hold for any z. A factor that only preconditions is therefore float32 throughout, at half the time and
memory. A factor that certifies variances by itself has the other arrays in float64.

`Remainder` bounds v'Ev for E = K - Q by blocks on E's diagonal. E is positive semidefinite, so for any partition of
the samples into groups b,

    v'Ev <= (sum_b sqrt(v_b' E_bb v_b))^2,

which with groups of one sample is (sum |v_i| sqrt(e_i))^2. The entries of E between samples that are not neighbours are
nearly zero. Then v_b' E_bb v_b is about sum e_i v_i^2, and the bound falls as 1 / m, m the size of a group. Groups of
m = 128 take n m numbers, and n m multiply-adds per test sample. They reduce the landmarks by a third.

Let L f_i = k_i and L'w_i = f_i as computed, each column of a solve within gamma_R |L| (Higham 2002, theorem 8.5), and
W = sum v_i w_i, c = K_In v. Then v'Qv = c'(LL')^-1 c >= 2 W'c - |L'W|^2, which in exact arithmetic is |sum v_i f_i|^2.
The computed entry ij has an error of gamma (S_i |f_j| + S_j |f_i|) + gamma^2 S_i S_j with S_i = sum_l |w_il| |L_l|,
plus the roundings of k. The total is below a_i p_j + a_j p_i + a_i a_j, with p_i >= |f_i| and p_i >= sqrt(k_ii).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, RoundTasks, split_evenly
from dkgp.cluster.executors.sums import Totals
from dkgp.cluster.threads import in_parallel, process_threads, whole_process
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.rounding import EPS, EVALUATION, UNIT, product_roundings, sum_roundings
from dkgp.models.variance.row_scales import ProofContext, RowScales, differences, priors
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.exact_sums import Scale
from dkgp.operators.full_products import COUNTS
from dkgp.operators.low_rank.factor import LowRankPreconditioner
from dkgp.operators.low_rank.pivots import ROWS_AT_ONCE, LandmarkRows, counted, jitter, regularised_factor, whiten
from dkgp.operators.low_rank.products import FactorRows, LandmarkTriangle
from dkgp.operators.vecchia.factor import VecchiaProduct, VecchiaRecipe, build_task, vecchia_bytes
from dkgp.operators.vecchia.leaves import Leaves, embedding_landmarks

if TYPE_CHECKING:
    from dkgp.data import FactorRecord

# Samples of a group; and of a larger group for runs in which narrower intervals end the work on most samples.
GROUP, LARGE_GROUP = 128, 512
# Error of a float32 block and of its quadratic form in float64, in units of the block's norm times |v_b|^2.
STORED = 2.0**-22


def remainder_bytes(n: int, group: int) -> int:
    """Return the bytes of the blocks of n samples."""
    return 4 * n * group + 24 * n


@dataclass(frozen=True)
class Interpolation:
    """Sums of the weights w = L^-T f of some samples, for rounding bounds."""

    size: FloatArray  # (r,) float64: S, the sum of |w_l| |L_l| over the rows of L
    errors: FloatArray  # (r,) float64: the same sum with each landmark's row error

    @classmethod
    def of(cls, lower: NDArray[Any], f: NDArray[Any], landmark_errors: FloatArray) -> Interpolation:
        """Build the sums of samples whose columns of L^-1 K_In are f (R, r)."""
        w = np.abs(scipy.linalg.solve_triangular(lower, f, lower=True, trans=1, check_finite=False))
        lengths = np.linalg.norm(lower, axis=1)
        return cls(lengths @ w, (lengths * landmark_errors) @ w)


class Remainder:
    """Blocks on the diagonal of E, and bounds on their roundings.

    Parameters
    ----------
    n : int
        Number of samples.
    typical_error : float
        Row error that `scale` of `fill` is relative to.
    group : int
        Largest number of samples of a block.
    """

    def __init__(self, n: int, typical_error: float, group: int) -> None:
        self._typical_error, self._group = typical_error, group
        self._blocks = np.zeros((n, group), np.float32)  # over their norms
        self._norms, self._p, self._a = np.zeros(n), np.zeros(n), np.zeros(n)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._blocks.nbytes + self._norms.nbytes + self._p.nbytes + self._a.nbytes

    def fill(
        self,
        evaluator: TileEvaluator,
        rows: Features,
        where: slice,
        f: FloatArray,
        scale: FloatArray,
        weights: Interpolation,
    ) -> None:
        """Fill in the blocks of a run of samples.

        Parameters
        ----------
        rows : Features
            The r samples `where`.
        f : (R, r) float64
            L^-1 K_Ir.
        scale : (r,) float64
            sqrt(k(x, x)) times max(row error / typical row error, 1).
        """
        rank, start = len(f), where.start
        p = np.maximum(scale, np.linalg.norm(f, axis=0))
        entries = 2.0 * EPS * self._typical_error
        a = 3.0 * (rank + 2) * UNIT * weights.size + entries * weights.size + 2.0 * EPS * weights.errors
        a += ((rank + 8) * UNIT + entries) * p
        self._p[where], self._a[where] = EVALUATION * p, EVALUATION * a
        for group in _groups(rows.n, self._group):
            own = rows.slice(group.start, group.stop)
            block = evaluator.tile(own, own) - f[:, group].T @ f[:, group]
            norm = float(np.linalg.norm(block))
            first, count = start + group.start, group.stop - group.start
            if norm > 0.0:
                self._blocks[first : first + count, :count] = block / norm
            self._norms[first] = norm

    def spread(self, where: slice, v: FloatArray, single: FloatArray) -> FloatArray:
        """Return an upper bound on the sum of sqrt(v_b' E_bb v_b) over the groups of a run: (t,).

        The run must be one that was filled by a single call of `fill`.

        Parameters
        ----------
        single : (r,) float64
            Upper bounds on sqrt(e_i).
        """
        total = np.zeros(v.shape[1])
        for group in _groups(len(v), self._group):
            own, first, count = v[group], where.start + group.start, group.stop - group.start
            size = np.abs(own)
            block = self._blocks[first : first + count, :count].astype(np.float64)
            norm = self._norms[first]
            quadratic = norm * np.einsum("it,it->t", own, block @ own)
            rounding = self._a[first : first + count] @ size
            quadratic = np.maximum(quadratic, 0.0) + STORED * norm * np.einsum("it,it->t", own, own)
            quadratic += rounding * (2.0 * (self._p[first : first + count] @ size) + rounding)
            total += np.fmin(np.sqrt(EVALUATION * quadratic), single[group] @ size)
        return total


def _groups(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


# Function that returns the features of consecutive samples, the first sample, and the one after the last.
Piece = tuple[Callable[[], Features], int, int]
# Rows of the kernel matrix evaluated at a time: a tile of 512 x 512 doubles stays in a core's cache.
PIECE_ROWS = 512
# Rows of F'F that workers sum as one block.
STRIP_ROWS = 1024


def factor_bytes(
    n: int, rank: int, precision: Precision = "single", *, held: bool = True, proves: bool = False, group: int = GROUP
) -> int:
    """Return the bytes of a factor in a worker process.

    A factor has two triangles and some n-vectors. If `held`, it also has F in float32, and if it `proves` by itself,
    blocks of `group` samples of K - Q.
    """
    triangles = (8 if precision == "single" else 16) * rank * rank
    return 4 * n * rank * held + triangles + 24 * n + proves * remainder_bytes(n, group)


def landmark_jitter(kernel: Kernel, inputs: FloatArray, centre: FloatArray | None = None) -> float:
    """Return the share of k(x, x) that is added to each landmark's diagonal entry; see `jitter` of the pivots."""
    errors = TileEvaluator(kernel, "double", expanded=False, centre=centre).row_errors(inputs)
    return jitter(len(inputs), 1.0, 2.0 * float(errors.max()))


@dataclass(frozen=True)
class FactorSource:
    """Source from which a worker builds or loads its factor; sent with every task."""

    context: BlockContext  # the model's support inputs and kernel
    noise_variance: float  # s2
    landmark_inputs: FloatArray  # (R, d) float64: standardised inputs of the landmarks
    # Precision of the triangles and of the diagonal; "double" for a factor that certifies by itself.
    precision: Precision = "single"
    # Whether F is held; if not, it is evaluated from kernel columns for each product, which suits many vectors.
    held: bool = True
    stored: FactorRecord | None = None  # the stored factor, if there is one
    leaves: Leaves | None = None  # leaves of the block-Vecchia preconditioner, if there is one
    # Whether the factor, in float64, certifies by itself: it then holds blocks of K - Q.
    proves: bool = False
    group: int = GROUP  # samples of a block
    factors: int = 1  # number of factors of the prediction, this one included: the cache has to hold all
    makers: int | None = None  # threads of a process that may build leaves at once, to limit memory

    def factor(self, executor: BlockExecutor | None = None) -> NystromFactor:
        """Return this process's factor; the first task that needs it builds it.

        If F is not held, the executor's workers compute F'F together, by default the threads of this process.
        """
        rank = len(self.landmark_inputs)
        key = (self.context.run_id, "factor", self.precision, self.held, self.proves, self.group, rank, self._digest)
        cache = worker_cache()
        # An evicted factor would be built again for every batch; the run's memory limit includes the factor.
        features = 16 * self.context.n * (feature_width(self.context.kernel) + 1)
        holds: dict[str, Any] = {"held": self.held, "proves": self.proves, "group": self.group}
        needed = factor_bytes(self.context.n, rank, self.precision, **holds)
        needed += features + self._leaf_bytes
        cache.budget_bytes = max(cache.budget_bytes, self.factors * needed)
        return cache.get(key, lambda: NystromFactor.of(self, executor))

    def triangle(self) -> LandmarkTriangle:
        """Return L and the landmarks from this process's cache; build them on a cache miss."""
        dtype = np.float32 if self.precision == "single" else np.float64
        key = (self.context.run_id, "variance triangle", self.precision, self._digest)
        cache = worker_cache()
        cache.make_room(16 * len(self.landmark_inputs) ** 2)
        return cache.get(key, lambda: LandmarkTriangle.of(differences(self.context), self.landmark_inputs, dtype))

    def preconditioner(self, executor: BlockExecutor | None = None) -> VecchiaProduct | None:
        """Return M^-1 of the block-Vecchia factor by an executor, if there is one; processes build missing leaves."""
        if self.leaves is None:
            return None
        executor = executor or HereExecutor()
        recipe = VecchiaRecipe(self.leaves, self.noise_variance, np.zeros((0, 0)))
        here = executor.shares_memory or isinstance(executor, HereExecutor)
        return VecchiaProduct(recipe, executor, lambda: executor.workers, shares_memory=here)

    def make_leaves(self) -> None:
        """Build this process's leaves, if there are any."""
        leaves = self.leaves
        if leaves is None:
            return

        def make(number: int) -> None:
            build_task(leaves, self.noise_variance, [number])

        in_parallel(make, leaves.n_bundles, min(process_threads(), self.makers or process_threads()))

    @property
    def _digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.landmark_inputs).tobytes()).hexdigest()[:16]

    @property
    def _leaf_bytes(self) -> int:
        """Bytes of all leaves, and of one leaf that each thread is building."""
        if self.leaves is None:
            return 0
        width = feature_width(self.context.kernel)
        needed = vecchia_bytes(self.context.n, self.leaves.halo, self.leaves.leaf, width=width)
        largest = 4 * self.leaves.leaf * (self.leaves.halo + self.leaves.leaf)
        return needed.kept + 2 * needed.points + (process_threads() + 1) * largest


def leaves_of(context: BlockContext, noise_variance: float, executor: BlockExecutor, halo: int) -> Leaves:
    """Return the leaves, half as large as their halos, of a block-Vecchia factor without landmarks."""
    operator = BlockedKernelOperator(context.kernel, noise_variance, context.source, executor)
    try:
        embedding = embedding_landmarks(operator)
    finally:
        operator.close()
    nothing = np.zeros((0, context.kernel.n_features))
    return Leaves(context, halo, -(-halo // 2), nothing, embedding, f"variance-{halo}")


class NystromFactor:
    """The factor, in memory.

    Attributes
    ----------
    evaluator : TileEvaluator
        Evaluates the kernel in float64.
    entry_error : float
        Bound on an entry's rounding error, in units of eps largest w_i w_j.
    landmarks : Features
        Prepared landmark inputs.
    lower : (R, R)
        L with L L' = K_II + jitter, in the factor's precision.
    gram_lower : (R, R)
        Cholesky factor of F'F + s2 I, in the factor's precision.
    columns : (n, R) float32 or None
        F, where it is held.
    prior : (n,) float64
        k(x, x) of the training samples.
    residual_diagonal : (n,) float64
        diag(K - Q): an upper bound for a float64 factor, a value with float32 errors for a float32 factor.
    largest : float
        Upper bound on the entries of Kbar.
    weights : (n,) float64
        w_i; see `dkgp.models.variance.row_scales`.
    landmark_scale : (R,) float64
        sqrt(k(x, x) / largest) of the landmarks, times their m.
    whitening : Whitening or None
        Growth of errors through L; None if L is float32, or too ill-conditioned for a proof.
    remainder : Remainder or None
        Blocks of K - Q, if the factor proves by itself.
    loses_digits : bool or None
        See `dkgp.models.variance.bounds.loses_digits`; None before its first call.
    """

    def __init__(
        self,
        source: FactorSource,
        lower: NDArray[Any],
        gram_lower: NDArray[Any],
        columns: NDArray[np.float32] | None,
        residual_diagonal: FloatArray,
        remainder: Remainder | None = None,
    ) -> None:
        self.context = source.context
        self.noise_variance = source.noise_variance
        scales = self.scales = RowScales.of(source.context, source.noise_variance)
        self.evaluator = scales.evaluator
        self._landmark_inputs = source.landmark_inputs
        self.loses_digits: bool | None = None
        self.landmarks = self.evaluator.prepare(source.landmark_inputs)
        self.lower, self.gram_lower = lower, gram_lower
        self.columns, self.residual_diagonal, self.remainder = columns, residual_diagonal, remainder
        self.entry_error, self.prior = scales.entry_error, scales.prior
        self.largest, self.weights = scales.largest, scales.weights
        landmark_diagonal = counted(source.context.kernel.diagonal(source.landmark_inputs)) / self.largest
        self.landmark_scale: FloatArray = np.sqrt(landmark_diagonal) * scales.excess(source.landmark_inputs)
        self.whitening = Whitening.of(lower, np.sqrt(self.largest) * self.landmark_scale)

    @classmethod
    def of(cls, source: FactorSource, executor: BlockExecutor | None = None) -> NystromFactor:
        """Load the stored factor if there is one, or build the factor."""
        stored = source.stored
        if stored is None and not (source.held or source.proves):
            return cls._added_up(source, executor or HereExecutor(process_threads()))
        if stored is None:
            return cls._build(source)
        # A stored factor is in float64 either way; the bounds depend on the precision in which it was computed.
        dtype = np.float32 if source.precision == "single" else np.float64
        columns = np.empty((stored.n, stored.rank), np.float32) if source.held else None
        if columns is not None:
            for start, stop in stored.row_chunks():
                columns[start:stop] = stored.columns(start, stop)
        return cls(
            source,
            np.asfortranarray(stored.lower(), dtype=dtype),
            np.asfortranarray(stored.gram_lower(), dtype=dtype),
            columns,
            stored.residual_diagonal(),
            _remainder(source) if source.proves else None,
        )

    @classmethod
    def _added_up(cls, source: FactorSource, executor: BlockExecutor) -> NystromFactor:
        """Build the factor on an executor's processes, 2 n R^2 operations; bits do not depend on their number."""
        n, rank = source.context.n, len(source.landmark_inputs)
        scale = Scale.of(np.array([2.0 * priors(source.context).sum()]), 1, -(-n // ROWS_AT_ONCE))
        strips, workers = _strips(rank), list(executor.workers)
        groups = split_evenly(range(len(_row_groups(source.context))), len(workers))
        tasks = RoundTasks(
            gram_task,
            (source, scale),
            groups,
            workers[: len(groups)],
            "kgram",
            gives=[range(len(strips))] * len(groups),
        )
        totals, gram, diagonal = executor.start_total(tasks).result(), np.zeros((rank, rank), order="F"), np.empty(n)
        for number, (rows, columns) in enumerate(strips):
            part = scale.decode(totals.pop(number).reshape(1, -1, 1)).reshape(rows.stop - rows.start, columns.stop)
            gram[rows, columns] = part
            gram[columns, rows] = part.T
        if totals.pop(COUNTS).any():
            gram[...] = np.nan
        for number, group in enumerate(_row_groups(source.context)):
            diagonal[group[0][1] : group[-1][2]] = totals.pop(("diagonal", number)).view(np.float64)
        lower = source.triangle().lower
        gram_lower = regularised_factor(gram, source.noise_variance).astype(lower.dtype, order="F", copy=False)
        return cls(source, lower, gram_lower, None, diagonal)

    @classmethod
    def _build(cls, source: FactorSource) -> NystromFactor:
        """Build the factor on this process's threads, 2 n R^2 operations; bits do not depend on their number."""
        context = source.context
        evaluator = differences(context)
        dtype = np.float32 if source.precision == "single" else np.float64
        triangle = LandmarkTriangle.of(evaluator, source.landmark_inputs, dtype)
        rows = _RowsOfF(source, evaluator, triangle)
        rank, n = triangle.features.n, context.n
        columns = np.empty((n, rank), np.float32) if source.held else None
        diagonal, gram = np.empty(n), np.zeros((rank, rank), order="F")
        for group in [list(_pieces(context))] if source.held else _row_groups(context):
            gram += rows.gram(group, diagonal, columns)
        gram_lower = regularised_factor(gram, source.noise_variance).astype(dtype, order="F", copy=False)
        return cls(source, triangle.lower, gram_lower, columns, diagonal, rows.remainder)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = np.zeros(0) if self.columns is None else self.columns
        held = (columns, self.lower, self.gram_lower, self.residual_diagonal, self.weights, self.prior)
        remainder = 0 if self.remainder is None else self.remainder.nbytes
        return sum(array.nbytes for array in (*held, self.landmark_scale)) + self.landmarks.nbytes + remainder

    @property
    def weight_norm(self) -> float:
        """Length of the vector of weights."""
        return self.scales.norm

    @property
    def unit(self) -> float:
        """Errors of a product with Kbar, from entries and sums, in units of largest w_i sum_j w_j |v_j|.

        A product adds runs within blocks, and adds blocks as integers. Other sums add runs of `PIECE_ROWS` one by one.
        """
        context = self.context
        runs = sum(-(-(stop - start) // PIECE_ROWS) for start, stop in map(context.bounds, range(context.n_blocks)))
        additions = max(product_roundings(self.n), sum_roundings(self.n, PIECE_ROWS, runs))
        return additions * UNIT + self.entry_error * EPS

    @property
    def rank(self) -> int:
        """Number of landmarks, R."""
        return self.landmarks.n

    @property
    def n(self) -> int:
        """Number of training samples."""
        return self.context.n

    def pieces(self, precision: Precision = "double", length: int | None = None) -> list[tuple[Features, slice]]:
        """Return the training inputs in short runs, in order: prepared features and their rows."""
        pieces = _pieces(self.context, precision, length or PIECE_ROWS)
        return [(rows(), slice(start, stop)) for rows, start, stop in pieces]

    def landmark_rows(self, precision: Precision, executor: BlockExecutor) -> LandmarkRows:
        """Return the products with F and K_nI by an executor."""
        context = ProofContext.of(self.context)
        landmarks = context.evaluator(precision).prepare(self._landmark_inputs)
        return LandmarkRows(context, precision, landmarks, self.lower, np.sqrt(self.prior), executor)

    def preconditioner(self, executor: BlockExecutor | None = None) -> LowRankPreconditioner:
        """Return M^-1; its z is in the factor's precision, as are products with more than a few vectors."""
        executor = executor or HereExecutor()
        precision: Precision = "single" if self.lower.dtype == np.float32 else "double"
        if self.columns is not None:
            held = FactorRows(self.columns, precision, process_threads())
            return LowRankPreconditioner(held, self.noise_variance, self.gram_lower)
        passing = self.landmark_rows(precision, executor)
        return LowRankPreconditioner(passing, self.noise_variance, self.gram_lower)

    def rows(self, features: Features, where: slice) -> NDArray[np.float32]:
        """Return rows of F, held or evaluated: (b, R)."""
        if self.columns is not None:
            return self.columns[where]
        kernel = self.evaluator.tile(features, self.landmarks).T
        return np.ascontiguousarray(whiten(self.lower, kernel, transposed=False).T, dtype=np.float32)

    def landmark_weights(self, z: FloatArray) -> FloatArray:
        """Return beta = L^-T z, so that F z = K_nI beta: (R, t) float64."""
        right = np.asfortranarray(z, dtype=self.lower.dtype)
        beta = scipy.linalg.solve_triangular(self.lower, right, lower=True, trans=1, check_finite=False)
        return np.asarray(beta, dtype=np.float64)


class _RowsOfF:
    """Computes rows of F, and with them diag(K - Q), roundings included."""

    def __init__(self, source: FactorSource, evaluator: TileEvaluator, triangle: LandmarkTriangle) -> None:
        self._evaluator, self._triangle, self._context = evaluator, triangle, source.context
        self._prior = priors(source.context)
        self._errors, self._precision = evaluator.row_errors(source.landmark_inputs), source.precision
        self._typical_error = float(np.median(self._errors))
        double = triangle.lower.dtype == np.float64
        proves = source.proves and double
        self.remainder = Remainder(source.context.n, self._typical_error, source.group) if proves else None

    def of(self, features: Features, where: slice, diagonal: FloatArray) -> NDArray[Any]:
        """Return the rows of some samples as columns (R, r); fill in their part of `diagonal` and of the remainder."""
        block, prior = self._triangle.columns(self._evaluator, features), self._prior[where]
        diagonal[where] = np.maximum(prior - np.einsum("ri,ri->i", block, block), 0.0)
        if block.dtype == np.float64:
            errors = self._evaluator.row_errors(self._context.source.inputs(where.start, where.stop))
            weights = Interpolation.of(self._triangle.lower, block, self._errors)
            diagonal[where] += residual_slack(weights, block, prior, errors)
            if self.remainder is not None:
                scale = np.sqrt(prior) * np.maximum(errors / self._typical_error, 1.0)
                self.remainder.fill(self._evaluator, features, where, block, scale, weights)
        return block

    def gram(self, group: list[Piece], diagonal: FloatArray, columns: NDArray[np.float32] | None = None) -> FloatArray:
        """Return F'F of a run of rows, (R, R) float64; fill in `diagonal`, and `columns` with the rows if given."""
        first, threads = group[0][1], process_threads()
        values = np.empty((group[-1][2] - first, self._triangle.features.n), np.float32) if columns is None else columns

        def fill(index: int) -> None:
            features, start, stop = group[index]
            values[start - first : stop - first] = self.of(features(), slice(start, stop), diagonal).T

        in_parallel(fill, len(group), threads)
        return FactorRows(values, self._precision, threads).gram()


@needs_one_arithmetic
def gram_task(source: FactorSource, scale: Scale, groups: list[int]) -> list[Totals]:
    """Return the words of F'F, its lower half by strips, of some runs of rows, and diag(K - Q) of each run.

    Only one task computes a run's diagonal, so summing leaves it unchanged, and its bits are sent as integers.
    """
    context, totals = source.context, Totals()
    with whole_process():
        rows, diagonal = _RowsOfF(source, differences(context), source.triangle()), np.empty(context.n)
        strips, refused = _strips(len(source.landmark_inputs)), np.zeros(1, np.int64)
        for number in groups:
            group = _row_groups(context)[number]
            gram = rows.gram(group, diagonal)
            for strip, (where, until) in enumerate(strips):
                values = np.ascontiguousarray(gram[where, until]).reshape(-1, 1)
                words = totals.setdefault(strip, np.zeros(len(values), np.int64))
                refused += scale.add(words.reshape(1, -1, 1), values)
            totals["diagonal", number] = diagonal[group[0][1] : group[-1][2]].view(np.int64).copy()
    return [{**totals, COUNTS: refused}]


def _strips(rank: int) -> list[tuple[slice, slice]]:
    """Return the strips of the lower half of a square: rows, and the columns up to them."""
    edges = [*range(0, rank, STRIP_ROWS), rank]
    return [(slice(start, stop), slice(0, stop)) for start, stop in itertools.pairwise(edges)]


def _remainder(source: FactorSource) -> Remainder | None:
    """Rebuild the remainder of a stored factor, with the bits of the first build."""
    evaluator, pieces = differences(source.context), list(_pieces(source.context))
    rows = _RowsOfF(source, evaluator, LandmarkTriangle.of(evaluator, source.landmark_inputs))
    diagonal = np.empty(source.context.n)

    def fill(index: int) -> None:
        features, start, stop = pieces[index]
        rows.of(features(), slice(start, stop), diagonal)

    in_parallel(fill, len(pieces), process_threads())
    return rows.remainder


def residual_slack(weights: Interpolation, f: NDArray[Any], prior: FloatArray, errors: FloatArray) -> FloatArray:
    """Return a bound (r,) on k(x, x) - k'(LL')^-1 k minus the computed k(x, x) - |f|^2, for f = L^-1 k as computed.

    For any w, k'(LL')^-1 k >= 2 w'k - |L'w|^2. Let w = L^-T f as computed, both triangular solves within gamma_R |L|
    (Higham 2002, theorem 8.5), and S = sum |w_j| |L_j| over the rows of L. Then the right side is at least |f|^2 - 6
    gamma S |f| - (gamma S)^2 - 2 |w|'|dk|, dk the roundings of k. S is a sum of interpolation weights; a bound by the
    norm of L^-1 would be larger by orders of magnitude.
    """
    rank = len(f)
    size, length, scale = (rank + 2) * UNIT * weights.size, np.linalg.norm(f, axis=0), np.sqrt(prior)
    slack = 6.0 * size * length + size**2 + (rank + 4) * UNIT * length**2
    slack += 2.0 * EPS * scale * (errors * weights.size + weights.errors)
    slack += (2.0 * EPS * errors + UNIT) * prior
    return np.asarray(EVALUATION * slack)


def _pieces(context: BlockContext, precision: Precision = "double", length: int | None = None) -> Iterator[Piece]:
    longest = length or PIECE_ROWS
    for block in range(context.n_blocks):
        first, last = context.bounds(block)
        for start in range(first, last, longest):
            stop = min(start + longest, last)

            def rows(block: int = block, start: int = start - first, stop: int = stop - first) -> Features:
                return context.block_features(block, precision).slice(start, stop)

            yield rows, start, stop


def _row_groups(context: BlockContext) -> list[list[Piece]]:
    """Return groups of pieces whose rows of F are held at once."""
    return split_evenly(list(_pieces(context)), -(-context.n // ROWS_AT_ONCE))
