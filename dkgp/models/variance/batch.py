"""Variances of one batch of test samples: all their linear systems Kbar v = k_x at once.

The factor gives the start v = M^-1 k_x. Block conjugate gradients, preconditioned by M, continue for the samples that
the start does not certify. The residuals of all samples of the batch together span the next directions P, and one
product Kbar P serves all samples (kin40k with gamma = 0.12, n = 30,000, rank 4,000, 250 samples: gaps below 0.6 % in
three passes). Samples that have met the gap leave the batch. All arithmetic is float64, so the recursion's residual
equals the true residual up to a rounding error, which the bounds include. The bounds are on the variance of the
function. The noise is added last, so that a much smaller function variance keeps its digits.

`search` first computes approximate solutions by block conjugate gradients in float32. It proves nothing: the bounds of
`dkgp.models.variance.bounds` hold for any v and are evaluated in float64. The search's products and vectors are
float32, twice as fast and half as large. A product evaluates each kernel entry once for `COLUMNS_AT_ONCE` columns. The
first directions are local: each test sample's solution on its nearest training samples alone, by a small Cholesky
factor. Neighbouring test samples share the factor of the union of their nearest samples where that takes fewer
operations; such solutions are at least as good. The next directions are preconditioned residuals, conjugate to the
previous ones. All samples share the directions. A sample leaves the search once float64 is likely to certify it to the
gap, and takes its last step without a product. The search ends when all samples have left, or when float32 makes no
more progress.

References
----------
L. Bo, C. Sminchisescu, Greedy block coordinate descent for large scale Gaussian process regression (2008), section 2.3.
D. P. O'Leary, The block conjugate gradient algorithm and related methods (1980).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, RoundTasks, split_evenly
from dkgp.cluster.threads import in_parallel, whole_process
from dkgp.errors import NumericalError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.rounding import EPS, EVALUATION, outward
from dkgp.models.variance.bounds import (
    Queries,
    best_weights,
    factor_interval,
    loses_digits,
    plain_weights,
    residual_bound,
)
from dkgp.models.variance.nystrom import PIECE_ROWS, NystromFactor
from dkgp.models.variance.row_scales import ProofContext
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import lapack
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.full_products import FullProducts
from dkgp.operators.vecchia.halos import kd_order
from dkgp.operators.vecchia.leaves import gathered, lower_half
from dkgp.solvers.conjugate.gradient import BlockDirections, add_product, row_pieces
from dkgp.solvers.conjugate.preconditioner import COLUMNS_AT_ONCE, Preconditioner

# Residuals, solutions, images and the preconditioner's result; directions and the preconditioner's input in float32.
ARRAYS_PER_SAMPLE = 5
# A sample also leaves if its bound is mostly rounding and has not halved in this many passes.
STALLED_PASSES = 6
STALLED_FACTOR = 0.5
# The proof is attempted where the expected width is within this factor of the target width.
PROMISING = 1.25
NARROW_GAP, VALUE_SHARE = 0.01, 0.2
# Rule (indices, lower ends, upper ends) that marks the samples of a batch that are done regardless of their gap.
Enough = Callable[[IndexArray, FloatArray, FloatArray], NDArray[np.bool_]]
# A batch with an `Enough` rule may be large. The factor is tried on `AT_ONCE` samples at a time. `FIRST_TOGETHER` is
# the number of samples that share the first product over those that share later ones, which also hold directions.
AT_ONCE, FIRST_TOGETHER = 1024, 1.5
# Fewer samples are cut into `PARTS` groups, one per thread, of at least `LEAST_AT_ONCE` samples. Each group evaluates
# the landmarks' columns again.
PARTS, LEAST_AT_ONCE = 4, 128
# Least number of parts in which samples continue after the first float64 product; usually few samples continue.
TAIL_PARTS = 5


@dataclass
class ProductTally:
    """Number and seconds of the products with the whole kernel matrix so far; no decision depends on them."""

    # Columns that Kbar was multiplied by, in float32 and in float64.
    single_columns: int = 0
    double_columns: int = 0
    seconds: float = 0.0  # duration of the products
    settled: int = 0  # samples whose intervals stayed wider than the gap because the `Enough` rule ended their work

    def add(self, other: ProductTally) -> None:
        """Add the figures of another tally."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def batch_bytes(n: int, samples: int) -> int:
    """Return the bytes that a batch takes while it is solved."""
    return 8 * n * samples * ARRAYS_PER_SAMPLE


