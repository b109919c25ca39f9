"""A preconditioner for Newton's systems: a low-rank factor of K, made once, between roots of the curvature at hand.

A step solves B v = R'K g with B = lambda I + R'K R and W = R R' the curvature by sample. With K near F F' and S the
diagonal of R'R, rooted, by sample and column,

    M = lambda I + S F F' S,    M^-1 r = (r - S F z) / lambda,    z = (F'S^2 F + lambda I)^-1 F'S r,

column by column: of one column S is R, of coupled ones it is its diagonal. Nothing is divided by a curvature.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor
from dkgp.operators.low_rank.pivots import regularised_factor
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning, factor_bytes_allowed
from dkgp.solvers.prices import Prices

__all__ = ["CurvaturePreconditioner", "affordable_rank"]

# The factor's algebra, anew for every step, may take as long as so many products.
PRODUCTS_A_STEP = 4.0
LEAST_RANK, LARGEST_RANK = 32, 3000


def affordable_rank(n: int, d: int, p: int) -> int:
    """Return a rank whose algebra for a step, n R^2 operations a column, takes as long as a few products."""
    prices = Prices.nominal(d)
    product = n * n * (0.5 * prices.entries + 2.0 * p * prices.operations)
    rank = math.sqrt(PRODUCTS_A_STEP * product / (n * p * prices.double_operations))
    return min(n, LARGEST_RANK, factor_bytes_allowed(n) // (4 * n), max(LEAST_RANK, math.floor(rank)))


class CurvaturePreconditioner:
    """M^-1 for the curvature that `refresh` was told last.

    Parameters
    ----------
    operator : BlockedKernelOperator
    rank : int
        R, landmarks at most.
    regularisation : float
        lambda.
    seed : int
        Of the landmarks.
    """

    def __init__(self, operator: BlockedKernelOperator, rank: int, regularisation: float, seed: int) -> None:
        operator.executor.require_one_arithmetic()
        landmarks = FactorPreconditioning(halo=0, rank=rank, seed=seed).choose(operator)
        self._factor = LowRankFactor(operator.with_noise(1.0), landmarks)
        self._regularisation = regularisation
        self._scale, self._lower = np.zeros((0, 0)), list[FloatArray]()

    @classmethod
    def of(
        cls, operator: KernelOperator, rank: int, regularisation: float, seed: int
    ) -> CurvaturePreconditioner | None:
        """Return the preconditioner of an operator whose rounds can build it, with any rank at all."""
        if rank == 0 or not isinstance(operator, BlockedKernelOperator):
            return None
        return cls(operator, rank, regularisation, seed)

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return self._factor.rank

    def refresh(self, squares: FloatArray) -> None:
        """Take the curvature's S^2 (n, p)."""
        self._scale = np.sqrt(squares)
        self._lower = []
        for column in range(squares.shape[1]):
            alike = next((at for at in range(column) if np.array_equal(squares[:, at], squares[:, column])), None)
            if alike is not None:
                self._lower.append(self._lower[alike])
                continue
            gram = self._factor.gram(squares[:, column])
            self._lower.append(regularised_factor(gram, self._regularisation))

    def apply(self, residual: FloatArray) -> FloatArray:
        """M^-1 r for r (n, p)."""
        projected = self._factor.project(self._scale * residual)
        z = np.empty_like(projected)
        for column, lower in enumerate(self._lower):
            z[:, column] = scipy.linalg.cho_solve((lower, True), projected[:, column], check_finite=False)
        return np.asarray((residual - self._scale * self._factor.expand(z)) / self._regularisation)
