"""`dkgp plan`: what training on a data set will take, for 1 to 256 workers, before anybody pays for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.outputs import check_output_file, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters, tune_dataset
from dkgp.plan.figures import MachineFigures, measure_machine
from dkgp.plan.fleet import Fleet, Projection, most_useful_workers, project
from dkgp.plan.foreseen import Foreseen, foresee
from dkgp.plan.network import ClusterFigures, measure_cluster
from dkgp.plan.plot import plot_plan
from dkgp.plan.record import read_bench, read_figures, with_bench, write_figures

__all__ = ["WORKERS", "PlanJob", "Validation", "run_plan"]

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_THREADS = 65_536
LIMITS = {
    "workers": "more workers would help further",
    "tasks": "a round has no more tasks that are worth their messages",
    "messages": "messages take longer than the work they bring",
    "reading": "reading the data is the limit",
}


class Validation(Protocol):
    """Trains what was planned and sets that beside the plan."""

    def __call__(
        self,
        dataset: Dataset,
        found: Hyperparameters,
        foreseen: Foreseen,
        machine: MachineFigures,
        reporter: Reporter,
        /,
    ) -> Document:
        """Return what the plan's document says of it."""


@dataclass(frozen=True)
class PlanJob:
    """A training run to plan.

    Attributes
    ----------
    dataset
        Dataset store that is to be trained on.
    hyper
        Hyperparameter file; without one, hyperparameters are tuned on `subset` samples and thrown away.
    solver
        How it will be solved.
    cluster
        Whose messages are measured: a scheduler that runs, or a cluster that is started for it; worker processes on
        this machine by default.
    workers, threads_per_worker
        Numbers of workers to plan for, and tasks that each runs at once.
    one_machine
        Whether they will share this machine with the coordinator. Each has a machine like this one to itself otherwise.
    figures
        File that this machine's figures are read from, and written to where it lacks them.
    bench
        Record of `dkgp bench tiles` or `scaling` that stands in for what would be measured.
    round_trip_seconds, bytes_per_second
        Of the network to plan for, in place of what is measured.
    passes
        Products with the matrix or column passes, where they are known.
    memory_limit_bytes
        What a run may take in the coordinator's process; default: what is available.
    plot, overwrite
        File for a plot; whether it may be replaced.
    """

    dataset: str
    hyper: str | None = None
    solver: SolverOptions = field(default_factory=SolverOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    workers: tuple[int, ...] = WORKERS
    threads_per_worker: int = 1
    one_machine: bool = False
    subset: int = 1000
    figures: str | None = None
    bench: str | None = None
    round_trip_seconds: float | None = None
    bytes_per_second: float | None = None
    passes: float | None = None
    memory_limit_bytes: int | None = None
    plot: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.workers or min(self.workers) < 1 or list(self.workers) != sorted(set(self.workers)):
            raise UsageError(
                f"`workers` needs rising numbers of workers, each at least 1, such as 1,2,4; got {self.workers}"
            )
        if self.threads_per_worker < 1:
            raise UsageError(f"the number of threads per worker must be at least 1; got {self.threads_per_worker}")
        if self.workers[-1] * self.threads_per_worker > MOST_THREADS:
            raise UsageError(
                f"{self.workers[-1]:,} workers of {self.threads_per_worker:,} threads are more than the "
                f"{MOST_THREADS:,} threads that can be simulated; plan for fewer"
            )
        for name, value in (
            ("round trip in seconds", self.round_trip_seconds),
            ("bandwidth in bytes per second", self.bytes_per_second),
            ("number of passes", self.passes),
        ):
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise UsageError(f"the {name} must be finite and above zero; got {value}")


def run_plan(job: PlanJob, reporter: Reporter, validate: Validation | None = None) -> Document:
    """Measure, foresee, lay out; return seconds by phase, memory and worker-hours by number of workers.

    Parameters
    ----------
    validate : Validation, optional
        Trains and compares; `dkgp.bench.scaling.validate.validate` does, on this machine.

    Raises
    ------
    InputError, UsageError, MemoryBudgetError
        Anything that can be found wrong beforehand.
    ClusterError
        No cluster to measure messages on.
    """
    check_side_files(job.plot, None, replace=job.overwrite)
    if job.figures is not None:
        check_output_file(job.figures, replace=True, option="--figures")
    bench = None if job.bench is None else read_bench(job.bench)
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again and name some")
    job.solver.check()
    job.solver.stopping()
    kept = None if job.figures is None else read_figures(job.figures, dataset.n_features, reporter)
    found = _hyperparameters(job, dataset, reporter)
    limit = job.memory_limit_bytes
    foreseen = foresee(dataset, found, job.solver, reporter, count=job.passes, memory_bytes=limit)
    if foreseen.choice is not None:
        reporter.note(f"the solver is {foreseen.solver.name}: {foreseen.choice.reason}")
    memory = foreseen.memory_plan(job.cluster.cache_bytes, limit)
    cluster = _measure_cluster(job, reporter)
    machine = kept or _measure_machine(job, dataset, found, reporter)
    machine = machine if bench is None else with_bench(machine, bench)
    rows = [_row(job, count, foreseen, machine, cluster, memory.resident_bytes) for count in job.workers]
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
    if validate is not None:
        document["validation"] = plain(validate(dataset, found, foreseen, machine, reporter))
    if job.plot is not None:
        counts = foreseen.counts
        title = f"{foreseen.solver.name} on n = {foreseen.sizes.n:,}, d = {foreseen.sizes.d}"
        plot_plan(job.plot, rows, title=f"{title}: {counts.expected:.1f} {counts.unit}")
    document["warnings"] = list(reporter.warnings)
    return document


def _hyperparameters(job: PlanJob, dataset: Dataset, reporter: Reporter) -> Hyperparameters:
    if job.hyper is not None:
        return read_hyperparameters(job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names)
    reporter.note(
        f"no `hyper`: tuning on {min(job.subset, dataset.n_samples):,} samples to have something to plan with"
    )
    with reporter.search("tune") as progress:
        return tune_dataset(dataset, subset=job.subset, seed=job.solver.seed, progress=progress)


def _measure_cluster(job: PlanJob, reporter: Reporter) -> ClusterFigures:
    """Return what messages cost on the cluster named, or between processes here."""
    options = job.cluster
    if options.kind in ("auto", "none") and options.config_file is None and options.address() is None:
        options = replace(options, kind="processes", workers=1, threads_per_worker=1)
    elif options.workers is None and options.adaptive is None:
        options = replace(options, workers=1)  # one is enough to measure with
    reporter.note("measuring round trips")
    # Any number of samples that makes "auto" use Dask.
    with open_executor(options, 2**62, reporter) as executor:
        cluster = measure_cluster(executor)
    network = cluster.network
    if job.round_trip_seconds is not None:
        network = replace(network, round_trip_seconds=job.round_trip_seconds)
    if job.bytes_per_second is not None:
        network = replace(network, bytes_per_second=job.bytes_per_second)
    return replace(cluster, network=network)


def _measure_machine(job: PlanJob, dataset: Dataset, found: Hyperparameters, reporter: Reporter) -> MachineFigures:
    reporter.note("measuring this machine")
    machine = measure_machine(dataset, found.kernel, found.noise_variance)
    if job.figures is not None:
        write_figures(job.figures, machine)
    return machine


def _row(
    job: PlanJob,
    workers: int,
    foreseen: Foreseen,
    machine: MachineFigures,
    cluster: ClusterFigures,
    resident_bytes: int,
) -> dict[str, Any]:
    fleet = Fleet(
        workers,
        job.threads_per_worker,
        machine.speedups,
        cluster.network,
        one_machine=job.one_machine,
        least_task_evaluations=cluster.least_task_evaluations,
    )

    cache, limit = job.cluster.cache_bytes, job.memory_limit_bytes
    memory = foreseen.memory_plan(cache, limit, workers, resident_bytes=resident_bytes)
    spilled = foreseen.spilled(cache, workers)

    def projected(count: float) -> Projection:
        return project(foreseen.phases(count, spilled=spilled), foreseen.sizes, machine.prices, fleet)

    counts = foreseen.counts
    expected = projected(counts.expected)
    return {
        "workers": workers,
        "threads": fleet.threads,
        "seconds": expected.total,
        "seconds_low": projected(counts.low).total,
        "seconds_high": projected(counts.high).total,
        "worker_hours": workers * expected.total / 3600.0,
        "phases": expected.seconds,
        "limit": expected.limit,
        "spilled_share": spilled,
        "worker_memory_bytes": memory.worker_process_bytes(cluster.worker_resident_bytes),
        "coordinator_memory_bytes": memory.coordinator_bytes,
    }


def _limit_after(useful: int, rows: Sequence[dict[str, Any]]) -> str:
    """Say why no more workers than that are worth having, or what the largest number planned for meets."""
    count = f"{useful:,} worker{'s' if useful > 1 else ''}"
    position = [row["workers"] for row in rows].index(useful)
    last = position == len(rows) - 1
    limit = rows[position]["limit"]
    if limit == "workers" and not last:  # it was still they: what comes after is what stands in the way
        limit = rows[position + 1]["limit"]
    why = LIMITS.get(limit, f"the coordinator's part is the limit ({limit})")
    if last:
        return f"with {count}: {why}"
    if limit == "workers":
        why = "messages and the coordinator take what they would save"
    return f"beyond {count} less than a tenth is saved: {why}"
