"""Latent functions of a Gaussian process classifier on a basis: Laplace's variances at new inputs.

    Var f(x) = (k(x, x) - |phi|^2 + phi'(I + F'WF / lambda)^-1 phi) / lambda,    phi = L^-1 k_m(x),

what the basis leaves of the prior's variance, and what the samples leave of the basis' own. Of softmax the classes'
values have a covariance, whose diagonal holds the first term for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.landmark_rows import whiten

__all__ = ["BasisPosterior"]


@dataclass(frozen=True)
class BasisPosterior:
    """Factors of a posterior.

    Attributes
    ----------
    kernel_lower : (m, m) float64, Fortran order
        L.
    posterior_lowers : tuple of arrays, Fortran order
        (m, m) of each column, or one (t m, t m) of columns that hang together.
    columns : int
        t.
    regularisation : float
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
        """Variances by k_m(x) (m, r) and k(x, x) (r,): (r, t); covariances (r, t, t) of columns that hang together."""
        phi = whiten(self.kernel_lower, columns, transposed=False)
        left = np.maximum(prior - np.einsum("mr,mr->r", phi, phi), 0.0)
        if not self.coupled:
            solved = (whiten(lower, phi, transposed=False) for lower in self.posterior_lowers)
            own = np.stack([np.einsum("mr,mr->r", each, each) for each in solved], axis=1)
            return np.asarray((left[:, None] + own) / self.regularisation)
        (m, r), t = phi.shape, self.columns
        blocks = []
        for column in range(t):
            right = np.zeros((t * m, r))
            right[column * m : (column + 1) * m] = phi
            blocks.append(whiten(self.posterior_lowers[0], right, transposed=False))
        covariance = np.empty((r, t, t))
        for column in range(t):
            for other in range(column + 1):
                entry = np.einsum("qr,qr->r", blocks[column], blocks[other])
                covariance[:, column, other] = covariance[:, other, column] = entry
        covariance[:, np.arange(t), np.arange(t)] += left[:, None]
        return covariance / self.regularisation
