"""State of a fitted classifier: the model, and where workers can read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.data import ClassifierRecord, Dataset, find_classifier, memory_classifier, save_classifier
from dkgp.data.stores.memory_dataset import AssembledDataset, assembled_dataset
from dkgp.errors import StoreError
from dkgp.estimators.fitted import Fitted, Workspace
from dkgp.models.prediction.class_predictor import ClassPredictor, ClassPredictorSource
from dkgp.models.variance.variances import VarianceSettings

_ESTIMATORS = {
    "exact": "LSSVC",
    "fixed-size": "FixedSizeLSSVC",
    "logistic": "KernelLogisticClassifier",
    "gp": "GPClassifier",
}


class FittedClassifier(Fitted):
    """A classifier; one of all samples needs its training inputs, one of prototypes does not.

    Parameters
    ----------
    record : ClassifierRecord
    dataset : Dataset, optional
        The training set of one of all samples that was trained here; of one from a store the record has the inputs.
    workspace : Workspace
    """

    record: ClassifierRecord
    form: ClassVar[str]

    def __init__(self, record: ClassifierRecord, dataset: Dataset | None, workspace: Workspace) -> None:
        self.record, self.dataset, self.workspace = record, dataset, workspace
        self._new_version()

    @classmethod
    def of(cls, record: ClassifierRecord, dataset: Dataset, workspace: Workspace, about: dict[str, Any]) -> Self:
        """Keep what was trained; `about` joins its summary."""
        support = None if record.is_sparse else dataset
        stored = replace(record, summary={**record.summary, "estimator": about})
        return cls(memory_classifier(stored, support), support, workspace)

    @classmethod
    def load(cls, url: str, workspace: Workspace) -> Self:
        """Open a stored model; `StoreError` where there is none of this form."""
        record = find_classifier(url)
        if record.form != cls.form:
            raise StoreError(
                f"'{url}' holds a classifier of the form '{record.form}'; expected '{cls.form}'. Load it with "
                f"{_ESTIMATORS[record.form]}"
            )
        return cls(record, None, workspace)

    def save(self, url: str, *, by_reference: bool = False, overwrite: bool = False) -> None:
        """Write the model to a store; errors as of `save_classifier`."""
        save_classifier(url, self.record, dataset=self._support(), by_reference=by_reference, overwrite=overwrite)

    def _store(self, url: str) -> None:
        """A training set that is in a store already is referred to."""
        support = self._support()
        self.save(url, by_reference=support is not None and not isinstance(support, AssembledDataset))

    def source(self, variance: VarianceSettings | None, n_test: int) -> ClassPredictorSource:
        """Return what tasks of this process take their predictor from; what is asked for is of no consequence."""
        return ClassPredictorSource(self.record.url, self.version, self.record.reference)

    def _made(self, variance: VarianceSettings | None, n_test: int) -> ClassPredictor:
        return ClassPredictor(self.record, self.version)

    def _support(self) -> Dataset | None:
        """The training inputs of a model of all samples as a data set, with labels that nobody is shown."""
        if self.record.is_sparse:
            return None
        return self.dataset if self.dataset is not None else assembled_dataset(*self._training_set())

    def _training_set(self) -> tuple[Any, ...]:
        """Arguments of `assembled_dataset`."""
        record, n = self.record, self.record.n_support
        starts = range(0, n, record.chunk_rows)
        return (
            np.concatenate([record.inputs(start, min(start + record.chunk_rows, n)) for start in starts]),
            np.zeros((n, 1)),
            record.standardisation,
            record.feature_names,
            record.target_names,
            record.fingerprint,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything in arrays: whoever unpickles this has neither this process's memory nor its temporary files."""
        return {
            "record": replace(self.record, _support=None),
            "training_set": None if self.record.is_sparse else self._training_set(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        support = None if state["training_set"] is None else assembled_dataset(*state["training_set"])
        self.record = memory_classifier(state["record"], support)
        self.dataset, self.workspace = support, Workspace(None)
        self._new_version()


class FittedExact(FittedClassifier):
    """An exact LS-SVM."""

    form = "exact"


class FittedFixedSize(FittedClassifier):
    """A fixed-size LS-SVM."""

    form = "fixed-size"


class FittedLogistic(FittedClassifier):
    """Kernel logistic regression."""

    form = "logistic"


class FittedGP(FittedClassifier):
    """A Gaussian process classifier."""

    form = "gp"
