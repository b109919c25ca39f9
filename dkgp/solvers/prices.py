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
    "Phase",
    "Prices",
    "Sizes",
    "Work",
    "cholesky_phases",
    "conjugate_phases",
    "core_seconds",
    "descent_phases",
    "product_phase",
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
# n-vectors of a round of descent: gradient and solution, and the steps remembered with their images.
DESCENT_VECTORS = 16.0


@dataclass(frozen=True)
class Work:
    """Counts of what takes time.

    Attributes
    ----------
    entries, double_entries
        Kernel entries, evaluated in float32 and float64.
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
    hidden
        The coordinator's work runs beside the phase before, where the executor overlaps.
    """

    name: str
    times: float
    shared: Work = NOTHING
    threaded: Work = NOTHING
    alone: Work = NOTHING
    rounds: int = 0
    pieces: int = 1
    paired: bool = False
    sent: float = 0.0
    returned: float = 0.0
    sent_to_each: float = 0.0
    hidden: bool = False

    def core_seconds(self, prices: Prices) -> float:
        """Seconds of one core, all times together."""
        work = sum(prices.seconds(each) for each in (self.shared, self.threaded, self.alone))
        return self.times * (work + self.rounds * ROUND_SECONDS)


def core_seconds(phases: Iterable[Phase], prices: Prices) -> float:
    """Seconds of one core for a whole solve: what solvers are compared by."""
    return sum(phase.core_seconds(prices) for phase in phases)


def _check(sizes: Sizes, times: float) -> Phase:
    """Products in float64 with all of K, which verify the gradient."""
    return replace(product_phase("check", sizes, times), shared=sizes.whole(double=True))


def product_phase(name: str, sizes: Sizes, times: float) -> Phase:
    """Float32 products with all of K."""
    # Each pair of blocks takes a block of the vectors, more or less, and brings back two.
    blocks, numbers = sizes.blocks, float(sizes.n * sizes.p)
    pairs = blocks * (blocks + 1) // 2
    moved = 8.0 * numbers * pairs / blocks
    adding = Work(vectors=2.0 * numbers * pairs / blocks)
    return Phase(
        name, times, sizes.whole(), alone=adding, rounds=1, pieces=pairs, paired=True, sent=moved, returned=2.0 * moved
    )


def conjugate_phases(
    sizes: Sizes,
    products: float,
    *,
    halo: int = 0,
    leaf: int = 0,
    rank: int = 0,
    checks: float = 1.0,
    spilled: float = 0.0,
) -> list[Phase]:
    """Phases of conjugate gradients on a block-Vecchia factor, a low-rank one (`halo` and `leaf` 0), both, or none.

    Parameters
    ----------
    products, checks : float
        Expected: float32 products with K, one an iteration, and float64 ones.
    spilled : float
        Share of the leaves that lies on disk.
    """
    n, p = sizes.n, sizes.p
    phases = []
    if leaf:
        # kd order: at each level a variance and a partition of everything.
        levels = max(1.0, math.log2(max(2.0, n / leaf)))
        phases.append(Phase("order", 1.0, alone=Work(vectors=n * levels * (sizes.d + 10.0))))
    if rank:
        pool = float(min(n, samples_drawn_from(rank)))
        landmarks = Work(double_entries=pool * rank, double_operations=2.0 * pool * rank**2)
        phases.append(Phase("landmarks", 1.0, threaded=landmarks))
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
    phases.append(product_phase("products", sizes, products))
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
