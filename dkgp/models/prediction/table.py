"""Predictions as a table: one row per sample, with the sample's known values and the predictions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.data import AnyModel, Dataset, LinearRecord, Prediction
from dkgp.data.classes import class_name
from dkgp.data.exports import write_table
from dkgp.data.types import BoolArray, IntArray, Json
from dkgp.errors import InputError
from dkgp.models.metrics import check_same_samples
from dkgp.models.noise import StudentT
from dkgp.models.prediction.classes import ROWS_PLANNED_FOR
from dkgp.models.prediction.posterior import Columns, Want, forget
from dkgp.models.prediction.predict import posterior_of, transform_attribute
from dkgp.models.prediction.sparse import prediction_memory, refuse_exact_settings
from dkgp.models.target_units import InUnits, TargetUnits, half_widths
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray

Table: TypeAlias = dict[str, NDArray[Any]]

# Columns of a classifier, in the table's order. Columns per class have the class name after a dot.
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
    """Predictions, with the true targets and identifiers of the samples if a data set provides them.

    The columns are, in this order: `row` (from 1), the identifiers, the targets under their names, then predictions.
    Predictions of numbers are `mean`, `std`, `lower_95`, `upper_95` and `mean_error_bound`. With several targets, the
    target's name and a dot precede these. Predictions of classes are `class`, `certified`, `probability.NAME` and
    `decision`. An identifier or a target with the name of another column gets the prefix `id.` or `true.`.

    For transformed targets, `median` and `median_error_bound` replace `std` and `mean_error_bound`, and `mean` needs
    variances. All values are in the targets' own units. `mean` is always the expectation of a new observation.

    `std` corresponds to the middle of the proven interval of the variance. For a sparse model it is the method's own.

    Parameters
    ----------
    dataset : Dataset, optional
        The data set of the predictions.

    Raises
    ------
    InputError
        If the data set does not contain the predicted samples.
    """

    def __init__(self, prediction: Prediction, dataset: Dataset | None = None) -> None:
        if dataset is not None:
            check_same_samples(prediction, dataset)
        self.prediction, self.dataset = prediction, dataset
        self._has_targets = dataset is not None and set(prediction.target_names) <= set(dataset.target_names)

    def blocks(self) -> Iterator[Table]:
        """Return the rows of each chunk, columns by name."""
        for start, stop in self.prediction.row_chunks():
            yield self.rows(start, stop)

    def rows(self, start: int, stop: int) -> Table:
        """Return the rows of the samples [start, stop), columns by name. Raises the errors of `Prediction.read`."""
        of_classes = "class" in self.prediction.variables
        predicted = self._classes(start, stop) if of_classes else self._numbers(start, stop)
        columns: Table = {"row": np.arange(start + 1, stop + 1)}
        taken = {*columns, *predicted}
        for prefix, known in (("id", self._identifiers(start, stop)), ("true", self._truth(start, stop))):
            for name, values in known.items():
                unique = name
                while unique in taken:
                    unique = f"{prefix}.{unique}"
                taken.add(unique)
                columns[unique] = values
        return columns | predicted

    def _identifiers(self, start: int, stop: int) -> Table:
        if self.dataset is None:
            return {}
        texts = self.dataset.ids(start, stop)
        return {name: texts[:, column] for column, name in enumerate(self.dataset.id_names)}

    def _truth(self, start: int, stop: int) -> Table:
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

    def _numbers(self, start: int, stop: int) -> Table:
        units = TargetUnits(self.prediction)
        quantities = self._back(units.read(start, stop)) if units.transformed else self._as_stored(start, stop)
        names = self.prediction.target_names
        return {
            quantity if len(names) == 1 else f"{name}.{quantity}": values[:, column]
            for column, name in enumerate(names)
            for quantity, values in quantities.items()
        }

    @staticmethod
    def _back(units: InUnits) -> Table:
        """Return predictions of transformed targets, in their own units."""
        quantities = {
            "mean": units.mean,
            "median": units.median,
            "lower_95": units.lower,
            "upper_95": units.upper,
            "median_error_bound": units.median_error_bound,
        }
        return {name: values for name, values in quantities.items() if values is not None}

    def _as_stored(self, start: int, stop: int) -> Table:
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
        """Return the variances (rows, p) of the deviations; None if no variances were predicted."""
        prediction = self.prediction
        if "variance" not in prediction.variables:
            return None
        if "method" in prediction.attributes or "variance_lower" not in prediction.variables:
            return prediction.read("variance", start, stop)
        lower, upper = (prediction.read(f"variance_{end}", start, stop) for end in ("lower", "upper"))
        return np.asarray(lower + 0.5 * (upper - lower))

    def _classes(self, start: int, stop: int) -> Table:
        prediction, names = self.prediction, self.prediction.classes or ()
        columns: Table = {"class": np.array(names, dtype=object)[prediction.labels(start, stop)]}
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
        As raised by `PredictionTable` and `dkgp.data.exports.write_table`.
    """
    table = PredictionTable(prediction, dataset)
    write_table(path, table.blocks())
    return list(table.rows(0, 1))


