"""Sparse GPs by their formulas (Rasmussen and Williams, chapter 8), densely and without whitening.

Q = K_nm K_mm^-1 K_mn; every model is a Gaussian with covariance Q, or K_SS, of the samples and noise Lambda.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.kernels import Kernel


@dataclass(frozen=True)
class Dense:
    """A problem and its basis."""

    kernel: Kernel
    X: np.ndarray
    y: np.ndarray
    noise: np.ndarray
    Z: np.ndarray
    T: np.ndarray

    def low_rank(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Q between two sets of inputs."""
        k = self.kernel
        return np.asarray(k(left, self.Z) @ np.linalg.solve(k(self.Z, self.Z), k(self.Z, right)))

    def lam(self, fitc: bool) -> np.ndarray:
        """The variances of the samples' noise."""
        left = self.kernel.diagonal(self.X) - np.diag(self.low_rank(self.X, self.X))
        return self.noise + left if fitc else self.noise

    def predictive(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean (t, p) and variance of the function (t,)."""
        lam = self.lam(name == "fitc")
        across = self.low_rank(self.T, self.X)
        inverse = np.linalg.inv(self.low_rank(self.X, self.X) + np.diag(lam))
        prior = np.diag(self.low_rank(self.T, self.T)) if name == "sr" else self.kernel.diagonal(self.T)
        return across @ inverse @ self.y, prior - np.einsum("tn,nk,tk->t", across, inverse, across)

    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the exact model."""
        across = self.kernel(self.T, self.X)
        inverse = np.linalg.inv(self.kernel(self.X, self.X) + np.diag(self.noise))
        return across @ inverse @ self.y, self.kernel.diagonal(self.T) - np.einsum(
            "tn,nk,tk->t", across, inverse, across
        )
