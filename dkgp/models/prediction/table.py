"""Predictions as a table: a row a sample, with what is known of the sample beside what is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data import Dataset, Prediction
from dkgp.data.classes import class_name
from dkgp.data.exports import write_table
from dkgp.models.metrics import check_same_samples
from dkgp.models.noise import StudentT
from dkgp.models.target_units import InUnits, TargetUnits, half_widths
from dkgp.operators.base import FloatArray

Columns = dict[str, NDArray[Any]]

# Of a classifier, in the table's order; those with a column for each class have its name behind a dot.
_CLASS_COLUMNS = (
    "probability",
    "probability_lower",
    "probability_upper",
    "decision",
    "decision_error_bound",
    "latent_variance_lower",
    "latent_variance_upper",
)


class PredictionTable:
    """Predictions, with the true targets and identifiers of the samples where a data set tells.

    Columns, in this order: `row` (from 1), the identifiers, the targets under their names, then what is predicted.
    Of numbers these are `mean`, `std`, `lower_95`, `upper_95` and `mean_error_bound`, before which the target's name
    and a dot stand where there are several; of classes `class`, `certified`, and `probability.NAME` and `decision`.
    An identifier or a target that has the name of another column gets `id.` or `true.` before it.

    Of targets that were transformed `median` and `median_error_bound` take the place of `std` and `mean_error_bound`:
    all are in the targets' own units.

    `std` belongs to the middle of the interval that the variance is proven to lie in; of a sparse model it is its
    method's own.

    Parameters
    ----------
    dataset : Dataset, optional
        What the predictions were made for.

    Raises
    ------
    InputError
        The data set holds other samples than were predicted.
    """

    def __init__(self, prediction: Prediction, dataset: Dataset | None = None) -> None:
        if dataset is not None:
            check_same_samples(prediction, dataset)
        self.prediction, self.dataset = prediction, dataset
        self._has_targets = dataset is not None and set(prediction.target_names) <= set(dataset.target_names)

    def blocks(self) -> Iterator[Columns]:
        """The rows of each chunk, columns by name."""
        for start, stop in self.prediction.row_chunks():
            yield self.rows(start, stop)

    def rows(self, start: int, stop: int) -> Columns:
        """The rows of the samples [start, stop), columns by name. Errors as of `Prediction.read`."""
        of_classes = "class" in self.prediction.variables
        predicted = self._classes(start, stop) if of_classes else self._numbers(start, stop)
        columns: Columns = {"row": np.arange(start + 1, stop + 1)}
        taken = {*columns, *predicted}
        for prefix, known in (("id", self._identifiers(start, stop)), ("true", self._truth(start, stop))):
            for name, values in known.items():
                unique = name
                while unique in taken:
                    unique = f"{prefix}.{unique}"
                taken.add(unique)
                columns[unique] = values
        return columns | predicted

    def _identifiers(self, start: int, stop: int) -> Columns:
        if self.dataset is None:
            return {}
        texts = self.dataset.ids(start, stop)
        return {name: texts[:, column] for column, name in enumerate(self.dataset.id_names)}

    def _truth(self, start: int, stop: int) -> Columns:
        dataset, names = self.dataset, self.prediction.target_names
        if dataset is None or not self._has_targets:
            return {}
        if dataset.classes is not None:
            classes = np.array(dataset.classes, dtype=object)
            return {names[0]: classes[dataset.labels(start, stop)]}
        targets = dataset.targets(start, stop, standardised=False)
        columns = {name: targets[:, dataset.target_names.index(name)] for name in names}
        if self.prediction.classes is None:
            return columns
        return {name: np.array([class_name(value) for value in values], object) for name, values in columns.items()}

    def _numbers(self, start: int, stop: int) -> Columns:
        units = TargetUnits(self.prediction)
        quantities = self._back(units.read(start, stop)) if units.transformed else self._as_stored(start, stop)
        names = self.prediction.target_names
        return {
            quantity if len(names) == 1 else f"{name}.{quantity}": values[:, column]
            for column, name in enumerate(names)
            for quantity, values in quantities.items()
        }

    @staticmethod
    def _back(units: InUnits) -> Columns:
        """Predictions of targets that were transformed, in their units: there is a median beside the mean."""
        quantities = {
            "mean": units.mean,
            "median": units.median,
            "lower_95": units.lower,
            "upper_95": units.upper,
            "median_error_bound": units.median_error_bound,
        }
        return {name: values for name, values in quantities.items() if values is not None}

    def _as_stored(self, start: int, stop: int) -> Columns:
        prediction = self.prediction
        quantities = {"mean": prediction.read("mean", start, stop)}
        variance = self._variance(start, stop)
        if variance is not None:
            latent = bool((prediction.attributes.get("variance") or {}).get("latent"))
            half = half_widths(variance, None if latent else StudentT.held(prediction.attributes.get("student_t")))
            quantities |= {
                "std": np.sqrt(variance),
                "lower_95": quantities["mean"] - half,
                "upper_95": quantities["mean"] + half,
            }
        if "mean_error_bound" in prediction.variables:
            quantities["mean_error_bound"] = prediction.read("mean_error_bound", start, stop)
        return quantities

    def _variance(self, start: int, stop: int) -> FloatArray | None:
        """The variances (rows, p) that deviations are of; None where none were predicted."""
        prediction = self.prediction
        if "variance" not in prediction.variables:
            return None
        if "method" in prediction.attributes or "variance_lower" not in prediction.variables:
            return prediction.read("variance", start, stop)
        lower, upper = (prediction.read(f"variance_{end}", start, stop) for end in ("lower", "upper"))
        return np.asarray(lower + 0.5 * (upper - lower))

    def _classes(self, start: int, stop: int) -> Columns:
        prediction, names = self.prediction, self.prediction.classes or ()
        columns: Columns = {"class": np.array(names, dtype=object)[prediction.labels(start, stop)]}
        if "certified" in prediction.variables:
            columns["certified"] = prediction.certified(start, stop)
        for variable in _CLASS_COLUMNS:
            if variable in prediction.variables:
                values = prediction.read(variable, start, stop)
                one = values.shape[1] == 1
                columns |= {
                    variable if one else f"{variable}.{name}": values[:, column]
                    for column, name in enumerate(names[:1] if one else names)
                }
        return columns


def export(prediction: Prediction, dataset: Dataset | None, path: str) -> list[str]:
    """Write a prediction store as a table, in the form that the path's suffix stands for; return its columns.

    Raises
    ------
    InputError, StorageError
        As of `PredictionTable` and `dkgp.data.exports.write_table`.
    """
    table = PredictionTable(prediction, dataset)
    write_table(path, table.blocks())
    return list(table.rows(0, 1))
