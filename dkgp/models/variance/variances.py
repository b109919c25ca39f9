"""Predictive variances in batches: the settings, the plan of a run, and the task that does one batch.

What does not depend on the test samples - landmarks, partial Cholesky factor - is made once. Each batch is then one
stateless task, retried like any other, whose few numbers the coordinator writes to the batch's own region.

How batches and ranks compare: docs/experiments.md.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.data import Dataset, FactorRecord, ModelRecord
from dkgp.errors import InputError, MemoryBudgetError, StorageError, StoreError
from dkgp.kernels import Kernel
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.certificate import Certificate
from dkgp.models.support import certified_means
from dkgp.models.variance.batch import batch_bytes, relative_gap, solve_batch, value_error_goal
from dkgp.models.variance.kept_factor import keep_factor, kept_factor, landmarks_of
from dkgp.models.variance.landmarks import choose_landmarks, is_enough
from dkgp.models.variance.nystrom import FactorSource, factor_bytes
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

__all__ = ["VarianceRun", "VarianceSettings", "variance_task"]

GIBIBYTE = 1024**3
LEAST_MEMORY_BYTES = int(1.3 * GIBIBYTE)
# Of it, the factor has this share; the vectors of the batches under way have the rest.
FACTOR_SHARE = 0.5
MEMORY_BYTES_PER_SAMPLE = 8192
LARGEST_BATCH, LARGEST_JOINT_BATCH, LEAST_BATCH = 512, 1024, 32
# Operations that a factor may cost in any case, two or three seconds of work: small problems get the whole matrix.
FREE_OPERATIONS = 1e11
# One pass evaluates n^2 kernel entries however few samples share it; an entry costs as much as this many samples do.
ENTRY_WORTH_SAMPLES = 40
REGIONS = 1000
# Largest eigenvalue (trace(K) at most) times float32's epsilon, over s2: beyond it a float32 preconditioner is mostly
# noise.
SINGLE_PRECISION_UP_TO = 1.0


@dataclass(frozen=True)
class VarianceSettings:
    """Settings of variances: how they are computed, and how tight their intervals are to be.

    Attributes
    ----------
    gap : float
        Relative gap, (upper - lower) / upper, at which a sample is done.
    max_passes : float
        Products with the whole kernel matrix that a batch may spend; with 0 the factor alone has to do.
    latent : bool
        False: the variance of a new observation at x, noise included. True: of the function itself, without it.
    rank : int, optional
        Landmarks of the partial Cholesky factor; chosen from smoothness, time and memory by default.
    batch_size : int, optional
        Samples of a task; chosen from memory by default.
    memory_bytes : int, optional
        Working memory of one worker process, half for the factor, the rest for the batches under way. By default
        1.3 GiB, more for more than 170,000 training samples, up to a third of what is free.
    keep_factor : bool
        Keep the factor with the model, and use it next time.
    seed : int
        Of the landmarks' choice.
    """

    gap: float = 0.02
    max_passes: float = 20.0
    latent: bool = False
    rank: int | None = None
    batch_size: int | None = None
    memory_bytes: int | None = None
    keep_factor: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gap) and self.gap > 0.0):
            raise InputError(f"the variance gap must be a positive number, such as 0.02 for 2 %; got {self.gap}")
        if not (math.isfinite(self.max_passes) and self.max_passes >= 0.0):
            raise InputError(f"the passes for variances must be a number that is not negative; got {self.max_passes}")
        for name, value in (("rank", self.rank), ("batch size", self.batch_size), ("memory", self.memory_bytes)):
            if value is not None and value < 1:
                raise InputError(f"the variance {name} must be at least 1; got {value}")
        if self.seed < 0:
            raise InputError(f"the seed must not be negative; got {self.seed}")


@dataclass(frozen=True)
class _BatchOptions:
    gap: float
    max_passes: float
    latent: bool
    factor_first: bool
    together: int
    threads: int


@needs_one_arithmetic
def factor_task(source: FactorSource, group: list[int]) -> list[int]:
    """Have the factor ready on the worker that runs this."""
    rank = source.factor().rank
    return [rank for _ in group]


@needs_one_arithmetic
def variance_task(
    source: FactorSource,
    certificate: Certificate,
    test: Dataset,
    options: _BatchOptions,
    batches: list[tuple[int, int]],
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]]:
    """Mean and its error bound (rows, p), bounds of the variance and passes (rows,) of each batch: standardised."""
    factor = source.factor()
    results = []
    for start, stop in batches:
        inputs = test.inputs(start, stop)
        bounds = solve_batch(
            factor,
            inputs,
            gap=options.gap,
            max_passes=options.max_passes,
            latent=options.latent,
            factor_first=options.factor_first,
            together=options.together,
            threads=options.threads,
        )
        mean, error = certified_means(source.context, certificate, inputs)
        results.append((mean, error, bounds.lower, bounds.upper, bounds.passes))
    return results


class VarianceRun:
    """One prediction's variances: its plan, its rounds, its figures.

    Parameters
    ----------
    model : ModelRecord
    kernel : Kernel
    context : BlockContext
        Of the model's support inputs.
    certificate : Certificate
        Of the means.
    test : Dataset
        As the model sees it.
    executor : BlockExecutor
    settings : VarianceSettings
    stored : dict, optional
        Plan of the prediction that is resumed; the regions still missing are computed as the first ones were.
    n_test : int, optional
        Test samples in all, where `test` is a part of them; see `at`.

    Attributes
    ----------
    plan : dict
        What the store records: gap, max_passes, latent, seed, largest_rank, rank, batch_size, together, smooth.

    Raises
    ------
    InputError
        Other settings than those of the prediction to resume.
    MemoryBudgetError
        A single sample's vectors do not fit.
    """

    def __init__(
        self,
        model: ModelRecord,
        kernel: Kernel,
        context: BlockContext,
        certificate: Certificate,
        test: Dataset,
        executor: BlockExecutor,
        settings: VarianceSettings,
        stored: dict[str, Any] | None = None,
        *,
        n_test: int | None = None,
    ) -> None:
        executor.require_one_arithmetic()
        self._executor, self._certificate, self._test, self._settings = executor, certificate, test, settings
        self._n_test = test.n_samples if n_test is None else n_test
        asked = {
            "gap": settings.gap,
            "max_passes": settings.max_passes,
            "latent": settings.latent,
            "seed": settings.seed,
        }
        if stored is not None and any(stored[name] != value for name, value in asked.items()):
            was = {name: stored[name] for name in asked}
            raise InputError(
                f"the prediction to resume was started with {was}, not {asked}; repeat these, or `overwrite`"
            )
        if stored is not None:
            self._require_plan(stored, model.n_samples)
        largest = stored["largest_rank"] if stored else self._largest_rank(model.n_samples, self._n_test)
        kept, self._trouble = kept_factor(model, kernel, settings.rank, proving=settings.max_passes < 1)
        landmarks = (
            landmarks_of(kept)
            if kept
            else choose_landmarks(
                model,
                kernel,
                gap=value_error_goal(settings.gap),
                largest_rank=largest,
                latent=settings.latent,
                fixed=settings.rank is not None,
                seed=settings.seed,
            )
        )
        smooth = (kept is None or kept.metadata["precision"] == "double") and is_enough(
            landmarks.residual_trace,
            landmarks.effective_dimension,
            model.noise_variance,
            value_error_goal(settings.gap),
            model.n_samples,
            latent=settings.latent,
        )
        self._landmarks = landmarks
        self._precision = _precision(kept, smooth or settings.max_passes < 1, landmarks.kernel_trace, model)
        self._source = FactorSource(
            context, model.noise_variance, model.input_rows(landmarks.indices), self._precision, kept
        )
        # In one process a batch of all threads takes the memory of one: it can be larger, and needs fewer passes.
        self._joint = executor.shares_memory and not smooth
        together = stored["together"] if stored else self._together(model.n_samples, landmarks.rank, smooth)
        batch = stored["batch_size"] if stored else self._batch_size(together, smooth)
        threads = executor.threads_per_process if self._joint else 1
        self._options = _BatchOptions(settings.gap, settings.max_passes, settings.latent, smooth, together, threads)
        self.plan = {
            **asked,
            "largest_rank": int(largest),
            "rank": landmarks.rank,
            "batch_size": int(batch),
            "together": int(together),
            "smooth": smooth,
        }
        if stored is not None and stored["rank"] != landmarks.rank:
            raise InputError(
                f"the prediction to resume used a factor of rank {stored['rank']}, now there is one of rank "
                f"{landmarks.rank}; start afresh with `overwrite`"
            )
        self._met = self._unmet = 0
        self._gap_sum = self._gap_max = self._passes = 0.0
        self._factor_seconds = 0.0

    def at(self, test: Dataset) -> VarianceRun:
        """The same run at another part of the test samples, with figures of its own."""
        other = copy.copy(self)
        other._test = test
        other._met = other._unmet = 0
        other._gap_sum = other._gap_max = other._passes = 0.0
        return other

    @property
    def region_rows(self) -> int:
        """Rows of a region of the store: one batch, several where that would make more than a thousand regions."""
        batch = int(self.plan["batch_size"])
        return batch * max(1, math.ceil(self._n_test / (REGIONS * batch)))

    @property
    def depth(self) -> int:
        """Regions under way at once: enough to keep every worker thread busy."""
        if self._joint:
            return 1
        batches = max(1, self.region_rows // int(self.plan["batch_size"]))
        return max(1, math.ceil(self._executor.parallelism / batches)) + 1

    def prepare(self, model: ModelRecord) -> str:
        """Have the factor built on the workers, and kept where that is wanted; say what was done."""
        started = time.perf_counter()
        groups = [[index] for index in range(self._executor.parallelism)]
        self._executor.submit("kfactor", factor_task, (self._source,), groups).result()
        loaded = self._source.stored is not None
        trouble = self._trouble
        if self._settings.keep_factor and not loaded:
            try:
                keep_factor(model, self._source, self._landmarks, gap=self._settings.gap, seed=self._settings.seed)
            except (StorageError, StoreError) as error:
                trouble = f"; it could not be kept with the model: {error}"
        self._factor_seconds = time.perf_counter() - started
        rank, n = self._landmarks.rank, model.n_samples
        how = "starts and preconditions block conjugate gradients"
        if self.plan["smooth"]:
            how = "is expected to suffice by itself"
        elif self._settings.max_passes < 1:
            how = "has to do by itself, with no pass over the kernel matrix"
        return (
            f"partial Cholesky factor of rank {rank:,} ({factor_bytes(n, rank, self._precision) / 1e6:,.3g} MB) "
            f"{'loaded' if loaded else 'built'} in {self._factor_seconds:.1f} s; it {how}{trouble}"
        )

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region: one task for each batch; one after the other where each takes all threads."""
        size = int(self.plan["batch_size"])
        batches = [(first, min(first + size, stop)) for first in range(start, stop, size)]
        groups = [batches] if self._joint else [[batch] for batch in batches]
        arguments = (self._source, self._certificate, self._test, self._options)
        return self._executor.submit("kvariance", variance_task, arguments, groups)

    def collect(self, results: list[Any]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Join a region's batches: mean and error (rows, p), lower and upper (rows,), standardised; keep count."""
        mean, error, lower, upper, passes = (np.concatenate(parts) for parts in zip(*results, strict=True))
        gap = relative_gap(lower, upper)
        unmet = int(np.count_nonzero(gap > self._settings.gap))
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
            "rank": self._landmarks.rank,
            "smooth": bool(self.plan["smooth"]),
            "batch_size": int(self.plan["batch_size"]),
            "latent": self._settings.latent,
            "residual_trace": self._landmarks.residual_trace,
            "effective_dimension": self._landmarks.effective_dimension,
            "factor_seconds": self._factor_seconds,
            "seconds_per_sample": seconds / count,
        }

    def _require_plan(self, stored: dict[str, Any], n: int) -> None:
        """Refuse settings other than those that the prediction was started with; what was chosen then stays chosen."""
        settings = self._settings
        sizes = (
            ("rank", settings.rank, stored["largest_rank"], n),
            ("batch size", settings.batch_size, stored["batch_size"], self._n_test),
        )
        for name, asked, was, most in sizes:
            if asked is not None and min(asked, most) != was:
                raise InputError(
                    f"the prediction to resume was started with a variance {name} of {was:,}, not {asked:,}; "
                    "leave it out, or `overwrite`"
                )

    def _largest_rank(self, n: int, n_test: int) -> int:
        settings = self._settings
        budget = int(FACTOR_SHARE * _memory_bytes(settings, n))
        # 4 n R + 8 R^2 <= budget
        fits = int((-4.0 * n + math.sqrt(16.0 * n * n + 32.0 * budget)) / 16.0)
        if settings.rank is not None:
            rank = min(settings.rank, n)
            if rank > fits:
                raise MemoryBudgetError(
                    f"a factor of rank {rank:,} takes {factor_bytes(n, rank) / 1e6:,.3g} MB; its share of "
                    f"the variance memory is {budget / 1e6:,.3g} MB. "
                    f"Lower `rank` to {fits:,} or raise `memory_bytes`"
                )
            return rank
        balanced = int(math.sqrt(0.75 * n * (n_test + ENTRY_WORTH_SAMPLES)))
        free = int(math.sqrt(FREE_OPERATIONS / (2.0 * n)))
        return max(1, min(n, fits, max(balanced, free)))

    def _together(self, n: int, rank: int, smooth: bool) -> int:
        budget = _memory_bytes(self._settings, n) - factor_bytes(n, rank, self._precision)
        threads = 1 if self._joint else self._executor.threads_per_process
        fits = budget // (threads * batch_bytes(n, 1))
        if fits < 1 and self._settings.max_passes >= 1 and not smooth:
            raise MemoryBudgetError(
                f"the vectors of one test sample take {batch_bytes(n, 1) / 1e6:,.3g} MB on each of {threads} threads; "
                f"its share of the variance memory is {budget / 1e6:,.3g} MB. Raise `memory_bytes`, use fewer "
                "threads a worker, or let the factor alone do with `max_passes` 0"
            )
        return int(min(LARGEST_JOINT_BATCH if self._joint else LARGEST_BATCH, max(1, fits)))

    def _batch_size(self, together: int, smooth: bool) -> int:
        if self._settings.batch_size is not None:
            return min(self._settings.batch_size, self._n_test)
        n_test = self._n_test
        most = LARGEST_BATCH if smooth else together
        at_least = max(
            math.ceil(n_test / most), 1 if self._joint else min(self._executor.parallelism, n_test // LEAST_BATCH)
        )
        return math.ceil(n_test / max(1, at_least))  # batches of one size: a last one of a few samples costs a pass too


def _memory_bytes(settings: VarianceSettings, n: int) -> int:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    return max(LEAST_MEMORY_BYTES, min(MEMORY_BYTES_PER_SAMPLE * n, int(psutil.virtual_memory().available) // 3))


def _precision(kept: FactorRecord | None, certifies: bool, kernel_trace: float, model: ModelRecord) -> Precision:
    if kept is not None:
        return "double" if kept.metadata["precision"] == "double" else "single"
    hopeless = float(np.finfo(np.float32).eps) * kernel_trace > SINGLE_PRECISION_UP_TO * model.noise_variance
    return "double" if certifies or hopeless else "single"
