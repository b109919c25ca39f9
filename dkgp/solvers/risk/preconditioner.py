"""A preconditioner for Newton's systems: a low-rank factor of K, made once, between roots of the curvature at hand.

A step solves B v = R'K g with B = lambda I + R'K R and W = R R' the curvature by sample. With K near F F'

    M = lambda I + R'F F'R,    M^-1 r = (r - R'F z) / lambda,    z = (F'W F + lambda I)^-1 F'R r,

column by column where the loss couples none; else F'W F is one matrix of all columns, a block for each pair of them.
Nothing is divided by a curvature.
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
from dkgp.solvers.losses import CurvatureRoot
from dkgp.solvers.prices import ROUND_SECONDS, Prices

# The factor's algebra, anew for every step, may take as long as so many products.
PRODUCTS_A_STEP = 4.0
# Of a round's nominal seconds, what cores work for it.
WORK_OF_A_ROUND = 0.25
# The largest is that of F'W F, all columns that it couples together.
LEAST_RANK, LARGEST_RANK = 32, 3000


def affordable_rank(n: int, d: int, p: int, coupled: bool = False) -> int:
    """Return a rank whose algebra for a step, n R^2 operations a block of F'W F, takes as long as a few products.

    What is compared is the work of cores, and most of a round is waiting, which is no reason for them to work more.
    """
    prices = Prices.nominal(d)
    product = n * n * (0.5 * prices.entries + 2.0 * p * prices.operations) + WORK_OF_A_ROUND * ROUND_SECONDS
    blocks = p * (p + 1) // 2 if coupled else p
    rank = math.floor(math.sqrt(PRODUCTS_A_STEP * product / (n * blocks * prices.double_operations)))
    most = LARGEST_RANK // p if coupled else LARGEST_RANK
    return min(n, max(1, most), factor_bytes_allowed(n) // (4 * n), max(LEAST_RANK, rank))


class CurvaturePreconditioner:
    """M^-1 for the curvature that `refresh` was told last.

    - `rank`: R, landmarks at most.
    - `regularisation`: lambda.
    - `coupled`: whether the curvature couples columns.
    """

    def __init__(
        self, operator: BlockedKernelOperator, rank: int, regularisation: float, coupled: bool, seed: int
    ) -> None:
        operator.executor.require_one_arithmetic()
        landmarks = FactorPreconditioning(halo=0, rank=rank, seed=seed).choose(operator)
        self._factor = LowRankFactor(operator.with_noise(1.0), landmarks)
        self._regularisation, self._coupled = regularisation, coupled
        self._root: CurvatureRoot | None = None
        self._lower: list[FloatArray] = []

    @classmethod
    def of(
        cls, operator: KernelOperator, rank: int, regularisation: float, coupled: bool, seed: int
    ) -> CurvaturePreconditioner | None:
        """Return the preconditioner of an operator whose rounds can build it, with any rank at all."""
        if rank == 0 or not isinstance(operator, BlockedKernelOperator):
            return None
        return cls(operator, rank, regularisation, coupled, seed)

    def refresh(self, root: CurvatureRoot, columns: int) -> None:
        """Take the curvature's root, of so many columns."""
        self._root, self._lower = root, []
        if self._coupled:
            self._lower = [regularised_factor(self._whole_gram(root, columns), self._regularisation)]
            return
        seen: list[FloatArray] = []
        for column in range(columns):
            weights = root.entries(column, column)
            alike = next((at for at, other in enumerate(seen) if np.array_equal(other, weights)), None)
            seen.append(weights)
            if alike is not None:
                self._lower.append(self._lower[alike])
            else:
                self._lower.append(regularised_factor(self._factor.gram(weights), self._regularisation))

    def _whole_gram(self, root: CurvatureRoot, columns: int) -> FloatArray:
        """F'W F of all columns together: (p R, p R)."""
        rank = self._factor.rank
        whole = np.zeros((columns * rank, columns * rank), order="F")
        for row in range(columns):
            for column in range(row + 1):
                # Between two classes curvatures are not positive.
                sign = 1.0 if row == column else -1.0
                block = sign * self._factor.gram(np.maximum(sign * root.entries(row, column), 0.0))
                places = slice(row * rank, (row + 1) * rank), slice(column * rank, (column + 1) * rank)
                whole[places], whole[places[::-1]] = block, block.T
        return whole

    def apply(self, residual: FloatArray) -> FloatArray:
        """M^-1 r for r (n, p)."""
        assert self._root is not None, "refreshed before it is applied"
        projected = self._factor.project(self._root.times(residual))
        if self._coupled:
            stacked = np.ascontiguousarray(projected.T).ravel()
            z = scipy.linalg.cho_solve((self._lower[0], True), stacked, check_finite=False)
            z = np.ascontiguousarray(z.reshape(projected.T.shape).T)
        else:
            z = np.empty_like(projected)
            for column, lower in enumerate(self._lower):
                z[:, column] = scipy.linalg.cho_solve((lower, True), projected[:, column], check_finite=False)
        expanded = self._root.transposed_times(self._factor.expand(z))
        return np.asarray((residual - expanded) / self._regularisation)
