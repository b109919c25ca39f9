"""A solve within a run: its memory plan, the progress and records of its rounds, and stop signals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.reporting.outputs import RecordLog
from dkgp.commands.reporting.progress import Measure
from dkgp.commands.signals import interruptible
from dkgp.commands.training import TrainingRun
from dkgp.errors import MemoryBudgetError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.memory import Memory, Processes, plan_within
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.product_error import AUTO, EVERY_ENTRY, ProductMemory
from dkgp.solvers import MaxPasses, MaxSeconds, Progress, StoppingRule
from dkgp.solvers.registry import SolverMemory


def planned_solve(
    run: TrainingRun,
    kernel: Kernel,
    columns: int,
    memory: SolverMemory,
    executor: BlockExecutor,
    *,
    needs_inputs: str | None = None,
    products: float | None = None,
) -> Memory:
    """Project a solve's memory, plan kept tiles in the rest, and allow workers to keep these tiles.

    Raises `MemoryBudgetError` if the solve does not fit.

    Parameters
    ----------
    columns : int
        Number of right-hand sides.
    memory : SolverMemory
        Bytes that the solver holds, without those of its products.
    needs_inputs : str, optional
        The solver's name if it needs all inputs at the coordinator.
    products : float, optional
        Forecast number of products with the whole matrix, if known.
    """
    n, cache = run.dataset.n_samples, run.job.cluster.cache_bytes
    resident, budget = room(run)
    processes = Processes(
        resident_bytes=resident,
        shares_process=executor.shares_memory,
        overlaps=executor.overlaps,
        cache_bytes=cache,
    )

    def within_budget(products: ProductMemory) -> Memory:
        held = memory.factor_bytes + products.kept_bytes + products.work_bytes
        return plan_within(
            budget,
            n,
            run.dataset.n_features,
            columns,
            replace(memory, factor_bytes=held),
            processes,
            needs_inputs=needs_inputs,
            width=feature_width(kernel),
        )

    bounded, plan = run.product_error.memory(kernel, n, columns, run.job.cluster.worker_memory_bytes), None
    if bounded is not None:
        try:
            plan = within_budget(bounded)
        except MemoryBudgetError:
            if run.product_error != AUTO or not bounded.kept_bytes:
                raise
    if bounded is None or plan is None:
        run.product_error, bounded = EVERY_ENTRY, ProductMemory()
        run.reporter.note(
            "products evaluate every kernel entry, since there is too little memory for approximate products"
        )
        plan = within_budget(bounded)
    repeats = memory.repeats_products and not bounded.kept_bytes
    tiles = replace(executor.tiles, bytes=executor.tiles.bytes if repeats else 0, products=products)
    plan = plan.with_tiles(tiles, n, budget)
    executor.tiles = replace(tiles, bytes=plan["tiles_bytes"])
    return plan


def room(run: TrainingRun) -> tuple[int, int]:
    """Return the bytes that this process holds before the work, and the total memory limit of the run.

    A checkpoint that has been read becomes part of the vectors, which a plan counts.
    """
    resident, budget = memory_budget(run.job.memory_limit_bytes)
    return resident - run.held_bytes, budget


def inputs_within(run: TrainingRun, width: int, free_bytes: int) -> int:
    """Return the bytes of all inputs if the coordinator has room for them beside the work, otherwise 0."""
    needed = coordinator_input_bytes_needed(run.dataset.n_samples, run.dataset.n_features, width)
    return needed if needed <= min(DEFAULT_COORDINATOR_INPUT_BYTES, free_bytes) else 0


def input_bytes(plan: Memory) -> int:
    """Return the bytes of inputs that the plan reserves at the coordinator: those of all inputs, or 0."""
    return DEFAULT_COORDINATOR_INPUT_BYTES if plan["inputs_bytes"] else 0


@contextmanager
def solving(
    run: TrainingRun,
    executor: BlockExecutor,
    coordinator_input_bytes: int,
    tolerance: float,
    *,
    measure: Measure = "gradient_inf_norm",
) -> Iterator[RunContext]:
    """Open a solve that ends when the measure of a `Progress` reaches the tolerance; show and record its rounds."""
    run.begin()
    with (
        RecordLog(run.job.log_json, resume=run.job.resume) as log,
        run.reporter.solve(run.command, tolerance, measure) as show,
        interruptible(run.reporter.warn) as interruption,
    ):

        def after_round(progress: Progress) -> None:
            show(progress)
            log.write(progress.to_json())

        yield RunContext(
            executor,
            coordinator_input_bytes,
            run.product_error,
            run.reporter.note,
            callback=after_round,
            within=show,
            checkpointing=run.checkpointing,
            interrupted=interruption,
        )


def effort_limits(max_passes: float | None, max_seconds: float | None) -> StoppingRule | None:
    """Return a rule that limits the effort of a solve; at a limit, it stops short of its tolerance."""
    limits: list[StoppingRule] = []
    if max_passes is not None:
        limits.append(MaxPasses(max_passes))
    if max_seconds is not None:
        limits.append(MaxSeconds(max_seconds))
    return limits[0] | limits[1] if len(limits) == 2 else limits[0] if limits else None
