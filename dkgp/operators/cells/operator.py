"""Kbar by cells of space: products in nearly linear time, each entry within a proven bound.

Rounds of an iterative solver take a loose plan, whose errors do not slow convergence. Products in double precision take
a plan that proves the requested error. Where no plan does, one product evaluates every entry.

Products by cells are chosen by a forecast from counts alone, so that all runs choose alike. Nothing is timed at run
time: prices are nominal, of one core, and only their ratios matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.kernels.terms import Term, Terms, terms_of
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, check_vectors
from dkgp.operators.block_tasks import BlockContext, InputSource
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.products import CellProducts, Cost, Moments, Part, finish, join, up

# Tolerance of products in the rounds of a solver, relative to the sum of the weights' magnitudes, by the most features
# of a term. Conjugate gradients with a halo of 128 on uniform samples (two dimensions, Matern 3/2) take 56, 28 and 24
# rounds with 1e-6, 1e-7 and 1e-8 at n = 500,000, and 22 and 17 with 1e-6 and 1e-8 at 200,000: a looser product's
# rounds drift, and start anew. In three dimensions (Matern 3/2, tuned, n = 300,000) 1e-5, 1e-6, 1e-7 and 1e-8
# take 82, 78, 95 and 110 processor seconds; at n = 10^6, 1e-5 never meets the tolerance. `sharpen` takes a digit more.
LOOSE = {0: 1e-8, 1: 1e-8, 2: 1e-8, 3: 1e-6}
# The least one, and its greatest multiple of s2 / (n times the largest entry). Actual errors are about 7e-5 of proven
# ones, and rounds converge where they are a twentieth of the residual, which weights of size residual / s2 make n / s2
# times the tolerance. Elevations, n = 764,168, Matern 3/2, s2 = 1e-6, five columns to .01: 43, 11 and 13 rounds with
# 1e-8, 1e-9 and 1e-10, in 118, 42 and 50 s.
LEAST_LOOSE, OF_NOISE = 1e-10, 1000.0
# Tolerance that products in double precision are foreseen to need.
TIGHT = 1e-10
# Seconds of an entry of a near pair, of an operation of a translation, and of a sample's moments and expansions.
ENTRY_SECONDS, OPERATION_SECONDS, SAMPLE_SECONDS = 0.9e-9, 0.035e-9, 0.25e-6
# Near entries in double precision take longer by this factor. They are in single precision where its error, for all
# of the weights, costs little of the tolerance (`Plan`).
DOUBLE_ENTRY, SINGLE_ERROR, SINGLE_SHARE = 2.0, 2e-6, 0.1
# Seconds of an entry of the whole matrix, in single precision and used twice; one in double precision takes more.
WHOLE_ENTRY_SECONDS, IN_DOUBLE = 0.38e-9, 2.4
# Products of a solve that are taken to be: in its rounds, and in double precision.
ROUNDS, CHECKS = 20.0, 3.0
# Products by cells are taken where the whole solve's take at most this share of the time of the others.
LARGEST_SHARE = 0.5
# Seconds that the first use takes to compile, by a process without kept code: gains of less are no gains there.
COMPILE_SECONDS = 17.0
# By dimension: entries of near pairs of a sample, operations of a sample by a power of the tolerance's digits, this
# power, and seconds of a plan, of its expansions and of a sample. Uniform samples, Matern 1/2 and 3/2, 5 10^4 and
# 2 10^5 of them: a product to 1e-6 in two dimensions takes 0.9 and 0.7 microseconds of a sample, to 1e-10 1.8 and 1.4;
# to 1e-5 in three dimensions 7 and 7. A pair of cells takes operations by the power 2 d; in three dimensions leaves
# grow with them, until near entries take as long, and a sample takes the root of both.
NEAR_ENTRIES = {1: 150.0, 2: 430.0, 3: 2000.0}
OPERATIONS = {1: 0.5, 2: 1.2, 3: 800.0}
DIGITS_POWER = {1: 2, 2: 4, 3: 3}
PLAN_SECONDS = {1: 0.1, 2: 0.2, 3: 12.0}
# Pairs of leaves at the range of a compact kernel are near, too. By dimension: offsets of such pairs times the side of
# a leaf, in ranges, to the power d - 1; and samples of a leaf. Plans for uniform samples in a square, n = 20,000 to
# 1,000,000 and ranges of 0.05 to 1 of its side, have 0.8 to 1.2 times as many entries, less those of adjacent cells.
EDGE_OFFSETS, EDGE_LEAF = {1: 4.0, 2: 16.0, 3: 37.7}, {1: 20.0, 2: 20.0, 3: 24.0}
# Sides of the box of uniform samples of unit variance, which standardised inputs are taken to be.
EXTENT = math.sqrt(12.0)
PLAN_SAMPLE_SECONDS = 1e-6
# Bytes of a plan, of its expansions and of a sample; and of a sample in the moments and expansions of a product.
PLAN_BYTES = {1: 2**20, 2: 2**24, 3: 2**28}
SAMPLE_BYTES = {1: 50, 2: 120, 3: 400}
WORK_BYTES = {1: 50, 2: 200, 3: 1000}


@dataclass(frozen=True)
class Forecast:
    """Choice of products, with its reason in one line; `share` is the time by cells over that of every entry."""

    takes_cells: bool
    reason: str
    share: float = 1.0


def choose(kernel: Kernel, n: int) -> Forecast:
    """Forecast products by cells of n samples."""
    try:
        terms = terms_of(kernel)
    except InputError as error:
        return Forecast(False, str(error))
    cells = sum(_solve_seconds(term, n) for term in terms.terms)
    whole = (ROUNDS + CHECKS * IN_DOUBLE) * _whole_seconds(n)
    share = cells / whole
    dimensions = ", ".join(sorted({str(len(term.features)) for term in terms.terms})) or "0"
    size = f"{n:,} samples in {dimensions} dimension{'' if dimensions == '1' else 's'}"
    if share > LARGEST_SHARE or whole - cells < COMPILE_SECONDS:
        compact = any(math.isfinite(term.profile.support) for term in terms.terms)
        return Forecast(False, f"{size} are too few{' for a kernel of this range' if compact else ''}", share)
    return Forecast(True, f"{size} should take {share:.1g} of the time of evaluating every entry", share)


def is_cheaper(cost: Cost, n: int) -> bool:
    """Return whether a product of these counts takes less time than one that evaluates every entry."""
    return _seconds(cost, n) <= _whole_seconds(n)


def is_cheaper_in_double(cost: Cost, n: int) -> bool:
    """Return whether a product of these counts takes less time than one in double precision of all entries."""
    return _seconds(cost, n) <= IN_DOUBLE * _whole_seconds(n)


def loose_tolerance(terms: Terms, noise_share: float = math.inf) -> float:
    """Return the tolerance of products in a solver's rounds: the loosest that adds hardly any round.

    `noise_share` is the least noise variance over n times the largest entry of K.
    """
    usual = LOOSE[max((len(term.features) for term in terms.terms), default=0)]
    return min(usual, max(LEAST_LOOSE, half_decade(OF_NOISE * noise_share)))


def half_decade(value: float) -> float:
    """Return the greatest 1e-k or 3e-k that is not above a value, 1e-300 at least: few plans serve many products."""
    exponent = math.floor(math.log10(min(max(value, 1e-300), 1e300)) + 1e-9)
    three = float(f"3e{exponent}")
    return three if value >= three * (1.0 - 1e-9) else float(f"1e{exponent}")


def product_share(kernel: Kernel, n: int) -> float:
    """Return the time of a product in a solver's rounds over that of one that evaluates every entry."""
    terms = terms_of(kernel)
    tolerance = loose_tolerance(terms)
    return sum(_seconds(expected_cost(term, n, tolerance), n) for term in terms.terms) / _whole_seconds(n)


