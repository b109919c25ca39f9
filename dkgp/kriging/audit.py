"""Audits: how far the predictions of any other tool are from the exact Gaussian process, with proof.

With our mean m, |m - m*| <= b, and the exact variance V* in [L, U], others' mean m' and variance V' have

    |m' - m*|   in  [max(0, |m' - m| - b), |m' - m| + b]
    V' / V*     in  [V' / U, V' / L]
    KL(p* || p') = (V* / V' - 1 - log(V* / V') + (m' - m*)^2 / V') / 2,

whose part of the variances is convex with its zero at V* = V': its least value is zero inside [L, U], else that at the
nearer end, and its greatest value that at the worse end. The exact process has the model's kernel, noise, mean and
samples: a tool with other hyperparameters approximates another process.

Others' numbers are exact as they stand. A sum, a difference, a product, a quotient and a root are the nearest number to
the exact one, so the next number beyond it is a bound, also below the smallest normal number and beyond the largest.
Of t - 1 - log t the roundings are counted (`_misfit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.models.rounding import EPS, LOST, column_lengths, known

# Distances that are judged, in standard deviations of the exact posterior.
LEVELS = (0.01, 0.1, 0.5, 1.0)
_LARGEST = float(np.finfo(np.float64).max)
# Distance from one below which t - 1 - log t is summed as a series, and the series' terms: the rest is below 9^-20.
_NEAR, _TERMS = 0.5, 20


@dataclass(frozen=True, eq=False)
class Exact:
    """Proofs about the exact process at r points: its mean within `bound` of `mean`, its variance in an interval.

    All (r,), in the target's units. The ends of the variance are None where only means are compared.
    """

    mean: FloatArray
    bound: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Audit:
    """Proven lower and upper ends of the distances of predictions from the exact process.

    Attributes
    ----------
    error_lower, error_upper : (r,)
        Distance |mean - exact mean|.
    deviation_lower, deviation_upper : (r,), optional
        The same in standard deviations of the exact posterior.
    ratio_lower, ratio_upper : (r,), optional
        The variance over the exact one; 1 where both are zero.
    divergence_lower, divergence_upper : (r,), optional
        Kullback-Leibler divergence of the prediction from the exact posterior, in nats.
    """

    error_lower: FloatArray
    error_upper: FloatArray
    deviation_lower: FloatArray | None = None
    deviation_upper: FloatArray | None = None
    ratio_lower: FloatArray | None = None
    ratio_upper: FloatArray | None = None
    divergence_lower: FloatArray | None = None
    divergence_upper: FloatArray | None = None

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.error_lower)

    def root_mean_square(self) -> tuple[float, float]:
        """Return the ends of the root mean square distance of the means."""
        ends = (float(column_lengths(values)) for values in (self.error_lower, self.error_upper))
        low, high = (end / np.sqrt(self.n) for end in ends)
        return self._averaged(low, high)

    def verdict(self, level: float, *, absolute: bool = False) -> dict[str, float]:
        """Return the shares of points proven to be off by more than a level, proven within it, and undecided.

        `level` is in standard deviations of the exact posterior, or in the target's units if `absolute` or without
        variances.
        """
        lower, upper = self.deviation_lower, self.deviation_upper
        if absolute or lower is None or upper is None:
            lower, upper = self.error_lower, self.error_upper
        off, within = int((lower > level).sum()), int((upper <= level).sum())
        undecided = self.n - off - within
        return {
            "level": level,
            "proven_off": off / self.n,
            "proven_within": within / self.n,
            "undecided": undecided / self.n,
        }

    def summary(self) -> dict[str, Any]:
        """Return the figures of a report, in JSON."""
        low, high = self.root_mean_square()
        figures: dict[str, Any] = {
            "points": self.n,
            "mean_rms_error": {"at_least": low, "at_most": high},
            "mean_largest_error": {"at_least": float(self.error_lower.max()), "at_most": float(self.error_upper.max())},
        }
        if self.deviation_lower is None or self.deviation_upper is None:
            return figures
        figures["mean_largest_deviation"] = {
            "at_least": float(self.deviation_lower.max()),
            "at_most": float(self.deviation_upper.max()),
        }
        figures["verdicts"] = [self.verdict(level) for level in LEVELS]
        if self.ratio_lower is None or self.ratio_upper is None:
            return figures
        assert self.divergence_lower is not None
        assert self.divergence_upper is not None
        small, large = int((self.ratio_upper < 1.0).sum()), int((self.ratio_lower > 1.0).sum())
        ratio = _down(np.median(self.ratio_lower)), _up(np.median(self.ratio_upper))
        divergence = self._averaged(float(self.divergence_lower.mean()), float(self.divergence_upper.mean()))
        figures["variance"] = {
            "proven_too_small": small / self.n,
            "proven_too_large": large / self.n,
            "undecided": (self.n - small - large) / self.n,
            "median_ratio": {"at_least": float(ratio[0]), "at_most": float(ratio[1])},
        }
        figures["mean_divergence"] = {"at_least": divergence[0], "at_most": divergence[1]}
        return figures

    def _averaged(self, low: float, high: float) -> tuple[float, float]:
        """Return ends that are made of sums over all points, moved outward by the sums' roundings."""
        slack = (self.n + 16.0) * EPS
        below = low if np.isinf(low) else max(float(_down(low * (1.0 - slack))), 0.0)
        return below, float(_up(high * (1.0 + slack)))


