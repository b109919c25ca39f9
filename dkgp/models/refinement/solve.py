"""A solution that is remembered on the way: what a refinement adds to conjugate gradients.

Kbar [alpha, V] = [y, Z], the systems of a likelihood gradient, are solved together by the solver that trains
(`dkgp.solvers.ConjugateGradient`), with its preconditioner and directions that all right-hand sides share. The factor
is made anew for every theta.
"""

from __future__ import annotations

import numpy as np

from dkgp.operators.base import FloatArray
from dkgp.solvers.state import SolverState

__all__ = ["Remembered"]


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
