"""Measures of classes: errors, ranking, probabilities, and the certified share.

Figures are counted chunk by chunk (`ClassTally`), so that any number of samples takes little memory; only the area
under the curve needs a class's decisions side by side (`area_under_curve`), one class at a time.

`evaluate_classes` compares a prediction store with the true labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dkgp.data import Dataset, Prediction
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.models.metrics import check_belonging

BoolArray = NDArray[np.bool_]

BINS = 15
# In place of the logarithm of zero, as in scikit-learn.
LEAST_PROBABILITY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Reliability:
    """Claimed probabilities against observed frequencies, in bins of equal width.

    Of two classes the probability is that of the second and the event that it is the true one; of several it is that of
    the label that was given, and the event that the label is right (Guo et al., *On calibration of modern neural
    networks*, 2017).

    Attributes
    ----------
    claimed, observed : (bins,) float64
        Mean probability and share of events of a bin's samples; zero where it has none.
    counts : (bins,) int
    """

    claimed: FloatArray
    observed: FloatArray
    counts: IntArray

    @property
    def error(self) -> float:
        """Expected calibration error: mean over samples of |claimed - observed| of their bins."""
        return float(np.sum(self.counts * np.abs(self.claimed - self.observed)) / max(1, int(self.counts.sum())))


@dataclass(frozen=True)
class ClassMetrics:
    """Figures of labels that were given; rates are shares of `n` samples, None where nothing was there to say.

    Attributes
    ----------
    classes : tuple of str
    n : int
        Samples that count: all, or those whose labels are certified.
    confusion : (C, C) int
        Samples of class i that were given the label j.
    error_rate, balanced_error : float
        Share of wrong labels; mean, over the classes that occur, of the share of a class's samples that are wrong.
    log_loss, brier : float or None
        Mean of -log p(true class), with p no less than 2.2e-16; mean of (p - event)^2 of two classes' second, and of
        its sum over several.
    reliability : Reliability or None
    certified_share, certified_errors : float and int, or None
        Share of *all* samples whose labels are proven to be those of the exact model, and how many of these are wrong.
    abstained : float or None
        Share of all samples that were left out since their labels are not certified; None where none was to be.
    interval_width_mean, interval_width_max : float or None
        Of the intervals in which the probability of the given label is proven to lie.
    auc : float or None
        Area under the curve of the decisions; of several classes the mean over each against the rest.
    """

    # Properties that its JSON has too.
    derived: ClassVar = ("accuracy", "balanced_accuracy", "ece")

    classes: tuple[str, ...]
    n: int
    confusion: IntArray
    error_rate: float
    balanced_error: float
    log_loss: float | None = None
    brier: float | None = None
    reliability: Reliability | None = None
    certified_share: float | None = None
    certified_errors: int | None = None
    certified_error_rate: float | None = None
    uncertified_error_rate: float | None = None
    abstained: float | None = None
    auc: float | None = None
    interval_width_mean: float | None = None
    interval_width_max: float | None = None

    @property
    def accuracy(self) -> float:
        """Share of labels that are right."""
        return 1.0 - self.error_rate

    @property
    def balanced_accuracy(self) -> float:
        """Mean over classes of the share of a class's samples that are right."""
        return 1.0 - self.balanced_error

    @property
    def ece(self) -> float | None:
        """Expected calibration error; None without probabilities."""
        return None if self.reliability is None else self.reliability.error


