"""A solve within a run: memory planned beforehand, rounds shown and recorded, signals heard.

Also the checks of sums by a tree (`tree_error`) against the other options, and the memory that the tree takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.reporting.progress import Measure
from dkgp.commands.reporting.records import RecordLog
from dkgp.commands.signals import interruptible
from dkgp.commands.training import TrainingRun
from dkgp.errors import MemoryBudgetError, UsageError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.memory import MemoryPlan, Processes, plan_within
from dkgp.operators import ArrayInputs, TreeKernelOperator
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.tree.kd_tree import building_bytes, tree_bytes
from dkgp.solvers import MaxPasses, MaxSeconds, Progress, StoppingRule
from dkgp.solvers.registry import Need, SolverMemory, solvers_that_need


def planned_solve(
    run: TrainingRun,
    kernel: Kernel,
    columns: int,
    memory: SolverMemory,
    executor: BlockExecutor,
    *,
    needs_inputs: str | None = None,
    products: float | None = None,
) -> MemoryPlan:
    """Project a solve's memory, tiles kept in what remains, and give workers leave to keep these.

    Raises `MemoryBudgetError`: it does not fit.

    Parameters
    ----------
    columns : int
        Right-hand sides.
    memory : SolverMemory
        What the solver holds, a tree of the job's apart.
    needs_inputs : str, optional
        The solver's name, where it needs all inputs at the coordinator.
    products : float, optional
        With the whole matrix, as far as they are foreseen.
    """
    tree_error, n, width = run.job.tree_error, run.dataset.n_samples, feature_width(kernel)
    resident, budget = room(run)
    cache = run.job.cluster.cache_bytes
    repeats = memory.repeats_products and tree_error is None
    if tree_error is not None:
        memory = add_tree_memory(memory, n, width, executor.shares_memory, cache)
    plan = plan_within(
        budget,
        n,
        run.dataset.n_features,
        columns,
        memory,
        Processes(
            resident_bytes=resident,
            shares_process=executor.shares_memory,
            overlaps=executor.overlaps,
            cache_bytes=cache,
        ),
        needs_inputs=needs_inputs,
        width=width,
    )
    tiles = replace(executor.tiles, bytes=executor.tiles.bytes if repeats else 0, products=products)
    plan = plan.with_tiles(tiles, n, budget)
    executor.tiles = replace(tiles, bytes=plan.tiles_bytes)
    return plan


def room(run: TrainingRun) -> tuple[int, int]:
    """Bytes that this process holds before the work, and what the run may take in all.

    A checkpoint that has been read becomes part of the vectors, which a plan counts.
    """
    resident, budget = memory_budget(run.job.memory_limit_bytes)
    return resident - run.held_bytes, budget


def inputs_within(run: TrainingRun, width: int, free_bytes: int) -> int:
    """Bytes of all inputs where the coordinator has room for them beside the work; none otherwise."""
    needed = coordinator_input_bytes_needed(run.dataset.n_samples, run.dataset.n_features, width)
    return needed if needed <= min(DEFAULT_COORDINATOR_INPUT_BYTES, free_bytes) else 0


def input_bytes(plan: MemoryPlan) -> int:
    """Bytes of inputs that the plan found room for at the coordinator: all of them, or none."""
    return DEFAULT_COORDINATOR_INPUT_BYTES if plan.inputs_bytes else 0


@contextmanager
def solving(
    run: TrainingRun,
    executor: BlockExecutor,
    coordinator_input_bytes: int,
    tolerance: float,
    *,
    measure: Measure = "gradient_inf_norm",
) -> Iterator[RunContext]:
    """Begin a solve that is done when the measure, of a `Progress`, is at the tolerance; show and record its rounds."""
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
            run.job.tree_error,
            callback=after_round,
            within=show,
            checkpointing=run.checkpointing,
            interrupted=interruption,
        )


def effort_limits(max_passes: float | None, max_seconds: float | None) -> StoppingRule | None:
    """Effort after which a solve stops short of its tolerance."""
    limits: list[StoppingRule] = []
    if max_passes is not None:
        limits.append(MaxPasses(max_passes))
    if max_seconds is not None:
        limits.append(MaxSeconds(max_seconds))
    return limits[0] | limits[1] if len(limits) == 2 else limits[0] if limits else None


def check_tree_error(error: float | None, tolerance: float, solver: str) -> None:
    """Refuse an error of tree sums that makes no sense beside the tolerance and the solver of this name.

    Raises
    ------
    InputError, UsageError
    """
    if error is None:
        return
    if error >= tolerance:
        raise UsageError(
            f"--tree-error must be below --tol, or its errors decide the gradient; got {error:g} with --tol "
            f"{tolerance:g}. Give {tolerance / 10:g} or less"
        )
    # Pruned products would serve them for the gradient at the end alone.
    if solver in solvers_that_need(Need.ENTRIES):
        raise UsageError(
            f"--tree-error is for solvers that work by kernel products; {solver} evaluates the entries themselves. "
            "Leave it out, or take --solver gbcd or pcg, say"
        )


def check_tree_gradient(error: float | None, gradient_tolerance: float, tolerance: float) -> None:
    """Refuse an error of tree sums above what a gradient may be off for decisions within a tolerance; `UsageError`."""
    if error is not None and error >= gradient_tolerance:
        raise UsageError(
            f"decisions within --tol {tolerance:g} of these samples take a gradient within {gradient_tolerance:.3g}; "
            f"--tree-error must be below that, or its errors decide them; got {error:g}. Give "
            f"{gradient_tolerance / 10:.2g} or less"
        )


def check_tree_kernel(kernel: Kernel) -> None:
    """Refuse, before anything is started, a kernel or a number of features that a tree cannot serve; `InputError`."""
    with closing(LocalExecutor(1)) as executor:
        TreeKernelOperator(kernel, 1.0, ArrayInputs(np.zeros((1, kernel.n_features))), executor).close()


def require_tree_room(n: int, width: int, cache_bytes: int) -> int:
    """Return the bytes of a tree over n samples of so many numbers; `MemoryBudgetError` above a worker's cache."""
    needed = tree_bytes(n, width)
    if needed > cache_bytes:
        raise MemoryBudgetError(
            f"the tree of --tree-error over {n:,} samples takes {needed:,} bytes in each process; a worker's cache "
            f"holds {cache_bytes:,}. Give the workers more with --worker-memory, or leave --tree-error out"
        )
    return needed


def add_tree_memory(memory: SolverMemory, n: int, width: int, shares_process: bool, cache_bytes: int) -> SolverMemory:
    """Add a tree in each process, the coordinator's included, to what `solver_memory` says.

    Raises `MemoryBudgetError`: it does not.

    Parameters
    ----------
    memory : SolverMemory
        What the solver holds.
    n, width : int
        Samples, and numbers that the tree holds of each.
    shares_process : bool
        Whether the workers share the coordinator's process, and so its tree.
    cache_bytes : int
        Budget of a worker's cache, which the tree has to fit in.
    """
    needed = require_tree_room(n, width, cache_bytes)
    peak = needed + building_bytes(n, width)
    separate = 0 if shares_process else peak
    return replace(memory, own_bytes=memory.own_bytes + separate, factor_bytes=memory.factor_bytes + peak)
