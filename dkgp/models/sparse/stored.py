"""Sparse models between memory and their store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dkgp.data import Dataset, SparseRecord, open_sparse_model, save_sparse_model
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.model import about_model
from dkgp.data.types import Location
from dkgp.kernels import kernel_from_json
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.methods import method_named
from dkgp.models.sparse.model import SparseModel, VarianceInterval, interval_of
from dkgp.models.sparse.problem import TrainedSparse
from dkgp.models.sparse.vif.prediction import Near, NearPredictor
from dkgp.models.sparse.vif.stored import near_fields, near_of


@dataclass(frozen=True)
class OpenedSparse:
    """A stored sparse model, ready to predict on the standardised scale."""

    record: SparseRecord
    model: SparseModel
    certificate: SparseCertificate
    near: Near | None = None  # of a model with neighbours

    @cached_property
    def near_predictor(self) -> NearPredictor | None:
        """Predictor of a model with neighbours, which values and gradients share; None for other models."""
        model, near = self.model, self.near
        return None if near is None else NearPredictor(model.kernel, model.prototypes, model.lower, near)

    def interval(self) -> VarianceInterval:
        """The proven interval of the exact variance; a few m^3 multiply-adds."""
        record = self.record
        noise = record.noise_variance if record.basis_noise is None else record.basis_noise
        return interval_of(self.model, None if record.indices is None else noise, self.certificate.normal_share)


def sparse_record(trained: TrainedSparse, dataset: Dataset) -> SparseRecord:
    """Describe a trained sparse model as a store has it; nothing is written, and its address is empty."""
    model = trained.model
    about = about_model(
        dataset,
        kernel=model.kernel.to_json(),
        noise_variance=trained.noise_variance,
        history=[] if trained.greedy is None else [record.to_json() for record in trained.greedy.history],
        certificate=trained.certificate.to_json(),
        summary=trained.summary,
    )
    return SparseRecord(
        **about,
        method=model.method.name,
        prototypes=model.prototypes,
        weights=model.weights,
        lower=model.lower,
        normal=model.normal,
        indices=trained.basis.indices,
        basis_noise=trained.basis_noise,
        **({} if trained.near is None else near_fields(trained.near)),
    )


def _near(record: SparseRecord) -> Near | None:
    """The neighbours of a record, and those of its method alone; `ValueError` where something is missing."""
    return near_of(record, record.noise_variance) if method_named(record.method).neighbours else None


def save_sparse(trained: TrainedSparse, url: Location, dataset: Dataset, *, overwrite: bool = False) -> None:
    """Write a trained sparse model to a store of its own; errors as of `save_sparse_model`."""
    save_sparse_model(url, sparse_record(trained, dataset), overwrite=overwrite)


def opened_sparse(record: SparseRecord) -> OpenedSparse:
    """Make a model of its record.

    Raises `InputError`: a method that this dkgp does not know.
    """
    model = SparseModel(
        method_named(record.method),
        kernel_from_json(record.kernel),
        record.prototypes,
        record.weights,
        np.asfortranarray(record.lower),
        None if record.normal is None else np.asfortranarray(record.normal),
    )
    with described_whole(record.url, "train again"):
        return OpenedSparse(record, model, SparseCertificate.from_json(record.certificate), _near(record))


def open_sparse(url: Location) -> OpenedSparse:
    """Open a stored sparse model; errors as of `open_sparse_model` and `opened_sparse`."""
    return opened_sparse(open_sparse_model(url))
