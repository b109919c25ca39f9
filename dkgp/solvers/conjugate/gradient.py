"""Conjugate gradients on Kbar alpha = y, plain (the GBCD paper's CG) or preconditioned by a partial Cholesky factor.

Every iteration is one full product with the kernel matrix, shared by all targets; each target has its own step. The
float32 product's drift is the driver's business: when it recomputes the gradient, the search goes on along the
direction it has, with an exact step for the true residual, so no conjugacy is thrown away.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.registry import Option, whole_or_auto
from dkgp.solvers.base import Method
from dkgp.solvers.conjugate.preconditioner import (
    LEAST_SUBSET,
    SAMPLES_PER_LANDMARK,
    PartialCholesky,
    Preconditioner,
)
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver
from dkgp.solvers.state import SolverState

__all__ = ["ConjugateGradient", "ConjugateGradientState", "column_products"]


def column_products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Inner products of two (n, p) arrays by column: (p,)."""
    return np.asarray(np.einsum("ip,ip->p", left, right))


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide by target; zero where there is nothing left to divide by: a target that is solved stands still."""
    sound = (denominator > 0.0) & np.isfinite(denominator)
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=sound)


@dataclass
class ConjugateGradientState(SolverState):
    """A solve between two iterations.

    Attributes
    ----------
    direction : (n, p) float64
        The next step's direction; empty before the first.
    rho : (p,) float64
        r' M^-1 r of the residual that the direction was made from.
    preconditioner : Preconditioner or None
        M^-1; not part of a checkpoint: it is built again, to the same bits.
    """

    saved = (*SolverState.saved, "direction", "rho")

    direction: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    rho: FloatArray = field(default_factory=lambda: np.zeros(0))
    preconditioner: Preconditioner | None = None


@dataclass(frozen=True)
class ConjugateGradient(Method[ConjugateGradientState]):
    """Conjugate gradients, one full kernel product an iteration.

    Parameters
    ----------
    preconditioner : PartialCholesky, optional
        Without one, this is the CG that the GBCD paper compares with.
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64.

    References
    ----------
    L. Bo and C. Sminchisescu (2008), section 5.1; Y. Saad, Iterative Methods for Sparse Linear Systems, algorithm 9.1,
    with Polak and Ribiere's coefficient, which tolerates products that are not exact.
    """

    preconditioner: PartialCholesky | None = None
    precision: Literal["mixed", "double"] = "mixed"

    state_type = ConjugateGradientState

    @property
    def name(self) -> str:
        """Short name, as on the command line."""
        return "cg" if self.preconditioner is None else "pcg"

    def resolved(self, n: int, d: int, p: int = 1) -> ConjugateGradient:
        """Return the settings with the preconditioner's rank chosen."""
        if self.preconditioner is None:
            return self
        return ConjugateGradient(self.preconditioner.resolved(n, d, p), self.precision)

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        factor = None if self.preconditioner is None else asdict(self.preconditioner)
        return {**super().settings(), "preconditioner": factor}

    def advance(self, operator: KernelOperator, state: ConjugateGradientState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        timings = {"precondition": 0.0, "update": 0.0}
        if not state.direction.size:
            residual = -state.gradient
            state.direction = self._precondition(operator, state, residual, timings).copy()
            state.rho = column_products(residual, state.direction)
        started = time.perf_counter()
        image = operator.matmat(state.direction, state.precision)
        timings["update"] += time.perf_counter() - started
        before = -state.gradient
        step = ratio(column_products(state.direction, before), column_products(state.direction, image))
        state.alpha += step * state.direction
        state.gradient += step * image
        state.note_step(column_products(state.direction, state.direction) * step * step)
        residual = -state.gradient
        preconditioned = self._precondition(operator, state, residual, timings)
        rho = column_products(residual, preconditioned)
        conjugation = np.maximum(ratio(rho - column_products(before, preconditioned), state.rho), 0.0)
        state.direction = preconditioned + conjugation * state.direction
        state.rho = rho
        state.iteration += 1
        state.columns += operator.n
        return timings

    def _precondition(
        self, operator: KernelOperator, state: ConjugateGradientState, residual: FloatArray, timings: dict[str, float]
    ) -> FloatArray:
        if self.preconditioner is None:
            return residual
        started = time.perf_counter()
        if state.preconditioner is None:
            state.preconditioner = self.preconditioner.build(operator)
        result = state.preconditioner.apply(residual)
        timings["precondition"] += time.perf_counter() - started
        return result


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
    if solver.preconditioner is None:
        return SolverMemory()
    rank = int(solver.preconditioner.rank)
    drawn = max(LEAST_SUBSET, int(SAMPLES_PER_LANDMARK * rank))
    return SolverMemory(own_bytes=8 * rank * (3 * rank + drawn), factor_bytes=rank * (4 * n + 16 * rank))


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
