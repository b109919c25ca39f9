"""Predictions of rows in memory as a prediction store has them, by a model of any kind that is made ready once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from dkgp.codec import to_json
from dkgp.data import AnyModel, ClassifierRecord, LinearRecord, ModelRecord, Prediction, SparseRecord
from dkgp.data.stores.memory_dataset import standardised_inputs
from dkgp.data.types import BoolArray, FloatArray, IntArray, Json
from dkgp.errors import InputError
from dkgp.models.prediction.class_predictor import ClassPredictor
from dkgp.models.prediction.exact import student_attributes
from dkgp.models.prediction.linear import linear_task
from dkgp.models.prediction.predictor import Predictor, standardised
from dkgp.models.prediction.sparse import SparsePredictor
from dkgp.models.prediction.sparse_rounds import PredictionMemory, refuse_exact_settings
from dkgp.models.prediction.table import Columns, PredictionTable
from dkgp.models.sparse.stored import opened_sparse
from dkgp.models.variance.settings import VarianceSettings

# Rows that variances are planned for, where nobody knows how many will come.
ROWS_PLANNED_FOR = 1024

Values: TypeAlias = dict[str, FloatArray]


@dataclass(frozen=True)
class _Rows:
    """Predictions in memory, with what `PredictionTable` asks of a store."""

    url: str
    target_names: tuple[str, ...]
    classes: tuple[str, ...] | None
    attributes: Json
    values: Values
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
        Variances of a model that has none, or settings of them that rows in memory have no use for.
    MemoryBudgetError
        They do not fit in memory.
    """

    def __init__(self, model: AnyModel | LinearRecord, variance: VarianceSettings | None = None) -> None:
        self._model = model
        self._version = f"rows-{model.fingerprint}-{time.time_ns():x}"
        self._attributes: Json = {}
        if model.standardisation.transforms:
            self._attributes["transform"] = to_json(model.standardisation.transforms)
        if variance is not None:
            self._refuse(variance)
        self._predict = self._predictor(variance)

    @property
    def middle(self) -> FloatArray:
        """Raw inputs in the middle of the training set, (d,)."""
        return self._model.standardisation.input_mean

    def __call__(self, inputs: FloatArray) -> Columns:
        """Columns (r,) by name, of raw inputs (r, d) or, with features that were constant, (r, d_raw).

        Raises `InputError`: another number of features, or values that are not finite.
        """
        model = self._model
        classes = model.classes if isinstance(model, ClassifierRecord) else None
        rows = _Rows(model.url, model.target_names, classes, self._attributes, self._predict(inputs))
        columns = PredictionTable(cast(Prediction, rows)).rows(0, len(inputs))
        return {name: values for name, values in columns.items() if name != "row"}

    def close(self) -> None:
        """Drop what this process keeps of the model."""
        Predictor.forget(self._version)

    def _refuse(self, variance: VarianceSettings) -> None:
        model = self._model
        if isinstance(model, ClassifierRecord | LinearRecord):
            kind = "classifier" if isinstance(model, ClassifierRecord) else "linear regression"
            raise InputError(
                f"`variance` is of regressions by Gaussian processes; '{model.url}' is a {kind}. Leave it out"
            )
        for name, value in (("basis", variance.basis), ("keep_factor", variance.keep_factor)):
            if value:
                raise InputError(f"`{name}` is of predictions in a store, and none is written here; leave it out")
        if isinstance(model, SparseRecord):
            refuse_exact_settings(variance)
            PredictionMemory.of(model, 1, True).require(variance.memory_bytes)

    def _predictor(self, variance: VarianceSettings | None) -> Callable[[FloatArray], Values]:
        model, scale = self._model, np.asarray(self._model.standardisation.target_std)
        if isinstance(model, ClassifierRecord):
            of_classes = ClassPredictor(model, self._version)
            return lambda inputs: of_classes(inputs).values
        if isinstance(model, LinearRecord):
            return lambda inputs: _linear(model, inputs)
        if variance is not None:
            self._attributes["variance"] = {"latent": variance.latent}
            self._attributes["noise_variance"] = (model.noise_variance * scale**2).tolist()
        predictor: Callable[[FloatArray], Any]
        if isinstance(model, ModelRecord):
            self._attributes |= {} if variance is None else student_attributes(model, scale)
            predictor = Predictor(model, self._version, variance, n_test=ROWS_PLANNED_FOR)
        else:
            self._attributes["method"] = model.method
            latent = variance is not None and variance.latent
            predictor = SparsePredictor(opened_sparse(model), variance=variance is not None, latent=latent)
        names = {"mean": "mean", "mean_error_bound": "mean_error"}
        if variance is not None:
            names |= {name: name for name in ("variance", "variance_lower", "variance_upper")}

        def predicted(inputs: FloatArray) -> Values:
            prediction = predictor(inputs)
            return {name: getattr(prediction, attribute) for name, attribute in names.items()}

        return predicted


def _linear(model: LinearRecord, inputs: FloatArray) -> Values:
    """A linear regression's predictions in the targets' units."""
    rows, to = standardised(model, inputs), model.standardisation
    test = standardised_inputs(rows, model.feature_names)
    (values,) = linear_task(model.coefficients, model.intercept, test, [(0, len(rows))])
    return {"mean": values * to.target_std + to.target_mean}
