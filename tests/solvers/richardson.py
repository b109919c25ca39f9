"""A solver in one file, as another package would bring it: Richardson's iteration, alpha <- alpha - w g.

With w below 2 over the largest eigenvalue of Kbar every step shortens the error, and no eigenvalue of a positive
definite matrix is above its trace.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import KernelOperator
from dkgp.registry import Option
from dkgp.solvers.base import Method, SolverState
from dkgp.solvers.registry import SolverDeclaration, SolverMemory, register_solver

RELAXATION = Option("relaxation", "Step of richardson over the one that is safe; between 0 and 2.", float, 1.0)


@dataclass
class RichardsonState(SolverState):
    """A solve between two steps, and the trace of Kbar."""

    trace: float = 0.0


@dataclass(frozen=True)
class Richardson(Method[RichardsonState]):
    """Richardson's iteration with the step `relaxation` / trace(Kbar)."""

    relaxation: float
    precision: Literal["mixed", "double"] = "mixed"

    name = "richardson"
    state_type = RichardsonState

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.relaxation < 2.0:
            raise InputError(f"the relaxation must be between 0 and 2; got {self.relaxation!r}")

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), "relaxation": self.relaxation}

    def equip(self, operator: KernelOperator, state: RichardsonState) -> None:
        """Find the trace."""
        state.trace = float(operator.diagonal().sum())

    def advance(self, operator: KernelOperator, state: RichardsonState) -> dict[str, float]:
        """One step, in place; seconds by phase."""
        began = time.perf_counter()
        step = -self.relaxation / state.trace * state.gradient
        state.alpha = state.alpha + step
        state.gradient = state.gradient + operator.matmat(step, state.precision)
        state.note_step(np.einsum("it,it->t", step, step))
        state.iteration += 1
        state.columns += operator.n
        return {"update": time.perf_counter() - began}


DECLARED = register_solver(
    SolverDeclaration(
        "richardson",
        "Richardson's iteration",
        Richardson,
        options=(RELAXATION,),
        memory=lambda solver, n, d: SolverMemory(memory=0, own_bytes=8 * n),
    )
)
