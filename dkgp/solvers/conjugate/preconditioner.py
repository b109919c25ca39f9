"""A preconditioner for conjugate gradients: M near Kbar, of one factor that is made once and lies with the workers.

With a halo it is the block-Vecchia factor (`dkgp.operators.vecchia`): samples in an order by place are cut into leaves,
each conditioned on its halo, the nearest samples before it; the part of the matrix that a low-rank factor represents
may be taken off first. With a halo of 0 it is the low-rank factor alone, M = F F' + s2 I.

A factor grows if a solve proves harder than foreseen: one of twice the halo takes its place, and the search goes on.
Counts and residuals alone decide, so that a run comes to the same bits wherever it runs and however often it is
interrupted. The gain of the last iterations gives the number that is left; a factor of twice the halo should need
2^-3/4 of them, and costs its construction, by the nominal prices of `dkgp.solvers.prices`. The work of solves and of
predictive variances on a factor is counted phase by phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import process_threads
from dkgp.errors import InputError, UsageError
from dkgp.operators.base import IndexArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner, low_rank_bytes
from dkgp.operators.low_rank.local_polynomials import LocalPolynomialPreconditioner
from dkgp.operators.low_rank.pivots import (
    SINGLE_FROM_RANK,
    RandomlyPivotedCholesky,
    samples_drawn_from,
    stand_in,
)
from dkgp.operators.vecchia.factor import VecchiaFactor, vecchia_bytes
from dkgp.solvers.prices import (
    NOTHING,
    SPREAD,
    Expected,
    Phase,
    Prices,
    Sizes,
    Work,
    check_phase,
    core_seconds,
    product_phase,
)
from dkgp.solvers.registry import SolverMemory

# A leaf's halo is found among so many samples for each of it; half of all on average where there are fewer.
SEARCHED = 40.0
# LAPACK on some hundred rows takes longer for an operation than a large product does.
LEAF_ALGEBRA = 1.5
# Each leaf takes time beside its numbers: as much as so many numbers of vectors, to be made and to be applied.
LEAF_MADE, LEAF_APPLIED = 4e5, 1.5e4
# T is read once, and used twice, where there are no landmarks.
ONE_SWEEP = 1.25
# Local polynomials of a cell, and their evaluation.
POLYNOMIALS = 60.0
# Samples of a batch whose widths are looked at after each product.
LOOKED_AT = 64
# Columns of a batch that a product takes at once.
COLUMNS_AT_ONCE = 64
# Rows of a factor that one task makes, at least.
FACTOR_ROWS = 4096


def _products(sizes: Sizes, times: float, kept: float) -> list[Phase]:
    """Products; the first one fills the kept tiles."""
    if not kept or sizes.double:  # kept tiles are float32
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
    # The proof of a sample: 6 n R, each time (`dkgp.models.variance.iterative`).
    proofs = max(1.0, double)
    work = [
        Work(double_entries=n * t),
        _in(batches.double or not (single + double), proofs * groups * n * rank, proofs * t * 6.0 * n * rank),
        Work(double_entries=double * entries, double_operations=double * t * 2.0 * n * n),
    ]
    # Conjugate directions: their products with each other, and their coefficients.
    algebra = 10.0 * n * at_once * t
    if single:
        local = float(min(batches.local, sizes.n))
        applications = (single + 1.0) * t * 4.0 * n * (halo + halo / 4.0)
        expected = single * groups * min(at_once, LOOKED_AT) * 4.0 * n * rank
        solutions = t * LEAF_ALGEBRA * local**3 / 3.0
        work.append(
            Work(
                entries=single * entries + t * (n + local * local / 2.0) + 2.0 * single * groups * n * rank,
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
        solutions = Work(entries=t * local * local / 2.0, operations=t * LEAF_ALGEBRA * local**3 / 3.0)
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
    # Conjugate directions: their products with each other, and their coefficients.
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


# Iterations beyond which a factor is no choice.
MOST_ITERATIONS = 400
# By default a factor may take as much, and so many float32 numbers a sample where that is more.
LEAST_BYTES, NUMBERS_A_SAMPLE = 1024**3, 640
# Alone, the factor takes 2 n R^2 operations and saves passes of n^2 kernel entries each: with R = 10 sqrt(n) both weigh
# about the same at 100 passes saved.
RANK_PER_SQRT_N = 10.0
# Beside a halo it represents the common part of all samples, and a low rank is enough.
RANK_PER_SAMPLE, LARGEST_RANK_BESIDE_A_HALO = 0.01, 300
# All leaves' factors take 3 n s^2 operations: with s = n / 20 that comes to 20 products at n = 30,000, and with
# s = 8 sqrt(n) beyond. Too small a halo is worth less than none.
HALO_PER_SAMPLE, HALO_PER_SQRT_N, LEAST_HALO = 0.05, 8.0, 256
# Nodes of local polynomials, by default: their factor takes m^3 / 3 operations on one core.
MOST_NODES = 4000
# Iterations whose residuals say how fast it goes; conjugate gradients' norms go up and down.
WINDOW = 12
# The number of products falls about as s^-3/4: kin40k and others, n = 30,000, s from 500 to 2,000.
PRODUCTS_BY_HALO = 0.75
# The least gain over the price, since the remaining count is a guess.
LEAST_RETURN = 1.5
MOST_LEVELS = 3


def factor_bytes_allowed(n: int) -> int:
    """Bytes that a factor of n samples may take where nobody says otherwise."""
    return max(LEAST_BYTES, 4 * NUMBERS_A_SAMPLE * n)


def expected_second_step(condition: float) -> float:
    """Length that a second step has at most beside the first one, by n e / (R s2) of a low-rank factor.

    e is the mean part of k(x, x) that its R landmarks leave. From .31 of that number, where it is 1e-4, to .06, at one
    half (Friedman1 and a wave in two dimensions, n = 8,000).
    """
    return condition / 3.0


Landmarks: TypeAlias = Literal["pivoted", "uniform", "polynomials"]


class Preconditioner(Protocol):
    """M^-1 for some M near Kbar, of many vectors at once.

    - `second_step`: about how long a second step is beside the first one, where something tells; infinite elsewhere.
    """

    second_step: float

    def apply(self, residual: NDArray[Any]) -> NDArray[Any]:
        """M^-1 r for r (n, t), a new array."""


class Preconditioning(Protocol):
    """Settings of a solver's preconditioner, and the making of it."""

    def resolved(self, n: int, d: int, p: int = 1) -> Preconditioning:
        """Return the settings with every automatic choice made."""

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""

    def build(self, operator: KernelOperator) -> Preconditioner:
        """Make M for an operator."""


