"""Variances of one batch of test samples: all their linear systems Kbar v = k_x at once.

The factor gives v = M^-1 k_x to start from. Where that does not certify a sample, block conjugate gradients,
preconditioned by M, go on: the residuals of all samples of the batch together span the next directions P, and one
product Kbar P serves all of them (kin40k with gamma = 0.12, n = 30,000, rank 4,000, 250 samples: gaps below 0.6 % in
three passes). Samples that have met the gap leave. Everything is float64, so the residual that the recursion carries is
the true one up to a rounding error that is accounted for. All is done for the variance of the function; the noise is
added last, so that it cannot drown one that is far smaller.

`search` first seeks solutions that are good enough to prove with, by block conjugate gradients in float32. It proves
nothing: `dkgp.models.variance.bounds` holds for any v, and is evaluated in float64. So its products, vectors and their
algebra are float32, twice as fast and half as large. A product evaluates each kernel entry once for `COLUMNS_AT_ONCE`
columns. The first directions are local: for each test sample the solution that its nearest training samples alone would
have, by a small Cholesky factor of its own. The next ones are preconditioned residuals, conjugate to the last. All
samples share the directions. A sample leaves once float64 is likely to find it within the gap, and takes its last step
without a product; the search ends when all samples have left, or when float32 makes no more progress.

References
----------
L. Bo, C. Sminchisescu, Greedy block coordinate descent for large scale Gaussian process regression (2008), section 2.3.
D. P. O'Leary, The block conjugate gradient algorithm and related methods (1980).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Hashable
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
from dkgp.operators.vecchia.leaves import gathered
from dkgp.solvers.conjugate.gradient import BlockDirections, add_product, row_pieces
from dkgp.solvers.conjugate.preconditioner import COLUMNS_AT_ONCE, Preconditioner

# Residuals, solutions, images and the preconditioner's result; directions and the preconditioner's input in float32.
ARRAYS_PER_SAMPLE = 5
# A sample that has come down to rounding, and whose bound has not halved in this many passes, leaves too.
STALLED_PASSES = 6
STALLED_FACTOR = 0.5
# The proof is attempted where the expected width is within this factor of what is wanted.
PROMISING = 1.25
NARROW_GAP, VALUE_SHARE = 0.01, 0.2
# Of samples of a batch, by index: those that are done whatever their gap, by the lower and upper ends of variances.
Enough = Callable[[IndexArray, FloatArray, FloatArray], NDArray[np.bool_]]
# Of a batch with such a rule, which may be large: samples that a factor is tried on at once; and those that take the
# first product together, over those that go on, which hold directions besides.
AT_ONCE, FIRST_TOGETHER = 1024, 1.5
# Of fewer samples, parts for as many threads, each of so many at least: landmarks' columns are evaluated for each.
PARTS, LEAST_AT_ONCE = 4, 128
# Parts in which samples that the first float64 product does not certify go on, at least: few are left as a rule.
TAIL_PARTS = 5


@dataclass
class ProductTally:
    """Products with the whole kernel matrix so far, counted and timed; nothing is decided by it."""

    # Columns that Kbar was multiplied with, in float32 and in float64.
    single_columns: int = 0
    double_columns: int = 0
    seconds: float = 0.0  # what the products took
    settled: int = 0  # samples whose intervals stayed wider than the gap, since nothing needs them narrower

    def add(self, other: ProductTally) -> None:
        """Add another's figures."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def batch_bytes(n: int, samples: int) -> int:
    """Bytes that a batch takes while it is solved."""
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
    """(upper - lower) / upper; zero where both are zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        gap: FloatArray = np.where(upper > lower, (upper - lower) / upper, 0.0)
    return gap


def value_error_goal(gap: float) -> float:
    """Relative error that the upper end of the interval, the value reported, is expected to keep to.

    The upper end is usually much closer to the exact variance than the interval is wide. Where a narrow interval is
    asked for, up to 1 %, a fifth of it is made sure of.
    """
    return VALUE_SHARE * gap if gap <= NARROW_GAP else gap


@dataclass(frozen=True)
class BatchOptions:
    """The samples of a batch: how far each is taken, and how they share the work."""

    gap: float  # relative gap at which a sample is done; see `value_error_goal` for narrow ones
    max_passes: float  # products with the whole kernel matrix at most; with 0 the factor alone has to do
    latent: bool = False  # bounds on the function's variance (the noise left out) and gaps relative to it
    factor_first: bool = True  # try the factor's own bounds first; they cost little and suffice on smooth problems
    together: int | None = None  # samples that share a block of directions at most, for memory's sake; all by default
    # Threads of this process that share the work of a pass, and those that share the factor's; by default the same.
    # Results depend on neither.
    threads: int = 1
    factor_threads: int | None = None
    in_turn: bool = False  # solve one batch at a time in a process: what the factor does not certify waits for that


class VarianceBounds:
    """Collects the best bounds so far on the function's variance; `noise` is part of what gaps are relative to."""

    def __init__(self, highest: FloatArray, noise: float, gap: float, enough: Enough | None = None) -> None:
        self._noise, self._enough = noise, enough
        self._gap, self._goal = gap, value_error_goal(gap)
        self.lower, self.upper = np.zeros(highest.shape), highest.copy()
        self._error = self.upper - self.lower

    def tighten(self, which: IndexArray, lower: FloatArray, upper: FloatArray, error: FloatArray) -> None:
        """Take in proven bounds, and by how much `upper` is expected to be above the exact variance.

        Raises
        ------
        NumericalError
            They contradict what was proven before.
        """
        # What is not a number proves nothing.
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
        """Indices of the samples that have not met the gap, and for which what is known is not `enough` either."""
        which = np.arange(len(self.upper)) if among is None else among
        imprecise = self._error[which] > self._goal * (self.upper[which] + self._noise)
        wide = which[(self.gaps(which) > self._gap) | imprecise]
        if self._enough is None or not len(wide):
            return wide
        return wide[~self._enough(wide, self.lower[wide], self.upper[wide])]

    def allowance(self, which: IndexArray) -> FloatArray:
        """Widths at which these samples would be done."""
        return np.asarray(self._gap * (self.upper[which] + self._noise))

    def gaps(self, which: IndexArray) -> FloatArray:
        """Relative widths, noise included where it is."""
        return relative_gap(self.lower[which] + self._noise, self.upper[which] + self._noise)

    def reported(self, passes: FloatArray, tally: ProductTally) -> BatchVariance:
        """The bounds, with the noise where it is wanted, and what they took."""
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

    With a preconditioner, a better M than the factor's own, solutions are first sought in float32. `enough` is asked
    of all samples of the batch, and ends the work on those that it says are done. The executor's tasks compute
    products, here by default; bits do not depend on it.
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
    """Tighten the bounds of samples that are not finished by conjugate gradients; count their `passes`."""
    todo, max_passes = bounds.unfinished(), options.max_passes
    factor = work.factor
    preconditioned = preconditioner or factor.preconditioner(work.executor)
    if enough is not None and preconditioner is None and max_passes >= 2:
        # Most have had enough by one product; the others go on together.
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
        limit = math.floor(max_passes) - 1  # the last one is float64's
        v, taken = search(factor, inputs[group], test.take(group), preconditioner, target, limit, work)
        passes[group] += taken
        start = [v]
        del v
        batch.run(max_passes - taken.max(), start, TAIL_PARTS)


