"""Measures of predictions: the errors that the papers report, and the proven bounds of the store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts come when first used: scipy.stats takes every command as long as all of dkgp
from numpy.typing import NDArray

from dkgp.codec import to_json
from dkgp.data import Dataset, Prediction
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.standardisation import RunningMoments
from dkgp.errors import InputError
from dkgp.models.target_units import ScoredVariances, TargetUnits, VarianceTally
from dkgp.operators.base import FloatArray

CURVE_LEVELS = 101
# Bound on the magnitude of float64's binary exponents.
LARGEST_EXPONENT = 1100
_EPS = float(np.finfo(np.float64).eps)
# (upper - lower) / upper of values that were rounded to float64 is off by a few eps, and no gap is unmet by that.
GAP_ROUNDING = 8.0 * _EPS


@dataclass(frozen=True)
class CoverageCurve:
    """Frequencies with which the truth lies in the central predictive intervals of every level.

    For L `levels` from 0 to 1, the share of truths that a central interval of that level should hold, `observed` (L, p)
    is the share that it does hold, over `n` samples.
    """

    levels: FloatArray
    observed: FloatArray
    n: int
    target_names: tuple[str, ...]


class _Squares:
    """Sums of squares (p,), scaled by powers of two: no square overflows or underflows, and no bit changes."""

    def __init__(self, p: int) -> None:
        self._sums, self._exponents = np.zeros(p), np.full(p, -LARGEST_EXPONENT)

    def add(self, values: FloatArray) -> None:
        """Add the squares of values (rows, p)."""
        before = self._exponents
        self._exponents = np.maximum(before, _exponent(np.max(np.abs(values), axis=0)))
        self._sums = np.ldexp(self._sums, 2 * (before - self._exponents))
        self._sums += np.sum(np.ldexp(values, -self._exponents) ** 2, axis=0)

    def root_means(self, n: int) -> FloatArray:
        """Root mean square of n rows, by column: (p,)."""
        return np.asarray(np.ldexp(np.sqrt(self._sums / n), self._exponents))

    def root_mean(self, n: int) -> float:
        """Root mean square of n rows and all columns."""
        largest = int(self._exponents.max())
        means = np.ldexp(self._sums / n, 2 * (self._exponents - largest))
        return float(np.ldexp(np.sqrt(np.mean(means)), largest))


def _exponent(largest: FloatArray) -> NDArray[np.intc]:
    """Powers of two above the magnitudes (p,); `-LARGEST_EXPONENT` for zeros and values that are not finite."""
    usable = np.isfinite(largest) & (largest > 0.0)
    return np.asarray(np.where(usable, np.frexp(largest)[1], -LARGEST_EXPONENT), dtype=np.intc)


def _root_mean_square(values: FloatArray) -> float:
    squares = _Squares(len(values))
    squares.add(values[None])
    return squares.root_mean(1)


class GapTally(NamedTuple):
    """Relative widths of a chunk's certified intervals as they are stored, (upper - lower) / upper, added up."""

    total: float
    largest: float
    unmet: int
    n: int

    @classmethod
    def of(cls, lower: FloatArray, upper: FloatArray, wanted: float | None) -> GapTally:
        """Add intervals (rows, p); all targets of a sample share one relative gap, up to rounding."""
        gap = np.max((upper - lower) / np.where(upper > 0.0, upper, 1.0), axis=1)
        unmet = 0 if wanted is None else int(np.sum(gap > wanted + GAP_ROUNDING))
        return cls(float(np.sum(gap)), float(np.max(gap)), unmet, len(gap))


def outside_interval(variance: FloatArray, lower: FloatArray, upper: FloatArray) -> int:
    """Samples with a variance (rows, p) that is proven to be too small, or too large."""
    return int(np.sum(((variance < lower) | (variance > upper)).any(axis=1)))


def gap_figures(tallies: Sequence[GapTally], wanted: float | None) -> dict[str, Any]:
    """Return the gaps' part of an evaluation, of all chunks of a store."""
    return {
        "variance_gap_mean": math.fsum(tally.total for tally in tallies) / sum(tally.n for tally in tallies),
        "variance_gap_max": max(tally.largest for tally in tallies),
        "variance_gap_wanted": wanted,
        "variance_unmet": None if wanted is None else sum(tally.unmet for tally in tallies),
    }


