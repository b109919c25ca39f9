"""Runs of variances, by whatever way: batches of test samples in regions of a store, and figures."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.errors import InputError
from dkgp.models.certificate import Certificate
from dkgp.models.sums import certified_means
from dkgp.models.variance.batch import BatchVariance, ProductTally, relative_gap
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

REGIONS = 1000
# Bounds of huge kernels overflow, or come to no number; the best of those that are numbers are taken, and k(x, x) and 0
# where none is.
UNPROVEN = np.errstate(over="ignore", invalid="ignore", divide="ignore")


class Way(Protocol):
    """One way to variances, with its settings: travels with every task."""

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
    """A round of work that this process does when its results are asked for."""

    def __init__(self, work: Callable[[], list[Any]]) -> None:
        self._work = work

    def done(self) -> bool:
        """The results take work."""
        return False

    def result(self) -> list[Any]:
        """Do it."""
        return self._work()


class BatchedRun(ABC):
    """One prediction's variances: its plan, its rounds, its figures.

    Attributes
    ----------
    plan : dict
        What the store records; gap, latent and batch_size among it.
    """

    plan: dict[str, Any]
    # Whether a batch takes all threads of a process; and whether it takes all workers, which this process leads.
    _whole_process = _shared = False
    _label = "kvariance"  # name of its tasks

    def __init__(
        self,
        certificate: Certificate | None,
        test: TestRows,
        executor: BlockExecutor,
        settings: VarianceSettings,
        n_test: int | None,
    ) -> None:
        self._executor, self._certificate, self._test, self._settings = executor, certificate, test, settings
        self._n_test = test.n_samples if n_test is None else n_test
        self._factor_seconds = 0.0
        self._requested = {
            "gap": settings.gap,
            "max_passes": settings.max_passes,
            "latent": settings.latent,
            "seed": settings.seed,
        }
        self._begin()

    def _begin(self) -> None:
        self._met = self._unmet = 0
        self._gap_sum = self._gap_max = self._passes = 0.0
        self._tally = ProductTally()

    def at(self, test: TestRows) -> Self:
        """The same run at another part of the test samples, with figures of its own."""
        run = copy.copy(self)
        run._test = test
        run._begin()
        return run

    @property
    def is_shared(self) -> bool:
        """True if all workers solve each batch together."""
        return self._shared

    @property
    def region_rows(self) -> int:
        """Rows of a region of the store: one batch, several where that would make more than a thousand regions."""
        batch = int(self.plan["batch_size"])
        return batch * max(1, math.ceil(self._n_test / (REGIONS * batch)))

    @property
    def depth(self) -> int:
        """Regions under way at once: enough to keep every worker thread busy."""
        if self._shared:
            return 1
        batches = max(1, self.region_rows // int(self.plan["batch_size"]))
        at_once = len(self._executor.workers) if self._whole_process else self._executor.parallelism
        return max(1, math.ceil(at_once / batches)) + 1

    def _batches(self, start: int, stop: int) -> list[tuple[int, int]]:
        size = int(self.plan["batch_size"])
        return [(first, min(first + size, stop)) for first in range(start, stop, size)]

    @abstractmethod
    def prepare(self, model: SupportSamples) -> str:
        """Have what all batches take made, and kept where that is wanted; say what was done."""

    @abstractmethod
    def _way(self, batches: int) -> Way:
        """Return the work of a region of so many batches."""

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region: a task for each batch, by turns on the workers; or all of it here, once it is waited for."""
        batches = self._batches(start, stop)
        arguments = (self._way(len(batches)), self._certificate, self._test)
        if self._shared:
            return _Later(partial(variance_task, *arguments, batches))
        workers, first = sorted(self._executor.workers), start // int(self.plan["batch_size"])
        owners = [workers[(first + number) % len(workers)] for number in range(len(batches))]
        hints = (owners,) if self._whole_process and len(workers) > 1 else ()
        return self._executor.submit(self._label, variance_task, arguments, [[batch] for batch in batches], *hints)

    def without_means(self) -> Self:
        """Return the same run without means."""
        run = copy.copy(self)
        run._certificate = None
        return run

    def _require_same(self, stored: dict[str, Any] | None, plan: dict[str, Any]) -> None:
        """Refuse a plan other than that of the prediction to resume, in the entries of `plan`."""
        was = plan if stored is None else {name: stored.get(name) for name in plan}
        if was != plan:
            raise InputError(
                f"the prediction to resume was started with {was}, not {plan}; repeat these, or `overwrite`"
            )

    def collect(self, results: list[Any]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Join a region's batches: mean and error (rows, p), lower and upper (rows,), standardised; keep count."""
        *arrays, tallies = zip(*results, strict=True)
        mean, error, lower, upper, passes = (np.concatenate(parts) for parts in arrays)
        for tally in tallies:
            self._tally.add(tally)
        gap = relative_gap(lower, upper)
        settled = sum(tally.settled for tally in tallies)
        unmet = int(np.count_nonzero(gap > self._settings.gap)) - settled
        self._met += len(gap) - unmet
        self._unmet += unmet
        self._gap_sum += float(gap.sum())
        self._gap_max = max(self._gap_max, float(gap.max()))
        self._passes += float(passes.sum())
        return mean, error, lower, upper

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of the samples of this run; those that a resumed run found done are not among them."""
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
            "batch_size": int(self.plan["batch_size"]),
            "latent": self._settings.latent,
            "factor_seconds": self._factor_seconds,
            "seconds_per_sample": seconds / count,
        }
