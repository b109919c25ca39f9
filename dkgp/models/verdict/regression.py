"""Findings about predicted numbers.

A finding is made where a departure is both beyond chance (a test at a level of one in ten thousand, shared among the
features) and large enough to matter. So a good model of many test samples raises no false alarm, and a bad one of few
is not called bad before there is evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

from dkgp.models.metrics import coverage_band
from dkgp.models.variance_scores import NORMAL_95
from dkgp.models.verdict.finding import COVERAGE_MATTERS, FEWEST_SAMPLES, LEVEL, WORSE, Finding
from dkgp.operators.base import FloatArray

# What matters: the mean of z^2 off one by this factor, skewness and excess kurtosis of z.
_SQUARED, _SKEWNESS, _KURTOSIS = 1.25, 0.5, 1.5
# Rank correlation of |residual| and mean; share of the residuals' (or of their spread's) variance that a feature tells.
_CORRELATION, _SHARE = 0.15, 0.03
_GROUPS = 10
# Of residuals without variances: what part of them the function's own uncertainty has is not known.
_UNKNOWN_SHARE = 0.2
# R^2 below which hardly anything is explained.
_HARDLY = 0.1
_FEATURES_NAMED = 3


@dataclass(frozen=True)
class Residuals:
    """Predictions of one target beside the truth.

    Attributes
    ----------
    truth, means
        (n,), in the target's units.
    deviations
        Standard deviations that were predicted of the observations, (n,), on the scale of `normal` where there is one;
        None where no variances were.
    inputs, features
        The features (n, d), and their names.
    ends
        Where the exact deviations lie, if they are known in proven intervals: lower and upper, (n,) each.
    noise_free
        Whether the truth is the function itself: errors are smooth then, and say nothing of noise.
    latent_share
        Share of the predicted variances that is the function's and no noise, on average. By that much residuals of
        neighbours may be alike, and depend on inputs, in a model that is right.
    normal
        Standardised residuals (n,) of a target that is normal on another scale than its own (a transform), or of noise
        with Student's t.
    transformed
        Whether it is a transform's.
    """

    truth: FloatArray
    means: FloatArray
    deviations: FloatArray | None
    inputs: FloatArray
    features: Sequence[str]
    ends: tuple[FloatArray, FloatArray] | None = None
    noise_free: bool = False
    latent_share: float = 0.0
    normal: FloatArray | None = None
    transformed: bool = True

    @property
    def errors(self) -> FloatArray:
        """Truth less predicted mean, (n,)."""
        return self.truth - self.means

    @property
    def standardised(self) -> FloatArray:
        """Errors over the predicted deviations, or where there are none over their root mean square, (n,)."""
        if self.normal is not None:
            return self.normal
        errors = self.errors
        if self.deviations is not None:
            return errors / self.deviations
        scale = math.sqrt(float(np.mean(errors**2)))
        return errors / scale if scale > 0.0 else errors

    @property
    def effective(self) -> float:
        """Number of samples that counts as evidence about noise: less than n by those whose errors are alike."""
        return len(self.truth) * (1.0 - self.latent_share)

    @property
    def r_squared(self) -> float:
        """Share of the truth's variance that is explained."""
        total = float(np.sum((self.truth - self.truth.mean()) ** 2))
        return 1.0 - float(np.sum(self.errors**2)) / total if total > 0.0 else math.nan


def findings(residuals: Residuals, rivals: dict[str, float] | None = None) -> list[Finding]:
    """Look for what is wrong; the gravest comes first, and none where nothing is.

    Parameters
    ----------
    rivals
        Root mean square errors of simpler models on the same test samples, by their names, in the target's units.
    """
    if len(residuals.truth) < FEWEST_SAMPLES:
        return []
    with np.errstate(all="ignore"):  # errors whose squares overflow
        return _looked_for(residuals, rivals or {})


