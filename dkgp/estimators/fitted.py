"""State of a fitted estimator: the model, what it takes to train on, and where workers can read it."""

from __future__ import annotations

import hashlib
import math
import shutil
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
    find_model,
    is_resident,
    memory_model,
    memory_sparse_model,
    open_sparse_model,
    save_model,
    save_sparse_model,
)
from dkgp.data.stores.memory_dataset import AssembledDataset, assembled_dataset
from dkgp.models.exact import TrainedModel
from dkgp.models.prediction.class_predictor import ClassPredictor, ClassPredictorSource
from dkgp.models.prediction.predictor import Predictor, PredictorSource
from dkgp.models.prediction.sparse import SparsePredictor, SparsePredictorSource
from dkgp.models.sparse.problem import TrainedSparse
from dkgp.models.sparse.stored import opened_sparse, sparse_record
from dkgp.models.sparse.update import update_sparse
from dkgp.models.variance.variances import VarianceSettings
from dkgp.operators.base import FloatArray

AnySource = PredictorSource | SparsePredictorSource | ClassPredictorSource
AnyPredictor = Predictor | SparsePredictor | ClassPredictor


class Workspace:
    """The place of an estimator's own stores: a folder or URL that was given, or a temporary folder.

    A temporary folder is made when it is first needed, below dask's `temporary-directory` where that is set, and goes
    when nothing refers to this object any more. What is put in a place that was given stays there.
    """

    def __init__(self, store: str | None) -> None:
        self._store = store
        self._lock = threading.Lock()

    def url(self, name: str) -> str:
        """Address for a new store."""
        with self._lock:
            if self._store is None:
                folder = tempfile.mkdtemp(prefix="dkgp-", dir=dask.config.get("temporary-directory", None))
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
                self._store = folder
            return f"{self._store.rstrip('/')}/{name}-{uuid.uuid4().hex[:12]}.zarr"


class Fitted(ABC):
    """A model with what belongs to it; the workspace is where the model goes when others have to read it."""

    record: ModelRecord | SparseRecord | ClassifierRecord
    workspace: Workspace

    def _new_version(self) -> None:
        self.version = f"fitted-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
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
        """Description that the estimator saved with the model; empty for a model from elsewhere."""
        said: dict[str, Any] = self.record.summary.get("estimator", {})
        return said

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


class FittedModel(Fitted):
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
        said = trained.record()
        record = memory_model(dataset, **{**said, "summary": {**said["summary"], "estimator": about}})
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
        save_model(url, dataset=self._support(), **options, **self._said())

    def _store(self, url: str) -> None:
        """A training set that is in a store already is referred to."""
        self.save(url, by_reference=not isinstance(self._support(), AssembledDataset))

    def source(self, variance: VarianceSettings | None, n_test: int) -> PredictorSource:
        """Return what tasks of this process take their predictor from."""
        return PredictorSource(self.record.url, self.version, variance, _rounded(n_test), self.record.reference)

    def _made(self, variance: VarianceSettings | None, n_test: int) -> Predictor:
        return Predictor(self.record, self.version, variance, n_test=_rounded(n_test))

    def _said(self) -> dict[str, Any]:
        """Arguments of `save_model` and `memory_model`, all but the training set."""
        names = ("kernel", "noise_variance", "alpha", "history", "certificate", "summary")
        return {name: getattr(self.record, name) for name in names}

    def _support(self) -> Dataset:
        """The support inputs as a data set; targets that are not known are zeros, which nobody is shown."""
        if self.dataset is not None:
            return self.dataset
        return assembled_dataset(*self._training_set(None))

    def _training_set(self, targets: FloatArray | None) -> tuple[Any, ...]:
        """Arguments of `assembled_dataset`."""
        record = self.record
        return (
            np.concatenate([record.inputs(*chunk) for chunk in record.row_chunks()]),
            np.zeros_like(record.alpha) if targets is None else targets,
            record.standardisation,
            record.feature_names,
            record.target_names,
            record.fingerprint,
            None if self.dataset is None else self.dataset.raw_feature_names,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything in arrays: whoever unpickles this has neither this process's memory nor its temporary files."""
        targets = None if self.dataset is None else self.dataset.all_targets()
        return {
            "about": self._said(),
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

    def updated(self, inputs: FloatArray, targets: FloatArray, relative_noise: FloatArray | None) -> FittedSparse:
        """The model with new samples, raw inputs (n, d_raw) and targets (n, p); errors as of `update_sparse`."""
        record, to = self.record, self.record.standardisation
        mark = hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()
        dataset = assembled_dataset(
            to.inputs(inputs), to.targets(targets), to, record.feature_names, record.target_names, mark
        )
        updated = update_sparse(self.opened, dataset, relative_noise)
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


def _is_latent(variance: VarianceSettings | None) -> bool:
    return variance is not None and variance.latent


def _rounded(n_test: int) -> int:
    """The next power of four: variances are planned for about as many samples, and plans are to be met again."""
    return int(4 ** math.ceil(math.log(max(n_test, 1), 4)))
