"""A prediction's variances by neighbours: each batch is cut into tiles of neighbouring test points, each for itself."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import highest_prior
from dkgp.models.support import NoisySupport
from dkgp.models.variance.batch import BatchVariance, VarianceBounds
from dkgp.models.variance.batched import REGIONS, UNPROVEN, BatchedRun
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.neighbours.expansion import Distances
from dkgp.models.variance.neighbours.samples import Samples, held_bytes, plain_context
from dkgp.models.variance.neighbours.tile import MOST_BESIDE, Tile, working_bytes
from dkgp.models.variance.search import ProductTally
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

# Test points of a tile at most; samples within its box at most, over those that are solved for.
TILE_POINTS, INSIDE = 256, 0.6
# Samples that are solved for: the least number, the next one over each, and the greatest. Between the last number that
# does not suffice and the first that does, so many more are tried.
LEAST, STEP, MOST, HALVINGS = {1: 64, 2: 192, 3: 288}, 1.5, 3300, 2
# Where no test points are known yet.
USUAL = {1: 96, 2: 648, 3: 972}
# Further attempts at points that miss the gap, each with more samples.
ATTEMPTS = 2
# Test points of a region of the store, and of a batch at most: neighbours within the region.
REGION_ROWS, BATCH_POINTS = 131_072, 1024
# Test points from which further numbers of samples are worth a trial; batches of a region for each thread at least,
# so that no other region needs to be under way.
WORTH_HALVING, WAVES = 20_000, 8
# Regions of which one tile each is tried to choose the number of samples; share of the points that must meet the gap.
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


class Parts(Protocol):
    """A place that keeps batches of a region until the region is whole."""

    def load(self, count: int) -> dict[int, FloatArray]:
        """Return the batches, of so many, that are kept there."""

    def keep(self, batch: int, values: FloatArray) -> None:
        """Keep a batch's values (3, rows)."""

    def interrupted(self) -> bool:
        """Return True if an end is asked for."""

    def end(self) -> None:
        """Raise `InterruptedRunError`."""


@dataclass(frozen=True)
class NeighbourOptions:
    """Options of a batch."""

    gap: float
    latent: bool
    count: int  # samples that are solved for at first
    most: int = MOST  # and at most


def _halved(scaled: FloatArray, crowded: Callable[[IndexArray], bool]) -> list[IndexArray]:
    """Halve points (t, k) at the median of their widest feature while parts of them are crowded: their indices."""
    parts, todo = [], [np.arange(len(scaled))]
    while todo:
        part = todo.pop()
        if len(part) == 1 or not crowded(part):
            parts.append(part)
            continue
        column = scaled[part][:, int(np.argmax(np.ptp(scaled[part], axis=0)))]
        order = np.argsort(column, kind="stable")
        middle = len(part) // 2
        todo += [part[np.sort(order[middle:])], part[np.sort(order[:middle])]]
    return parts


def tiles(samples: Samples, points: FloatArray, inside: float) -> list[IndexArray]:
    """Cut points (t, k) into tiles of neighbours, with at most so many samples within each box: their indices."""

    def crowded(part: IndexArray) -> bool:
        if len(part) > TILE_POINTS:
            return True
        some = points[part]
        return bool(np.ptp(some, axis=0).any()) and samples.inside(some.min(axis=0), some.max(axis=0)) > inside

    return _halved(points * samples.distances.metric, crowded)


@dataclass(frozen=True)
class _Batches:
    """Batches of neighbours that a region is cut into: the rows of each, counted from the region's first."""

    rows: list[IndexArray]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(rows.nbytes for rows in self.rows)

    @classmethod
    def of(cls, distances: Distances, inputs: FloatArray, size: int) -> _Batches:
        """Cut standardised inputs (t, d) into batches of at most `size` points."""
        scaled = inputs[:, list(distances.features)] * distances.metric
        return cls(_halved(scaled, lambda part: len(part) > size))


