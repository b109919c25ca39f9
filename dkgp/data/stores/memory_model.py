"""Models that are not stored: records as a stored model's, found by address in the process that holds them."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.model_store import ModelRecord, open_model, software_versions
from dkgp.data.stores.sparse.sparse_store import SparseRecord, open_sparse_model
from dkgp.data.types import FloatArray, Json

__all__ = ["find_model", "find_sparse_model", "is_resident", "memory_model", "memory_sparse_model"]

_RESIDENT: weakref.WeakValueDictionary[str, ModelRecord | SparseRecord] = weakref.WeakValueDictionary()
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
    record = ModelRecord(
        url=_new_address(),
        kernel=kernel,
        noise_variance=float(noise_variance),
        alpha=alpha,
        standardisation=dataset.standardisation,
        feature_names=dataset.feature_names,
        target_names=dataset.target_names,
        fingerprint=dataset.fingerprint,
        history=[dict(entry) for entry in history],
        certificate=certificate or {},
        summary=summary or {},
        versions=software_versions(),
        chunk_rows=dataset.chunk_rows,
        by_reference=True,
        _support=dataset,
    )
    _RESIDENT[record.url] = record
    return record


def memory_sparse_model(record: SparseRecord) -> SparseRecord:
    """Give a sparse model an address in this process, of use for as long as something holds what is returned."""
    resident = replace(record, url=_new_address())
    _RESIDENT[resident.url] = resident
    return resident


def find_model(url: str, *, reference: str | None = None) -> ModelRecord:
    """The model at an address: this process's own, or from its store. `reference` and errors as of `open_model`."""
    found = _RESIDENT.get(url)
    return found if isinstance(found, ModelRecord) else open_model(url, reference=reference)


def find_sparse_model(url: str) -> SparseRecord:
    """The sparse model at an address: this process's own, or from its store. Errors as of `open_sparse_model`."""
    found = _RESIDENT.get(url)
    return found if isinstance(found, SparseRecord) else open_sparse_model(url)


def is_resident(url: str) -> bool:
    """True of the address of a model that is not stored."""
    return url.startswith(_ADDRESS)


def _new_address() -> str:
    return f"{_ADDRESS}{uuid.uuid4().hex}"
