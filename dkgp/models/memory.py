"""Memory is planned before it is used: the projected peak, and a refusal with numbers where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import MemoryBudgetError
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.keeping import kept_bytes_of, most_bytes
from dkgp.solvers.registry import SolverMemory

__all__ = ["MemoryPlan", "kept_that_fits", "plan_training", "plan_within", "tiles_that_fit"]

MEBIBYTE = 1024**2
# What compiled code, thread stacks and the scheduler of an in-process cluster add once a solve runs, measured: 80 to
# 130 MiB. Compiling takes the rest and more, in the very first run of an installation.
RUNTIME_BYTES = 256 * MEBIBYTE
READ_BUFFER_ROWS = 16_384


@dataclass(frozen=True)
class MemoryPlan:
    """Projected peak memory of a training run, in bytes.

    Attributes
    ----------
    resident_bytes : int
        What the coordinator's process held when the plan was made, and what compiling will add where there is need.
    vectors_bytes, inputs_bytes, block_bytes : int
        n-vectors of the solver; inputs held at the coordinator; the dense subproblem and its candidates.
    worker_bytes : int
        Cached features of all blocks, single and double precision; in the coordinator's process where the cluster is.
    shares_process : bool
        Whether the workers share the coordinator's process.
    tiles_bytes : int
        What each worker's process may keep of the kernel matrix; in the coordinator's where the cluster is.
    """

    resident_bytes: int
    vectors_bytes: int
    inputs_bytes: int
    block_bytes: int
    worker_bytes: int
    shares_process: bool
    tiles_bytes: int = 0

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process."""
        own = self.resident_bytes + RUNTIME_BYTES + self.vectors_bytes + self.inputs_bytes + self.block_bytes
        return own + (self.worker_bytes + self.tiles_bytes if self.shares_process else 0)

    def worker_process_bytes(self, resident_bytes: int) -> int:
        """Projected peak of a worker that is a process of its own and held so much before any work."""
        return resident_bytes + RUNTIME_BYTES + self.worker_bytes + self.tiles_bytes

    def require(self, budget_bytes: int) -> None:
        """Refuse the run when the projection exceeds the budget.

        Raises
        ------
        MemoryBudgetError
            Names the parts and the knobs.
        """
        if self.coordinator_bytes <= budget_bytes:
            return
        raise MemoryBudgetError(
            f"this run is projected to need {_mib(self.coordinator_bytes)} in the coordinator's process; the budget is "
            f"{_mib(budget_bytes)}. Solver vectors {_mib(self.vectors_bytes)} (fewer with a smaller `memory`), inputs "
            f"{_mib(self.inputs_bytes)}, block and candidates {_mib(self.block_bytes)} (less with a smaller "
            f"`block_size`, `largest_block_size` or `candidates`), workers {_mib(self.worker_bytes)} (elsewhere on a "
            "cluster of processes or at a scheduler)"
        )

    def with_tiles(self, wanted: TileBudget, n: int, budget_bytes: int) -> MemoryPlan:
        """The same with room for tiles that are kept, as much as is wanted, may come to pay, and fits.

        Raises
        ------
        MemoryBudgetError
            A user's own figure does not fit.
        """
        spare_bytes = budget_bytes - self.coordinator_bytes if self.shares_process else None
        return replace(self, tiles_bytes=tiles_that_fit(wanted, n, spare_bytes))

    def to_json(self) -> dict[str, int | bool]:
        """Plain JSON types."""
        return {**self.__dict__, "coordinator_bytes": self.coordinator_bytes}


def tiles_that_fit(wanted: TileBudget, n: int, spare_bytes: int | None) -> int:
    """Bytes that each worker's process may spend on tiles of K: more than its lower half is of no use."""
    whole = kept_bytes_of(n)
    within = kept_that_fits(wanted, whole, spare_bytes, "the kernel matrix")
    return most_bytes(replace(wanted, bytes=within), whole, wanted.products)


