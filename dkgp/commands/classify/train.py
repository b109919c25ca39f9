"""Training by either method within a command: memory, progress, records and interruption around the model's work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.own_work import has_checkpoint, memory_budget
from dkgp.commands.reporting.progress import Reporter, SolveProgress
from dkgp.commands.reporting.records import RecordLog
from dkgp.commands.signals import interruptible
from dkgp.data import ClassifierRecord, Dataset
from dkgp.errors import InterruptedRunError
from dkgp.kernels import Kernel, SquaredExponential, fold_white
from dkgp.models import Hyperparameters
from dkgp.models.classification.exact.stopping import DecisionError
from dkgp.models.classification.exact.train import solver_for_labels, train_exact
from dkgp.models.classification.fixed_size.memory import FixedSizeMemory
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.hyperparameters import tune_labels
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.records import exact_record, fixed_size_record
from dkgp.models.memory import MemoryPlan, plan_within
from dkgp.models.warm_up import compiling_bytes
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.solvers import Checkpointing, MaxPasses, MaxSeconds, Solver, StoppingRule
from dkgp.solvers.registry import AUTO, build_solver, solver_memory

__all__ = ["Prepared", "train_one"]


@dataclass(frozen=True)
class Prepared:
    """Everything that could be checked without computing."""

    dataset: Dataset
    labels: Labels
    hyperparameters: Hyperparameters | None
    weights: FloatArray | None
    checkpointing: Checkpointing


def train_one(job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter) -> ClassifierRecord:
    """Train by the job's method; return the model as it is to be stored.

    Raises
    ------
    MemoryBudgetError
        It is projected to take more than there is.
    InterruptedRunError
        A signal asked for the end; the message says how to go on.
    """
    train = _exact if job.is_exact else _fixed_size
    try:
        return train(job, prepared, executor, reporter)
    except InterruptedRunError as error:
        store = prepared.checkpointing.store
        if not has_checkpoint(store):
            raise
        kept = "" if error.checkpoint is not None else f"; what is done is saved in {store.url}"
        raise InterruptedRunError(f"{error}{kept}. Go on with the same command and --resume", store.url) from None


def _fixed_size(job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter) -> ClassifierRecord:
    found = prepared.hyperparameters
    kernel = noise_variance = None
    if found is not None:
        kernel, noise = fold_white(found.kernel, found.noise_variance)
        noise_variance = noise if job.given_noise else None
    plan, inputs_bytes = _planned_pool(job, prepared, kernel, executor)
    _begin(job, prepared)
    with (
        RecordLog(job.log_json, resume=job.resume) as log,
        reporter.work("classify") as show,
        interruptible(reporter.warn) as interruption,
    ):

        def after_evaluation(record: dict[str, Any]) -> None:
            reporter.note(
                f"pass {record['pass']}: scale {record['scale']:.4g}, noise variance {record['noise_variance']:.3g}: "
                f"score {record['score']:.5g} with {record['cardinality']:,} prototypes"
            )
            log.write({"iteration": record["pass"], **record})

        trained = train_fixed_size(
            prepared.dataset,
            prepared.labels,
            job.settings,
            executor,
            kernel=kernel,
            noise_variance=noise_variance,
            weights=prepared.weights,
            together=plan.together,
            checkpointing=prepared.checkpointing,
            callback=after_evaluation,
            within=show,
            interrupted=interruption,
            coordinator_input_bytes=inputs_bytes,
        )
    record = fixed_size_record(trained, prepared.dataset, prepared.labels, prepared.weights)
    record.summary["memory_plan"] = plan.to_json()
    return record


def _exact(job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter) -> ClassifierRecord:
    dataset, labels, found = prepared.dataset, prepared.labels, prepared.hyperparameters
    if found is None:
        reporter.note("finding hyperparameters by the marginal likelihood of a subset's labels")
        with reporter.search("tune") as progress:
            settings = job.settings
            found = tune_labels(dataset, labels, seed=settings.seed, isotropic=settings.isotropic, progress=progress)
    kernel, noise = fold_white(found.kernel, found.noise_variance)
    least = noise if prepared.weights is None else noise / float(prepared.weights.max())
    level = noise / dataset.n_samples * (1.0 if prepared.weights is None else float((1.0 / prepared.weights).mean()))
    rule = DecisionError(job.tolerance, least, _largest(dataset, kernel), job.fit_intercept, level)
    solver, chosen = _solver(job, prepared, kernel, least, rule, executor)
    if chosen:
        reporter.note(f"the solver is {solver.name}: {chosen['auto']['reason']}")
    plan = _planned(job, prepared, kernel, solver, executor)
    executor.tiles = replace(executor.tiles, bytes=plan.tiles_bytes)
    _begin(job, prepared)
    with (
        RecordLog(job.log_json, resume=job.resume) as log,
        reporter.solve("classify", rule.gradient_tolerance(dataset.n_samples)) as show,
        interruptible(reporter.warn) as interruption,
    ):

        def after_round(progress: SolveProgress) -> None:
            show(progress)
            log.write(progress.to_json())

        trained = train_exact(
            dataset,
            labels,
            found,
            executor,
            solver=solver,
            tolerance=job.tolerance,
            limits=_limits(job),
            weights=prepared.weights,
            fit_intercept=job.fit_intercept,
            callback=after_round,
            within=show,
            checkpointing=prepared.checkpointing,
            interrupted=interruption,
            # What the plan found room for: all inputs at the coordinator, or none.
            coordinator_input_bytes=DEFAULT_COORDINATOR_INPUT_BYTES if plan.inputs_bytes else 0,
            calibrate=job.settings.probability,
            seed=job.settings.seed,
        )
    name = chosen["auto"]["solver"] if chosen else job.solver
    summary = {
        **trained.summary,
        **chosen,
        "solver": name,
        "memory_plan": plan.to_json(),
        "gradient_tolerance": rule.gradient_tolerance(dataset.n_samples),
    }
    return exact_record(trained, dataset, labels, prepared.weights, summary)


def _solver(
    job: ClassifyJob,
    prepared: Prepared,
    kernel: Kernel,
    noise_variance: float,
    rule: DecisionError,
    executor: BlockExecutor,
) -> tuple[Solver, dict[str, Any]]:
    if job.solver != AUTO:
        solver = build_solver(job.solver, {}, seed=job.settings.seed)
        return solver.resolved(prepared.dataset.n_samples, prepared.dataset.n_features), {}
    n, columns = prepared.dataset.n_samples, prepared.labels.n_outputs + job.fit_intercept
    return solver_for_labels(
        prepared.dataset,
        kernel,
        noise_variance,
        columns,
        rule.gradient_tolerance(n),
        executor,
        job.settings.seed,
        memory_budget(job)[1],
    )


def _limits(job: ClassifyJob) -> StoppingRule | None:
    """Effort after which a solve stops short."""
    limits: list[StoppingRule] = []
    if job.max_passes is not None:
        limits.append(MaxPasses(job.max_passes))
    if job.max_seconds is not None:
        limits.append(MaxSeconds(job.max_seconds))
    return limits[0] | limits[1] if len(limits) == 2 else limits[0] if limits else None


def _planned_pool(
    job: ClassifyJob, prepared: Prepared, kernel: Kernel | None, executor: BlockExecutor
) -> tuple[FixedSizeMemory, int]:
    """The projected memory, and bytes of inputs that the coordinator may hold.

    Raises `MemoryBudgetError` where a pool does not fit, one kernel at a time.
    """
    dataset = prepared.dataset
    n, d = dataset.n_samples, dataset.n_features
    expected = SquaredExponential(gamma=(1.0,) * d) if kernel is None else kernel
    width = feature_width(expected)
    resident, budget = memory_budget(job)
    resident += compiling_bytes(expected) - prepared.checkpointing.held_bytes
    inputs = coordinator_input_bytes_needed(n, d, width)

    def plan(free: int) -> FixedSizeMemory:
        outputs, cache = prepared.labels.n_outputs, job.cluster.cache_bytes
        return job.settings.memory(n, d, outputs, executor, cache, width, budget_bytes=free)

    found = plan(budget - resident - inputs)
    if inputs > DEFAULT_COORDINATOR_INPUT_BYTES or resident + found.coordinator_bytes + inputs > budget:
        inputs, found = 0, plan(budget - resident)
    found.require(budget, resident)
    return found, inputs


def _planned(
    job: ClassifyJob, prepared: Prepared, kernel: Kernel, solver: Solver, executor: BlockExecutor
) -> MemoryPlan:
    """Project the solve's memory, tiles kept in what is left; `MemoryBudgetError` where it does not fit."""
    dataset, width = prepared.dataset, feature_width(kernel)
    resident, budget = memory_budget(job)
    memory = solver_memory(solver, dataset.n_samples, width)
    return plan_within(
        budget,
        dataset.n_samples,
        dataset.n_features,
        prepared.labels.n_outputs + job.fit_intercept,
        memory,
        resident_bytes=resident - prepared.checkpointing.held_bytes + compiling_bytes(kernel),
        shares_process=executor.shares_memory,
        overlaps=executor.overlaps,
        cache_bytes=job.cluster.cache_bytes,
        width=width,
    ).with_tiles(
        executor.tiles if memory.repeats_products else replace(executor.tiles, bytes=0), dataset.n_samples, budget
    )


def _begin(job: ClassifyJob, prepared: Prepared) -> None:
    """Remove checkpoints of an earlier run, now that nothing can be refused any more."""
    if not job.resume:
        prepared.checkpointing.store.clear()


def _largest(dataset: Dataset, kernel: Kernel) -> float:
    """The largest k(x, x) among the samples."""
    if kernel.stationary:
        return float(kernel.diagonal(dataset.inputs(0, 1))[0])
    return max(float(kernel.diagonal(dataset.inputs(*rows)).max()) for rows in dataset.row_chunks())
