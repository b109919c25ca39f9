"""Work counted in kernel entries, operations and bytes, phase by phase, and its prices: one model for all solvers.

`auto` compares solvers by it, on one core of a nominal machine; `dkgp plan` lays the same phases out over workers of a
machine whose prices it has measured. How often a phase comes about (products, column passes) is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

# A round of tasks at nominal prices: messages, and adding up.
ROUND_SECONDS = 2e-3
# Factor between an extrapolated count and its limits.
SPREAD = 1.5


@dataclass(frozen=True)
class Work:
    """Counts of the operations that take time.

    - `entries`, `double_entries`: kernel entries, evaluated in float32 and float64.
    - `filled`, `kept`: Float32 entries that are evaluated and kept for the first time, and that are read from where
      they were kept.
    - `operations`, `double_operations`: additions and multiplications of products of matrices, with the kernel's or
      others.
    - `bytes`, `spilled`: of a factor: read from memory and used, and read from disk before.
    - `vectors`: numbers of n-vectors, read and written.
    - `drawn`, `dense`: variables that a greedy selection chooses, and cubes of block sizes: its algebra.
    - `read`: values of X, read from the store and prepared.
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
_KINDS = tuple(kind.name for kind in fields(Work))


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
        return cls(**{name: 1e-9 * getattr(nanoseconds, name) for name in _KINDS})

    def seconds(self, work: Work) -> float:
        """Seconds of one core."""
        price, counts = self.__dict__, work.__dict__
        return float(sum([price[name] * counts[name] for name in _KINDS]))


@dataclass(frozen=True)
class Sizes:
    """A problem, as far as prices depend on it.

    - `n`, `d`, `p`: samples, features, right-hand sides.
    - `double`: whether all kernel entries are evaluated in float64.
    - `blocks`: of samples: products come in pairs of them.
    - `evaluated`: cost of a product with all of K, in units of evaluating all entries; less where it is approximate.
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

    - `name`: as progress says it.
    - `times`: how often; an expected number may be a fraction.
    - `shared`, `threaded`, `alone`: work, each time: of the workers together, of the coordinator's threads together,
      and of one of them.
    - `rounds`, `pieces`: rounds of tasks, each time, and the pieces that their work comes in: there are no more tasks.
    - `paired`: the pieces are pairs of blocks, cut into squares whose sums workers add up.
    - `sent`, `returned`, `sent_to_each`: bytes that go out and come back each time, in all tasks together, and bytes
      goes out with each.
    - `each`: work of every worker's process, by its threads together: a factor that each makes for itself.
    - `by_rows`: the same phase where several worker processes hold the vectors' rows, if that pays.
    - `hidden`: the coordinator's work runs beside the phase before, where the executor overlaps.
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
    by_rows: Phase | None = None

    def core_seconds(self, prices: Prices) -> float:
        """Seconds of one core, all times together."""
        seconds = sum(prices.seconds(work) for work in (self.shared, self.threaded, self.alone, self.each))
        return self.times * (seconds + self.rounds * ROUND_SECONDS)


def core_seconds(phases: Iterable[Phase], prices: Prices) -> float:
    """Seconds of one core for a whole solve, the measure that solvers are compared by."""
    return sum(phase.core_seconds(prices) for phase in phases)


def check_phase(sizes: Sizes, times: float) -> Phase:
    """Products in float64 with all of K, which verify the gradient."""
    return product_phase("check", replace(sizes, double=True), times)


def product_phase(name: str, sizes: Sizes, times: float, *, kept: float = 0.0) -> Phase:
    """Float32 products with all of K; a share of the entries is read from kept tiles."""
    work = sizes.whole()
    work = replace(work, entries=(1.0 - kept) * work.entries, kept=kept * work.entries)
    # The vectors go out once, and the sums come back once: an integer, or two in double precision, for a number.
    numbers = float(sizes.n * sizes.p)
    words = 2.0 if sizes.double else 1.0
    return Phase(
        name,
        times,
        work,
        alone=Work(vectors=(1.0 + words) * numbers),
        rounds=1,
        pieces=sizes.blocks * (sizes.blocks + 1) // 2,
        paired=True,
        sent=8.0 * numbers,
        returned=8.0 * words * numbers,
    )


@dataclass(frozen=True)
class Expected:
    """An estimate with lower and upper limits.

    - `count`, `low`, `high`: iterations of conjugate gradients, column passes of block descent; 1 of a Cholesky factor.
    - `in_double`: iterations whose products are the float64 ones that verify, or replace them.
    """

    count: float
    low: float
    high: float
    in_double: float = 0.0

    @classmethod
    def around(cls, count: float, in_double: float = 0.0) -> Expected:
        """Return the estimate of a probe, with the limits that hold in most cases."""
        return cls(count, count / SPREAD, count * SPREAD, in_double)

    @property
    def products(self) -> tuple[float, float, float]:
        """`count`, `low` and `high` of the products that are not float64 ones."""
        count, low, high = (max(0.0, number - self.in_double) for number in (self.count, self.low, self.high))
        return count, low, high
