"""Models of any kind by address; those that are not stored are found in the process that holds them."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.classifier.classifier_store import CLASSIFIER_KIND, ClassifierRecord, open_classifier
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.stores.model_store import ModelRecord, about_model, open_model
from dkgp.data.stores.sparse.sparse_store import SPARSE_MODEL_KIND, SparseRecord, open_sparse_model
from dkgp.data.types import FloatArray, Json, Location
from dkgp.errors import StoreError

__all__ = [
    "AnyModel",
    "find_any_model",
    "find_classifier",
    "find_model",
    "find_sparse_model",
    "is_resident",
    "memory_classifier",
    "memory_model",
    "memory_sparse_model",
    "open_any_model",
]

AnyModel: TypeAlias = ModelRecord | SparseRecord | ClassifierRecord

_RESIDENT: weakref.WeakValueDictionary[str, AnyModel] = weakref.WeakValueDictionary()
# Nothing is ever written to such an address: who asks what lies beside the model finds that nothing does.
_ADDRESS = "memory://dkgp-model-"


def memory_model(
    dataset: Dataset,
    *,
    kernel: Json,
    noise_variance: float,
    alpha: FloatArray,
    history: Sequence[Mapping[str, Any]] = (),
    certificate: Json | None = None,
    summary: Json | None = None,
) -> ModelRecord:
    """Make a model of a training set without storing it; the parameters are those of `save_model`.

    Its address is of use in this process, for as long as something holds the record.
    """
    about = about_model(
        dataset,
        kernel=kernel,
        noise_variance=noise_variance,
        history=history,
        certificate=certificate,
        summary=summary,
        url=_new_address(),
    )
    record = ModelRecord(**about, alpha=alpha, chunk_rows=dataset.chunk_rows, by_reference=True, _support=dataset)
    _RESIDENT[record.url] = record
    return record


def memory_sparse_model(record: SparseRecord) -> SparseRecord:
    """Give a sparse model an address in this process, of use for as long as something holds what is returned."""
    resident = replace(record, url=_new_address())
    _RESIDENT[resident.url] = resident
    return resident


def memory_classifier(record: ClassifierRecord, dataset: Dataset | None = None) -> ClassifierRecord:
    """Give a classifier an address in this process; the support inputs of one of all samples are the training set's.

    The address is of use for as long as something holds what is returned.
    """
    if dataset is not None and not record.is_sparse:
        record = replace(record, by_reference=True, chunk_rows=dataset.chunk_rows, _support=dataset)
    resident = replace(record, url=_new_address())
    _RESIDENT[resident.url] = resident
    return resident


def is_resident(url: str) -> bool:
    """True of the address of a model that is not stored."""
    return url.startswith(_ADDRESS)


def find_model(url: str, *, reference: str | None = None) -> ModelRecord:
    """The model at an address: this process's own, or from its store. `reference` and errors as of `open_model`."""
    found = _RESIDENT.get(url)
    if found is not None and not isinstance(found, ModelRecord):
        # Told here: what storage raises may live on in its threads, and its frames would keep the model.
        raise StoreError(f"{_what(found)} is in memory there; expected an exact one.")
    return found or open_model(url, reference=reference)


def find_sparse_model(url: str) -> SparseRecord:
    """The sparse model at an address: this process's own, or from its store. Errors as of `open_sparse_model`."""
    found = _RESIDENT.get(url)
    if found is not None and not isinstance(found, SparseRecord):
        raise StoreError(f"{_what(found)} is in memory there; expected a sparse one.")
    return found or open_sparse_model(url)


def find_classifier(url: str, *, reference: str | None = None) -> ClassifierRecord:
    """The classifier at an address: this process's own, or from its store. Errors as of `open_classifier`."""
    found = _RESIDENT.get(url)
    if found is not None and not isinstance(found, ClassifierRecord):
        raise StoreError(f"{_what(found)} is in memory there; expected a classifier.")
    return found or open_classifier(url, reference=reference)


def find_any_model(url: str, *, reference: str | None = None) -> AnyModel:
    """The same for a model of any kind."""
    return _RESIDENT.get(url) or open_any_model(url, reference=reference)


def open_any_model(url: Location, *, reference: str | None = None) -> AnyModel:
    """Open a model's store of any kind; `reference` and errors as of `open_model`."""
    kind = recognise(normalise_url(url))
    if kind == SPARSE_MODEL_KIND:
        return open_sparse_model(url)
    if kind == CLASSIFIER_KIND:
        return open_classifier(url, reference=reference)
    return open_model(url, reference=reference)


def _what(model: AnyModel) -> str:
    if isinstance(model, SparseRecord):
        return "A sparse model"
    return "A classifier" if isinstance(model, ClassifierRecord) else "An exact model"


def _new_address() -> str:
    return f"{_ADDRESS}{uuid.uuid4().hex}"
