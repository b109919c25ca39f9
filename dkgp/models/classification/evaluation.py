"""A prediction store of classes against the true labels: figures, and the curves that are drawn of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.data import Dataset, Prediction
from dkgp.errors import InputError
from dkgp.models.classification.metrics import ClassMetrics, ClassTally, mean_area, operating_curve
from dkgp.models.metrics import check_belonging

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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
