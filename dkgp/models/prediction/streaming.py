"""Predictions streamed to a store, region by region.

A region of the store is computed, written and marked as done by itself, so memory does not depend on the number of test
samples and an interrupted prediction goes on where it was.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import PendingRound
from dkgp.data import Dataset, PredictionWriter, Progress, open_prediction
from dkgp.errors import InterruptedRunError
from dkgp.models.classification.metrics import label_widths
from dkgp.models.metrics import GapTally, gap_figures, outside_interval
from dkgp.operators.base import FloatArray
from dkgp.solvers.driver import Watch

MEANS = ("mean", "mean_error_bound")
VARIANCES = (*MEANS, "variance", "variance_lower", "variance_upper")


@dataclass(frozen=True)
class Together:
    """Rounds of one region that were submitted together; `result` lists theirs, and then what is `also` known."""

    rounds: Sequence[PendingRound]
    also: tuple[Any, ...] = ()

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return all(pending.done() for pending in self.rounds)

    def result(self) -> list[Any]:
        """Wait for all."""
        return [*(pending.result() for pending in self.rounds), *self.also]


class RegionParts:
    """Parts of a region that are kept beside the store until the region is whole, and the watch over them."""

    def __init__(self, writer: PredictionWriter, watch: Watch, start: int, stop: int, done: int) -> None:
        self._writer, self._watch, self._start, self._stop, self._done = writer, watch, start, stop, done

    def load(self, count: int) -> dict[int, FloatArray]:
        """Return the parts, of so many, that are kept there."""
        parts = self._writer.read_parts(self._start, self._stop)
        kept = {number: values for number, values in parts.items() if number < count}
        self._done += sum(values.shape[1] for values in kept.values())
        return kept

    def keep(self, number: int, values: FloatArray) -> None:
        """Keep a part, values of (rows) each, and report progress."""
        self._writer.write_part(self._start, self._stop, number, values)
        self._done += values.shape[1]
        if self._watch.within is not None:
            self._watch.within(Progress("samples", self._done, self._writer.n_samples, "samples"))

    def interrupted(self) -> bool:
        """Return True if an end is asked for."""
        return self._watch.interrupted is not None and self._watch.interrupted()

    def end(self) -> None:
        """Raise `InterruptedRunError`."""
        raise _interrupted(self._writer, self._done)


def _interrupted(writer: PredictionWriter, done: int) -> InterruptedRunError:
    return InterruptedRunError(
        f"interrupted after {done} of {writer.n_samples} test samples; continue with `resume`", writer.url
    )


class Rounds(ABC):
    """The rounds of a prediction, one for each region of the store: what `stream` asks of a kind of model."""

    variables: tuple[str, ...]  # of each sample in the store
    attributes: dict[str, Any]  # of the store: how values came about; compared before a prediction is resumed
    n_support: int  # training samples that a mean is a sum over
    depth = 2  # regions under way at once
    region_rows: int | None = None  # rows of a region, where it matters
    assumes: str | None = None  # what bounds take on trust
    classes: tuple[str, ...] | None = None  # names of the classes, of a classifier
    parts: Callable[[int, int], RegionParts] | None = None  # where parts of a region are kept

    def prepare(self) -> str | None:
        """Prepare what all regions need; return a line on that."""
        return None

    def conclude(self) -> str | None:
        """Return a line on the regions that were computed."""
        return None

    @abstractmethod
    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""

    @abstractmethod
    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """A region's results joined: each variable (rows, p), in the targets' own units."""

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Figures of the variances, or the classes, of all that is stored; None without either."""
        return None


