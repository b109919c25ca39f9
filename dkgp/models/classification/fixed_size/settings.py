"""Settings of a fixed-size LS-SVM, and the memory that training takes: refused with numbers before it begins.

`foresee_search` bounds the passes and seconds of the search, `fixed_size_phases` the work of the whole training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dkgp.cluster.threads import available_cores
from dkgp.errors import InputError
from dkgp.models.classification.fixed_size.paths import path_bytes
from dkgp.models.classification.fixed_size.validation import CARDINALITY_RULES, Stop, pool_bytes, stop_rule
from dkgp.models.classification.prototypes import DEFAULT_PROTOTYPES, PROTOTYPES
from dkgp.models.memory import Memory, Part, TrainingSizes
from dkgp.operators.cross.folds import fold_bytes, triangle_numbers
from dkgp.operators.cross.kernel import MOST_TRAVERSALS
from dkgp.operators.exact_sums import unit_count
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import Group, Option
from dkgp.solvers.prices import Phase, Prices, Work

DEFAULT_SEARCH = "shared"
SEARCHES = (DEFAULT_SEARCH, "grid", "profile", "annealing", "none")
# A pool where none is asked for; of several classes as many more as keep n M^2 + 5 M^3 below so many operations, which
# are some fifteen seconds of two cores: classes that lie closely together take many prototypes.
FEWEST_POOL, LARGEST_POOL, POOL_STEP, POOL_WORK = 2000, 4000, 100, 4.5e11
# Steps of a pursuit where the whole pool may take its place.
MOST_STEPS = 500
# Runs with triangles of their own, each of so many times as many rows as columns where there are more than a few.
FEWEST_RUNS, MOST_RUNS, RUN_WIDTHS = 2, 64, 8
INTERCEPTS = ("first", "selected", "none")

FIXED_SIZE = Group("Options of fixed-size", ("fixed-size",))
MACHINES = Group("Options of fixed-size and exact", ("fixed-size", "exact"))


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 0.01,0.1,1.") from None


POOL = Option(
    help=f"Number of candidates for prototypes.  [default: {FEWEST_POOL:,}; for three or more classes up to "
    f"{LARGEST_POOL:,}, limited to some seconds of work]",
    metavar="M",
    least=1,
    group=FIXED_SIZE,
)
POOL_CHOICE = Option(
    help="How the pool is chosen from the samples. Only greedy uses the labels.",
    choices=PROTOTYPES,
    group=FIXED_SIZE,
)
MAX_BASIS = Option(
    help="Largest number of prototypes of the model.  [default: the pool]", metavar="K", least=1, group=FIXED_SIZE
)
CANDIDATES = Option(
    help="Number of random prototypes of the pool that each step examines; 59 in the paper.  [default: all]",
    metavar="RHO",
    least=1,
    group=FIXED_SIZE,
)
FOLDS = Option(help="Number of stratified folds of the cross-validation.", least=2, group=FIXED_SIZE)
SEARCH = Option(
    help="Search for the width of the kernel, a common factor of its length scales. shared: a line search that "
    "scores each width with the whole pool, and finally keeps fewer prototypes if they score nearly as well; "
    "grid: ten widths by ten noise variances, scored in the same way; profile: a line search that scores each "
    "width with its best few prototypes; annealing: coupled simulated annealing and Nelder-Mead, as in the "
    "paper; none: the initial width.",
    choices=SEARCHES,
    group=FIXED_SIZE,
)
NOISE_VARIANCES = Option(
    help="Noise variances 1 / gamma to choose from.  [default: powers of ten, with a finer grid around the best one]",
    type=numbers,
    metavar="S2,...",
    group=FIXED_SIZE,
)
CARDINALITY = Option(
    help="Rule for the number of prototypes. tenth: the fewest whose score is within a tenth of the folds' standard "
    "deviation of the best score; best: the number with the best score; one-standard-error: the fewest within "
    "one standard error of the best score.",
    choices=tuple(CARDINALITY_RULES),
    group=FIXED_SIZE,
)
STOP = Option(
    help="Stop adding prototypes if the last STEPS steps improved the score by a share of less than SHARE.",
    type=stop_rule,
    metavar="STEPS,SHARE|none",
    shown="10,0.001",
    group=FIXED_SIZE,
)
ISOTROPIC = Option(help="Use one length scale for all features when hyperparameters are tuned.")
INTERCEPT = Option(
    help="Intercept of the decision function. first: always included; selected: included if the selection chooses "
    "it; none: omitted.",
    choices=INTERCEPTS,
    group=MACHINES,
)
PROBABILITY = Option(
    help="Predict only decisions and classes. By default, probabilities are calibrated on held-out samples.",
    spellings=("--no-probability",),
    group=MACHINES,
)


@documented
@dataclass(frozen=True)
class FixedSizeSettings:
    """Settings of a fixed-size LS-SVM (Table 2 of the paper, and the search).

    In the paper's letters the pool holds M prototypes, `max_basis` is k_m, `candidates` rho of SCDPP, `stop` Delta and
    epsilon of rule (38), whose absence goes through all cardinalities; noise variances are 1 / gamma_K. Cross-validated
    decisions are taken, and probabilities fitted to them, where `probability` is asked for.
    """

    pool: Annotated[int | None, POOL] = None
    prototypes: Annotated[str, POOL_CHOICE] = DEFAULT_PROTOTYPES
    max_basis: Annotated[int | None, MAX_BASIS] = None
    candidates: Annotated[int | None, CANDIDATES] = None
    folds: Annotated[int, FOLDS] = 5
    search: Annotated[str, SEARCH] = DEFAULT_SEARCH
    noise_variances: Annotated[tuple[float, ...] | None, NOISE_VARIANCES] = None
    cardinality: Annotated[str, CARDINALITY] = "tenth"
    stop: Annotated[tuple[int, float] | None, STOP] = (10, 1e-3)
    isotropic: Annotated[bool, ISOTROPIC] = False
    intercept: Annotated[str, INTERCEPT] = "first"
    probability: Annotated[bool, PROBABILITY] = True
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.noise_variances is not None:
            values = np.asarray(self.noise_variances, dtype=np.float64)
            if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values > 0.0)).all():
                raise InputError(
                    f"`noise_variances` must be positive and finite, one at least; got {self.noise_variances}"
                )
        if self.stop is not None and np.shape(self.stop) != (2,):
            raise InputError(f"`stop` takes a window and a share, such as (10, 1e-3), or none; got {self.stop!r}")
        self.rule()

    def rule(self) -> Stop | None:
        """Rule (38), where there is one."""
        return None if self.stop is None else Stop(*self.stop)

    @property
    def judges_by_pools(self) -> bool:
        """True where a whole pool judges each width."""
        return self.search in WIDTHS

    @property
    def takes_whole_pool(self) -> bool:
        """True where the model may have all prototypes: nothing was asked for that only a pursuit has."""
        return self.judges_by_pools and self.max_basis is None and self.candidates is None

    def pool_size(self, n: int, outputs: int) -> int:
        """Prototypes to choose among, for so many samples and columns of decisions (one for two classes)."""
        if self.pool is not None:
            return min(self.pool, n)
        size = FEWEST_POOL
        if outputs > 1 and self.takes_whole_pool:
            while size < LARGEST_POOL and n * (size + POOL_STEP) ** 2 + 5 * (size + POOL_STEP) ** 3 <= POOL_WORK:
                size += POOL_STEP
        return min(size, n)

    def memory(self, sizes: TrainingSizes, *, together: int = 3, budget_bytes: int | None = None) -> Memory:
        """Project the memory of training.

        Parameters
        ----------
        together : int
            Kernels of a pass at most.
        budget_bytes : int, optional
            Free in the coordinator's process: fewer kernels go together where all would not fit.
        """
        n, d, t, executor, width = sizes.n, sizes.d, sizes.t, sizes.executor, sizes.width
        m = self.pool_size(n, t)
        most = min(self.max_basis or m, m)
        shared = self.judges_by_pools
        if self.takes_whole_pool:
            most = min(most, MOST_STEPS)
        paths = (self.folds + 1) * path_bytes(m, most, t)
        if shared:
            paths += pool_bytes(m, t, self.folds, available_cores(), POOL_PENALTIES + 4)
        vectors = 8 * n * (4 * t + 8)
        # Another copy of the triangles where an intercept is put beside the prototypes.
        triangles = (1 + (self.intercept == "selected")) * self.folds * triangle_numbers(m)
        plan: Memory | None = None
        for count in range(1 if self.search == "none" else max(1, together), 0, -1):
            # The whole pool has a pass of one kernel; several share one where a part of it judges them.
            alike = min(1.0, (JUDGING / m) ** 2) if shared else 1.0
            at_once = max(1.0, count * alike) if shared else float(count)
            thread, waiting, _ = fold_bytes(n, d, m, t, self.folds, math.ceil(at_once), width)
            grams = math.ceil(8 * at_once * (triangles + 3 * m * m + 2 * self.folds * m * (t + 1)))
            worker = (
                executor.threads_per_process * thread + waiting + min(sizes.cache_bytes, 8 * n * (d + 2 * width + 2))
            )
            sums = f"sums of {count} kernels at once {{}} (a quarter with half the `pool`, half with half the `folds`)"
            parts = {
                "grams_bytes": Part(grams, words=sums),
                # Sums are taken by workers, and gone through afterwards.
                "paths_bytes": Part(paths, words="paths {} (less with a smaller `max_basis`)", phase="paths"),
                "vectors_bytes": Part(vectors, words="vectors {}"),
                "worker_bytes": Part(worker, "worker", "workers {}", phase="sums"),
            }
            plan = Memory(
                f"a fixed-size classifier with a pool of {m:,} prototypes and {self.folds} folds",
                parts,
                executor.shares_memory,
                {"pool": m, "folds": self.folds, "together": count},
            )
            if budget_bytes is None or plan.coordinator_bytes <= budget_bytes:
                break
        assert plan is not None
        return plan


# Widths that a search by whole pools looks at, as many as it asks for at a time. Penalties of each, and of the whole
# pool in the end.
WIDTHS = {"shared": (3, 2, 2), "grid": (2,) * 5}
PENALTIES, POOL_PENALTIES = {"shared": 8, "grid": 10}, 3
# Prototypes that widths are judged by, at most.
JUDGING = 1000


@dataclass(frozen=True)
class ForeseenSearch:
    """A search before it begins.

    `pool` prototypes, `judging` of them for the widths; `passes` over all samples at most; seconds of a width,
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
) -> ForeseenSearch:
    """Forecast the search of n samples: `together` widths a pass, and a pass of the whole pool at the best width.

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
    passes = sum(-(-count // max(1, together)) for count in WIDTHS[search]) + 1
    return ForeseenSearch(pool, judging, passes, width, whole, most_widths(search) * width + whole)


# Kernels that a search looks at, about, and how many of them share a pass over the data.
KERNELS = {"shared": most_widths("shared"), "grid": most_widths("grid"), "profile": 7, "annealing": 110, "none": 1}
TOGETHER = {"shared": 2, "grid": 2, "profile": 2, "annealing": 3, "none": 1}
# Noise variances that each is validated with: decades, and finer about the best.
NOISES = 11
# A path that stops where it gains little takes about this many times the root of the pool: 150 of 2,000 on adult.
STOPPED = 4.0
# Share of a path that is taken in the end.
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
    """Return the work of summing m columns of a kernel over n samples; `sizes` are n, m, d and t."""
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
