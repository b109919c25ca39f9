"""Findings: faults of a model that its predictions of a test set show, each with advice.

`findings` looks at predicted numbers, `label_findings` at predicted classes; `fit_rivals` fits simpler models to
compare with. A finding is made where a departure is both beyond chance (a test at a level of one in ten thousand,
shared among the features) and large enough to matter. So a good model of many test samples raises no false alarm, and a
bad one of few is not called bad before there is evidence.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from dkgp.data import Dataset, Prediction
from dkgp.data.stores.models.references import training_set_named
from dkgp.data.types import IntArray
from dkgp.limits import measured_slowness
from dkgp.models.classification.metrics import ClassMetrics, Reliability
from dkgp.models.metrics import check_belonging, coverage_band
from dkgp.models.target_units import NORMAL_95, ScoredVariances, TargetUnits
from dkgp.operators.base import FloatArray

# Findings on the size of error bars.
LOOSE = "loose intervals"
SIZES = ("overconfident", "underconfident", LOOSE)
# Least number of test samples for findings.
FEWEST_SAMPLES = 30
# Probability of a false alarm, for each kind of finding.
LEVEL = 1e-4
# Points of coverage that matter.
COVERAGE_MATTERS = 0.015
# A model is worse than a rival by this factor.
WORSE = 1.05


@dataclass(frozen=True)
class Finding:
    """A fault: `kind` for programs, the observation in `text`, the remedy in `advice`.

    Parameters of dkgp's commands stand in backticks.
    """

    kind: str
    text: str
    advice: str


# Advice on a test set of another kind.
SPLIT = (
    "If test samples differ from training samples (later in time, other groups), give the training set such samples too"
)
# Advice to tune again.
TUNE = "Run `dkgp tune` again with another `kernel`, or with a larger `subset` if there are more training samples"
# Departures that matter: the mean of z^2 off one by this factor, skewness and excess kurtosis of z.
_SQUARED, _SKEWNESS, _KURTOSIS = 1.25, 0.5, 1.5
# Mean of z^2 below which test rows probably repeat training rows.
_REPEATED = 0.01
# Rank correlation of |residual| and mean; share of the residuals' (or of their spread's) variance that a feature tells.
_CORRELATION, _SHARE = 0.15, 0.03
_GROUPS = 10
# Halvings of the samples into blocks of neighbours; the level of an upper end of how much their errors are alike.
_HALVINGS, _DOUBT = 5, 0.1
# Assumed share of the function's uncertainty in residuals without variances.
_UNKNOWN_SHARE = 0.2
# R^2 below which the model explains almost nothing.
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
        """Errors over the predicted deviations or, without variances, over their root mean square, (n,)."""
        if self.normal is not None:
            return self.normal
        errors = self.errors
        if self.deviations is not None:
            return errors / self.deviations
        scale = math.sqrt(float(np.mean(errors**2)))
        return errors / scale if scale > 0.0 else errors

    @property
    def of_noise(self) -> float:
        """Number of samples that counts as evidence about the noise: n times its share of the variances."""
        return len(self.truth) * (1.0 - self.latent_share)

    @cached_property
    def effective(self) -> float:
        """Number of independent errors that tell as much about error bars as these n.

        Errors of the noise are independent, those of the function are alike where inputs are. So many count as noise
        has a share in the variances; more if blocks of neighbours show that their errors are not alike.
        """
        n, z, least = len(self.truth), self.standardised, self.of_noise
        squared = float(np.mean(z**2))
        if n < FEWEST_SAMPLES or least >= 0.9 * n or not 0.0 < squared < math.inf:
            return least
        alike = 1.0
        for blocks in _blocks(self):
            counts = np.bincount(blocks)
            # A sum of k independent errors of mean zero has k times the variance of one; of k that are equal, k^2.
            ratio = float(np.mean(np.bincount(blocks, weights=z) ** 2 / np.maximum(counts, 1))) / squared
            alike = max(alike, ratio * len(counts) / float(scipy.stats.chi2.ppf(_DOUBT, len(counts))))
        return max(least, n / alike)

    @property
    def r_squared(self) -> float:
        """Share of the truth's variance that is explained."""
        total = float(np.sum((self.truth - self.truth.mean()) ** 2))
        return 1.0 - float(np.sum(self.errors**2)) / total if total > 0.0 else math.nan