class WithTestNoise(Rounds):
    """Rounds with variances at test samples whose own noise is known: a new observation has it beside the common one.

    `test`: the samples, as the model sees them. `latent`: variances are of the function, and noise is stored beside.
    """

    def __init__(self, rounds: Rounds, test: Dataset, latent: bool) -> None:
        self._rounds, self._test, self._latent = rounds, test, latent
        self.variables = tuple(dict.fromkeys((*rounds.variables, "noise")))  # a noise model tells some of it
        self.attributes = {**rounds.attributes, "noise": test.noise_name}
        self.n_support, self.assumes = rounds.n_support, rounds.assumes
        self.depth, self.region_rows = rounds.depth, rounds.region_rows

    def prepare(self) -> str | None:
        """As of the rounds."""
        return self._rounds.prepare()

    def conclude(self) -> str | None:
        """As of the rounds."""
        return self._rounds.conclude()

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        self._rounds.parts = self.parts
        return Together([self._rounds.submit(start, stop)], (start, stop))

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """A region's results joined, the noise added to variances of a new observation, outward."""
        own, start, stop = results
        values = self._rounds.values(own)
        noise = self._test.sample_noise(start, stop, standardised=False)
        assert noise is not None
        known = noise[:, None]
        if not self._latent:
            for name, end in (("variance_lower", -np.inf), ("variance_upper", np.inf), ("variance", np.inf)):
                values[name] = np.maximum(np.nextafter(values[name] + known, end), 0.0)
        return {**values, "noise": known + values.get("noise", 0.0)}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """As of the rounds."""
        return self._rounds.summary(seconds, streamed)


@dataclass(frozen=True)
class Region:
    """The figures of a region that is stored."""

    bound: float | None  # largest error of a mean, or a decision; None without a bound
    gaps: GapTally | None  # how wide the variances' intervals are
    # The sum of the squared bounds on means, and how many they are.
    squared_bounds: tuple[float, int] | None = None
    outside: int = 0  # samples whose own variance is proven wrong
    # Of a classifier: samples of each class, and with certified labels; the sum and the largest width of the intervals
    # of their classes' probabilities, where these are proven.
    counts: tuple[int, ...] = ()
    certified: int | None = None
    widths: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Mapping[str, FloatArray], attributes: Mapping[str, Any]) -> Region:
        """Take in a region's values, with the store's attributes."""
        if "class" in values:
            return cls._of_classes(values, len(attributes["classes"]))
        bound, squares = None, None
        if "mean_error_bound" in values:
            bounds = np.asarray(values["mean_error_bound"])
            bound, squares = float(np.max(bounds)), (float(np.sum(bounds**2)), bounds.size)
        if "variance" not in attributes:
            return cls(bound, None, squares)
        variance, lower, upper = (values[name] for name in ("variance", "variance_lower", "variance_upper"))
        gaps = GapTally.of(lower, upper, attributes["variance"]["gap"])
        return cls(bound, gaps, squares, outside_interval(variance, lower, upper))

    @classmethod
    def _of_classes(cls, values: Mapping[str, FloatArray], n_classes: int) -> Region:
        labels = np.asarray(values["class"]).reshape(-1).astype(np.intp)
        counts = np.bincount(labels, minlength=n_classes)
        widths = None
        if "probability_lower" in values and len(labels):
            of_samples = label_widths(labels, values["probability_lower"], values["probability_upper"])
            widths = float(of_samples.sum()), float(of_samples.max())
        bound = float(np.max(values["decision_error_bound"])) if "decision_error_bound" in values else None
        certified = int(np.sum(values["certified"])) if "certified" in values else None
        return cls(bound, None, counts=tuple(counts.tolist()), certified=certified, widths=widths)


