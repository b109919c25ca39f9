"""A stored model's support inputs where they are needed: on whichever worker predicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.data import ModelRecord, find_model
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import certified_row_errors
from dkgp.models.sums import EVERY_ENTRY, Sums
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext


@dataclass(frozen=True)
class _CachedModel:
    record: ModelRecord

    @property
    def nbytes(self) -> int:
        return int(self.record.alpha.nbytes)


@dataclass(frozen=True)
class SupportInputs:
    """A stored model's support inputs as an input source; travels as a URL and opens where it is used."""

    url: str  # of the model store
    version: str  # tells one run's use of a URL from the next in a worker's cache
    n_samples: int
    n_features: int
    # Where the training set lies that a model by reference names, "" for one that carries its inputs: whoever made
    # this has found that it may be read, and a worker opens nothing else.
    reference: str

    @classmethod
    def of(cls, model: ModelRecord, version: str) -> SupportInputs:
        """The support inputs of a model that is open here."""
        return cls(model.url, version, model.n_samples, model.n_features, model.reference)

    def record(self) -> ModelRecord:
        """Open the model, or take it from this worker's cache."""
        model = worker_cache().get(
            (self.version, "model"), lambda: _CachedModel(find_model(self.url, reference=self.reference))
        )
        return model.record

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs start:stop."""
        return self.record().inputs(start, stop)


def certified_means(
    context: BlockContext, certificate: Certificate, inputs: FloatArray, sums: Sums = EVERY_ENTRY
) -> tuple[FloatArray, FloatArray]:
    """k_x' alpha at standardised inputs (rows, d), and by how much each may miss the exact mean: (rows, p)."""
    assert isinstance(context.source, SupportInputs)
    means, off = sums.products(context, inputs, context.source.record().alpha)
    errors = certified_row_errors(context.kernel, context.source, inputs)
    bounds = certificate.mean_error_bound(context.kernel.diagonal(inputs), errors)
    return means, bounds if off is None else np.nextafter(bounds + off, np.inf)
