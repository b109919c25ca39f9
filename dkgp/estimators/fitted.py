"""State of a fitted estimator: the model, what it takes to train on, and where workers can read it."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import threading
import uuid
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

import dask.config
import numpy as np

from dkgp.data import (
    ClassifierRecord,
    Dataset,
    ModelRecord,
    SparseRecord,
    find_classifier,
    find_model,
    is_resident,
    memory_classifier,
    memory_model,
    memory_sparse_model,
    open_sparse_model,
    save_classifier,
    save_model,
    save_sparse_model,
)
from dkgp.data.stores.arrays import row_ranges
from dkgp.data.stores.memory_dataset import AssembledDataset, assembled_dataset
from dkgp.errors import StoreError
from dkgp.forks import fork_safe, remove_with
from dkgp.models.exact import TrainedModel
from dkgp.models.prediction.class_predictor import ClassPredictor, ClassPredictorSource
from dkgp.models.prediction.predictor import Predictor, PredictorSource
from dkgp.models.prediction.sparse import SparsePredictor, SparsePredictorSource
from dkgp.models.sparse.problem import TrainedSparse
from dkgp.models.sparse.stored import opened_sparse, sparse_record
from dkgp.models.sparse.update import update_sparse
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import ProductError

AnySource = PredictorSource | SparsePredictorSource | ClassPredictorSource
AnyPredictor = Predictor | SparsePredictor | ClassPredictor


# Estimators by the form of the classifiers that they train.
CLASSIFIERS = {
    "exact": "LSSVC",
    "fixed-size": "FixedSizeLSSVC",
    "logistic": "KernelLogisticClassifier",
    "gp": "GPClassifier",
}


class Workspace:
    """The place of an estimator's stores: a folder or URL of the user's, where they stay, or a temporary folder.

    A temporary folder is made when it is first needed, below dask's `temporary-directory` where that is set, and
    removed when nothing refers to this object any more.
    """

    def __init__(self, store: str | os.PathLike[str] | None) -> None:
        self._store = None if store is None else os.fspath(store)
        self._lock = fork_safe(threading.Lock())
        # The process that a temporary folder belongs to: a forked child makes one of its own.
        self._owner: int | None = None

    def url(self, name: str) -> str:
        """Address for a new store."""
        with self._lock:
            if self._store is None or self._owner not in (None, os.getpid()):
                folder = tempfile.mkdtemp(prefix="dkgp-", dir=dask.config.get("temporary-directory", None))
                remove_with(self, folder)
                self._store, self._owner = folder, os.getpid()
            return f"{self._store.rstrip('/')}/{name}-{uuid.uuid4().hex[:12]}.zarr"


class Fitted(ABC):
    """A model with its training set; it is stored in the workspace when other processes have to read it."""

    record: ModelRecord | SparseRecord | ClassifierRecord
    workspace: Workspace

    def _new_version(self) -> None:
        self.version = f"fitted-{uuid.uuid4().hex}"
        self._lock = fork_safe(threading.Lock())
        self._url: str | None = None
        self._predictors: dict[AnySource, AnyPredictor] = {}
        weakref.finalize(self, Predictor.forget, self.version)

    @classmethod
    @abstractmethod
    def load(cls, url: str, workspace: Workspace) -> Self:
        """Open a stored model."""

    @abstractmethod
    def save(self, url: str, *, overwrite: bool = False) -> None:
        """Write the model to a store; errors as of `save_model`."""

    @abstractmethod
    def source(self, variance: VarianceSettings | None, n_test: int) -> AnySource:
        """Return what tasks of this process take their predictor from."""

    @abstractmethod
    def _made(self, variance: VarianceSettings | None, n_test: int) -> AnyPredictor: ...

    def _store(self, url: str) -> None:
        """Write the model where other processes are to read it."""
        self.save(url)

    @property
    def about(self) -> dict[str, Any]:
        """The description that the estimator saved with the model; empty for a model that no estimator saved."""
        about: dict[str, Any] = self.record.summary.get("estimator", {})
        return about

    @property
    def product_error(self) -> ProductError:
        """The estimator's error of sums over all samples; that of the default for a model that no estimator saved."""
        return ProductError.of(self.about.get("settings", {}).get("product_error", "auto"))

    def readable_url(self) -> str:
        """Address that other processes can read; the model is stored the first time that one is needed."""
        if not is_resident(self.record.url):
            return self.record.url
        with self._lock:
            if self._url is None:
                url = self.workspace.url("model")
                self._store(url)
                self._url = url
            return self._url

    def predictor(self, variance: VarianceSettings | None, n_test: int) -> AnyPredictor:
        """Return the predictor of this process, made when first asked for."""
        key = self.source(variance, n_test)
        with self._lock:
            if key not in self._predictors:
                self._predictors[key] = self._made(variance, n_test)
            return self._predictors[key]