def largest_count(memory_bytes: int, n: int, width: int, threads: int) -> int:
    """Return the most samples around a tile with which a process of so many threads keeps within its memory.

    Raises `MemoryBudgetError` where not even the least number does.
    """

    def taken(count: int) -> int:
        return held_bytes(n, width) + threads * working_bytes(TILE_POINTS, count, width)

    least = min(LEAST[width], n)
    if taken(least) > memory_bytes:
        raise MemoryBudgetError(
            f"variances by neighbours of {n:,} training samples take {taken(least) / 1e6:,.3g} MB at least in a "
            f"process of {threads} threads; the variance memory is {memory_bytes / 1e6:,.3g} MB. Raise "
            "`memory_bytes`, or use fewer threads a worker"
        )
    return max(count for count in range(least, MOST + 1) if taken(count) <= memory_bytes)


def batch_count(points: int, size: int) -> int:
    """Return the number of batches that so many points are cut into."""
    if points <= size:
        return 1
    return batch_count(points // 2, size) + batch_count(points - points // 2, size)


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
        if not len(which) or count >= min(samples.n, options.most):
            return
        count = min(count * STEP, options.most)


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

    def batches(self, inputs: FloatArray, region: tuple[int, int], size: int) -> list[IndexArray]:
        """Return the rows of each batch of a region, from its standardised inputs (t, d)."""
        plain = plain_context(self.context)
        key = (self.context.run_id, "batches", *region)
        distances = Distances.of(plain.kernel)
        return worker_cache().get(key, lambda: _Batches.of(distances, self.plain(inputs), size)).rows

    def bounds(self, inputs: FloatArray) -> BatchVariance:
        """Bound the variances at standardised inputs (t, d) of the context."""
        noise = 0.0 if self.options.latent else self.noise_variance
        bounds = batch_bounds(self.samples(), self.plain(inputs), noise, self.options)
        return bounds.reported(np.zeros(len(inputs)), ProductTally())


@needs_one_arithmetic
@UNPROVEN
def neighbour_task(
    source: NeighbourSource, test: TestRows, region: tuple[int, int], size: int, batches: list[int]
) -> list[FloatArray]:
    """Return rows of batches of a region, and bounds of the variances there, standardised: (3, rows) each."""
    inputs = test.inputs(*region)
    parts = source.batches(inputs, region, size)
    results = []
    for batch in batches:
        bounds = source.bounds(inputs[parts[batch]])
        results.append(np.stack([parts[batch].astype(np.float64), bounds.lower, bounds.upper]))
    return results


class _Region:
    """A region under way: a batch starts as another ends, and each result is kept as soon as it arrives."""

    def __init__(self, submit: Callable[[int], PendingRound], count: int, ahead: int, parts: Parts | None) -> None:
        self._submit, self._ahead, self._parts = submit, ahead, parts
        self._results: dict[int, FloatArray] = {} if parts is None else parts.load(count)
        self._todo = deque(batch for batch in range(count) if batch not in self._results)
        self._under_way: deque[tuple[int, PendingRound]] = deque()
        self._start()

    def _start(self) -> None:
        while self._todo and len(self._under_way) < self._ahead:
            batch = self._todo.popleft()
            self._under_way.append((batch, self._submit(batch)))

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return not self._todo and all(pending.done() for _, pending in self._under_way)

    def result(self) -> list[FloatArray]:
        """Wait for all batches; `InterruptedRunError` where an end is asked for: those under way are kept first."""
        while self._under_way:
            batch, pending = self._under_way.popleft()
            self._results[batch] = pending.result()[0]
            if self._parts is not None:
                self._parts.keep(batch, self._results[batch])
                if self._parts.interrupted():
                    self._todo.clear()
                    if not self._under_way:
                        self._parts.end()
            self._start()
        return [self._results[batch] for batch in sorted(self._results)]


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
        What the store records: way, gap, max_passes, latent, seed, neighbours, most_neighbours, batch_size.
    trial : Trial
        That of the number of neighbours; of no tiles where the prediction is resumed.

    Raises
    ------
    InputError
        A kernel that is not of distances in one to three features; other settings than those of the prediction to
        resume.
    """

    _label = "kneighbours"
    _most = MOST  # samples around a tile

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
        batch = settings.batch_size or BATCH_POINTS
        if settings.memory_bytes is not None:
            threads = executor.threads_per_process
            self._most = largest_count(settings.memory_bytes, context.n, self._width, threads)
        self.plan = {
            "way": "neighbours",
            **self._requested,
            "neighbours": 0 if stored is None else int(stored.get("neighbours", 0)),
            "most_neighbours": self._most,
            "batch_size": int(batch),
        }
        self._require_same(stored, self.plan)
        self.trial = Trial(1.0, 0.0)
        if stored is None:
            self.plan["neighbours"] = self._chosen_count(context.n, patience)

    @UNPROVEN
    def _chosen_count(self, n: int, patience: float) -> int:
        """Return the least number of samples to solve for with which nearly all points of a few tiles meet the gap."""
        count, most = LEAST[self._width], min(n, self._most)
        if not self._test.n_samples:
            return min(USUAL[self._width], n)
        samples, settings = self._source.samples(), self._settings
        noise = 0.0 if settings.latent else self._source.noise_variance
        batches = self._tried_batches()
        Tile.of(samples, batches[0][:1]).ends(count, settings.gap)  # what is compiled is not timed
        deadline = time.thread_time() + patience

        def suffices(count: int) -> bool:
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
            return self.trial.met >= LEAST_MET

        short = 0
        while not suffices(count) and count < most and time.thread_time() < deadline:
            short, count = count, min(int(count * STEP), most)
        count = min(count, most)
        trial, tries = self.trial, HALVINGS if short and self._test.n_samples > WORTH_HALVING else 0
        for _ in range(tries if trial.met >= LEAST_MET else 0):
            between = int(math.sqrt(short * count))
            if suffices(between):
                count, trial = between, self.trial
            else:
                short = between
        self.trial = trial
        return count

    def _tried_batches(self) -> list[FloatArray]:
        """Inputs of one batch in the middle of each of a few regions."""
        n, size, source = self._test.n_samples, int(self.plan["batch_size"]), self._source
        rows = min(self._rows, n)
        distances = Distances.of(plain_context(source.context).kernel)
        batches = []
        for start in np.unique(np.linspace(0, n - rows, TRIED).astype(int)):
            inputs = source.plain(self._test.inputs(int(start), int(start) + rows))
            parts = _Batches.of(distances, inputs, size).rows
            batches.append(inputs[parts[len(parts) // 2]])
        return batches

    @property
    def _rows(self) -> int:
        return self._settings.batch_size or REGION_ROWS

    @property
    def region_rows(self) -> int:
        """Rows of a region of the store."""
        return min(self._n_test, max(self._rows, math.ceil(self._n_test / REGIONS)))

    @property
    def depth(self) -> int:
        """Regions under way at once: one, unless its batches keep the worker threads busy for moments only."""
        threads, batches = self._executor.parallelism, batch_count(self.region_rows, int(self.plan["batch_size"]))
        return 1 if WAVES * threads <= batches else 1 + math.ceil(threads / batches)

    def submit(self, start: int, stop: int, parts: Parts | None = None) -> _Region:
        """Start a region; what its batches come to is kept in `parts`."""
        size, source = int(self.plan["batch_size"]), self._way(1)
        arguments = (source, self._test, (start, stop), size)

        def begin(batch: int) -> PendingRound:
            return self._executor.submit(self._label, neighbour_task, arguments, [[batch]])

        return _Region(begin, batch_count(stop - start, size), self._executor.parallelism + 1, parts)

    def collect(self, results: list[Any]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Put a region's batches in the order of its rows, without means; keep count."""
        rows, *ends = np.concatenate(results, axis=1)
        in_order = [np.empty_like(end) for end in ends]
        for array, end in zip(in_order, ends, strict=True):
            array[rows.astype(np.intp)] = end
        none = np.zeros((len(rows), 0))
        return super().collect([(none, none, *in_order, np.zeros(len(rows)), ProductTally())])

    def prepare(self, model: SupportSamples) -> str:
        """Say what is done; each worker makes its tree of samples when it needs it."""
        return (
            f"variances by neighbours: {self.plan['neighbours']:,} samples around each tile of at most {TILE_POINTS} "
            "test samples, and all others by a proven bound"
        )

    def _way(self, batches: int) -> NeighbourSource:
        options = replace(self._source.options, count=int(self.plan["neighbours"]), most=self._most)
        return replace(self._source, options=options)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of the samples of this run; those that a resumed run found done are not among them."""
        count = int(self.plan["neighbours"])
        return {**super().summary(seconds), "way": "neighbours", "rank": count, "halo": 0, "smooth": False}
