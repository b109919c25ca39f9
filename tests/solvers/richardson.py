"""A solver in one file, as another package would bring it: Richardson's iteration, alpha <- alpha - w g.

With w below 2 over the largest eigenvalue of Kbar every step shortens the error. Of a positive definite kernel
|k(x, x')| <= sqrt(k(x, x) k(x', x')), so that no eigenvalue is above the trace of K, plus s2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.registry import Option
from dkgp.solvers.registry import SolverDeclaration, SolverMemory, register_solver
from dkgp.solvers.state import SolverState

RELAXATION = Option("relaxation", "Step of richardson over the one that is safe; between 0 and 2.", float, 1.0)


@dataclass
class RichardsonState(SolverState):
    """A solve between two steps: `trace` of Kbar is the bound on its eigenvalues."""

    trace: float = field(default=0.0)


@dataclass(frozen=True)
class Richardson:
    """Richardson's iteration with the step `relaxation` / trace(Kbar)."""

    relaxation: float
    precision: Literal["mixed", "double"] = "mixed"

    name = "richardson"

    def __post_init__(self) -> None:
        if not 0.0 < self.relaxation < 2.0:
            raise InputError(f"the relaxation must be between 0 and 2; got {self.relaxation!r}")

    def resolved(self, n: int, d: int, p: int = 1) -> Richardson:
        """Nothing is left open."""
        return self

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {"solver": self.name, "relaxation": self.relaxation, "precision": self.precision}

    def start(self, operator: KernelOperator, rhs: FloatArray, initial: FloatArray | None = None) -> RichardsonState:
        """State before the first step."""
        precision: Precision = "double" if self.precision == "double" else "single"
        alpha = np.zeros_like(rhs) if initial is None else initial.copy()
        gradient = -rhs if initial is None else operator.matmat(alpha) - rhs
        moved = np.zeros(rhs.shape[1])
        return RichardsonState(
            alpha, gradient, rhs, precision=precision, exact=True, moved=moved, trace=float(operator.diagonal().sum())
        )

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> RichardsonState:
        """State from a checkpoint."""
        state = RichardsonState(arrays["alpha"], arrays["gradient"], rhs, moved=arrays["moved"])
        state.read_metadata(metadata)
        state.trace = float(operator.diagonal().sum())
        return state

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
