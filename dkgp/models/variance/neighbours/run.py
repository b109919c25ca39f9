"""A prediction's variances by neighbours: each batch is cut into tiles of neighbouring test points, each for itself."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import highest_prior
from dkgp.models.support import NoisySupport
from dkgp.models.variance.batch import BatchVariance, VarianceBounds
from dkgp.models.variance.batched import UNPROVEN, BatchedRun
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.neighbours.expansion import Distances
from dkgp.models.variance.neighbours.samples import Samples, plain_context
from dkgp.models.variance.neighbours.tile import MOST_BESIDE, Tile
from dkgp.models.variance.search import ProductTally
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

# Test points of a tile at most; samples within its box at most, over those that are solved for.
TILE_POINTS, INSIDE = 256, 0.6
# Samples that are solved for: the least number, the next one over each, and the greatest.
LEAST, STEP, MOST = {1: 64, 2: 192, 3: 288}, 1.5, 3300
# Where no test points are known yet.
USUAL = {1: 96, 2: 648, 3: 972}
# Further attempts at points that miss the gap, each with more samples.
ATTEMPTS = 2
# Test points of a batch: by their number alone.
PARTS, LEAST_BATCH, MOST_BATCH = 64, 1024, 65_536
# Batches of which one tile each is tried to choose the number of samples; share of the points that must meet the gap.
TRIED, LEAST_MET = 3, 0.95


@dataclass(frozen=True)
class Trial:
    """A few tiles that were tried: the share of points that met the gap, and core-seconds for each."""

    met: float
    seconds: float


def serves(context: BlockContext) -> bool:
    """Return True if the kernel is of distances in one to three features, so that neighbours prove its variances."""
    try:
        Distances.of(plain_context(context).kernel)
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class NeighbourOptions:
    """Options of a batch."""

    gap: float
    latent: bool
    count: int  # samples that are solved for at first


def tiles(samples: Samples, points: FloatArray, inside: float) -> list[IndexArray]:
    """Cut points (t, k) into tiles of neighbours, with at most so many samples within each box: their indices."""
    scaled = points * samples.distances.metric
    parts, todo = [], [np.arange(len(points))]
    while todo:
        part = todo.pop()
        some = points[part]
        single = len(part) == 1 or not np.ptp(some, axis=0).any()
        crowded = len(part) > TILE_POINTS or (
            not single and samples.inside(some.min(axis=0), some.max(axis=0)) > inside
        )
        if not crowded or len(part) == 1:
            parts.append(part)
            continue
        column = scaled[part][:, int(np.argmax(np.ptp(scaled[part], axis=0)))]
        order = np.argsort(column, kind="stable")
        middle = len(part) // 2
        todo += [part[np.sort(order[middle:])], part[np.sort(order[:middle])]]
    return parts


def tighten_tile(
    samples: Samples,
    inputs: FloatArray,
    which: IndexArray,
    bounds: VarianceBounds,
    options: NeighbourOptions,
    noise: float,
) -> None:
    """Tighten the bounds of some of the standardised inputs (t, d); again with more samples where they miss the gap."""
    count = float(options.count)
    for _ in range(1 + ATTEMPTS):
        ends = Tile.of(samples, inputs[which]).ends(int(count), options.gap, noise)
        bounds.tighten(which, ends.lower, ends.upper, ends.upper - ends.lower)
        which = which[bounds.gaps(which) > options.gap]
        if not len(which) or count >= min(samples.n, MOST):
            return
        count = min(count * STEP, MOST)


def batch_bounds(samples: Samples, inputs: FloatArray, noise: float, options: NeighbourOptions) -> VarianceBounds:
    """Bound the variances at standardised inputs (t, d); `noise` is added to those of new observations."""
    prior = np.asarray(samples.distances.kernel.diagonal(inputs), dtype=np.float64)
    bounds = VarianceBounds(highest_prior(samples.distances.kernel, prior), noise, options.gap)
    points = inputs[:, list(samples.distances.features)]
    for which in tiles(samples, points, INSIDE * options.count):
        tighten_tile(samples, inputs, which, bounds, options, noise)
    return bounds


@dataclass(frozen=True)
class NeighbourSource:
    """The source of a worker's samples, and how a batch is bounded by them."""

    context: BlockContext
    noise_variance: float
    options: NeighbourOptions

    def samples(self) -> Samples:
        """Return all training samples in their tree, from this process's cache or the model."""
        key = (self.context.run_id, "neighbours", self.noise_variance)
        return worker_cache().get(key, lambda: Samples.of(self.context, self.noise_variance))

    def plain(self, inputs: FloatArray) -> FloatArray:
        """Return the model's own inputs from those of the context."""
        scaled = isinstance(self.context.source, NoisySupport)
        return np.ascontiguousarray(inputs[:, :-1]) if scaled else inputs

    def bounds(self, inputs: FloatArray) -> BatchVariance:
        """Bound the variances at standardised inputs (t, d) of the context."""
        noise = 0.0 if self.options.latent else self.noise_variance
        bounds = batch_bounds(self.samples(), self.plain(inputs), noise, self.options)
        return bounds.reported(np.zeros(len(inputs)), ProductTally())