@dataclass(frozen=True)
class Price:
    """Nominal seconds of a factor: to make it, and of an iteration with it, product included."""

    build: float
    iteration: float


@dataclass
class Growth:
    """Count of how often the factor has grown, and how the residual fell since.

    - `level`: times that the halo was doubled.
    - `norms`: ||g|| before the last iterations with the factor at hand.
    """

    level: int = 0
    norms: list[float] = field(default_factory=list)

    def note(self, norm: float) -> None:
        """Take in where an iteration starts from."""
        self.norms = [*self.norms[-WINDOW:], norm]

    def is_worth(self, needed_fall: float, now: Price, larger: Price) -> bool:
        """True if a larger factor should pay, where the gradient must still fall by `needed_fall`."""
        if self.level >= MOST_LEVELS or len(self.norms) <= WINDOW or not 1.0 < needed_fall < math.inf:
            return False
        fall = math.log(self.norms[0] / self.norms[-1]) / WINDOW if self.norms[-1] > 0.0 else math.inf
        iterations = math.log(needed_fall) / max(fall, 1e-9)
        fewer = iterations / math.pow(2.0, PRODUCTS_BY_HALO)
        return iterations * now.iteration > fewer * larger.iteration + LEAST_RETURN * larger.build

    def grow(self) -> None:
        """Go on with a larger factor."""
        self.level, self.norms = self.level + 1, []

    def metadata(self) -> dict[str, Any]:
        """Plain JSON types, for a checkpoint."""
        return {"level": self.level, "norms": self.norms}

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Growth:
        """Go on from a checkpoint; one of before factors grew has no such thing."""
        return cls(int(saved.get("level", 0)), list(saved.get("norms", ())))


