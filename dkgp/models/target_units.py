"""Predictions in the units of their targets: the inverse of a transform of the targets.

A model of transformed targets predicts on the transformed scale, and so a prediction store has it: means, their bounds,
variances and intervals are of T(y), and the attribute `transform` names T for each target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dkgp.data import Prediction
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.standardisation import TargetTransform, require_positive
from dkgp.errors import InputError
from dkgp.models.noise import StudentT
from dkgp.models.rounding import known, middle, outward
from dkgp.operators.base import FloatArray


@dataclass(frozen=True)
class InUnits:
    """Predictions (rows, p) in the units of the targets.

    Attributes
    ----------
    mean
        Expectation of a new observation. None for transformed targets without variances, since it depends on them.
    median
        Median of the predictive distribution; the mean if no transform is used.
    median_error_bound
        By how much the exact model's median can differ, |T^-1(m +- bound) - T^-1(m)| rounded outward; None without
        bounds.
    lower, upper
        Ends of the central 95 % interval of a new observation; None without variances.
    """

    mean: FloatArray | None
    median: FloatArray
    median_error_bound: FloatArray | None
    lower: FloatArray | None
    upper: FloatArray | None

    @property
    def point(self) -> FloatArray:
        """The prediction that errors are measured from: the mean if it is known, else the median."""
        return self.median if self.mean is None else self.mean


class TargetUnits:
    """Converts between the scale of a prediction store and the units of its targets.

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
        """True if the store's scale differs from that of the targets."""
        return bool(self._transforms)

    def read(self, start: int = 0, stop: int | None = None) -> InUnits:
        """Return the predictions of the rows [start, stop), by default all."""
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
        """Bound the distance of the computed T^-1(mean) to every exact T^-1 within mean +- bound, all (rows, p).

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

    @property
    def point_name(self) -> str:
        """The name of the `point` of these predictions: mean or median."""
        return "median" if self.transformed and self._variances is None else "mean"

    def point(self, start: int, stop: int) -> FloatArray:
        """Return the `point` of `read` alone, (rows, p)."""
        m = self._prediction.read("mean", start, stop)
        mean = self._mean(m, None if self._variances is None else self._variances.read(start, stop).middle)
        return self.back(m) if mean is None else mean

    def _mean(self, m: FloatArray, variance: FloatArray | None) -> FloatArray | None:
        if not self.transformed:
            return m
        if variance is None:
            return None
        return np.stack([of.mean(m[:, t], variance[:, t]) for t, of in enumerate(self._transforms)], axis=1)

    def back(self, values: FloatArray) -> FloatArray:
        """Return T^-1 of values (rows, p) on the store's scale."""
        if not self.transformed:
            return values
        return np.stack([of.inverse(values[:, t]) for t, of in enumerate(self._transforms)], axis=1)

    def forward(self, truth: FloatArray, start: int) -> FloatArray:
        """Return T of true targets (rows, p) of the rows from `start` on; `InputError` outside a logarithm's domain."""
        if not self.transformed:
            return truth
        for t, of in enumerate(self._transforms):
            if of.name == "log":
                require_positive(truth[:, t], self._prediction.target_names[t], lambda row: f"row {start + row + 1}")
        return np.stack([of.forward(truth[:, t]) for t, of in enumerate(self._transforms)], axis=1)

    def log_slopes(self, truth: FloatArray) -> FloatArray:
        """Return the sums over rows of log T'(y), (p,): zero without a transform."""
        if not self.transformed:
            return np.zeros(truth.shape[1])
        return np.array([float(np.sum(of.log_slope(truth[:, t]))) for t, of in enumerate(self._transforms)])


NORMAL_95 = 1.959963984540054
_EPS = float(np.finfo(np.float64).eps)


class Variances(NamedTuple):
    """Variances (rows, p) for scores, and the ends of their proven intervals; without proofs all three are equal."""

    middle: FloatArray
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True)
class ScoredVariances:
    """Reads variances as the targets need them: of observations, or of the function; in the targets' units squared.

    Those of an exact model are proven to lie in an interval, whose middle is taken: older stores have its upper
    end as the variance, which is the wider the less was computed. A sparse method's own are taken as they are.
    """

    prediction: Prediction
    noise: FloatArray  # (p,): of all observations; a test sample may have its own too, which the store has
    sign: float  # sign of the noise that is added to stored variances: 1, -1 or 0
    proven: bool
    student: StudentT | None = None  # law of the observations' noise in the targets' units, if it is not normal

    @classmethod
    def of(cls, prediction: Prediction, noise_free: bool) -> ScoredVariances | None:
        """Return the stored variances; None if there are none."""
        if "variance" not in prediction.variables:
            return None
        p = prediction.n_targets
        ends = {"variance_lower", "variance_upper"} <= set(prediction.variables)
        proven = ends and "method" not in prediction.attributes
        stored = prediction.attributes.get("variance")
        noise = prediction.attributes.get("noise_variance")
        if stored is None or noise is None:
            if noise_free:
                raise InputError(
                    f"'{prediction.url}' does not say whether its variances contain the noise; predict again, or "
                    "evaluate against noisy targets"
                )
            return cls(prediction, np.zeros(p), 0.0, proven)
        with described_whole(prediction.url, "predict again"):
            noise_variance = np.asarray(noise, dtype=np.float64).reshape(p)
            sign = float(bool(stored["latent"])) - float(noise_free)
            student = None if noise_free else StudentT.held(prediction.attributes.get("student_t"))
        return cls(prediction, noise_variance, sign, proven, student)

    def read(self, start: int, stop: int) -> Variances:
        """Return the variances of the rows start:stop, (rows, p) each, in the targets' squared units."""
        noise = self.noise
        if "noise" in self.prediction.variables:
            noise = noise + self.prediction.read("noise", start, stop)
        if not self.proven:
            own = self._needed(self.prediction.read("variance", start, stop), noise)
            return Variances(own, own, own)
        lower, upper = (self.prediction.read(f"variance_{end}", start, stop) for end in ("lower", "upper"))
        return Variances(*(self._needed(stored, noise) for stored in (middle(lower, upper), lower, upper)))

    def normal_scores(self, error: FloatArray, variance: FloatArray) -> FloatArray:
        """Return errors over deviations, (rows, p); under Student's t, standard normal scores in the errors' order."""
        if self.student is None:
            return np.asarray(error / np.sqrt(variance))
        return self.student.normal_scores(error[:, 0], _function_of(variance, self.student))[:, None]

    def half_widths(self, variance: FloatArray) -> FloatArray:
        """Return half the widths of central 95 % intervals, (rows, p)."""
        return half_widths(variance, self.student)

    def _needed(self, stored: FloatArray, noise: FloatArray) -> FloatArray:
        # If the rounding of the noise hides the function's variance, that variance is not known to be zero.
        return np.asarray(np.maximum(stored + self.sign * noise, _EPS * noise))


