"""Latent functions of a Gaussian process classifier on a basis: Laplace's variances at new inputs.

    Var f(x) = (k(x, x) - |phi|^2 + phi'(I + F'WF / lambda)^-1 phi) / lambda,    phi = L^-1 k_m(x),

what the basis leaves of the prior's variance, and what the samples leave of the basis' own. Of softmax the classes'
values have a covariance, whose diagonal holds the first term for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.models.rounding import known
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.landmark_rows import whiten


@dataclass(frozen=True)
class BasisPosterior:
    """Factors of a posterior, in Fortran order.

    `kernel_lower` is L (m, m); `posterior_lowers` are (m, m) of each of t columns, or one (t m, t m) of columns that
    hang together.
    """

    kernel_lower: FloatArray
    posterior_lowers: tuple[FloatArray, ...]
    columns: int
    regularisation: float

    @classmethod
    def of(
        cls, kernel_lower: FloatArray, posterior_lower: FloatArray, columns: int, regularisation: float
    ) -> BasisPosterior:
        """From the arrays that a store holds."""
        lowers = tuple(np.asfortranarray(lower) for lower in posterior_lower)
        return cls(np.asfortranarray(kernel_lower), lowers, columns, regularisation)

    @property
    def coupled(self) -> bool:
        """True where the columns hang together."""
        return len(self.posterior_lowers) < self.columns

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.kernel_lower.nbytes + sum(lower.nbytes for lower in self.posterior_lowers)

    def variances(self, columns: NDArray[np.float64], prior: FloatArray) -> FloatArray:
        """Variances by k_m(x) (m, r) and k(x, x) (r,): (r, t); covariances (r, t, t) of columns that hang together.

        Variances that overflow are infinite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return known(self._variances(columns, prior))

    def _variances(self, columns: NDArray[np.float64], prior: FloatArray) -> FloatArray:
        phi = whiten(self.kernel_lower, columns, transposed=False)
        unexplained = np.maximum(prior - np.einsum("mr,mr->r", phi, phi), 0.0)
        if not self.coupled:
            solved = (whiten(lower, phi, transposed=False) for lower in self.posterior_lowers)
            explained = np.stack([np.einsum("mr,mr->r", half, half) for half in solved], axis=1)
            return np.asarray((unexplained[:, None] + explained) / self.regularisation)
        (m, r), t = phi.shape, self.columns
        blocks = []
        for column in range(t):
            right = np.zeros((t * m, r))
            right[column * m : (column + 1) * m] = phi
            blocks.append(whiten(self.posterior_lowers[0], right, transposed=False))
        covariance = np.empty((r, t, t))
        for column in range(t):
            for second in range(column + 1):
                entry = np.einsum("qr,qr->r", blocks[column], blocks[second])
                covariance[:, column, second] = covariance[:, second, column] = entry
        covariance[:, np.arange(t), np.arange(t)] += unexplained[:, None]
        return covariance / self.regularisation
