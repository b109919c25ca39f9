"""Greedy block coordinate descent (Bo and Sminchisescu 2008, Algorithm 1) with a short memory of conjugate steps.

One round: the selection chooses an active set B and the step delta that minimises the objective over it, while the last
round's product is under way. The step is made conjugate to the last few (which costs no kernel evaluation, because
their images under Kbar are the updates of their own rounds) and taken with its exact length; workers compute
Kbar[:, B] delta for all rows; the gradient follows.

With `memory=0` and one variable a step this is the paper's method to the letter. docs/experiments.md lists the variants
that were tried. The engine has three names, one for each selection: gbcd (greedy), bcdc (cyclic) and bcdg (by
gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError, UsageError
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.registry import Option, whole_or_auto
from dkgp.solvers.base import Clock, Method, SolverState, Sums
from dkgp.solvers.block_descent.block_size import BlockSizes, descent_phases, expected_passes, pays_by_rows
from dkgp.solvers.block_descent.conjugate_memory import ConjugateMemory
from dkgp.solvers.block_descent.rows import (
    DescentRows,
    GradientUnderWay,
    SelectionPipeline,
    SettledGradient,
    StepOfRows,
)
from dkgp.solvers.block_descent.selection import (
    CyclicSelection,
    GradientSelection,
    GradientView,
    GreedySelection,
    Selection,
)
from dkgp.solvers.prices import Expected, Phase, Sizes
from dkgp.solvers.registry import SolverDeclaration, SolverMemory, register_solver


@dataclass
class BlockState(SolverState):
    """A solve between two rounds.

    - `blocks`: the active sets to come; those chosen ahead are not part of a checkpoint, and chosen again.
    - `rows`: the vectors' rows on the workers, where they hold them; `alpha` and `gradient` then fetch all of them.
    - `keeps_rows`: False once workers lost their rows too often.
    """

    memory: ConjugateMemory = field(init=False)
    blocks: SelectionPipeline = field(init=False)
    rows: DescentRows | None = field(init=False, default=None)
    keeps_rows: bool = field(init=False, default=True)

    @property  # type: ignore[misc]
    def alpha(self) -> FloatArray:
        """The solution so far: (n, p)."""
        return self._alpha if self.rows is None else self.rows.collect()[0]

    @alpha.setter
    def alpha(self, alpha: FloatArray) -> None:
        self._alpha = alpha
        if self.rows is not None:
            self.rows.renew(alpha, self._gradient)

    @property  # type: ignore[misc]
    def gradient(self) -> FloatArray:
        """The gradient by the recursion: (n, p)."""
        return self._gradient if self.rows is None else self.rows.collect()[1]

    @gradient.setter
    def gradient(self, gradient: FloatArray) -> None:
        self._gradient = gradient
        if self.rows is not None:
            self.rows.renew(self._alpha, gradient)

    @property
    def view(self) -> GradientView:
        """The gradient as a selection sees it between two rounds."""
        if self.rows is not None and self.rows.last is not None:
            return self.rows.last
        return SettledGradient(self.gradient)

    def images(self, indices: IndexArray) -> FloatArray | None:
        """Return the remembered images at some samples, (steps + 1, m, p), where the memory does not have them."""
        if self.rows is None or self.rows.last is None:
            return None
        return self.rows.last.values(indices)[1]

    def sums(self, operator: KernelOperator) -> Sums:
        """Return the sums over the samples that tell where the solve stands."""
        if self.rows is None or self.rows.last is None:
            return super().sums(operator)
        self.rows.last.settle()
        return self.rows.last.sums

    def settle_rows(self, operator: KernelOperator, pays: bool) -> None:
        """Have workers hold the rows if that pays; take the vectors back where workers keep losing them."""
        if self.rows is not None:
            self.rows.collect_if_due()
            if self.rows.is_failing:
                self._alpha, self._gradient = self.rows.collect()
                self.rows, self.keeps_rows = None, False
        elif pays and self.keeps_rows and isinstance(operator, BlockedKernelOperator):
            self.rows = DescentRows(operator, self.rhs, (self._alpha, self._gradient), self.memory)

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return {**super().arrays(), **self.memory.arrays()}

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        growth = self.blocks.growth
        grown = {
            "block_size": growth.size,
            "review_columns": growth.review_columns,
            "review_norm": growth.review_norm,
        }
        return {**super().metadata(), "held": len(self.memory.held), **grown}

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Continue from a recomputed gradient; the remembered images belong to the old recursion and go."""
        self.memory.clear()
        super().renew_gradient(operator)
        self.blocks.forget()


