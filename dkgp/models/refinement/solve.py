"""Kbar [alpha, V] = [y, Z]: the systems of a likelihood gradient together, by preconditioned block conjugate gradients.

The variances' recursion (`dkgp.models.variance.batch`) on the operator that trains: the residuals of all right-hand
sides together span the next directions P, and one product Kbar P, shared between the workers, serves all of them. The
variances' own solver keeps a whole factor on every worker and a whole batch on one; here there is one small batch for
all workers, so both the factor and the product are cut by row blocks, each pair of samples is evaluated once, and the
driver of all solvers sees to float32 rounding, interruptions and breakdowns.

Passes until ||r|| <= 0.01 ||b|| for every right-hand side, one target and eight probes, kin40k, n = 10,000: rank 300:
95 (conjugate gradients by column, with the same preconditioner: 116); rank 600: 56 (65); rank 1,000: 36.

References
----------
D. P. O'Leary, The block conjugate gradient algorithm and related methods (1980).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor
from dkgp.solvers.base import Method
from dkgp.solvers.conjugate.preconditioner import PartialCholesky, Preconditioner
from dkgp.solvers.state import SolverState

__all__ = ["BlockConjugateGradient", "FrozenLandmarks"]

# Directions that the others span to this share of their length are left out.
DEPENDENT = 1e-7


class FrozenLandmarks:
    """A preconditioner's landmarks, drawn once and kept while the hyperparameters move a little.

    Parameters
    ----------
    settings : PartialCholesky
    """

    def __init__(self, settings: PartialCholesky) -> None:
        self._settings = settings
        self.indices: IndexArray | None = None

    def preconditioner(self, operator: BlockedKernelOperator) -> Preconditioner:
        """Build M for the operator's kernel; landmarks that have become dependent under it are drawn anew."""
        if self.indices is not None:
            try:
                return Preconditioner(LowRankFactor(operator, self.indices), operator.noise_variance)
            except np.linalg.LinAlgError:
                self.indices = None
        settings = self._settings.resolved(operator.n, operator.kernel.n_features)
        self.indices = settings.choose(operator)
        return Preconditioner(LowRankFactor(operator, self.indices), operator.noise_variance)


@dataclass
class BlockConjugateGradientState(SolverState):
    """A solve between two iterations.

    Attributes
    ----------
    directions, images : (n, k) float64
        The last block P, nearly orthonormal, and Kbar P; empty before the first.
    """

    saved = (*SolverState.saved, "directions", "images")

    directions: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    images: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass
class BlockConjugateGradient(Method[BlockConjugateGradientState]):
    """Block conjugate gradients, one full kernel product an iteration for all right-hand sides together.

    Parameters
    ----------
    preconditioner : Preconditioner, optional
    remember_at : float
        The solution is remembered when every relative residual has come down to this, and at the start at the latest:
        what it changes by from there on tells how far it may still be from the exact one.

    Attributes
    ----------
    remembered : (n, t) float64 or None
        That solution.
    remembered_residual : float
        Its largest relative residual.
    """

    preconditioner: Preconditioner | None = None
    remember_at: float = 0.0
    remembered: FloatArray | None = None
    remembered_residual: float = np.inf

    state_type = BlockConjugateGradientState

    @property
    def name(self) -> str:
        """Short name."""
        return "block-cg"

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {"solver": self.name, "rank": None if self.preconditioner is None else self.preconditioner.rank}

    def start(
        self,
        operator: KernelOperator,
        rhs: FloatArray,
        initial: FloatArray | None = None,
        gradient: FloatArray | None = None,
    ) -> BlockConjugateGradientState:
        """State before the first iteration, remembered."""
        state = super().start(operator, rhs, initial, gradient)
        self._remember(state)
        return state

    def advance(self, operator: KernelOperator, state: BlockConjugateGradientState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        self._remember(state)
        started = time.perf_counter()
        residual = -state.gradient
        z = residual.copy() if self.preconditioner is None else self.preconditioner.apply(residual)
        if state.directions.size:  # conjugate to the last directions
            p, q = state.directions, state.images
            z -= p @ _solve(p.T @ q, q.T @ z)
        state.directions = p = _independent(z)
        timings = {"precondition": time.perf_counter() - started}
        started = time.perf_counter()
        precision: Precision = state.precision
        state.images = q = operator.matmat(p, precision)
        timings["update"] = time.perf_counter() - started
        step = _solve(p.T @ q, p.T @ residual)
        state.alpha += p @ step
        state.gradient += q @ step
        state.note_step(np.einsum("kt,kt->t", step, step))
        state.iteration += 1
        state.columns += operator.n
        return timings

    def _remember(self, state: BlockConjugateGradientState) -> None:
        if self.remembered is not None and self.remembered_residual <= self.remember_at:
            return
        norms, scale = (np.linalg.norm(values, axis=0) for values in (state.gradient, state.rhs))
        residual = float(np.max(norms / np.maximum(scale, np.finfo(np.float64).tiny)))
        if self.remembered is None or residual <= self.remember_at:
            self.remembered, self.remembered_residual = state.alpha.copy(), residual


def _independent(z: FloatArray) -> FloatArray:
    """Directions that span what z (n, t) does, nearly orthonormal: (n, at most t)."""
    gram = z.T @ z
    scale = 1.0 / np.sqrt(np.maximum(gram.diagonal(), np.finfo(np.float64).tiny))
    values, vectors = scipy.linalg.eigh(scale[:, None] * gram * scale, check_finite=False)
    kept = values > DEPENDENT**2 * values[-1]
    return np.asarray(z @ (scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])))


def _solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with the small symmetric matrix P' Kbar P."""
    return np.asarray(scipy.linalg.solve((matrix + matrix.T) / 2.0, right, assume_a="pos", check_finite=False))
