"""Gradients of an estimator's predictions in its inputs, in the units of inputs and targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.data.types import FloatArray
from dkgp.estimators.fitted import Fitted, FittedModel, FittedSparse
from dkgp.models.prediction.class_predictor import ClassPredicted
from dkgp.models.prediction.gradients.exact import DeviationPredictor, GradientPredictor
from dkgp.models.prediction.gradients.sparse import SparseDeviationPredictor, SparseGradientPredictor


class PredictionGradients(NamedTuple):
    """Predictions and their gradients in the inputs, in the units of inputs and targets.

    Arrays of float64: values (r,) and gradients (r, d), with several targets (r, p) and (r, p, d). What was not asked
    for is None.

    Attributes
    ----------
    mean, mean_error
        The mean, and a proven bound on how far it is from the exact Gaussian process's.
    mean_gradient, mean_gradient_error
        d mean / d x_l, and a proven bound on how far each derivative is from the exact Gaussian process's.
    std, std_gradient : ndarray or None
        The standard deviation and its derivatives.
    std_gradient_error : ndarray or None
        Bound on what the derivatives are off from the exact Gaussian process's. None of a sparse model, whose
        deviations are its own.
    """

    mean: FloatArray
    mean_error: FloatArray
    mean_gradient: FloatArray
    mean_gradient_error: FloatArray
    std: FloatArray | None = None
    std_gradient: FloatArray | None = None
    std_gradient_error: FloatArray | None = None


def prediction_gradients(
    fitted: Fitted, inputs: Any, *, deviations: bool, latent: bool, several: bool
) -> PredictionGradients:
    """Differentiate predictions at raw inputs (r, d) in memory; what they take is made once and kept.

    Raises
    ------
    InputError
        Inputs that do not fit; a kernel without gradient; deviations that take more memory than there is, or whose
        noise depends on the inputs.
    """
    rows = np.asarray(inputs, dtype=np.float64)
    predicted = fitted.predictor(None, len(rows))(rows)
    assert not isinstance(predicted, ClassPredicted)
    gradients = _means(fitted)(rows)
    values: list[Any] = [predicted.mean, predicted.mean_error, gradients.gradient, gradients.error]
    if deviations:
        of = _deviations(fitted, latent)(rows)
        values += [of.deviation, of.gradient, of.error]
    if not several:
        values = [None if value is None else value[:, 0] for value in values]
    return PredictionGradients(*values)


def _means(fitted: Fitted) -> GradientPredictor | SparseGradientPredictor:
    def make() -> GradientPredictor | SparseGradientPredictor:
        if isinstance(fitted, FittedSparse):
            return SparseGradientPredictor(fitted.opened)
        assert isinstance(fitted, FittedModel)
        return GradientPredictor(fitted.record, fitted.version)

    return worker_cache().get((fitted.version, "gradients"), make)


def _deviations(fitted: Fitted, latent: bool) -> DeviationPredictor | SparseDeviationPredictor:
    def make() -> DeviationPredictor | SparseDeviationPredictor:
        if isinstance(fitted, FittedSparse):
            return SparseDeviationPredictor(fitted.opened, latent=latent)
        assert isinstance(fitted, FittedModel)
        return DeviationPredictor(fitted.record, fitted.version, latent=latent)

    return worker_cache().get((fitted.version, "deviation gradients", latent), make)
