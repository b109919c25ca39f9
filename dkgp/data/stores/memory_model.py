"""Models that are not stored: records as a stored model's, found by address in the process that holds them."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.model_store import ModelRecord, open_model, software_versions
from dkgp.data.types import FloatArray, Json

__all__ = ["find_model", "memory_model"]

_RESIDENT: weakref.WeakValueDictionary[str, ModelRecord] = weakref.WeakValueDictionary()


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
        # Nothing is ever written to this address: who asks what lies beside the model finds that nothing does.
        url=f"memory://dkgp-model-{uuid.uuid4().hex}",
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


def find_model(url: str, *, reference: str | None = None) -> ModelRecord:
    """The model at an address: this process's own, or from its store. `reference` and errors as of `open_model`."""
    return _RESIDENT.get(url) or open_model(url, reference=reference)