@dataclass
class ClassTally:
    """Counts of labels, probabilities and certificates, added up chunk by chunk.

    Attributes
    ----------
    classes : tuple of str
    abstain : bool
        Whether only certified labels count.
    """

    classes: tuple[str, ...]
    abstain: bool = False
    _n: int = 0
    _confusion: IntArray = field(init=False)
    _certified: IntArray = field(init=False)
    _loss: float = 0.0
    _brier: float = 0.0
    _bins: FloatArray = field(init=False)
    _widths: float = 0.0
    _widest: float = 0.0
    _has: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        count = len(self.classes)
        if count < 2:
            raise InputError(f"labels have two classes at least; got {list(self.classes)}")
        self._confusion = np.zeros((count, count), dtype=np.int64)
        self._certified = np.zeros((2, 2), dtype=np.int64)
        self._bins = np.zeros((3, BINS))

    def add(
        self,
        codes: IntArray,
        predicted: IntArray,
        *,
        probabilities: FloatArray | None = None,
        certified: BoolArray | None = None,
        intervals: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Take in the true and the given labels of r samples.

        Parameters
        ----------
        codes, predicted : (r,) int
        probabilities : (r, C) float64, optional
        certified : (r,) bool, optional
        intervals : (r, C) and (r, C) float64, optional
            Ends between which the probabilities are proven to lie.

        Raises
        ------
        InputError
            Shapes or codes that do not fit, or no certificates where only certified labels count.
        """
        truth, predicted_codes = self._codes("true", codes), self._codes("predicted", predicted)
        if len(truth) != len(predicted_codes):
            raise InputError(
                f"there are {len(truth)} true labels and {len(predicted_codes)} predicted ones; expected as many"
            )
        self._n += len(truth)
        wrong = truth != predicted_codes
        if certified is not None:
            known = np.asarray(certified, dtype=bool)
            if known.shape != truth.shape:
                raise InputError(f"certified has shape {known.shape}; expected ({len(truth)},)")
            self._has.add("certified")
            np.add.at(self._certified, (known.astype(np.int64), wrong.astype(np.int64)), 1)
        elif self.abstain:
            raise InputError(
                "there are no certificates to abstain by; predict again with a model that certifies labels"
            )
        kept = known if self.abstain else slice(None)
        np.add.at(self._confusion, (truth[kept], predicted_codes[kept]), 1)
        if probabilities is not None:
            values = np.asarray(probabilities, dtype=np.float64)
            if values.shape != (len(truth), len(self.classes)):
                raise InputError(
                    f"probabilities have shape {values.shape}; expected ({len(truth)}, {len(self.classes)})"
                )
            self._has.add("probabilities")
            self._add_probabilities(truth[kept], predicted_codes[kept], values[kept])
        if intervals is not None and len(predicted_codes[kept]):
            self._has.add("intervals")
            widths = label_widths(predicted_codes[kept], *(end[kept] for end in intervals))
            self._widths += float(widths.sum())
            self._widest = max(self._widest, float(widths.max()))

    def metrics(self, auc: float | None = None) -> ClassMetrics:
        """Return the figures of all that was taken in; `auc` is passed on.

        Raises
        ------
        InputError
            No sample, or none that counts.
        """
        n = int(self._confusion.sum())
        if self._n == 0:
            raise InputError("there is no sample to evaluate")
        if n == 0:
            raise InputError(
                f"no label of {self._n:,} is certified: abstaining leaves nothing to evaluate; train to a smaller "
                "`tolerance`, or evaluate all labels"
            )
        by_class = self._confusion.sum(axis=1)
        occurs = by_class > 0
        recall = np.diag(self._confusion)[occurs] / by_class[occurs]
        known = self._certified.sum(axis=1)
        has_certified = "certified" in self._has
        return ClassMetrics(
            classes=tuple(self.classes),
            n=n,
            confusion=self._confusion.copy(),
            error_rate=float((n - np.trace(self._confusion)) / n),
            balanced_error=float(1.0 - np.mean(recall)),
            log_loss=self._loss / n if "probabilities" in self._has else None,
            brier=self._brier / n if "probabilities" in self._has else None,
            reliability=self._reliability() if "probabilities" in self._has else None,
            certified_share=float(known[1] / self._n) if has_certified else None,
            certified_errors=int(self._certified[1, 1]) if has_certified else None,
            certified_error_rate=float(self._certified[1, 1] / known[1]) if has_certified and known[1] else None,
            uncertified_error_rate=float(self._certified[0, 1] / known[0]) if has_certified and known[0] else None,
            abstained=(self._n - n) / self._n if self.abstain else None,
            auc=auc,
            interval_width_mean=self._widths / n if "intervals" in self._has else None,
            interval_width_max=self._widest if "intervals" in self._has else None,
        )

    def _codes(self, whose: str, codes: IntArray) -> IntArray:
        values = np.asarray(codes)
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            raise InputError(f"{whose} labels are an array of {values.dtype} and shape {values.shape}; expected codes")
        if len(values) and not 0 <= values.min() <= values.max() < len(self.classes):
            raise InputError(
                f"{whose} labels have codes from {values.min()} to {values.max()}; there are {len(self.classes)} "
                "classes"
            )
        return values

    def _add_probabilities(self, truth: IntArray, predicted: IntArray, values: FloatArray) -> None:
        true = np.take_along_axis(values, truth[:, None], axis=1)[:, 0]
        self._loss -= float(np.sum(np.log(np.clip(true, LEAST_PROBABILITY, 1.0))))
        if len(self.classes) == 2:
            claimed, event = values[:, 1], truth == 1
            self._brier += float(np.sum((claimed - event) ** 2))
        else:
            claimed, event = np.take_along_axis(values, predicted[:, None], axis=1)[:, 0], truth == predicted
            # sum_c (p_c - [c is true])^2, without an array of zeros and ones.
            self._brier += float(np.sum(values**2) - 2.0 * np.sum(true) + len(true))
        bins = np.clip((claimed * BINS).astype(np.int64), 0, BINS - 1)
        for row, values_of in enumerate((np.ones(len(bins)), claimed, event.astype(np.float64))):
            self._bins[row] += np.bincount(bins, weights=values_of, minlength=BINS)

    def _reliability(self) -> Reliability:
        counts, claimed, events = self._bins
        size = np.maximum(counts, 1.0)
        return Reliability(claimed / size, events / size, counts.astype(np.int64))


def label_widths(labels: IntArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Widths of the intervals (r, C) of the given labels' probabilities: (r,)."""
    rows = np.arange(len(labels))
    return np.asarray(upper[rows, labels] - lower[rows, labels])


def mean_area(codes: IntArray, column: Callable[[int], FloatArray], n_outputs: int) -> float | None:
    """Area under the curve of two classes; of several, the mean over each that occurs against the rest that does.

    `column(c)` are the decisions (n,) of a machine; None where every sample is of one class.
    """
    areas = [
        area_under_curve(column(number), codes == (1 if n_outputs == 1 else number))
        for number in range(n_outputs)
        if 0 < np.count_nonzero(codes == (1 if n_outputs == 1 else number)) < len(codes)
    ]
    return float(np.mean(areas)) if areas else None


def area_under_curve(scores: FloatArray, positive: BoolArray) -> float:
    """Probability that a positive sample's score is above a negative one's, ties counted half.

    By ranks (Mann and Whitney); equal scores have their mean rank.

    Raises
    ------
    InputError
        One side has no sample.
    """
    event = np.asarray(positive, dtype=bool)
    plus = int(event.sum())
    minus = len(event) - plus
    if plus == 0 or minus == 0:
        raise InputError(f"an area under the curve needs both sides; got {plus} positive and {minus} negative samples")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    return float((ranks[place][event].sum() - plus * (plus + 1) / 2.0) / plus / minus)


def operating_curve(scores: FloatArray, positive: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Shares of false and of true alarms at every threshold, from (0, 0) to (1, 1): the receiver's operating curve."""
    event = np.asarray(positive, dtype=bool)
    plus = int(event.sum())
    if not 0 < plus < len(event):
        raise InputError(f"a curve needs both sides; got {plus} positive and {len(event) - plus} negative samples")
    values, place = np.unique(-np.asarray(scores, dtype=np.float64), return_inverse=True)
    true = np.bincount(place, weights=event, minlength=len(values))
    false = np.bincount(place, weights=~event, minlength=len(values))
    return np.append(0.0, np.cumsum(false)) / (len(event) - plus), np.append(0.0, np.cumsum(true)) / plus


# Decisions that are held at once, for the areas under the curves.
MOST_DECISIONS = 2**25
MOST_POINTS = 2000


@dataclass(frozen=True)
class OperatingCurve:
    """Shares of false and of true alarms at all thresholds on the decisions for one class; `name` is the class's."""

    name: str
    false: FloatArray
    true: FloatArray


@dataclass(frozen=True)
class ClassEvaluation:
    """Figures of a prediction store, and the curves that were asked for."""

    metrics: ClassMetrics
    curves: tuple[OperatingCurve, ...]


def holds_classes(prediction: Prediction) -> bool:
    """True if these are predictions of classes rather than of numbers."""
    return "class" in prediction.variables


def evaluate_classes(
    prediction: Prediction, dataset: Dataset, *, abstain: bool = False, curves: bool = False
) -> ClassEvaluation:
    """Compare a prediction store of classes with the labels of a dataset, matched by the classes' names.

    Labels and probabilities are read chunk by chunk; decisions, for the areas under the curves, as many columns at a
    time as 2^25 numbers have room for.

    Parameters
    ----------
    prediction : Prediction
        With the variable `class`.
    dataset : Dataset
        The test set that was predicted, with labels.
    abstain
        Whether only certified labels count.
    curves
        Whether the receivers' operating curves are wanted, of 2,000 points at most.

    Returns
    -------
    ClassEvaluation

    Raises
    ------
    InputError
        Other samples or labels than were predicted, a label that is none of the model's, or no certificates to abstain
        by.
    """
    if not holds_classes(prediction):
        raise InputError(f"'{prediction.url}' holds no classes; it has {', '.join(prediction.variables)}")
    if prediction.classes is None:
        raise InputError(f"'{prediction.url}' does not name its classes; predict again")
    check_belonging(prediction, dataset)
    if abstain and "certified" not in prediction.variables:
        raise InputError(
            f"`abstain` leaves out labels that are not certified, and '{prediction.url}' has no certificates; predict "
            "with an exact model, whose labels are, or evaluate all labels"
        )
    truth = dataset.as_seen_by(dataset.feature_names, dataset.target_names, dataset.standardisation, prediction.classes)
    tally = ClassTally(prediction.classes, abstain)
    codes = np.empty(prediction.n_samples, dtype=np.int64)
    kept = np.ones(prediction.n_samples, dtype=bool)
    for start, stop in prediction.row_chunks():
        codes[start:stop] = truth.labels(start, stop)
        certified = prediction.certified(start, stop) if "certified" in prediction.variables else None
        probabilities = prediction.read("probability", start, stop) if "probability" in prediction.variables else None
        predicted, intervals = prediction.labels(start, stop), None
        if "probability_lower" in prediction.variables:
            lower, upper = (prediction.read(f"probability_{end}", start, stop) for end in ("lower", "upper"))
            intervals = lower, upper
        tally.add(codes[start:stop], predicted, probabilities=probabilities, certified=certified, intervals=intervals)
        if abstain and certified is not None:
            kept[start:stop] = certified
    if "decision" not in prediction.variables or not kept.any():
        return ClassEvaluation(tally.metrics(), ())
    column = _decision_columns(prediction, kept)
    kept_codes, t = codes[kept], prediction.read("decision", 0, 1).shape[1]
    metrics = tally.metrics(mean_area(kept_codes, column, t))
    return ClassEvaluation(metrics, _curves(kept_codes, column, t, prediction.classes) if curves else ())


def _decision_columns(prediction: Prediction, kept: NDArray[np.bool_]) -> Callable[[int], FloatArray]:
    """Return a function that reads one machine's decisions, (kept samples,), with its neighbours' where they fit."""
    group = max(1, MOST_DECISIONS // prediction.n_samples)
    # Of softmax the decision for a class says nothing without the others': its probability ranks.
    name = "probability" if prediction.attributes.get("likelihood") == "softmax" else "decision"
    cached: dict[int, FloatArray] = {}

    def column(number: int) -> FloatArray:
        first = number - number % group
        if first not in cached:
            cached.clear()
            chunks = prediction.row_chunks()
            read = [prediction.read(name, *chunk)[kept[slice(*chunk)], first : first + group] for chunk in chunks]
            cached[first] = np.concatenate(read)
        return cached[first][:, number - first]

    return column


def _curves(
    codes: IntArray, column: Callable[[int], FloatArray], t: int, classes: tuple[str, ...]
) -> tuple[OperatingCurve, ...]:
    curves = []
    for number in range(t):
        code = 1 if t == 1 else number
        positive = codes == code
        if not 0 < np.count_nonzero(positive) < len(codes):
            continue
        false, true = operating_curve(column(number), positive)
        shown = np.unique(np.linspace(0, len(false) - 1, min(len(false), MOST_POINTS)).round().astype(np.int64))
        curves.append(OperatingCurve(classes[code], false[shown], true[shown]))
    return tuple(curves)