def reaches_sooner(terms: Terms, n: int, tolerance: float, known: tuple[float, Cost]) -> bool:
    """Return whether a product by cells to a tight tolerance is expected before one in double precision of all entries.

    The first one makes a plan. `known` are the tolerance and the counts of a plan that is there.
    """
    at, loose = known
    expected = [expected_cost(term, n, tolerance) for term in terms.terms]
    usual = [expected_cost(term, n, at) for term in terms.terms]
    near = max(loose.near_entries, 1)
    flops = loose.flops * sum(cost.flops for cost in expected) / max(sum(cost.flops for cost in usual), 1)
    plans = sum(_plan_seconds(len(term.features), n) for term in terms.terms)
    return _seconds(Cost(near, int(flops), 0, near), n) + plans <= IN_DOUBLE * _whole_seconds(n)


def estimated_bytes(kernel: Kernel, n: int, columns: int = 1) -> tuple[int, int]:
    """Return bytes that each process keeps for products by cells, and bytes of a product on top of them."""
    kept = work = 0
    for term in terms_of(kernel).terms:
        d = len(term.features)
        # One plan for a solver's rounds and one for products in double precision.
        kept += 2 * (PLAN_BYTES[d] + SAMPLE_BYTES[d] * n)
        work = max(work, WORK_BYTES[d] * n * columns + 24 * n * columns)
    return kept + 16 * kernel.n_features * n, work


