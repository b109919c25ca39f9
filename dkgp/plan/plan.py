"""`dkgp plan`: what training on a data set will take, for 1 to 256 workers, before anybody pays for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import psutil

from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.outputs import check_output_file, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters, tune_dataset
from dkgp.models.memory import MemoryPlan
from dkgp.plan.costs import Effort, Problem, Projection, most_useful_workers, project
from dkgp.plan.figures import MachineFigures, measure_machine
from dkgp.plan.network import ClusterFigures, measure_cluster
from dkgp.plan.passes import PassesEstimate, estimate_passes
from dkgp.plan.plot import plot_plan
from dkgp.plan.problem import block_solver, memory_of, problem_of, worker_memory_bytes
from dkgp.plan.record import read_bench, read_figures, with_bench, write_figures
from dkgp.plan.simulation import Fleet
from dkgp.solvers import GreedyBlockCoordinateDescent

__all__ = ["WORKERS", "PlanJob", "Validation", "run_plan"]

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_THREADS = 65_536
LIMITS = {
    "workers": "more workers would help further",
    "tasks": "a round has no more tasks that are worth their messages",
    "messages": "messages take longer than the work they bring",
    "selection": "the coordinator's selection of the next block is the limit",
    "solve": "the coordinator's dense solve is the limit",
    "vectors": "the coordinator's work on its n-vectors is the limit",
}


class Validation(Protocol):
    """Trains what was planned and sets that beside the plan."""

    def __call__(
        self,
        dataset: Dataset,
        found: Hyperparameters,
        solver: SolverOptions,
        problem: Problem,
        machine: MachineFigures,
        passes: PassesEstimate,
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
        Column passes, where they are known.
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
    plot: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.workers or min(self.workers) < 1 or list(self.workers) != sorted(set(self.workers)):
            raise UsageError(
                f"--workers needs rising numbers of workers, each at least 1, such as 1,2,4; got {self.workers}"
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
            ("number of column passes", self.passes),
        ):
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise UsageError(f"the {name} must be finite and above zero; got {value}")


def run_plan(job: PlanJob, reporter: Reporter, validate: Validation | None = None) -> Document:
    """Measure, extrapolate, simulate; return passes, and seconds, memory and worker-hours by number of workers.

    Parameters
    ----------
    validate : Validation, optional
        Trains and compares; `dkgp.bench.scaling.validate.validate` does, on this machine.

    Raises
    ------
    InputError, UsageError
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
        raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
    solver = block_solver(job.solver, dataset, reporter)
    job.solver.stopping()
    kept = None if job.figures is None else read_figures(job.figures, dataset.n_features, dataset.n_targets, reporter)
    found = _hyperparameters(job, dataset, reporter)
    # What messages cost is measured before anything else runs here.
    cluster, least = _measure_cluster(job, reporter)
    problem = problem_of(dataset, found.kernel, solver, least)
    machine = kept or _measure_machine(job, dataset, found, reporter)
    machine = machine if bench is None else with_bench(machine, bench)
    passes = _passes(job, dataset, found, solver, reporter)
    resident = int(psutil.Process().memory_info().rss)
    memory = memory_of(problem, resident_bytes=resident, cache_bytes=job.cluster.cache_bytes)
    effort = Effort(passes.passes, passes.double_passes, passes.refreshes)
    speedups, threads = machine.speedups, job.threads_per_worker
    projections = {
        count: project(
            problem,
            machine,
            Fleet(count, threads, speedups, len(speedups), cluster.network, one_machine=job.one_machine),
            effort,
        )
        for count in job.workers
    }
    worker_bytes = worker_memory_bytes(memory, cluster.worker_resident_bytes)
    rows = [_row(job, count, projections[count], passes, memory, worker_bytes) for count in job.workers]
    useful = most_useful_workers(job.workers, [row["seconds"] for row in rows])
    document: Document = {
        "command": "plan",
        "dataset": dataset.url,
        "n": problem.n,
        "d": problem.d,
        "p": problem.p,
        "hyper": job.hyper,
        "block_size": problem.block_size,
        "tolerance": job.solver.tolerance,
        "passes": plain(asdict(passes)),
        "rounds": math.ceil(passes.passes * problem.n / problem.block_size),
        "threads_per_worker": job.threads_per_worker,
        "one_machine": job.one_machine,
        "workers": rows,
        "most_useful_workers": useful,
        "limit": _limit_after(useful, job.workers, projections),
        "network": asdict(cluster.network),
        "machine": machine.to_json(),
        "memory_plan": memory.to_json(),
        "validation": None,
        "plot": job.plot,
    }
    if validate is not None:
        document["validation"] = plain(validate(dataset, found, job.solver, problem, machine, passes, reporter))
    if job.plot is not None:
        plot_plan(
            job.plot, rows, title=f"Training on n = {problem.n:,}, d = {problem.d}: {passes.passes:.1f} column passes"
        )
    document["warnings"] = list(reporter.warnings)
    return document