def findings(residuals: Residuals, rivals: dict[str, float] | None = None) -> list[Finding]:
    """Return the faults, the gravest first; none for a good model.

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
    if residuals.of_noise < FEWEST_SAMPLES:
        # Too few to see a shape of the noise; errors far beyond their bars are evidence all the same.
        return [finding for finding in (*mean, _size(residuals, False)) if finding is not None]
    mean += _dependences(residuals)
    # Residuals that hold a part of the mean have any shape; the noise's shape shows once that is mended.
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
        f"Check that each target belongs to its row and that it depends on the features. {TUNE}",
    )


def _rivals(residuals: Residuals, rivals: dict[str, float]) -> list[Finding | None]:
    error = math.sqrt(float(np.mean(residuals.errors**2)))
    # Of normal errors of two models that have nothing in common, the ratio's logarithm has the deviation 1 / sqrt(n).
    beyond = max(WORSE, math.exp(2.0 / math.sqrt(len(residuals.truth))))
    worse = {name: rival for name, rival in rivals.items() if error > beyond * rival}
    advice = {
        "a linear model": "A linear trend explains most of the target. Add a linear kernel: run `dkgp tune` again with "
        "`kernel` rbf+linear",
    }
    general = (
        "Smooth kernels do not suit steps, thresholds or many categories. Run `dkgp tune` again with `kernel` "
        "matern12 or matern32, or with a larger `subset`. Transform skewed features, or use that other model"
    )
    return [
        Finding(
            "rival",
            f"The root mean square error is {error:.4g}, and that of {name} on the same samples is {rival:.4g}",
            advice.get(name, general),
        )
        for name, rival in worse.items()
    ]


def _size(residuals: Residuals, other_shape: bool) -> Finding | None:
    """Compare the size of errors with the predicted one; with noise of another shape coverage alone is no evidence."""
    if residuals.deviations is None:
        return None
    z = residuals.standardised
    covered, squared = _covered(z), float(np.mean(z**2))
    # Error bars of a function without noise are wide where the noise's lower bound is far above the errors: no fault.
    n = residuals.of_noise if squared < _REPEATED else residuals.effective
    direction = _off(z, n, other_shape)
    low, high = coverage_band(max(1, round(residuals.effective)))
    if residuals.ends is not None:
        narrow, wide = (z * (residuals.deviations / np.maximum(end, 1e-300)) for end in residuals.ends)
        if (
            _covered(wide) - _covered(narrow) > COVERAGE_MATTERS
            and len({direction, _off(narrow, n, False), _off(wide, n, False)}) > 1
        ):
            return Finding(
                LOOSE,
                f"The proven intervals of the variances are too wide for a verdict on them: {_covered(narrow):.1%} to "
                f"{_covered(wide):.1%} of the 95 % intervals contain the true value (for a calibrated model {low:.1%} "
                f"to {high:.1%})",
                "Run `dkgp predict` again with a smaller `variance_gap`",
            )
    if direction == 0:
        return None
    band = f"for a calibrated model {low:.1%} to {high:.1%}"
    times = f"squared errors are {squared:.3g} times the variances"
    seen = f"{covered:.1%} of the 95 % intervals contain the true value ({band}), and {times}"
    if low <= covered <= high:
        seen = f"{times} on average. The coverage of 95 % intervals, {covered:.1%}, is in its range ({band})"
    if direction > 0:
        return Finding(
            "overconfident",
            f"The {'variances are too small' if low <= covered <= high else 'error bars are too narrow'}: {seen}",
            f"The noise is underestimated. Run `dkgp tune` again with `objective` loo and a larger `subset`. {SPLIT}",
        )
    text = f"The {'variances are too large' if low <= covered <= high else 'error bars are too wide'}: {seen}"
    if squared < _REPEATED:
        advice = "Check whether test rows repeat training rows. If they do, leave the repeats out and evaluate again"
        return Finding("underconfident", text, advice)
    return Finding(
        "underconfident",
        text,
        "The noise is overestimated, often because of a few outliers or because the noise is not constant. See the "
        "other findings, and run `dkgp tune` again with a larger `subset`",
    )


def _covered(z: FloatArray) -> float:
    """Share of 95 % intervals that hold the truth."""
    return float(np.mean(np.abs(z) <= NORMAL_95))


def _off(z: FloatArray, n: float, other_shape: bool) -> int:
    """Return 1 for errors larger than predicted, -1 for smaller ones, 0 if n samples are no evidence of either."""
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
    degrees = residuals.of_noise - 2.0
    by_chance = 2.0 * scipy.stats.t.sf(abs(rank) * math.sqrt(degrees / max(1.0 - rank**2, 1e-300)), degrees)
    if not (by_chance < LEVEL and abs(rank) > _CORRELATION):
        return None
    direction = "grows" if rank > 0.0 else "falls"
    positive = rank > 0.0 and bool((residuals.truth > 0.0).all())
    return Finding(
        "noise and mean",
        f"The noise {direction} with the predicted value (rank correlation {rank:.2f}){_unmatched(residuals)}",
        f"{_transform(residuals, positive)}; or let the noise depend on the inputs: run `dkgp tune` with `noise_model` "
        "auto",
    )


def _unmatched(residuals: Residuals) -> str:
    """Return the clause on error bars of a finding on the noise; nothing if no variances were predicted."""
    return "" if residuals.deviations is None else ", and the error bars do not follow it"


def _transform(residuals: Residuals, positive: bool) -> str:
    if residuals.normal is not None and residuals.transformed:
        return (
            "The target's transform does not help. Run `dkgp ingest` again with the other `transform`, or without one"
        )
    if positive:
        return "Take the logarithm of the target: run `dkgp ingest` again with `transform` log"
    return "Transform the target: run `dkgp ingest` again with `transform` yeo-johnson"


def _skewed(residuals: Residuals) -> Finding | None:
    z, n = residuals.standardised, residuals.of_noise
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
    effective = residuals.of_noise
    by_chance = scipy.stats.binom.sf(
        math.floor(far * effective / n) - 1, round(effective), 2.0 * scipy.stats.norm.sf(4.0)
    )
    if not (kurtosis > _KURTOSIS and far > 0 and by_chance < LEVEL):
        return None
    return Finding(
        "heavy tails",
        f"{far:,} of {n:,} residuals are beyond four standard deviations of the others (expected for normal noise: "
        f"{2.0 * scipy.stats.norm.sf(4.0) * n:.2g}; excess kurtosis {kurtosis:.2g})",
        "First check these rows for mistakes. Real outliers widen all error bars and shift the mean. Run "
        "`dkgp tune` with `likelihood` student-t, which gives them less weight",
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
            f"The residuals still depend on {shown}. A percentage is the share of their variance that the feature "
            "explains",
            f"The model misses part of the dependence. {TUNE}. Check that the run converged, and that training and "
            "test samples have similar values of this feature",
        )
    ]


def _spread(residuals: Residuals) -> Finding | None:
    # Logarithms, so that outliers do not rule; of normal residuals they have the variance pi^2 / 2.
    z = residuals.standardised
    shares = _shares(residuals, np.log(np.maximum(z**2, 1e-12)), _SHARE + residuals.latent_share**2)
    if not shares:
        return None
    shown = ", ".join(f"'{name}' ({share:.0%})" for name, share in shares[:_FEATURES_NAMED])
    only = (
        "Intervals are right only on average: too wide where the noise is small, too narrow where it is large. "
        if residuals.deviations is not None
        else ""
    )
    return Finding(
        "noise and input",
        f"The size of the noise depends on {shown}{_unmatched(residuals)}. A percentage is R² of the "
        "log squared residuals, explained by this feature alone",
        f"{only}Run `dkgp tune` with `noise_model` auto, so that the noise depends on the inputs, or transform the "
        "target",
    )


def _shares(residuals: Residuals, values: FloatArray, least: float) -> list[tuple[str, float]]:
    """Features that tell more than the share `least` of the variance of `values` (n,), the largest first.

    Of each, its samples are put into ten groups of equal size (of few values, into those), and group means compared as
    in an analysis of variance.
    """
    told = []
    values = values - values.mean()
    total = float(np.sum(values**2))
    d, weight = residuals.inputs.shape[1], residuals.of_noise / len(values)
    for index in range(d):
        between, k = _between(residuals.inputs[:, index], values)
        n = len(values)
        if k < 2 or n * weight - k < FEWEST_SAMPLES or total <= 0.0:
            continue
        within = max(total - between, 1e-300)
        by_chance = scipy.stats.f.sf((between / (k - 1)) / (within / (n - k)) * weight, k - 1, n * weight - k)
        # Less the share that as many groups of noise would explain.
        share = 1.0 - (within / (n - k)) / (total / (n - 1))
        if by_chance < LEVEL / d and share > least:
            told.append((str(residuals.features[index]), float(share)))
    return sorted(told, key=lambda pair: -pair[1])


def _blocks(residuals: Residuals) -> Iterator[IntArray]:
    """Yield block numbers (n,) of the samples, of 8, 16 and 32 blocks of neighbours of about equal size.

    A block is halved at the median of the feature in which it is widest. Features count by the share of the means'
    variance that each explains, so that neighbours are near in the features that matter.
    """
    means = residuals.means - residuals.means.mean()
    X = residuals.inputs - residuals.inputs.mean(axis=0)
    shares = np.array([_between(column, means)[0] for column in X.T]) / max(float(np.sum(means**2)), 1e-300)
    X = X * np.sqrt(shares / np.maximum(X.var(axis=0), 1e-300))
    blocks = np.zeros(len(X), dtype=np.int64)
    for depth in range(_HALVINGS):
        for block in range(2**depth):
            rows = np.flatnonzero(blocks == block)
            widest = X[rows, int(np.argmax(X[rows].std(axis=0)))]
            blocks[rows[np.argsort(widest, kind="stable")[len(rows) // 2 :]]] += 2**depth
        if depth + 3 >= _HALVINGS:
            yield blocks


def _between(column: FloatArray, values: FloatArray) -> tuple[float, int]:
    """Return the sum of squares that groups by a column explain of `values` (n,), of mean zero, and their number."""
    groups = _groups(column)
    counts, sums = np.bincount(groups), np.bincount(groups, weights=values)
    return float(np.sum((sums**2)[counts > 0] / counts[counts > 0])), int(np.sum(counts > 0))


def _groups(column: FloatArray) -> np.ndarray:
    distinct, inverse = np.unique(column, return_inverse=True)
    if len(distinct) <= _GROUPS:
        return np.asarray(inverse.reshape(-1))
    return np.asarray(np.searchsorted(np.quantile(column, np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1]), column))


# A model that avoids less than this share of the errors that naming the commonest class makes explains little.
_AVOIDED = 0.1
# A class is rare below this part of an even share; missed where less than half of its samples are recognised.
_RARE, _RECALL = 0.5, 0.5
# Least number of missed samples of a class that is mentioned.
_FEWEST_MISSED = 5
# Points of calibration error that matter; samples (by p (1 - p)) without which a bin's share is no normal number.
_CALIBRATION, _FEWEST_IN_BIN = 0.02, 5.0
_CLASSES_NAMED = 5


def label_findings(metrics: ClassMetrics) -> list[Finding]:
    """Return the faults of predicted classes, the gravest first; none for a good model."""
    if metrics.n < FEWEST_SAMPLES:
        return []
    looked = (_labels_explain_little(metrics), _missed(metrics), _calibration(metrics.reliability))
    return [finding for finding in looked if finding is not None]


def _labels_explain_little(metrics: ClassMetrics) -> Finding | None:
    counts = metrics.confusion.sum(axis=1)
    commonest = int(np.argmax(counts))
    naive = 1.0 - float(counts[commonest]) / metrics.n
    # Few errors of few rare samples are judged by class, below.
    if naive * metrics.n < FEWEST_SAMPLES or metrics.error_rate < (1.0 - _AVOIDED) * naive:
        return None
    return Finding(
        "explains little",
        f"{metrics.error_rate:.2%} of the labels are wrong; always predicting the most frequent class, "
        f"'{metrics.classes[commonest]}', would be wrong in {naive:.2%}",
        f"Check that each label belongs to its row and that it depends on the features. {TUNE}",
    )


def _missed(metrics: ClassMetrics) -> Finding | None:
    counts, told = metrics.confusion.sum(axis=1), np.diag(metrics.confusion)
    share = counts / metrics.n
    named = metrics.confusion.sum(axis=0)
    missed = []
    for code in np.argsort(counts).tolist():
        count = int(counts[code])
        never = named[code] == 0 and count * (1.0 - _RECALL) >= _FEWEST_MISSED
        rare = share[code] < _RARE / len(counts)
        # Fewer right labels than a recall of one half would give by chance.
        by_chance = scipy.stats.binom.cdf(told[code], count, _RECALL)
        if never or (rare and by_chance < LEVEL):
            words = "never predicted" if never else f"{told[code] / count:.0%} of its samples are recognised"
            missed.append(f"'{metrics.classes[code]}' ({words}; {count:,} of {metrics.n:,} samples)")
    if not missed:
        return None
    more = f" and {len(missed) - _CLASSES_NAMED} more" if len(missed) > _CLASSES_NAMED else ""
    return Finding(
        "missed classes",
        f"Some classes are not recognised: {', '.join(missed[:_CLASSES_NAMED])}{more}",
        "Errors of rare classes have little influence on the error rate. If they matter, check the balanced error and "
        "run `dkgp classify` again with `class_weight` balanced",
    )


def mostly_missed(classes: Sequence[str], confusion: Sequence[Sequence[int]]) -> str | None:
    """Return a text about the rare class with the smallest recall below one half; None if there is none.

    The misses may be chance. Rows of `confusion` are true classes.
    """
    matrix = np.asarray(confusion)
    counts, told = matrix.sum(axis=1), np.diag(matrix)
    is_rare = counts < _RARE * matrix.sum() / len(counts)
    missed = is_rare & (counts - told >= _FEWEST_MISSED) & (told < _RECALL * counts)
    if not missed.any():
        return None
    code = int(np.argmin(np.where(missed, told / np.maximum(counts, 1), np.inf)))
    recognised = f"{told[code]:,} of {counts[code]:,} test samples"
    return f"Only {recognised} of the rare class '{classes[code]}' are recognised"


def _calibration(reliability: Reliability | None) -> Finding | None:
    if reliability is None:
        return None
    claimed, observed, counts = reliability.claimed, reliability.observed, reliability.counts
    # Of calibrated probabilities p the sum over a bin has a variance of no more than this.
    variance = counts * claimed * (1.0 - claimed)
    usable = variance >= _FEWEST_IN_BIN
    if not usable.any():
        return None
    statistic = float(np.sum((counts * (observed - claimed))[usable] ** 2 / variance[usable]))
    by_chance = scipy.stats.chi2.sf(statistic, int(usable.sum()))
    # The error of as many samples of calibrated probabilities.
    expected = float(np.sum(np.sqrt(2.0 / np.pi * variance))) / int(counts.sum())
    if by_chance >= LEVEL or reliability.error < expected + _CALIBRATION:
        return None
    # Claims that are further from one half than the observed frequencies.
    excess = float(np.sum(counts * np.sign(claimed - 0.5) * (claimed - observed)))
    direction = "too sure" if excess > 0.0 else "not sure enough"
    return Finding(
        "calibration",
        f"The probabilities are {direction}: predicted probabilities and observed frequencies differ by "
        f"{reliability.error:.1%} on average (for a calibrated model and as many samples {expected:.1%})",
        "Run `dkgp classify` with `method` gp, which averages probabilities over the model's uncertainty, or "
        f"`dkgp tune` with `likelihood`. {SPLIT}",
    )


# Test samples that are looked at, and numbers among their features: of more, every second, third ...
MOST_SAMPLES, MOST_NUMBERS = 100_000, 2**25


def read_residuals(prediction: Prediction, dataset: Dataset, *, noise_free: bool = False) -> dict[str, Residuals]:
    """Residuals of each target, by its name, of at most 100,000 samples, evenly spaced.

    Parameters and errors are those of `dkgp.models.metrics.evaluate`, and so are the variances.
    """
    check_belonging(prediction, dataset)
    variances = ScoredVariances.of(prediction, noise_free)
    most = min(MOST_SAMPLES, max(1000, MOST_NUMBERS // max(1, dataset.n_features)))
    step = -(-prediction.n_samples // most)
    units = TargetUnits(prediction, noise_free=noise_free)
    truth, means, inputs, inside = (list[FloatArray]() for _ in range(4))
    deviations: tuple[list[FloatArray], ...] = ([], [], [])
    known = list[FloatArray]()
    for start, stop in prediction.row_chunks():
        rows = slice(-start % step, None, step)
        targets = dataset.targets(start, stop, standardised=False)
        truth.append(targets[rows])
        means.append(units.point(start, stop)[rows])
        if units.transformed:
            inside.append((units.forward(targets, start) - prediction.read("mean", start, stop))[rows])
        inputs.append(dataset.inputs(start, stop, standardised=False)[rows])
        if "noise" in prediction.variables:
            known.append(prediction.read("noise", start, stop)[rows])
        if variances is not None:
            for parts, variance in zip(deviations, variances.read(start, stop), strict=True):
                parts.append(np.sqrt(variance[rows]))
    errors = np.concatenate(inside) if inside else None
    y, m, X = (np.concatenate(parts) for parts in (truth, means, inputs))
    s = None if variances is None else [np.concatenate(parts) for parts in deviations]
    proven = variances is not None and variances.proven
    noise = np.zeros(prediction.n_targets) + np.asarray(prediction.attributes.get("noise_variance", np.inf))
    beside = np.concatenate(known) if known else np.zeros((1, prediction.n_targets))
    return {
        name: Residuals(
            y[:, t],
            m[:, t],
            None if s is None else s[0][:, t],
            X,
            dataset.feature_names,
            (s[1][:, t], s[2][:, t]) if s is not None and proven else None,
            noise_free,
            0.0 if s is None else _latent_share(s[0][:, t], noise[t] + beside[:, t]),
            _normal(
                None if errors is None else errors[:, t], (y - m)[:, t], None if s is None else s[0][:, t], variances
            ),
            errors is not None,
        )
        for t, name in enumerate(prediction.target_names)
    }


def _normal(
    inside: FloatArray | None, errors: FloatArray, deviations: FloatArray | None, variances: ScoredVariances | None
) -> FloatArray | None:
    """Return residuals (n,) that should be normal: `inside` a transform, or by Student's t; None without either."""
    if variances is not None and variances.student is not None and deviations is not None:
        errors = errors if inside is None else inside
        return variances.normal_scores(errors[:, None], deviations[:, None] ** 2)[:, 0]
    return None if inside is None else inside / (_deviation(inside) if deviations is None else deviations)