def _by_the_factor(factor: NystromFactor, test: Queries, bounds: VarianceBounds, which: IndexArray) -> None:
    """Tighten bounds by the factor alone; where rounding of z is what keeps samples from the gap, by the best z."""
    for weights in (best_weights,) if loses_digits(factor) else (plain_weights, best_weights):
        some = test if len(which) == len(test.prior) else test.take(which)
        interval = factor_interval(factor, some, weights(factor, some))
        bounds.tighten(which, interval.lower, interval.upper, interval.excess)
        which = which[interval.rounded & np.isin(which, bounds.unfinished(which))]
        if not len(which):
            return


def _cut(indices: IndexArray, most: int | None) -> list[IndexArray]:
    """Groups of at most so many, of much the same size."""
    if not len(indices):
        return []
    return np.array_split(indices, -(-len(indices) // (most or len(indices))))


class _Batch:
    """Samples of a batch whose systems are solved together, in float64, from any start."""

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
        """Go on until all samples are done, from the one array (n, t) of `start`, taken out of it, or from M^-1 k_x.

        A start in float32 is proven with as it is, its numbers taken for float64's. After the first product those that
        are not done go on together; in so many parts, lest they take more memory than the product did.
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
        # By how much entry i of r may miss k_x - Kbar v for the v at hand, over w_i; times `share`, what `along` may.
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
        """Block conjugate gradients from v, whose residual is r, after the first product; `pair` is emptied of them."""
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
            # One entry of (Kbar P) a: the product's own rounding, then t terms, then the sum with r; and v's rounding.
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
                v = v[:, keep]  # one after the other, so that only one of them is there twice at a time
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
        """Tighten the bounds; return which of the samples have not met the gap and may still do so."""
        factor, size = self._factor, self._test.share + absolute
        raw = self._test.prior - along - column_dots(v, r, self._threads)
        # What r and `along` are off by, then the sum v'r, k(x, x) and the differences.
        slack = EVALUATION * (rounding + 2.0 * factor.unit * factor.largest * size) * size
        # What the proof will come to, but for rounding: the proof itself is worth its time near the end only.
        width, z = self._work.expected_widths(r)
        expected = width + 2.0 * slack
        # What the last pass took off the upper end, over what was expected then, is likely to hold for this one.
        with np.errstate(invalid="ignore"):
            share = np.clip(np.nan_to_num((self._upper - raw) / self._expected, nan=1.0), 0.0, 1.0)
        error = share * expected
        self._bounds.tighten(self._todo, np.zeros_like(raw), raw + slack, error)
        self._upper, self._expected = raw, expected
        shorter = expected < STALLED_FACTOR * self._best
        self._best = np.where(shorter, expected, self._best)
        self._age = np.where(shorter, 0, self._age + 1)
        ending = (self._age >= STALLED_PASSES) & (4.0 * slack >= expected)  # it is mostly rounding, and no plateau
        worth = np.flatnonzero(last | ending | (expected <= PROMISING * self._bounds.allowance(self._todo)))
        if len(worth):
            width = residual_bound(factor, r, z[:, worth], EVALUATION * rounding[worth], worth, self._work.executor)
            self._bounds.tighten(self._todo[worth], (raw - slack)[worth] - width, (raw + slack)[worth], error[worth])
        unmet = np.isin(self._todo, self._bounds.unfinished(self._todo))
        return np.flatnonzero(unmet & ~ending & (not last))

    def _product(self, vectors: NDArray[Any]) -> FloatArray:
        """Kbar V for V (n, k), in float64: one pass over the kernel matrix."""
        images = np.zeros(vectors.shape)
        self._work.add_product(images, vectors, "double")
        return images

    def _against_test(self, vectors: NDArray[Any]) -> FloatArray:
        """P' k_x for each sample: (columns of P, t)."""
        total = np.zeros((vectors.shape[1], len(self._todo)))
        for rows, where in self._factor.pieces():
            total += vectors[where].T.astype(np.float64) @ self._factor.evaluator.tile(rows, self._test.features)
        return total


def _lengths(tall: NDArray[Any], weights: FloatArray, threads: int) -> FloatArray:
    """Weighed sums of absolute values down the columns."""
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
# Vectors that are preconditioned at once: what they take in float64 is not to grow with n.
MOST_VECTORS, LEAST_VECTORS, NUMBERS_AT_ONCE = 64, 8, 2_000_000
# Of what a product takes, the local solutions of as many samples take a tenth: s^3 / 3 = n^2 / 5.
LOCAL_SHARE = 0.6
# Samples leave where so many are expected within the gap: the others' directions cost as much the fewer they are.
LEAVING_SHARE = 0.2
# What a step is taken to make of a width before there was one to tell by, and at best; and by how much the next one
# falls short of the last. A sample that is let go too early takes kernel entries in float64 all by itself.
FIRST_FACTOR, LEAST_FACTOR, SLOWING = 0.4, 0.3, 1.4
# A step's length along M^-1 r before there was one, and at least; Kbar is rarely above twice M.
FIRST_LENGTH, SHORTEST = 0.6, 0.3
# Without a quarter of the samples' widths halved in so many products, float32 has done what it can, or nothing helps.
STALLED_PRODUCTS, SEARCH_STALLED, STALLED_SHARE = 6, 0.5, 0.25
# What float32 leaves of a residual, against the length of k_x.
SINGLE_FLOOR = 8.0 * float(np.finfo(np.float32).eps)


def product_bytes(n: int, columns: int) -> int:
    """Bytes that a product takes beside its vectors and images: a copy of some columns, and two words a number."""
    return 24 * n * min(columns, COLUMNS_AT_ONCE)


class BatchWork:
    """Work of a batch: products and solutions by an executor's tasks, the rest by threads of this process.

    Bits depend neither on the executor nor on the number of threads.

    Parameters
    ----------
    factor : NystromFactor
    executor : BlockExecutor
        `HereExecutor` for a batch that one worker solves, or the run's for one that all workers share.
    threads : int
        Of this process.
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
        """Add `scale` Kbar V to the images (n, k), which have the type of the precision, in place."""
        started, count = time.perf_counter(), vectors.shape[1]
        for columns in np.array_split(np.arange(count), -(-count // COLUMNS_AT_ONCE)) if count else ():
            where = slice(columns[0], columns[-1] + 1)
            some = np.array(vectors[:, where], dtype=images.dtype, order="C")
            some *= images.dtype.type(scale)
            self._products[precision].add(some, precision, images[:, where])
            # Last, where it is rounded once: it may be far larger than all the rest.
            some *= images.dtype.type(self.factor.noise_variance)
            images[:, where] += some
        self.tally.seconds += time.perf_counter() - started
        if precision == "single":
            self.tally.single_columns += count
        else:
            self.tally.double_columns += count

    def expected_widths(self, residual: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """r' (Q + s2 I)^-1 r, what the proof comes to but for roundings, and the z that it is made with: (t,), (R, t).

        With p = F'r and z = (F'F + s2 I)^-1 p it is (r'r - p'z) / s2.
        """
        projected, z = self.factor.preconditioner(self.executor).projected(residual)
        square = column_dots(residual, residual, self.threads) - np.einsum("rt,rt->t", projected, z)
        return np.abs(square) / self.factor.noise_variance, z


@dataclass(frozen=True)
class Wanted:
    """Widths at which samples are done."""

    gap: float  # relative to the upper end, noise included where it is
    noise: float  # what is added to the function's variance

    def widths(self, upper: FloatArray) -> FloatArray:
        """For samples whose function has this variance at most."""
        return np.asarray(self.gap * (np.maximum(upper, 0.0) + self.noise))


def vectors_at_once(n: int) -> int:
    """Vectors that are preconditioned at once, of n numbers each."""
    return max(LEAST_VECTORS, min(MOST_VECTORS, NUMBERS_AT_ONCE // n))


def local_samples(n: int) -> int:
    """Training samples of a local solution."""
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
    """Find v near Kbar^-1 k_x for test samples: (n, t), and the products that each took part in: (t,).

    Parameters
    ----------
    factor : NystromFactor
        What the bounds to come will be made with.
    test : Queries
        The same samples.
    limit : int
        Products at most.
    """
    single, threads = _Single(work), work.threads
    r = single.columns(inputs)
    solutions = v = np.zeros_like(r)
    todo = np.arange(r.shape[1])
    floor = (SINGLE_FLOOR * np.sqrt(column_dots(r, r, threads))) ** 2 / factor.noise_variance
    directions = BlockDirections(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), threads)
    z, along = single.local(inputs), np.zeros(r.shape[1])
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
        # What a product would be spent on next is worth most of that as it is: its length is what the last one was.
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
        v = v[:, rest]  # one after the other, so that only one of them is there twice at a time
        r = r[:, rest]
        z = z[:, rest]
        pace.keep(rest)
    if v is not solutions and len(todo):
        solutions[:, todo] = v
    solutions[~np.isfinite(solutions)] = 0.0
    return solutions, taken


class _Pace:
    """Foresees from the samples' widths what the next step of a search will bring."""

    def __init__(self) -> None:
        self._best: list[FloatArray] = []
        self._factor = FIRST_FACTOR
        self.length = np.float32(FIRST_LENGTH)

    def note_step(self, gained: FloatArray, along: FloatArray) -> None:
        """Note what a step took off the variances, and r'M^-1 r before it: their ratio is its length along M^-1 r."""
        total = float(along.sum())
        if total > 0.0:
            self.length = np.float32(np.clip(float(gained.sum()) / total, SHORTEST, 1.0))

    def within(self, widths: FloatArray, goal: FloatArray) -> NDArray[np.bool_]:
        """The samples that one more step is likely to bring within their goals."""
        if self._best:
            ratio = np.median(widths / np.maximum(self._best[-1], np.finfo(np.float64).tiny))
            self._factor = float(np.clip(SLOWING * ratio, LEAST_FACTOR, 1.0))
        self._best.append(np.minimum(self._best[-1], widths) if self._best else widths)
        return np.asarray(self._factor * widths <= goal)

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Go on with some of the samples."""
        self._best = [widths[which] for widths in self._best]

    @property
    def stalled(self) -> bool:
        """True where few widths have halved for long: float32 has done what it can, or nothing helps."""
        if len(self._best) <= STALLED_PRODUCTS:
            return False
        then, now = self._best[-1 - STALLED_PRODUCTS], self._best[-1]
        return bool(np.mean(now < SEARCH_STALLED * then) < STALLED_SHARE)


def _preconditioned(preconditioner: Preconditioner, residual: SingleArray) -> SingleArray:
    count = residual.shape[1]
    # In float32 twice as many take no more.
    groups = np.array_split(np.arange(count), -(-count // (2 * vectors_at_once(len(residual)))))
    z = np.empty(residual.shape, np.float32)
    for group in groups:
        columns = slice(group[0], group[-1] + 1)
        z[:, columns] = preconditioner.apply(residual[:, columns])
    return z


def column_dots(left: NDArray[Any], right: NDArray[Any], threads: int = 1) -> FloatArray:
    """Inner products by column, in float64 and in runs short enough for `NystromFactor.unit` to count: (t,)."""
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
        """k_x of test samples: (n, t)."""
        test = self._evaluator.prepare(inputs)
        out = np.empty((self._factor.n, test.n), np.float32)

        def fill(index: int) -> None:
            rows, where = self._rows[index]
            out[where] = self._evaluator.tile(rows, test)

        in_parallel(fill, len(self._rows), self._threads)
        return out

    def product(self, vectors: SingleArray) -> SingleArray:
        """Kbar V for V (n, k)."""
        images = np.zeros(vectors.shape, np.float32)
        self._work.add_product(images, vectors, "single")
        return images

    def explained(self, v: SingleArray, r: SingleArray, inputs: FloatArray) -> FloatArray:
        """v'(k_x + r), what an approximate solution takes off the variance: (t,)."""
        test = self._evaluator.prepare(inputs)
        parts = np.empty((len(self._rows), test.n))

        def add(index: int) -> None:
            rows, where = self._rows[index]
            parts[index] = column_dots(v[where], self._evaluator.tile(rows, test) + r[where])

        in_parallel(add, len(self._rows), self._threads)
        return np.asarray(parts.sum(axis=0))

    def local(self, inputs: FloatArray) -> SingleArray:
        """Solutions by each sample's nearest training samples alone: (n, t)."""
        factor, executor = self._factor, self._work.executor
        solutions = np.zeros((factor.n, len(inputs)), np.float32)
        groups = split_evenly(range(len(inputs)), LOCAL_TASKS * executor.parallelism)
        values: dict[Hashable, Any] = {"prior": factor.prior}
        needs = [["prior"]] * len(groups)
        arguments = (factor.context, factor.noise_variance, inputs)
        pending = executor.start(RoundTasks(local_task, arguments, groups, None, "klocal", values, needs))
        for index, (nearest, solution) in enumerate(pending.result()):
            solutions[nearest, index] = solution
        return solutions


@needs_one_arithmetic
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def local_task(
    context: BlockContext, noise_variance: float, inputs: FloatArray, values: dict[str, FloatArray], tests: list[int]
) -> list[tuple[IndexArray, SingleArray]]:
    """Return, for each test sample, its nearest training samples and the solution that they alone would have.

    The nearest are those with the largest k(x, x_i)^2 / k(x_i, x_i).
    """
    evaluator, count, results = context.evaluator("single"), local_samples(context.n), []
    prior = values["prior"].astype(np.float32)
    for index in tests:
        test = evaluator.prepare(inputs[index : index + 1])
        blocks = [context.block_features(block, "single") for block in range(context.n_blocks)]
        column = np.concatenate([evaluator.tile(rows, test)[:, 0] for rows in blocks])
        likeness = np.nan_to_num(column * column / prior)
        nearest = np.sort(np.argpartition(likeness, context.n - count)[context.n - count :])
        rows = gathered(context, nearest.astype(np.int32), "single")
        matrix = np.asfortranarray(evaluator.tile(rows, rows))
        matrix[np.diag_indices(count)] += np.float32(noise_variance)
        right = np.asfortranarray(column[nearest])
        # Where float32 finds it indefinite, the others' directions will have to do.
        trouble = lapack("potrf", b"L", count, matrix, count) or lapack(
            "potrs", b"L", count, 1, matrix, count, right, count
        )
        solved = not trouble and bool(np.isfinite(right).all())
        results.append((nearest, right) if solved else (nearest[:0], right[:0]))
    return results