def _looked_for(residuals: Residuals, rivals: dict[str, float]) -> list[Finding]:
    mean = [_explains_little(residuals), *_rivals(residuals, rivals)]
    if residuals.noise_free:
        return [finding for finding in mean if finding is not None]
    if residuals.effective < FEWEST_SAMPLES:
        # Too few to see a shape of the noise; errors far beyond their bars are evidence all the same.
        return [finding for finding in (*mean, _size(residuals, False)) if finding is not None]
    mean += _dependences(residuals)
    # Residuals that hold a part of the mean have any shape; what shape the noise has is seen once that is mended.
    wrong_mean = any(finding is not None for finding in mean)
    noise = [_grows(residuals), _spread(residuals)]
    noise += [] if wrong_mean else [_skewed(residuals), _tails(residuals)]
    size = _size(residuals, any(finding is not None for finding in noise))
    return [finding for finding in (*mean, size, *noise) if finding is not None]


def _explains_little(residuals: Residuals) -> Finding | None:
    r_squared = residuals.r_squared
    if not r_squared < _HARDLY:
        return None
    return Finding(
        "explains little",
        f"The model explains {max(r_squared, 0.0):.0%} of the target's variance (R² {r_squared:.3g}): the mean of all "
        "targets predicts about as well",
        "Check that the target belongs to its row and that the features say something of it; tune again with "
        "`subset` larger, or another kernel",
    )


def _rivals(residuals: Residuals, rivals: dict[str, float]) -> list[Finding | None]:
    error = math.sqrt(float(np.mean(residuals.errors**2)))
    # Of normal errors of two models that have nothing in common, the ratio's logarithm has the deviation 1 / sqrt(n).
    beyond = max(WORSE, math.exp(2.0 / math.sqrt(len(residuals.truth))))
    worse = {name: rival for name, rival in rivals.items() if error > beyond * rival}
    advice = {
        "a linear model": "A trend carries most of it: add a linear kernel, as in `kernel` rbf+linear, and tune again",
    }
    general = (
        "Steps, thresholds or many categories are not what a smooth kernel is for: try `kernel` matern12 or matern32, "
        "a larger `subset` for tuning, a transform of skewed features; or take that model"
    )
    return [
        Finding(
            "rival",
            f"The error is {error:.4g}, that of {name} {rival:.4g} on the same samples",
            advice.get(name, general),
        )
        for name, rival in worse.items()
    ]


def _size(residuals: Residuals, other_shape: bool) -> Finding | None:
    """Compare the size of errors with what was predicted; of noise of another shape, coverage alone is no evidence."""
    if residuals.deviations is None:
        return None
    z = residuals.standardised
    covered, squared = _covered(z), float(np.mean(z**2))
    n = residuals.effective
    direction = _off(z, n, other_shape)
    low, high = coverage_band(len(z))
    if residuals.ends is not None:
        narrow, wide = (z * (residuals.deviations / np.maximum(end, 1e-300)) for end in residuals.ends)
        if (
            _covered(wide) - _covered(narrow) > COVERAGE_MATTERS
            and len({direction, _off(narrow, n, False), _off(wide, n, False)}) > 1
        ):
            return Finding(
                "loose intervals",
                f"The variances are known too loosely to judge them: {_covered(narrow):.1%} to {_covered(wide):.1%} of "
                f"the 95 % intervals hold the truth (of a calibrated model {low:.1%} to {high:.1%})",
                "Predict again with a smaller `variance_gap`",
            )
    if direction == 0:
        return None
    seen = (
        f"{covered:.1%} of the 95 % intervals hold the truth (of a calibrated model {low:.1%} to {high:.1%}), and "
        f"squared errors are {squared:.3g} times the variances"
    )
    if direction > 0:
        return Finding(
            "overconfident",
            f"The error bars are too narrow: {seen}",
            "The noise is underestimated: tune with `objective` loo or with `holdout`, with a larger `subset`; where "
            "test samples are of another kind than training samples (later in time, other groups), split them so",
        )
    return Finding(
        "underconfident",
        f"The error bars are too wide: {seen}",
        "The noise is overestimated, often by few outliers or by noise that is not the same everywhere: look at the "
        "other findings, and tune with a larger `subset`",
    )


