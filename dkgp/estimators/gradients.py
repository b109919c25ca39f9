"""Gradients of an estimator's predictions in its inputs, and acquisition functions made of them: where to try next.

Acquisition functions are to be maximised, also where the target is to be minimised. With z = (mean - best) / std, or
(best - mean) / std, and h(z) = phi(z) + z Phi(z), phi and Phi the normal density and distribution,

    expected improvement = std h(z),    d / dx = Phi(z) d mean + phi(z) d std.

Far from the best, h is below the smallest number and so are its derivatives: an optimiser sees a plateau. The logarithm
has neither (Ament, Daulton, Eriksson, Balandat and Bakshy 2023, section 4). With Mills' ratio m(t) = Phi(-t) / phi(t)
and its continued fraction, m = 1 / (t + q), q = 1 / (t + 2 / (t + 3 / (t + ...))),

    h(-t) = phi(t) (1 - t m) = phi(t) q m,

in which nothing cancels.

References
----------
S. Ament, S. Daulton, D. Eriksson, M. Balandat, E. Bakshy, Unexpected improvements to expected improvement for Bayesian
optimization (NeurIPS 2023).
D. R. Jones, M. Schonlau, W. J. Welch, Efficient global optimization of expensive black-box functions (1998).
N. Srinivas, A. Krause, S. M. Kakade, M. Seeger, Gaussian process optimization in the bandit setting (2010).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy.special import erfcx, ndtr

from dkgp.cluster.cache import worker_cache
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.fitted import Fitted, FittedModel, FittedSparse
from dkgp.estimators.parameters import Takes, check_value
from dkgp.models.prediction.gradients import (
    DeviationGradients,
    GradientPredictor,
    MeanGradients,
    SparseDeviationGradients,
    SparseMeanGradients,
)
from dkgp.registry import Option

# Below -TAIL by the continued fraction, of so many terms: above, 1 - t m loses less than two digits. Both are found by
# comparison with 50 digits.
TAIL, TERMS = 5.0, 40


_PREDICTED = Takes(
    "the result of predict_gradients(X, return_std=True)", lambda value: isinstance(value, PredictionGradients)
)


class Acquisition(NamedTuple):
    """Values of an acquisition function, (r,), and their derivatives in the inputs, (r, d); to be maximised."""

    value: FloatArray
    gradient: FloatArray


def expected_improvement(predicted: PredictionGradients, best: float, *, minimise: bool = False) -> Acquisition:
    """Return the expected improvement over the best target so far (Jones, Schonlau and Welch 1998).

    Parameters
    ----------
    predicted : PredictionGradients
        `predict_gradients(X, return_std=True, latent=True)`, of one target.
    best : float
        In the targets' units.
    minimise : bool
        Whether lower targets are better.

    Returns
    -------
    Acquisition
        In the targets' units. Zero where it is below the smallest number: see `log_expected_improvement`.

    Raises
    ------
    InputError
        No deviations, several targets, or a best that is not finite.
    """
    gain, gain_gradient, std, std_gradient = _gain(predicted, best, minimise)
    z, certain = _standardised(gain, std)
    value = std * np.exp(_improvement(z).log)
    gradient = ndtr(z)[:, None] * gain_gradient + _density(z)[:, None] * std_gradient
    value[certain] = np.maximum(gain[certain], 0.0)
    gradient[certain] = np.where(gain[certain, None] > 0.0, gain_gradient[certain], 0.0)
    return Acquisition(value, gradient)


def log_expected_improvement(predicted: PredictionGradients, best: float, *, minimise: bool = False) -> Acquisition:
    """Return the logarithm of the expected improvement, right to the last digits however far below zero it is.

    Arguments and errors are those of `expected_improvement`. Points without gain and deviation have the value -inf
    and a gradient of zero.
    """
    gain, gain_gradient, std, std_gradient = _gain(predicted, best, minimise)
    z, certain = _standardised(gain, std)
    improvement = _improvement(z)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        value = np.log(std) + improvement.log
        gradient = improvement.distribution[:, None] * gain_gradient + improvement.density[:, None] * std_gradient
        gradient /= std[:, None]
        value[certain] = np.log(np.maximum(gain[certain], 0.0))
    rising = certain & (gain > 0.0)
    gradient[certain] = 0.0
    gradient[rising] = gain_gradient[rising] / gain[rising, None]
    return Acquisition(value, gradient)


def upper_confidence_bound(predicted: PredictionGradients, beta: float = 2.0, *, minimise: bool = False) -> Acquisition:
    """Return mean + beta std, or beta std - mean where the target is to be minimised (Srinivas and others 2010).

    Parameters
    ----------
    predicted : PredictionGradients
        As for `expected_improvement`.
    beta : float
        Deviations; not below zero.
    minimise : bool
        Whether lower targets are better.
    """
    check_value("beta", Annotated[float, Option(least=0)], beta)
    mean, mean_gradient, std, std_gradient = _gain(predicted, 0.0, minimise)
    return Acquisition(mean + beta * std, mean_gradient + beta * std_gradient)


def _gain(
    predicted: PredictionGradients, best: float, minimise: bool
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """By how much the mean is better than the best, and the deviation, with gradients: (r,), (r, d), (r,), (r, d)."""
    check_value("predicted", Annotated[Any, _PREDICTED], predicted)
    if predicted.std is None or predicted.std_gradient is None:
        raise InputError("there are no deviations; predict with predict_gradients(X, return_std=True)")
    if predicted.mean.ndim != 1:
        raise InputError(
            f"acquisition functions are of one target; got means of shape {predicted.mean.shape}. Fit each by itself"
        )
    check_value("best", float, best)
    sign = -1.0 if minimise else 1.0
    return sign * (predicted.mean - best), sign * predicted.mean_gradient, predicted.std, predicted.std_gradient


def _standardised(gain: FloatArray, std: FloatArray) -> tuple[FloatArray, np.ndarray]:
    """Return z = gain / std, zero where std is, and where that is: (r,) each."""
    certain = std <= 0.0
    return np.divide(gain, std, out=np.zeros_like(gain), where=~certain), certain


def _density(z: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))


class _Improvement(NamedTuple):
    """log h(z), Phi(z) / h(z) and phi(z) / h(z): (r,) each."""

    log: FloatArray
    distribution: FloatArray
    density: FloatArray


def _improvement(z: FloatArray) -> _Improvement:
    near, tail = z >= -1.0, z < -TAIL
    t = np.maximum(-z, 1.0)
    mills = math.sqrt(0.5 * math.pi) * erfcx(t / math.sqrt(2.0))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of tails, which are written over
        scaled = 1.0 - t * mills  # h / phi
        over_scaled = mills / scaled
        q = np.zeros(int(tail.sum()))
        for k in range(TERMS, 0, -1):
            q = k / (t[tail] + q)
        scaled[tail], over_scaled[tail] = q / (t[tail] + q), 1.0 / q
        log = -0.5 * t * t - 0.5 * math.log(2.0 * math.pi) + np.log(scaled)
    distribution, density = over_scaled, 1.0 / scaled
    close = z[near]
    value = _density(close) + close * ndtr(close)
    log[near], distribution[near], density[near] = np.log(value), ndtr(close) / value, _density(close) / value
    return _Improvement(log, distribution, density)


class PredictionGradients(NamedTuple):
    """Predictions and their gradients in the inputs, in the units of inputs and targets.

    Arrays of float64: values (r,) and gradients (r, d), with several targets (r, p) and (r, p, d). Fields that were not
    asked for are None.

    Attributes
    ----------
    mean, mean_error
        The mean, and a proven bound on how far it is from the exact Gaussian process's.
    mean_gradient, mean_gradient_error
        d mean / d x_l, and a proven bound on how far each derivative is from the exact Gaussian process's.
    std, std_gradient : ndarray or None
        The standard deviation and its derivatives.
    std_gradient_error : ndarray or None
        Bound on the distance of the derivatives from the exact Gaussian process's. None for a sparse model, whose
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
    """Differentiate predictions at raw inputs (r, d) in memory; predictors are made once and kept.

    Raises
    ------
    InputError
        Inputs that do not fit; a kernel without gradient; deviations that take more memory than there is, or whose
        noise depends on the inputs.
    """
    rows = np.asarray(inputs, dtype=np.float64)
    predicted, means = fitted.posterior(None, len(rows))(rows), _gradients(fitted)(rows)
    values: list[Any] = [predicted["mean"], predicted["mean_error_bound"], means.gradient, means.error]
    if deviations:
        found = _gradients(fitted, latent)(rows)
        values += [found.deviation, found.gradient, found.error]
    if not several:
        values = [None if value is None else value[:, 0] for value in values]
    return PredictionGradients(*values)


def _gradients(fitted: Fitted, latent: bool | None = None) -> GradientPredictor:
    """Return the predictor of the mean's gradients, or of the deviation's, latent or not."""

    def make() -> GradientPredictor:
        if isinstance(fitted, FittedSparse):
            opened = fitted.opened
            return SparseMeanGradients(opened) if latent is None else SparseDeviationGradients(opened, latent=latent)
        assert isinstance(fitted, FittedModel)
        model, version = fitted.record, fitted.version
        return MeanGradients(model, version) if latent is None else DeviationGradients(model, version, latent=latent)

    return worker_cache().get((fitted.version, "gradients", latent), make)
