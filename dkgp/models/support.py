"""A stored model's support inputs where they are needed: on whichever worker predicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.data import ModelRecord, find_model
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import certified_row_errors
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

__all__ = ["SupportInputs", "certified_means", "cross_products", "predicted_means"]


@dataclass(frozen=True)
class _CachedModel:
    record: ModelRecord

    @property
    def nbytes(self) -> int:
        return int(self.record.alpha.nbytes)


@dataclass(frozen=True)
class SupportInputs:
    """A stored model's support inputs as an input source; travels as a URL and opens where it is used.

    Attributes
    ----------
    url : str
        Of the model store.
    version : str
        Tells one run's use of a URL from the next in a worker's cache.
    n_samples, n_features : int
    reference : str
        Where the training set lies that a model by reference names, "" for one that carries its inputs: whoever made
        this has found that it may be read, and a worker opens nothing else.
    """

    url: str
    version: str
    n_samples: int
    n_features: int
    reference: str

    @classmethod
    def of(cls, model: ModelRecord, version: str) -> SupportInputs:
        """The support inputs of a model that is open here."""
        return cls(model.url, version, model.n_samples, model.n_features, model.reference)

    def record(self) -> ModelRecord:
        """Open the model, or take it from this worker's cache."""
        found = worker_cache().get(
            (self.version, "model"), lambda: _CachedModel(find_model(self.url, reference=self.reference))
        )
        return found.record

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs start:stop."""
        return self.record().inputs(start, stop)


def predicted_means(context: BlockContext, inputs: FloatArray) -> FloatArray:
    """k_x' alpha for standardised test inputs (rows, d), in float64: (rows, p), standardised."""
    assert isinstance(context.source, SupportInputs)
    return cross_products(context, inputs, context.source.record().alpha)


def certified_means(
    context: BlockContext, certificate: Certificate, inputs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """k_x' alpha at standardised inputs (rows, d), and by how much each may miss the exact mean: (rows, p)."""
    errors = certified_row_errors(context.kernel, context.source, inputs)
    return predicted_means(context, inputs), certificate.mean_error_bound(context.kernel.diagonal(inputs), errors)


def cross_products(context: BlockContext, inputs: FloatArray, weights: FloatArray) -> FloatArray:
    """K(inputs, X) @ weights for standardised inputs (rows, d) and weights (n, t), in float64: (rows, t)."""
    evaluator = context.evaluator("double")
    rows = evaluator.prepare(inputs)
    product = np.zeros((rows.n, weights.shape[1]))
    for block in range(context.n_blocks):
        first, last = context.bounds(block)
        product += evaluator.matmat(rows, context.block_features(block, "double"), weights[first:last])
    return product
