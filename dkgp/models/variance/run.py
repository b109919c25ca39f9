"""One prediction's variances, whichever way they are computed: request, plan, rounds of batches, and figures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, BlockTask, PendingRound
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.certificate import Certificate
from dkgp.models.sums import certified_means
from dkgp.models.variance.batch import BatchVariance, ProductTally, relative_gap
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

REGIONS = 1000
# Bounds of huge kernels overflow, or come to no number; the best of those that are numbers are taken, and k(x, x) and 0
# where none is.
UNPROVEN = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True)
class Request:
    """The variances that a prediction asks for.

    Parameters
    ----------
    subject : Subject
        The model.
    certificate : Certificate or None
        Proves the means beside the variances; None where no means are wanted.
    rows : TestRows
        Test samples as the model sees them.
    stored : dict, optional
        Plan of the prediction that is resumed: the missing regions are computed as the first ones were.
    tests : int, optional
        Number of test samples, where `rows` are only some of them.
    """

    subject: Subject
    certificate: Certificate | None
    rows: TestRows
    executor: BlockExecutor
    settings: VarianceSettings
    stored: dict[str, Any] | None = None
    tests: int | None = None

    @property
    def model(self) -> SupportSamples:
        """The subject's training samples and noise."""
        return self.subject.model

    @property
    def kernel(self) -> Kernel:
        """The subject's kernel."""
        return self.subject.kernel

    @property
    def context(self) -> BlockContext:
        """The subject's support inputs and kernel, as tasks have them."""
        return self.subject.context

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return self.rows.n_samples if self.tests is None else self.tests

    @property
    def test(self) -> TestRows:
        """Test samples as the subject has them."""
        return self.subject.tests(self.rows)


class Way(Protocol):
    """A worker's part of one way to variances, with its settings: travels with every task."""

    @property
    def context(self) -> BlockContext:
        """The model's support inputs and kernel."""

    def bounds(self, inputs: FloatArray) -> BatchVariance:
        """Bound the variances at standardised inputs (t, d), on the worker that calls it."""


@needs_one_arithmetic
@UNPROVEN
def variance_task(
    way: Way, certificate: Certificate | None, test: TestRows, batches: list[tuple[int, int]]
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, ProductTally]]:
    """Mean and its error bound (rows, p), bounds of the variance and passes (rows,) of each batch: standardised.

    Without a certificate there are no means: p = 0.
    """
    results = []
    for start, stop in batches:
        inputs = test.inputs(start, stop)
        bounds = way.bounds(inputs)
        mean = error = np.zeros((len(inputs), 0))
        if certificate is not None:
            mean, error = certified_means(way.context, certificate, inputs)
        results.append((mean, error, bounds.lower, bounds.upper, bounds.passes, bounds.tally))
    return results


class _Later:
    """A round that this process computes when its results are asked for."""

    def __init__(self, work: Callable[[], list[Any]]) -> None:
        self._work = work

    def done(self) -> bool:
        return False

    def result(self) -> list[Any]:
        return self._work()


class Ends(NamedTuple):
    """Predictions of a region, standardised: mean and error bound (rows, p), ends of the variance's interval (rows,).

    p = 0 where the run computes no means.
    """

    mean: FloatArray
    error: FloatArray
    lower: FloatArray
    upper: FloatArray


class Parts(Protocol):
    """A place that keeps batches of a region until the region is whole."""

    def load(self, count: int) -> dict[int, FloatArray]:
        """Return the kept batches, of so many."""

    def keep(self, batch: int, values: FloatArray) -> None:
        """Keep a batch's values (3, rows)."""

    def interrupted(self) -> bool:
        """Return True if an end is asked for."""

    def end(self) -> None:
        """Raise `InterruptedRunError`."""