def _solve_seconds(term: Term, n: int) -> float:
    d = len(term.features)
    rounds, checks = (_seconds(expected_cost(term, n, tolerance), n) for tolerance in (LOOSE[d], TIGHT))
    # Where cells take longer for a check, every entry is evaluated.
    checks = min(checks, IN_DOUBLE * _whole_seconds(n))
    return ROUNDS * rounds + CHECKS * checks + 2.0 * _plan_seconds(d, n)


def _plan_seconds(d: int, n: int) -> float:
    return PLAN_SECONDS[d] + PLAN_SAMPLE_SECONDS * n


def expected_cost(term: Term, n: int, tolerance: float) -> Cost:
    """Counts that a product with a term is expected to have."""
    d, digits = len(term.features), -math.log10(tolerance)
    entries = min(float(n), NEAR_ENTRIES[d] + _entries_at_range(term, n))
    single = SINGLE_ERROR * entries / n <= SINGLE_SHARE * tolerance
    operations = OPERATIONS[d] * digits ** DIGITS_POWER[d]
    return Cost(int(n * entries), int(n * operations), 0, 0 if single else int(n * entries))


def _entries_at_range(term: Term, n: int) -> float:
    """Entries of a sample with leaves that are at the range of a compact kernel: about n^(1 - 1/d) of them."""
    if math.isinf(term.profile.support):
        return 0.0
    d = len(term.features)
    # Ranges over sides of the samples' box.
    a = [min(1.0, term.profile.support / (EXTENT * scale)) for scale in term.scale]
    pairs, product = sum(a[i] * a[j] for i in range(d) for j in range(i)), math.prod(a)
    # Share of the points at that distance, in all directions from all samples, that are in the box.
    inside = {
        1: 1.0 - product,
        2: 1.0 - 2.0 / math.pi * sum(a) + pairs / math.pi,
        3: 1.0 - sum(a) / 2.0 + 2.0 / (3.0 * math.pi) * pairs - product / (4.0 * math.pi),
    }[d]
    density = n * product
    return EDGE_OFFSETS[d] * max(inside, 0.0) * math.pow(EDGE_LEAF[d] * density ** (d - 1), 1.0 / d)


def _seconds(cost: Cost, n: int) -> float:
    entries = cost.near_entries + (DOUBLE_ENTRY - 1.0) * cost.double_entries
    return ENTRY_SECONDS * entries + OPERATION_SECONDS * cost.flops + SAMPLE_SECONDS * n


def _whole_seconds(n: int) -> float:
    return WHOLE_ENTRY_SECONDS * n * n / 2.0


# The greatest bound of a product over its tolerance and the sum of its weights' magnitudes, where signs alternate, by
# the most features of a term: .03 to .06, .04 to .08 and .01 to .044 were measured. The root mean square over the
# greatest.
TYPICAL_RATIO, TYPICAL_MEAN_SHARE = {0: 0.06, 1: 0.06, 2: 0.08, 3: 0.03}, 0.65
# Tolerances of products in double precision: the loosest, and the least, where roundings are all of the bound.
LOOSEST_DOUBLE, LEAST_TOLERANCE = 1e-9, 1e-15
# Plans that a product tries before it evaluates every entry.
MOST_TRIES = 3
# Ranges of leaves for each thread: more where tasks cost nothing, as regions differ in their work.
RANGES_A_THREAD = {True: 8, False: 2}
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class KeptPlans:
    """The plans of all terms of a kernel, as each process keeps them."""

    products: CellProducts
    plans: list[Plan]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.products.cost().nbytes + self.products.inputs.nbytes


