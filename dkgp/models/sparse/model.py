"""A sparse model: m basis samples, their weights, and two triangles; it predicts without the training set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.models.rounding import known
from dkgp.models.sparse.methods import SparseMethod
from dkgp.models.sums import finite_sums
from dkgp.operators.base import FloatArray
from dkgp.operators.cross.runs import piece_rows
from dkgp.operators.low_rank.landmark_rows import whiten

__all__ = ["SparseModel"]


@dataclass(frozen=True)
class SparseModel:
    """A fitted sparse GP, on the standardised scale.

    Attributes
    ----------
    method : SparseMethod
    kernel : Kernel
    prototypes : (m, d) float64
        Basis samples Z.
    weights : (m, p) float64
        beta: the mean at x is k_m(x)' beta.
    lower : (m, m) float64, Fortran order
        L L' = K_mm and a jitter; of the subset of data, K_SS and its noise.
    normal : (m, m) float64, Fortran order, or None
        C C' = I + F'DF; None of the subset of data.
    centre : (d,) float64 or None
        Of the inputs; see `TileEvaluator`.
    """

    method: SparseMethod
    kernel: Kernel
    prototypes: FloatArray
    weights: FloatArray
    lower: FloatArray
    normal: FloatArray | None
    centre: FloatArray | None = None

    @property
    def m(self) -> int:
        """Basis samples."""
        return len(self.prototypes)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = [self.prototypes, self.weights, self.lower, self.normal]
        return sum(array.nbytes for array in arrays if array is not None)

    def mean(self, inputs: FloatArray) -> FloatArray:
        """k_m(x)' beta for standardised inputs (r, d): (r, p)."""
        evaluator = self.evaluator()
        prototypes = evaluator.prepare(self.prototypes)
        return finite_sums(evaluator.matmat(self._rows(evaluator, inputs), prototypes, self.weights), inputs)

    def variance(self, inputs: FloatArray) -> FloatArray:
        """The method's own variance of the function at inputs (r, d): (r,); an observation's has its noise besides."""
        evaluator = self.evaluator()
        prototypes, rows = evaluator.prepare(self.prototypes), self._rows(evaluator, inputs)
        result = np.empty(len(inputs))
        longest = piece_rows(self.m)
        # Where k(x, x) overflows so does the variance.
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(inputs), longest):
                stop = min(start + longest, len(inputs))
                phi = whiten(self.lower, evaluator.tile(prototypes, rows.slice(start, stop)), transposed=False)
                result[start:stop] = self._variance(phi, inputs[start:stop])
        return known(result)

    def _variance(self, phi: FloatArray, inputs: FloatArray) -> FloatArray:
        """From phi = L^-1 k_m (m, r)."""
        explained = np.zeros(phi.shape[1])
        if self.normal is not None:
            solved = whiten(self.normal, phi, transposed=False)
            explained = np.einsum("mr,mr->r", solved, solved)
            if self.method.variance == "regressors":
                return np.asarray(explained)
        prior = np.asarray(self.kernel.diagonal(inputs), dtype=np.float64)
        return np.asarray(np.maximum(prior - np.einsum("mr,mr->r", phi, phi), 0.0) + explained)

    def evaluator(self) -> TileEvaluator:
        """The kernel's tiles in float64, about the model's centre."""
        return TileEvaluator(self.kernel, "double", centre=self.centre)

    def _rows(self, evaluator: TileEvaluator, inputs: FloatArray) -> Features:
        if inputs.ndim != 2 or inputs.shape[1] != self.kernel.n_features:
            raise InputError(f"expected inputs of shape (r, {self.kernel.n_features}); got {inputs.shape}")
        return evaluator.prepare(inputs)