def kept_that_fits(wanted: TileBudget, useful_bytes: int, spare_bytes: int | None, what: str) -> int:
    """Bytes that each worker's process may spend on entries that it keeps.

    Parameters
    ----------
    wanted : TileBudget
        A figure of dkgp's own (`measured`) is cut down to half of what is to spare, so that the machine stays usable; a
        user's is refused with `MemoryBudgetError` where it does not fit.
    useful_bytes : int
        More is of no use.
    spare_bytes : int, optional
        What the plan leaves of the process's memory; None for processes that are not planned here.
    what : str
        What the entries are of.
    """
    of_use = min(wanted.bytes, useful_bytes)
    if spare_bytes is None:
        return of_use
    if wanted.measured:
        return max(0, min(of_use, spare_bytes // 2))
    if of_use > spare_bytes:
        raise MemoryBudgetError(
            f"`cache_tiles` asks for {_mib(of_use)} of {what} to be kept; beside all else that this run is projected "
            f"to need {_mib(max(0, spare_bytes))} are left. Give that much or less, or auto"
        )
    return of_use


def plan_training(
    n: int,
    d: int,
    p: int,
    solver: SolverMemory,
    *,
    resident_bytes: int,
    shares_process: bool,
    overlaps: bool,
    holds_inputs: bool,
    cache_bytes: int,
    width: int | None = None,
) -> MemoryPlan:
    """Project the peak of a training run.

    Parameters
    ----------
    n, d, p : int
        Samples, features, targets.
    solver : SolverMemory
        What the solver holds, as it declares it.
    resident_bytes : int
        What this process holds now.
    shares_process, overlaps, holds_inputs : bool
        Whether workers share the process, the executor overlaps rounds, the coordinator holds all inputs.
    cache_bytes : int
        Budget of a worker's feature cache.
    width : int, optional
        The kernel's `feature_width`; d by default.
    """
    width = width or d
    vector = 8 * n * p
    # alpha, g, y; directions and images with one spare slot each; on top either a round's result in pieces, joined, and
    # added up, and measuring, or a checkpoint, which gathers the remembered steps.
    memory, block_size = solver.memory, solver.block_size
    vectors = vector * (3 + 2 * (memory + 1) + max(4, 2 * memory + 1))
    inputs = coordinator_input_bytes_needed(n, d, width) if holds_inputs else 0
    subproblems = (2 if overlaps else 1) * 4 * block_size**2
    drawn = block_size * solver.candidates * (8 + (0 if holds_inputs else 16 * d + 8 * width))
    cached = (
        min(cache_bytes, 12 * n * (width + 1) + solver.cached_bytes) + 16 * READ_BUFFER_ROWS * d + solver.factor_bytes
    )
    return MemoryPlan(
        resident_bytes, vectors, inputs, 2 * subproblems + 2 * drawn + solver.own_bytes, cached, shares_process
    )


def plan_within(
    budget_bytes: int,
    n: int,
    d: int,
    p: int,
    solver: SolverMemory,
    *,
    needs_inputs: str | None = None,
    resident_bytes: int,
    shares_process: bool,
    overlaps: bool,
    cache_bytes: int,
    width: int | None = None,
) -> MemoryPlan:
    """Project the peak of a training run whose coordinator holds all inputs where that fits too.

    Parameters
    ----------
    budget_bytes : int
        What the coordinator's process may take.
    needs_inputs : str, optional
        The name of a solver that cannot do without them.

    Raises
    ------
    MemoryBudgetError
        It fits neither way.
    """

    def plan(holds_inputs: bool) -> MemoryPlan:
        return plan_training(
            n,
            d,
            p,
            solver,
            resident_bytes=resident_bytes,
            shares_process=shares_process,
            overlaps=overlaps,
            holds_inputs=holds_inputs,
            cache_bytes=cache_bytes,
            width=width,
        )

    needed = coordinator_input_bytes_needed(n, d, width)
    if needed <= DEFAULT_COORDINATOR_INPUT_BYTES:
        holding = plan(holds_inputs=True)
        if holding.coordinator_bytes <= budget_bytes or needs_inputs:
            holding.require(budget_bytes)
            return holding
    elif needs_inputs:
        raise MemoryBudgetError(
            f"the solver {needs_inputs} needs the inputs of all samples in the coordinator's memory: {needed:,} bytes "
            f"for {n:,} samples, and they may take {DEFAULT_COORDINATOR_INPUT_BYTES:,}. Choose another `solver`"
        )
    lean = plan(holds_inputs=False)
    lean.require(budget_bytes)
    return lean


def _mib(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
