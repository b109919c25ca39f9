"""Counts of a fixed-size classifier before it is trained: a search of the usual length, paths, and the fit."""

from __future__ import annotations

from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.operators.cross.runs import MOST_RUNS
from dkgp.solvers.prices import Phase, Work

# Kernels that a search looks at, about, and how many of them share a pass over the data.
KERNELS = {"profile": 7, "annealing": 110, "none": 1}
TOGETHER = {"profile": 2, "annealing": 3, "none": 1}
# Noise variances that each is validated with: decades, and finer about the best.
NOISES = 11
# A path that stops where it gains little takes about this many times the root of the pool: 150 of 2,000 on adult.
STOPPED = 4.0
# Of a path, what is taken in the end.
TAKEN = 0.7


def foreseen_passes(settings: FixedSizeSettings) -> tuple[int, int]:
    """Kernels that a search looks at, and passes over the data that they take, about."""
    kernels = KERNELS[settings.search]
    return kernels, -(-kernels // TOGETHER[settings.search])


def explored(settings: FixedSizeSettings, n: int) -> float:
    """Cardinality up to which paths go, about, among n samples."""
    pool = min(settings.pool, n)
    most = float(pool if settings.max_basis is None else min(settings.max_basis, pool))
    return most if settings.stop is None else min(STOPPED * pool**0.5, most)


def taken(settings: FixedSizeSettings, n: int) -> float:
    """Prototypes that are taken in the end, about, of n samples."""
    return max(1.0, TAKEN * explored(settings, n))


def fixed_size_phases(settings: FixedSizeSettings, n: int, d: int, t: int) -> list[Phase]:
    """The work on n samples of d features in its order, of t columns of decisions; a sum's leaves are its tasks."""
    samples, m, k, folds = float(n), float(min(settings.pool, n)), taken(settings, n), settings.folds
    pool_bytes, model_bytes = 8.0 * m * d, 8.0 * k * (d + t)
    kernels, passes = foreseen_passes(settings)
    # Of each fold and noise, a path to cardinality k: a column of the system for each prototype, and its triangle.
    path = explored(settings, n) ** 2 * m + 2.0 * explored(settings, n) * m * t
    return [
        Phase("prototypes", 1.0, Work(double_entries=samples * m), pieces=MOST_RUNS, returned=pool_bytes),
        Phase(
            "search",
            float(kernels),
            Work(double_entries=samples * m, double_operations=samples * m**2 + 2.0 * samples * m * t),
            rounds=1,
            pieces=MOST_RUNS,
            sent_to_each=pool_bytes / -(-kernels // passes),
            returned=8.0 * folds * (0.5 * m**2 + m * t),
        ),
        Phase("paths", float(kernels), threaded=Work(double_operations=NOISES * (folds + 1) * path)),
        Phase(
            "fit",
            1.0,
            Work(double_entries=2.0 * samples * k, double_operations=2.0 * samples * k**2 + 4.0 * samples * k * t),
            rounds=2,
            pieces=MOST_RUNS,
            sent_to_each=model_bytes,
            returned=8.0 * k**2,
        ),
    ]
