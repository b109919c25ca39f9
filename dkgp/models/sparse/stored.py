"""Sparse models between memory and their store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data import Dataset, SparseRecord, memory_sparse_model, open_sparse_model, save_sparse_model
from dkgp.data.types import Json, Location
from dkgp.kernels import kernel_from_json
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.interval import VarianceInterval, interval_of
from dkgp.models.sparse.methods import method_named
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.train import TrainedSparse

__all__ = ["OpenedSparse", "keep_sparse", "open_sparse", "save_sparse"]


@dataclass(frozen=True)
class OpenedSparse:
    """A stored sparse model, ready to predict on the standardised scale.

    Attributes
    ----------
    record : SparseRecord
    model : SparseModel
    certificate : SparseCertificate
    """

    record: SparseRecord
    model: SparseModel
    certificate: SparseCertificate

    def interval(self) -> VarianceInterval:
        """The proven interval of the exact variance; a few m^3 multiply-adds."""
        own = self.record.noise_variance if self.record.basis_noise is None else self.record.basis_noise
        noise = None if self.record.indices is None else own
        return interval_of(self.model, noise, self.certificate.normal_share)


def save_sparse(trained: TrainedSparse, url: Location, dataset: Dataset, *, overwrite: bool = False) -> None:
    """Write a trained sparse model to a store of its own; errors as of `save_sparse_model`."""
    save_sparse_model(url, dataset=dataset, **_said(trained), overwrite=overwrite)


def keep_sparse(trained: TrainedSparse, dataset: Dataset, about: Json | None = None) -> SparseRecord:
    """Describe a trained sparse model without storing it; `about` joins its summary. See `memory_sparse_model`."""
    said = _said(trained)
    return memory_sparse_model(dataset, **{**said, "summary": {**said["summary"], **(about or {})}})


def _said(trained: TrainedSparse) -> dict[str, Any]:
    """Arguments of `save_sparse_model` and `memory_sparse_model`, all but the training set."""
    model = trained.model
    return {
        "kernel": model.kernel.to_json(),
        "method": model.method.name,
        "noise_variance": trained.noise_variance,
        "prototypes": model.prototypes,
        "weights": model.weights,
        "lower": model.lower,
        "normal": model.normal,
        "indices": trained.basis.indices,
        "history": [] if trained.greedy is None else [record.to_json() for record in trained.greedy.history],
        "certificate": trained.certificate.to_json(),
        "summary": trained.summary,
    }


def open_sparse(source: Location | SparseRecord) -> OpenedSparse:
    """Open a sparse model that is stored, or described; errors as of `open_sparse_model`, and an unknown method."""
    record = source if isinstance(source, SparseRecord) else open_sparse_model(source)
    model = SparseModel(
        method_named(record.method),
        kernel_from_json(record.kernel),
        record.prototypes,
        record.weights,
        np.asfortranarray(record.lower),
        None if record.normal is None else np.asfortranarray(record.normal),
    )
    return OpenedSparse(record, model, SparseCertificate.from_json(record.certificate))
