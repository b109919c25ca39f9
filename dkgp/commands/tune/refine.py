"""`dkgp tune --refine`: what a search on subsets has found, refined on all samples of the store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dkgp.cluster import BlockExecutor
from dkgp.codec import to_json
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.run import Run
from dkgp.commands.signals import interruptible
from dkgp.errors import InterruptedRunError
from dkgp.kernels import Kernel
from dkgp.models import Hyperparameters, RunContext
from dkgp.models.memory import tiles_that_fit
from dkgp.models.refinement.record import RefineMemory, RefineSettings, plan_refinement
from dkgp.models.refinement.refine import RefineSpace, refine
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.product_error import ProductError


def check_refinement_memory(
    run: Run, settings: RefineSettings, executor: BlockExecutor, kernel: Kernel | None = None
) -> RefineMemory:
    """Project the memory of a refinement; the coordinator holds all inputs only where that fits too.

    Products within a bound are counted once the kernel is known.

    Raises `MemoryBudgetError`: it does not fit either way; `InputError`: a preconditioner's rank that does not fit its
    memory.
    """
    dataset = run.dataset
    resident, budget = memory_budget()
    n, d = dataset.n_samples, dataset.n_features
    plan = partial(
        plan_refinement,
        n,
        d,
        dataset.n_targets,
        settings,
        executor,
        resident_bytes=resident,
        cache_bytes=run.job.cluster.cache_bytes,
    )
    products, columns = None, 2 * dataset.n_targets + settings.probes_for(n)
    if kernel is not None:
        error = ProductError.of(settings.product_error)
        products = error.memory(kernel, n, columns, run.job.cluster.worker_memory_bytes)
    if coordinator_input_bytes_needed(n, d) <= DEFAULT_COORDINATOR_INPUT_BYTES:
        holding = plan(holds_inputs=True).with_products(products)
        if holding.coordinator_bytes <= budget:
            return _with_tiles(holding, executor, n, budget)
    lean = plan(holds_inputs=False).with_products(products)
    lean.require(budget)
    return _with_tiles(lean, executor, n, budget)


def _with_tiles(plan: RefineMemory, executor: BlockExecutor, n: int, budget_bytes: int) -> RefineMemory:
    """The same with room for tiles that are kept."""
    return replace(plan, tiles_bytes=tiles_that_fit(executor.tiles, n, plan.spare_bytes(budget_bytes)))


def refined(run: Run, start: Hyperparameters, executor: BlockExecutor) -> Hyperparameters:
    """Refine from a start on, with one line a step; the hyperparameters to write carry the record of what was done.

    Raises
    ------
    InputError, MemoryBudgetError
        Found before any work.
    NumericalError
        The kernel matrix is not positive definite at the start.
    ClusterError
        The cluster was lost.
    """
    job, dataset, reporter = run.job, run.dataset, run.reporter
    settings: RefineSettings = job.refine.decided(dataset, start)
    error = ProductError.of(settings.product_error)
    error.require_kernel(start.kernel)
    plan = check_refinement_memory(run, settings, executor, start.kernel)
    executor.tiles = replace(executor.tiles, bytes=plan.tiles_bytes)
    space = RefineSpace.of_start(start, dataset.feature_names, learn_variance=job.learn_variance, **job.named())
    reporter.note(
        f"refining {int(space.space.free.sum())} hyperparameters on {dataset.n_samples:,} samples with "
        f"{settings.probes_for(dataset.n_samples)} probes"
    )

    with interruptible(reporter.warn) as interruption:
        refinement = refine(
            dataset,
            space,
            RunContext(
                executor,
                callback=lambda step: reporter.note(step.plain, str(step)),
                interrupted=interruption,
                product_error=error,
                note=reporter.note,
                # What the plan found room for: all inputs at the coordinator, or none.
                coordinator_input_bytes=DEFAULT_COORDINATOR_INPUT_BYTES if plan.inputs_bytes else 0,
            ),
            settings,
            note=reporter.note,
        )
    if refinement.kept == "refined":
        reporter.note(refinement.verdict)
    elif not refinement.interrupted:
        reporter.warn(refinement.verdict)
    short = sum(step.relative_residual > step.tolerance for step in refinement.history)
    if short:
        reporter.warn(
            f"in {short} of {len(refinement.history)} steps {settings.max_passes:g} passes did not solve to the "
            "relative residual that a step aims at, and gradients have larger errors: raise `refine_max_passes`, "
            "`refine_rank` or `refine_tolerance`"
        )
    kept = refinement.hyperparameters
    record = {**to_json(refinement), "memory_plan": plan.to_json()}
    return replace(kept, refinement=record)


def raise_if_interrupted(tuned: Hyperparameters, out: str) -> None:
    """Say how to go on, once the hyperparameters so far have been written to `out`.

    Raises `InterruptedRunError`: the refinement was interrupted.
    """
    refinement = tuned.refinement
    if refinement is not None and refinement["interrupted"]:
        raise InterruptedRunError(
            f"{refinement['verdict']}; they are in '{out}'. Go on from there with the same command and `start` '{out}' "
            "`refine_only`, and another `out` or `overwrite`"
        )
