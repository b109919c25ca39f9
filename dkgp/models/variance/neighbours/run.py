"""A prediction's variances by neighbours: each batch is cut into tiles of neighbouring test points, each for itself."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.errors import InputError
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import highest_prior
from dkgp.models.support import NoisySupport, certified_means
from dkgp.models.variance.batch import VarianceBounds
from dkgp.models.variance.batched import UNPROVEN, BatchedRun
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.neighbours.expansion import Distances
from dkgp.models.variance.neighbours.samples import Samples, plain_context
from dkgp.models.variance.neighbours.tile import Tile
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
class NeighbourSource:
    """The source of a worker's samples; travels with every task."""

    context: BlockContext
    noise_variance: float

    def samples(self) -> Samples:
        """Return all training samples in their tree, from this process's cache or the model."""
        key = (self.context.run_id, "neighbours", self.noise_variance)
        return worker_cache().get(key, lambda: Samples.of(self.context, self.noise_variance))

    def plain(self, inputs: FloatArray) -> FloatArray:
        """Return the model's own inputs from those of the context."""
        scaled = isinstance(self.context.source, NoisySupport)
        return np.ascontiguousarray(inputs[:, :-1]) if scaled else inputs


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


@needs_one_arithmetic
@UNPROVEN
def neighbour_task(
    source: NeighbourSource,
    certificate: Certificate | None,
    test: TestRows,
    options: NeighbourOptions,
    batches: list[tuple[int, int]],
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, ProductTally]]:
    """Mean and its error bound (rows, p), bounds of the variance and no passes (rows,) of each batch: standardised."""
    samples, results = source.samples(), []
    noise = 0.0 if options.latent else source.noise_variance
    for start, stop in batches:
        inputs = test.inputs(start, stop)
        bounds = batch_bounds(samples, source.plain(inputs), noise, options)
        reported = bounds.reported(np.zeros(len(inputs)), ProductTally())
        mean = error = np.zeros((len(inputs), 0))
        if certificate is not None:
            mean, error = certified_means(source.context, certificate, inputs)
        results.append((mean, error, reported.lower, reported.upper, reported.passes, reported.tally))
    return results


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
        self._source = NeighbourSource(context, noise_variance)
        batch = settings.batch_size or min(max(math.ceil(self._n_test / PARTS), LEAST_BATCH), MOST_BATCH)
        self.plan = {
            "way": "neighbours",
            "gap": settings.gap,
            "max_passes": settings.max_passes,
            "latent": settings.latent,
            "seed": settings.seed,
            "neighbours": 0,
            "batch_size": int(batch),
        }
        self.trial = Trial(1.0, 0.0)
        if stored is not None:
            self.plan["neighbours"] = int(stored.get("neighbours", 0))
            if stored != self.plan:
                raise InputError(
                    f"the prediction to resume was started with {stored}, not {self.plan}; repeat these, or `overwrite`"
                )
        else:
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
            met, tried, began = 0, 0, time.thread_time()
            for inputs in batches:
                points = inputs[:, list(samples.distances.features)]
                parts = tiles(samples, points, INSIDE * count)
                some = inputs[parts[len(parts) // 2]]
                ends = Tile.of(samples, some).ends(count, settings.gap, noise)
                upper = ends.upper + noise
                met += int(np.count_nonzero(ends.upper - np.fmax(ends.lower, 0.0) <= settings.gap * upper))
                tried += len(some)
            self.trial = Trial(met / tried, (time.thread_time() - began) / tried)
            if self.trial.met >= LEAST_MET or count >= most or time.thread_time() > deadline:
                return min(count, most)
            count = min(int(count * STEP), most)

    def without_means(self) -> Self:
        """Return the same run without means."""
        run = copy.copy(self)
        run._certificate = None
        return run

    def prepare(self, model: SupportSamples) -> str:
        """Say what is done; each worker makes its tree of samples when it needs it."""
        return (
            f"variances by neighbours: {self.plan['neighbours']:,} samples around each tile of at most {TILE_POINTS} "
            "test samples, and all others by a proven bound"
        )

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region: one task for each batch."""
        groups = [[batch] for batch in self._batches(start, stop)]
        options = NeighbourOptions(self._settings.gap, self._settings.latent, int(self.plan["neighbours"]))
        arguments = (self._source, self._certificate, self._test, options)
        return self._executor.submit("kneighbours", neighbour_task, arguments, groups)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of the samples of this run; those that a resumed run found done are not among them."""
        count = int(self.plan["neighbours"])
        return {**super().summary(seconds), "way": "neighbours", "rank": count, "halo": 0, "smooth": False}
