"""The job of `dkgp plan`: its options, and the plan for each number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.cache import budget_here
from dkgp.cluster.threads import available_cores
from dkgp.commands.job_options import DATASET, MEMORY_LIMIT, OVERWRITE
from dkgp.commands.recipe import command
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, MemoryBudgetError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.sparse.model import METHODS
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.variance.settings import VarianceSettings
from dkgp.options import Part, check_ranges, prefixed
from dkgp.plan.fleet import Fleet, Projection, most_useful_workers, product_parts, product_seconds, project
from dkgp.plan.machine import (
    ClusterFigures,
    MachineFigures,
    measure_cluster,
    measure_machine,
    read_bench,
    read_figures,
    with_bench,
    write_figures,
)
from dkgp.registry import Option, byte_count, whole_numbers
from dkgp.solvers.prices import Phase, Prices

if TYPE_CHECKING:
    from dkgp.plan.foreseen import Foreseen, ForeseenVariances, LikelihoodSettings, Smaller

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_THREADS = 65_536
HYPER = Option(
    help="Hyperparameters, as `dkgp tune` writes them.  [default: tuned on `subset` samples]",
    metavar="FILE",
    place="read",
)
SUBSET = Option(help="Without `hyper`: number of random samples to tune on.")
COUNTS = Option(
    help="Numbers of workers to forecast for.",
    type=whole_numbers,
    metavar="N,N,...",
    shown="1,2,4,8,16,32,64,128,256",
)
THREADS = Option(help="Number of threads per worker.", least=1)
ONE_MACHINE = Option(
    help="All workers share this machine with the coordinator. Without this option, each worker has a "
    "machine like this one."
)
PASSES = Option(
    help="Number of passes over the kernel matrix that the solve takes, if you know it.  [default: forecast]", above=0
)
FIGURES = Option(
    help="File for the measured speed of this machine. If it exists, dkgp reads it instead of measuring.",
    metavar="FILE",
)
BENCH = Option(
    help="Take the speed of this machine from this record of `dkgp bench tiles` or `dkgp bench scaling`.",
    metavar="FILE",
)
ROUND_TRIP = Option(
    help="Round-trip time of an empty task between scheduler and worker.  [default: measured]",
    spellings=("--round-trip",),
    metavar="SECONDS",
    above=0,
)
BANDWIDTH = Option(
    help="Bytes per second between scheduler and workers, such as 100MiB, if it is lower than the measured rate of "
    "this machine.  [default: measured]",
    type=byte_count,
    spellings=("--bandwidth",),
    metavar="SIZE",
    above=0,
)
MEMORY = replace(MEMORY_LIMIT, help="Memory limit, as for `dkgp train`.  [default: available memory]", group=None)
VARIANCE = Part(
    "variance",
    "Also forecast the variances of a prediction: factors, batches, products, time and memory.",
    prefix="variance_",
    without=("keep_factor", "basis"),
)
TEST_SAMPLES = Option(help="Number of samples at which variances will be predicted.", least=1)
SPARSE = Option(
    help="Also forecast a sparse model by this method, as `dkgp sparse` trains it: entries, time and memory.",
    choices=tuple(METHODS),
)
BASIS_SIZE = Option(
    help="Number of basis samples of `sparse`, or of `classify` logistic or gp.  [default: 1000; all samples]",
    metavar="M",
)
BASIS = Option(
    help="How the basis samples are chosen, as for `dkgp sparse` or `dkgp classify`.  [default: depends on the method]",
    metavar="NAME",
)
NEIGHBOURS = Option(
    help="For `sparse` vif, or `classify` gp with `basis_size`: number of nearest samples that each prediction uses.  "
    "[default: 128 for vif, none for gp]",
    metavar="SAMPLES",
    least=1,
)
CLASSIFY = Option(
    help="Also forecast a classifier, as `dkgp classify` trains it. shared, grid, profile, annealing, none: a "
    "fixed-size classifier with this --search; logistic, gp: such a classifier on all samples, or with `basis_size` on "
    "a basis.",
)
POOL = Option(
    help="For a fixed-size classifier: number of candidates for prototypes.  [default: as for `dkgp classify`]",
    metavar="M",
)
VALIDATE = Option(help="Also train with 1 and 2 workers on this machine, and compare with the forecast.")
PLOT = Option(help="Plot seconds and worker-hours into a .png, .pdf or .svg file.", metavar="FILE", place="write")
# Methods of `classify`; the other values are searches of a fixed-size classifier.
LIKELIHOODS = ("logistic", "gp")


@command(
    """
    The command chooses the solver as `dkgp train` does, forecasts its passes from some of the samples, and measures the
    speed of this machine and the round-trip time to the scheduler. It prints the forecasts for 1 to 256 workers, one
    per machine, on machines like this one. The forecast time is that of the solve, without the start of a cluster.
    """,
    "dkgp plan train.zarr --hyper hyper.json",
    "dkgp plan train.zarr --hyper hyper.json --workers 1,2,4,8 --threads-per-worker 8 --figures machine.json",
    "dkgp plan train.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot plan.png",
    "dkgp plan train.zarr --hyper hyper.json --variance --test-samples 5000 --variance-gap 0.01",
    "dkgp plan train.zarr --hyper hyper.json --sparse vfe --basis-size 2000",
    "dkgp plan labelled.zarr --hyper hyper.json --classify shared --pool 3000",
    "dkgp plan labelled.zarr --hyper hyper.json --classify logistic",
    "dkgp plan train.zarr --hyper hyper.json --workers 1,4,16 --cache-tiles 8GiB",
    "dkgp plan train.zarr --hyper hyper.json --validate",
)
@dataclass(frozen=True)
class PlanJob:
    """A training run to plan; optionally also a sparse model, a classifier, or variances.

    Messages are measured on `cluster`: a running scheduler, or a cluster that the job starts. The default is worker
    processes on this machine. `figures` is read if it exists, and written otherwise.
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
    # The plan itself sets the numbers of workers.
    cluster: Annotated[ClusterOptions, Part(without=("workers", "adaptive", "threads_per_worker"))] = field(
        default_factory=ClusterOptions
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.workers or min(self.workers) < 1 or list(self.workers) != sorted(set(self.workers)):
            raise UsageError(
                f"`workers` needs increasing numbers of workers, each at least 1, such as 1,2,4; got {self.workers}"
            )
        if self.workers[-1] * self.threads_per_worker > MOST_THREADS:
            raise UsageError(
                f"{self.workers[-1]:,} workers of {self.threads_per_worker:,} threads are more than the "
                f"{MOST_THREADS:,} threads that can be simulated; plan for fewer"
            )
        if self.variance is not None and self.variance.way == "vif":
            raise UsageError(
                "`variance_way` vif has no forecast. Its variances take about as long as the model with neighbours: "
                "forecast that with `sparse` vif, and leave out `variance`"
            )
        self.sparse_settings()
        self.classifier_settings()

    def sparse_settings(self) -> SparseSettings | None:
        """Return the settings of the sparse model without its size; None if no sparse model is requested."""
        if self.sparse is not None:
            settings = SparseSettings(self.sparse, basis=self.basis, seed=self.solver.seed)
            return settings if self.neighbours is None else replace(settings, neighbours=self.neighbours)
        if self.neighbours is not None and (self.classify != "gp" or self.basis_size is None):
            raise UsageError("`neighbours` can be set only with `sparse` vif, or with `classify` gp and `basis_size`")
        if self.classify in LIKELIHOODS:
            return None  # the basis belongs to the classifier
        for name in ("basis_size", "basis"):
            if getattr(self, name) is not None:
                raise UsageError(f"`{name}` belongs to a sparse model; name its method with `sparse`, or leave it out")
        return None

    def classifier_settings(self) -> FixedSizeSettings | LikelihoodSettings | None:
        """Return the settings of the classifier; None if no classifier is requested."""
        if self.classify == "logistic" or self.classify == "gp":
            from dkgp.plan.foreseen import LikelihoodSettings

            if self.pool is not None:
                raise UsageError("`pool` belongs to a fixed-size classifier; leave it out, or name its search")
            if self.sparse is not None and self.basis_size is not None:
                raise UsageError("`basis_size` is for `sparse` or for `classify`; forecast one of them at a time")
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


LIMITS = {
    "workers": "more workers would help further",
    "tasks": "further tasks per round would cost more in messages than they save",
    "messages": "messages to the workers take longer than the work",
    "reading": "reading the data takes most of the time",
}


# Up to this number of samples, the work is smaller than a measurement of the machine.
FEW_SAMPLES = 1000


def run_plan(job: PlanJob, reporter: Reporter) -> Document:
    """Measure prices and predict a run; return seconds by phase, memory and worker-hours by number of workers.

    Raises
    ------
    InputError, UsageError, MemoryBudgetError
        For any mistake that can be found before the run.
    ClusterError
        If there is no cluster to measure messages on.
    """
    from dkgp.plan.foreseen import foresee

    check_side_files(job.plot, None, replace=job.overwrite)
    if job.figures is not None:
        check_output_file(job.figures, replace=True, option="`figures`")
    bench = None if job.bench is None else read_bench(job.bench)
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again and name some")
    job.solver.check()
    job.solver.stopping()
    kept = None if job.figures is None else read_figures(job.figures, dataset.n_features, reporter)
    hyperparameters = _hyperparameters(job, dataset, reporter)
    limit = job.memory_limit_bytes
    foreseen = foresee(dataset, hyperparameters, job.solver, reporter, count=job.passes, memory_bytes=limit)
    if foreseen.choice is not None:
        reporter.note(f"the solver is {foreseen.solver.name}: {foreseen.choice.reason}")
    memory = foreseen.memory_plan(job.cluster.cache_bytes, limit)
    variances = _foresee_variances(job, dataset, hyperparameters)
    smaller = {
        "sparse": _foresee_sparse(job, dataset, hyperparameters),
        "classify": _foresee_classifier(job, dataset, hyperparameters, foreseen.sizes.blocks),
    }
    for each in filter(None, smaller.values()):
        _require_room(job, each, memory["resident_bytes"])
    cluster = _measure_cluster(job, reporter)
    machine = kept or _measure_machine(job, dataset, hyperparameters, reporter)
    machine = machine if bench is None else with_bench(machine, bench)
    layout = _Layout(job, foreseen, variances, smaller, machine, cluster, memory["resident_bytes"])
    rows = [layout.row(count) for count in job.workers]
    useful = most_useful_workers(job.workers, [row["seconds"] for row in rows])
    document: Document = {
        "command": "plan",
        "dataset": dataset.url,
        "n": foreseen.sizes.n,
        "d": foreseen.sizes.d,
        "p": foreseen.sizes.p,
        "hyper": job.hyper,
        "tolerance": job.solver.tolerance,
        **plain(foreseen.to_json()),
        "variance": None if variances is None else plain(variances.to_json()),
        **{name: None if each is None else plain(each.record) for name, each in smaller.items()},
        "threads_per_worker": job.threads_per_worker,
        "one_machine": job.one_machine,
        "workers": rows,
        "most_useful_workers": useful,
        "limit": _limit_after(useful, rows),
        "network": asdict(cluster.network),
        "machine": machine.to_json(),
        "memory_plan": memory.to_json(),
        "validation": None,
        "plot": job.plot,
    }
    if job.validate:
        from dkgp.plan.validation import validate

        document["validation"] = plain(validate(dataset, hyperparameters, foreseen, machine, reporter))
    if job.plot is not None:
        counts = foreseen.counts
        title = f"{foreseen.solver.name} on n = {foreseen.sizes.n:,}, d = {foreseen.sizes.d}"
        from dkgp.commands.reporting.plots import plot_plan

        plot_plan(job.plot, rows, title=f"{title}: {counts.expected:.1f} {counts.unit}")
    document["warnings"] = list(reporter.warnings)
    return document


def _hyperparameters(job: PlanJob, dataset: Dataset, reporter: Reporter) -> Hyperparameters:
    if job.hyper is not None:
        return read_hyperparameters(job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names)
    from dkgp.models import tune_dataset

    reporter.note(f"no `hyper`: tuning on {min(job.subset, dataset.n_samples):,} samples for the plan")
    with reporter.search("tune") as progress:
        return tune_dataset(dataset, subset=job.subset, seed=job.solver.seed, progress=progress)


def _foresee_variances(job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters) -> ForeseenVariances | None:
    if job.variance is None:
        return None
    from dkgp.plan.foreseen import foresee_variances

    try:
        return foresee_variances(dataset, hyperparameters, job.variance, job.test_samples, job.threads_per_worker)
    except MemoryBudgetError as error:
        # Options of a solver have the same names.
        raise prefixed(error, VarianceSettings, VARIANCE.prefix) from None


def _foresee_sparse(job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters) -> Smaller | None:
    settings = job.sparse_settings()
    if settings is None:
        return None
    from dkgp.commands.sparse import SparseJob
    from dkgp.plan.foreseen import foresee_sparse

    asked = SparseJob(job.dataset, job.hyper or "", "", settings, job.basis_size)
    asked.check()
    settings = asked.sized(dataset.n_samples).settings
    return foresee_sparse(dataset, hyperparameters, settings, job.cluster.cache_bytes)


def _foresee_classifier(
    job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters, blocks: int
) -> Smaller | None:
    settings, cache_bytes = job.classifier_settings(), job.cluster.cache_bytes
    if settings is None:
        return None
    from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
    from dkgp.models.classification.labels import LabelledData, labels_of
    from dkgp.plan.foreseen import LikelihoodSettings, foresee_classifier, foresee_likelihood

    if not isinstance(settings, LikelihoodSettings):
        return foresee_classifier(dataset, hyperparameters, settings, cache_bytes)
    if job.hyper is None:  # hyperparameters of a regression have another amplitude
        search = LabelTuning(min(job.subset, dataset.n_samples), settings.seed, likelihood="logit")
        hyperparameters = tune_labels(LabelledData(dataset, labels_of(dataset)), search)
    tiles = budget_here(job.cluster.cache_tiles, worker_memory_bytes=job.cluster.worker_memory_bytes)
    return foresee_likelihood(dataset, hyperparameters, settings, cache_bytes, blocks, tiles.bytes)


def _require_room(job: PlanJob, smaller: Smaller, resident_bytes: int) -> None:
    """Raise `MemoryBudgetError` if the model does not fit on the smallest number of workers."""
    budget = job.memory_limit_bytes or resident_bytes + available_bytes()
    memory = smaller.memory(job.workers[0], job.threads_per_worker, budget - resident_bytes)
    memory.require(budget, resident_bytes)


def _measure_cluster(job: PlanJob, reporter: Reporter) -> ClusterFigures:
    """Return the costs of messages on the given cluster, or between processes on this machine."""
    options = job.cluster
    if options.kind in ("auto", "none") and options.config_file is None and options.address() is None:
        options = replace(options, kind="processes", workers=1, threads_per_worker=1)
    elif options.workers is None and options.adaptive is None:
        options = replace(options, workers=1)  # one worker is enough for the measurement
    reporter.note("measuring the time of messages to workers")
    # This number of samples makes "auto" use Dask.
    with open_executor(options, 2**62, reporter) as executor:
        cluster = measure_cluster(executor)
    network = cluster.network
    if job.round_trip_seconds is not None:
        network = replace(network, round_trip_seconds=job.round_trip_seconds)
    if job.bytes_per_second is not None:
        asked = job.bytes_per_second
        if options.kind in ("local", "processes") and options.address() is None:
            # Without a link, this is the speed at which the coordinator copies and encrypts. No link can exceed it.
            asked = min(asked, network.bytes_per_second)
        network = replace(network, bytes_per_second=asked)
    return replace(cluster, network=network)


def _measure_machine(
    job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters, reporter: Reporter
) -> MachineFigures:
    d = dataset.n_features
    if dataset.n_samples <= FEW_SAMPLES and job.figures is None and job.bench is None and not job.validate:
        reporter.note(f"nominal prices suffice for {dataset.n_samples:,} samples; `figures` FILE measures this machine")
        return MachineFigures(d, Prices.nominal(d), tuple(float(count + 1) for count in range(available_cores())))
    reporter.note("measuring the speed of this machine")
    machine = measure_machine(dataset, hyperparameters.kernel, hyperparameters.noise_variance)
    if job.figures is not None:
        write_figures(job.figures, machine)
    return machine


@dataclass(frozen=True)
class _Layout:
    """A run and its accompanying models, projected onto any number of workers."""

    job: PlanJob
    foreseen: Foreseen
    variances: ForeseenVariances | None
    smaller: Mapping[str, Smaller | None]
    machine: MachineFigures
    cluster: ClusterFigures
    resident_bytes: int  # memory of the coordinator before the run

    def row(self, workers: int) -> dict[str, Any]:
        """Return the row of the plan for one number of workers."""
        job, foreseen, machine, cluster = self.job, self.foreseen, self.machine, self.cluster
        fleet = Fleet(
            workers,
            job.threads_per_worker,
            machine.speedups,
            cluster.network,
            one_machine=job.one_machine,
            least_task_evaluations=cluster.least_task_evaluations,
        )
        cache, limit = job.cluster.cache_bytes, job.memory_limit_bytes
        memory = foreseen.memory_plan(cache, limit, workers, resident_bytes=self.resident_bytes)
        spilled, wanted = foreseen.spilled(cache, workers), cluster.tiles
        if job.one_machine:
            wanted = budget_here(job.cluster.cache_tiles, workers, job.cluster.worker_memory_bytes)
        tiles = foreseen.tiles(wanted, workers, machine.prices)
        counts = foreseen.counts
        expected, low, high = (
            self._projected(foreseen.phases(count, spilled=spilled, kept=tiles.share), fleet)
            for count in (counts.expected, counts.low, counts.high)
        )
        evaluated = product_seconds(foreseen.sizes, machine.prices, fleet)
        product = product_parts(foreseen.sizes, machine.prices, fleet, kept=tiles.share)
        worker_plan = memory.plus(tiles_bytes=tiles.most_bytes)
        return {
            "workers": workers,
            "threads": fleet.threads,
            "seconds": expected.total,
            "seconds_low": low.total,
            "seconds_high": high.total,
            "worker_hours": workers * expected.total / 3600.0,
            "phases": expected.seconds,
            "limit": expected.limit,
            "spilled_share": spilled,
            "product": product.to_json(),
            "tiles": {
                **asdict(tiles),
                "product_seconds": product.seconds,
                "saved_seconds": evaluated - product.seconds,
            },
            "worker_memory_bytes": worker_plan.worker_process_bytes(cluster.worker_resident_bytes),
            "coordinator_memory_bytes": memory.coordinator_bytes,
            "variance": None if self.variances is None else self._variances(self.variances, fleet),
            **{name: None if each is None else self._smaller(each, fleet) for name, each in self.smaller.items()},
        }

    def _projected(self, phases: Sequence[Phase], fleet: Fleet) -> Projection:
        return project(phases, self.foreseen.sizes, self.machine.prices, fleet)

    def _variances(self, variances: ForeseenVariances, fleet: Fleet) -> dict[str, Any]:
        from dkgp.models.variance.ways import whole_phases

        run, single, double = variances.on(fleet.workers, fleet.threads_per_worker), variances.single, variances.double
        expected, low, high = (
            self._projected(variances.phases(run, self.foreseen.sizes, *products), fleet)
            for products in ((single.count, double.count), (single.low, double.low), (single.high, double.high))
        )
        resident = self.cluster.worker_resident_bytes
        # One process on one machine may hold a whole factor instead.
        alone = fleet.one_machine and fleet.workers == 1
        memory_bytes = (
            variances.peak_bytes(run, resident) if alone else variances.memory(run).worker_process_bytes(resident)
        )
        return {
            "seconds": expected.total,
            "seconds_low": low.total,
            "seconds_high": high.total,
            "phases": expected.seconds,
            "whole_factor_seconds": self._projected(
                whole_phases(self.foreseen.sizes.n, variances.tests, fleet.threads), fleet
            ).total,
            "neighbours_seconds": None
            if variances.neighbours is None
            else variances.neighbours.seconds_per_sample * variances.tests / (fleet.workers * fleet.threads_per_worker),
            "batch_size": run.plan["batch_size"],
            "together": run.plan["together"],
            "shared": run.is_shared,
            "worker_memory_bytes": memory_bytes,
        }

    def _smaller(self, smaller: Smaller, fleet: Fleet) -> dict[str, Any]:
        expected = self._projected(smaller.phases, fleet)
        memory = smaller.memory(fleet.workers, fleet.threads_per_worker)
        return {
            "seconds": expected.total,
            "phases": expected.seconds,
            "limit": expected.limit,
            "worker_memory_bytes": memory.worker_process_bytes(self.cluster.worker_resident_bytes),
            "coordinator_memory_bytes": self.resident_bytes + memory.coordinator_bytes,
        }


def _limit_after(useful: int, rows: Sequence[dict[str, Any]]) -> str:
    """Explain why more workers than `useful` do not help, or which limit applies to the largest planned number."""
    count = f"{useful:,} worker{'s' if useful > 1 else ''}"
    position = [row["workers"] for row in rows].index(useful)
    last = position == len(rows) - 1
    limit = rows[position]["limit"]
    if limit == "workers" and not last:  # The workers were still the limit, so the next row tells the obstacle.
        limit = rows[position + 1]["limit"]
    why = LIMITS.get(limit, f"the coordinator takes most of the time ({limit})")
    if last:
        return f"with {count}: {why}"
    if limit == "workers":
        why = "the time for messages and the coordinator is as long as the time saved"
    return f"more than {count} would save less than a tenth of the time: {why}"
