"""Probabilities that a field exceeds thresholds: in proven intervals, and by indicator kriging.

With the exact mean within b of m and the exact variance in [L, U],

    P(f > z) = Phi((m* - z) / sqrt(V*))

is largest and least at corners of [m - b, m + b] x [L, U]: it rises with the mean, and the deviation moves it towards
one half. The probability assumes a Gaussian field with the variogram of the model.

Indicator kriging makes no such assumption: the indicators I(z <= z_c) are kriged as several targets of one factor,
clipped to [0, 1], and put in order by the mean of the running maximum upward and the running minimum downward (Deutsch
and Journel 1998, GSLIB, section IV.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.field import Kriged
from dkgp.kriging.layers import layered
from dkgp.models.rounding import outward

# Relative rounding of the normal distribution function and of its argument.
_ROUNDING = 64.0 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Exceedance:
    """Probabilities that thresholds are exceeded: (r, p, c) for c thresholds.

    Attributes
    ----------
    probability
        At the middle of the variance's interval.
    lower, upper
        The probability of the exact process lies between.
    """

    probability: FloatArray
    lower: FloatArray
    upper: FloatArray


def exceedance(kriged: Kriged, thresholds: ArrayLike) -> Exceedance:
    """Return the probabilities that a kriged quantity exceeds thresholds, in proven intervals.

    Parameters
    ----------
    kriged : Kriged
        With variances; its quantity is that of the probabilities.
    thresholds : (c,) or (p, c) array_like
        In the target's units.

    Raises
    ------
    InputError
        No variances, or thresholds that are not finite.
    """
    variance, low, high = kriged.variance, kriged.variance_lower, kriged.variance_upper
    if variance is None or low is None or high is None:
        raise InputError("probabilities need variances; predict with `variance`")
    limits = thresholds_of(thresholds, kriged.mean.shape[1])
    mean, bound = kriged.mean[:, :, None], kriged.mean_error_bound[:, :, None]
    least, most = outward(mean - bound, mean + bound)
    ends = np.sqrt(low)[:, :, None] * (1.0 - _ROUNDING), np.sqrt(high)[:, :, None] * (1.0 + _ROUNDING)
    below, above = outward(least - limits, most - limits)
    # A wide deviation brings a probability above one half down, and one below it up.
    lower = _probability(below, np.where(below > 0.0, ends[1], ends[0]))
    upper = _probability(above, np.where(above > 0.0, ends[0], ends[1]))
    probability = _probability(mean - limits, np.sqrt(variance)[:, :, None])
    return Exceedance(
        probability,
        np.maximum(np.nextafter(lower * (1.0 - _slack(below, ends[1])), -np.inf), 0.0),
        np.minimum(np.nextafter(upper * (1.0 + _slack(above, ends[0])), np.inf), 1.0),
    )


def thresholds_of(thresholds: ArrayLike, p: int) -> FloatArray:
    """Return thresholds by target (p, c); `InputError` for values that are not finite, or another number of targets."""
    limits = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    if not limits.size or not np.isfinite(limits).all():
        raise InputError(f"`thresholds` are finite numbers in the target's units; got {thresholds!r}")
    if limits.ndim == 1:
        return np.broadcast_to(limits, (p, len(limits)))
    if limits.ndim != 2 or len(limits) != p:
        raise InputError(f"`thresholds` has one row per target, {p}; got shape {limits.shape}")
    return limits


def _probability(distance: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return P(f > z) of the distances of means above thresholds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = distance / deviation
    # Without a deviation the field is its mean.
    return np.where(deviation > 0.0, scipy.special.ndtr(ratio), np.where(distance > 0.0, 1.0, 0.0))


def _slack(distance: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return the relative error of a probability by the rounding of its argument t: at most (1 + t^2) times that."""
    with np.errstate(divide="ignore", invalid="ignore"):
        argument = np.nan_to_num(distance / deviation, nan=0.0, posinf=0.0, neginf=0.0)
    return np.minimum(_ROUNDING * (1.0 + argument**2), 1.0)


