"""A solve within a command: memory planned beforehand, rounds shown and recorded, signals heard, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dkgp.cluster import BlockExecutor, ClusterOptions
from dkgp.commands.own_work import CheckpointedJob, has_checkpoint, memory_budget
from dkgp.commands.reporting.progress import Measure, Reporter, SolveProgress, WorkProgress
from dkgp.commands.reporting.records import RecordLog
from dkgp.commands.signals import interruptible
from dkgp.commands.tree_sums import add_tree_memory
from dkgp.data import CheckpointStore, Dataset
from dkgp.errors import InterruptedRunError
from dkgp.kernels import Kernel
from dkgp.models.memory import MemoryPlan, plan_within
from dkgp.models.warm_up import compiling_bytes
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.solvers import Checkpointing, MaxPasses, MaxSeconds, StoppingRule
from dkgp.solvers.registry import SolverMemory

__all__ = ["Rounds", "SolvingJob", "effort_limits", "going_on", "input_bytes", "planned_solve", "solving"]


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