def _covered(z: FloatArray) -> float:
    """Share of 95 % intervals that hold the truth."""
    return float(np.mean(np.abs(z) <= NORMAL_95))


def _off(z: FloatArray, n: float, other_shape: bool) -> int:
    """1 where errors are larger than was predicted, -1 where smaller, 0 where n samples are no evidence of either."""
    if round(n) < 1:
        return 0
    share, squared = _covered(z), float(np.mean(z**2))
    by_chance = scipy.stats.binomtest(round(share * round(n)), round(n), 0.95).pvalue
    # With the deviation that z^2 has, where that is more than a normal distribution's: few outliers are no evidence.
    doubt = abs(squared - 1.0) * math.sqrt(n) / max(float(np.std(z**2)), math.sqrt(2.0))
    off_coverage = by_chance < LEVEL and abs(share - 0.95) > COVERAGE_MATTERS and not other_shape
    off_squares = 2.0 * scipy.stats.norm.sf(doubt) < LEVEL and not 1.0 / _SQUARED < squared < _SQUARED
    if off_squares:
        return 1 if squared > 1.0 else -1
    return (1 if share < 0.95 else -1) if off_coverage else 0


def _grows(residuals: Residuals) -> Finding | None:
    if np.ptp(residuals.means) == 0.0:
        return None
    # Where variances follow the noise, standardised residuals show nothing, and nothing is wrong.
    rank = float(scipy.stats.spearmanr(np.abs(residuals.standardised), residuals.means).statistic)
    degrees = residuals.effective - 2.0
    by_chance = 2.0 * scipy.stats.t.sf(abs(rank) * math.sqrt(degrees / max(1.0 - rank**2, 1e-300)), degrees)
    if not (by_chance < LEVEL and abs(rank) > _CORRELATION):
        return None
    direction = "grows" if rank > 0.0 else "falls"
    positive = rank > 0.0 and bool((residuals.truth > 0.0).all())
    return Finding(
        "noise and mean",
        f"The noise {direction} with the predicted value (rank correlation {rank:.2f}), and the error bars do not "
        "follow it",
        f"{_transform(residuals, positive)}; or let the noise depend on the inputs: tune with `noise_model` auto",
    )


def _transform(residuals: Residuals, positive: bool) -> str:
    if residuals.normal is not None and residuals.transformed:
        return "The target's transform does not mend it: ingest again with the other `transform`, or without"
    if positive:
        return "Take the logarithm of the target: ingest again with `transform` log"
    return "Transform the target: ingest again with `transform` yeo-johnson"


def _skewed(residuals: Residuals) -> Finding | None:
    z, n = residuals.standardised, residuals.effective
    skewness = float(scipy.stats.skew(z))
    # The median's side tells the same without third powers, which a single outlier rules.
    median = (float(np.mean(z)) - float(np.median(z))) / max(float(np.std(z)), 1e-300)
    beyond = 2.0 * scipy.stats.norm.sf(abs(median) * math.sqrt(n) / math.sqrt(math.pi / 2 - 1)) < LEVEL
    if not (beyond and abs(skewness) > _SKEWNESS and skewness * median > 0.0):
        return None
    side = "upwards" if skewness > 0.0 else "downwards"
    positive = skewness > 0.0 and bool((residuals.truth > 0.0).all())
    return Finding(
        "skewed",
        f"The residuals are skewed {side} (skewness {skewness:.2g}), so that intervals around the mean are too wide on "
        "one side and too narrow on the other",
        _transform(residuals, positive),
    )


