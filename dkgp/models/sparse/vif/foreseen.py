"""Counts of a model with neighbours before it is trained: the search for them, and passes over leaves."""

from __future__ import annotations

import math

from dkgp.models.sparse.vif.objective import Neighbours
from dkgp.operators.vecchia.halos import leaf_count
from dkgp.operators.vecchia.leaves import BUNDLE_ROWS
from dkgp.solvers.prices import Phase, Work

# Rows of F that a bundle makes for each of its own: those of halos are other bundles'.
HALO_SHARE = 2.0
# Operations of matrices as small as a leaf's, and of its triangles, in units of those of large products; and what a
# leaf takes besides, in numbers that are read and written: gathered rows, and calls.
SMALL, TRIANGULAR = 2.0, 5.0
MAKING_NUMBERS, FACTOR_NUMBERS = 2e5, 4e5
# Operations for each feature of a distance that a search takes, in units of those of large products.
DISTANCE = 8.0


def search_phase(sizes: Neighbours, n: int, d: int) -> Phase:
    """The order of n samples of d features, and the search for halos."""
    leaves = leaf_count(n, sizes.leaf)
    # Of the leaves before one, as many as a search looks at where no distance spares it any.
    most = min(leaf_count(sizes.searched, sizes.leaf), leaves)
    looked_at = most - most**2 / (2.0 * leaves)
    work = Work(
        operations=DISTANCE * d * n * looked_at * sizes.leaf,
        vectors=2.0 * d * leaves * looked_at * max(1.0, math.log2(leaves / looked_at)),
    )
    return Phase("neighbours", 1.0, work, rounds=2, pieces=_bundles(n))


def leaves_phase(times: float, sizes: Neighbours, n: int, m: int) -> Phase:
    """Matrices of what the basis leaves of leaves, made so often; rows of F are made once for each bundle."""
    rows, leaves = float(min(sizes.leaf + sizes.halo, n)), leaf_count(n, sizes.leaf)
    work = Work(
        double_entries=leaves * rows**2 + HALO_SHARE * n * m,
        double_operations=SMALL * (leaves * rows**2 * m + HALO_SHARE * n * float(m) ** 2),
        vectors=leaves * MAKING_NUMBERS,
    )
    return Phase("leaves", times, work)


def factors_phase(name: str, times: float, sizes: Neighbours, n: int, d: int, m: int, p: int) -> Phase:
    """Passes that factor the leaves for p targets, and sum over them."""
    rows, leaves = min(sizes.leaf + sizes.halo, n), leaf_count(n, sizes.leaf)
    leaf = min(sizes.leaf, n)
    triangles = rows**3 / 3.0 + leaf * float(rows) ** 2
    products = 2.0 * leaf * rows * (m + p) + leaf * float(m + p) ** 2
    return Phase(
        name,
        times,
        Work(double_operations=leaves * (TRIANGULAR * triangles + SMALL * products), vectors=leaves * FACTOR_NUMBERS),
        rounds=1,
        pieces=_bundles(n),
        sent_to_each=8.0 * m * (d + p),
        returned=8.0 * (m + p) ** 2,
    )


def _bundles(n: int) -> int:
    return -(-n // BUNDLE_ROWS)
