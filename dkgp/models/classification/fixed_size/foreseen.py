"""Counts of a fixed-size classifier before it is trained: a search of the usual length, paths, and the fit."""

from __future__ import annotations

from dkgp.models.classification.fixed_size.budget import (
    JUDGING,
    PENALTIES,
    POOL_PENALTIES,
    factor_operations,
    most_widths,
)
from dkgp.models.classification.fixed_size.fit import MOST_RUNS
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.operators.cross.centres import MOST_TRAVERSALS
from dkgp.operators.exact_sums import unit_count
from dkgp.solvers.prices import Phase, Work

# Kernels that a search looks at, about, and how many of them share a pass over the data.
KERNELS = {"shared": most_widths("shared"), "grid": most_widths("grid"), "profile": 7, "annealing": 110, "none": 1}
TOGETHER = {"shared": 2, "grid": 2, "profile": 2, "annealing": 3, "none": 1}
# Noise variances that each is validated with: decades, and finer about the best.
NOISES = 11
# A path that stops where it gains little takes about this many times the root of the pool: 150 of 2,000 on adult.
STOPPED = 4.0
# Of a path, what is taken in the end.
TAKEN = 0.7


def foreseen_passes(settings: FixedSizeSettings) -> tuple[int, int]:
    """Kernels that a search looks at, and passes over the data that they take, about; of a whole pool one of these."""
    kernels = KERNELS[settings.search]
    return kernels, -(-kernels // TOGETHER[settings.search])


def explored(settings: FixedSizeSettings, n: int, t: int = 1) -> float:
    """Cardinality up to which paths go, about, among n samples of t columns of decisions."""
    pool = settings.pool_size(n, t)
    most = float(pool if settings.max_basis is None else min(settings.max_basis, pool))
    return most if settings.stop is None else min(STOPPED * pool**0.5, most)


def taken(settings: FixedSizeSettings, n: int, t: int = 1) -> float:
    """Prototypes that are taken in the end, about, of n samples."""
    return max(1.0, TAKEN * explored(settings, n, t))


def fixed_size_phases(settings: FixedSizeSettings, n: int, d: int, t: int) -> list[Phase]:
    """The work on n samples of d features in its order, of t columns of decisions; a sum's leaves are its tasks."""
    samples, m, k, folds = float(n), float(settings.pool_size(n, t)), taken(settings, n, t), settings.folds
    shared = settings.judges_by_pools
    judging, model_bytes = min(m, float(JUDGING)) if shared else m, 8.0 * k * (d + t)
    kernels, passes = foreseen_passes(settings)
    # Of each fold and noise, a path to cardinality k: a column of the system for each prototype, and its triangle.
    path = explored(settings, n, t) ** 2 * m + 2.0 * explored(settings, n, t) * m * t
    return [
        Phase("prototypes", 1.0, Work(double_entries=samples * m), pieces=MOST_TRAVERSALS, returned=8.0 * m * d),
        _sums("search", float(kernels), (samples, judging, d, t), folds, -(-kernels // passes)),
        *(_whole_pool(settings.search, samples, m, d, t, folds) if shared else ()),
        Phase("paths", 1.0 if shared else float(kernels), threaded=Work(double_operations=NOISES * (folds + 1) * path)),
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


def _sums(name: str, times: float, sizes: tuple[float, float, int, int], folds: int, together: int = 1) -> Phase:
    """Sums over n samples of what m columns of a kernel come to; `sizes` are n, m, d and t."""
    n, m, d, t = sizes
    return Phase(
        name,
        times,
        Work(double_entries=n * m, double_operations=n * m**2 + 2.0 * n * m * t),
        rounds=1,
        pieces=unit_count(int(n)),
        sent_to_each=8.0 * m * d / together,
        returned=8.0 * folds * (0.5 * m**2 + m * t),
    )


def _whole_pool(search: str, n: float, m: float, d: int, t: int, folds: int) -> list[Phase]:
    """The pass of all m prototypes, errors of samples that are left out, and factors of every penalty."""
    small, errors = min(m, float(JUDGING)), Work(double_entries=n * m, double_operations=2.0 * n * m * t)
    factors = most_widths(search) * factor_operations(small, t, folds, PENALTIES[search])
    factors += factor_operations(m, t, folds, POOL_PENALTIES)
    return [
        _sums("all prototypes", 1.0, (n, m, d, t), folds),
        Phase("errors", 1.0, errors, rounds=1, pieces=unit_count(int(n)), returned=8.0 * unit_count(int(n))),
        Phase("penalties", 1.0, threaded=Work(double_operations=factors)),
    ]
