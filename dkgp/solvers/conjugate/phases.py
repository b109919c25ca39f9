"""The work of conjugate gradients on a factor, phase by phase: of a solve, and of predictive variances."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.solvers.prices import NOTHING, Phase, Sizes, Work, check_phase, product_phase

# A leaf's halo is found among so many samples for each of it; half of all on average where there are fewer.
SEARCHED = 40.0
# LAPACK on some hundred rows takes longer for an operation than a large product does.
LEAF_ALGEBRA = 1.5
# Each leaf takes time beside its numbers: as much as so many numbers of vectors, to be made and to be applied.
LEAF_MADE, LEAF_APPLIED = 4e5, 1.5e4
# T is read once, and used twice, where there are no landmarks.
ONE_SWEEP = 1.25
# Local polynomials of a cell, with what it takes to evaluate them.
POLYNOMIALS = 60.0
# Samples of a batch whose widths are looked at after each product.
LOOKED_AT = 64
# Columns of a batch that a product takes at once.
COLUMNS_AT_ONCE = 64
# Rows of a factor that one task makes, at least.
FACTOR_ROWS = 4096


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

    - `products`, `checks`: expected: float32 products with K, one an iteration, and float64 ones.
    - `spilled`: share of the leaves that lies on disk.
    - `kept`: share of K that workers keep.
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
            vectors=LEAF_APPLIED * n / leaf if leaf else 0.0,
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
    return [*phases, check_phase(sizes, checks)]


def polynomial_phases(
    sizes: Sizes, products: float, rank: int, *, checks: float = 1.0, kept: float = 0.0
) -> list[Phase]:
    """Phases of conjugate gradients on a factor of local polynomials with `rank` nodes; see `conjugate_phases`."""
    n, p, m = float(sizes.n), sizes.p, float(rank)
    made = Work(double_entries=m * m, double_operations=m**3 / 3.0 + 64.0 * m * m)
    moments = Work(double_operations=2.0 * n * POLYNOMIALS, read=n * sizes.d)
    # The factor is read twice; a sample takes the polynomials of its cell, forward and backward.
    applied = Work(bytes=16.0 * m * m)
    swept = Work(double_operations=4.0 * n * POLYNOMIALS * p, vectors=6.0 * n * p)
    vector = 8.0 * n * p
    return [
        Phase("factor", 1.0, moments, alone=made, rounds=2, pieces=sizes.blocks),
        *_products(sizes, products, kept),
        Phase(
            "application",
            products + 1.0,
            swept,
            alone=applied,
            rounds=2,
            pieces=sizes.blocks,
            sent=vector,
            sent_to_each=8.0 * m * p,
            returned=vector,
        ),
        check_phase(sizes, checks),
    ]


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
        vectors=LEAF_MADE * leaves,
    )


@dataclass(frozen=True)
class Batches:
    """Test samples whose variances are found in batches.

    - `tests`, `batches`, `together`: samples; tasks; samples at most that are solved for together.
    - `rank`, `halo`, `local`: landmarks of the factor that proves; samples of a halo of the factor that preconditions,
      0 for none; samples of a local solution.
    - `double`: whether the factor that proves is float64.
    - `single_products`, `double_products`: products with K that a sample takes part in, in each precision.
    - `threads`: of a process, that share one batch.
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
    threads: int = 1


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
    # Entries are evaluated once for their row and their column.
    entries = groups * _turns(at_once)[0] * n * n / 2.0
    # What is proven of a sample: 6 n R, each time (`dkgp.models.variance.iterative`).
    proofs = max(1.0, double)
    work = [
        Work(double_entries=n * t),
        _in(batches.double or not (single + double), proofs * groups * n * rank, proofs * t * 6.0 * n * rank),
        Work(double_entries=double * entries, double_operations=double * t * 2.0 * n * n),
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
                entries=single * entries + t * (2.0 * n + local * local) + 2.0 * single * groups * n * rank,
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
        Phase("batches", 1.0, _sum(*work), rounds=1, pieces=batches.batches * batches.threads, returned=returned),
    ]


def shared_phases(sizes: Sizes, batches: Batches) -> list[Phase]:
    """Phases of the same variances where all workers share each batch; the coordinator holds its vectors."""
    n, t, rank, halo = float(sizes.n), float(batches.tests), batches.rank, batches.halo
    single, double = batches.single_products, batches.double_products
    at_once = min(float(batches.together), math.ceil(t / max(1, batches.batches)))
    groups = math.ceil(t / at_once)
    turns, columns = _turns(at_once)
    turns, wide = groups * turns, replace(sizes, p=columns)
    # Triangles and sums of the factor's square go to workers and between them.
    square = 8.0 * rank**2
    factor = Phase(
        "factor",
        1.0,
        _in(batches.double, n * rank, 2.0 * n * rank**2),
        threaded=Work(double_operations=2.0 * rank**3 / 3.0),
        rounds=1,
        pieces=max(1, sizes.n // FACTOR_ROWS),
        returned=square,
        sent_to_each=8.0 * rank * sizes.d,
    )
    phases = [_landmarks(sizes, rank), factor]
    if single:
        local = float(min(batches.local, sizes.n))
        solutions = Work(entries=t * (n + local * local), operations=t * LEAF_ALGEBRA * local**3 / 3.0)
        phases.append(Phase("local solutions", 1.0, solutions, rounds=groups, pieces=batches.tests))
        phases.append(product_phase("products", wide, single * turns))
        if halo:
            leaf = -(-halo // 2)
            made, order = leaves_work(sizes, halo, leaf, 0), _ordering(sizes, leaf)
            leaves = max(1, sizes.n // leaf)
            phases.append(Phase("leaves", 1.0, made, each=order, rounds=2, pieces=leaves))
            moved = 4.0 * 2.0 * n * t
            applied = Work(operations=t * 4.0 * n * (halo + halo / 4.0))
            phases.append(
                Phase("application", single + 1.0, applied, rounds=turns, pieces=leaves, sent=moved, returned=moved)
            )
    phases.append(product_phase("check", replace(wide, double=True), double * turns))
    proofs = Work(double_entries=groups * n * rank, double_operations=t * 4.0 * n * rank)
    phases.append(Phase("proofs", single + double, proofs, rounds=2 * groups, pieces=sizes.blocks, sent=8.0 * n * t))
    # Conjugate directions: their products with each other, and what they are taken times.
    algebra = Work(operations=10.0 * n * at_once * t, vectors=2.0 * n * t)
    phases.append(Phase("directions", single + double, threaded=algebra))
    return phases


def _turns(columns: float) -> tuple[int, int]:
    """Return in how many turns a product takes so many columns, and the columns of a turn."""
    turns = math.ceil(columns / COLUMNS_AT_ONCE)
    return turns, math.ceil(columns / turns)


def _in(double: bool, entries: float, operations: float) -> Work:
    if double:
        return Work(double_entries=entries, double_operations=operations)
    return Work(entries=entries, operations=operations)


def _sum(*works: Work) -> Work:
    return Work(**{kind.name: sum(getattr(work, kind.name) for work in works) for kind in fields(Work)})
