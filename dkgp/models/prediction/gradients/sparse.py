"""Gradients of a sparse model's predictions in their inputs: of its mean, with a proven bound, and of its deviation.

The basis' mean is f(x) = k_m(x)' beta. What is proven of it, |f - f*|_H <= sqrt(2 w) for the exact mean f*, holds of
its derivatives by their norm: |df / dx_l - df* / dx_l| <= G_l(x) sqrt(2 w). With phi = L^-1 k_m(x) the method's
variance is |C^-1 phi|^2, with k(x, x) - |phi|^2 added but by the subset of regressors, so that

    dV / dx_l = dk(x, x) / dx_l + 2 (dk_m / dx_l)' L^-T (C^-T C^-1 phi - phi).

A model with neighbours predicts by these too: its derivatives are those of `NearPredictor`. The bound on its mean's is
the bound of f's and the distance between the two.
"""

from __future__ import annotations

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.models.certificate import slope_rounding
from dkgp.models.prediction.gradients.exact import DeviationGradients, Gradients, in_units
from dkgp.models.prediction.predictor import standardised
from dkgp.models.rounding import EPS, known
from dkgp.models.sparse.stored import OpenedSparse
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.pivots import whiten

# Test samples that are taken at a time.
PIECE_ROWS = 256


class SparseGradientPredictor:
    """Gradients of a sparse model's mean at rows in memory.

    Raises `InputError` for a kernel without gradient.
    """

    nbytes = 0  # in a worker's cache: little beside the model

    def __init__(self, opened: OpenedSparse) -> None:
        self._opened, model = opened, opened.model
        self._slopes = SlopeEvaluator(model.kernel)
        self._columns = self._slopes.coordinates(model.prototypes)
        self._errors = float(self._slopes.sizes(model.prototypes).errors.max())

    def __call__(self, inputs: FloatArray) -> Gradients:
        """Differentiate the mean at raw inputs: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        record, model, certificate = self._opened.record, self._opened.model, self._opened.certificate
        rows = standardised(record, inputs)
        parts = []
        for start in range(0, max(1, len(rows)), PIECE_ROWS):
            piece = rows[start : start + PIECE_ROWS]
            sizes = self._slopes.sizes(piece)
            distance = np.sqrt(2.0 * certificate.excess) * (1.0 + 8.0 * EPS)
            magnitude = np.asarray(certificate.magnitude)
            bound = sizes.slope[:, None, :] * distance[:, None]
            bound = bound + slope_rounding(sizes, self._errors, self._slopes.leaves, model.m, magnitude)
            parts.append((self._slopes.sums(piece, self._columns, model.weights), known(bound)))
        gradient, bound = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if self._opened.near_predictor is not None:
            near = self._opened.near_predictor.slopes(rows, self._slopes, self._columns, of_variance=False)
            # A difference of two numbers, and a sum.
            gradient, bound = near, known((np.abs(near - gradient) + bound) * (1.0 + 4.0 * EPS))
        return Gradients(*in_units(record, gradient, bound, inputs.shape[1]))


class SparseDeviationPredictor:
    """Gradients of a sparse model's own deviation, noise included unless `latent`.

    Raises `InputError` for a kernel without gradient.
    """

    nbytes = 0  # as above

    def __init__(self, opened: OpenedSparse, *, latent: bool) -> None:
        self._opened, model = opened, opened.model
        self._slopes = SlopeEvaluator(model.kernel)
        self._columns = self._slopes.coordinates(model.prototypes)
        self._noise = 0.0 if latent else opened.record.noise_variance

    def __call__(self, inputs: FloatArray) -> DeviationGradients:
        """As of `SparseGradientPredictor`."""
        record, model = self._opened.record, self._opened.model
        rows = standardised(record, inputs)
        near = self._opened.near_predictor
        if near is None:
            variance, steepness = model.variance(rows), self._steepness(rows)
        else:
            _, variance, _ = near.predicted(rows, None)
            steepness = near.slopes(rows, self._slopes, self._columns, of_variance=True)[:, 0]
        if model.method.variance != "regressors":
            steepness = steepness + self._slopes.sizes(rows).along
        variance = variance + self._noise
        deviation = np.sqrt(variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(deviation[:, None] > 0.0, steepness / deviation[:, None], 0.0)
        gradient, _ = in_units(record, slopes[:, None, :], np.zeros((len(rows), 1, rows.shape[1])), inputs.shape[1])
        return DeviationGradients(deviation[:, None] * np.asarray(record.standardisation.target_std), gradient, None)

    def _steepness(self, rows: FloatArray) -> FloatArray:
        """Half of the basis' dV / dx at standardised rows, without that of k(x, x): (r, d)."""
        model = self._opened.model
        weights, steepness = np.empty((model.m, len(rows))), np.empty(rows.shape)
        evaluator = model.evaluator()
        prototypes = evaluator.prepare(model.prototypes)
        for start in range(0, len(rows), PIECE_ROWS):
            where = slice(start, start + PIECE_ROWS)
            weights[:, where] = self._weights(evaluator.tile(prototypes, evaluator.prepare(rows[where])))
        for i in range(len(rows)):
            of_row = np.ascontiguousarray(weights[:, i : i + 1])
            steepness[i] = self._slopes.sums(rows[i : i + 1], self._columns, of_row)[0, 0]
        return steepness

    def _weights(self, columns: FloatArray) -> FloatArray:
        """L^-T (C^-T C^-1 phi - phi) of columns k_m (m, r); of the subset of regressors without the last term."""
        model = self._opened.model
        with single_threaded_blas():
            phi = np.asarray(whiten(model.lower, columns, transposed=False))
            result = np.zeros_like(phi)
            if model.normal is not None:
                result += whiten(model.normal, whiten(model.normal, phi, transposed=False), transposed=True)
            if model.normal is None or model.method.variance != "regressors":
                result -= phi
            return np.asarray(whiten(model.lower, result, transposed=True))
