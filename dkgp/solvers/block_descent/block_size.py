"""The block size m for `auto`: the smallest projected time for a given n and d, and when to raise it.

Costs are nominal (`dkgp.solvers.prices`): nothing is timed at run time, so that a seeded run is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from dkgp.solvers.prices import Phase, Prices, Sizes, Work, check_phase

if TYPE_CHECKING:
    from dkgp.solvers.conjugate.probe import Probe

CHOICES = (250, 500, 750, 1000, 1500, 2000, 3000, 4000)
# On problems that are done in a few passes, these fall with the block size about as m**-0.2 (Friedman1, california,
# pumadyn32nm); a solve starts as if it was one of those.
PASSES_EXPONENT = 0.2
# For any block size, a tenfold decrease of the gradient takes about this many passes: every variable has to be
# moved. The further passes of a problem fall about as 1 / m (kin40k, sarcos, 500 to 4,000 variables).
LEAST_PASSES_PER_DECADE = 0.8
EXCESS_EXPONENT = 1.0
MOST_PASSES_PER_DECADE = 1000.0
# A larger share of all variables might as well be the whole matrix, factorised once.
LARGEST_SHARE = 0.5
LEAST_CANDIDATES = 20
# Blocks grow for a projected gain of this share at least.
LEAST_GAIN = 0.1
# How fast a solve gets on is judged after this share of a column pass, and again after every further one.
REVIEW_PASSES = 0.5
# Products with a block's own matrix that refine its last solution, on average over a run.
REFINEMENTS = 2.5
# n-vectors of a round of descent: gradient and solution, and the steps remembered with their images.
DESCENT_VECTORS = 16.0
# Column passes of a whole solve, by the condition number that a low-rank factor leaves (`dkgp.solvers.auto`).
PASSES_LEAST, PASSES_PER_CONDITION = 3.0, 0.09
# The residual curve is not followed further: samples far out keep it from falling on.
PASSES_RANK_PER_SQRT_N, PASSES_RANKS_TOLD = 10.0, 2.5
# Workers hold the vectors' rows where the coordinator's numbers of a round are fewer by this factor.
LEAST_FEWER = 4.0
# Fewer bytes are not worth the trouble: a link of 1 Gbit/s takes 32 ms for these.
LEAST_BYTES = 4e6
# Of a round, on a cluster.
MESSAGES_SECONDS = 5e-3


@dataclass(frozen=True)
class BlockSizes:
    """The block sizes of a run, every automatic choice made.

    - `first`, `largest`: m at the start and at most.
    """

    n: int
    d: int
    candidates: int
    first: int
    largest: int

    @classmethod
    def of(
        cls, n: int, d: int, candidates: int, first: int | Literal["auto"], largest: int | Literal["auto"]
    ) -> BlockSizes:
        """Choose the open sizes; only blocks that candidates are drawn for grow, and unasked only automatic ones."""
        size = min(n, automatic_block_size(n, d, candidates) if first == "auto" else first)
        if not candidates:
            largest = size
        elif largest == "auto":
            largest = largest_automatic_block_size(n, size) if first == "auto" else size
        return cls(n, d, candidates, size, min(max(largest, size), n))


@dataclass
class BlockGrowth:
    """The size of the blocks to come, which grows where the gradient falls slowly for the columns spent.

    - `size`: m of the next selection.
    - `review_columns`, `review_norm`: columns and norm of the gradient when growth was last considered; norm 0: nowhere
      yet.
    """

    sizes: BlockSizes
    size: int
    review_columns: int = 0
    review_norm: float = 0.0

    def review(self, columns: int, gradient_norm: Callable[[], float]) -> None:
        """Consider growth after `columns` kernel columns; `gradient_norm` returns the largest ||g|| of a target.

        The first half pass is not counted: it reduces the gradient quickly on any problem.
        """
        n, d, candidates, first, largest = astuple(self.sizes)
        passes = (columns - self.review_columns) / n
        if self.size >= largest or passes < REVIEW_PASSES:
            return
        norm = gradient_norm()
        if self.review_norm > 0.0 and norm > 0.0:
            decades = float(np.log10(self.review_norm / norm))
            pace = passes / decades if decades > 0.0 else np.inf
            self.size = grown_block_size(n, d, candidates, first, self.size, pace, largest)
        self.review_columns, self.review_norm = columns, norm


def projected_round(n: int, d: int, candidates: int, m: int, entry_share: float = 1.0) -> float:
    """Projected core seconds of a round with block size m, up to a common factor.

    - `entry_share`: the price of a kernel entry over the usual one.
    """
    prices = Prices.nominal(d)
    entries = entry_share * (n * m + candidates * m * m / 2)
    return prices.seconds(Work(entries=entries, drawn=m, dense=float(m) ** 3)) + MESSAGES_SECONDS


def automatic_block_size(n: int, d: int, candidates: int) -> int:
    """Return the block size to start with: the least projected cost of a solve that takes few passes, at most n."""
    costs = [projected_round(n, d, candidates, m) / m ** (1.0 + PASSES_EXPONENT) for m in CHOICES]
    return min(CHOICES[int(np.argmin(costs))], n)


def largest_automatic_block_size(n: int, start: int) -> int:
    """Return the largest size that a block of `start` variables may grow to."""
    return max(start, min(CHOICES[-1], int(LARGEST_SHARE * n)))


def grown_candidates(candidates: int, start: int, m: int) -> int:
    """Return kappa for blocks that have grown from `start` to m variables.

    The number of draws in a round stays the same, so that the cost of scoring them grows as m only; in blocks that
    are a large share of the samples it makes little difference.
    """
    return min(candidates, max(LEAST_CANDIDATES, candidates * start // m))


def grown_block_size(
    n: int, d: int, candidates: int, start: int, m: int, passes_per_decade: float, largest: int
) -> int:
    """Return the block size, m or above, with which the rest of a solve costs least.

    - `start`, `m`, `largest`: block sizes: at the start, now, and at most.
    - `passes_per_decade`: column passes that the last tenfold decrease of the gradient would have taken at size m; may
      be infinite.
    """
    excess = min(passes_per_decade, MOST_PASSES_PER_DECADE) - LEAST_PASSES_PER_DECADE
    if not excess > 0.0:
        return m
    choices = [m, *(size for size in CHOICES if m < size < largest), *([largest] if largest > m else [])]

    def cost(size: int) -> float:
        passes = LEAST_PASSES_PER_DECADE + excess * float((m / size) ** EXCESS_EXPONENT)
        return projected_round(n, d, grown_candidates(candidates, start, size), size) / size * passes

    best = min(choices, key=cost)
    return best if cost(best) <= (1.0 - LEAST_GAIN) * cost(m) else m


def expected_passes(probe: Probe) -> float:
    """Column passes of greedy block descent."""
    followed = PASSES_RANKS_TOLD * probe.curve.ranks[-1]
    rank = min(float(probe.n), PASSES_RANK_PER_SQRT_N * math.sqrt(probe.n), followed)
    return (PASSES_LEAST + PASSES_PER_CONDITION * probe.condition(rank)) * probe.digits


def moved_by_rows(p: int, memory: int, m: int, candidates: int) -> float:
    """Bytes that a round brings to the coordinator where workers hold the vectors' rows.

    These are the gradient and the remembered images at the candidates of a coming selection.
    """
    return 8.0 * p * (1 + memory) * m * max(1, candidates)


def pays_by_rows(n: int, p: int, memory: int, m: int, candidates: int) -> bool:
    """True if workers that are other processes had better hold the rows of the vectors.

    Otherwise the whole product comes to the coordinator. Both ways use the same link and have as many round trips, so
    bytes alone decide. No bit of the result depends on it.
    """
    return 8.0 * n * p >= max(LEAST_BYTES, LEAST_FEWER * moved_by_rows(p, memory, m, candidates))


def descent_phases(
    sizes: Sizes, m: int, candidates: int, passes: float, *, checks: float = 1.0, memory: int = 5
) -> list[Phase]:
    """Phases of greedy block descent with blocks of m variables, `passes` times n of them in all.

    - `candidates`: kappa; 0 for selections that score none.
    - `memory`: steps that a new one is conjugate to.
    """
    n, p, rounds = sizes.n, sizes.p, passes * sizes.n / m
    size = float(m)
    again = sizes.product(size, size, double=True)
    solve = Work(
        double_entries=REFINEMENTS * again.double_entries, double_operations=REFINEMENTS * again.double_operations
    )
    products = Phase(
        "products",
        rounds,
        sizes.product(n, size),
        alone=Work(vectors=DESCENT_VECTORS * n * p),
        rounds=1,
        pieces=sizes.blocks,
        sent_to_each=size * (4.0 * (sizes.d + 1) + 8.0 * p),
        returned=8.0 * n * p,
    )
    if pays_by_rows(n, p, memory, m, candidates):
        looked_at = size * max(1, candidates)
        by_rows = replace(
            products,
            shared=replace(products.shared, vectors=DESCENT_VECTORS * n * p),
            alone=Work(vectors=DESCENT_VECTORS * looked_at * p),
            sent=8.0 * looked_at,
            returned=moved_by_rows(p, memory, m, candidates),
        )
        products = replace(products, by_rows=by_rows)
    scored = Work(entries=candidates * size * size / 2.0, operations=candidates * size * size * p)
    return [
        Phase("solve", rounds, threaded=solve),
        products,
        Phase("selection", rounds, threaded=scored, alone=Work(drawn=size, dense=size**3), hidden=True),
        check_phase(sizes, checks),
    ]
