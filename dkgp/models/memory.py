"""Memory plans: the projected peak of a run, and an error with numbers if it exceeds the memory limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import MemoryBudgetError
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.keeping import kept_bytes_of, most_bytes
from dkgp.solvers.registry import SolverMemory

MEBIBYTE = 1024**2
# Compiled code, thread stacks and the scheduler of an in-process cluster add 80 to 130 MiB, measured, once a solve
# runs, 100 to 160 in the first run of an installation, which compiles.
RUNTIME_BYTES = 256 * MEBIBYTE
READ_BUFFER_ROWS = 16_384


def mib(count: int) -> str:
    """Format a number of bytes in MiB for messages."""
    return f"{count / MEBIBYTE:,.0f} MiB"


def remainder(resident_bytes: int) -> str:
    """The end of an advice: memory that does not depend on the method."""
    return f"libraries and compiled code {mib(RUNTIME_BYTES)}, {mib(resident_bytes)} held already"


@dataclass(frozen=True)
class TrainingSizes:
    """Sizes that the memory of training a classifier depends on, for all settings.

    `n`, `d`, `t`: samples, features, columns of decisions. `executor`: its threads are at work in one process, which
    may be the coordinator's. `cache_bytes`: budget of a worker's feature cache. `feature_width`: the kernel's.
    """

    n: int
    d: int
    t: int
    executor: BlockExecutor
    cache_bytes: int
    feature_width: int | None = None

    @property
    def width(self) -> int:
        """The kernel's `feature_width`; d by default."""
        return self.feature_width or self.d


class Memory(ABC):
    """Projected peak memory of a computation, in parts.

    A method derives a frozen dataclass, whose fields are the parts, in bytes. They are also the keys of its JSON.
    """

    shares_process: bool
    process: ClassVar[str] = "the coordinator's process"

    @property
    @abstractmethod
    def computation(self) -> str:
        """The computation in a few words, as the refusal begins."""

    @property
    @abstractmethod
    def coordinator_parts(self) -> int:
        """Bytes of the coordinator's parts, without libraries and compiled code."""

    @property
    @abstractmethod
    def worker_parts(self) -> int:
        """Bytes of each worker's parts; in the coordinator's process where workers share it."""

    @abstractmethod
    def advice(self, resident_bytes: int) -> str:
        """The parts with their sizes, and the settings that make each smaller."""

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process."""
        return RUNTIME_BYTES + self.coordinator_parts + (self.worker_parts if self.shares_process else 0)

    def spare_bytes(self, budget_bytes: int, resident_bytes: int = 0) -> int | None:
        """Return the remaining bytes for the workers; None for workers in other processes."""
        return budget_bytes - resident_bytes - self.coordinator_bytes if self.shares_process else None

    def require(self, budget_bytes: int, resident_bytes: int = 0) -> None:
        """Raise `MemoryBudgetError` if the computation and the process's current memory exceed the limit.

        The error names the parts and the settings that make them smaller.
        """
        needed = resident_bytes + self.coordinator_bytes
        if needed > budget_bytes:
            raise MemoryBudgetError(
                f"{self.computation} is projected to need {mib(needed)} in {self.process}; the budget is "
                f"{mib(budget_bytes)}. {self.advice(resident_bytes)}"
            )

    def to_json(self) -> dict[str, int | bool]:
        """Plain JSON types."""
        return {**vars(self), "coordinator_bytes": self.coordinator_bytes}


@dataclass(frozen=True, kw_only=True)
class BasisMemory(Memory):
    """Projected memory of a model on a basis, without a process's current memory; each method has a subclass."""

    kept: ClassVar[str]  # the kept entries, in words

    basis_size: int  # m
    matrices_bytes: int  # at the coordinator: m x m matrices and factors
    vectors_bytes: int  # at the coordinator: n-vectors
    worker_bytes: int  # of each worker's process; in the coordinator's where the cluster is
    shares_process: bool
    useful_bytes: int = 0  # most bytes that are of use from one pass over the samples to the next
    kept_bytes: int = 0  # the part that each worker's process may keep

    @property
    def coordinator_parts(self) -> int:
        """Bytes of matrices and vectors."""
        return self.matrices_bytes + self.vectors_bytes

    @property
    def worker_parts(self) -> int:
        """Bytes of running tasks, of features, and of kept entries."""
        return self.worker_bytes + self.kept_bytes

    def with_kept(self, wanted: TileBudget, budget_bytes: int, resident_bytes: int = 0) -> Self:
        """Return the plan with memory for kept entries: the least of the requested, the useful and the free bytes.

        Raises `MemoryBudgetError` if a user's own figure does not fit.
        """
        spare_bytes = self.spare_bytes(budget_bytes, resident_bytes)
        return replace(self, kept_bytes=kept_that_fits(wanted, self.useful_bytes, spare_bytes, self.kept))


