"""Solves counted in kernel entries, operations and bytes, phase by phase, and what these cost: one model for all.

`auto` compares solvers by it, on one core of a nominal machine; `dkgp plan` lays the same phases out over workers of a
machine whose prices it has measured. How often a phase comes about (products, column passes) is for the caller to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from dkgp.operators.low_rank.pivots import samples_drawn_from

__all__ = [
    "Batches",
    "Phase",
    "Prices",
    "Sizes",
    "Work",
    "cholesky_phases",
    "conjugate_phases",
    "core_seconds",
    "descent_phases",
    "product_phase",
    "variance_phases",
]

# A round of tasks at nominal prices: messages, and adding up.
ROUND_SECONDS = 2e-3
# A leaf's halo is found among so many samples for each of it; half of all on average where there are fewer.
SEARCHED = 40.0
# LAPACK on some hundred rows takes longer for an operation than a large product does.
LEAF_ALGEBRA = 1.5
# T is read once, and used twice, where there are no landmarks.
ONE_SWEEP = 1.25
# Products with a block's own matrix that refine its last solution, on average over a run.
REFINEMENTS = 2.5
# Samples of a batch whose widths are looked at after each product.
LOOKED_AT = 64
# n-vectors of a round of descent: gradient and solution, and the steps remembered with their images.
DESCENT_VECTORS = 16.0


@dataclass(frozen=True)
class Work:
    """Counts of what takes time.

    Attributes
    ----------
    entries, double_entries
        Kernel entries, evaluated in float32 and float64.
    filled, kept
        Float32 entries that are evaluated and kept for the first time, and that are read from where they were kept.
    operations, double_operations
        Additions and multiplications of products of matrices, with the kernel's or others.
    bytes, spilled
        Of a factor: read from memory and used, and read from disk before.
    vectors
        Numbers of n-vectors, read and written.
    drawn, dense
        Variables that a greedy selection chooses, and cubes of block sizes: its algebra.
    read
        Values of X, read from the store and prepared.
    """

    entries: float = 0.0
    double_entries: float = 0.0
    filled: float = 0.0
    kept: float = 0.0
    operations: float = 0.0
    double_operations: float = 0.0
    bytes: float = 0.0
    spilled: float = 0.0
    vectors: float = 0.0
    drawn: float = 0.0
    dense: float = 0.0
    read: float = 0.0


NOTHING = Work()


@dataclass(frozen=True)
class Prices(Work):
    """Seconds of one core for one unit of each kind of work, for one kernel and number of features."""

    @classmethod
    def nominal(cls, d: int) -> Prices:
        """Return the prices of a nominal machine (`dkgp bench tiles`, `dkgp bench solve`); only their ratios matter."""
        entry = 0.30 + 0.012 * d
        nanoseconds = cls(
            entries=entry,
            double_entries=2.2 * entry,
            filled=2.0 * entry,
            kept=0.15,
            operations=0.015,
            double_operations=0.03,
            bytes=0.1,
            spilled=0.5,
            vectors=1.0,
            drawn=18e3,
            dense=0.0036,
            read=20.0,
        )
        return cls(**{each.name: 1e-9 * getattr(nanoseconds, each.name) for each in fields(cls)})

    def seconds(self, work: Work) -> float:
        """Seconds of one core."""
        return float(sum(getattr(self, each.name) * getattr(work, each.name) for each in fields(Work)))


@dataclass(frozen=True)
class Sizes:
    """A problem, as far as prices depend on it.

    Attributes
    ----------
    n, d, p
        Samples, features, right-hand sides.
    double
        Whether all kernel entries are evaluated in float64.
    blocks
        Of samples: products come in pairs of them.
    evaluated
        What products with all of K take, in units of evaluating all entries; less where a tree prunes.
    """

    n: int
    d: int
    p: int = 1
    double: bool = False
    blocks: int = 1
    evaluated: float = 1.0

    def product(self, rows: float, columns: float, uses: int = 1, *, double: bool = False) -> Work:
        """Entries of a product with all right-hand sides; `uses` is 2 where an entry serves its row and its column."""
        entries, operations = rows * columns, 2.0 * uses * rows * columns * self.p
        if double or self.double:
            return Work(double_entries=entries, double_operations=operations)
        return Work(entries=entries, operations=operations)

    def whole(self, *, double: bool = False) -> Work:
        """A product with all of K."""
        return self.product(self.n, self.evaluated * self.n / 2.0, 2, double=double)


@dataclass(frozen=True)
class Phase:
    """Something that a solver does in the same way so many times.

    Attributes
    ----------
    name
        As progress says it.
    times
        How often; a fraction stands for what is expected.
    shared, threaded, alone
        Work, each time: of the workers together, of the coordinator's threads together, and of one of them.
    rounds, pieces
        Rounds of tasks, each time, and the pieces that their work comes in: there are no more tasks.
    paired
        The pieces are pairs of blocks, which go out in rounds of bounded size.
    sent, returned, sent_to_each
        Bytes that go out and come back each time, in all tasks together, and what goes out with each.
    each
        Work of every worker's process, by its threads together: a factor that each makes for itself.
    hidden
        The coordinator's work runs beside the phase before, where the executor overlaps.
    """

    name: str
    times: float
    shared: Work = NOTHING
    threaded: Work = NOTHING
    alone: Work = NOTHING
    each: Work = NOTHING
    rounds: int = 0
    pieces: int = 1
    paired: bool = False
    sent: float = 0.0
    returned: float = 0.0
    sent_to_each: float = 0.0
    hidden: bool = False

    def core_seconds(self, prices: Prices) -> float:
        """Seconds of one core, all times together."""
        work = sum(prices.seconds(each) for each in (self.shared, self.threaded, self.alone, self.each))
        return self.times * (work + self.rounds * ROUND_SECONDS)


def core_seconds(phases: Iterable[Phase], prices: Prices) -> float:
    """Seconds of one core for a whole solve: what solvers are compared by."""
    return sum(phase.core_seconds(prices) for phase in phases)


def _check(sizes: Sizes, times: float) -> Phase:
    """Products in float64 with all of K, which verify the gradient."""
    return replace(product_phase("check", sizes, times), shared=sizes.whole(double=True))


def product_phase(name: str, sizes: Sizes, times: float, *, kept: float = 0.0) -> Phase:
    """Float32 products with all of K, a share of which is read from kept tiles."""
    # Each pair of blocks takes a block of the vectors, more or less, and brings back two.
    blocks, numbers = sizes.blocks, float(sizes.n * sizes.p)
    pairs = blocks * (blocks + 1) // 2
    moved = 8.0 * numbers * pairs / blocks
    adding, whole = Work(vectors=2.0 * numbers * pairs / blocks), sizes.whole()
    work = replace(whole, entries=(1.0 - kept) * whole.entries, kept=kept * whole.entries)
    return Phase(name, times, work, alone=adding, rounds=1, pieces=pairs, paired=True, sent=moved, returned=2.0 * moved)


def _products(sizes: Sizes, times: float, kept: float) -> list[Phase]:
    """Products, of which the first fills the tiles that are kept."""
    if not kept or sizes.double:  # what is kept is float32
        return [product_phase("products", sizes, times)]
    reading = product_phase("products", sizes, max(0.0, times - 1.0), kept=kept)
    filling = replace(reading.shared, filled=reading.shared.kept, kept=0.0)
    return [replace(reading, name="first product", times=min(1.0, times), shared=filling), reading]


def conjugate_phases(
    sizes: Sizes,
    products: float,
    *,
    halo: int = 0,
    leaf: int = 0,
    rank: int = 0,
    checks: float = 1.0,
    spilled: float = 0.0,
    kept: float = 0.0,
) -> list[Phase]:
    """Phases of conjugate gradients on a block-Vecchia factor, a low-rank one (`halo` and `leaf` 0), both, or none.

    Parameters
    ----------
    products, checks : float
        Expected: float32 products with K, one an iteration, and float64 ones.
    spilled : float
        Share of the leaves that lies on disk.
    kept : float
        Share of K that workers keep.
    """
    n, p = sizes.n, sizes.p
    phases = []
    if leaf:
        phases.append(Phase("order", 1.0, alone=_ordering(sizes, leaf)))
    if rank:
        phases.append(_landmarks(sizes, rank))
    if leaf:
        build = leaves_work(sizes, halo, leaf, rank)
    else:
        build = Work(double_entries=float(n) * rank, double_operations=2.0 * float(n) * rank**2)
    if rank or leaf:
        small = Work(double_operations=rank**3 / 3.0)
        pieces = max(1, n // leaf) if leaf else sizes.blocks
        phases.append(
            Phase("factor", 1.0, build, threaded=small, rounds=2, pieces=pieces, returned=8.0 * rank**2 * sizes.blocks)
        )
    phases += _products(sizes, products, kept)
    if rank or leaf:
        numbers = n * (halo + leaf / 2.0 + rank)
        # Forward and backward, each once through the factor.
        moved = Work(
            bytes=4.0 * numbers * (2.0 if rank else ONE_SWEEP),
            spilled=4.0 * numbers * spilled * (2.0 if rank else 1.0),
            operations=4.0 * (p - 1) * numbers,
        )
        vector = 8.0 * n * p
        phases.append(
            Phase(
                "application",
                products + 1.0,
                moved,
                alone=Work(vectors=6.0 * n * p),
                rounds=2 if rank else 1,
                pieces=pieces,
                sent=vector,
                sent_to_each=8.0 * rank * p,
                returned=vector,
            )
        )
    return [*phases, _check(sizes, checks)]


def _ordering(sizes: Sizes, leaf: int) -> Work:
    """Finding a kd order: at each level a variance and a partition of everything."""
    levels = max(1.0, math.log2(max(2.0, sizes.n / leaf)))
    return Work(vectors=sizes.n * levels * (sizes.d + 10.0))


def _landmarks(sizes: Sizes, rank: int) -> Phase:
    """Drawing pivots among some samples."""
    pool = float(min(sizes.n, samples_drawn_from(rank)))
    work = Work(double_entries=pool * rank, double_operations=2.0 * pool * rank**2)
    return Phase("landmarks", 1.0, threaded=work)


def leaves_work(sizes: Sizes, halo: int, leaf: int, rank: int) -> Work:
    """Building all leaves of a block-Vecchia factor: halos, tiles, and one Cholesky factor of halo and leaf."""
    n, s, g, r = float(sizes.n), float(min(halo, sizes.n)), float(min(leaf, sizes.n)), float(rank)
    m, leaves = s + g, n / g
    search = n * min(SEARCHED * s, n / 2.0) * 2.0 * (sizes.d + 1.0)
    triangles = s**3 / 3.0 + 2.0 * g * s * s + 2.0 * g * g * s + 2.0 / 3.0 * g**3
    algebra = LEAF_ALGEBRA * (triangles + r * (m * m + 2.0 * g * m))
    return Work(
        entries=leaves * m * m / 2.0,
        double_entries=leaves * m * r,
        operations=search + leaves * algebra,
        double_operations=leaves * r * r * (m + g),
    )


def descent_phases(sizes: Sizes, m: int, candidates: int, passes: float, *, checks: float = 1.0) -> list[Phase]:
    """Phases of greedy block descent with blocks of m variables, `passes` times n of them in all.

    Parameters
    ----------
    candidates : int
        kappa; 0 for selections that score none.
    """
    n, p, rounds = sizes.n, sizes.p, passes * sizes.n / m
    size = float(m)
    again = sizes.product(size, size, double=True)
    solve = Work(
        double_entries=REFINEMENTS * again.double_entries, double_operations=REFINEMENTS * again.double_operations
    )
    scored = Work(entries=candidates * size * size / 2.0, operations=candidates * size * size * p)
    return [
        Phase("solve", rounds, threaded=solve),
        Phase(
            "products",
            rounds,
            sizes.product(n, size),
            alone=Work(vectors=DESCENT_VECTORS * n * p),
            rounds=1,
            pieces=sizes.blocks,
            sent_to_each=size * (4.0 * (sizes.d + 1) + 8.0 * p),
            returned=8.0 * n * p,
        ),
        Phase("selection", rounds, threaded=scored, alone=Work(drawn=size, dense=size**3), hidden=True),
        _check(sizes, checks),
    ]


def cholesky_phases(sizes: Sizes, *, checks: float = 1.0) -> list[Phase]:
    """Phases of the whole matrix' factor, at the coordinator."""
    n = float(sizes.n)
    return [
        Phase("matrix", 1.0, threaded=Work(double_entries=n * n / 2.0)),
        Phase("factor", 1.0, threaded=Work(double_operations=n**3 / 3.0)),
        _check(sizes, checks),
    ]