class FittedOnSamples(Fitted):
    """A model whose sums go over its training inputs: `dataset`, or None where the record alone has them."""

    record: ModelRecord | ClassifierRecord
    dataset: Dataset | None

    @abstractmethod
    def save(self, url: str, *, by_reference: bool = False, overwrite: bool = False) -> None:
        """Write the model to a store, its training inputs by reference where they lie in a store already."""

    def _store(self, url: str) -> None:
        self.save(url, by_reference=not isinstance(self._support(), AssembledDataset))

    def _support(self) -> Dataset:
        """The training inputs as a data set; targets that are not known are zeros, which nobody is shown."""
        return self.dataset if self.dataset is not None else assembled_dataset(*self._training_set(None))

    def _training_set(self, targets: FloatArray | None) -> tuple[Any, ...]:
        """Arguments of `assembled_dataset`."""
        record = self.record
        n = record.n_samples if isinstance(record, ModelRecord) else record.n_support
        return (
            np.concatenate([record.inputs(*chunk) for chunk in row_ranges(n, record.chunk_rows)]),
            np.zeros((n, len(record.target_names))) if targets is None else targets,
            record.standardisation,
            record.feature_names,
            record.target_names,
            record.fingerprint,
            None if self.dataset is None else self.dataset.raw_feature_names,
        )


