"""What is proven about a fitted model, from its float64 residual alone.

For any alpha with residual r = y - Kbar alpha, the predictive mean m(x) = k_x' alpha misses the exact one by k_x'
Kbar^-1 r. Since k_x' Kbar^-1 k_x <= k(x, x) and Kbar^-1 <= I / s2, Cauchy's inequality in the Kbar^-1 inner product
gives

    |m(x) - m_exact(x)| <= sqrt(k(x, x)) ||r|| / s,        s2 = s^2 the noise variance,

at every x, without knowing the exact solution. Float64 rounding of r and of the prediction is bounded and added; so is
what an approximate product (tree sums) may be off by where r was had from one.

An entry of Kbar is at most sqrt(Kbar_ii Kbar_jj), and its rounding error in proportion to that. Where k(x, x) is not
the same everywhere, the bounds are weighed by w_i = sqrt(Kbar_ii / max Kbar_jj): a few samples far out, where a
polynomial kernel is huge, then say nothing of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.kernels.compiled import FLUSH_COLUMNS
from dkgp.models.rounding import ENTRY_ERROR
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
        Bound on the float64 rounding error of one entry of Kbar alpha_t, or of one predicted mean; over its weight,
        where there are weights.
    n : int
        Number of samples.
    largest : float or None
        max Kbar_ii, the value of weight one, where k(x, x) varies; None for a stationary kernel: all weights are one.
    weight_norm : float or None
        Length of the vector of the samples' weights; None likewise.
    product_error : float
        Bound on the error of one entry of Kbar alpha by an approximate operator; 0 where the product was exact.
    """

    noise_variance: float
    residual_norm: tuple[float, ...]
    rounding: tuple[float, ...]
    n: int
    product_error: float = 0.0
    largest: float | None = None
    weight_norm: float | None = None

    @classmethod
    def of(
        cls,
        alpha: FloatArray,
        gradient: FloatArray,
        noise_variance: float,
        kernel_diagonal: float | FloatArray,
        product_error: float = 0.0,
        entry_error: float = ENTRY_ERROR,
    ) -> Certificate:
        """Certify `alpha` (n, p) by its float64 gradient g = Kbar alpha - y (n, p), entries good to `product_error`.

        `kernel_diagonal` is k(x, x): one number where it is the same everywhere, one for each sample (n,) elsewhere.
        """
        n = alpha.shape[0]
        largest, weights = float(np.max(kernel_diagonal)) + noise_variance, None
        if np.ndim(kernel_diagonal):
            weights = np.sqrt((np.asarray(kernel_diagonal) + noise_variance) / largest)
        magnitudes = np.abs(alpha) if weights is None else weights[:, None] * np.abs(alpha)
        # A sum of n products k_j alpha_j: FLUSH_COLUMNS additions inside a run, n / FLUSH_COLUMNS runs, and a kernel
        # value that is good to a few eps itself; each error is at most eps * v * sum |alpha|.
        additions = FLUSH_COLUMNS + n / FLUSH_COLUMNS + 16 + (entry_error - ENTRY_ERROR)
        rounding = additions * _EPS * largest * np.sum(magnitudes, axis=0)
        return cls(
            float(noise_variance),
            tuple(float(v) for v in np.linalg.norm(gradient, axis=0)),
            tuple(float(v) for v in rounding),
            n,
            float(product_error),
            None if weights is None else largest,
            None if weights is None else float(np.linalg.norm(weights)),
        )

    @property
    def proven_residual_norm(self) -> FloatArray:
        """Upper bounds on the exact ||r_t||, rounding and the product's error included: (p,)."""
        rounding, residual_norm = np.asarray(self.rounding), np.asarray(self.residual_norm)
        if self.weight_norm is None:
            bound: FloatArray = residual_norm + np.sqrt(self.n) * (rounding + self.product_error)
            return bound
        return np.asarray(residual_norm + self.weight_norm * rounding + np.sqrt(self.n) * self.product_error)

    def mean_error_bound(self, prior_variance: FloatArray) -> FloatArray:
        """Bound on |m(x) - m_exact(x)| for test samples with k(x, x) = `prior_variance` (r,): (r, p), standardised."""
        factor = self.proven_residual_norm / np.sqrt(self.noise_variance)
        scale = np.sqrt(prior_variance)[:, None]
        weight = 1.0 if self.largest is None else scale / np.sqrt(self.largest)
        bound: FloatArray = scale * factor + weight * np.asarray(self.rounding)
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
            "product_error": self.product_error,
            **({} if self.largest is None else {"largest": self.largest, "weight_norm": self.weight_norm}),
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
            float(document.get("product_error", 0.0)),
            document.get("largest"),
            document.get("weight_norm"),
        )
