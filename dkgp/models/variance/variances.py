"""Predictive variances in batches: the settings, the plan of a run, and the task that does one batch.

What does not depend on the test samples - landmarks, partial Cholesky factor - is made once. Each batch is then one
stateless task, retried like any other, whose few numbers the coordinator writes to the batch's own region.

How batches and ranks compare: docs/experiments.md.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor
from dkgp.data import ModelRecord
from dkgp.errors import InputError, MemoryBudgetError, StorageError, StoreError
from dkgp.kernels import Kernel
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.certificate import Certificate
from dkgp.models.variance.batch import BatchOptions, BatchVariance, Enough, relative_gap, solve_batch, value_error_goal
from dkgp.models.variance.batched import UNPROVEN, BatchedRun, variance_task
from dkgp.models.variance.kept_factor import keep_factor, kept_factor, landmarks_of
from dkgp.models.variance.landmarks import Landmarks, SupportSamples, choose_landmarks, judged
from dkgp.models.variance.nystrom import FactorSource, factor_bytes, leaves_of
from dkgp.models.variance.remainder import GROUP
from dkgp.models.variance.search import ProductTally, local_samples
from dkgp.models.variance.settings import SentRows, TestRows, VarianceSettings
from dkgp.models.variance.sizes import (
    FACTOR_SHARE,
    Memory,
    chosen_group,
    chosen_halo,
    chosen_rank,
    default_memory_bytes,
    leaf_makers,
    precision_of,
)
from dkgp.models.variance.spread import SEARCHED, UNSEARCHED, BatchLayout
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.vecchia.tasks import order_task
from dkgp.solvers.conjugate.phases import Batches
from dkgp.solvers.prices import Sizes

__all__ = ["TestRows", "VarianceRun", "VarianceSettings"]

# Samples of a batch. Where a factor is expected to suffice, batches are for all threads: `PARTS` of them at
# most, of `LEAST_BATCH` to `MOST_BATCH` samples. Otherwise a batch takes all threads of a process, and its samples
# share their products.
LEAST_BATCH, MOST_BATCH, PARTS, LARGEST_JOINT_BATCH = 64, 512, 64, 1024
# Where a factor is expected to suffice for nearly all, and the others are to share their products: so many batches if
# each has as many samples as that at least, and no more than that; whatever the number of workers.
DECIDED_BATCHES, LEAST_DECIDED, MOST_DECIDED = 4, 512, 4096


class Needs(Protocol):
    """The precision that variances are of use to, beyond which they need not be known; travels with tasks."""

    def at(self, inputs: FloatArray) -> Enough:
        """The rule for test samples (t, d) as the run sees them."""


def decided_batch(n_test: int) -> int:
    """Samples of a batch where a factor is expected to suffice for nearly all of so many."""
    batches = max(min(DECIDED_BATCHES, n_test // LEAST_DECIDED), math.ceil(n_test / MOST_DECIDED))
    return max(1, math.ceil(n_test / max(1, batches)))


@needs_one_arithmetic
@UNPROVEN
def factor_task(source: FactorSource, group: list[int]) -> list[int]:
    """Have the factors ready on the worker that runs this."""
    rank = source.factor().rank
    source.make_leaves()
    return [rank for _ in group]


@dataclass(frozen=True)
class FactorWay:
    """Bounds by a partial factor and conjugate gradients; `needs` may end the work on samples before the gap is met.

    Where an `executor` is named, its workers share what takes most time of a batch, and this process leads.
    """

    source: FactorSource
    options: BatchOptions
    needs: Needs | None = None
    executor: BlockExecutor | None = None

    @property
    def context(self) -> BlockContext:
        """The model's support inputs and kernel."""
        return self.source.context

    def bounds(self, inputs: FloatArray) -> BatchVariance:
        """Bound the variances at standardised inputs (t, d); the tally counts the samples that `needs` ended."""
        options = self.options
        enough = None if self.needs is None else self.needs.at(inputs)
        executor = self.executor or HereExecutor(options.threads)
        factor, preconditioner = self.source.factor(self.executor), self.source.preconditioner(executor)
        bounds = solve_batch(factor, inputs, options, preconditioner, enough, executor)
        if enough is not None:
            wide = np.flatnonzero(relative_gap(bounds.lower, bounds.upper) > options.gap)
            bounds.tally.settled = int(np.count_nonzero(enough(wide, bounds.lower[wide], bounds.upper[wide])))
        return bounds


