"""Landmarks that are kept, and a solution that is remembered: what a refinement adds to conjugate gradients.

Kbar [alpha, V] = [y, Z], the systems of a likelihood gradient, are solved together by the solver that trains
(`dkgp.solvers.ConjugateGradient`), whose directions all right-hand sides share.

Passes until ||r|| <= 0.01 ||b|| for every right-hand side, one target and eight probes, kin40k, n = 10,000: rank 300:
95 (conjugate gradients by column, with the same preconditioner: 116); rank 600: 56 (65); rank 1,000: 36.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.errors import UsageError
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning
from dkgp.solvers.state import SolverState

__all__ = ["FrozenLandmarks", "Remembered"]


class FrozenLandmarks:
    """A preconditioner's landmarks, drawn once and kept while the hyperparameters move a little.

    Parameters
    ----------
    drawing : FactorPreconditioning
    """

    def __init__(self, drawing: FactorPreconditioning) -> None:
        self._drawing = drawing
        self.indices: IndexArray | None = None

    def resolved(self, n: int, d: int, p: int = 1) -> FrozenLandmarks:
        """Return itself: the rank is chosen when landmarks are drawn."""
        return self

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return self._drawing.settings()

    def drawn(self, operator: BlockedKernelOperator) -> IndexArray:
        """The landmarks; for the operator's kernel, where they have yet to be drawn."""
        if self.indices is None:
            self.indices = self._drawing.resolved(operator.n, operator.kernel.n_features).choose(operator)
        return self.indices

    def build(self, operator: KernelOperator) -> LowRankPreconditioner:
        """Build M for the operator's kernel; landmarks that have become dependent under it are drawn anew."""
        if not isinstance(operator, BlockedKernelOperator):
            raise UsageError(f"landmarks need a BlockedKernelOperator; got {type(operator).__name__}")
        try:
            return LowRankPreconditioner(LowRankFactor(operator, self.drawn(operator)), operator.noise_variance)
        except np.linalg.LinAlgError:
            self.indices = None
            return LowRankPreconditioner(LowRankFactor(operator, self.drawn(operator)), operator.noise_variance)


class Remembered:
    """A solution on the way: what it changes by from there on tells how far it may still be from the exact one.

    Parameters
    ----------
    at : float
        It is the first whose relative residuals have all come down to this, or the first of all.

    Attributes
    ----------
    solution : (n, t) float64 or None
    residual : float
        Its largest relative residual.
    """

    def __init__(self, at: float) -> None:
        self._at = at
        self.solution: FloatArray | None = None
        self.residual = np.inf

    def __call__(self, state: SolverState) -> None:
        """Look at a solve between two iterations."""
        if self.solution is not None and self.residual <= self._at:
            return
        norms, scale = (np.linalg.norm(values, axis=0) for values in (state.gradient, state.rhs))
        residual = float(np.max(norms / np.maximum(scale, np.finfo(np.float64).tiny)))
        if self.solution is None or residual <= self._at:
            self.solution, self.residual = state.alpha.copy(), residual