@dataclass(frozen=True)
class BatchVariance:
    """Proven bounds for the samples of a batch, on the standardised scale."""

    # (t,) float64: lower <= exact variance <= upper.
    lower: FloatArray
    upper: FloatArray
    passes: FloatArray  # (t,) float64: products with the whole kernel matrix that each sample took part in
    tally: ProductTally = field(default_factory=ProductTally, compare=False)  # those products


def relative_gap(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Return (upper - lower) / upper; zero where both are zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        gap: FloatArray = np.where(upper > lower, (upper - lower) / upper, 0.0)
    return gap


def value_error_goal(gap: float) -> float:
    """Return the target for the relative error of the upper end of the interval, which is the value reported.

    The distance of the upper end to the exact variance is usually much less than the interval's width. For gaps of up
    to 1 %, the target is a fifth of the gap.
    """
    return VALUE_SHARE * gap if gap <= NARROW_GAP else gap


@dataclass(frozen=True)
class BatchOptions:
    """Stopping criteria of a batch's samples, and how the samples share the work."""

    gap: float  # relative gap at which a sample is done; see `value_error_goal` for narrow ones
    max_passes: float  # most products with the whole kernel matrix; 0 uses the factor alone
    latent: bool = False  # bounds on the function's variance (the noise left out) and gaps relative to it
    factor_first: bool = True  # try the factor's own bounds first; they cost little and suffice on smooth problems
    together: int | None = None  # most samples that share a block of directions, to limit memory; all by default
    # Threads of this process for a pass, and threads for the factor's bounds, which are the same number by default.
    # Results depend on neither.
    threads: int = 1
    factor_threads: int | None = None
    in_turn: bool = False  # solve one batch at a time in a process: samples that the factor does not certify wait


class VarianceBounds:
    """Collects the best bounds so far on the function's variance; gaps are relative to the variance plus `noise`."""

    def __init__(self, highest: FloatArray, noise: float, gap: float, enough: Enough | None = None) -> None:
        self._noise, self._enough = noise, enough
        self._gap, self._goal = gap, value_error_goal(gap)
        self.lower, self.upper = np.zeros(highest.shape), highest.copy()
        self._error = self.upper - self.lower

    def tighten(self, which: IndexArray, lower: FloatArray, upper: FloatArray, error: FloatArray) -> None:
        """Merge proven bounds; `error` is the expected distance of `upper` above the exact variance.

        Raises
        ------
        NumericalError
            The bounds contradict bounds that were proven before.
        """
        # NaN proves nothing, and fmax and fmin ignore it.
        self.lower[which] = np.fmax(self.lower[which], lower)
        self.upper[which] = np.fmin(self.upper[which], upper)
        width = self.upper[which] - self.lower[which]
        if (width < 0.0).any():
            raise NumericalError(
                f"bounds on {int((width < 0.0).sum())} of {len(width)} variances contradict each other, by up to "
                f"{float(-width.min()):.3g}: the kernel is not positive definite. A user's function is only checked on "
                "a sample of the inputs; use one that is known to be positive definite"
            )
        self._error[which] = np.fmin(np.fmin(self._error[which], error), width)

    def unfinished(self, among: IndexArray | None = None) -> IndexArray:
        """Return the indices of the samples that miss the gap and that the `enough` rule does not end."""
        which = np.arange(len(self.upper)) if among is None else among
        imprecise = self._error[which] > self._goal * (self.upper[which] + self._noise)
        wide = which[(self.gaps(which) > self._gap) | imprecise]
        if self._enough is None or not len(wide):
            return wide
        return wide[~self._enough(wide, self.lower[wide], self.upper[wide])]

    def allowance(self, which: IndexArray) -> FloatArray:
        """Return the interval widths at which these samples would meet the gap."""
        return np.asarray(self._gap * (self.upper[which] + self._noise))

    def gaps(self, which: IndexArray) -> FloatArray:
        """Return the relative widths of the intervals, with the noise in the variance unless it is zero."""
        return relative_gap(self.lower[which] + self._noise, self.upper[which] + self._noise)

    def reported(self, passes: FloatArray, tally: ProductTally) -> BatchVariance:
        """Return the bounds, plus the noise unless it is zero, with their passes and their tally."""
        if self._noise == 0.0:
            return BatchVariance(self.lower, self.upper, passes, tally)
        lower, upper = outward(self.lower + self._noise, self.upper + self._noise)
        return BatchVariance(np.maximum(lower, self._noise), upper, passes, tally)


def solve_batch(
    factor: NystromFactor,
    inputs: FloatArray,
    options: BatchOptions,
    preconditioner: Preconditioner | None = None,
    enough: Enough | None = None,
    executor: BlockExecutor | None = None,
) -> BatchVariance:
    """Bound the variances at a batch of standardised test inputs (t, d).

    A preconditioner that is better than the factor's own M adds a search in float32 first. The `enough` rule is
    evaluated for all samples of the batch and ends the work on those that it marks. The executor's tasks compute the
    products, by default in this process. The results' bits do not depend on the executor.
    """
    test, threads, max_passes = Queries.of(factor, inputs), options.threads, options.max_passes
    work = BatchWork(factor, executor or HereExecutor(threads), threads)
    noise = 0.0 if options.latent else factor.noise_variance
    bounds = VarianceBounds(test.highest, noise, options.gap, enough)
    passes = np.zeros(len(inputs))
    if options.factor_first or max_passes < 1:
        pieces = 1 if enough is None else max(-(-len(inputs) // AT_ONCE), min(PARTS, len(inputs) // LEAST_AT_ONCE), 1)
        groups = np.array_split(np.arange(len(inputs)), pieces)
        few = options.factor_threads or threads
        in_parallel(lambda number: _by_the_factor(factor, test, bounds, groups[number]), pieces, few)
    if max_passes >= 1 and len(bounds.unfinished()):
        with whole_process() if options.in_turn else nullcontext():
            _solve(work, inputs, test, options, bounds, passes, preconditioner, enough)
    return bounds.reported(passes, work.tally)


def _solve(
    work: BatchWork,
    inputs: FloatArray,
    test: Queries,
    options: BatchOptions,
    bounds: VarianceBounds,
    passes: FloatArray,
    preconditioner: Preconditioner | None,
    enough: Enough | None,
) -> None:
    """Tighten the bounds of the unfinished samples by conjugate gradients; count their `passes`."""
    todo, max_passes = bounds.unfinished(), options.max_passes
    factor = work.factor
    preconditioned = preconditioner or factor.preconditioner(work.executor)
    if enough is not None and preconditioner is None and max_passes >= 2:
        # One product finishes most samples; the others continue together.
        first = None if options.together is None else int(FIRST_TOGETHER * options.together)
        for group in _cut(todo, first):
            _Batch(work, test, bounds, passes, group, preconditioned).run(1)
        todo, max_passes = bounds.unfinished(), max_passes - 1
    for group in _cut(todo, options.together):
        batch = _Batch(work, test, bounds, passes, group, preconditioned)
        if preconditioner is None or max_passes < 2:
            batch.run(max_passes)
            continue
        target = Wanted(options.gap, 0.0 if options.latent else factor.noise_variance)
        limit = math.floor(max_passes) - 1  # the last product is in float64
        v, taken = search(factor, inputs[group], test.take(group), preconditioner, target, limit, work)
        passes[group] += taken
        start = [v]
        del v
        batch.run(max_passes - taken.max(), start, TAIL_PARTS)


def _by_the_factor(factor: NystromFactor, test: Queries, bounds: VarianceBounds, which: IndexArray) -> None:
    """Tighten bounds by the factor alone; use the best z for samples that miss the gap because of z's rounding."""
    for weights in (best_weights,) if loses_digits(factor) else (plain_weights, best_weights):
        some = test if len(which) == len(test.prior) else test.take(which)
        interval = factor_interval(factor, some, weights(factor, some))
        bounds.tighten(which, interval.lower, interval.upper, interval.excess)
        which = which[interval.rounded & np.isin(which, bounds.unfinished(which))]
        if not len(which):
            return


def _cut(indices: IndexArray, most: int | None) -> list[IndexArray]:
    """Cut the indices into groups of nearly equal size, with `most` indices at most."""
    if not len(indices):
        return []
    return np.array_split(indices, -(-len(indices) // (most or len(indices))))


class _Batch:
    """Samples of a batch whose systems are solved together in float64, from any start."""

    def __init__(
        self,
        work: BatchWork,
        test: Queries,
        bounds: VarianceBounds,
        passes: FloatArray,
        todo: IndexArray,
        preconditioner: Preconditioner,
    ) -> None:
        self._work, self._factor, self._threads = work, work.factor, work.threads
        self._bounds, self._passes, self._preconditioner = bounds, passes, preconditioner
        self._test, self._todo = test.take(todo), todo
        self._best = np.full(len(todo), np.inf)
        self._age = np.zeros(len(todo), dtype=np.intp)
        self._upper, self._expected = np.full(len(todo), np.nan), np.full(len(todo), np.nan)

    def run(self, max_passes: float, start: list[NDArray[Any]] | None = None, parts: int = 1) -> None:
        """Iterate until all samples are done.

        The list `start` holds one array (n, t), which is removed from it. Without `start`, v = M^-1 k_x. A float32
        start enters the proof with its values converted exactly to float64. After the first product the unfinished
        samples continue together, in `parts` parts, so that they take no more memory than the product did.
        """
        factor = self._factor
        r, pieces = np.empty((factor.n, len(self._todo))), factor.pieces()

        def fill(index: int) -> None:
            rows, where = pieces[index]
            r[where] = factor.evaluator.tile(rows, self._test.features)

        in_parallel(fill, len(pieces), self._threads)
        v: NDArray[Any] = self._preconditioner.apply(r) if start is None else start.pop()
        along = column_dots(v, r, self._threads)  # v'k_x
        absolute = _lengths(v, factor.weights, self._threads)
        self._work.add_product(r, v, "double", -1.0)
        # Bound on the error of entry i of r = k_x - Kbar v, over w_i, for this v; times `share`, it bounds `along`'s.
        rounding = factor.unit * factor.largest * (self._test.share + absolute)
        self._passes[self._todo] += 1
        keep = self._certify(v, r, along, absolute, rounding, last=max_passes < 2)
        if not len(keep):
            return
        groups = _cut(keep, -(-v.shape[1] // parts))
        for number, part in enumerate(groups):
            rest = copy.copy(self)
            rest._keep(part)
            pair = [v, r] if len(part) == v.shape[1] else [v[:, part], r[:, part]]
            if number == len(groups) - 1:
                del v, r
            pair[0] = pair[0].astype(np.float64, copy=False)
            rest._go_on(max_passes, pair, along[part], rounding[part])

    def _keep(self, keep: IndexArray) -> None:
        self._test, self._todo = self._test.take(keep), self._todo[keep]
        self._best, self._age = self._best[keep], self._age[keep]
        self._upper, self._expected = self._upper[keep], self._expected[keep]

    def _go_on(self, max_passes: float, pair: list[FloatArray], along: FloatArray, rounding: FloatArray) -> None:
        """Run block conjugate gradients after the first product, from v with residual r; empty `pair`, [v, r]."""
        r, v = pair.pop(), pair.pop()
        factor, done = self._factor, 1
        directions = BlockDirections(np.zeros((0, 0), np.float32), threads=self._threads)
        while True:
            step = directions.advance(self._preconditioner.apply(r), r, self._product)
            if not len(step):
                return
            add_product(v, directions.vectors, step, self._threads)
            add_product(r, directions.images, -step, self._threads)
            along += np.einsum("jt,jt->t", self._against_test(directions.vectors), step)
            # Roundings of an entry of (Kbar P) a: the product, a sum of t terms, the sum with r; then that of v.
            spread = _lengths(directions.vectors, factor.weights, self._threads) @ np.abs(step)
            absolute = _lengths(v, factor.weights, self._threads)
            unit = factor.unit + (len(step) + 4) * EPS
            rounding += unit * factor.largest * (self._test.share + absolute + 2.0 * spread)
            done += 1
            self._passes[self._todo] += 1
            keep = self._certify(v, r, along, absolute, rounding, last=done + 1 > max_passes)
            if not len(keep):
                return
            if len(keep) < v.shape[1]:
                v = v[:, keep]  # one after the other, so that at most one of the two arrays exists twice at a time
                r = r[:, keep]
                along, rounding = along[keep], rounding[keep]
                self._keep(keep)

    def _certify(
        self,
        v: FloatArray,
        r: FloatArray,
        along: FloatArray,
        absolute: FloatArray,
        rounding: FloatArray,
        *,
        last: bool,
    ) -> IndexArray:
        """Tighten the bounds; return the positions of the samples that miss the gap and may still meet it."""
        factor, size = self._factor, self._test.share + absolute
        raw = self._test.prior - along - column_dots(v, r, self._threads)
        # Errors of r and of `along`, then the roundings of the sum v'r, of k(x, x) and of the differences.
        slack = EVALUATION * (rounding + 2.0 * factor.unit * factor.largest * size) * size
        # Expected width of the proof without roundings: the proof itself is worth its time only near the end.
        width, z = self._work.expected_widths(r)
        expected = width + 2.0 * slack
        # The ratio of actual to expected decrease of the upper end in the last pass predicts the ratio of this pass.
        with np.errstate(invalid="ignore"):
            share = np.clip(np.nan_to_num((self._upper - raw) / self._expected, nan=1.0), 0.0, 1.0)
        error = share * expected
        self._bounds.tighten(self._todo, np.zeros_like(raw), raw + slack, error)
        self._upper, self._expected = raw, expected
        shorter = expected < STALLED_FACTOR * self._best
        self._best = np.where(shorter, expected, self._best)
        self._age = np.where(shorter, 0, self._age + 1)
        ending = (self._age >= STALLED_PASSES) & (4.0 * slack >= expected)  # mostly rounding, not a plateau
        worth = np.flatnonzero(last | ending | (expected <= PROMISING * self._bounds.allowance(self._todo)))
        if len(worth):
            width = residual_bound(factor, r, z[:, worth], EVALUATION * rounding[worth], worth, self._work.executor)
            self._bounds.tighten(self._todo[worth], (raw - slack)[worth] - width, (raw + slack)[worth], error[worth])
        unmet = np.isin(self._todo, self._bounds.unfinished(self._todo))
        return np.flatnonzero(unmet & ~ending & (not last))

    def _product(self, vectors: NDArray[Any]) -> FloatArray:
        """Return Kbar V for V (n, k), in float64: one pass over the kernel matrix."""
        images = np.zeros(vectors.shape)
        self._work.add_product(images, vectors, "double")
        return images

    def _against_test(self, vectors: NDArray[Any]) -> FloatArray:
        """Return P' k_x for each sample: (columns of P, t)."""
        total = np.zeros((vectors.shape[1], len(self._todo)))
        for rows, where in self._factor.pieces():
            total += vectors[where].T.astype(np.float64) @ self._factor.evaluator.tile(rows, self._test.features)
        return total


def _lengths(tall: NDArray[Any], weights: FloatArray, threads: int) -> FloatArray:
    """Return the weighted sums of absolute values of the columns."""
    pieces = list(row_pieces(len(tall)))
    parts = np.empty((len(pieces), tall.shape[1]))

    def add(index: int) -> None:
        rows = pieces[index]
        parts[index] = weights[rows] @ np.abs(tall[rows])

    in_parallel(add, len(pieces), threads)
    return np.asarray(parts.sum(axis=0))


SingleArray = NDArray[np.float32]

# Tasks of local solutions for each thread.
LOCAL_TASKS = 4
# Vectors that are preconditioned at once: their memory in float64 should not grow with n.
MOST_VECTORS, LEAST_VECTORS, NUMBERS_AT_ONCE = 64, 8, 2_000_000
# Local solutions that share no factor take a tenth of the operations of a product: s^3 / 3 = n^2 / 5.
LOCAL_SHARE = 0.6
# Test samples whose nearest training samples are chosen at once; largest union of these, over those of one test sample;
# operations that take as long as a kernel entry.
NEAREST_AT_ONCE, LARGEST_UNION, ENTRY_OPERATIONS = 16, 4, 16.0
# Samples leave once this share of them is expected to meet the gap: with fewer samples, directions cost more for each.
LEAVING_SHARE = 0.2
# Factor by which a step is assumed to narrow a width before a step has been measured; its least value; and the factor
# by which the next step is worse than the last. A sample that leaves too early takes float64 kernel entries on its own.
FIRST_FACTOR, LEAST_FACTOR, SLOWING = 0.4, 0.3, 1.4
# A step's length along M^-1 r before a step has been measured, and its least value; Kbar rarely exceeds 2 M.
FIRST_LENGTH, SHORTEST = 0.6, 0.3
# The search stops unless a quarter of the samples' widths halve in this many products: float32 makes no more progress.
STALLED_PRODUCTS, SEARCH_STALLED, STALLED_SHARE = 6, 0.5, 0.25
# Least norm of a residual in float32, relative to the norm of k_x.
SINGLE_FLOOR = 8.0 * float(np.finfo(np.float32).eps)


def product_bytes(n: int, columns: int) -> int:
    """Return a product's bytes besides its vectors and images: a copy of some columns, and two words per number."""
    return 24 * n * min(columns, COLUMNS_AT_ONCE)


class BatchWork:
    """Work of a batch: an executor's tasks compute products and solutions, threads of this process the rest.

    The results' bits depend neither on the executor nor on the number of threads.

    Parameters
    ----------
    factor : NystromFactor
    executor : BlockExecutor
        `HereExecutor` for a batch that one worker solves, or the run's executor for a batch that all workers share.
    threads : int
        Threads of this process.
    tally : ProductTally
        Counts the products.
    """

    def __init__(
        self, factor: NystromFactor, executor: BlockExecutor, threads: int = 1, tally: ProductTally | None = None
    ) -> None:
        self.factor, self.executor, self.threads = factor, executor, threads
        self.tally = ProductTally() if tally is None else tally
        self._products = {
            precision: FullProducts(context, executor, executor.start_total, lambda: factor.prior, keeps=False)
            for precision, context in (("single", factor.context), ("double", ProofContext.of(factor.context)))
        }

    def add_product(
        self, images: NDArray[Any], vectors: NDArray[Any], precision: Precision, scale: float = 1.0
    ) -> None:
        """Add `scale` Kbar V in place to the images (n, k), whose dtype is that of the precision."""
        started, count = time.perf_counter(), vectors.shape[1]
        for columns in np.array_split(np.arange(count), -(-count // COLUMNS_AT_ONCE)) if count else ():
            where = slice(columns[0], columns[-1] + 1)
            some = np.array(vectors[:, where], dtype=images.dtype, order="C")
            some *= images.dtype.type(scale)
            self._products[precision].add(some, precision, images[:, where])
            # The noise's part is added last, so that it is rounded once: it may be far larger than the other terms.
            some *= images.dtype.type(self.factor.noise_variance)
            images[:, where] += some
        self.tally.seconds += time.perf_counter() - started
        if precision == "single":
            self.tally.single_columns += count
        else:
            self.tally.double_columns += count

    def expected_widths(self, residual: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return r' (Q + s2 I)^-1 r, the width of the proof without roundings, and the proof's z: (t,), (R, t).

        With p = F'r and z = (F'F + s2 I)^-1 p, the width is (r'r - p'z) / s2.
        """
        projected, z = self.factor.preconditioner(self.executor).projected(residual)
        square = column_dots(residual, residual, self.threads) - np.einsum("rt,rt->t", projected, z)
        return np.abs(square) / self.factor.noise_variance, z


@dataclass(frozen=True)
class Wanted:
    """Widths of intervals at which samples are done."""

    gap: float  # relative to the upper end plus the noise
    noise: float  # noise variance that is added to the function's variance; 0 for latent variances

    def widths(self, upper: FloatArray) -> FloatArray:
        """Return the target widths of samples whose function variance is at most `upper`."""
        return np.asarray(self.gap * (np.maximum(upper, 0.0) + self.noise))


def vectors_at_once(n: int) -> int:
    """Return the number of vectors of n numbers that are preconditioned at once."""
    return max(LEAST_VECTORS, min(MOST_VECTORS, NUMBERS_AT_ONCE // n))


def local_samples(n: int) -> int:
    """Return the number of training samples of a local solution."""
    return max(1, min(n, int((LOCAL_SHARE * n * n) ** (1.0 / 3.0))))


def search(
    factor: NystromFactor,
    inputs: FloatArray,
    test: Queries,
    preconditioner: Preconditioner,
    target: Wanted,
    limit: int,
    work: BatchWork,
) -> tuple[SingleArray, FloatArray]:
    """Return v near Kbar^-1 k_x for test samples: (n, t), and the number of products each took part in: (t,).

    Parameters
    ----------
    factor : NystromFactor
        Factor that the bounds will be computed with.
    test : Queries
        The test samples of `inputs`, prepared.
    limit : int
        Largest number of products.
    """
    single, threads = _Single(work), work.threads
    r = single.columns(inputs)
    solutions = v = np.zeros_like(r)
    todo = np.arange(r.shape[1])
    floor = (SINGLE_FLOOR * np.sqrt(column_dots(r, r, threads))) ** 2 / factor.noise_variance
    directions = BlockDirections(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), threads)
    z, along = single.local(r, inputs), np.zeros(r.shape[1])
    pace, products, taken = _Pace(), 0, np.zeros(r.shape[1])
    explained = np.zeros(r.shape[1])
    while products < limit:
        step = directions.advance(z, r, single.product)
        if not len(step) or not np.isfinite(step).all():
            break
        add_product(v, directions.vectors, step, threads)
        add_product(r, directions.images, -step, threads)
        products += 1
        taken[todo] += 1
        before, explained = explained, single.explained(v, r, inputs[todo])
        pace.note_step(explained - before, along)
        widths = work.expected_widths(r)[0]
        goal = np.maximum(target.widths(test.prior[todo] - explained), floor[todo])
        within = pace.within(widths, goal)
        if pace.stalled:
            break
        last = products >= limit or bool(within.all())
        del z
        z = _preconditioned(preconditioner, r)
        along = column_dots(z, r, threads)
        if not last and within.mean() < LEAVING_SHARE:
            continue
        # The last step goes along the next directions without their product; its length is that of the previous step.
        directions.conjugate(z)
        leaving = np.ones_like(within) if last else within
        for rows in row_pieces(len(r)):
            solutions[rows, todo[leaving]] = v[rows, leaving] + pace.length * z[rows, leaving]
        if last:
            todo = todo[:0]
            break
        rest = ~within
        directions = BlockDirections(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), threads)
        todo, along, explained = todo[rest], along[rest], explained[rest]
        v = v[:, rest]  # one after the other, so that at most one of the arrays exists twice at a time
        r = r[:, rest]
        z = z[:, rest]
        pace.keep(rest)
    if v is not solutions and len(todo):
        solutions[:, todo] = v
    solutions[~np.isfinite(solutions)] = 0.0
    return solutions, taken


class _Pace:
    """Predicts the next step of a search from the samples' widths."""

    def __init__(self) -> None:
        self._best: list[FloatArray] = []
        self._factor = FIRST_FACTOR
        self.length = np.float32(FIRST_LENGTH)

    def note_step(self, gained: FloatArray, along: FloatArray) -> None:
        """Record a step's decrease of the variances and r'M^-1 r before it; their ratio is its length along M^-1 r."""
        total = float(along.sum())
        if total > 0.0:
            self.length = np.float32(np.clip(float(gained.sum()) / total, SHORTEST, 1.0))

    def within(self, widths: FloatArray, goal: FloatArray) -> NDArray[np.bool_]:
        """Return True for the samples whose widths one more step is likely to bring within their goals."""
        if self._best:
            ratio = np.median(widths / np.maximum(self._best[-1], np.finfo(np.float64).tiny))
            self._factor = float(np.clip(SLOWING * ratio, LEAST_FACTOR, 1.0))
        self._best.append(np.minimum(self._best[-1], widths) if self._best else widths)
        return np.asarray(self._factor * widths <= goal)

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Continue with some of the samples."""
        self._best = [widths[which] for widths in self._best]

    @property
    def stalled(self) -> bool:
        """True if few widths have halved in the last `STALLED_PRODUCTS` products, so that more do not help."""
        if len(self._best) <= STALLED_PRODUCTS:
            return False
        then, now = self._best[-1 - STALLED_PRODUCTS], self._best[-1]
        return bool(np.mean(now < SEARCH_STALLED * then) < STALLED_SHARE)


def _preconditioned(preconditioner: Preconditioner, residual: SingleArray) -> SingleArray:
    count = residual.shape[1]
    # In float32 twice as many vectors take the same memory.
    groups = np.array_split(np.arange(count), -(-count // (2 * vectors_at_once(len(residual)))))
    z = np.empty(residual.shape, np.float32)
    for group in groups:
        columns = slice(group[0], group[-1] + 1)
        z[:, columns] = preconditioner.apply(residual[:, columns])
    return z


def column_dots(left: NDArray[Any], right: NDArray[Any], threads: int = 1) -> FloatArray:
    """Return the columns' inner products in float64: (t,). Runs are as short as `NystromFactor.unit` assumes."""
    starts = range(0, len(left), PIECE_ROWS)
    parts = np.empty((len(starts), left.shape[1]))

    def add(index: int) -> None:
        rows = slice(starts[index], starts[index] + PIECE_ROWS)
        parts[index] = np.einsum("it,it->t", left[rows], right[rows], dtype=np.float64)

    in_parallel(add, len(starts), threads)
    return np.asarray(parts.sum(axis=0))


class _Single:
    """Kbar in float32."""

    def __init__(self, work: BatchWork) -> None:
        self._factor, self._work, self._threads = work.factor, work, work.threads
        self._evaluator = self._factor.context.evaluator("single")
        self._rows = self._factor.pieces("single", PIECE_ROWS)

    def columns(self, inputs: FloatArray) -> SingleArray:
        """Return k_x of test samples: (n, t)."""
        test = self._evaluator.prepare(inputs)
        out = np.empty((self._factor.n, test.n), np.float32)

        def fill(index: int) -> None:
            rows, where = self._rows[index]
            out[where] = self._evaluator.tile(rows, test)

        in_parallel(fill, len(self._rows), self._threads)
        return out

    def product(self, vectors: SingleArray) -> SingleArray:
        """Return Kbar V for V (n, k)."""
        images = np.zeros(vectors.shape, np.float32)
        self._work.add_product(images, vectors, "single")
        return images

    def explained(self, v: SingleArray, r: SingleArray, inputs: FloatArray) -> FloatArray:
        """Return v'(k_x + r), the decrease of the variance by an approximate solution: (t,)."""
        test = self._evaluator.prepare(inputs)
        parts = np.empty((len(self._rows), test.n))

        def add(index: int) -> None:
            rows, where = self._rows[index]
            parts[index] = column_dots(v[where], self._evaluator.tile(rows, test) + r[where])

        in_parallel(add, len(self._rows), self._threads)
        return np.asarray(parts.sum(axis=0))

    def local(self, columns: SingleArray, inputs: FloatArray) -> SingleArray:
        """Return solutions on nearby training samples alone for the columns k_x (n, t) of test samples: (n, t)."""
        factor, executor = self._factor, self._work.executor
        solutions = np.zeros(columns.shape, np.float32)
        nearest = nearest_samples(columns, factor.prior, self._threads)
        groups = joint_groups(nearest, factor.n, self._order(inputs))
        pieces = [(samples, inputs[tests]) for tests, samples in groups]
        tasks = split_evenly(pieces, LOCAL_TASKS * executor.parallelism)
        pending = executor.start(RoundTasks(local_task, (factor.context, factor.noise_variance), tasks, name="klocal"))
        for (tests, samples), solution in zip(groups, pending.result(), strict=True):
            solutions[np.ix_(samples, tests)] = solution
        return solutions

    def _order(self, inputs: FloatArray) -> IndexArray:
        """Return the test samples in an order by place, by the kernel's scaled features."""
        test = self._evaluator.prepare(inputs)
        points = np.ascontiguousarray(test.values[:, : test.n].T)
        return kd_order(points, 1)[0].astype(np.intp) if points.shape[1] else np.arange(test.n)


def nearest_samples(columns: SingleArray, prior: FloatArray, threads: int = 1) -> NDArray[np.int32]:
    """Return each test sample's nearest training samples, (t, `local_samples`), from the columns k_x (n, t).

    They have the largest k(x, x_i)^2 / k(x_i, x_i).
    """
    n, tests = columns.shape
    count, scale = local_samples(n), prior.astype(np.float32)
    nearest = np.empty((tests, count), np.int32)

    def choose(piece: int) -> None:
        rows = slice(piece * NEAREST_AT_ONCE, min((piece + 1) * NEAREST_AT_ONCE, tests))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            likeness = np.nan_to_num(np.square(columns[:, rows].T, order="C") / scale)
        nearest[rows] = np.argpartition(likeness, n - count)[:, n - count :]

    in_parallel(choose, -(-tests // NEAREST_AT_ONCE), threads)
    return nearest


def joint_groups(nearest: NDArray[np.int32], n: int, order: IndexArray) -> list[tuple[IndexArray, IndexArray]]:
    """Return groups of test samples with the union of their nearest training samples, both ascending.

    Groups are runs of `order` from repeated halving. Two halves are joined if one factor for both takes fewer
    operations. No union has more than `LARGEST_UNION` times as many samples as one test sample has.
    """
    largest = LARGEST_UNION * nearest.shape[1]

    def grouped(start: int, stop: int) -> tuple[float, list[tuple[IndexArray, IndexArray]], NDArray[np.bool_] | None]:
        if stop - start == 1:
            mask = np.zeros(n, np.bool_)
            mask[nearest[order[start]]] = True
            cost, parts, joint = math.inf, [], mask  # a sample alone is a group
        else:
            middle = (start + stop) // 2
            (left, some, first), (right, others, second) = grouped(start, middle), grouped(middle, stop)
            cost, parts = left + right, some + others
            if first is None or second is None or np.count_nonzero(first | second) > largest:
                return cost, parts, None
            joint = first | second
        count = int(np.count_nonzero(joint))
        together = count**2 * (count / 3.0 + 2.0 * (stop - start) + ENTRY_OPERATIONS)
        if together <= cost:
            cost, parts = together, [(np.sort(order[start:stop]), np.flatnonzero(joint))]
        return cost, parts, joint

    return grouped(0, len(order))[1] if len(order) else []


@needs_one_arithmetic
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def local_task(
    context: BlockContext, noise_variance: float, pieces: list[tuple[IndexArray, FloatArray]]
) -> list[SingleArray]:
    """Return the solutions (m, g) of the systems of m training samples alone for g test samples, for each piece."""
    evaluator, results = context.evaluator("single"), []
    for samples, inputs in pieces:
        rows = gathered(context, samples.astype(np.int32), "single")
        matrix, diagonal = lower_half(evaluator, rows)
        diagonal += np.float32(noise_variance)
        right = np.asfortranarray(evaluator.tile(rows, evaluator.prepare(inputs)))
        count, stride = len(samples), matrix.shape[1]
        # If the matrix is indefinite in float32, the test samples use only the directions of others.
        trouble = lapack("potrf", b"U", count, matrix, stride) or lapack(
            "potrs", b"U", count, len(inputs), matrix, stride, right, count
        )
        solved = not trouble and bool(np.isfinite(right).all())
        results.append(right if solved else np.zeros_like(right))
    return results
