"""A sparse model: m basis samples, their weights, and two triangles; it predicts without the training set.

A proven interval of the exact model's variance from a sparse model alone: O(m^2) a sample, and no training set.

From above: the exact model of fewer samples is less certain, so its variance V_S on the basis samples is never below V;
nor is k(x, x). From below: K = Q + E is the covariance of a sum of two independent functions. Knowing the second one
besides makes the first no less certain, whose variance given the samples is the subset of regressors' |C^-1 phi|^2; so
V is never below that.

Roundings: the subset's matrix gets a jitter that makes its factor's product at least the exact one (see `jitter`), and
more noise never makes a variance smaller. C C' differs from the exact I + F'DF by h in norm, no eigenvalue of which is
below one, so the exact quadratic form is at least 1 / (1 + h / (1 - h)) of that by C. Triangular solves by `Whitening`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.models.rounding import EPS, EVALUATION, UNIT, known
from dkgp.models.sparse.errors import Points
from dkgp.models.sparse.methods import SparseMethod
from dkgp.models.sums import finite_sums
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.cross.tasks import piece_rows
from dkgp.operators.low_rank.pivots import jittered, whiten


@dataclass(frozen=True)
class SparseModel:
    """A fitted sparse GP, on the standardised scale; of one with neighbours the part that its basis has."""

    method: SparseMethod
    kernel: Kernel
    prototypes: FloatArray  # (m, d): basis samples Z
    weights: FloatArray  # (m, p): beta: the mean at x is k_m(x)' beta
    lower: FloatArray  # (m, m), Fortran order: L L' = K_mm and a jitter; of the subset of data, K_SS and its noise
    normal: FloatArray | None  # (m, m), Fortran order: C C' = I + F'DF; None of the subset of data
    centre: FloatArray | None = None  # (d,): of the inputs; see `TileEvaluator`

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


# Beyond it an end from below would be worth little.
LARGEST_NORMAL_SHARE = 0.5


@dataclass(frozen=True)
class Triangle:
    """A Cholesky factor at prototypes, and how errors grow on their way through it."""

    lower: FloatArray  # (m, m), Fortran order
    whitening: Whitening  # with the prototypes' s

    def solve(self, columns: FloatArray, points: Points, prototype_error: float) -> tuple[FloatArray, FloatArray]:
        """phi = L^-1 k_m(x) for columns (m, r), and how far each is off at most: (m, r) and (r,)."""
        phi = np.asarray(whiten(self.lower, columns, transposed=False))
        off = self.whitening.solving * np.linalg.norm(phi, axis=0)
        off += self.whitening.entries * EPS * points.scale * (points.errors + prototype_error)
        return phi, np.asarray(EVALUATION * off)


def subset_triangle(
    evaluator: TileEvaluator, features: Features, prototypes: Points, noise: Variances
) -> Triangle | None:
    """The factor of K_SS and its noise, with a jitter that makes it no smaller; None where it proves nothing."""
    matrix = np.array(evaluator.tile(features, features))
    matrix[np.diag_indices(len(matrix))] += noise
    lower = scipy.linalg.cholesky(
        jittered(matrix, 2.0 * float(prototypes.errors.max())), lower=True, check_finite=False
    )
    whitening = Whitening.of(lower, prototypes.scale)
    return None if whitening is None else Triangle(np.asfortranarray(lower), whitening)


@dataclass(frozen=True)
class VarianceInterval:
    """Bounds on the exact variance of the function; see `interval_of`."""

    model: SparseModel
    evaluator: TileEvaluator
    features: Features  # the prototypes'
    prototypes: Points  # the prototypes
    subset: Triangle | None  # of K_SS and its noise; None where the prototypes are no samples
    regressors: Triangle | None  # L; None where it is too ill-conditioned to prove anything
    normal: Whitening | None  # of C
    normal_share: float  # h: what C C' may differ by from I + F'DF, in norm

    # What overflows or comes to no number proves nothing: `_least` takes 0 for it.
    @np.errstate(over="ignore", invalid="ignore")
    def __call__(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends at standardised inputs (r, d): (r,) each."""
        points = Points.of(self.model.kernel, self.evaluator, inputs)
        columns = np.asarray(self.evaluator.tile(self.features, self.evaluator.prepare(inputs)))
        worst = float(self.prototypes.errors.max())
        lower, upper = np.zeros(len(inputs)), points.highest.copy()
        with single_threaded_blas():
            if self.subset is not None:
                phi, off = self.subset.solve(columns, points, worst)
                upper = np.minimum(upper, points.highest - _least(phi, off) ** 2 * (1.0 - 4.0 * EPS))
            if self.regressors is not None and self.normal is not None and self.model.normal is not None:
                phi, off = self.regressors.solve(columns, points, worst)
                solved = np.asarray(whiten(self.model.normal, phi, transposed=False))
                # |C^-1| is at most 1 / sqrt(1 - h).
                off = off / np.sqrt(1.0 - self.normal_share)
                off += EVALUATION * self.normal.solving * np.linalg.norm(solved, axis=0)
                share = 1.0 + self.normal_share / (1.0 - self.normal_share)
                lower = _least(solved, off) ** 2 / share * (1.0 - 4.0 * EPS)
        upper = np.nextafter(np.maximum(upper, 0.0), np.inf)
        return np.minimum(np.nextafter(lower, -np.inf), upper), upper


def interval_of(model: SparseModel, noise: Variances | None, normal_share: float) -> VarianceInterval:
    """Make what an interval takes: a few m^3 multiply-adds.

    `noise`: of the basis samples; None where they are none of the training set. `normal_share`: see
    `SparseCertificate`.
    """
    evaluator = TileEvaluator(model.kernel, "double", centre=model.centre)
    features = evaluator.prepare(model.prototypes)
    prototypes = Points.of(model.kernel, evaluator, model.prototypes)
    with single_threaded_blas():
        subset = None if noise is None else subset_triangle(evaluator, features, prototypes, noise)
        regressors = normal = None
        # FITC counts more noise, and is less certain than the subset of regressors.
        if model.normal is not None and not model.method.fitc and normal_share < LARGEST_NORMAL_SHARE:
            whitening = Whitening.of(model.lower, prototypes.scale)
            regressors = None if whitening is None else Triangle(model.lower, whitening)
            normal = Whitening.of(model.normal, np.ones(model.m))
    return VarianceInterval(model, evaluator, features, prototypes, subset, regressors, normal, normal_share)


def _least(vectors: FloatArray, off: FloatArray) -> FloatArray:
    """The least length that vectors (m, r) may have, each as far off as `off` says."""
    m = len(vectors)
    # `fmax` takes 0 for what is no number: nothing is known of it.
    return np.asarray(np.fmax(np.linalg.norm(vectors, axis=0) * (1.0 - (m + 4) * UNIT) - off, 0.0))
