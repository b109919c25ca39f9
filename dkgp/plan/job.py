"""The job that `dkgp plan` is: what is to be foreseen, and for how many workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from dkgp.cluster import ClusterOptions
from dkgp.commands.job_options import DATASET, MEMORY_LIMIT, OVERWRITE
from dkgp.commands.solver_options import SolverOptions
from dkgp.errors import UsageError
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.sparse.model import METHODS
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.variance.settings import VarianceSettings
from dkgp.options import Part, check_ranges
from dkgp.plan.smaller import LikelihoodSettings
from dkgp.registry import Option, byte_count, whole_numbers

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_THREADS = 65_536
HYPER = Option(
    help="Hyperparameters, as `dkgp tune` writes them.  [default: tuned on `subset` samples]",
    metavar="FILE",
    place="read",
)
SUBSET = Option(help="Samples to tune on without `hyper`.")
COUNTS = Option(
    help="Numbers of workers to plan for.",
    type=whole_numbers,
    metavar="N,N,...",
    shown="1,2,4,8,16,32,64,128,256",
)
THREADS = Option(help="Threads of each of them.", least=1)
ONE_MACHINE = Option(help="The workers share this machine with the coordinator, not one like it each.")
PASSES = Option(
    help="Products with the matrix, or column passes, where they are known.  [default: foreseen from a probe]", above=0
)
FIGURES = Option(help="Keep this machine's figures here, and use them where they are there.", metavar="FILE")
BENCH = Option(help="A record of `dkgp bench tiles` or `dkgp bench scaling` to use instead.", metavar="FILE")
ROUND_TRIP = Option(
    help="Of an empty task.  [default: measured]", spellings=("--round-trip",), metavar="SECONDS", above=0
)
BANDWIDTH = Option(
    help="Bytes a second between scheduler and workers, such as 100MiB; more than the coordinator moves on this "
    "machine counts as that.  [default: measured]",
    type=byte_count,
    spellings=("--bandwidth",),
    metavar="SIZE",
    above=0,
)
MEMORY = replace(MEMORY_LIMIT, help="As for train.  [default: what is available]", group=None)
VARIANCE = Part(
    "variance",
    "Foresee the variances of a prediction too: factors, batches, products, time and memory.",
    prefix="variance_",
    without=("keep_factor", "basis"),
)
TEST_SAMPLES = Option(help="Samples that variances will be predicted at.", least=1)
SPARSE = Option(
    help="Foresee a sparse model by this method too, as `dkgp sparse` trains it: entries, time and memory.",
    choices=tuple(METHODS),
)
BASIS_SIZE = Option(
    help="Of `sparse`, or of `classify` logistic or gp: basis samples.  [default: 1000; all samples]", metavar="M"
)
BASIS = Option(help="How these are chosen, as for that command.  [default: the method's own]", metavar="NAME")
NEIGHBOURS = Option(
    help="Of `sparse` vif, or of `classify` gp with `basis_size`: nearest samples that a prediction stands on.  "
    "[default: 128 of vif, none of gp]",
    metavar="SAMPLES",
    least=1,
)
CLASSIFY = Option(
    help="Foresee a classifier of the labels too, as `dkgp classify` trains it: a fixed-size one by a search (shared, "
    "grid, profile, annealing, none), or logistic or gp, on all samples or with `basis_size`.",
)
POOL = Option(help="Of a fixed-size one: prototypes to choose among.  [default: as that command's]", metavar="M")
VALIDATE = Option(help="Also train with 1 and 2 workers on this machine, and compare.")
PLOT = Option(help="Draw seconds and worker-hours into a .png, .pdf or .svg.", metavar="FILE", place="write")
# Of `classify`: methods, where the others are searches of a fixed-size one.
LIKELIHOODS = ("logistic", "gp")


@dataclass(frozen=True)
class PlanJob:
    """A training run to plan, and what else is to be foreseen: a sparse model, a classifier, variances.

    `cluster` is what messages are measured on: a scheduler that runs, or a cluster that is started for it; worker
    processes on this machine by default. `figures` are read, and written where there are none yet.
    """

    dataset: Annotated[str, DATASET]
    hyper: Annotated[str | None, HYPER] = None
    subset: Annotated[int, SUBSET] = 1000
    workers: Annotated[tuple[int, ...], COUNTS] = WORKERS
    threads_per_worker: Annotated[int, THREADS] = 1
    one_machine: Annotated[bool, ONE_MACHINE] = False
    solver: Annotated[SolverOptions, Part(without=("duality_gap", "max_passes", "max_seconds"))] = field(
        default_factory=SolverOptions
    )
    passes: Annotated[float | None, PASSES] = None
    figures: Annotated[str | None, FIGURES] = None
    bench: Annotated[str | None, BENCH] = None
    round_trip_seconds: Annotated[float | None, ROUND_TRIP] = None
    bytes_per_second: Annotated[float | None, BANDWIDTH] = None
    memory_limit_bytes: Annotated[int | None, MEMORY] = None
    variance: Annotated[VarianceSettings | None, VARIANCE] = None
    test_samples: Annotated[int, TEST_SAMPLES] = 1000
    sparse: Annotated[str | None, SPARSE] = None
    basis_size: Annotated[int | None, BASIS_SIZE] = None
    basis: Annotated[str | None, BASIS] = None
    neighbours: Annotated[int | None, NEIGHBOURS] = None
    classify: Annotated[
        Literal["shared", "grid", "profile", "annealing", "none", "logistic", "gp"] | None, CLASSIFY
    ] = None
    pool: Annotated[int | None, POOL] = None
    validate: Annotated[bool, VALIDATE] = False
    plot: Annotated[str | None, PLOT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    # Its numbers of workers are the plan's own.
    cluster: Annotated[ClusterOptions, Part(without=("workers", "adaptive", "threads_per_worker"))] = field(
        default_factory=ClusterOptions
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.workers or min(self.workers) < 1 or list(self.workers) != sorted(set(self.workers)):
            raise UsageError(
                f"`workers` needs rising numbers of workers, each at least 1, such as 1,2,4; got {self.workers}"
            )
        if self.workers[-1] * self.threads_per_worker > MOST_THREADS:
            raise UsageError(
                f"{self.workers[-1]:,} workers of {self.threads_per_worker:,} threads are more than the "
                f"{MOST_THREADS:,} threads that can be simulated; plan for fewer"
            )
        self.sparse_settings()
        self.classifier_settings()

    def sparse_settings(self) -> SparseSettings | None:
        """Return the settings of the sparse model to foresee, but for its size; None where none is wanted."""
        if self.sparse is not None:
            settings = SparseSettings(self.sparse, basis=self.basis, seed=self.solver.seed)
            return settings if self.neighbours is None else replace(settings, neighbours=self.neighbours)
        if self.neighbours is not None and (self.classify != "gp" or self.basis_size is None):
            raise UsageError("`neighbours` go with `sparse` vif, or with `classify` gp and a `basis_size`")
        if self.classify in LIKELIHOODS:
            return None  # the basis is the classifier's
        for name in ("basis_size", "basis"):
            if getattr(self, name) is not None:
                raise UsageError(f"`{name}` belongs to a sparse model; name its method with `sparse`, or leave it out")
        return None

    def classifier_settings(self) -> FixedSizeSettings | LikelihoodSettings | None:
        """Return the settings of the classifier to foresee; None where none is wanted."""
        if self.classify == "logistic" or self.classify == "gp":
            if self.pool is not None:
                raise UsageError("`pool` belongs to a fixed-size classifier; leave it out, or name its search")
            if self.sparse is not None and self.basis_size is not None:
                raise UsageError("`basis_size` is of `sparse` or of `classify`; foresee one of them at a time")
            of_all = LikelihoodSettings(self.classify, seed=self.solver.seed)
            if self.sparse is not None:
                return of_all
            return replace(of_all, basis_size=self.basis_size, basis=self.basis, neighbours=self.neighbours)
        if self.classify is not None:
            settings = FixedSizeSettings(search=self.classify, seed=self.solver.seed)
            return settings if self.pool is None else replace(settings, pool=self.pool)
        if self.pool is not None:
            raise UsageError("`pool` belongs to a classifier; name its search with `classify`, or leave it out")
        return None