class FittedModel(FittedOnSamples):
    """An exact model; without its training set `dataset` and `gradient`, Kbar alpha - y (n, p), are None."""

    record: ModelRecord

    def __init__(
        self, record: ModelRecord, dataset: Dataset | None, gradient: FloatArray | None, workspace: Workspace
    ) -> None:
        self.record, self.dataset, self.gradient, self.workspace = record, dataset, gradient, workspace
        self._new_version()

    @classmethod
    def of(cls, trained: TrainedModel, dataset: Dataset, workspace: Workspace, about: dict[str, Any]) -> FittedModel:
        """Keep what was trained; `about` joins its summary."""
        description = trained.record()
        description["summary"] = {**description["summary"], "estimator": about}
        record = memory_model(dataset, **description)
        return cls(record, dataset, trained.solution.gradient, workspace)

    @classmethod
    def load(cls, url: str, workspace: Workspace) -> FittedModel:
        """Open a stored model."""
        record = find_model(url)
        dataset, gradient = record.training_state() or (None, None)
        return cls(record, dataset, gradient, workspace)

    def save(self, url: str, *, by_reference: bool = False, overwrite: bool = False) -> None:
        """Write the model to a store; errors as of `save_model`."""
        gradient = None if self.dataset is None else self.gradient
        options: dict[str, Any] = {"gradient": gradient, "by_reference": by_reference, "overwrite": overwrite}
        save_model(url, dataset=self._support(), **options, **self._description())

    def source(self, variance: VarianceSettings | None, n_test: int) -> PredictorSource:
        """Return what tasks of this process take their predictor from."""
        record = self.record
        return PredictorSource(
            record.url, self.version, variance, _rounded(n_test), record.reference, self.product_error
        )

    def _made(self, variance: VarianceSettings | None, n_test: int) -> Predictor:
        return Predictor(self.record, self.version, variance, n_test=_rounded(n_test), error=self.product_error)

    def _description(self) -> dict[str, Any]:
        """Arguments of `save_model` and `memory_model`, all but the training set."""
        facts = ("kernel", "noise_variance", "history", "certificate", "summary")
        names = (*facts, "alpha", "sample_noise", "noise_model", "trend")
        return {name: getattr(self.record, name) for name in names}

    def __getstate__(self) -> dict[str, Any]:
        """Everything in arrays: whoever unpickles this has neither this process's memory nor its temporary files."""
        targets = None if self.dataset is None else self.dataset.all_targets()
        return {
            "about": self._description(),
            "training_set": self._training_set(targets),
            "has_targets": targets is not None,
            "gradient": self.gradient,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        dataset = assembled_dataset(*state["training_set"])
        self.record = memory_model(dataset, **state["about"])
        self.dataset = dataset if state["has_targets"] else None
        self.gradient, self.workspace = state["gradient"], Workspace(None)
        self._new_version()


class FittedSparse(Fitted):
    """A sparse model, which needs no training set."""

    record: SparseRecord

    def __init__(self, record: SparseRecord, workspace: Workspace) -> None:
        self.record, self.workspace = record, workspace
        self.opened = opened_sparse(record)
        self._new_version()

    @classmethod
    def of(cls, trained: TrainedSparse, dataset: Dataset, workspace: Workspace, about: dict[str, Any]) -> FittedSparse:
        """Keep what was trained; `about` joins its summary."""
        record = sparse_record(trained, dataset)
        return cls(memory_sparse_model(replace(record, summary={**record.summary, "estimator": about})), workspace)

    @classmethod
    def load(cls, url: str, workspace: Workspace) -> FittedSparse:
        """Open a stored model."""
        return cls(open_sparse_model(url), workspace)

    def save(self, url: str, *, overwrite: bool = False) -> None:
        """Write the model to a store; errors as of `save_sparse_model`."""
        save_sparse_model(url, self.record, overwrite=overwrite)

    def updated(
        self,
        inputs: FloatArray,
        targets: FloatArray,
        relative_noise: FloatArray | None,
        sample_noise: FloatArray | None,
    ) -> FittedSparse:
        """The model with new samples, raw inputs (n, d_raw) and targets (n, p); errors as of `update_sparse`."""
        record, to = self.record, self.record.standardisation
        mark = hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()
        dataset = assembled_dataset(
            to.inputs(inputs), to.targets(targets), to, record.feature_names, record.target_names, mark
        )
        updated = update_sparse(self.opened, dataset, relative_noise, sample_noise)
        return FittedSparse(memory_sparse_model(updated), self.workspace)

    def source(self, variance: VarianceSettings | None, n_test: int) -> SparsePredictorSource:
        """Return what tasks of this process take their predictor from; `n_test` is of no consequence."""
        return SparsePredictorSource(self.record.url, self.version, variance is not None, _is_latent(variance))

    def _made(self, variance: VarianceSettings | None, n_test: int) -> SparsePredictor:
        return SparsePredictor(self.opened, variance=variance is not None, latent=_is_latent(variance))

    def __getstate__(self) -> dict[str, Any]:
        return {"record": self.record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Whoever unpickles this may not have the store.
        self.record, self.workspace = memory_sparse_model(state["record"]), Workspace(None)
        self.opened = opened_sparse(self.record)
        self._new_version()


class FittedClassifier(FittedOnSamples):
    """A classifier; one of all samples needs its training inputs, one of prototypes does not."""

    record: ClassifierRecord

    def __init__(self, record: ClassifierRecord, dataset: Dataset | None, workspace: Workspace) -> None:
        self.record, self.dataset, self.workspace = record, dataset, workspace
        self._new_version()

    @classmethod
    def of(cls, record: ClassifierRecord, dataset: Dataset, workspace: Workspace, about: dict[str, Any]) -> Self:
        """Keep what was trained; `about` joins its summary."""
        support = None if record.is_sparse else dataset
        described = replace(record, summary={**record.summary, "estimator": about})
        return cls(memory_classifier(described, support), support, workspace)

    @classmethod
    def load(cls, url: str, workspace: Workspace, form: str | None = None) -> Self:
        """Open a stored model; `StoreError` where there is none of this form."""
        record = find_classifier(url)
        if form is not None and record.form != form:
            raise StoreError(
                f"'{url}' holds a classifier of the form '{record.form}'; expected '{form}'. Load it with "
                f"{CLASSIFIERS[record.form]}"
            )
        return cls(record, None, workspace)

    def save(self, url: str, *, by_reference: bool = False, overwrite: bool = False) -> None:
        """Write the model to a store; errors as of `save_classifier`."""
        support = None if self.record.is_sparse else self._support()
        save_classifier(url, self.record, dataset=support, by_reference=by_reference, overwrite=overwrite)

    def _store(self, url: str) -> None:
        if self.record.is_sparse:
            self.save(url)
        else:
            super()._store(url)

    def source(self, variance: VarianceSettings | None, n_test: int) -> ClassPredictorSource:
        """Return what tasks of this process take their predictor from: without `variance` of decisions alone."""
        record, plug_in = self.record, variance is None
        return ClassPredictorSource(record.url, self.version, record.reference, plug_in, self.product_error)

    def _made(self, variance: VarianceSettings | None, n_test: int) -> ClassPredictor:
        return ClassPredictor(self.record, self.version, plug_in=variance is None, error=self.product_error)

    def __getstate__(self) -> dict[str, Any]:
        """Everything in arrays, as of `FittedModel`."""
        return {
            "record": replace(self.record, _support=None),
            "training_set": None if self.record.is_sparse else self._training_set(None),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        support = None if state["training_set"] is None else assembled_dataset(*state["training_set"])
        self.record = memory_classifier(state["record"], support)
        self.dataset, self.workspace = support, Workspace(None)
        self._new_version()


def _is_latent(variance: VarianceSettings | None) -> bool:
    return variance is not None and variance.latent


def _rounded(n_test: int) -> int:
    """The next power of four: variances are planned for about so many samples; calls of similar size share plans."""
    return int(4 ** math.ceil(math.log(max(n_test, 1), 4)))
