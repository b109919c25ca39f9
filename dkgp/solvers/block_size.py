"""The block size m for `auto`: the smallest projected time for a given n and d.

Costs are per-core figures in units of one float32 kernel entry, from `dkgp bench tiles` and `dkgp bench solve`; only
their ratios matter, and those move little between machines. Nothing is timed at run time, so that a seeded run is the
same everywhere.
"""

from __future__ import annotations

import numpy as np

__all__ = ["automatic_block_size", "projected_cost", "projected_round"]

CHOICES = (250, 500, 750, 1000, 1500, 2000, 3000, 4000)
# Column passes fall with the block size about as m**-0.5 when steps are conjugate to the last five.
PASSES_EXPONENT = 0.5


def projected_cost(n: int, d: int, candidates: int, m: int) -> float:
    """Projected core time of a solve with block size m, in nanoseconds up to a common factor.

    Parameters
    ----------
    n, d : int
        Samples and features.
    candidates : int
        kappa.
    m : int
        Block size.
    """
    rounds = (n / m) * m**-PASSES_EXPONENT
    return float(rounds * projected_round(n, d, candidates, m))


def projected_round(n: int, d: int, candidates: int, m: int, entry_share: float = 1.0) -> float:
    """Projected core time of one round, in nanoseconds; `entry_share` is the price of an entry, over the usual one."""
    entry_ns = (0.30 + 0.012 * d) * entry_share
    update = n * m * entry_ns
    selection = candidates * m * m / 2 * entry_ns
    dense = 0.008 * m**3 + 6e3 * m
    round_trip = 5e6
    return float(update + selection + dense + round_trip)


def automatic_block_size(n: int, d: int, candidates: int) -> int:
    """Return the block size with the least projected cost, at most n."""
    costs = [projected_cost(n, d, candidates, m) for m in CHOICES]
    return min(CHOICES[int(np.argmin(costs))], n)