def audit(exact: Exact, mean: ArrayLike, variance: ArrayLike | None = None) -> Audit:
    """Judge predictions by proofs about the exact process.

    Parameters
    ----------
    exact : Exact
        Our proofs at the same points.
    mean : (r,) array_like
        Their means.
    variance : (r,) array_like, optional
        Their variances, of the same quantity as the interval of `exact`.

    Raises
    ------
    InputError
        No points, another number of points, values that are not finite, or negative variances.
    """
    n = len(exact.mean)
    if n == 0:
        raise InputError("there are no points to judge; expected at least one")
    theirs = _checked("mean", mean, n)
    low, high = _errors(exact, theirs)
    if exact.lower is None or exact.upper is None:
        if variance is not None:
            raise InputError("variances are judged by intervals of the exact variance; predict with `variance`")
        return Audit(low, high)
    # A variance is finite and not negative: an end that says less is moved to the nearest one that says as much.
    least = np.clip(np.nan_to_num(exact.lower, nan=0.0, posinf=_LARGEST), 0.0, _LARGEST)
    most = known(np.asarray(exact.upper, dtype=np.float64))
    if (least > most).any():
        row = int(np.argmax(least > most))
        raise InputError(
            f"the exact variance lies between {least[row]:g} and {most[row]:g} in row {row}, which is no interval"
        )
    far = _quotients(low, high, _root_down(least), _root_up(most), nothing=0.0)
    if variance is None:
        return Audit(low, high, *far)
    other = _checked("variance", variance, n)
    if (other < 0.0).any():
        row, count = int(np.argmax(other < 0.0)), int((other < 0.0).sum())
        raise InputError(
            f"the variance is {other[row]:g} in row {row}, and negative in {count} of {n} rows; expected at least 0"
        )
    ratio = _quotients(other, other, least, most, nothing=1.0)
    return Audit(low, high, *far, *ratio, *_divergences((low, high), (least, most), other))


# --------------------------------------------------------------------------------------------------- outward arithmetic


def _down(values: Any) -> Any:
    """Return the next numbers below results of one rounding: the largest number for an overflow."""
    return np.nextafter(values, -np.inf)


def _up(values: Any) -> Any:
    return np.nextafter(values, np.inf)


def _root_down(values: FloatArray) -> FloatArray:
    return np.where(values > 0.0, np.maximum(_down(np.sqrt(values)), 0.0), 0.0)


def _root_up(values: FloatArray) -> FloatArray:
    return np.where(values > 0.0, _up(np.sqrt(values)), 0.0)