@dataclass(frozen=True)
class _Rows:
    """Predictions in memory, with the interface of a store that `PredictionTable` needs."""

    url: str
    target_names: tuple[str, ...]
    classes: tuple[str, ...] | None
    attributes: Json
    values: Columns
    variables: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", tuple(self.values))

    @property
    def n_targets(self) -> int:
        return len(self.target_names)

    @property
    def n_samples(self) -> int:
        return len(next(iter(self.values.values())))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        values = self.values[name][start:stop]
        return values[:, None] if values.ndim == 1 else values

    def labels(self, start: int = 0, stop: int | None = None) -> IntArray:
        return self.read("class", start, stop)[:, 0].astype(np.int64)

    def certified(self, start: int = 0, stop: int | None = None) -> BoolArray:
        return np.asarray(self.read("certified", start, stop)[:, 0] > 0.0)


class RowTable:
    """Tables of predictions at rows in memory, as `dkgp export` writes them, without numbers of rows.

    Parameters
    ----------
    model : ModelRecord, SparseRecord, ClassifierRecord or LinearRecord
    variance : VarianceSettings, optional
        Predict variances too.

    Raises
    ------
    InputError
        If the model has no variances, or if their settings do not apply to rows in memory.
    MemoryBudgetError
        If variances do not fit in memory.
    """

    def __init__(self, model: AnyModel | LinearRecord, variance: VarianceSettings | None = None) -> None:
        self._model = model
        self._version = f"rows-{model.fingerprint}-{time.time_ns():x}"
        if variance is not None:
            self._refuse(variance)
        latent = model.class_names is not None
        want = Want.in_memory(self._version, None if latent else variance, n_test=ROWS_PLANNED_FOR)
        self._posterior = posterior_of(model, want)

    @property
    def middle(self) -> FloatArray:
        """Raw inputs in the middle of the training set, (d,), or (d + c,) with covariates."""
        to = self._model.standardisation
        return to.row_mean[to.raw_order]

    def __call__(self, inputs: FloatArray) -> Table:
        """Columns (r,) by name, of raw inputs (r, d) or, with features that were constant, (r, d_raw).

        Raises `InputError` for another number of features, or values that are not finite.
        """
        posterior, model = self._posterior, self._model
        attributes = {**posterior.attributes, **transform_attribute(model)}
        rows = _Rows(model.url, model.target_names, posterior.classes, attributes, posterior(inputs))
        columns = PredictionTable(cast(Prediction, rows)).rows(0, len(inputs))
        return {name: values for name, values in columns.items() if name != "row"}

    def close(self) -> None:
        """Drop this process's data of the model."""
        forget(self._version)

    def _refuse(self, variance: VarianceSettings) -> None:
        model: Any = self._model
        if not model.has_variances:
            raise InputError(
                f"`variance` is of regressions by Gaussian processes; '{model.url}' is {model.title.lower()}. Leave it "
                "out"
            )
        for name, value in (("basis", variance.basis), ("keep_factor", variance.keep_factor)):
            if value:
                raise InputError(f"`{name}` is of predictions in a store, and none is written here; leave it out")
        if model.is_sparse:
            refuse_exact_settings(variance)
            prediction_memory(model, 1, True).require(variance.memory_bytes)
