"""Approximate variances of an exact model, from a basis and the samples near each test sample (VIF).

They are the variances of the model with neighbours (`dkgp.models.sparse.near`) with the same kernel, noise and samples.
Nothing bounds their distance to the exact model's variances, so no interval is stored. The means stay the exact
model's. This process computes the predictions; workers build the factors.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import PendingRound
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.rounding import highest_prior, outward
from dkgp.models.sparse.near import NearPredictor, near_predictor
from dkgp.models.sparse.search import BASIS_SIZES
from dkgp.models.sparse.vif import Neighbours
from dkgp.models.variance.neighbours.samples import plain_context
from dkgp.models.variance.run import Ends, Later, Parts, Request, VarianceRun
from dkgp.models.variance.settings import TestRows
from dkgp.operators.base import FloatArray

# Test samples of a batch.
BATCH = 1024


class VifRun(VarianceRun):
    """Approximate variances of one prediction.

    Parameters
    ----------
    request : Request
        Its subject has a record: the exact model.

    Attributes
    ----------
    plan : dict
        Entries: way, gap (None), latent, seed, basis_size, neighbours, batch_size.

    Raises
    ------
    InputError
        The settings differ from those of the stored plan.
    """

    has_means = False
    _shared = True

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        n, settings, sizes = request.model.n_samples, request.settings, Neighbours()
        self._batch = int(settings.batch_size or BATCH)
        self._unproven = self._count = 0
        self.plan = {
            "way": "vif",
            "gap": None,
            "latent": settings.latent,
            "seed": settings.seed,
            "basis_size": min(BASIS_SIZES["vif"], n),
            "neighbours": min(n, sizes.leaf + sizes.halo),
            "batch_size": self._batch,
        }
        self._require_same(self.plan)

    @cached_property
    def _predictor(self) -> NearPredictor:
        record, context = self.request.subject.record, plain_context(self.request.context)
        assert record is not None
        noise, targets = Noise.of_model(record).diagonal, np.zeros((context.n, 1))
        with RunContext.of(self._executor).operator(context.kernel, noise, context.source) as operator:
            return near_predictor(operator, targets, self.plan["basis_size"], self.plan["seed"])

    def prepare(self) -> str:
        """Build the factors of the basis and return a line on them."""
        self._predictor  # noqa: B018
        return (
            f"approximate variances from neighbours (VIF): {self.plan['neighbours']:,} samples near each test sample "
            f"and a basis of {self.plan['basis_size']:,}; nothing bounds their errors"
        )

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> PendingRound:
        """Return the rows' predictions, which this process computes when their results are requested."""
        return Later(partial(self._predicted, rows, start, stop))

    def _predicted(self, rows: TestRows, start: int, stop: int) -> list[FloatArray]:
        inputs = rows.inputs(start, stop)
        _, variance, unproven = self._predictor.predicted(inputs, self._executor.parallelism)
        kernel = plain_context(self.request.context).kernel
        highest = highest_prior(kernel, np.asarray(kernel.diagonal(inputs), dtype=np.float64))
        self._unproven += int(unproven.sum())
        self._count += len(inputs)
        return [variance, highest]

    def collect(self, results: list[Any]) -> Ends:
        """Return the variances, with the noise unless they are latent; their ends prove nothing."""
        variance, highest = results
        noise = 0.0 if self._settings.latent else self.request.model.noise_variance
        none = np.zeros((len(variance), 0))
        _, upper = outward(highest, highest + noise)
        return Ends(none, none, np.full(len(variance), noise), upper, variance + noise)

    def _way(self, batches: int) -> Any:
        raise NotImplementedError("this process computes all predictions")

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the samples that this run computed."""
        return {
            **{name: self.plan[name] for name in ("way", "latent", "basis_size", "neighbours", "batch_size")},
            "approximate": True,
            "neighbours_unproven": self._unproven / max(1, self._count),
            "seconds_per_sample": seconds / max(1, self._count),
        }