def _hyperparameters(job: PlanJob, dataset: Dataset, reporter: Reporter) -> Hyperparameters:
    if job.hyper is not None:
        return read_hyperparameters(job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names)
    reporter.note(
        f"no --hyper: tuning on {min(job.subset, dataset.n_samples):,} samples to have something to plan with"
    )
    with reporter.search("tune") as progress:
        return tune_dataset(dataset, subset=job.subset, seed=job.solver.seed, progress=progress)


def _measure_cluster(job: PlanJob, reporter: Reporter) -> tuple[ClusterFigures, int]:
    """Return what messages cost on the cluster named, or between processes here; and the entries a task is worth."""
    options = job.cluster
    if options.kind in ("auto", "none") and options.config_file is None and options.address() is None:
        options = replace(options, kind="processes", workers=1, threads_per_worker=1)
    elif options.workers is None and options.adaptive is None:
        options = replace(options, workers=1)  # one is enough to measure with
    reporter.note("measuring round trips")
    # Any number of samples that makes "auto" use Dask.
    with open_executor(options, 2**62, reporter) as executor:
        cluster, least = measure_cluster(executor), executor.least_task_evaluations
    network = cluster.network
    if job.round_trip_seconds is not None:
        network = replace(network, round_trip_seconds=job.round_trip_seconds)
    if job.bytes_per_second is not None:
        network = replace(network, bytes_per_second=job.bytes_per_second)
    return replace(cluster, network=network), least


def _measure_machine(job: PlanJob, dataset: Dataset, found: Hyperparameters, reporter: Reporter) -> MachineFigures:
    reporter.note("measuring this machine")
    with closing(LocalExecutor(1)) as executor:
        machine = measure_machine(dataset, found.kernel, found.noise_variance, executor)
    if job.figures is not None:
        write_figures(job.figures, machine)
    return machine


def _passes(
    job: PlanJob,
    dataset: Dataset,
    found: Hyperparameters,
    solver: GreedyBlockCoordinateDescent,
    reporter: Reporter,
) -> PassesEstimate:
    if job.passes is not None:
        # Two full float64 passes: one to verify, one on the way; a few rounds in float64 after the first.
        return PassesEstimate(job.passes, job.passes, job.passes, 0.0, 2, False, ())
    with closing(LocalExecutor()) as executor:
        return estimate_passes(dataset, found, job.solver, solver, executor, reporter)


def _row(
    job: PlanJob,
    workers: int,
    projection: Projection,
    passes: PassesEstimate,
    memory: MemoryPlan,
    worker_bytes: int,
) -> dict[str, Any]:
    fixed = projection.start_seconds + projection.refresh_seconds
    rounds = projection.seconds - fixed
    return {
        "workers": workers,
        "threads": workers * job.threads_per_worker,
        "seconds": projection.seconds,
        # Where the passes are known exactly, all three are equal but for the rounding of the way here.
        "seconds_low": min(projection.seconds, fixed + rounds * passes.low / passes.passes),
        "seconds_high": max(projection.seconds, fixed + rounds * passes.high / passes.passes),
        "worker_hours": workers * projection.seconds / 3600.0,
        "round_seconds": projection.round.seconds,
        "update_seconds": projection.round.update_seconds,
        "coordinator_idle_share": projection.round.wait_seconds / projection.round.seconds,
        "tasks": projection.tasks,
        "start_seconds": projection.start_seconds,
        "refresh_seconds": projection.refresh_seconds,
        "limit": projection.limit,
        "worker_memory_bytes": worker_bytes,
        "coordinator_memory_bytes": memory.coordinator_bytes,
    }


def _limit_after(useful: int, workers: Sequence[int], projections: dict[int, Projection]) -> str:
    """Say why no more workers than that are worth having, or what the largest number planned for meets."""
    count = f"{useful:,} worker{'s' if useful > 1 else ''}"
    limit = projections[useful].limit
    if useful == workers[-1]:
        return f"with {count}: {LIMITS[limit]}"
    if limit == "workers":  # it was still they: what comes after is what stands in the way
        limit = projections[workers[list(workers).index(useful) + 1]].limit
    why = LIMITS[limit] if limit != "workers" else "reading the data and the full float64 passes are the limit"
    return f"beyond {count} less than a tenth is saved: {why}"