@dataclass(frozen=True)
class KeptMoments:
    """The moments of one product's weights, a set for each plan."""

    sets: list[Moments]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for moments in self.sets for array in vars(moments).values())


def plans_of(context: BlockContext, tolerance: float) -> KeptPlans:
    """Return the plans for a tolerance, from this process's cache or built anew."""

    def build() -> KeptPlans:
        rows = np.concatenate([context.source.inputs(*context.bounds(block)) for block in range(context.n_blocks)])
        products = CellProducts(terms_of(context.kernel), rows, tolerance)
        return KeptPlans(products, products.plans())

    cache = worker_cache()
    # If a plan were evicted, every product would build it again; memory was planned with it, and with features.
    features = 12 * context.n * (context.kernel.n_features + 1)
    cache.make_room(features + estimated_bytes(context.kernel, context.n)[0])
    return cache.get((context.run_id, "cells", tolerance), build)


def plan_task(context: BlockContext, tolerance: float, workers: list[int]) -> list[Cost]:
    """Have this worker make its plans; return the cost of a product."""
    cost = plans_of(context, tolerance).products.cost()
    return [cost for _ in workers]


def up_task(plan: Plan, moments: Moments, ranges: list[tuple[int, int]]) -> list[None]:
    """Fill in the moments of ranges of source leaves; results are in `moments`, which this process holds."""
    for leaves in ranges:
        up(plan, moments, leaves)
    return [None] * len(ranges)


def finish_task(plan: Plan, moments: Moments, ranges: list[tuple[int, int]]) -> list[Part]:
    """Rows of ranges of target leaves, from moments that this process holds."""
    return [finish(plan, moments, leaves) for leaves in ranges]


def cell_task(
    context: BlockContext, tolerance: float, serial: int, weights: FloatArray, count: int, numbers: list[int]
) -> list[list[Part | None]]:
    """Rows of some of `count` ranges of target leaves, a part for each plan, in a worker that computes all moments.

    `serial` names the product, whose moments the worker's tasks share. A plan may have fewer ranges.
    """
    plans, cache = plans_of(context, tolerance).plans, worker_cache()
    run = context.run_id
    cache.discard(run, "moments", but=serial)
    moments = cache.get((run, "moments", serial), lambda: KeptMoments([_moments(plan, weights) for plan in plans]))
    cut = [plan.ranges(count) for plan in plans]
    return [
        [
            finish(plan, sums, ranges[k]) if k < len(ranges) else None
            for plan, sums, ranges in zip(plans, moments.sets, cut, strict=True)
        ]
        for k in numbers
    ]


def _moments(plan: Plan, weights: FloatArray) -> Moments:
    moments, ranges = Moments.room(plan, weights), plan.source_ranges(1)
    up_task(plan, moments, ranges)
    join(plan, moments, ranges)
    return moments