@dataclass(frozen=True)
class MemoryPlan(Memory):
    """Projected peak memory of a training run, in bytes."""

    resident_bytes: int  # used by the coordinator when the plan was made
    vectors_bytes: int  # n-vectors of the solver
    inputs_bytes: int  # inputs in the coordinator's memory
    block_bytes: int  # the dense subproblem and its candidates
    worker_bytes: int  # cached features of all blocks, single and double precision
    shares_process: bool  # whether the workers share the coordinator's process
    tiles_bytes: int = 0  # entries of the kernel matrix that each worker's process may keep

    @property
    def computation(self) -> str:
        """The training run."""
        return "this run"

    @property
    def coordinator_parts(self) -> int:
        """Bytes at the coordinator, including its memory before the run."""
        return self.resident_bytes + self.vectors_bytes + self.inputs_bytes + self.block_bytes

    @property
    def worker_parts(self) -> int:
        """Bytes of features and tiles."""
        return self.worker_bytes + self.tiles_bytes

    def worker_process_bytes(self, resident_bytes: int) -> int:
        """Return the projected peak of a worker process that uses `resident_bytes` before any work."""
        return resident_bytes + RUNTIME_BYTES + self.worker_parts

    def advice(self, resident_bytes: int) -> str:
        """The parts, and the settings of a solver that make them smaller."""
        return (
            f"Solver vectors {mib(self.vectors_bytes)} (fewer with a smaller `memory`), inputs "
            f"{mib(self.inputs_bytes)}, block and candidates {mib(self.block_bytes)} (less with a smaller "
            f"`block_size`, `largest_block_size` or `candidates`), workers {mib(self.worker_bytes)} (elsewhere on a "
            "cluster of processes or at a scheduler)"
        )

    def with_tiles(self, wanted: TileBudget, n: int, budget_bytes: int) -> MemoryPlan:
        """Return the plan with memory for kept tiles: the least of the requested, the useful and the free bytes.

        Raises `MemoryBudgetError` if the user's figure does not fit.
        """
        return replace(self, tiles_bytes=tiles_that_fit(wanted, n, self.spare_bytes(budget_bytes)))


def tiles_that_fit(wanted: TileBudget, n: int, spare_bytes: int | None) -> int:
    """Return the bytes that each worker process may use for tiles of K, at most those of its lower half."""
    whole = kept_bytes_of(n)
    within = kept_that_fits(wanted, whole, spare_bytes, "the kernel matrix")
    return most_bytes(replace(wanted, bytes=within), whole, wanted.products)


def kept_that_fits(wanted: TileBudget, useful_bytes: int, spare_bytes: int | None, what: str) -> int:
    """Return the bytes in which each worker process may keep entries: the requested bytes, up to the useful bytes.

    A figure that dkgp measured (`measured`) is limited to half of the spare memory, so that the machine stays usable. A
    user's figure that does not fit is refused (`MemoryBudgetError`). `spare_bytes` is None for other processes.
    """
    kept = min(wanted.bytes, useful_bytes)
    if spare_bytes is None:
        return kept
    if wanted.measured:
        return max(0, min(kept, spare_bytes // 2))
    if kept > spare_bytes:
        raise MemoryBudgetError(
            f"`cache_tiles` asks for {mib(kept)} of {what} to be kept; beside all else that this run is projected "
            f"to need {mib(max(0, spare_bytes))} are left. Give that much or less, or auto"
        )
    return kept


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as far as its memory depends on them."""

    resident_bytes: int  # used by the coordinator before the run
    shares_process: bool  # whether the workers share its process
    overlaps: bool  # whether the executor overlaps rounds
    cache_bytes: int  # budget of a worker's feature cache


def plan_training(
    n: int,
    d: int,
    p: int,
    solver: SolverMemory,
    processes: Processes,
    *,
    holds_inputs: bool,
    width: int | None = None,
) -> MemoryPlan:
    """Project the peak of a training run on n samples of d features and p targets.

    `solver` is the solver's declared memory; `holds_inputs` is True for a coordinator with the inputs of all
    samples; `width` is the kernel's `feature_width`, d by default.
    """
    width = width or d
    vector = 8 * n * p
    # alpha, g, y; directions and images with one spare slot each; on top either a round's result in pieces, joined, and
    # added up, and measuring, or a checkpoint, which gathers the remembered steps.
    memory, block_size = solver.memory, solver.block_size
    vectors = vector * (3 + 2 * (memory + 1) + max(4, 2 * memory + 1))
    inputs = coordinator_input_bytes_needed(n, d, width) if holds_inputs else 0
    subproblems = (2 if processes.overlaps else 1) * 4 * block_size**2
    drawn = block_size * solver.candidates * (8 + (0 if holds_inputs else 16 * d + 8 * width))
    features = min(processes.cache_bytes, 12 * n * (width + 1) + solver.cached_bytes)
    return MemoryPlan(
        resident_bytes=processes.resident_bytes,
        vectors_bytes=vectors,
        inputs_bytes=inputs,
        block_bytes=2 * subproblems + 2 * drawn + solver.own_bytes,
        worker_bytes=features + 16 * READ_BUFFER_ROWS * d + solver.factor_bytes,
        shares_process=processes.shares_process,
    )


def plan_within(
    budget_bytes: int,
    n: int,
    d: int,
    p: int,
    solver: SolverMemory,
    processes: Processes,
    *,
    needs_inputs: str | None = None,
    width: int | None = None,
) -> MemoryPlan:
    """Project the peak of a training run whose coordinator holds all inputs if these fit its budget as well.

    `needs_inputs` names a solver that cannot do without them. Raises `MemoryBudgetError` where it fits neither way.
    """
    needed = coordinator_input_bytes_needed(n, d, width)
    if needed <= DEFAULT_COORDINATOR_INPUT_BYTES:
        holding = plan_training(n, d, p, solver, processes, holds_inputs=True, width=width)
        if holding.coordinator_bytes <= budget_bytes or needs_inputs:
            holding.require(budget_bytes)
            return holding
    elif needs_inputs:
        raise MemoryBudgetError(
            f"the solver {needs_inputs} needs the inputs of all samples in the coordinator's memory: {needed:,} bytes "
            f"for {n:,} samples, and they may take {DEFAULT_COORDINATOR_INPUT_BYTES:,}. Choose another `solver`"
        )
    lean = plan_training(n, d, p, solver, processes, holds_inputs=False, width=width)
    lean.require(budget_bytes)
    return lean