def _tails(residuals: Residuals) -> Finding | None:
    z, n = residuals.standardised, len(residuals.truth)
    kurtosis = float(scipy.stats.kurtosis(z))
    far = int(np.sum(np.abs(z - np.median(z)) > 4.0 * max(_normal_deviation(z), 1e-300)))
    effective = residuals.effective
    by_chance = scipy.stats.binom.sf(
        math.floor(far * effective / n) - 1, round(effective), 2.0 * scipy.stats.norm.sf(4.0)
    )
    if not (kurtosis > _KURTOSIS and far > 0 and by_chance < LEVEL):
        return None
    return Finding(
        "heavy tails",
        f"{far:,} of {n:,} residuals are beyond four deviations of the rest (a normal distribution: "
        f"{2.0 * scipy.stats.norm.sf(4.0) * n:.2g}; excess kurtosis {kurtosis:.2g})",
        "Look at these rows for mistakes first; outliers that are real widen all error bars and pull the mean: tune "
        "with `likelihood` student-t, under which they count for less",
    )


def _normal_deviation(values: FloatArray) -> float:
    """Standard deviation of the middle of a distribution, from its quartiles."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.3489795


def _dependences(residuals: Residuals) -> list[Finding | None]:
    allowed = residuals.latent_share if residuals.deviations is not None else _UNKNOWN_SHARE
    shares = _shares(residuals, residuals.standardised, _SHARE + allowed)
    if not shares:
        return []
    shown = ", ".join(f"'{name}' ({share:.0%})" for name, share in shares[:_FEATURES_NAMED])
    return [
        Finding(
            "dependence",
            f"The residuals still depend on {shown}: shares of their variance that the feature alone explains",
            "The model has not learned all there is: tune again with a larger `subset` or another `kernel`, check that "
            "the run converged, and that training and test samples are alike in this feature",
        )
    ]


def _spread(residuals: Residuals) -> Finding | None:
    # Logarithms, so that outliers do not rule; of normal residuals they have the variance pi^2 / 2.
    z = residuals.standardised
    shares = _shares(residuals, np.log(np.maximum(z**2, 1e-12)), _SHARE + residuals.latent_share**2)
    if not shares:
        return None
    shown = ", ".join(f"'{name}' ({share:.0%})" for name, share in shares[:_FEATURES_NAMED])
    return Finding(
        "noise and input",
        f"The size of the noise depends on {shown}: shares of the variance of log squared residuals, "
        "which the error bars do not follow",
        "Intervals are right on average only: too wide where the noise is small, too narrow where it is large. "
        "Let the noise depend on the inputs: tune with `noise_model` auto; or transform the target",
    )


def _shares(residuals: Residuals, values: FloatArray, least: float) -> list[tuple[str, float]]:
    """Features that tell more than the share `least` of the variance of `values` (n,), the largest first.

    Of each, its samples are put into ten groups of equal size (of few values, into those), and group means compared as
    in an analysis of variance.
    """
    told = []
    values = values - values.mean()
    total = float(np.sum(values**2))
    d, weight = residuals.inputs.shape[1], residuals.effective / len(values)
    for index in range(d):
        groups = _groups(residuals.inputs[:, index])
        counts = np.bincount(groups)
        k = int(np.sum(counts > 0))
        n = len(values)
        if k < 2 or n * weight - k < FEWEST_SAMPLES or total <= 0.0:
            continue
        sums = np.bincount(groups, weights=values)
        between = float(np.sum((sums**2)[counts > 0] / counts[counts > 0]))
        within = max(total - between, 1e-300)
        by_chance = scipy.stats.f.sf((between / (k - 1)) / (within / (n - k)) * weight, k - 1, n * weight - k)
        # Less what as many groups of noise would tell.
        share = 1.0 - (within / (n - k)) / (total / (n - 1))
        if by_chance < LEVEL / d and share > least:
            told.append((str(residuals.features[index]), float(share)))
    return sorted(told, key=lambda pair: -pair[1])


def _groups(column: FloatArray) -> np.ndarray:
    distinct, inverse = np.unique(column, return_inverse=True)
    if len(distinct) <= _GROUPS:
        return np.asarray(inverse.reshape(-1))
    return np.asarray(np.searchsorted(np.quantile(column, np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1]), column))
