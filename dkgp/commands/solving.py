"""A solve within a command: memory planned beforehand, rounds shown and recorded, signals heard, and how to go on.

Also the checks of sums by a tree (`tree_error`) against the other options, and the memory that the tree takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dkgp.cluster import BlockExecutor, ClusterOptions, LocalExecutor
from dkgp.commands.own_work import CheckpointedJob, has_checkpoint, memory_budget
from dkgp.commands.reporting.progress import Measure, Reporter, SolveProgress, WorkProgress
from dkgp.commands.reporting.records import RecordLog
from dkgp.commands.signals import interruptible
from dkgp.data import CheckpointStore, Dataset
from dkgp.errors import InterruptedRunError, MemoryBudgetError, UsageError
from dkgp.kernels import Kernel
from dkgp.models.memory import MemoryPlan, plan_within
from dkgp.models.warm_up import compiling_bytes
from dkgp.operators import ArrayInputs, TreeKernelOperator
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.operators.tree.memory import building_bytes, tree_bytes
from dkgp.solvers import Checkpointing, MaxPasses, MaxSeconds, StoppingRule
from dkgp.solvers.registry import Need, SolverMemory, solvers_that_need

__all__ = [
    "Rounds",
    "SolvingJob",
    "add_tree_memory",
    "check_tree_error",
    "check_tree_gradient",
    "check_tree_kernel",
    "effort_limits",
    "going_on",
    "input_bytes",
    "planned_solve",
    "require_tree_room",
    "solving",
]


class SolvingJob(CheckpointedJob, Protocol):
    """A job whose model comes from a solve over all samples."""

    @property
    def cluster(self) -> ClusterOptions:
        """The cluster that the rounds run on."""

    @property
    def log_json(self) -> str | None:
        """File for the records of the rounds."""

    @property
    def tree_error(self) -> float | None:
        """Error of tree sums, where products are taken by a tree."""


@dataclass(frozen=True)
class Rounds:
    """Calls that a solve makes on its way.

    Attributes
    ----------
    callback, within, interrupted
        As of `dkgp.solvers.solve`.
    """

    callback: Callable[[SolveProgress], None]
    within: Callable[[WorkProgress], None]
    interrupted: Callable[[], bool]

    def arguments(self) -> dict[str, Any]:
        """As keywords."""
        return {"callback": self.callback, "within": self.within, "interrupted": self.interrupted}


def planned_solve(
    job: SolvingJob,
    dataset: Dataset,
    kernel: Kernel,
    columns: int,
    memory: SolverMemory,
    checkpointing: Checkpointing,
    executor: BlockExecutor,
    *,
    needs_inputs: str | None = None,
    products: float | None = None,
) -> MemoryPlan:
    """Project a solve's memory, tiles kept in what is left, and give workers leave to keep these.

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

    Raises
    ------
    MemoryBudgetError
        It does not fit.
    """
    resident, budget = memory_budget(job)
    n, width, cache = dataset.n_samples, feature_width(kernel), job.cluster.cache_bytes
    repeats = memory.repeats_products and job.tree_error is None
    if job.tree_error is not None:
        memory = add_tree_memory(memory, n, width, executor.shares_memory, cache)
    plan = plan_within(
        budget,
        n,
        dataset.n_features,
        columns,
        memory,
        needs_inputs=needs_inputs,
        # A checkpoint that has been read becomes part of the vectors, which the plan counts.
        resident_bytes=resident - checkpointing.held_bytes + compiling_bytes(kernel),
        shares_process=executor.shares_memory,
        overlaps=executor.overlaps,
        cache_bytes=cache,
        width=width,
    )
    tiles = replace(executor.tiles, bytes=executor.tiles.bytes if repeats else 0, products=products)
    plan = plan.with_tiles(tiles, n, budget)
    executor.tiles = replace(tiles, bytes=plan.tiles_bytes)
    return plan


def input_bytes(plan: MemoryPlan) -> int:
    """Bytes of inputs that the plan found room for at the coordinator: all of them, or none."""
    return DEFAULT_COORDINATOR_INPUT_BYTES if plan.inputs_bytes else 0


@contextmanager
def solving(
    job: SolvingJob, label: str, tolerance: float, reporter: Reporter, *, measure: Measure = "gradient_inf_norm"
) -> Iterator[Rounds]:
    """Open display and records of a solve that is done when the measure, of a `Progress`, is at the tolerance."""
    with (
        RecordLog(job.log_json, resume=job.resume) as log,
        reporter.solve(label, tolerance, measure) as show,
        interruptible(reporter.warn) as interruption,
    ):

        def after_round(progress: SolveProgress) -> None:
            show(progress)
            log.write(progress.to_json())

        yield Rounds(after_round, show, interruption)


@contextmanager
def going_on(store: CheckpointStore) -> Iterator[None]:
    """Say of an interruption how to go on, where there is a checkpoint to go on from."""
    try:
        yield
    except InterruptedRunError as error:
        if not has_checkpoint(store):
            raise
        kept = "" if error.checkpoint is not None else f"; what is done is saved in {store.url}"
        raise InterruptedRunError(f"{error}{kept}. Go on with the same command and --resume", store.url) from None


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

    Raises
    ------
    MemoryBudgetError
        It does not.
    """
    needed = require_tree_room(n, width, cache_bytes)
    peak = needed + building_bytes(n, width)
    own = 0 if shares_process else peak
    return replace(memory, own_bytes=memory.own_bytes + own, factor_bytes=memory.factor_bytes + peak)