@dataclass(frozen=True)
class Streamed:
    """All regions of a finished store, and how many of its samples this run computed."""

    regions: Sequence[Region]
    computed: int

    @property
    def bound(self) -> float | None:
        """The largest error of a mean, or a decision; None without a bound."""
        return max((region.bound for region in self.regions if region.bound is not None), default=None)

    @property
    def bound_root_mean_square(self) -> float | None:
        """The root mean square of the bounds on means: the root mean square of their errors is no more."""
        known = [region.squared_bounds for region in self.regions if region.squared_bounds is not None]
        return math.sqrt(sum(of[0] for of in known) / sum(of[1] for of in known)) if known else None

    @property
    def counts(self) -> list[int]:
        """Samples of each class, of a classifier."""
        return [sum(counts) for counts in zip(*(region.counts for region in self.regions), strict=True)]

    @property
    def certified(self) -> int | None:
        """Samples whose class is proven to be the exact solution's; None where nothing is proven."""
        known = [region.certified for region in self.regions if region.certified is not None]
        return sum(known) if known else None

    @property
    def interval_widths(self) -> tuple[float, float] | None:
        """Mean and largest width of the intervals of the classes' probabilities; None where there are none."""
        known = [region.widths for region in self.regions if region.widths is not None]
        if not known:
            return None
        return sum(total for total, _ in known) / sum(self.counts), max(widest for _, widest in known)

    @property
    def outside(self) -> int:
        """Samples whose own variance is proven wrong."""
        return sum(region.outside for region in self.regions)

    def gaps(self, wanted: float | None) -> dict[str, Any]:
        """The relative widths of variances' intervals: gap_mean, gap_max, and met and unmet where one was wanted."""
        tallies = [region.gaps for region in self.regions if region.gaps is not None]
        relative = gap_figures(tallies, wanted)
        figures = {"gap_mean": relative["variance_gap_mean"], "gap_max": relative["variance_gap_max"]}
        unmet = relative["variance_unmet"]
        if unmet is not None:
            figures |= {"met": sum(tally.n for tally in tallies) - unmet, "unmet": unmet}
        return {**figures, "computed": self.computed}


def stream(writer: PredictionWriter, rounds: Rounds, watch: Watch, note: Callable[[str], None] | None) -> Streamed:
    """Compute, write and finish what a store lacks; the watch is told of samples that are done, and asked for an end.

    Raises `InterruptedRunError`: an end was asked for; regions that are done stay. A store without any is removed,
    whatever the error.
    """
    try:
        if writer.pending_regions():
            preparation = rounds.prepare()
            if note is not None and preparation is not None:
                note(preparation)
        regions = _write(writer, rounds, watch)
        writer.commit()
        if note is not None and (conclusion := rounds.conclude()) is not None:
            note(conclusion)
    except BaseException:
        if not writer.done_regions() and not writer.has_parts():
            writer.abort()
        raise
    n, rows = writer.n_samples, writer.chunk_rows
    computed = sum(min(start + rows, n) - start for start in regions)
    if computed < n:
        regions = _with_earlier_regions(regions, writer.url)
    return Streamed(list(regions.values()), computed)


def _write(writer: PredictionWriter, rounds: Rounds, watch: Watch) -> dict[int, Region]:
    """Compute and write what is missing; return the figures of each region, by its first row."""
    regions: dict[int, Region] = {}
    todo = deque(
        (start, min(start + writer.chunk_rows, last))
        for first, last in writer.pending_regions()
        for start in range(first, last, writer.chunk_rows)
    )
    done = writer.n_samples - sum(stop - start for start, stop in todo)
    under_way: deque[tuple[int, int, PendingRound]] = deque()
    rounds.parts = lambda start, stop: RegionParts(writer, watch, start, stop, done)
    while todo or under_way:
        if watch.interrupted is not None and watch.interrupted():
            raise _interrupted(writer, done)
        while todo and len(under_way) < rounds.depth:
            start, stop = todo.popleft()
            under_way.append((start, stop, rounds.submit(start, stop)))
        start, stop, pending = under_way.popleft()
        values = rounds.values(pending.result())
        writer.write(start, **values)
        regions[start] = Region.of(values, writer.attributes)
        done += stop - start
        if watch.within is not None:
            watch.within(Progress("samples", done, writer.n_samples, "samples"))
    return regions


def _with_earlier_regions(regions: dict[int, Region], url: str) -> dict[int, Region]:
    """The regions of the whole store; those that an earlier run wrote are read back."""
    stored = open_prediction(url)
    return {
        start: regions.get(start)
        or Region.of({name: stored.read(name, start, stop) for name in stored.variables}, stored.attributes)
        for start, stop in stored.row_chunks()
    }
