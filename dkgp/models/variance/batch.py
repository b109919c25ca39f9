"""Variances of one batch of test samples: all their linear systems Kbar v = k_x at once.

The factor gives v = M^-1 k_x to start from. Where that does not certify a sample, block conjugate gradients,
preconditioned by M, go on: the residuals of all samples of the batch together span the next directions P, and one
product Kbar P serves all of them (kin40k with gamma = 0.12, n = 30,000, rank 4,000, 250 samples: gaps below 0.6 % in
three passes). Samples that have met the gap leave. Everything is float64, so the residual that the recursion carries is
the true one up to a rounding error that is accounted for. All is done for the variance of the function; the noise is
added last, so that it cannot drown one that is far smaller.

References
----------
L. Bo, C. Sminchisescu, Greedy block coordinate descent for large scale Gaussian process regression (2008), section 2.3.
D. P. O'Leary, The block conjugate gradient algorithm and related methods (1980).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, HereExecutor
from dkgp.cluster.threads import in_parallel, whole_process
from dkgp.errors import NumericalError
from dkgp.models.rounding import EPS, EVALUATION, outward
from dkgp.models.variance.bounds import (
    Queries,
    best_weights,
    factor_interval,
    loses_digits,
    plain_weights,
    residual_bound,
)
from dkgp.models.variance.nystrom import NystromFactor
from dkgp.models.variance.search import BatchWork, ProductTally, Wanted, column_dots, search
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.conjugate.block import BlockDirections, add_product, row_pieces
from dkgp.solvers.conjugate.preconditioner import Preconditioner

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
