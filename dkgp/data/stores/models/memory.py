"""Models of any kind by address; those that are not stored are found in the process that holds them."""

from __future__ import annotations

import uuid
import weakref
from dataclasses import replace
from typing import TypeAlias, TypeVar, Unpack

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.stores.models.classifier import CLASSIFIER_KIND, ClassifierRecord, open_classifier
from dkgp.data.stores.models.description import TrainingFacts, about_model
from dkgp.data.stores.models.exact import ModelRecord, open_model
from dkgp.data.stores.models.sparse import SPARSE_MODEL_KIND, SparseRecord, open_sparse_model
from dkgp.data.types import FloatArray, Location
from dkgp.errors import StoreError

AnyModel: TypeAlias = ModelRecord | SparseRecord | ClassifierRecord

Model = TypeVar("Model", ModelRecord, SparseRecord, ClassifierRecord)

# Of each kind, what messages call one that is there, and one that is not.
_NAMES: dict[type[AnyModel], tuple[str, str]] = {
    ModelRecord: ("An exact model", "an exact one"),
    SparseRecord: ("A sparse model", "a sparse one"),
    ClassifierRecord: ("A classifier", "a classifier"),
}
_RESIDENT: weakref.WeakValueDictionary[str, AnyModel] = weakref.WeakValueDictionary()
# Nothing is ever written to such an address: who asks what lies beside the model finds that nothing does.
_ADDRESS = "memory://dkgp-model-"


def memory_model(
    dataset: Dataset, *, alpha: FloatArray, sample_noise: FloatArray | None = None, **facts: Unpack[TrainingFacts]
) -> ModelRecord:
    """Make a model of a training set without storing it; the parameters are those of `save_model`.

    Its address is of use in this process, for as long as something holds the record.
    """
    about = about_model(dataset, **facts)
    record = ModelRecord(
        **about,
        alpha=alpha,
        sample_noise=sample_noise,
        chunk_rows=dataset.chunk_rows,
        by_reference=True,
        _support=dataset,
    )
    return _resident(record)


def memory_sparse_model(record: SparseRecord) -> SparseRecord:
    """Give a sparse model an address in this process, of use for as long as something holds what is returned."""
    return _resident(record)


def memory_classifier(record: ClassifierRecord, dataset: Dataset | None = None) -> ClassifierRecord:
    """Give a classifier an address in this process; the support inputs of one of all samples are the training set's.

    The address is of use for as long as something holds what is returned.
    """
    if dataset is not None and not record.is_sparse:
        record = replace(record, by_reference=True, chunk_rows=dataset.chunk_rows, _support=dataset)
    return _resident(record)


def _resident(model: Model) -> Model:
    resident = replace(model, url=f"{_ADDRESS}{uuid.uuid4().hex}")
    _RESIDENT[resident.url] = resident
    return resident


def is_resident(url: str) -> bool:
    """True of the address of a model that is not stored."""
    return url.startswith(_ADDRESS)


def find_model(url: str, *, reference: str | None = None) -> ModelRecord:
    """The model at an address: this process's own, or from its store. `reference` and errors as of `open_model`."""
    return _in_memory(url, ModelRecord) or open_model(url, reference=reference)


def find_sparse_model(url: str) -> SparseRecord:
    """The sparse model at an address: this process's own, or from its store. Errors as of `open_sparse_model`."""
    return _in_memory(url, SparseRecord) or open_sparse_model(url)


def find_classifier(url: str, *, reference: str | None = None) -> ClassifierRecord:
    """The classifier at an address: this process's own, or from its store. Errors as of `open_classifier`."""
    return _in_memory(url, ClassifierRecord) or open_classifier(url, reference=reference)


def _in_memory(url: str, kind: type[Model]) -> Model | None:
    model = _RESIDENT.get(url)
    if model is None or isinstance(model, kind):
        return model
    # Told here: what storage raises may live on in its threads, and its frames would keep the model.
    raise StoreError(f"{_NAMES[type(model)][0]} is in memory there; expected {_NAMES[kind][1]}.")


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
