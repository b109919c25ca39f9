"""Audits: how far the predictions of any other tool are from the exact Gaussian process, with proof.

With our mean m, |m - m*| <= b, and the exact variance V* in [L, U], others' mean m' and variance V' have

    |m' - m*|   in  [max(0, |m' - m| - b), |m' - m| + b]
    V' / V*     in  [V' / U, V' / L]
    KL(p* || p') = (V* / V' - 1 - log(V* / V') + (m' - m*)^2 / V') / 2,

whose part of the variances is convex with its zero at V* = V': its least value is zero inside [L, U], else that at the
nearer end, and its greatest value that at the worse end. All differences are rounded outward. The exact process has the
model's kernel, noise, mean and samples: a tool with other hyperparameters approximates another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.models.rounding import outward

# Distances that are judged, in deviations of the exact posterior.
LEVELS = (0.01, 0.1, 0.5, 1.0)
_ULPS = 8.0 * np.finfo(np.float64).eps


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
        Of |mean - exact mean|.
    deviation_lower, deviation_upper : (r,), optional
        The same in deviations of the exact posterior.
    ratio_lower, ratio_upper : (r,), optional
        Of the variance over the exact one.
    divergence_lower, divergence_upper : (r,), optional
        Of the Kullback-Leibler divergence of the prediction from the exact posterior, in nats.
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
        return _ends(np.sqrt(np.mean(self.error_lower**2)), np.sqrt(np.mean(self.error_upper**2)))

    def verdict(self, level: float, *, absolute: bool = False) -> dict[str, float]:
        """Return the shares of points proven to be off by more than a level, proven within it, and undecided.

        `level` is in deviations of the exact posterior, or in the target's units if `absolute` or without variances.
        """
        lower, upper = self.deviation_lower, self.deviation_upper
        if absolute or lower is None or upper is None:
            lower, upper = self.error_lower, self.error_upper
        off, within = float(np.mean(lower > level)), float(np.mean(upper <= level))
        return {"level": level, "proven_off": off, "proven_within": within, "undecided": 1.0 - off - within}

    def summary(self) -> dict[str, Any]:
        """Return the figures of a report, in JSON."""
        low, high = self.root_mean_square()
        figures: dict[str, Any] = {
            "points": self.n,
            "mean_rms_error": {"at_least": low, "at_most": high},
            "mean_largest_error": {"at_least": float(self.error_lower.max()), "at_most": float(self.error_upper.max())},
        }
        if self.deviation_lower is None:
            return figures
        figures["verdicts"] = [self.verdict(level) for level in LEVELS]
        if self.ratio_lower is None or self.ratio_upper is None:
            return figures
        assert self.divergence_lower is not None
        assert self.divergence_upper is not None
        figures["variance"] = {
            "proven_too_small": float(np.mean(self.ratio_upper < 1.0)),
            "proven_too_large": float(np.mean(self.ratio_lower > 1.0)),
            "undecided": float(np.mean((self.ratio_lower <= 1.0) & (self.ratio_upper >= 1.0))),
            "median_ratio": {
                "at_least": float(np.median(self.ratio_lower)),
                "at_most": float(np.median(self.ratio_upper)),
            },
        }
        figures["mean_divergence"] = {
            "at_least": float(self.divergence_lower.mean()),
            "at_most": float(self.divergence_upper.mean()),
        }
        return figures


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
        Another number of points, values that are not finite, or variances that are not positive.
    """
    theirs = _checked("mean", mean, len(exact.mean))
    difference = np.abs(theirs - exact.mean)
    # A difference has one rounding, of half a unit of the larger number at most.
    slack = _ULPS * np.maximum(np.abs(theirs), np.abs(exact.mean))
    low, high = outward(np.maximum(difference - exact.bound - slack, 0.0), difference + exact.bound + slack)
    low = np.maximum(low, 0.0)
    if exact.lower is None or exact.upper is None:
        if variance is not None:
            raise InputError("variances are judged by intervals of the exact variance; predict with `variance`")
        return Audit(low, high)
    least, most = exact.lower, exact.upper
    with np.errstate(divide="ignore", invalid="ignore"):
        far = _ends(_quotient(low, np.sqrt(most)), _quotient(high, np.sqrt(least)))
    if variance is None:
        return Audit(low, high, *far)
    other = _checked("variance", variance, len(exact.mean))
    if (other <= 0.0).any():
        row = int(np.argmax(other <= 0.0))
        raise InputError(f"the variance is {other[row]:g} in row {row}; expected a positive number")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = _ends(_quotient(other, most), _quotient(other, least))
        inside = (least <= other) & (other <= most)
        ends = np.stack([_divergence(least / other), _divergence(most / other)])
        below = np.where(inside, 0.0, ends.min(axis=0)) + low**2 / other
        above = ends.max(axis=0) + high**2 / other
    divergence = _ends(0.5 * below, 0.5 * above)
    return Audit(low, high, *far, *ratio, *divergence)


def _divergence(ratio: FloatArray) -> FloatArray:
    """Return t - 1 - log t, without cancellation near one."""
    near = ratio - 1.0
    return np.asarray(np.where(ratio > 0.0, near - np.log1p(near), np.inf))


def _quotient(upper: FloatArray, lower: FloatArray) -> FloatArray:
    return np.asarray(np.where(upper == 0.0, 0.0, upper / lower))


def _ends(low: Any, high: Any) -> tuple[Any, Any]:
    """Round a lower and an upper end outward by several units of the last place."""
    return np.maximum(low * (1.0 - _ULPS), 0.0), high * (1.0 + _ULPS)


def _checked(name: str, values: ArrayLike, n: int) -> FloatArray:
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(numbers) != n:
        raise InputError(f"`{name}` has {len(numbers)} values; expected {n}, one for each point")
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers)))
        raise InputError(f"the {name} is {numbers[row]} in row {row}; expected finite numbers")
    return numbers
