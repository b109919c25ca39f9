"""Models of any kind by address; those that are not stored are found in the process that holds them."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.stores.model_store import ModelRecord, described, description, open_model
from dkgp.data.stores.sparse.sparse_store import SPARSE_MODEL_KIND, SparseRecord, open_sparse_model, sparse_arrays
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError

__all__ = ["find_any_model", "find_model", "memory_model", "memory_sparse_model", "open_any_model"]

_RESIDENT: weakref.WeakValueDictionary[str, ModelRecord | SparseRecord] = weakref.WeakValueDictionary()


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
    record = ModelRecord(
        **described(_address(), description(dataset, kernel, noise_variance, history, certificate, summary)),
        alpha=alpha,
        chunk_rows=dataset.chunk_rows,
        by_reference=True,
        _support=dataset,
    )
    _RESIDENT[record.url] = record
    return record


def memory_sparse_model(
    dataset: Dataset,
    *,
    kernel: Json,
    method: str,
    noise_variance: float,
    prototypes: FloatArray,
    weights: FloatArray,
    lower: FloatArray,
    normal: FloatArray | None = None,
    indices: IntArray | None = None,
    basis_noise: FloatArray | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    certificate: Json | None = None,
    summary: Json | None = None,
) -> SparseRecord:
    """Make a sparse model without storing it; the parameters and errors are those of `save_sparse_model`.

    Its address is of use in this process, for as long as something holds the record.
    """
    arrays = sparse_arrays(dataset, prototypes, weights, lower, normal, indices, basis_noise)
    record = SparseRecord(
        **described(_address(), description(dataset, kernel, noise_variance, history, certificate, summary)),
        method=method,
        **arrays,
    )
    _RESIDENT[record.url] = record
    return record


def find_model(url: str, *, reference: str | None = None) -> ModelRecord:
    """The model at an address: this process's own, or from its store. `reference` and errors as of `open_model`."""
    found = _RESIDENT.get(url) or open_model(url, reference=reference)
    if isinstance(found, SparseRecord):
        raise InputError("a sparse model is here; expected one of all the samples")
    return found


def find_any_model(url: str, *, reference: str | None = None) -> ModelRecord | SparseRecord:
    """The same for a model of any kind."""
    return _RESIDENT.get(url) or open_any_model(url, reference=reference)


def open_any_model(url: Location, *, reference: str | None = None) -> ModelRecord | SparseRecord:
    """Open a model's store of either kind; `reference` and errors as of `open_model`."""
    if recognise(normalise_url(url)) == SPARSE_MODEL_KIND:
        return open_sparse_model(url)
    return open_model(url, reference=reference)


def _address() -> str:
    # Nothing is ever written to it: who asks what lies beside the model finds that nothing does.
    return f"memory://dkgp-model-{uuid.uuid4().hex}"