def _errors(exact: Exact, theirs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of |m' - m*|."""
    finite = np.isfinite(exact.mean)
    ours = np.where(finite, exact.mean, 0.0)
    bound = np.where(finite, known(np.asarray(exact.bound, dtype=np.float64)), np.inf)
    with np.errstate(over="ignore"):
        distance = np.abs(theirs - ours)
        same = theirs == ours  # their difference is zero without rounding
        low = np.where(same, 0.0, np.maximum(_down(np.maximum(_down(distance), 0.0) - bound), 0.0))
        high = np.where(same, bound, _up(_up(distance) + bound))
    return low, high


def _quotients(
    low: FloatArray, high: FloatArray, least: FloatArray, most: FloatArray, *, nothing: float
) -> tuple[FloatArray, FloatArray]:
    """Return the ends of a / c for a in [low, high] and c in [least, most], all at least zero; 0 / 0 is `nothing`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        below = np.maximum(_down(low / most), 0.0)
        below = np.where(most == 0.0, np.where(low > 0.0, np.inf, min(nothing, 1.0)), below)
        below = np.where(low == 0.0, np.where(most == 0.0, nothing, 0.0), below)
        above = _up(high / least)
        above = np.where(least == 0.0, np.where(high > 0.0, np.inf, nothing), above)
        above = np.where((high == 0.0) & (least > 0.0), 0.0, above)
    return below, above


def _divergences(
    errors: tuple[FloatArray, FloatArray], exact: tuple[FloatArray, FloatArray], other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the ends of KL(p* || p'), for a V* in [least, most] and a V' of at least zero."""
    (low, high), (least, most) = errors, exact
    some = np.where(other > 0.0, other, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        at_least, at_most = _misfit(least, some), _misfit(most, some)
        inside = (least <= other) & (other <= most)
        of_variance = np.where(inside, 0.0, np.where(other < least, at_least[0], at_most[0]))
        worst = np.maximum(at_least[1], at_most[1])
        square = np.maximum(_down(np.maximum(_down(low * low), 0.0) / some), 0.0)
        farthest = np.where(high == 0.0, 0.0, _up(_up(high * high) / some))
        below = np.maximum(_down(0.5 * np.maximum(_down(of_variance + square), 0.0)), 0.0)
        below = np.where(np.isinf(of_variance), np.inf, below)
        above = known(_up(0.5 * _up(worst + farthest)))
    # A prediction without variance is infinitely far from every other distribution, and not from itself.
    certain = other == 0.0
    below = np.where(certain, np.where((least > 0.0) | (low > 0.0), np.inf, 0.0), below)
    above = np.where(certain, np.where((most > 0.0) | (high > 0.0), np.inf, 0.0), above)
    return below, above


def _misfit(exact: FloatArray, other: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return bounds on t - 1 - log t at t = V / V', for `exact` V >= 0 and `other` V' > 0.

    Within a half of one, x = t - 1 has at most one rounding, as V - V' is exact (Sterbenz), and

        x - log(1 + x) = x^2 / (2 + x) - 2 (s^3 / 3 + s^5 / 5 + ...),    s = x / (2 + x), |s| <= 1/3,

    without cancellation: the series is at most a seventh of the first term where it is taken from it. 16 roundings of
    the result are counted for x (its relative error enters at most 2.6 times), 12 for the first term, 4 for a fifth of
    the series' 60. Elsewhere log t = log V - log V', whose logarithms are taken to have four units of the last place.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        difference = exact - other
        near = np.abs(difference) <= _NEAR * other
        x = np.where(near, difference / other, 0.0)
        s = x / (2.0 + x)
        square, series = s * s, np.zeros_like(s)
        for term in reversed(range(_TERMS)):
            series = series * square + 1.0 / (2 * term + 3)
        close = x * x / (2.0 + x) - 2.0 * (square * s * series)
        ratio = exact / other
        logs = np.log(exact), np.log(other)
        far = (ratio - 1.0) - (logs[0] - logs[1])
        size = ratio + 1.0 + np.abs(logs[0]) + np.abs(logs[1])
        off = np.where(near, 16.0 * EPS * close + LOST, 8.0 * EPS * size + LOST)
        value = np.where(near, close, far)
        # log 0 is -inf, and a quotient beyond the largest number is at least that.
        low = np.where(exact == 0.0, np.inf, np.where(np.isinf(ratio), _LARGEST * (1.0 - 1e-12), value - off))
        high = np.where((exact == 0.0) | np.isinf(ratio), np.inf, value + off)
    same = exact == other
    return np.where(same, 0.0, np.maximum(low, 0.0)), np.where(same, 0.0, high)


def _checked(name: str, values: ArrayLike, n: int) -> FloatArray:
    numbers = numbers_of(values, f"the {name}").reshape(-1)
    if len(numbers) != n:
        raise InputError(f"`{name}` has {len(numbers)} values; expected {n}, one for each point")
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers)))
        raise InputError(f"the {name} is {numbers[row]} in row {row}; expected finite numbers")
    return numbers
