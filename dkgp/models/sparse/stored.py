"""Sparse models between memory and their store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data import Dataset
from dkgp.data.stores.sparse.sparse_store import SparseRecord, open_sparse_model, save_sparse_model
from dkgp.data.types import Location
from dkgp.kernels import kernel_from_json
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.interval import VarianceInterval, interval_of
from dkgp.models.sparse.methods import method_named
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.train import TrainedSparse

__all__ = ["OpenedSparse", "open_sparse", "save_sparse"]


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
        noise = None if self.record.indices is None else self.record.noise_variance
        return interval_of(self.model, noise, self.certificate.normal_share)


def save_sparse(trained: TrainedSparse, url: Location, dataset: Dataset, *, overwrite: bool = False) -> None:
    """Write a trained sparse model to a store of its own; errors as of `save_sparse_model`."""
    model = trained.model
    save_sparse_model(
        url,
        dataset=dataset,
        kernel=model.kernel.to_json(),
        method=model.method.name,
        noise_variance=trained.noise_variance,
        prototypes=model.prototypes,
        weights=model.weights,
        lower=model.lower,
        normal=model.normal,
        indices=trained.basis.indices,
        history=[] if trained.greedy is None else [record.to_json() for record in trained.greedy.history],
        certificate=trained.certificate.to_json(),
        summary=trained.summary,
        overwrite=overwrite,
    )


def open_sparse(url: Location) -> OpenedSparse:
    """Open a stored sparse model; errors as of `open_sparse_model`, and a method that this dkgp does not know."""
    record = open_sparse_model(url)
    model = SparseModel(
        method_named(record.method),
        kernel_from_json(record.kernel),
        record.prototypes,
        record.weights,
        np.asfortranarray(record.lower),
        None if record.normal is None else np.asfortranarray(record.normal),
    )
    return OpenedSparse(record, model, SparseCertificate.from_json(record.certificate))