def evaluate(prediction: Prediction, dataset: Dataset, *, noise_free: bool = False) -> dict[str, Any]:
    """Compare a prediction store with the targets of a dataset, chunk by chunk.

    Densities and coverage take the variance of a new observation, noise included, or, where the targets are noise-free
    function values, that of the function; which of the two the store holds makes no difference. Of an exact model's
    proven intervals they take the middle.

    Raises `InputError`: other samples or targets than were predicted.

    Parameters
    ----------
    dataset : Dataset
        The test set that was predicted, with targets.
    noise_free : bool
        Whether the targets are values of the function itself, without noise.

    Returns
    -------
    dict
        `rmse` (equation 16 of the GBCD paper: normalised by the training targets' standard deviation, on the scale of
        their `transform` where they have one, which is then in the result;
        `target_std`: these deviations; `point`, mean or median, is the prediction
        that errors are measured from), `rmse_raw` and `mae_raw` in the targets' own units, `r_squared` (None of
        constant targets), `mean_error_bound` (largest, normalised as rmse) and `mean_error_bound_rms`: the root mean
        square distance from the exact means is no more;
        None of predictions without bounds; of a sparse model `method`, and `rms_bound`, the same proven at the training
        samples, where it is closer; `nlpd` (of normalised targets), `nlpd_raw` (of targets in their own units) and
        `coverage_95` where variances were predicted, else None; `per_target` for several targets.
        If the noise has Student's t, the result has it (`student_t`), and density and coverage are those of t around a
        normal distribution, without ranges. With variances also `mean_standardised_squared_error` (of error^2 /
        variance: 1 where errors are as large as predicted), `coverage_95_band` (where the coverage of a calibrated
        model lies in 95 of 100 such test sets), `noise_free`; of an exact model, whose variances are proven intervals
        whose middle is taken, `nlpd_range`, `coverage_95_range` ... (their range over the exact variances: proven
        ends, [least, most]); and of the
        certified intervals as they are stored, relative to their upper ends: `variance_gap_mean`,
        `variance_gap_max`, `variance_gap_wanted`, `variance_unmet` (samples above the wanted gap), `variance_outside`
        (share of samples whose own variance is proven wrong: only a sparse model has such).
    """
    check_belonging(prediction, dataset)
    names = tuple(prediction.target_names)
    # Equation 16 normalises by the training targets' deviation; a test set ingested by itself carries its own.
    with described_whole(prediction.url, "predict again"):
        scale = np.array(prediction.attributes.get("target_std", dataset.standardisation.target_std), dtype=np.float64)
        if scale.shape != (len(names),):
            raise ValueError(f"deviations of shape {scale.shape}, of {len(names)} targets")
    variances = ScoredVariances.of(prediction, noise_free)
    certified = {"variance_lower", "variance_upper"} <= set(prediction.variables)
    wanted, gaps = (prediction.attributes.get("variance") or {}).get("gap"), list[GapTally]()
    p, n = len(names), prediction.n_samples
    units = TargetUnits(prediction, noise_free=noise_free)
    absolute, slopes, moments = np.zeros(p), np.zeros(p), RunningMoments(p)
    squared, squared_inside, squared_bound = _Squares(p), _Squares(p), _Squares(p)
    tally = None if variances is None else VarianceTally(scale, variances.proven, variances.student)
    bounded = "mean_error_bound" in prediction.variables
    bound, outside = 0.0, 0
    for start, stop in prediction.row_chunks():
        truth = dataset.targets(start, stop, standardised=False)
        # Targets on the scale of the model, which differs from theirs if they are transformed.
        inside = units.forward(truth, start) - prediction.read("mean", start, stop)
        error = truth - units.point(start, stop) if units.transformed else inside
        moments.update(truth)
        squared.add(error)
        if units.transformed:
            squared_inside.add(inside)
            slopes += units.log_slopes(truth)
        absolute += np.sum(np.abs(error), axis=0)
        if bounded:
            bounds = prediction.read("mean_error_bound", start, stop) / scale
            bound = max(bound, float(np.max(bounds)))
            squared_bound.add(bounds)
        if variances is not None and tally is not None:
            tally.add(inside, variances.read(start, stop))
        if certified:
            lower, upper = (prediction.read(f"variance_{end}", start, stop) for end in ("lower", "upper"))
            gaps.append(GapTally.of(lower, upper, wanted))
            if variances is not None:
                outside += outside_interval(prediction.read("variance", start, stop), lower, upper)
    rmse_raw = squared.root_means(n)
    rmse = (squared_inside.root_means(n) if units.transformed else rmse_raw) / scale
    explained = _r_squared(rmse_raw, moments.std)
    result: dict[str, Any] = {
        "n": n,
        "target_std": scale.tolist(),
        "rmse": _root_mean_square(rmse),
        "rmse_raw": _root_mean_square(rmse_raw),
        "mae_raw": float(np.mean(absolute / n)),
        "r_squared": None if None in explained else math.fsum(share or 0.0 for share in explained) / p,
        "nlpd": None,
        "nlpd_raw": None,
        "coverage_95": None,
        "mean_error_bound": bound if bounded else None,
        "mean_error_bound_rms": squared_bound.root_mean(n) if bounded else None,
    }
    if (prediction.attributes.get("variance") or {}).get("way") == "vif":
        result["variance_approximate"] = True
    if "method" in prediction.attributes:
        result["method"] = prediction.attributes["method"]
        if "rms_bound_raw" in prediction.attributes:
            result["rms_bound"] = _root_mean_square(np.asarray(prediction.attributes["rms_bound_raw"]) / scale)
    # A density of targets in their own units is that of normalised ones, over the unit, by the transform's slope.
    shift = np.log(scale) - slopes / n
    if units.transformed:
        result["transform"], result["point"] = prediction.attributes["transform"], units.point_name
    if tally is not None:
        result |= tally.figures(n, shift)
        result["coverage_95_band"] = list(coverage_band(n))
        result["noise_free"] = noise_free
        if variances is not None and variances.student is not None:
            result["student_t"] = to_json(variances.student)
    if certified:
        result |= {**gap_figures(gaps, wanted), "variance_outside": outside / n}
    if p > 1:
        figures = {"rmse": rmse, "rmse_raw": rmse_raw, "mae_raw": absolute / n}
        if tally is not None:
            figures |= tally.per_target(n, shift)
        result["per_target"] = {
            name: {**{figure: float(values[t]) for figure, values in figures.items()}, "r_squared": explained[t]}
            for t, name in enumerate(names)
        }
    return result


