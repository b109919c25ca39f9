"""What is proven about a fitted model, from its float64 residual alone.

For any alpha with residual r = y - Kbar alpha, the predictive mean m(x) = k_x' alpha misses the exact one by k_x'
Kbar^-1 r. Since k_x' Kbar^-1 k_x <= k(x, x) and Kbar^-1 <= I / s2, Cauchy's inequality in the Kbar^-1 inner product
gives

    |m(x) - m_exact(x)| <= sqrt(k(x, x)) ||r|| / s,        s2 = s^2 the noise variance,

at every x, without knowing the exact solution. Float64 rounding of r and of the prediction is bounded and added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.kernels.compiled import FLUSH_COLUMNS
from dkgp.operators.base import FloatArray

__all__ = ["Certificate"]

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Certificate:
    """Bounds on a solution and on the means predicted from it, on the standardised scale.

    Attributes
    ----------
    noise_variance : float
        s2.
    residual_norm : tuple of p floats
        ||y_t - Kbar alpha_t|| for each target t, evaluated in float64.
    rounding : tuple of p floats
        Bound on the float64 rounding error of one entry of Kbar alpha_t, or of one predicted mean.
    n : int
        Number of samples.
    """

    noise_variance: float
    residual_norm: tuple[float, ...]
    rounding: tuple[float, ...]
    n: int

    @classmethod
    def of(
        cls, alpha: FloatArray, gradient: FloatArray, noise_variance: float, largest_kernel_value: float
    ) -> Certificate:
        """Certify `alpha` (n, p) by its float64 gradient g = Kbar alpha - y (n, p)."""
        n = alpha.shape[0]
        # A sum of n products k_j alpha_j: FLUSH_COLUMNS additions inside a run, n / FLUSH_COLUMNS runs, and a kernel
        # value that is good to a few eps itself; each error is at most eps * v * sum |alpha|.
        additions = FLUSH_COLUMNS + n / FLUSH_COLUMNS + 16
        rounding = additions * _EPS * (largest_kernel_value + noise_variance) * np.sum(np.abs(alpha), axis=0)
        return cls(
            float(noise_variance),
            tuple(float(v) for v in np.linalg.norm(gradient, axis=0)),
            tuple(float(v) for v in rounding),
            n,
        )

    @property
    def proven_residual_norm(self) -> FloatArray:
        """Upper bounds on the exact ||r_t||, rounding included: (p,)."""
        bound: FloatArray = np.asarray(self.residual_norm) + np.sqrt(self.n) * np.asarray(self.rounding)
        return bound

    def mean_error_bound(self, prior_variance: FloatArray) -> FloatArray:
        """Bound on |m(x) - m_exact(x)| for test samples with k(x, x) = `prior_variance` (r,): (r, p), standardised."""
        factor = self.proven_residual_norm / np.sqrt(self.noise_variance)
        bound: FloatArray = np.sqrt(prior_variance)[:, None] * factor + np.asarray(self.rounding)
        return bound

    @property
    def alpha_error_bound(self) -> FloatArray:
        """Bound on ||alpha_t - alpha_exact_t|| <= ||r_t|| / s2: (p,)."""
        bound: FloatArray = self.proven_residual_norm / self.noise_variance
        return bound

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with the derived bounds for readers."""
        return {
            "noise_variance": self.noise_variance,
            "n": self.n,
            "residual_norm": list(self.residual_norm),
            "rounding": list(self.rounding),
            "mean_error_bound_at_unit_variance": self.mean_error_bound(np.ones(1))[0].tolist(),
            "alpha_error_bound": self.alpha_error_bound.tolist(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Certificate:
        """Rebuild from `to_json`."""
        return cls(
            float(document["noise_variance"]),
            tuple(document["residual_norm"]),
            tuple(document["rounding"]),
            int(document["n"]),
        )