@dataclass(frozen=True)
class FactorPreconditioning:
    """Settings of the factor.

    Parameters
    ----------
    halo : int or "auto"
        s, the samples that a leaf is conditioned on; 0 for the low-rank factor alone. "auto" takes n / 20, or 8 sqrt(n)
        if that is less, within the memory.
    leaf : int or "auto"
        g, the samples of a leaf; "auto" takes half of the halo.
    rank : int or "auto"
        R, landmarks of the low-rank factor; none with 0, which takes a halo. "auto" takes n / 100 beside a halo, 300 at
        most; alone 10 sqrt(n), or fewer if the memory allows no more.
    landmarks : {"pivoted", "uniform", "polynomials"}
        "pivoted" draws them by randomly pivoted Cholesky, "uniform" at random (the Nystrom method).
        "polynomials" takes the nodes of local polynomials in their place, for a kernel of up to three features, and no
        halo (`dkgp.operators.low_rank.local_polynomials`).
    memory_bytes : int or None
        Memory limit of the factor in all workers together. Automatic choices stay within a gibibyte, or 2,560
        bytes a sample, and only the plan of a run's memory refuses sizes that the user names.

    References
    ----------
    M. Diaz, E. Epperly, Z. Frangella, J. Tropp, R. Webber, Robust, randomized preconditioning for kernel ridge
    regression (2023).
    """

    halo: int | Literal["auto"] = "auto"
    leaf: int | Literal["auto"] = "auto"
    rank: int | Literal["auto"] = "auto"
    landmarks: Landmarks = "pivoted"
    memory_bytes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, size, least in (("halo", self.halo, 0), ("leaf", self.leaf, 1), ("rank", self.rank, 0)):
            if size != "auto" and size < least:
                raise InputError(f"the preconditioner's {name} must be 'auto' or at least {least}; got {size!r}")
        if self.halo == 0 and self.rank == 0:
            raise InputError(
                "a preconditioner is made of a halo, of landmarks, or of both; got `halo` 0 and `rank` 0. Raise one of "
                "them, or take conjugate gradients without a preconditioner: `solver` cg"
            )
        if self.halo == 0 and self.leaf != "auto":
            raise InputError(f"a leaf goes with a halo; got `leaf` {self.leaf} and `halo` 0. Leave `leaf` out")
        if self.landmarks not in get_args(Landmarks):
            raise InputError(f"landmarks must be one of {', '.join(get_args(Landmarks))}; got {self.landmarks!r}")
        if self.landmarks == "polynomials" and self.halo not in (0, "auto"):
            raise InputError(f"`landmarks` polynomials take no halo; got `halo` {self.halo}. Leave `halo` out")
        if self.rank == 0 and self.landmarks != "pivoted":
            raise InputError(f"there are no landmarks to draw with `rank` 0; got `landmarks` {self.landmarks}")
        if (self.memory_bytes is not None and self.memory_bytes < 1) or self.seed < 0:
            raise InputError(
                f"memory and seed of a preconditioner must not be negative; got {self.memory_bytes}, {self.seed}"
            )

    def resolved(self, n: int, d: int, p: int = 1) -> FactorPreconditioning:
        """Return the settings with halo, leaf and rank chosen for n samples.

        Raises
        ------
        InputError
            The named sizes exceed `memory_bytes`.
        """
        held = max(1, self._allowed(n) // (4 * n))  # numbers a sample
        if self.landmarks == "polynomials":
            automatic = min(MOST_NODES, math.ceil(RANK_PER_SQRT_N * math.sqrt(n)))
            return replace(self, halo=0, leaf="auto", rank=automatic if self.rank == "auto" else self.rank)
        if self.rank != "auto":
            rank = self.rank
        elif self.halo == 0:
            rank = min(held, math.ceil(RANK_PER_SQRT_N * math.sqrt(n)))
        else:
            rank = min(held // 4, LARGEST_RANK_BESIDE_A_HALO, math.ceil(RANK_PER_SAMPLE * n))
        if self.halo != "auto":
            halo = self.halo
        else:
            room = (held - rank) / 1.5 if self.leaf == "auto" else held - rank - self.leaf
            halo = max(LEAST_HALO, int(min(HALO_PER_SAMPLE * n, HALO_PER_SQRT_N * math.sqrt(n), room)))
        leaf = -(-halo // 2) if self.leaf == "auto" else self.leaf
        resolved = replace(self, halo=min(n, halo), leaf=min(n, leaf) if halo else "auto", rank=min(n, rank))
        named = rank if self.halo == "auto" else resolved.numbers
        if self.memory_bytes is not None and named > held:
            raise InputError(
                f"a factor of {named:,} numbers per sample (`halo`, `leaf` and `rank` together) takes "
                f"{4 * n * named:,} bytes for {n:,} samples; the preconditioner may take {self.memory_bytes:,}. Lower "
                f"them to {held:,} in all, or allow more memory"
            )
        return resolved

    def _allowed(self, n: int) -> int:
        return factor_bytes_allowed(n) if self.memory_bytes is None else self.memory_bytes

    @property
    def numbers(self) -> int:
        """Float32 numbers that the factor, resolved, holds for each sample."""
        return sum(size for size in (self.halo, self.leaf, self.rank) if size != "auto")

    def grown(self, n: int, levels: int = 1) -> FactorPreconditioning:
        """Return the settings, resolved, with halo and leaf doubled so often; as they are where memory forbids it."""
        settings = self
        for _ in range(levels if self.halo else 0):
            halo, leaf = 2 * int(settings.halo), 2 * int(settings.leaf)
            if halo + leaf > n or 4 * n * (halo + leaf + int(self.rank)) > self._allowed(n):
                break
            settings = replace(settings, halo=halo, leaf=leaf)
        return settings

    def price(self, sizes: Sizes) -> Price:
        """Nominal seconds of the factor, resolved."""
        prices = Prices.nominal(sizes.d)
        none, one = (core_seconds(self.phases(sizes, products, checks=0.0), prices) for products in (0.0, 1.0))
        return Price(none, one - none)

    def expected(self, probe: Any) -> Expected:
        """Extrapolate a probe to the products of a solve with the factor, resolved."""
        halo, rank = int(self.halo), int(self.rank)
        if self.landmarks == "polynomials":
            return Expected.around(probe.polynomial_iterations(probe.extents, rank))
        count = probe.iterations(halo, int(self.leaf) if halo else 0, rank, MOST_ITERATIONS)
        if math.isinf(count):
            count = MOST_ITERATIONS * SPREAD
        opens = not halo and self.landmarks == "pivoted" and probe.opens_in_double(rank)
        return Expected.around(count, 2.0 if opens else 0.0)

    def leaf_bytes(self, n: int, width: int) -> int:
        """Bytes of the leaves that workers keep, or else read from disk."""
        if not self.halo:
            return 0
        return vecchia_bytes(n, int(self.halo), int(self.leaf), int(self.rank), width=width).kept

    def phases(
        self, sizes: Sizes, products: float, *, checks: float = 1.0, spilled: float = 0.0, kept: float = 0.0
    ) -> list[Phase]:
        """Work of conjugate gradients with the factor, resolved; see `conjugate_phases`."""
        if self.landmarks == "polynomials":
            return polynomial_phases(sizes, products, int(self.rank), checks=checks, kept=kept)
        leaf = int(self.leaf) if self.halo else 0
        sides = {"halo": int(self.halo), "leaf": leaf, "rank": int(self.rank)}
        return conjugate_phases(sizes, products, **sides, checks=checks, spilled=spilled, kept=kept)

    def memory(self, n: int, d: int) -> SolverMemory:
        """Bytes of the factor, resolved, as large as it may grow; `d` is how many numbers features have."""
        rank = int(self.rank)
        if self.landmarks == "polynomials":
            # A, its parts, and moments in transit; each worker keeps the places of its samples.
            return SolverMemory(own_bytes=24 * rank * rank, cached_bytes=40 * n)
        coordinator = 8 * rank * (3 * rank + samples_drawn_from(rank)) if rank else 0
        if not self.halo:
            return SolverMemory(own_bytes=coordinator, factor_bytes=low_rank_bytes(n, rank, process_threads()))
        grown = self.grown(n, MOST_LEVELS)
        vecchia = vecchia_bytes(n, int(grown.halo), int(grown.leaf), rank, width=d, double=True)
        making = vecchia.points + process_threads() * vecchia.making
        return SolverMemory(own_bytes=coordinator + vecchia.coordinator, factor_bytes=making, cached_bytes=vecchia.kept)

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types; those of a low-rank factor alone as they were before there was a halo."""
        settings = {**asdict(self), "memory_bytes": self.memory_bytes or LEAST_BYTES}
        return {name: value for name, value in settings.items() if self.halo or name not in ("halo", "leaf")}

    def build(self, operator: KernelOperator) -> Preconditioner:
        """Choose landmarks and factorise; every worker builds its own part."""
        if not isinstance(operator, BlockedKernelOperator):
            raise UsageError(
                f"a preconditioner of a factor needs a BlockedKernelOperator; got {type(operator).__name__}"
            )
        operator.executor.require_one_arithmetic()
        if self.landmarks == "polynomials":
            return LocalPolynomialPreconditioner(operator, int(self.rank))
        landmarks, residual = self._drawn(operator)
        if self.halo == 0:
            second = expected_second_step(operator.n * residual / (len(landmarks) * operator.noise_variance))
            return LowRankPreconditioner(
                LowRankFactor(operator, landmarks), operator.noise_variance, second_step=second
            )
        return VecchiaFactor(operator, int(self.halo), int(self.leaf), landmarks)

    def choose(self, operator: BlockedKernelOperator) -> IndexArray:
        """Draw the landmarks: (rank,) samples, sorted; fewer where the kernel's numerical rank is reached."""
        return self._drawn(operator)[0]

    def _drawn(self, operator: BlockedKernelOperator) -> tuple[IndexArray, float]:
        """The landmarks, and the mean part of k(x, x) that they leave; infinite if it is not known."""
        n = operator.n
        rank = n if self.rank == "auto" else self.rank
        rng = np.random.default_rng(self.seed)
        if rank == 0:
            return np.zeros(0, np.intp), math.inf
        if self.landmarks == "uniform":
            return np.sort(rng.permutation(n)[:rank]).astype(np.intp), math.inf
        subset = stand_in(n, rank, rng)
        inputs = operator.inputs(subset)
        prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
        factor = RandomlyPivotedCholesky(operator.double, operator.double.prepare(inputs), prior, rank, rng)
        while not factor.complete:
            factor.extend()
            if factor.rank >= max(rank // 2, SINGLE_FROM_RANK):
                factor.continue_in_single_if_rough()
        return np.sort(subset[factor.pivots]), float(factor.residual.sum() / max(1, len(subset) - factor.rank))
