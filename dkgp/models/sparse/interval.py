"""A proven interval of the exact model's variance from a sparse model alone: O(m^2) a sample, and no training set.

From above: the exact model of fewer samples is less certain, so its variance V_S on the basis samples is never below V;
nor is k(x, x). From below: K = Q + E is the covariance of a sum of two independent functions. Who is told the second
one besides is no less certain of the first, and the first one's variance given the samples is the subset of regressors'
|C^-1 phi|^2; so V is never below that.

Roundings: the subset's matrix gets a jitter that makes its factor's product at least the exact one (see `jitter`), and
more noise never makes a variance smaller. C C' differs from the exact I + F'DF by h in norm, no eigenvalue of which is
below one, so the exact quadratic form is at least 1 / (1 + h / (1 - h)) of that by C. Triangular solves by `Whitening`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels import Features, TileEvaluator
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.sparse.errors import Points
from dkgp.models.sparse.model import SparseModel
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, Noise
from dkgp.operators.low_rank.landmark_rows import whiten
from dkgp.operators.low_rank.pivots import jittered

__all__ = ["Triangle", "VarianceInterval", "interval_of", "subset_triangle"]

# Beyond it an end from below would be worth little.
LARGEST_NORMAL_SHARE = 0.5


@dataclass(frozen=True)
class Triangle:
    """A Cholesky factor at prototypes, and how errors grow on their way through it.

    Attributes
    ----------
    lower : (m, m) float64, Fortran order
    whitening : Whitening
        With the prototypes' s.
    """

    lower: FloatArray
    whitening: Whitening

    def solve(self, columns: FloatArray, points: Points, own_error: float) -> tuple[FloatArray, FloatArray]:
        """phi = L^-1 k_m(x) for columns (m, r), and how far each is off at most: (m, r) and (r,)."""
        phi = np.asarray(whiten(self.lower, columns, transposed=False))
        off = self.whitening.solving * np.linalg.norm(phi, axis=0)
        off += self.whitening.entries * EPS * points.scale * (points.errors + own_error)
        return phi, np.asarray(EVALUATION * off)


def subset_triangle(evaluator: TileEvaluator, features: Features, own: Points, noise: Noise) -> Triangle | None:
    """The factor of K_SS and its noise, with a jitter that makes it no smaller; None where it proves nothing."""
    matrix = np.array(evaluator.tile(features, features))
    matrix[np.diag_indices(len(matrix))] += noise
    lower = scipy.linalg.cholesky(jittered(matrix, 2.0 * float(own.errors.max())), lower=True, check_finite=False)
    whitening = Whitening.of(lower, own.scale)
    return None if whitening is None else Triangle(np.asfortranarray(lower), whitening)


@dataclass(frozen=True)
class VarianceInterval:
    """Bounds on the exact variance of the function; see `interval_of`.

    Attributes
    ----------
    model : SparseModel
    evaluator : TileEvaluator
    features : Features
        The prototypes'.
    own : Points
        The prototypes.
    subset : Triangle or None
        Of K_SS and its noise; None where the prototypes are no samples.
    regressors : Triangle or None
        L; None where nothing can be told from it.
    normal : Whitening or None
        Of C.
    normal_share : float
        h: what C C' may differ by from I + F'DF, in norm.
    """

    model: SparseModel
    evaluator: TileEvaluator
    features: Features
    own: Points
    subset: Triangle | None
    regressors: Triangle | None
    normal: Whitening | None
    normal_share: float

    # What overflows or comes to no number proves nothing: `_least` takes 0 for it.
    @np.errstate(over="ignore", invalid="ignore")
    def __call__(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends at standardised inputs (r, d): (r,) each."""
        points = Points.of(self.model.kernel, self.evaluator, inputs)
        columns = np.asarray(self.evaluator.tile(self.features, self.evaluator.prepare(inputs)))
        worst = float(self.own.errors.max())
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


def interval_of(model: SparseModel, noise: Noise | None, normal_share: float) -> VarianceInterval:
    """Make what an interval takes: a few m^3 multiply-adds.

    Parameters
    ----------
    model : SparseModel
    noise : float or (m,) float64, or None
        Of the basis samples; None where they are none of the training set.
    normal_share : float
        See `SparseCertificate`.
    """
    evaluator = TileEvaluator(model.kernel, "double", centre=model.centre)
    features = evaluator.prepare(model.prototypes)
    own = Points.of(model.kernel, evaluator, model.prototypes)
    with single_threaded_blas():
        subset = None if noise is None else subset_triangle(evaluator, features, own, noise)
        regressors = normal = None
        # FITC counts more noise, and is less certain than the subset of regressors.
        if model.normal is not None and not model.method.fitc and normal_share < LARGEST_NORMAL_SHARE:
            whitening = Whitening.of(model.lower, own.scale)
            regressors = None if whitening is None else Triangle(model.lower, whitening)
            normal = Whitening.of(model.normal, np.ones(model.m))
    return VarianceInterval(model, evaluator, features, own, subset, regressors, normal, normal_share)


def _least(vectors: FloatArray, off: FloatArray) -> FloatArray:
    """The least length that vectors (m, r) may have, each as far off as `off` says."""
    m = len(vectors)
    # `fmax` takes 0 for what is no number: nothing is known of it.
    return np.asarray(np.fmax(np.linalg.norm(vectors, axis=0) * (1.0 - (m + 4) * UNIT) - off, 0.0))