def _deviation(errors: FloatArray) -> float:
    """Return the root mean square of errors; 1 if all are zero."""
    return float(np.sqrt(np.mean(errors**2))) or 1.0


def _latent_share(deviations: FloatArray, noise: FloatArray) -> float:
    """Return the average share of the variances that is not noise; 0 if the noise is unknown."""
    return float(np.mean(np.maximum(1.0 - noise / deviations**2, 0.0)))


MEAN, LINEAR, BOOSTING = "the mean of all targets", "a linear model", "gradient boosting (scikit-learn)"
# Training rows that boosting sees, and features whose products a linear model still holds.
MOST_VALUES, MOST_FEATURES = 2**27, 4000
# Of boosting, by row and feature, with a start: from 20,000 rows of 10 features (.17 s) and of 100 (1.2 s), one thread.
_SECONDS, _START_SECONDS = 6e-7, 0.1
# Directions of the linear model that carry less than this share of the largest are left out: one-hot columns repeat.
_RANK = 1e-10


@dataclass(frozen=True)
class Rivals:
    """Root mean square errors of simpler models on the test samples, by target and by name, in the target's units."""

    rmse_raw: dict[str, dict[str, float]]
    training_rows: int
    boosting_rows: int
    seconds: float


def fit_rivals(prediction: Prediction, test: Dataset, note: Callable[[str], None]) -> Rivals:
    """Fit simpler models to the training set that the prediction's model names, and take their errors.

    The linear model is one of least squares, from sums over chunks. Boosting is trained on all rows, or on evenly
    spaced ones if all of them would take more than a gibibyte. It is left out if scikit-learn is not installed.

    Parameters
    ----------
    prediction, test
        Predictions of numbers, and the test set that they are of.
    note
        Takes a line on the work to come, and about how long it takes.

    Raises
    ------
    StoreError
        The model, or the training set that it names, is gone, has changed or may not be named.
    """
    began = time.perf_counter()
    attributes = prediction.attributes
    training = training_set_named(str(attributes["model"]), str(attributes["model_fingerprint"]))
    train = training.as_seen_by(training.feature_names, prediction.target_names, training.standardisation)
    seen = test.as_seen_by(train.feature_names, prediction.target_names, train.standardisation)
    boosts = importlib.util.find_spec("sklearn") is not None
    step = _boosting_step(train)
    rows = -(-train.n_samples // step) if boosts else 0
    if boosts:
        of = "all" if rows == train.n_samples else f"{rows:,} of"
        note(
            f"comparing with a linear model and boosting on {of} {train.n_samples:,} training rows: about "
            f"{max(1.0, rival_seconds(train)):.0f} s"
        )
    fits: dict[str, Callable[[FloatArray], FloatArray]] = _sums_of_squares(train)
    if boosts:
        fits[BOOSTING] = _boosting(train, step)
    squared = {name: np.zeros(train.n_targets) for name in fits}
    for start, stop in seen.row_chunks():
        X, y = seen.inputs(start, stop), seen.targets(start, stop, standardised=False)
        for name, predict in fits.items():
            squared[name] += np.sum((y - predict(X)) ** 2, axis=0)
    errors = {
        target: {name: float(np.sqrt(sums[t] / test.n_samples)) for name, sums in squared.items()}
        for t, target in enumerate(prediction.target_names)
    }
    return Rivals(errors, train.n_samples, rows, time.perf_counter() - began)


def rival_seconds(train: Dataset) -> float:
    """Return a forecast of the time of `fit_rivals` on one core."""
    rows = -(-train.n_samples // _boosting_step(train))
    return train.n_targets * (_START_SECONDS + _SECONDS * rows * train.n_features)


def _boosting_step(train: Dataset) -> int:
    """Return k if boosting is trained on every k-th row."""
    return max(1, -(-train.n_samples * train.n_features // MOST_VALUES))


def _sums_of_squares(train: Dataset) -> dict[str, Callable[[FloatArray], FloatArray]]:
    """The mean, and least squares on standardised inputs where these are not too many."""
    d, p = train.n_features, train.n_targets
    with_products = d <= MOST_FEATURES
    total, inputs, products, mixed = (
        np.zeros(p),
        np.zeros(d),
        np.zeros((d, d) if with_products else 0),
        np.zeros((d, p)),
    )
    for start, stop in train.row_chunks():
        X, y = train.inputs(start, stop), train.targets(start, stop, standardised=False)
        total += y.sum(axis=0)
        if with_products:
            inputs += X.sum(axis=0)
            products += X.T @ X
            mixed += X.T @ y
    n = train.n_samples
    mean, centre = total / n, inputs / n
    fits: dict[str, Callable[[FloatArray], FloatArray]] = {MEAN: lambda X: np.broadcast_to(mean, (len(X), p))}
    if with_products:
        covariance, mixed = products / n - np.outer(centre, centre), mixed / n - np.outer(centre, mean)
        weights = np.linalg.lstsq(covariance, mixed, rcond=_RANK)[0]
        fits[LINEAR] = lambda X: np.asarray((X - centre) @ weights + mean)
    return fits


def _boosting(train: Dataset, step: int) -> Callable[[FloatArray], FloatArray]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    parts = [
        (train.inputs(start, stop)[-start % step :: step], train.targets(start, stop, False)[-start % step :: step])
        for start, stop in train.row_chunks()
    ]
    X, y = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    with _boosting_threads():
        models = [HistGradientBoostingRegressor(random_state=0).fit(X, column) for column in y.T]

    def predict(rows: FloatArray) -> FloatArray:
        with _boosting_threads():
            return np.stack([model.predict(rows) for model in models], axis=1)

    return predict


def _boosting_threads() -> AbstractContextManager[object]:
    """Give boosting one thread on a busy machine.

    Its threads wait for each other thousands of times, and spin: with four times as many processes as cores, 8,000 rows
    took 3.7 processor seconds with two threads and .16 with one.
    """
    return threadpool_limits(1, "openmp") if measured_slowness() > 1.0 else nullcontext()
