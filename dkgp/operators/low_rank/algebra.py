"""The algebra of a partial Cholesky factor, the same wherever its rows lie: how they are made, and how M^-1 is applied.

With landmarks I and L L' = K_II (a jitter included), F = K_nI L^-T gives Q = F F' <= K, and by Woodbury's identity

    M = Q + s2 I,    M^-1 r = (r - F z) / s2,    z = (F'F + s2 I)^-1 F' r.

F lies with the workers, a row block each, for a solve that all of them share (`LowRankFactor`), and whole in a process
that solves by itself (`FactorRows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.linalg
from numpy.typing import DTypeLike, NDArray

from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas, lapack
from dkgp.operators.low_rank.pivots import jittered, regularised_factor

__all__ = ["Factor", "LandmarkTriangle", "LowRankPreconditioner"]


@dataclass(frozen=True)
class LandmarkTriangle:
    """L of the landmarks, and their prepared inputs: what rows of F are made with.

    Attributes
    ----------
    lower : (R, R) float32 or float64, Fortran order
    features : Features
    """

    lower: NDArray[Any]
    features: Features

    @classmethod
    def of(cls, evaluator: TileEvaluator, inputs: FloatArray, dtype: DTypeLike = np.float64) -> LandmarkTriangle:
        """Factor K_II of landmarks (R, d), evaluated and factored in float64.

        Raises
        ------
        numpy.linalg.LinAlgError
            It is not numerically positive definite, for all that the jitter does.
        """
        features = evaluator.prepare(inputs)
        errors = evaluator.row_errors(inputs)
        matrix = jittered(np.array(evaluator.tile(features, features)), 2.0 * float(errors.max()))
        lower = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        return cls(np.asfortranarray(lower, dtype=dtype), features)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.lower.nbytes + self.features.nbytes

    def columns(self, evaluator: TileEvaluator, rows: Features) -> NDArray[Any]:
        """L^-1 K_Ib, the rows b of F as columns: (R, b) in L's type."""
        kernel = np.asfortranarray(evaluator.tile(rows, self.features).T, dtype=self.lower.dtype)
        rank, count = kernel.shape
        blas("trsm", b"L", b"L", b"N", b"N", rank, count, 1.0, self.lower, rank, kernel, rank)
        return kernel


class Factor(Protocol):
    """F, wherever it lies."""

    @property
    def rank(self) -> int:
        """Landmarks, R."""

    def gram(self) -> FloatArray:
        """F' F: (R, R)."""

    def project(self, vectors: FloatArray) -> FloatArray:
        """F' V for V (n, t): (R, t)."""

    def expand(self, weights: FloatArray) -> FloatArray:
        """F Z for Z (R, t): (n, t), a new array."""


class LowRankPreconditioner:
    """M^-1.

    Parameters
    ----------
    factor : Factor
    noise_variance : float
        s2.
    lower : (R, R), optional
        Cholesky factor of F'F + s2 I where it is there already, in Fortran order; its type is that of z.
    """

    def __init__(self, factor: Factor, noise_variance: float, lower: NDArray[Any] | None = None) -> None:
        self._factor, self._noise_variance = factor, noise_variance
        self.lower = regularised_factor(factor.gram(), noise_variance) if lower is None else lower

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return self._factor.rank

    def weights(self, projected: FloatArray) -> NDArray[Any]:
        """(F'F + s2 I)^-1 A for A (R, t): z where A is F' r."""
        z = np.array(projected, dtype=self.lower.dtype, order="F")
        lapack("potrs", b"L", self.rank, z.shape[1], self.lower, self.rank, z, self.rank)
        return z

    def solve(self, residual: FloatArray) -> tuple[FloatArray, NDArray[Any]]:
        """M^-1 r for r (n, t), and the z that it comes from: (n, t) and (R, t)."""
        z = self.weights(self._factor.project(residual))
        result = self._factor.expand(z)
        np.subtract(residual, result, out=result)
        result /= self._noise_variance
        return result, z

    def apply(self, residual: FloatArray) -> FloatArray:
        """M^-1 r for r (n, t)."""
        return self.solve(residual)[0]
