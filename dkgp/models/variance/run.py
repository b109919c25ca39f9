"""One prediction's variances, for any method: request, plan, rounds of batches, and figures."""

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
from dkgp.kernels import Kernel
from dkgp.models.certificate import Certificate
from dkgp.models.sums import certified_means
from dkgp.models.variance.batch import BatchVariance, ProductTally, relative_gap
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import TestRows, VarianceSettings, require_as_begun
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

REGIONS = 1000
# Bounds of huge kernels may overflow or be NaN. The best of the other bounds is used, and k(x, x) and 0 if there is no
# other.
UNPROVEN = np.errstate(over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True)
class Request:
    """The variances that a prediction asks for.

    Parameters
    ----------
    subject : Subject
        The model.
    certificate : Certificate or None
        Bounds the errors of the means; None if no means are requested.
    rows : TestRows
        Test samples as the model sees them.
    stored : dict, optional
        Plan of an unfinished prediction: its missing regions are computed like the first ones.
    tests : int, optional
        Number of test samples, if `rows` are only some of them.
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
        """The subject's support inputs and kernel, in the form that tasks use."""
        return self.subject.context

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return self.rows.n_samples if self.tests is None else self.tests

    @property
    def test(self) -> TestRows:
        """Test samples as inputs of the subject."""
        return self.subject.tests(self.rows)


class Way(Protocol):
    """A worker's part of a method for variances, with its settings; sent with every task."""

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
    """Return each batch's standardised mean and error bound (rows, p), variance bounds and passes (rows,), and tally.

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


class Later:
    """A round that this process computes when its results are requested."""

    def __init__(self, work: Callable[[], list[Any]]) -> None:
        self._work = work

    def done(self) -> bool:
        """Return False: the work begins when the results are requested."""
        return False

    def result(self) -> list[Any]:
        """Compute the results."""
        return self._work()


class Ends(NamedTuple):
    """Predictions of a region, standardised: mean and error bound (rows, p), ends of the variance's interval (rows,).

    p = 0 if the run computes no means. `approximate` (rows,): the variance, if the ends say nothing of it.
    """

    mean: FloatArray
    error: FloatArray
    lower: FloatArray
    upper: FloatArray
    approximate: FloatArray | None = None


class Parts(Protocol):
    """Storage for the batches of a region until the region is complete."""

    def load(self, count: int) -> dict[int, FloatArray]:
        """Return the stored ones of `count` batches."""

    def keep(self, batch: int, values: FloatArray) -> None:
        """Store a batch's values (3, rows)."""

    def interrupted(self) -> bool:
        """Return True if an interrupt is requested."""

    def end(self) -> None:
        """Raise `InterruptedRunError`."""


class VarianceRun(ABC):
    """One prediction's variances: its plan, its rounds, its figures. Each method is a subclass.

    Attributes
    ----------
    plan : dict
        Entries that the store records, including gap and latent. A run with another plan cannot complete it.

    Raises
    ------
    InputError
        The settings differ from those of the stored plan.
    """

    plan: dict[str, Any]
    has_means: ClassVar[bool] = True  # whether the run also computes means, if the request has a certificate
    _label: ClassVar[str] = "kvariance"  # name of its tasks
    _task: ClassVar[BlockTask] = staticmethod(variance_task)
    # Whether a batch uses all threads of a process; and whether it uses all workers, coordinated by this process.
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
        """Raise `InputError` if the entries of `plan` differ from those of the stored plan."""
        if (stored := self.request.stored) is not None:
            require_as_begun({name: stored.get(name) for name in plan}, plan, "repeat these")

    @property
    def is_shared(self) -> bool:
        """True if all workers solve each batch together."""
        return self._shared

    @property
    def region_rows(self) -> int:
        """Rows of a region of the store: one batch, or several to have at most a thousand regions."""
        return self._batch * max(1, math.ceil(self._n_test / (REGIONS * self._batch)))

    @property
    def depth(self) -> int:
        """Number of regions computed at once: enough to keep every worker thread busy."""
        if self._shared:
            return 1
        batches = max(1, self.region_rows // self._batch)
        at_once = len(self._executor.workers) if self._whole_process else self._executor.parallelism
        return max(1, math.ceil(at_once / batches)) + 1

    @abstractmethod
    def prepare(self) -> str:
        """Build the factors that all batches share, store them if requested, and return a line on them."""

    @abstractmethod
    def _way(self, batches: int) -> Any:
        """Return the worker's part of a region of `batches` batches: the first argument of its tasks."""

    def _batch_rows(self, rows: TestRows) -> int:
        return self._batch

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> PendingRound:
        """Start rows start:stop with a task for each batch, in turn on the workers.

        If all workers share each batch, this process computes the rows when their results are requested. Methods with
        slow regions store their batches in `parts`.
        """
        size = self._batch_rows(rows)
        batches = [(first, min(first + size, stop)) for first in range(start, stop, size)]
        arguments = (self._way(len(batches)), self.request.certificate, self.request.subject.tests(rows))
        if self._shared:
            return Later(partial(self._task, *arguments, batches))
        workers, first = sorted(self._executor.workers), start // size
        owners = [workers[(first + number) % len(workers)] for number in range(len(batches))]
        hints = (owners,) if self._whole_process and len(workers) > 1 else ()
        return self._executor.submit(self._label, self._task, arguments, [[batch] for batch in batches], *hints)

    def collect(self, results: list[Any]) -> Ends:
        """Join a region's batches and add to the counts."""
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
        """Return the figures of the samples that this run computed."""
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