class CellKernelOperator(BlockedKernelOperator):
    """Kbar with products by cells; every entry of one in double precision is proven to be within `error`.

    Parameters
    ----------
    kernel : Kernel
        A sum of stationary kernels of one scaled distance in at most three features each, and of constants.
    noise_variance : float or (n,) array_like
    source : InputSource
        Each worker, and a coordinator that shares its memory, holds the inputs of all samples.
    error : float
        Greatest error of an entry of a product in double precision, in the units of K V, roundings included. A product
        for which cells cannot prove that evaluates every entry. Where the entries of V are below one, so is the error.
    mean_error : float, optional
        Greatest root mean square of the errors of a column's entries, each weighed by the root of the least noise over
        that of its sample; certificates use this norm. By default the entries' limit is the only one.
    forecast : str, optional
        Reason for products by cells. With one the counts of the first plan are compared with the work of evaluating
        every entry, and the operator evaluates every entry from then on where that is less. So it does in double
        precision where cells are expected to take longer to the error.
    note : callable, optional
        Called with one line on the products that are taken by a forecast, once; and with one line on the first product
        that evaluates every entry because cells do not prove the error.
    coordinator_input_bytes : int, optional
        As for `BlockedKernelOperator`.

    Raises
    ------
    InputError
        An error that is not positive, or a kernel whose products by cells have no known bound.
    """

    approximate = True

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float | ArrayLike,
        source: InputSource,
        executor: BlockExecutor,
        *,
        error: float = 1e-5,
        mean_error: float | None = None,
        forecast: str | None = None,
        note: Callable[[str], None] | None = None,
        **options: int,
    ) -> None:
        super().__init__(kernel, noise_variance, source, executor, **options)
        if not error > 0.0 or not math.isfinite(error):
            raise InputError(f"the error of products must be finite and positive; got {error!r}")
        self._terms = terms_of(kernel)
        self._loose = loose_tolerance(self._terms, self.noise_variance / (self.n * self._terms.magnitude))
        self.error, self.mean_error = float(error), float(error if mean_error is None else mean_error)
        self.products: Mapping[str, Any] = {
            "kind": "cells",
            "error": self.error,
            **({} if mean_error is None else {"mean_error": self.mean_error}),
            "reason": forecast or "as requested",
        }
        self._forecast, self._note = forecast, None if forecast is None else note
        self._warn = note
        self._chosen = forecast is not None
        self._serials = itertools.count()
        self._costs: dict[float, Cost] = {}

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V by cells; in double precision within `error`."""
        check_vectors(self.n, V)
        finite = np.isfinite(V).all(axis=0)
        weights = np.where(finite, V, 0.0).astype(np.float64, copy=False)
        product = None
        if self._takes_cells():
            product = self._by_cells(weights, self._loose) if precision == "single" else self._within(weights)
        if product is None:
            self.error_rows = np.zeros(V.shape)
            return super().matmat(V, precision)
        product[:, ~finite] = np.nan
        product += self.noise_times(V)
        with np.errstate(invalid="ignore"):
            self.error_rows += 2.0 * _EPS * np.abs(product)
        return product

    def sharpen(self) -> bool:
        """Take the products of a solver's rounds to a digit more, where that is quicker than evaluating every entry."""
        tolerance = half_decade(0.1 * self._loose)
        if not self.approximate or tolerance < LEAST_LOOSE:
            return False
        if self._chosen and not is_cheaper(self._cost(tolerance), self.n):
            return False
        worker_cache().discard(self.context.run_id, "cells", self._loose)
        self._loose = tolerance
        return True

    def _takes_cells(self) -> bool:
        """Return whether products are by cells, as the counts of the first plan decide where a forecast is checked."""
        if self._forecast is not None or self._note is not None:
            forecast, self._forecast = self._forecast, None
            if forecast is not None and not is_cheaper(self._cost(self._loose), self.n):
                self.approximate = False
                self.products = {
                    "kind": "every entry",
                    "reason": "samples have too many near neighbours for products by cells to save time",
                }
            note, self._note = self._note, None
            if note is not None:
                note(f"products by {self.products['kind']}: {self.products['reason']}")
        return self.approximate

    def _within(self, V: FloatArray) -> FloatArray | None:
        """K V within `error`, by a plan that proves it; None where none is known to.

        The plans that are tried depend on V alone, so that a run that resumes takes those of one that never stopped.
        """
        magnitudes = np.abs(V).sum(axis=0)
        largest = np.minimum(1.0, np.abs(V).max(axis=0, initial=0.0))
        if not magnitudes.any():
            return self._by_cells(V, LOOSEST_DOUBLE)
        some = magnitudes > 0.0
        ratio = TYPICAL_RATIO[max((len(term.features) for term in self._terms.terms), default=0)]
        foreseen = min(self.error / ratio, self.mean_error / (TYPICAL_MEAN_SHARE * ratio))
        tolerance = foreseen * float((largest[some] / magnitudes[some]).min())
        tolerance = half_decade(min(tolerance, LOOSEST_DOUBLE))
        before, reached = math.inf, LEAST_TOLERANCE * self._terms.magnitude * float(magnitudes.max())
        for _ in range(MOST_TRIES):
            if tolerance < LEAST_TOLERANCE:
                break
            if self._chosen and not (
                reaches_sooner(self._terms, self.n, tolerance, (self._loose, self._cost(self._loose)))
                and is_cheaper_in_double(self._cost(tolerance), self.n)
            ):
                reason = "products by cells would take longer to reach the requested error"
                self.products = {**self.products, "every entry": reason}
                return None
            product = self._by_cells(V, tolerance)
            excess = float((self._excess()[some] / largest[some]).max())
            if excess <= 1.0:
                self.products = {**self.products, "tolerance": tolerance}
                return product
            reached = float(self.error_rows.max())
            # Roundings, which no tolerance makes smaller.
            if excess > 0.5 * before:
                break
            before, tolerance = excess, half_decade(tolerance / (2.0 * excess))
        reason = "roundings of products by cells are above the requested error"
        self.products = {**self.products, "every entry": reason, "reached": reached}
        warn, self._warn = self._warn, None
        if warn is not None:
            warn(
                f"products in double precision evaluate every kernel entry: {reason}, {self.error:.2g}; weights whose "
                f"magnitudes add up to {magnitudes.max():.2g} leave {reached:.2g}"
            )
        return None

    def _excess(self) -> FloatArray:
        """Return the errors of the last product's columns over the allowed ones, of entries below one apart: (t,)."""
        weighed = self.error_rows
        if not isinstance(self.noise, float):
            weighed = np.sqrt(self.noise_variance / self.noise)[:, None] * weighed
        means = np.linalg.norm(weighed, axis=0) / math.sqrt(self.n)
        return np.asarray(np.maximum(self.error_rows.max(axis=0) / self.error, means / self.mean_error))

    def _by_cells(self, V: FloatArray, tolerance: float) -> FloatArray:
        """K V by the plans of a tolerance; its bounds are in `error_rows`."""
        phase = "product" if tolerance == self._loose else "float64 product"
        if self.executor.shares_memory:
            self.tell("cells", 0, self.n, "samples")
            kept = plans_of(self.context, tolerance)
            result, self.error_rows = kept.products.begin(self.n, V)
            parts = self._here(kept.plans, V, phase)
        else:
            self._cost(tolerance)
            # The coordinator holds no plan.
            products = CellProducts(self._terms, np.zeros((0, self.kernel.n_features)), tolerance)
            result, self.error_rows = products.begin(self.n, V)
            parts = self._elsewhere(V, tolerance, phase)
        for amplitude, part in parts:
            result[part.rows] += amplitude * part.values
            self.error_rows[part.rows] += abs(amplitude) * part.bounds * (1.0 + 1e-9)
        self.entries.add(self._cost(tolerance).near_entries)
        return result

    def _here(self, plans: list[Plan], V: FloatArray, phase: str) -> Iterator[tuple[float, Part]]:
        """Parts of a product by tasks that take references."""
        count = RANGES_A_THREAD[True] * self.executor.parallelism
        for plan in plans:
            moments, ranges = Moments.room(plan, V), plan.source_ranges(count)
            self.submit("kcellup", up_task, (plan, moments), [[leaves] for leaves in ranges]).result()
            join(plan, moments, ranges)
            ranges = plan.ranges(count)
            for start in range(0, len(ranges), 2 * self.executor.parallelism):
                some = ranges[start : start + 2 * self.executor.parallelism]
                self.tell(phase, start, len(ranges), "pieces")
                pending = self.submit("kcell", finish_task, (plan, moments), [[leaves] for leaves in some])
                yield from ((plan.term.amplitude, part) for part in pending.result())

    def _elsewhere(self, V: FloatArray, tolerance: float, phase: str) -> Iterator[tuple[float, Part]]:
        """Parts of a product by workers that each build all plans."""
        count = RANGES_A_THREAD[False] * self.executor.parallelism
        groups = split_evenly(range(count), self.executor.parallelism)
        self.tell(phase, 0, len(groups), "pieces")
        arguments = (self.context, tolerance, next(self._serials), V, count)
        pieces = self.submit("kcell", cell_task, arguments, groups).result()
        for number, term in enumerate(self._terms.terms):
            yield from ((term.amplitude, part) for parts in pieces if (part := parts[number]) is not None)

    def _cost(self, tolerance: float) -> Cost:
        """Cost of a product; all workers that have no plan of the tolerance make one."""
        if tolerance not in self._costs:
            self.tell("cells", 0, self.n, "samples")
            workers = list(self.executor.workers)
            plans = self.submit("kcellplan", plan_task, (self.context, tolerance), [[0] for _ in workers], workers)
            self._costs[tolerance] = plans.result()[0]
        return self._costs[tolerance]
