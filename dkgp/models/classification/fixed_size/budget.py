"""Passes and seconds that the search of a fixed-size LS-SVM will take at most, before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.solvers.prices import Prices, Work

# Widths that a search looks at: three, and twice two at most. Penalties of each, and of the whole pool.
WIDTHS = (3, 2, 2)
MOST_WIDTHS = sum(WIDTHS)
PENALTIES, POOL_PENALTIES = 8, 5
# Prototypes that widths are judged by, at most.
JUDGING = 1000


@dataclass(frozen=True)
class ForeseenSearch:
    """A search before it begins.

    `pool` prototypes, of which `judging` judge the widths; `passes` over all samples at most; seconds of a width,
    and of all prototypes at the best, on cores that do nothing else; `seconds` of all.
    """

    pool: int
    judging: int
    passes: int
    width_seconds: float
    pool_seconds: float
    seconds: float


def factor_operations(m: float, outputs: int, folds: int, penalties: int) -> float:
    """Operations of fitting all m prototypes to all but each fold, at every penalty."""
    return penalties * folds * (m**3 / 3.0 + 4.0 * m**2 * outputs)


def foresee_search(
    n: int, d: int, outputs: int, pool: int, *, folds: int, threads: int, together: int = 3, weighings: int = 1
) -> ForeseenSearch:
    """Foresee the search of n samples: `together` widths a pass, and `weighings` of the samples at the best width."""
    prices, judging = Prices.nominal(d), min(pool, JUDGING)

    def seconds(m: int, penalties: int) -> float:
        sums = n * float(m) ** 2 + 2.0 * n * m * outputs
        factors = factor_operations(float(m), outputs, folds + 1, penalties)
        errors = 2.0 * n * m * outputs
        work = Work(double_entries=2.0 * n * m, double_operations=sums + factors + errors)
        return prices.seconds(work) / threads

    width, whole = seconds(judging, PENALTIES), seconds(pool, POOL_PENALTIES)
    passes = sum(-(-count // max(1, together)) for count in WIDTHS) + weighings
    return ForeseenSearch(pool, judging, passes, width, whole, MOST_WIDTHS * width + weighings * whole)