class VarianceRun(BatchedRun):
    """One prediction's variances: its plan, its rounds, its figures.

    Parameters
    ----------
    context : BlockContext
        Of the model's support inputs.
    certificate : Certificate or None
        Of the means; None where they are not wanted.
    test : TestRows
        A data set as the model sees it.
    stored : dict, optional
        Plan of the prediction that is resumed; the regions still missing are computed as the first ones were.
    n_test : int, optional
        Test samples in all, where `test` is a part of them; see `at`.
    factors : int
        Runs with factors of their own that the prediction takes in turn, this one among them.
    landmarks : Landmarks, optional
        Those of another run of this model and these settings, so that they need not be drawn again.
    needs : Needs, optional
        What variances are of use to, where that is less than the gap.

    Attributes
    ----------
    plan : dict
        What the store records: gap, max_passes, latent, seed, largest_rank, rank, halo, batch_size, together,
        smooth.

    Raises
    ------
    InputError
        Other settings than those of the prediction to resume.
    MemoryBudgetError
        A single sample's vectors do not fit.
    """

    def __init__(
        self,
        model: SupportSamples,
        kernel: Kernel,
        context: BlockContext,
        certificate: Certificate | None,
        test: TestRows,
        executor: BlockExecutor,
        settings: VarianceSettings,
        stored: dict[str, Any] | None = None,
        *,
        n_test: int | None = None,
        landmarks: Landmarks | None = None,
        factors: int = 1,
        needs: Needs | None = None,
    ) -> None:
        if settings.basis is not None:
            raise InputError(
                "a `basis` for each variance is of use in predictions of a regression's store; leave it out"
            )
        executor.require_one_arithmetic()
        super().__init__(certificate, test, executor, settings, n_test)
        self._needs = needs
        self._require_same(stored, self._requested)
        if stored is not None:
            self._require_plan(stored, model.n_samples)
        self._n = n = model.n_samples
        memory_bytes = settings.memory_bytes or default_memory_bytes(n)
        largest = stored["largest_rank"] if stored else chosen_rank(n, self._n_test, settings.rank, memory_bytes)
        kept, self._trouble = None, ""
        if isinstance(model, ModelRecord):
            kept, self._trouble = kept_factor(model, kernel, settings.rank, proving=settings.max_passes < 1)
        elif settings.keep_factor:
            raise InputError(
                "`keep_factor` is of use with a model of a regression whose samples have one noise; leave it out"
            )
        landmarks = (
            landmarks_of(kept)
            if kept
            else landmarks
            or choose_landmarks(
                model,
                kernel,
                gap=value_error_goal(settings.gap),
                largest_rank=largest,
                latent=settings.latent,
                fixed=settings.rank is not None,
                seed=settings.seed,
            )
        )
        smooth = False
        if kept is None or kept.metadata["precision"] == "double":
            goal = value_error_goal(settings.gap)
            landmarks, smooth = judged(landmarks, model, kernel, gap=goal, latent=settings.latent)
        self._whole_process = settings.max_passes >= 1 and (not smooth or needs is not None)
        self._landmarks = landmarks
        traces = landmarks.residual_trace, landmarks.kernel_trace
        precision: Precision = precision_of(smooth or settings.max_passes < 1, *traces, model.noise_variance)
        if kept:
            precision = "double" if kept.metadata["precision"] == "double" else "single"
        proves = precision == "double" and (smooth or settings.max_passes < 1)
        self._memory = Memory(
            memory_bytes,
            n,
            landmarks.rank,
            0,
            precision,
            held=False,
            proves=proves,
            group=GROUP if needs is None else chosen_group(n, memory_bytes),
            width=feature_width(kernel),
        )
        halo = stored.get("halo", 0) if stored else self._halo(smooth)
        # What it proves by itself is evaluated from kernel columns.
        held = not halo and not proves and factor_bytes(n, landmarks.rank, precision) <= FACTOR_SHARE * memory_bytes
        self._memory = replace(self._memory, halo=halo, held=held)
        self._source = FactorSource(
            context,
            model.noise_variance,
            model.input_rows(landmarks.indices),
            precision,
            held,
            kept,
            leaves_of(context, model.noise_variance, executor, halo) if halo else None,
            proves,
            self._memory.group,
            factors,
            leaf_makers(self._memory) if halo else None,
        )
        together = stored["together"] if stored else self._together(smooth)
        batch = stored["batch_size"] if stored else self._batch_size(together, smooth)
        threads = executor.parallelism if isinstance(executor, HereExecutor) else executor.threads_per_process
        self._options = BatchOptions(
            settings.gap,
            settings.max_passes,
            settings.latent,
            smooth,
            together,
            threads,
            threads if self._whole_process else 1,
            in_turn=not isinstance(executor, HereExecutor),
        )
        self.plan = {
            **self._requested,
            "largest_rank": int(largest),
            "rank": landmarks.rank,
            "halo": int(halo),
            "batch_size": int(batch),
            "together": int(together),
            "smooth": smooth,
        }
        self._n_features, self._n_blocks = context.kernel.n_features, context.n_blocks
        self._shared = self._whole_process and needs is None and self.layout(executor).is_shared
        if stored is not None and stored["rank"] != landmarks.rank:
            raise InputError(
                f"the prediction to resume used a factor of rank {stored['rank']}, now there is one of rank "
                f"{landmarks.rank}; start afresh with `overwrite`"
            )

    def at(self, test: TestRows) -> Self:
        """As of `BatchedRun`; batches that share products are cut anew."""
        run = super().at(test)
        if self._needs is not None and self.plan["smooth"] and self._settings.batch_size is None:
            run.plan = {**self.plan, "batch_size": decided_batch(test.n_samples)}
        return run

    def layout(self, executor: BlockExecutor) -> BatchLayout:
        """Forecast the run on an executor with a batch a worker, and with all workers on each batch."""
        single, double = SEARCHED if self.plan["halo"] else UNSEARCHED
        workers = max(1, len(executor.workers))
        threads = max(1, executor.parallelism // workers)
        return BatchLayout.of(
            Sizes(self._n, self._n_features, blocks=self._n_blocks), self.batches(single, double), workers, threads
        )

    @property
    def threads(self) -> int:
        """Threads of a process that share a batch."""
        return self._options.factor_threads or self._options.threads

    def batches(self, single: float, double: float, threads: int = 1) -> Batches:
        """Return the counts of the run's work, with so many products for a sample in float32 and in float64."""
        plan, batch = self.plan, int(self.plan["batch_size"])
        return Batches(
            self._n_test,
            math.ceil(self._n_test / batch),
            min(batch, int(plan["together"])),
            int(plan["rank"]),
            int(plan["halo"]),
            local_samples(self._n),
            self._memory.precision == "double",
            single,
            double,
            threads,
        )

    @property
    def landmarks(self) -> Landmarks:
        """The training samples that the factor is built on."""
        return self._landmarks

    @property
    def memory(self) -> Memory:
        """Memory of a worker's process, as it was planned."""
        return self._memory

    def prepare(self, model: SupportSamples) -> str:
        """Have the factor built on the workers, and kept where that is wanted; say what was done."""
        started = time.perf_counter()
        if self._shared:
            self._source.factor(self._executor)
            workers = list(self._executor.workers)
            if self._source.leaves is not None:
                groups = [[0] for _ in workers]
                self._executor.submit("kvorder", order_task, (self._source.leaves,), groups, workers).result()
        else:
            groups = [[index] for index in range(self._executor.parallelism)]
            self._executor.submit("kfactor", factor_task, (self._source,), groups).result()
        loaded = self._source.stored is not None
        trouble = self._trouble
        if self._settings.keep_factor and not loaded and isinstance(model, ModelRecord):
            try:
                keep_factor(model, self._source, self._landmarks, gap=self._settings.gap, seed=self._settings.seed)
            except (StorageError, StoreError) as error:
                trouble = f"; it could not be kept with the model: {error}"
        self._factor_seconds = time.perf_counter() - started
        rank, halo = self._landmarks.rank, int(self.plan["halo"])
        beside = f" and block-Vecchia factor with halos of {halo:,}" if halo else ""
        how = (
            "proves what block conjugate gradients find"
            if halo
            else "starts and preconditions block conjugate gradients"
        )
        if self.plan["smooth"]:
            how = "is expected to suffice by itself"
        elif self._settings.max_passes < 1:
            how = "has to do by itself, with no pass over the kernel matrix"
        return (
            f"partial Cholesky factor of rank {rank:,}{beside} ({self._memory.fixed / 1e6:,.3g} MB) "
            f"{'loaded' if loaded else 'built'} in {self._factor_seconds:.1f} s; it {how}{trouble}"
            + (f"; {self.layout(self._executor)}" if self._whole_process and len(self._executor.workers) > 1 else "")
        )

    def tried(self, inputs: FloatArray, max_passes: float = 0.0) -> tuple[FloatArray, ProductTally]:
        """Relative gaps at a few test inputs after so many products, and those; what it takes is built, and stays."""
        options = replace(self._options, max_passes=max_passes, factor_threads=None)
        executor = self._executor if self._shared else None
        arguments, rows = (
            (FactorWay(self._source, options, executor=executor), None, SentRows(inputs)),
            (0, len(inputs)),
        )
        if executor is None:
            ((_, _, lower, upper, _, tally),) = self._executor.submit(
                "ktrial", variance_task, arguments, [[rows]]
            ).result()
        else:
            ((_, _, lower, upper, _, tally),) = variance_task(*arguments, [rows])
        return relative_gap(lower, upper), tally

    def _way(self, batches: int) -> FactorWay:
        return FactorWay(self._source, self._options, self._needs, self._executor if self._shared else None)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of the samples of this run; those that a resumed run found done are not among them."""
        return {
            **super().summary(seconds),
            "layout": self.layout(self._executor).to_json(),
            "rank": self._landmarks.rank,
            "halo": int(self.plan["halo"]),
            "smooth": bool(self.plan["smooth"]),
            "residual_trace": self._landmarks.residual_trace,
            "effective_dimension": self._landmarks.effective_dimension,
        }

    def _require_plan(self, stored: dict[str, Any], n: int) -> None:
        """Refuse settings other than those that the prediction was started with; what was chosen then stays chosen."""
        settings = self._settings
        sizes = (
            ("rank", settings.rank, stored["largest_rank"], n),
            ("halo", settings.halo, stored.get("halo", 0), n),
            ("batch size", settings.batch_size, stored["batch_size"], self._n_test),
        )
        for name, requested, was, most in sizes:
            if requested is not None and min(requested, most) != was:
                raise InputError(
                    f"the prediction to resume was started with a variance {name} of {was:,}, not {requested:,}; "
                    "leave it out, or `overwrite`"
                )

    def _halo(self, smooth: bool) -> int:
        if self._settings.halo is not None:
            return min(self._settings.halo, self._n)
        if smooth or self._settings.max_passes < 2:
            return 0
        return chosen_halo(self._memory, self._n_test)

    def _together(self, smooth: bool) -> int:
        memory, fits = self._memory, self._memory.samples
        if fits < 1 and self._settings.max_passes >= 1 and not smooth:
            remaining = memory.total - memory.fixed
            raise MemoryBudgetError(
                f"the vectors of one test sample take {memory.of_a_sample / 1e6:,.3g} MB; the factors and a product "
                f"leave {max(0, remaining) / 1e6:,.3g} MB of the variance memory to them. Raise `memory_bytes`, or let "
                "the factor alone do with `max_passes` 0"
            )
        return int(min(LARGEST_JOINT_BATCH, max(1, fits)))

    def _batch_size(self, together: int, smooth: bool) -> int:
        if self._settings.batch_size is not None:
            return min(self._settings.batch_size, self._n_test)
        n_test = self._n_test
        if smooth and self._needs is not None:
            return decided_batch(n_test)
        most = min(MOST_BATCH, max(LEAST_BATCH, math.ceil(n_test / PARTS))) if smooth else together
        # Batches of one size: a last one of a few samples costs a pass too.
        return math.ceil(n_test / max(1, math.ceil(n_test / most)))
