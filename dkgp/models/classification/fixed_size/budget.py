"""Passes and seconds that the search of a fixed-size LS-SVM will take at most, before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.solvers.prices import Prices, Work

# Widths that a search by whole pools looks at, as many as it asks for at a time. Penalties of each, and of the whole
# pool in the end.
WIDTHS = {"shared": (3, 2, 2), "grid": (2,) * 5}
PENALTIES, POOL_PENALTIES = {"shared": 8, "grid": 10}, 5
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


def most_widths(search: str) -> int:
    """Widths that a search by whole pools looks at, at most."""
    return sum(WIDTHS[search])


def factor_operations(m: float, outputs: int, folds: int, penalties: int) -> float:
    """Operations of fitting all m prototypes to all but each fold, at every penalty."""
    return penalties * folds * (m**3 / 3.0 + 4.0 * m**2 * outputs)


def foresee_search(
    shape: tuple[int, int, int],
    pool: int,
    *,
    folds: int,
    threads: int,
    together: int = 3,
    search: str = "shared",
    weighings: int = 1,
) -> ForeseenSearch:
    """Foresee the search of n samples: `together` widths a pass, and `weighings` of the samples at the best width.

    `shape` is n, features and outputs.
    """
    n, d, outputs = shape
    prices, judging = Prices.nominal(d), min(pool, JUDGING)

    def seconds(m: int, penalties: int) -> float:
        sums = n * float(m) ** 2 + 2.0 * n * m * outputs
        factors = factor_operations(float(m), outputs, folds + 1, penalties)
        errors = 2.0 * n * m * outputs
        work = Work(double_entries=2.0 * n * m, double_operations=sums + factors + errors)
        return prices.seconds(work) / threads

    width, whole = seconds(judging, PENALTIES[search]), seconds(pool, POOL_PENALTIES)
    passes = sum(-(-count // max(1, together)) for count in WIDTHS[search]) + weighings
    return ForeseenSearch(pool, judging, passes, width, whole, most_widths(search) * width + weighings * whole)