class NeighbourRun(BatchedRun):
    """One prediction's variances by neighbours.

    Parameters
    ----------
    context : BlockContext
        Of the model's support inputs.
    noise_variance : float
    certificate : Certificate or None
        Of the means; None where they are not wanted.
    stored : dict, optional
        Plan of the prediction that is resumed.
    patience : float
        Core-seconds after which no larger number of neighbours is tried.

    Attributes
    ----------
    plan : dict
        What the store records: way, gap, max_passes, latent, seed, neighbours, batch_size.
    trial : Trial
        That of the number of neighbours; of no tiles where the prediction is resumed.

    Raises
    ------
    InputError
        A kernel that is not of distances in one to three features; other settings than those of the prediction to
        resume.
    """

    _label = "kneighbours"

    def __init__(
        self,
        context: BlockContext,
        noise_variance: float,
        certificate: Certificate | None,
        test: TestRows,
        executor: BlockExecutor,
        settings: VarianceSettings,
        *,
        stored: dict[str, Any] | None = None,
        n_test: int | None = None,
        patience: float = math.inf,
    ) -> None:
        super().__init__(certificate, test, executor, settings, n_test)
        self._width = len(Distances.of(plain_context(context).kernel).features)
        self._source = NeighbourSource(context, noise_variance, NeighbourOptions(settings.gap, settings.latent, 0))
        batch = settings.batch_size or min(max(math.ceil(self._n_test / PARTS), LEAST_BATCH), MOST_BATCH)
        self.plan = {
            "way": "neighbours",
            **self._requested,
            "neighbours": 0 if stored is None else int(stored.get("neighbours", 0)),
            "batch_size": int(batch),
        }
        self._require_same(stored, self.plan)
        self.trial = Trial(1.0, 0.0)
        if stored is None:
            self.plan["neighbours"] = self._chosen_count(context.n, patience)

    @UNPROVEN
    def _chosen_count(self, n: int, patience: float) -> int:
        """Return the least number of samples to solve for with which nearly all points of a few tiles meet the gap."""
        count, most = LEAST[self._width], min(n, MOST)
        if not self._test.n_samples:
            return min(USUAL[self._width], n)
        samples, settings = self._source.samples(), self._settings
        noise = 0.0 if settings.latent else self._source.noise_variance
        rows = min(int(self.plan["batch_size"]), self._test.n_samples)
        starts = np.unique(np.linspace(0, self._test.n_samples - rows, TRIED).astype(int))
        batches = [self._source.plain(self._test.inputs(int(start), int(start) + rows)) for start in starts]
        Tile.of(samples, batches[0][:1]).ends(count, settings.gap)  # what is compiled is not timed
        deadline = time.thread_time() + patience
        while True:
            met, tried, began, loosened = 0, 0, time.thread_time(), True
            for inputs in batches:
                points = inputs[:, list(samples.distances.features)]
                parts = tiles(samples, points, INSIDE * count)
                some = inputs[parts[len(parts) // 2]]
                ends = Tile.of(samples, some).ends(count, settings.gap, noise)
                upper = ends.upper + noise
                met += int(np.count_nonzero(ends.upper - np.fmax(ends.lower, 0.0) <= settings.gap * upper))
                tried += len(some)
                loosened &= ends.loosened
            self.trial = Trial(met / tried, (time.thread_time() - began) / tried)
            if loosened and not met:
                raise InputError(
                    f"variances by neighbours are of no use here: more than {MOST_BESIDE[self._width]:,} of {n:,} "
                    "training samples are too near to test samples, at these length scales in "
                    f"{self._width} features, to be approximated well enough for the gap of {settings.gap:.2g}. "
                    "Take `way` iterative, or a wider gap"
                )
            if self.trial.met >= LEAST_MET or count >= most or time.thread_time() > deadline:
                return min(count, most)
            count = min(int(count * STEP), most)

    def prepare(self, model: SupportSamples) -> str:
        """Say what is done; each worker makes its tree of samples when it needs it."""
        return (
            f"variances by neighbours: {self.plan['neighbours']:,} samples around each tile of at most {TILE_POINTS} "
            "test samples, and all others by a proven bound"
        )

    def _way(self, batches: int) -> NeighbourSource:
        options = replace(self._source.options, count=int(self.plan["neighbours"]))
        return replace(self._source, options=options)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of the samples of this run; those that a resumed run found done are not among them."""
        count = int(self.plan["neighbours"])
        return {**super().summary(seconds), "way": "neighbours", "rank": count, "halo": 0, "smooth": False}
