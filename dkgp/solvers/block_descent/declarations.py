"""The names of block descent, one engine with three selections: gbcd (greedy), bcdc (cyclic) and bcdg (by gradient)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dkgp.registry import Option, whole_or_auto
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.block_descent.selection import CyclicSelection, GradientSelection, GreedySelection, Selection
from dkgp.solvers.registry import SolverDeclaration, SolverMemory, register_solver

__all__: list[str] = []

BLOCK_SIZE = Option("block_size", "Variables moved in a round.", whole_or_auto, "auto", metavar="M|auto")
LARGEST_BLOCK_SIZE = Option(
    "largest_block_size",
    "What gbcd's blocks grow to where it gets on slowly; auto leaves a `block_size` that is given as it is.",
    whole_or_auto,
    "auto",
    metavar="M|auto",
)
CANDIDATES = Option("candidates", "Each variable is the best of so many.", int, 60)
VARIABLES_PER_STEP = Option(
    "variables_per_step",
    "Variables that gbcd chooses between two solutions of the block; 1 is the paper's.  [default: a 20th of the "
    "block; 1 with `exhaustive` or `prefitting`]",
    int,
    metavar="V",
)
MEMORY = Option(
    "memory",
    "Past steps that a new one is conjugate to.  [default: 5; 0 for bcdc and bcdg, as in the paper]",
    int,
    metavar="STEPS",
)
EXHAUSTIVE = Option("exhaustive", "Score all samples at every step instead of random candidates.", bool, False)
PREFITTING = Option("prefitting", "Score by the decrease after refitting the block; for small problems.", bool, False)

Size = int | Literal["auto"]
Precision = Literal["mixed", "double"]


def _greedy(
    block_size: Size, largest_block_size: Size, memory: int | None, precision: Precision, seed: int, **selection: Any
) -> GreedyBlockCoordinateDescent:
    return GreedyBlockCoordinateDescent(
        block_size=block_size,
        memory=GreedyBlockCoordinateDescent.memory if memory is None else memory,
        selection=GreedySelection(**selection),
        precision=precision,
        seed=seed,
        largest_block_size=largest_block_size,
    )


def _with(selection: Selection) -> Callable[..., GreedyBlockCoordinateDescent]:
    def build(block_size: Size, memory: int | None, precision: Precision, seed: int) -> GreedyBlockCoordinateDescent:
        return GreedyBlockCoordinateDescent(block_size, memory or 0, selection, precision, seed)

    return build


def _memory(solver: GreedyBlockCoordinateDescent, n: int, d: int) -> SolverMemory:
    """Of the largest blocks: one that grows draws fewer candidates for each variable, but never fewer in all."""
    size, largest = int(solver.block_size), max(int(solver.block_size), int(solver.largest_block_size))
    candidates, grown = 1, solver.grown_selection(largest)
    if isinstance(solver.selection, GreedySelection) and isinstance(grown, GreedySelection):
        candidates = max(grown.candidates, -(-solver.selection.candidates * size // largest))
    return SolverMemory(solver.memory, largest, candidates)


register_solver(
    SolverDeclaration(
        "gbcd",
        "greedy block coordinate descent",
        _greedy,
        options=(BLOCK_SIZE, LARGEST_BLOCK_SIZE, CANDIDATES, VARIABLES_PER_STEP, MEMORY, EXHAUSTIVE, PREFITTING),
        memory=_memory,
        bench_turn=3,
        label="GBCD",
        paper={"memory": 0, "selection": GreedySelection(variables_per_step=1)},
    )
)
# Candidates have their default in benchmarks that compare selections; they do no harm here.
_PLAIN: dict[str, Any] = {"options": (BLOCK_SIZE, MEMORY), "ignores": ("candidates",), "memory": _memory, "paper": {}}
register_solver(
    SolverDeclaration(
        "bcdc", "the same with cyclic selection", _with(CyclicSelection()), label="BCDC", bench_turn=6, **_PLAIN
    )
)
register_solver(
    SolverDeclaration("bcdg", "the same with selection by gradient", _with(GradientSelection()), label="BCDG", **_PLAIN)
)