def _r_squared(rmse: FloatArray, deviation: FloatArray) -> list[float | None]:
    """Shares of the truth's variance that are explained, None where it has none; -inf where that overflows."""
    with np.errstate(all="ignore"):
        return [1.0 - float(np.square(of)) if np.isfinite(of) else None for of in rmse / deviation]


def coverage_band(n: int) -> tuple[float, float]:
    """Shares of n test samples between which the coverage of true 95 % intervals lies in 95 of 100 test sets."""
    low, high = scipy.stats.binom.interval(0.95, n, 0.95)
    return float(low) / n, float(high) / n


def coverage_curve(prediction: Prediction, dataset: Dataset, *, noise_free: bool = False) -> CoverageCurve:
    """Return how often the truth lies in central predictive intervals, for levels from 0 to 1.

    Parameters are those of `evaluate`, and so is the variance taken.

    Raises `InputError`: other samples or targets than were predicted, or predictions without variances.
    """
    check_belonging(prediction, dataset)
    variances, units = ScoredVariances.of(prediction, noise_free), TargetUnits(prediction, noise_free=noise_free)
    if variances is None:
        raise InputError(f"'{prediction.url}' has no variances; predict it again with variances")
    levels = np.linspace(0.0, 1.0, CURVE_LEVELS)
    counts = np.zeros((CURVE_LEVELS, prediction.n_targets))
    for start, stop in prediction.row_chunks():
        truth = units.forward(dataset.targets(start, stop, standardised=False), start)
        error = truth - prediction.read("mean", start, stop)
        # The narrowest central interval that holds the truth has this level.
        variance = variances.read(start, stop).middle
        if variances.student is not None:
            error, variance = variances.normal_scores(error, variance), np.ones_like(variance)
        needed = scipy.special.erf(np.abs(error) / np.sqrt(2.0 * variance))
        first = np.searchsorted(levels, needed)
        for t in range(prediction.n_targets):
            counts[:, t] += np.bincount(first[:, t], minlength=CURVE_LEVELS)
    observed = np.cumsum(counts, axis=0) / prediction.n_samples
    return CoverageCurve(levels, observed, prediction.n_samples, tuple(prediction.target_names))


def check_belonging(prediction: Prediction, dataset: Dataset) -> None:
    """Raise `InputError` if the prediction was not made for these samples and targets."""
    if dataset.n_targets == 0:
        raise InputError(
            f"'{dataset.url}' has no true values to compare with. Read the samples again with `targets` (`labels` for "
            "a classifier) of `dkgp ingest`"
        )
    check_same_samples(prediction, dataset)
    names = tuple(prediction.target_names)
    if names != tuple(dataset.target_names):
        raise InputError(f"the prediction has the targets {list(names)}, the data {list(dataset.target_names)}")


def check_same_samples(prediction: Prediction, dataset: Dataset) -> None:
    """Raise `InputError` if the prediction was not made for these samples, with or without targets."""
    if dataset.n_samples != prediction.n_samples:
        raise InputError(
            f"the prediction has {prediction.n_samples} samples, '{dataset.url}' has {dataset.n_samples}; "
            "evaluate a prediction against the test set that it was made for"
        )
    made_for = prediction.attributes.get("data_fingerprint")
    if made_for is not None and made_for != dataset.fingerprint:
        raise InputError(f"the prediction was made for other data than '{dataset.url}'; predict it first")
