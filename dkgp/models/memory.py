"""Memory is planned before it is used: the projected peak, and a refusal with numbers where it does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.errors import MemoryBudgetError
from dkgp.operators.blocked import coordinator_input_bytes_needed
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    PartialCholesky,
    SequentialMinimalOptimization,
    Solver,
    TiledCholesky,
)
from dkgp.solvers.cholesky.in_memory import cholesky_bytes

__all__ = ["MemoryPlan", "plan_training", "solver_memory"]

MEBIBYTE = 1024**2
# What compiled code, thread stacks and the scheduler of an in-process cluster add once a solve runs, measured: 80 to
# 110 MiB, and up to 230 MiB in the very first run of an installation, which compiles.
RUNTIME_BYTES = 256 * MEBIBYTE
READ_BUFFER_ROWS = 16_384


@dataclass(frozen=True)
class MemoryPlan:
    """Projected peak memory of a training run, in bytes.

    Attributes
    ----------
    resident_bytes : int
        What the coordinator's process held when the plan was made.
    vectors_bytes, inputs_bytes, block_bytes : int
        n-vectors of the solver; inputs held at the coordinator; the dense subproblem and its candidates.
    worker_bytes : int
        Cached features of all blocks, single and double precision; in the coordinator's process where the cluster is.
    shares_process : bool
        Whether the workers share the coordinator's process.
    """

    resident_bytes: int
    vectors_bytes: int
    inputs_bytes: int
    block_bytes: int
    worker_bytes: int
    shares_process: bool

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process."""
        own = self.resident_bytes + RUNTIME_BYTES + self.vectors_bytes + self.inputs_bytes + self.block_bytes
        return own + (self.worker_bytes if self.shares_process else 0)

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
            f"{_mib(budget_bytes)}. Solver vectors {_mib(self.vectors_bytes)} (fewer with a smaller --memory), inputs "
            f"{_mib(self.inputs_bytes)}, block and candidates {_mib(self.block_bytes)} (less with a smaller "
            f"--block-size, --largest-block-size or --candidates), workers {_mib(self.worker_bytes)} (elsewhere with "
            "--cluster processes or a scheduler)"
        )

    def to_json(self) -> dict[str, int | bool]:
        """Plain JSON types."""
        return {**self.__dict__, "coordinator_bytes": self.coordinator_bytes}


def plan_training(
    n: int,
    d: int,
    p: int,
    *,
    block_size: int,
    candidates: int,
    memory: int,
    resident_bytes: int,
    shares_process: bool,
    overlaps: bool,
    holds_inputs: bool,
    cache_bytes: int,
    own_bytes: int = 0,
    factor_bytes: int = 0,
    width: int | None = None,
) -> MemoryPlan:
    """Project the peak of a training run.

    Parameters
    ----------
    n, d, p : int
        Samples, features, targets.
    block_size, candidates, memory : int
        Of the solver.
    resident_bytes : int
        What this process holds now.
    shares_process, overlaps, holds_inputs : bool
        Whether workers share the process, the executor overlaps rounds, the coordinator holds all inputs.
    cache_bytes : int
        Budget of a worker's feature cache.
    own_bytes, factor_bytes : int
        What the solver holds at the coordinator besides, and in the workers.
    width : int, optional
        The kernel's `feature_width`; d by default.
    """
    width = width or d
    vector = 8 * n * p
    # alpha, g, y; directions and images with one spare slot each; on top either a round's result in pieces, joined, and
    # added up, and measuring, or a checkpoint, which gathers the remembered steps.
    vectors = vector * (3 + 2 * (memory + 1) + max(4, 2 * memory + 1))
    inputs = coordinator_input_bytes_needed(n, d, width) if holds_inputs else 0
    subproblems = (2 if overlaps else 1) * 4 * block_size**2
    drawn = block_size * candidates * (8 + (0 if holds_inputs else 16 * d + 8 * width))
    cached = min(cache_bytes, 12 * n * (width + 1)) + 16 * READ_BUFFER_ROWS * d + factor_bytes
    return MemoryPlan(resident_bytes, vectors, inputs, 2 * subproblems + 2 * drawn + own_bytes, cached, shares_process)


def solver_memory(solver: Solver, n: int, d: int) -> dict[str, int]:
    """Return what `plan_training` has to know of a solver, its automatic choices made."""
    plain = {"block_size": 0, "candidates": 0, "memory": 0}
    if isinstance(solver, GreedyBlockCoordinateDescent):
        selection = solver.selection
        # A block that grows draws fewer candidates for each variable, but never fewer in all.
        size, largest = int(solver.block_size), max(int(solver.block_size), int(solver.largest_block_size))
        candidates = 1
        if isinstance(selection, GreedySelection):
            grown = solver.grown_selection(largest)
            assert isinstance(grown, GreedySelection)
            candidates = max(grown.candidates, -(-selection.candidates * size // largest))
        return {"block_size": largest, "candidates": candidates, "memory": solver.memory}
    if isinstance(solver, SequentialMinimalOptimization):
        # Features of one precision after the other, and the columns kept.
        return {**plain, "own_bytes": 8 * n * (d + 2) + max(16 * n, min(solver.cache_bytes, 8 * n * n))}
    if isinstance(solver, ConjugateGradient) and isinstance(solver.preconditioner, PartialCholesky):
        rank = int(solver.preconditioner.rank)
        drawn = max(4000, int(1.5 * rank))
        return {
            **plain,
            "memory": 1,
            "own_bytes": 8 * rank * (3 * rank + drawn),
            "factor_bytes": rank * (4 * n + 16 * rank),
        }
    if isinstance(solver, Cholesky):
        return {**plain, "own_bytes": cholesky_bytes(n, d)}
    if isinstance(solver, TiledCholesky):
        return {**plain, "memory": 1, "factor_bytes": solver.memory_bytes}
    return {**plain, "memory": 1}


def _mib(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
