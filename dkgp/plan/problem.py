"""A data set and a solver as the cost model sees them: sizes, and the memory that `plan_training` projects."""

from __future__ import annotations

from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.errors import UsageError
from dkgp.kernels import Kernel
from dkgp.models.memory import RUNTIME_BYTES, MemoryPlan, plan_training
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.plan.costs import Problem
from dkgp.solvers import GreedyBlockCoordinateDescent, GreedySelection
from dkgp.solvers.registry import SolverMemory, solver_memory

__all__ = ["block_solver", "memory_of", "problem_of", "worker_memory_bytes"]


def block_solver(options: SolverOptions, dataset: Dataset, reporter: Reporter) -> GreedyBlockCoordinateDescent:
    """Return the solver, its block size chosen; `UsageError` unless the cost model knows its rounds."""
    solver = options.build(dataset.n_samples, dataset.n_features, dataset.n_targets, reporter)
    if not isinstance(solver, GreedyBlockCoordinateDescent):
        raise UsageError(f"the cost model knows rounds of block descent alone; got the solver {options.solver}")
    return solver


def problem_of(
    dataset: Dataset, kernel: Kernel, solver: GreedyBlockCoordinateDescent, least_task_evaluations: int
) -> Problem:
    """Return the problem's sizes.

    Parameters
    ----------
    solver : GreedyBlockCoordinateDescent
        Block size resolved.
    least_task_evaluations : int
        Of the executor that the rounds will run on.

    Raises
    ------
    UsageError
        A selection that is not the greedy one: its costs are not known here.
    """
    if not isinstance(solver.selection, GreedySelection) or solver.selection.exhaustive:
        raise UsageError("only the greedy selection of random candidates can be planned for")
    solver = solver.resolved(dataset.n_samples, dataset.n_features, dataset.n_targets)
    assert isinstance(solver.selection, GreedySelection)
    held = solver_memory(solver, dataset.n_samples, dataset.n_features)
    context = BlockContext("plan", dataset, kernel, dataset.n_samples)
    return Problem(
        n=dataset.n_samples,
        d=dataset.n_features,
        p=dataset.n_targets,
        block_size=int(solver.block_size),
        candidates=solver.selection.candidates,
        memory=solver.memory,
        precision=solver.precision,
        block_rows=context.block_rows,
        least_task_evaluations=least_task_evaluations,
        width=feature_width(kernel),
        largest_block_size=held.block_size,
        least_candidates=held.candidates,
    )


def memory_of(problem: Problem, *, resident_bytes: int, cache_bytes: int) -> MemoryPlan:
    """Project a run's memory as `dkgp train` does before it starts, on workers that are processes of their own.

    Parameters
    ----------
    resident_bytes : int
        What the coordinator's process holds beforehand.
    cache_bytes : int
        Of each worker's feature cache.
    """
    needed = coordinator_input_bytes_needed(problem.n, problem.d, problem.width)
    return plan_training(
        problem.n,
        problem.d,
        problem.p,
        SolverMemory(
            problem.memory,
            problem.largest_block_size or problem.block_size,
            problem.least_candidates or problem.candidates,
        ),
        resident_bytes=resident_bytes,
        shares_process=False,
        overlaps=True,
        holds_inputs=needed <= DEFAULT_COORDINATOR_INPUT_BYTES,
        cache_bytes=cache_bytes,
        width=problem.width,
    )


def worker_memory_bytes(plan: MemoryPlan, resident_bytes: int) -> int:
    """Projected peak of a worker process: what it holds before any work, its runtime, and its cache."""
    return resident_bytes + RUNTIME_BYTES + plan.worker_bytes
