"""Block descent between two rounds: its state, a step under way, and the gradient as a selection sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, PendingColumns
from dkgp.solvers.block_descent.recursions import advance_gradient
from dkgp.solvers.block_descent.subproblem import Subproblem
from dkgp.solvers.state import SolverState

__all__ = ["BlockState", "BlockStep", "GradientUnderWay", "SettledGradient"]


@dataclass
class BlockStep:
    """A block step whose scalars are known: what turns Kbar[:, B] delta into the new gradient."""

    indices: IndexArray
    delta: FloatArray
    used: IndexArray
    coefficients: FloatArray
    step: FloatArray
    slot: int


@dataclass
class BlockState(SolverState):
    """Everything a resumed solve needs, and what is under way.

    `directions` and `images` are ring buffers of the last steps p_j and their q_j = Kbar p_j, (memory, n, p);
    `curvatures` their p_j' q_j, (memory, p); `held` the filled slots, oldest first. `block_size` is that of the next
    selection; `review_columns` and `review_norm` say where its growth was last considered, at which columns and norm of
    the gradient (0: nowhere yet).
    """

    directions: FloatArray = field(default_factory=lambda: np.zeros((1, 0, 1)))
    images: FloatArray = field(default_factory=lambda: np.zeros((1, 0, 1)))
    curvatures: FloatArray = field(default_factory=lambda: np.zeros((1, 1)))
    held: list[int] = field(default_factory=list)
    block_size: int = 0
    review_columns: int = 0
    review_norm: float = 0.0
    typical_entry: float = 0.0
    subproblem: Subproblem | None = None
    spare: Subproblem | None = None
    prepared: bool = False

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return super().arrays() | {
            "directions": self.directions[self.held],
            "images": self.images[self.held],
            "curvatures": self.curvatures[self.held],
        }

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        return super().metadata() | {
            "held": len(self.held),
            "block_size": self.block_size,
            "review_columns": self.review_columns,
            "review_norm": self.review_norm,
        }

    def renew_gradient(self, gradient: FloatArray, precision: Precision) -> None:
        """Continue from a recomputed gradient; the remembered images belong to the old recursion and go."""
        super().renew_gradient(gradient, precision)
        self.held.clear()
        self.prepared = False
        self.review_norm = 0.0


class SettledGradient:
    """The gradient when nothing is under way."""

    def __init__(self, state: BlockState) -> None:
        self._state = state

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples."""
        return self._state.gradient[indices]

    def everywhere(self) -> FloatArray:
        """Return g."""
        return self._state.gradient


class GradientUnderWay:
    """The gradient after a step whose update the workers may still be computing.

    At a few samples it is cheaper to evaluate K(candidates, B) delta here than to wait. The tile loops give the same
    bits for a row wherever it is evaluated, so it makes no difference to the result which way a value was had.
    """

    def __init__(self, operator: KernelOperator, state: BlockState, step: BlockStep, pending: PendingColumns) -> None:
        self._operator, self._state, self._step, self._pending = operator, state, step, pending
        self._settled = False
        self._affordable = operator.overlap_evaluations
        self._columns: Features | None = None

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples, evaluated here while that is cheaper than waiting."""
        operator, state, step = self._operator, self._state, self._step
        self._affordable -= len(indices) * len(step.indices)
        if self._settled or self._affordable < 0 or self._pending.done():
            return self.everywhere()[indices]
        if features is None or state.precision == "double":
            features = operator.features(indices, state.precision)
        if self._columns is None:
            self._columns = operator.features(step.indices, state.precision)
            self._position = np.full(operator.n, -1, dtype=np.intp)
            self._position[step.indices] = np.arange(len(step.indices))
        product = np.ascontiguousarray(operator.evaluator(state.precision).matmat(features, self._columns, step.delta))
        position = self._position[indices]
        inside = position >= 0
        product[inside] += operator.noise_variance * step.delta[position[inside]]
        gradient = state.gradient[indices]
        images = np.ascontiguousarray(state.images[:, indices])
        advance_gradient(gradient, product, images, step.used, step.coefficients, step.step, np.empty_like(gradient))
        return gradient

    def everywhere(self) -> FloatArray:
        """Return g, waiting for the update."""
        self.settle()
        return self._state.gradient

    def settle(self) -> None:
        """Wait for the update and add it to g."""
        if not self._settled:
            state, step = self._state, self._step
            product = self._pending.result()
            image = state.images[step.slot]
            advance_gradient(state.gradient, product, state.images, step.used, step.coefficients, step.step, image)
            self._settled = True
