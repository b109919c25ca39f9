"""State of a fitted estimator: the model, its training set, and the address where workers read it."""

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
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.data import (
    AnyModel,
    ClassifierRecord,
    Dataset,
    ModelRecord,
    SparseRecord,
    is_resident,
)
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.models.model import ModelAddress
from dkgp.errors import StoreError
from dkgp.forks import fork_safe, remove_with
from dkgp.models.prediction.classes import ROWS_PLANNED_FOR
from dkgp.models.prediction.posterior import Posterior, forget
from dkgp.models.prediction.predict import PosteriorSource, posterior_of
from dkgp.models.prediction.sparse import SparsePosterior
from dkgp.models.sparse.stored import OpenedSparse, opened_sparse, update_sparse
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import ProductError
from dkgp.registry import LaterModule

dask: Any = LaterModule("dask")

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
    """A model that an estimator holds; it is stored in the workspace when other processes have to read it."""

    kind: ClassVar[type[AnyModel]]
    record: AnyModel

    def __init__(self, record: Any, workspace: Workspace) -> None:
        self.record, self.workspace = record, workspace
        self.version = f"fitted-{uuid.uuid4().hex}"
        self._lock = fork_safe(threading.Lock())
        self._url: str | None = None
        self._posteriors: dict[PosteriorSource, Posterior[Any]] = {}
        weakref.finalize(self, forget, self.version)

    @classmethod
    def of(cls, model: AnyModel, workspace: Workspace, about: dict[str, Any]) -> Self:
        """Hold a trained model; `about` joins its summary."""
        described = replace(model, summary={**model.summary, "estimator": about})
        return cls(described.resident(), workspace)

    @classmethod
    def load(cls, url: str, workspace: Workspace) -> Self:
        """Open a stored model."""
        return cls(cls.kind.find(ModelAddress(url)), workspace)

    @abstractmethod
    def source(self, variance: VarianceSettings | None, n_test: int) -> PosteriorSource:
        """Return the address that tasks make their process's posterior from."""

    def _posterior(self, source: PosteriorSource) -> Posterior[Any]:
        return posterior_of(self.record, source.want())

    @property
    def about(self) -> dict[str, Any]:
        """The description that the estimator saved with the model; empty for a model that no estimator saved."""
        about: dict[str, Any] = self.record.summary.get("estimator", {})
        return about

    @property
    def product_error(self) -> ProductError:
        """The estimator's error of sums over all samples; the default for a model that no estimator saved."""
        return ProductError.of(self.about.get("settings", {}).get("product_error", "auto"))

    def save(self, url: str, *, by_reference: bool = False, overwrite: bool = False) -> Self:
        """Write the model to a store, its inputs by reference if they lie in a store; errors as for `Model.save`.

        Return this object; if it read the store that is replaced, one that reads the new store.
        """
        model = self.record.alone().supported_by(self._training_inputs())
        model.save(url, by_reference=by_reference, overwrite=overwrite)
        return type(self)(self.kind.open(url), self.workspace) if self.record.reads(url) else self

    def readable_url(self) -> str:
        """Return an address that other processes can read; the model is stored the first time that one is needed."""
        if not is_resident(self.record.url):
            return self.record.url
        with self._lock:
            if self._url is None:
                url, inputs = self.workspace.url("model"), self._training_inputs()
                self.save(url, by_reference=inputs is not None and inputs.is_stored)
                self._url = url
            return self._url

    def posterior(self, variance: VarianceSettings | None, n_test: int) -> Posterior[Any]:
        """Return the posterior of this process, made when first asked for."""
        source = self.source(variance, n_test)
        with self._lock:
            if source not in self._posteriors:
                self._posteriors[source] = self._posterior(source)
            return self._posteriors[source]

    def _training_set(self) -> Dataset | None:
        """Return the training set if this process knows its targets."""
        return None

    def _training_inputs(self) -> Dataset | None:
        """Return the training inputs, with targets of zero if these are not known; None for a sparse model."""
        if self.record.is_sparse:
            return None
        return self._training_set() or assembled_dataset(*self._arrays())

    def _arrays(self) -> tuple[Any, ...]:
        """Return arguments of `assembled_dataset`, everything in arrays."""
        record: Any = self.record
        dataset = self._training_set()
        return (
            np.concatenate([record.rows(*chunk) for chunk in record.row_chunks()]),
            np.zeros((record.n_support, record.n_targets)) if dataset is None else dataset.all_targets(),
            record.standardisation,
            record.feature_names,
            record.target_names,
            record.fingerprint,
            None if dataset is None else dataset.raw_feature_names,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything in arrays: another process has neither this one's memory nor its temporary files."""
        return {"record": self.record.alone(), "training_set": None if self.record.is_sparse else self._arrays()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        inputs = None if state["training_set"] is None else assembled_dataset(*state["training_set"])
        type(self).__init__(self, state["record"].supported_by(inputs).resident(), Workspace(None))


class FittedModel(Fitted):
    """An exact model; without its training set `dataset` and `gradient`, Kbar alpha - y (n, p), are None."""

    kind = ModelRecord
    record: ModelRecord

    def __init__(self, record: ModelRecord, workspace: Workspace) -> None:
        super().__init__(record, workspace)
        state = record.training_state()
        self.dataset: Dataset | None = None if state is None else state[0]
        self.gradient: FloatArray | None = None if state is None else state[1]

    def _training_set(self) -> Dataset | None:
        return self.dataset

    def source(self, variance: VarianceSettings | None, n_test: int) -> PosteriorSource:
        """Return the address that tasks make their process's posterior from."""
        record, planned = self.record, _rounded(n_test)
        return PosteriorSource(record.address, self.version, variance, planned, error=self.product_error)


class FittedSparse(Fitted):
    """A sparse model, which needs no training set."""

    kind = SparseRecord
    record: SparseRecord

    @cached_property
    def opened(self) -> OpenedSparse:
        """The model, ready to predict."""
        return opened_sparse(self.record)

    def updated(
        self,
        inputs: FloatArray,
        targets: FloatArray,
        relative_noise: FloatArray | None,
        sample_noise: FloatArray | None,
    ) -> FittedSparse:
        """Return the model with new raw inputs (n, d_raw) and targets (n, p); errors as for `update_sparse`."""
        record, to = self.record, self.record.standardisation
        mark = hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()
        dataset = assembled_dataset(
            to.inputs(inputs), to.targets(targets), to, record.feature_names, record.target_names, mark
        )
        updated = update_sparse(self.opened, dataset, relative_noise, sample_noise)
        return FittedSparse(updated.resident(), self.workspace)

    def source(self, variance: VarianceSettings | None, n_test: int) -> PosteriorSource:
        """Return the address that tasks make their process's posterior from; the intervals do not depend on `gap`."""
        settings = None if variance is None else replace(variance, gap=VarianceSettings.gap)
        return PosteriorSource(self.record.address, self.version, variance=settings)

    def _posterior(self, source: PosteriorSource) -> SparsePosterior:
        return SparsePosterior(self.record, source.want(), self.opened)


class FittedClassifier(Fitted):
    """A classifier; one of all samples needs its training inputs, one of prototypes does not."""

    kind = ClassifierRecord
    record: ClassifierRecord

    @classmethod
    def load(cls, url: str, workspace: Workspace, form: str | None = None) -> Self:
        """Open a stored model; `StoreError` if it is of another form."""
        fitted = super().load(url, workspace)
        found = fitted.record.form
        if form is not None and found != form:
            raise StoreError(
                f"'{url}' holds a classifier of the form '{found}'; expected '{form}'. Load it with "
                f"{CLASSIFIERS[found]}"
            )
        return fitted

    def _training_set(self) -> Dataset | None:
        # The inputs of a model in memory are its training set's. Those of a store may be replaced with it.
        support = self.record._support
        return support if isinstance(support, Dataset) and is_resident(self.record.url) else None

    def source(self, variance: VarianceSettings | None, n_test: int) -> PosteriorSource:
        """Return the address that tasks make their process's posterior from: without `variance` of decisions alone."""
        record, plug_in = self.record, variance is None
        return PosteriorSource(
            record.address,
            self.version,
            n_test=ROWS_PLANNED_FOR,
            plug_in=plug_in,
            error=self.product_error,
        )


def _rounded(n_test: int) -> int:
    """The next power of four: variances are planned for about so many samples; calls of similar size share plans."""
    return int(4 ** math.ceil(math.log(max(n_test, 1), 4)))