@dataclass(frozen=True)
class Batches:
    """Test samples whose variances are found in batches.

    Attributes
    ----------
    tests, batches, together
        Samples; tasks; samples at most that are solved for together.
    rank, halo, local
        Landmarks of the factor that proves; samples of a halo of the factor that preconditions, 0 for none; samples of
        a local solution.
    double
        Whether the factor that proves is float64.
    single_products, double_products
        Products with K that a sample takes part in, in each precision.
    """

    tests: int
    batches: int
    together: int
    rank: int
    halo: int
    local: int
    double: bool
    single_products: float
    double_products: float


def variance_phases(sizes: Sizes, batches: Batches) -> list[Phase]:
    """Phases of predictive variances; those of a factor that suffices by itself take no products."""
    n, t, rank, halo = float(sizes.n), float(batches.tests), batches.rank, batches.halo
    single, double = batches.single_products, batches.double_products
    built = _in(batches.double, n * rank, 2.0 * n * rank**2)
    order = NOTHING
    if halo:
        built = _sum(built, leaves_work(sizes, halo, -(-halo // 2), 0))
        order = _ordering(sizes, -(-halo // 2))
    at_once = min(batches.together, math.ceil(t / max(1, batches.batches)))
    groups = math.ceil(t / at_once)
    # What is proven of a sample: 6 n R, each time (`dkgp.models.variance.sizes`).
    proofs = max(1.0, double)
    work = [
        Work(double_entries=n * t),
        _in(batches.double or not (single + double), proofs * groups * n * rank, proofs * t * 6.0 * n * rank),
        Work(double_entries=double * groups * n * n, double_operations=double * t * 2.0 * n * n),
    ]
    # Conjugate directions: their products with each other, and what they are taken times.
    algebra = 10.0 * n * at_once * t
    if single:
        local = float(min(batches.local, sizes.n))
        applications = (single + 1.0) * t * 4.0 * n * (halo + halo / 4.0)
        expected = single * groups * min(at_once, LOOKED_AT) * 4.0 * n * rank
        solutions = t * LEAF_ALGEBRA * local**3 / 3.0
        work.append(
            Work(
                entries=single * groups * n * n + t * (2.0 * n + local * local) + 2.0 * single * groups * n * rank,
                operations=single * (2.0 * n * n * t + algebra) + applications + expected + solutions,
                vectors=2.0 * t,
            )
        )
    elif double:
        work.append(Work(double_operations=double * (4.0 * n * rank * t + algebra)))
    returned = 8.0 * t * (2 * sizes.p + 3)
    return [
        _landmarks(sizes, rank),
        Phase("factor", 1.0, each=built, alone=order),
        Phase("batches", 1.0, _sum(*work), rounds=1, pieces=batches.batches, returned=returned),
    ]


def _in(double: bool, entries: float, operations: float) -> Work:
    if double:
        return Work(double_entries=entries, double_operations=operations)
    return Work(entries=entries, operations=operations)


def _sum(*works: Work) -> Work:
    return Work(**{each.name: sum(getattr(work, each.name) for work in works) for each in fields(Work)})