class VarianceRun(ABC):
    """One prediction's variances: its plan, its rounds, its figures. Each way is a class.

    Attributes
    ----------
    plan : dict
        Entries that the store records; gap and latent among them. Another plan is not resumed.

    Raises
    ------
    InputError
        Other settings than those of the prediction to resume.
    """

    plan: dict[str, Any]
    has_means: ClassVar[bool] = True  # beside the variances, if the request has a certificate
    _label: ClassVar[str] = "kvariance"  # name of its tasks
    _task: ClassVar[BlockTask] = staticmethod(variance_task)
    # Whether a batch takes all threads of a process; and whether it takes all workers, which this process leads.
    _whole_process = _shared = False
    _batch: int  # test samples of a batch

    def __init__(self, request: Request) -> None:
        self.request, self._executor, self._settings = request, request.executor, request.settings
        self._n_test = request.n_test
        self._requested = {name: getattr(self._settings, name) for name in ("gap", "max_passes", "latent", "seed")}
        self._factor_seconds = 0.0
        self._met = self._unmet = 0
        self._gap_sum = self._gap_max = self._passes = 0.0
        self._tally = ProductTally()

    def _require_same(self, plan: dict[str, Any]) -> None:
        """Refuse a plan other than that of the prediction to resume, in the entries of `plan`."""
        stored = self.request.stored
        was = plan if stored is None else {name: stored.get(name) for name in plan}
        if was != plan:
            raise InputError(
                f"the prediction to resume was started with {was}, not {plan}; repeat these, or `overwrite`"
            )

    @property
    def is_shared(self) -> bool:
        """True if all workers solve each batch together."""
        return self._shared

    @property
    def region_rows(self) -> int:
        """Rows of a region of the store: one batch, several where that would make more than a thousand regions."""
        return self._batch * max(1, math.ceil(self._n_test / (REGIONS * self._batch)))

    @property
    def depth(self) -> int:
        """Regions under way at once: enough to keep every worker thread busy."""
        if self._shared:
            return 1
        batches = max(1, self.region_rows // self._batch)
        at_once = len(self._executor.workers) if self._whole_process else self._executor.parallelism
        return max(1, math.ceil(at_once / batches)) + 1

    @abstractmethod
    def prepare(self) -> str:
        """Build what all batches take, and keep it where that is wanted; return a line on it."""

    @abstractmethod
    def _way(self, batches: int) -> Any:
        """Return the worker's part of a region of so many batches: the first argument of its tasks."""

    def _batch_rows(self, rows: TestRows) -> int:
        return self._batch

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> PendingRound:
        """Start rows start:stop: a task for each batch, in turn on the workers; or later here, if workers share them.

        Ways whose regions take long keep their batches in `parts`.
        """
        size = self._batch_rows(rows)
        batches = [(first, min(first + size, stop)) for first in range(start, stop, size)]
        arguments = (self._way(len(batches)), self.request.certificate, self.request.subject.tests(rows))
        if self._shared:
            return _Later(partial(self._task, *arguments, batches))
        workers, first = sorted(self._executor.workers), start // size
        owners = [workers[(first + number) % len(workers)] for number in range(len(batches))]
        hints = (owners,) if self._whole_process and len(workers) > 1 else ()
        return self._executor.submit(self._label, self._task, arguments, [[batch] for batch in batches], *hints)

    def collect(self, results: list[Any]) -> Ends:
        """Join a region's batches, and count them."""
        *arrays, tallies = zip(*results, strict=True)
        mean, error, lower, upper, passes = (np.concatenate(values) for values in arrays)
        for tally in tallies:
            self._tally.add(tally)
        gap = relative_gap(lower, upper)
        unmet = int(np.count_nonzero(gap > self._settings.gap)) - sum(tally.settled for tally in tallies)
        self._met += len(gap) - unmet
        self._unmet += unmet
        self._gap_sum += float(gap.sum())
        self._gap_max = max(self._gap_max, float(gap.max()))
        self._passes += float(passes.sum())
        return Ends(mean, error, *self.request.subject.interval(lower, upper))

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the samples that this run computed; a resumed run leaves out earlier ones."""
        count = max(1, self._met + self._unmet)
        return {
            "gap": self._settings.gap,
            "met": self._met,
            "unmet": self._unmet,
            "gap_mean": self._gap_sum / count,
            "gap_max": self._gap_max,
            "column_passes": self._passes / count,
            "products_float32": self._tally.single_columns / count,
            "products_float64": self._tally.double_columns / count,
            "product_seconds": self._tally.seconds,
            "shared": self._shared,
            "batch_size": self._batch,
            "latent": self._settings.latent,
            "factor_seconds": self._factor_seconds,
            "seconds_per_sample": seconds / count,
        }
