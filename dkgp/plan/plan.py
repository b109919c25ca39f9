"""`dkgp plan`: what training on a data set will take, for 1 to 256 workers, before anybody pays for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dkgp.cluster import open_executor
from dkgp.cluster.cache import budget_here
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files, plain
from dkgp.commands.reporting.plots import plot_plan
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.sparse import SparseJob
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.models import Hyperparameters, read_hyperparameters, tune_dataset
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import whole_phases
from dkgp.options import prefixed
from dkgp.plan.fleet import Fleet, Projection, most_useful_workers, product_parts, product_seconds, project
from dkgp.plan.foreseen import Foreseen, foresee
from dkgp.plan.job import VARIANCE, PlanJob
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
from dkgp.plan.smaller import LikelihoodSettings, Smaller, foresee_classifier, foresee_likelihood, foresee_sparse
from dkgp.plan.variances import ForeseenVariances, foresee_variances
from dkgp.solvers.prices import Phase

__all__ = ["PlanJob", "run_plan"]

LIMITS = {
    "workers": "more workers would help further",
    "tasks": "a round has no more tasks that are worth their messages",
    "messages": "messages take longer than the work they bring",
    "reading": "reading the data is the limit",
}


def run_plan(job: PlanJob, reporter: Reporter) -> Document:
    """Measure, foresee, lay out; return seconds by phase, memory and worker-hours by number of workers.

    Raises
    ------
    InputError, UsageError, MemoryBudgetError
        Anything that can be found wrong beforehand.
    ClusterError
        No cluster to measure messages on.
    """
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
        _require_room(job, each, memory.resident_bytes)
    cluster = _measure_cluster(job, reporter)
    machine = kept or _measure_machine(job, dataset, hyperparameters, reporter)
    machine = machine if bench is None else with_bench(machine, bench)
    layout = _Layout(job, foreseen, variances, smaller, machine, cluster, memory.resident_bytes)
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


def _foresee_variances(job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters) -> ForeseenVariances | None:
    if job.variance is None:
        return None
    try:
        return foresee_variances(dataset, hyperparameters, job.variance, job.test_samples, job.threads_per_worker)
    except MemoryBudgetError as error:
        # A solver's options have the same names.
        raise prefixed(error, VarianceSettings, VARIANCE.prefix) from None


def _foresee_sparse(job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters) -> Smaller | None:
    settings = job.sparse_settings()
    if settings is None:
        return None
    asked = SparseJob(job.dataset, job.hyper or "", "", settings, job.basis_size)
    asked.check()
    settings = asked.sized(dataset.n_samples).settings
    return foresee_sparse(dataset, hyperparameters, settings, job.cluster.cache_bytes)


def _foresee_classifier(
    job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters, blocks: int
) -> Smaller | None:
    settings, cache_bytes = job.classifier_settings(), job.cluster.cache_bytes
    if not isinstance(settings, LikelihoodSettings):
        return None if settings is None else foresee_classifier(dataset, hyperparameters, settings, cache_bytes)
    if job.hyper is None:  # those of a regression have another amplitude
        search = LabelTuning(min(job.subset, dataset.n_samples), settings.seed, likelihood="logit")
        hyperparameters = tune_labels(LabelledData(dataset, labels_of(dataset)), search)
    tiles = budget_here(job.cluster.cache_tiles, worker_memory_bytes=job.cluster.worker_memory_bytes)
    return foresee_likelihood(dataset, hyperparameters, settings, cache_bytes, blocks, tiles.bytes)


def _require_room(job: PlanJob, smaller: Smaller, resident_bytes: int) -> None:
    """Refuse what does not fit on the fewest workers; `MemoryBudgetError`."""
    budget = job.memory_limit_bytes or resident_bytes + available_bytes()
    memory = smaller.memory(job.workers[0], job.threads_per_worker, budget - resident_bytes)
    memory.require(budget, resident_bytes)


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
        asked = job.bytes_per_second
        if options.kind in ("local", "processes") and options.address() is None:
            # Measured without a link: what the coordinator copies and encrypts, and no link makes that faster.
            asked = min(asked, network.bytes_per_second)
        network = replace(network, bytes_per_second=asked)
    return replace(cluster, network=network)


def _measure_machine(
    job: PlanJob, dataset: Dataset, hyperparameters: Hyperparameters, reporter: Reporter
) -> MachineFigures:
    reporter.note("measuring this machine")
    machine = measure_machine(dataset, hyperparameters.kernel, hyperparameters.noise_variance)
    if job.figures is not None:
        write_figures(job.figures, machine)
    return machine


@dataclass(frozen=True)
class _Layout:
    """A run, and what goes with it, laid out on any number of workers."""

    job: PlanJob
    foreseen: Foreseen
    variances: ForeseenVariances | None
    smaller: Mapping[str, Smaller | None]
    machine: MachineFigures
    cluster: ClusterFigures
    resident_bytes: int  # of the coordinator, before the work

    def row(self, workers: int) -> dict[str, Any]:
        """Return what all of it takes on so many workers."""
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
        worker_plan = replace(memory, tiles_bytes=tiles.most_bytes)
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
        run, single, double = variances.on(fleet.workers, fleet.threads_per_worker), variances.single, variances.double
        expected, low, high = (
            self._projected(variances.phases(run, self.foreseen.sizes, *products), fleet)
            for products in ((single.count, double.count), (single.low, double.low), (single.high, double.high))
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
            "worker_memory_bytes": variances.worker_bytes(run, self.cluster.worker_resident_bytes),
        }

    def _smaller(self, smaller: Smaller, fleet: Fleet) -> dict[str, Any]:
        expected = self._projected(smaller.phases, fleet)
        memory = smaller.memory(fleet.workers, fleet.threads_per_worker)
        return {
            "seconds": expected.total,
            "phases": expected.seconds,
            "limit": expected.limit,
            "worker_memory_bytes": self.cluster.worker_resident_bytes + memory.worker_bytes,
            "coordinator_memory_bytes": self.resident_bytes + memory.coordinator_bytes,
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