def exceedance_map(cells: Any, thresholds: Sequence[float], name: str = "scalars") -> Any:
    """Return maps of probabilities of a map with variances.

    Parameters
    ----------
    cells : xarray.Dataset
        `Kriging.grid(..., variance=True)`.
    thresholds : sequence of float
    name : str, default "scalars"
        The mean's name in the map.

    Returns
    -------
    xarray.Dataset
        `probability`, `probability_lower` and `probability_upper` by threshold.

    Raises
    ------
    InputError
        A map without variances.
    """
    needed = (name, "mean_error_bound", "variance", "variance_lower", "variance_upper")
    missing = [variable for variable in needed if variable not in cells]
    if missing:
        raise InputError(
            f"the map has no {', '.join(missing)}; it has {', '.join(map(str, cells.data_vars))}. Make it with "
            "`variance`"
        )
    shape = cells[name].shape
    columns = [np.asarray(cells[variable].values, dtype=np.float64).reshape(-1, 1) for variable in needed]
    unknown = np.isnan(columns[0][:, 0])
    mean, bound, middle, low, high = (np.where(unknown[:, None], 0.0, column) for column in columns)
    result = exceedance(Kriged(mean, bound, middle, low, high), thresholds)
    arrays = {
        variable: np.where(unknown[:, None], np.nan, values[:, 0, :]).T.reshape(-1, *shape)
        for variable, values in (
            ("probability", result.probability),
            ("probability_lower", result.lower),
            ("probability_upper", result.upper),
        )
    }
    return layered(cells, thresholds, arrays, name)


def ordered(probabilities: FloatArray) -> FloatArray:
    """Clip kriged indicators (r, c) of rising thresholds to [0, 1], and make them rise."""
    clipped = np.clip(probabilities, 0.0, 1.0)
    upward = np.maximum.accumulate(clipped, axis=1)
    downward = np.minimum.accumulate(clipped[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(0.5 * (upward + downward))


class IndicatorKriging:
    """Kriging of the indicators I(z <= z_c) at several thresholds, which share the equations' factor.

    Parameters
    ----------
    kriging : Kriging
        Not fitted, with the variogram of the indicators, one for all thresholds.
    thresholds : sequence of float
        Rising, in the units of the data.

    Attributes
    ----------
    kriging_ : Kriging
        Fitted to the indicators.

    Raises
    ------
    InputError
        Thresholds that do not rise.
    """

    def __init__(self, kriging: Any, thresholds: Sequence[float]) -> None:
        self.kriging, self.thresholds = kriging, tuple(float(value) for value in thresholds)
        if not self.thresholds or not np.isfinite(self.thresholds).all() or (np.diff(self.thresholds) <= 0.0).any():
            raise InputError(f"`thresholds` are finite numbers that rise; got {tuple(thresholds)}")

    def fit(self, coordinates: Any, data: ArrayLike, **settings: Any) -> Self:
        """Krige the indicators of samples; `settings` as for `Kriging.fit`."""
        values = numbers_of(data, "data")
        if not np.isfinite(values).all():
            raise InputError(f"data is not finite in {int((~np.isfinite(values)).sum())} rows; remove these samples")
        indicators = tuple((values <= threshold).astype(np.float64) for threshold in self.thresholds)
        for threshold, indicator in zip(self.thresholds, indicators, strict=True):
            if indicator.min() == indicator.max():
                side = "at most" if indicator.flat[0] else "above"
                raise InputError(f"all samples are {side} the threshold {threshold:g}; leave it out")
        self.kriging_ = self.kriging.fit(coordinates, indicators, **settings)
        return self

    def predict(self, coordinates: Any, **settings: Any) -> FloatArray:
        """Return P(z <= z_c) by threshold: (c, ...) of the coordinates' shape. `settings` as for `Kriging.predict`."""
        layers = np.stack([np.asarray(layer) for layer in self.kriging_.predict(coordinates, **settings)])
        flat = ordered(layers.reshape(len(layers), -1).T)
        return np.asarray(flat.T.reshape(layers.shape))

    def grid(self, *arguments: Any, **settings: Any) -> Any:
        """Return a map of P(z <= z_c), the variable `probability` by threshold; arguments as for `Kriging.grid`."""
        cells = self.kriging_.grid(*arguments, **settings)
        names = [str(name) for name in cells.data_vars if str(name).startswith("scalars")]
        layers = np.stack([cells[name].values for name in names])
        flat = ordered(layers.reshape(len(layers), -1).T).T.reshape(layers.shape)
        return layered(cells, self.thresholds, {"probability": flat}, names[0])