@dataclass(frozen=True)
class GreedyBlockCoordinateDescent(Method[BlockState]):
    """Settings of GBCD.

    Parameters
    ----------
    block_size : int or "auto"
        m, variables moved in a round. "auto" weighs kernel updates, selection and dense solves by n and d alone, so
        that a seeded run is the same everywhere.
    largest_block_size : int or "auto"
        Largest m, if the gradient falls slowly for the columns spent, with the greedy selection. "auto" lets
        an automatic block grow up to 4,000 variables or half of all, and leaves one that is given as it is.
    memory : int, default 5
        Steps kept to make the next one conjugate; 0 is the paper's method.
    selection : Selection
        How the active set is chosen; greedy with kappa = 60 by default.
    precision : {"mixed", "double"}
        "mixed" runs float32 tiles under float64 vectors and finishes in float64; "double" runs float64 throughout.
    seed : int
        Of all random draws.

    Examples
    --------
    >>> solver = GreedyBlockCoordinateDescent(block_size=1000, memory=0)  # doctest: +SKIP
    >>> solution = solve(operator, y, solver=solver)  # doctest: +SKIP
    """

    block_size: int | Literal["auto"] = "auto"
    memory: int = 5
    selection: Selection = field(default_factory=GreedySelection)
    precision: Literal["mixed", "double"] = "mixed"
    seed: int = 0
    largest_block_size: int | Literal["auto"] = "auto"

    name = "gbcd"
    state_type = BlockState

    def __post_init__(self) -> None:
        if self.block_size != "auto" and not _is_whole(self.block_size, least=1):
            raise InputError(f'the block size must be a positive integer or "auto"; got {self.block_size!r}')
        if self.largest_block_size != "auto" and not _is_whole(self.largest_block_size, least=1):
            raise InputError(
                f'the largest block size must be a positive integer or "auto"; got {self.largest_block_size!r}'
            )
        if not _is_whole(self.memory, least=0):
            raise InputError(f"the memory must be a whole number of steps, zero or more; got {self.memory!r}")
        super().__post_init__()

    def resolved(self, n: int, d: int, p: int = 1) -> GreedyBlockCoordinateDescent:
        """Return these settings with concrete block sizes, not above n."""
        sizes = self._sizes(n, d)
        return replace(self, block_size=sizes.first, largest_block_size=sizes.largest)

    def _sizes(self, n: int, d: int) -> BlockSizes:
        return BlockSizes.of(n, d, self.selection.candidates, self.block_size, self.largest_block_size)

    def grown_selection(self, size: int) -> Selection:
        """Return the selection for blocks of `size`: one that has grown draws fewer candidates for each variable."""
        return self.selection if self.block_size == "auto" else self.selection.grown(self.block_size, size)

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types; a checkpoint must match them."""
        return {
            **super().settings(),
            **self.selection.settings(),
            "block_size": self.block_size,
            "largest_block_size": self.largest_block_size,
            "memory": self.memory,
            "seed": self.seed,
        }

    def equip(self, operator: KernelOperator, state: BlockState) -> None:
        """Resolve the settings once for all rounds."""
        n, p = state.rhs.shape
        state.memory = ConjugateMemory(n, p, self.memory)
        sizes = self._sizes(n, operator.kernel.n_features)
        double = self.precision == "double"
        state.blocks = SelectionPipeline(operator, self.selection, sizes, self.seed, p, double)

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> BlockState:
        """State from a checkpoint, its steps remembered and its blocks as large as they had grown."""
        state = super().restore(operator, rhs, arrays, metadata)
        state.memory.restore(arrays)
        growth = state.blocks.growth
        growth.size = int(metadata["block_size"])
        growth.review_columns, growth.review_norm = int(metadata["review_columns"]), float(metadata["review_norm"])
        return state

    def phases(
        self, sizes: Sizes, count: float, *, checks: float = 1.0, spilled: float = 0.0, kept: float = 0.0
    ) -> list[Phase]:
        """Work of so many column passes; see `Method.phases`."""
        size, candidates = int(self.block_size), self.selection.candidates
        return descent_phases(sizes, size, candidates, count, checks=checks, memory=self.memory)

    @property
    def counted_in(self) -> str:
        """Column passes."""
        if not isinstance(self.selection, GreedySelection) or self.selection.exhaustive:
            raise UsageError("of block descent, only the greedy selection of random candidates can be planned for")
        return "column passes"

    def expected(self, probe: Any) -> Expected:
        """Column passes."""
        return Expected.around(expected_passes(probe))

    def advance(self, operator: KernelOperator, state: BlockState) -> dict[str, float]:
        """Steps 3 and 4 of Algorithm 1, in place.

        Where the operator overlaps, the next active set is chosen while this round's product is under way.

        Returns
        -------
        dict of str to float
            Seconds spent selecting, updating the coordinator's vectors, and waiting for the workers.
        """
        clock, memory, blocks = Clock(), state.memory, state.blocks
        state.settle_rows(operator, self._pays_by_rows(operator, state))
        # Step 3: the active set B, chosen greedily, and the best step on it: Kbar_BB delta = -g_B.
        block = blocks.select(state.view, state.iteration)
        clock.lap("select")
        delta = block.solve()
        # Not in the paper: p = delta - sum_j c_j p_j, conjugate to the last steps, and its exact length.
        step = memory.conjugate(block.indices, delta, block.gradient[: block.size], state.images(block.indices))
        # Step 4: Kbar_B delta is started, alpha moves, and g follows once the product is back.
        by_rows = state.rows is not None
        coming = blocks.announce(partial(_gradient_norm, state, operator), state.columns, state.iteration, by_rows)
        state.columns += operator.columns_to_evaluate(step.indices, state.precision)
        update: GradientUnderWay | StepOfRows
        if state.rows is not None:
            update = state.rows.take(step, state.precision, coming)
        else:
            pending = operator.submit_columns(step.indices, delta, state.precision)
            update = GradientUnderWay(operator, state.gradient, memory, step, pending, state.precision)
            update.move(state.alpha)
        state.iteration += 1
        clock.lap("vectors")
        blocks.prepare(update, state.iteration)
        clock.lap("select")
        state.note_step(update.settle())
        clock.lap("wait")
        return clock.parts

    def _pays_by_rows(self, operator: KernelOperator, state: BlockState) -> bool:
        """True if workers had better hold the rows of the vectors; no bit depends on it."""
        if not operator.distributed or operator.approximate or not self.selection.looks_at_few:
            return False
        (n, p), size = state.rhs.shape, state.blocks.growth.size
        return pays_by_rows(n, p, self.memory, size, self.selection.candidates)


def _gradient_norm(state: BlockState, operator: KernelOperator) -> float:
    """Return the largest ||g|| of a target."""
    return float(np.sqrt(np.max(state.sums(operator).squares)))


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


__all__: list[str] = []

BLOCK_SIZE = Option(
    "block_size", "Number of coefficients that a round changes.", whole_or_auto, "auto", metavar="M|auto"
)
LARGEST_BLOCK_SIZE = Option(
    "largest_block_size",
    "Largest block size of gbcd, which enlarges its blocks if it converges slowly. auto: no enlargement if "
    "`block_size` is set.",
    whole_or_auto,
    "auto",
    metavar="M|auto",
)
CANDIDATES = Option(
    "candidates", "Number of random samples among which each coefficient of a block is chosen.", int, 60
)
VARIABLES_PER_STEP = Option(
    "variables_per_step",
    "Number of coefficients that gbcd adds to a block between two solves of the block. The paper uses 1.  [default: "
    "a 20th of the block; 1 with `exhaustive` or `prefitting`]",
    int,
    metavar="V",
)
MEMORY = Option(
    "memory",
    "Number of earlier steps to which each new step is made conjugate.  [default: 5; 0 for bcdc and bcdg, as in "
    "their paper]",
    int,
    metavar="STEPS",
)
EXHAUSTIVE = Option("exhaustive", "Choose among all samples instead of random candidates.", bool, False)
PREFITTING = Option(
    "prefitting",
    "Score each candidate by the decrease of the objective after a solve of the block with it. For small problems.",
    bool,
    False,
)

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
    """Memory with the largest blocks: these draw fewer candidates for each variable, but never fewer in all."""
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
        "bcdc",
        "block coordinate descent with cyclic selection",
        _with(CyclicSelection()),
        label="BCDC",
        bench_turn=6,
        **_PLAIN,
    )
)
register_solver(
    SolverDeclaration(
        "bcdg",
        "block coordinate descent with selection by gradient",
        _with(GradientSelection()),
        label="BCDG",
        **_PLAIN,
    )
)
