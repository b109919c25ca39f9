"""Predictions in the units of their targets, whatever scale the model has: the one way back from a transform.

A model of transformed targets predicts on the transformed scale, and so a prediction store has it: means, their bounds,
variances and intervals are of T(y), and the attribute `transform` names T for each target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data import Prediction
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.standardisation import TargetTransform, require_positive
from dkgp.models.rounding import known, outward
from dkgp.models.variance_scores import ScoredVariances
from dkgp.operators.base import FloatArray


@dataclass(frozen=True)
class InUnits:
    """Predictions (rows, p) in the units of the targets.

    Attributes
    ----------
    mean
        Expectation of a new observation; the median, where a transform is used and no variances were predicted.
    median
        Of the predictive distribution; the mean where no transform is used.
    median_error_bound
        By how much the exact model's median can differ, |T^-1(m +- bound) - T^-1(m)| rounded outward; None without
        bounds.
    lower, upper
        Ends of the central 95 % interval of a new observation; None without variances.
    """

    mean: FloatArray
    median: FloatArray
    median_error_bound: FloatArray | None
    lower: FloatArray | None
    upper: FloatArray | None


class TargetUnits:
    """Between the scale of a prediction store and the units of its targets.

    Parameters
    ----------
    prediction
        Predictions of numbers.
    noise_free
        Whether observations are values of the function itself.
    """

    def __init__(self, prediction: Prediction, *, noise_free: bool = False) -> None:
        self._prediction = prediction
        with described_whole(prediction.url, "predict again"):
            self._transforms = tuple(TargetTransform(**of) for of in prediction.attributes.get("transform", ()))
        self._variances = ScoredVariances.of(prediction, noise_free)

    @property
    def transformed(self) -> bool:
        """True if the store's scale is another than the targets'."""
        return bool(self._transforms)

    def read(self, start: int = 0, stop: int | None = None) -> InUnits:
        """Predictions of the rows [start, stop), by default all."""
        end = self._prediction.n_samples if stop is None else stop
        m = self._prediction.read("mean", start, end)
        variance = None if self._variances is None else self._variances.read(start, end).middle
        bound = None
        if "mean_error_bound" in self._prediction.variables:
            b = self._prediction.read("mean_error_bound", start, end)
            bound = self._median_error_bound(m, b) if self.transformed else b
        lower = upper = None
        if variance is not None and self._variances is not None:
            half = self._variances.half_widths(variance)
            lower, upper = self.back(m - half), self.back(m + half)
        return InUnits(self._mean(m, variance), self.back(m), bound, lower, upper)

    def _median_error_bound(self, mean: FloatArray, bound: FloatArray) -> FloatArray:
        """Bound the distance of T^-1(mean) as computed from every exact T^-1 within mean +- bound, all (rows, p).

        Both ends, the errors of T^-1 there and all differences are rounded outward.
        """
        with np.errstate(all="ignore"):
            ends = outward(mean - bound, mean + bound)
            low, high = (self.back(end) for end in ends)
            low_error, high_error = (
                np.stack([of.inverse_error(end[:, t]) for t, of in enumerate(self._transforms)], axis=1)
                for end in (low, high)
            )
            low, high = outward(low - low_error, high + high_error)
            median = self.back(mean)
            return known(np.nextafter(np.maximum(high - median, median - low), np.inf))

    def mean(self, start: int, stop: int) -> FloatArray:
        """Expectations alone, as `read` has them, (rows, p)."""
        m = self._prediction.read("mean", start, stop)
        if not self.transformed or self._variances is None:
            return self.back(m)
        return self._mean(m, self._variances.read(start, stop).middle)

    def _mean(self, m: FloatArray, variance: FloatArray | None) -> FloatArray:
        if not self.transformed or variance is None:
            return self.back(m)
        return np.stack([of.mean(m[:, t], variance[:, t]) for t, of in enumerate(self._transforms)], axis=1)

    def back(self, values: FloatArray) -> FloatArray:
        """T^-1 of values (rows, p) on the store's scale."""
        if not self.transformed:
            return values
        return np.stack([of.inverse(values[:, t]) for t, of in enumerate(self._transforms)], axis=1)

    def forward(self, truth: FloatArray, start: int) -> FloatArray:
        """T of true targets (rows, p) of the rows from `start` on; `InputError` where a logarithm does not take one."""
        if not self.transformed:
            return truth
        for t, of in enumerate(self._transforms):
            if of.name == "log":
                require_positive(truth[:, t], self._prediction.target_names[t], lambda row: f"row {start + row + 1}")
        return np.stack([of.forward(truth[:, t]) for t, of in enumerate(self._transforms)], axis=1)

    def log_slopes(self, truth: FloatArray) -> FloatArray:
        """Sums over rows of log T'(y), (p,): zero without a transform."""
        if not self.transformed:
            return np.zeros(truth.shape[1])
        return np.array([float(np.sum(of.log_slope(truth[:, t]))) for t, of in enumerate(self._transforms)])
