"""Forecast of products by cells against those that evaluate every entry: from counts alone, so that runs choose alike.

Nothing is timed at run time. Prices are nominal, of one core, and only their ratios matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.kernels.terms import Term, Terms, terms_of
from dkgp.operators.cells.products import Cost

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
