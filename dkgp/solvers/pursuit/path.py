"""The path that a pursuit ends in: solutions of every cardinality, by the directions that lead to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.cholesky.triangular import solve_lower_transposed
from dkgp.solvers.pursuit.settings import PursuitProgress
from dkgp.solvers.stopping import StopReason


@dataclass(frozen=True)
class PursuitPath:
    """Solutions w^(k) of A_SS w_S = b_S for the first k regressors of an order, k = 0, 1, ...

    With A_SS = L L' the conjugate directions are the columns of L^-T times L's diagonal: p^(k) has its last entry 1,
    and p^(i)' A p^(j) = 0 for i != j. So w^(k) is the sum of eta^(j) p^(j), j <= k (equations 8 and 18).

    Attributes
    ----------
    size : int
        Regressors, D.
    order : (k,) int
        Those of the path, in the order of choice.
    lower : (k, k) float64
        L.
    half : (t, k) float64
        L^-1 b_S by right-hand side.
    square : (t,) float64 or None
        Squared length of the right-hand side that the residual is of, where the system knows it.
    history : list of PursuitProgress
    misfits : dict of int to float
        Squared residuals that were found from residuals, by cardinality; others are differences.
    """

    size: int
    order: IndexArray
    lower: FloatArray
    half: FloatArray
    square: FloatArray | None
    reason: StopReason
    history: list[PursuitProgress] = field(default_factory=list)
    misfits: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """Regressors of the path."""
        return len(self.order)

    @property
    def directions(self) -> FloatArray:
        """Conjugate directions as columns, in the order's coordinates: (k, k), upper triangular with ones."""
        rows = np.diag(np.diagonal(self.lower)).copy()
        if len(rows):
            solve_lower_transposed(np.ascontiguousarray(self.lower), len(rows), rows)
        return rows.T

    @property
    def steps(self) -> FloatArray:
        """Eta: (t, k)."""
        return np.asarray(self.half / np.diagonal(self.lower))

    @property
    def curvatures(self) -> FloatArray:
        """p' A p of each direction: (k,)."""
        return np.asarray(np.diagonal(self.lower) ** 2)

    @property
    def objectives(self) -> FloatArray:
        """w'A w / 2 - b'w of k = 0, 1, ..., summed over right-hand sides: (k + 1,)."""
        return np.concatenate([[0.0], -0.5 * np.cumsum(np.sum(self.half**2, axis=0))])

    @property
    def residuals(self) -> FloatArray | None:
        """Squared residuals of k = 0, 1, ..., summed over right-hand sides: (k + 1,); None where they are not known."""
        if self.square is None:
            return None
        residuals = np.maximum(float(self.square.sum()) + 2.0 * self.objectives, 0.0)
        for size, value in self.misfits.items():
            residuals[size] = value
        return residuals

    def weights_at(self, k: int) -> FloatArray:
        """w of the first k regressors of the order: (k, t).

        Raises
        ------
        InputError
            The path is shorter.
        """
        if not 0 <= k <= len(self):
            raise InputError(f"the path has cardinalities from 0 to {len(self):,}; {k} was asked for")
        weights = np.ascontiguousarray(self.half[:, :k]).copy()
        if k:
            solve_lower_transposed(np.ascontiguousarray(self.lower), k, weights)
        return weights.T

    def solution(self, k: int | None = None) -> FloatArray:
        """w of cardinality k, the path's last by default, with its zeros: (D, t)."""
        k = len(self) if k is None else k
        full = np.zeros((self.size, len(self.half)))
        full[self.order[:k]] = self.weights_at(k)
        return full
