"""Cholesky's factorisation of the whole matrix in memory, float64: the rival that iterative methods have to beat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.cluster.threads import in_parallel
from dkgp.errors import InputError, MemoryBudgetError, NumericalError
from dkgp.operators.base import FloatArray, KernelOperator, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.base import Clock, Method, SolverState
from dkgp.solvers.cholesky.dense import factor_strips, solve_strips, strip_bounds
from dkgp.solvers.prices import Expected, Phase, Sizes, Work, check_phase
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver

DEFAULT_BUDGET_BYTES = 4 * 1024**3
# Rows of a block: large enough for BLAS to run at full speed, small enough for many cores to share a block column.
STRIP_ROWS = 512
# A refinement that does not take the gradient below this share of the last one has met float64's rounding.
LEAST_GAIN = 0.5


def cholesky_bytes(n: int, d: int, p: int = 1) -> int:
    """Bytes of the lower triangle in strips, the inputs and a few vectors."""
    triangle = sum((stop - start) * stop for start, stop in strip_bounds(n, STRIP_ROWS))
    return 8 * (triangle + 2 * n * (d + 1) + 6 * n * p)


@dataclass
class CholeskyState(SolverState):
    """A solve before its one round, or between two refinements.

    - `factor`: strips of the lower factor; empty before the first round, and not part of a checkpoint: it is computed
      again, to the same bits.
    """

    factor: list[FloatArray] = field(default_factory=list)


@dataclass(frozen=True)
class Cholesky(Method[CholeskyState]):
    """Factors Kbar = L L' in memory by LAPACK and BLAS, and solves for all targets at once.

    One round solves; further rounds, where a tolerance asks for them, refine the solution by the same factor. Half of
    the matrix is held, its lower triangle.

    Parameters
    ----------
    budget_bytes : int, default 4 GiB
        Memory limit of the factor and its temporaries.

    Raises
    ------
    MemoryBudgetError
        It would take more; by `resolved`, before anything is computed.
    NumericalError
        The matrix is not positive definite in float64, or the tolerance is below its rounding.
    """

    budget_bytes: int = DEFAULT_BUDGET_BYTES

    name = "cholesky"
    state_type = CholeskyState
    precision = "double"

    def __post_init__(self) -> None:
        if self.budget_bytes < 1:
            raise InputError(f"the memory budget must be positive; got {self.budget_bytes}")

    def resolved(self, n: int, d: int, p: int = 1) -> Cholesky:
        """Return the settings; `MemoryBudgetError` if the factor exceeds the budget."""
        needed = cholesky_bytes(n, d, p)
        if needed > self.budget_bytes:
            raise MemoryBudgetError(
                f"Cholesky's factor of {n:,} samples takes {needed:,} bytes; the budget is {self.budget_bytes:,}. "
                "Raise budget_bytes, or choose another solver: 'tiled-cholesky' keeps the factor on disk, 'gbcd' needs "
                "none"
            )
        return self

    def phases(
        self, sizes: Sizes, count: float, *, checks: float = 1.0, spilled: float = 0.0, kept: float = 0.0
    ) -> list[Phase]:
        """Work of the factor; see `Method.phases`."""
        return cholesky_phases(sizes, checks=checks)

    @property
    def counted_in(self) -> str:
        """Factors: there is one."""
        return "factor"

    def expected(self, probe: Any) -> Expected:
        """One factor."""
        return Expected(1.0, 1.0, 1.0)

    def advance(self, operator: KernelOperator, state: CholeskyState) -> dict[str, float]:
        """Factor where there is no factor yet, and solve for the gradient that is left; seconds by phase."""
        clock, threads = Clock(), _threads(operator)
        if not state.factor:
            state.factor = _assemble(operator, threads)
            clock.lap("assemble")
            factor_strips(state.factor, threads)
            clock.lap("factor")
        before = float(np.abs(state.gradient).max())
        state.alpha = state.alpha - solve_strips(state.factor, state.gradient)
        clock.lap("solve")
        state.gradient = operator.matmat(state.alpha) - state.rhs
        clock.lap("update")
        after = float(np.abs(state.gradient).max())
        if state.iteration and not after <= LEAST_GAIN * before:
            raise NumericalError(
                f"float64 does not come closer: max|g| = {min(after, before):.3g} after {state.iteration} refinements. "
                "Raise the tolerance, or the noise variance"
            )
        state.iteration += 1
        state.columns += operator.n
        return clock.parts


def _threads(operator: KernelOperator) -> int | None:
    """Threads to share the work between: the executor's where it has this process's, all cores elsewhere."""
    if isinstance(operator, BlockedKernelOperator) and operator.executor.shares_memory:
        return operator.executor.threads_per_process
    return None


def _assemble(operator: KernelOperator, threads: int | None) -> list[FloatArray]:
    """The lower triangle of Kbar, and the rest of the blocks on the diagonal, in strips."""
    features = operator.features(np.arange(operator.n, dtype=np.intp), "double")
    bounds = strip_bounds(operator.n, STRIP_ROWS)
    strips = [np.empty((stop - start, stop)) for start, stop in bounds]
    pairs = [(i, j) for i in range(len(bounds)) for j in range(i + 1)]

    def evaluate(index: int) -> None:
        i, j = pairs[index]
        columns = slice(*bounds[j])
        # Tiles come column by column: the transposed tile is the one whose rows lie as they are wanted.
        strips[i][:, columns] = operator.double.tile(features.slice(*bounds[j]), features.slice(*bounds[i])).T
        if i == j:
            strips[i][:, columns][np.diag_indices(len(strips[i]))] += noise_at(operator.noise, columns)

    in_parallel(evaluate, len(pairs), threads)
    return strips


def cholesky_phases(sizes: Sizes, *, checks: float = 1.0) -> list[Phase]:
    """Phases of the whole matrix' factor, at the coordinator."""
    n = float(sizes.n)
    return [
        Phase("matrix", 1.0, threaded=Work(double_entries=n * n / 2.0)),
        Phase("factor", 1.0, threaded=Work(double_operations=n**3 / 3.0)),
        check_phase(sizes, checks),
    ]


register_solver(
    SolverDeclaration(
        "cholesky",
        "Cholesky factorisation in memory",
        Cholesky,
        needs=frozenset({Need.ENTRIES}),
        memory=lambda solver, n, d: SolverMemory(0, own_bytes=cholesky_bytes(n, d)),
        bench_turn=1,
    )
)
