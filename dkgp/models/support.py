"""A stored model's support inputs where they are needed: on whichever worker predicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.data import ClassifierRecord, ModelRecord, find_model
from dkgp.models.certificate import Certificate
from dkgp.models.noise import Noise
from dkgp.models.rounding import certified_row_errors
from dkgp.models.sums import EVERY_ENTRY, Sums
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

Record = TypeVar("Record", ModelRecord, ClassifierRecord)


@dataclass(frozen=True)
class CachedModel(Generic[Record]):
    """A model that is open, and what it counts in a worker's cache."""

    record: Record
    nbytes: int


@dataclass(frozen=True)
class StoredPoints(ABC, Generic[Record]):
    """The points of a stored model as an input source; travels as an address and opens where it is used."""

    url: str  # of the model: a store that the process can read, or a model in its own memory
    version: str  # tells one run's use of an address from the next in a worker's cache
    n_samples: int
    n_features: int
    # Where the training set lies that a model by reference names, "" for one that carries its inputs: whoever made
    # this has checked that it may be read, and a worker opens nothing else.
    reference: str

    @abstractmethod
    def _opened(self) -> CachedModel[Record]:
        """Open the model."""

    def record(self) -> Record:
        """Open the model, or take it from this worker's cache."""
        return worker_cache().get((self.version, "model"), self._opened).record

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points start:stop."""
        return self.record().inputs(start, stop)


class SupportInputs(StoredPoints[ModelRecord]):
    """The training inputs of an exact model."""

    @classmethod
    def of(cls, model: ModelRecord, version: str) -> SupportInputs:
        """The support inputs of a model that is open here."""
        return cls(model.url, version, model.n_samples, model.n_features, model.reference)

    def _opened(self) -> CachedModel[ModelRecord]:
        record = find_model(self.url, reference=self.reference)
        return CachedModel(record, int(record.alpha.nbytes))


@dataclass(frozen=True)
class NoisySupport:
    """Rows (x, s) of a model whose samples have known noise, s = sqrt(s2 / s2_i); see `dkgp.models.variance.scaled`."""

    plain: BlockContext  # of the model's support inputs and kernel
    noise_variance: float  # s2, what all samples have

    @property
    def n_samples(self) -> int:
        """Number of samples n."""
        return self.plain.n

    @property
    def n_features(self) -> int:
        """Number of features, s among them."""
        return self.plain.source.n_features + 1

    @property
    def noise(self) -> Noise:
        """Noise of the samples."""
        assert isinstance(self.plain.source, SupportInputs)
        return Noise.of_model(self.plain.source.record(), self.noise_variance)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop."""
        roots = np.sqrt(self.noise_variance / self.noise.rows(slice(start, stop)).diagonal)
        return np.column_stack([self.plain.source.inputs(start, stop), roots])


def certified_means(
    context: BlockContext, certificate: Certificate, inputs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return k_x' alpha at standardised inputs (rows, d), and by how much each may miss the exact mean: (rows, p).

    Rows (x, s), where the context is of such.
    """
    means, bounds, _ = bounded_means(context, certificate, inputs, EVERY_ENTRY)
    return means, bounds


def bounded_means(
    context: BlockContext, certificate: Certificate, inputs: FloatArray, sums: Sums
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Return what `certified_means` does, and the bounds that `Sums.products` puts on the sums alone."""
    if isinstance(context.source, NoisySupport):
        context, inputs = context.source.plain, np.ascontiguousarray(inputs[:, :-1])
    assert isinstance(context.source, SupportInputs)
    means, off = sums.products(context, inputs, context.source.record().alpha)
    errors = certified_row_errors(context.kernel, context.source, inputs)
    bounds = certificate.mean_error_bound(context.kernel.diagonal(inputs), errors)
    return means, bounds if off is None else np.nextafter(bounds + off, np.inf), off
