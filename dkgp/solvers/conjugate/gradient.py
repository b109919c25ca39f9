"""Conjugate gradients on Kbar alpha = y, plain (the GBCD paper's CG) or preconditioned by a partial Cholesky factor.

Every iteration is one full product with the kernel matrix, shared by all targets, along directions that they share too
(`dkgp.solvers.conjugate.block`). The float32 product's drift is the driver's business: when it recomputes the gradient,
the search goes on from the directions it has, with exact steps for the true residual, so no conjugacy is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from dkgp.operators.base import KernelOperator
from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.registry import Option, whole_or_auto
from dkgp.solvers.base import Method
from dkgp.solvers.conjugate.block import BlockState, iterate
from dkgp.solvers.conjugate.preconditioner import PartialCholesky, Preconditioner, Preconditioning
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver

__all__ = ["ConjugateGradient", "ConjugateGradientState"]


@dataclass
class ConjugateGradientState(BlockState):
    """A solve between two iterations.

    Attributes
    ----------
    preconditioner : Preconditioner or None
        M^-1; not part of a checkpoint: it is built again, to the same bits.
    """

    preconditioner: Preconditioner | None = None


@dataclass(frozen=True)
class ConjugateGradient(Method[ConjugateGradientState]):
    """Conjugate gradients, one full kernel product an iteration.

    Parameters
    ----------
    preconditioner : Preconditioning, optional
        Such as a `PartialCholesky`; without one, this is the CG that the GBCD paper compares with.
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64.
    observe : callable, optional
        Is shown the state before each iteration.

    References
    ----------
    L. Bo and C. Sminchisescu (2008), section 5.1; D. P. O'Leary, The block conjugate gradient algorithm and related
    methods (1980).
    """

    preconditioner: Preconditioning | None = None
    precision: Literal["mixed", "double"] = "mixed"
    observe: Callable[[ConjugateGradientState], None] | None = None

    state_type = ConjugateGradientState

    @property
    def name(self) -> str:
        """Short name, as on the command line."""
        return "cg" if self.preconditioner is None else "pcg"

    def resolved(self, n: int, d: int, p: int = 1) -> ConjugateGradient:
        """Return the settings with the preconditioner's rank chosen."""
        if self.preconditioner is None:
            return self
        return replace(self, preconditioner=self.preconditioner.resolved(n, d, p))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        preconditioner = None if self.preconditioner is None else self.preconditioner.settings()
        return {**super().settings(), "preconditioner": preconditioner}

    def advance(self, operator: KernelOperator, state: ConjugateGradientState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        if self.observe is not None:
            self.observe(state)
        started = time.perf_counter()
        preconditioned = -state.gradient
        if self.preconditioner is not None:
            if state.preconditioner is None:
                state.preconditioner = self.preconditioner.build(operator)
            preconditioned = state.preconditioner.apply(preconditioned)
        before = time.perf_counter()
        iterate(operator, state, preconditioned)
        return {"precondition": before - started, "update": time.perf_counter() - before}


RANK = Option("rank", "Of pcg's preconditioner.", whole_or_auto, "auto", metavar="R|auto")
LANDMARKS = Option(
    "landmarks",
    "How pcg draws the factor's samples: randomly pivoted Cholesky, or at random (Nystrom).",
    default="pivoted",
    choices=("pivoted", "uniform"),
)


def _plain(precision: Literal["mixed", "double"]) -> ConjugateGradient:
    return ConjugateGradient(None, precision)


def _preconditioned(
    rank: int | Literal["auto"],
    landmarks: Literal["pivoted", "uniform"],
    precision: Literal["mixed", "double"],
    seed: int,
) -> ConjugateGradient:
    return ConjugateGradient(PartialCholesky(rank, landmarks, seed=seed), precision)


def _memory(solver: ConjugateGradient, n: int, d: int) -> SolverMemory:
    """The factor and its rows in the workers, and the landmarks' own factor while they are drawn."""
    if not isinstance(solver.preconditioner, PartialCholesky):
        return SolverMemory()
    rank = int(solver.preconditioner.rank)
    return SolverMemory(
        own_bytes=8 * rank * (3 * rank + samples_drawn_from(rank)), factor_bytes=rank * (4 * n + 16 * rank)
    )


register_solver(SolverDeclaration("cg", "conjugate gradients", _plain, bench_turn=5, label="CG", paper={}))
register_solver(
    SolverDeclaration(
        "pcg",
        "preconditioned by a partial Cholesky factor",
        _preconditioned,
        options=(RANK, LANDMARKS),
        needs=frozenset({Need.ROUNDS}),
        memory=_memory,
        bench_turn=2,
    )
)
