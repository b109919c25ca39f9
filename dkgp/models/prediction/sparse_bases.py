"""Rounds of a sparse model whose intervals of the exact variance also have a basis for each test sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.data import Dataset, SparseRecord
from dkgp.data.stores.models.references import referenced_training_set
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.prediction.sparse_rounds import SparseRounds
from dkgp.models.prediction.streaming import Streamed
from dkgp.models.rounding import variance_in_units
from dkgp.models.variance.greedy import BasisRun
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext


@dataclass(frozen=True)
class _Both:
    """Two rounds of one region."""

    own: PendingRound
    bases: PendingRound

    def done(self) -> bool:
        return self.own.done() and self.bases.done()

    def result(self) -> list[Any]:
        return [self.own.result(), self.bases.result()]


class SparseRoundsWithBases(SparseRounds):
    """As `SparseRounds`; the interval is what the model's own and that of bases of training samples have in common.

    A sparse model's store has no training samples: they are read where they were when it was trained.

    Raises
    ------
    InputError
        Noise by sample, which the store does not have of all.
    StoreError
        The training set is gone, has changed or may not be named.
    """

    def __init__(
        self, model: SparseRecord, test: Dataset, executor: BlockExecutor, version: str, variance: VarianceSettings
    ) -> None:
        if model.basis_noise is not None:
            raise InputError(
                f"`basis`: '{model.url}' was fitted with a noise of its own for each sample, which it does not have of "
                "all; leave it out"
            )
        settings = VarianceSettings(latent=variance.latent, memory_bytes=variance.memory_bytes)
        super().__init__(model, test, executor, version, settings)
        training = referenced_training_set(model.url, model.described(), None)
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        context = BlockContext(version, training, kernel, training.n_samples)
        self._bases = BasisRun(context, noise_variance, None, test, executor, variance)
        self.attributes["variance"] = self._bases.plan
        self.depth, self.region_rows = self._bases.depth, self._bases.region_rows

    def prepare(self) -> str | None:
        """Say what the bases will take."""
        return self._bases.prepare()

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        return _Both(super().submit(start, stop), self._bases.submit(start, stop))

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """Join a region's pieces and bases."""
        sparse, bases = results
        values = super().values(sparse)
        *_, lower, upper = self._bases.collect(bases)
        low, high = variance_in_units(lower, upper, self._model.standardisation.target_std)
        low, high = np.maximum(values["variance_lower"], low), np.minimum(values["variance_upper"], high)
        if (low > high).any():
            raise NumericalError("bounds on a variance contradict each other: the kernel is not positive definite")
        return {**values, "variance_lower": low, "variance_upper": high}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Figures of the variances, and of the bases."""
        return {**self._bases.summary(seconds), **(super().summary(seconds, streamed) or {})}