def _function_of(variance: FloatArray, student: StudentT) -> FloatArray:
    """Return the variances of the function (rows,), given those of observations (rows, 1)."""
    return np.asarray(np.maximum(variance[:, 0] - student.variance, 0.0))


def half_widths(variance: FloatArray, student: StudentT | None) -> FloatArray:
    """Return half the widths of central 95 % intervals of observations with these variances, (rows, p)."""
    if student is None:
        return np.asarray(NORMAL_95 * np.sqrt(variance))
    return student.half_widths(_function_of(variance, student), NORMAL_95)[:, None]


class VarianceTally:
    """Adds up the scores of variances, target by target.

    Parameters
    ----------
    scale
        Standard deviations of the training targets, (p,): densities are of normalised targets.
    proven
        Whether the ends of intervals are also scored; False for Student's t.
    student
        Law of the noise, if it is not normal: densities and coverage then use t around a normal distribution.
    """

    def __init__(self, scale: FloatArray, proven: bool, student: StudentT | None = None) -> None:
        # Squared values are scaled by a power of two, so that no bit changes and no square overflows.
        self._power = np.frexp(scale)[1]
        self._unit = np.ldexp(scale, -self._power)
        self._proven, self._student, self._scale = proven and student is None, student, scale
        p = len(scale)
        # Middle, least and largest value of each figure.
        self._density, self._covered, self._squared = ([np.zeros(p) for _ in range(3)] for _ in range(3))

    def add(self, error: FloatArray, variances: Variances) -> None:
        """Add errors (rows, p), in the units of the square roots of the variances."""
        if self._student is not None:
            latent = _function_of(variances.middle, self._student)
            density = -self._student.log_density(error[:, 0], latent) - math.log(self._scale[0])
            scores = self._student.normal_scores(error[:, 0], latent)[:, None]
            self._count(0, error**2 / variances.middle, density[:, None], covered=scores**2)
            return
        middle, lower, upper = (np.ldexp(variance, -2 * self._power) for variance in variances)
        # Beyond 1e154 deviations; and a lower end of the function's own variance may be zero.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            squared = np.ldexp(error, -self._power) ** 2
            self._count(0, squared / middle, self._log_density(middle, squared))
            if not self._proven:
                return
            # For an error e, the density is largest at the variance e^2, and least at an end.
            best = self._log_density(np.clip(squared, lower, upper), squared)
            ends = np.fmax(self._log_density(lower, squared), self._log_density(upper, squared))
            self._count(1, np.where(squared == 0.0, 0.0, squared / upper), best, covered=squared / lower)
            self._count(2, np.where(squared == 0.0, 0.0, squared / lower), ends, covered=squared / upper)

    def _count(self, place: int, z: FloatArray, density: FloatArray, covered: FloatArray | None = None) -> None:
        self._density[place] += np.sum(density, axis=0)
        self._covered[place] += np.sum((z if covered is None else covered) <= NORMAL_95**2, axis=0)
        self._squared[place] += np.sum(z, axis=0)

    def _log_density(self, variance: FloatArray, squared: FloatArray) -> FloatArray:
        z = squared / variance
        return np.asarray(0.5 * (np.log(2.0 * math.pi * variance / self._unit**2) + z))

    def figures(self, n: int, shift: FloatArray) -> dict[str, Any]:
        """Return means over n samples and all targets; `shift` (p,) converts densities to the targets' units."""
        means = self.per_target(n, shift)
        result: dict[str, Any] = {name: float(np.mean(values)) for name, values in means.items()}
        if self._proven:
            for name, sums, add in (
                ("nlpd", self._density, 0.0),
                ("nlpd_raw", self._density, shift),
                ("coverage_95", self._covered, 0.0),
                ("mean_standardised_squared_error", self._squared, 0.0),
            ):
                result[f"{name}_range"] = [float(np.mean(end / n + add)) for end in sums[1:]]
        return result

    def per_target(self, n: int, shift: FloatArray) -> dict[str, FloatArray]:
        """Return means over n samples, (p,) each, at the scored variances."""
        return {
            "nlpd": self._density[0] / n,
            "nlpd_raw": self._density[0] / n + shift,
            "coverage_95": self._covered[0] / n,
            "mean_standardised_squared_error": self._squared[0] / n,
        }
