"""Predictive variances by a partial Cholesky factor and conjugate gradients: the sizes, the layout and the run.

The run builds the landmarks and the partial Cholesky factor once, since they do not depend on the test samples. Each
batch is one stateless task, retried like any other task. The coordinator writes its few numbers to the batch's own
region. A factor can be stored with its model for later predictions. Measurements of batches and ranks:
docs/experiments.md.

Memory and time determine the rank, the halo and the number of samples solved together. A product with the kernel
matrix takes 2 n^2 operations per sample. A factor of rank R takes 2 n R^2 operations, and its proofs 6 n R per sample.
Each doubling of R narrows intervals about as much as a product does. A halo of s samples takes 4 n s^2 operations, and
the number of products falls about as s^(-3/4). Memory permitting, R and s are chosen such that the cost of the last
increase equals its saving.

Each batch runs on one worker, or all workers share one batch after the other. The results' bits are the same. The
forecast counts work and messages at nominal prices and measures no time, so that the layout of a run is reproducible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import psutil

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor
from dkgp.data import FactorRecord, FactorWriter, ModelRecord, is_resident, open_factor
from dkgp.errors import InputError, MemoryBudgetError, StorageError, StoreError
from dkgp.kernels import Kernel
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.memory import Memory, Part
from dkgp.models.variance.batch import (
    BatchOptions,
    BatchVariance,
    Enough,
    ProductTally,
    local_samples,
    product_bytes,
    relative_gap,
    solve_batch,
    value_error_goal,
    vectors_at_once,
)
from dkgp.models.variance.landmarks import Landmarks, choose_landmarks, judged
from dkgp.models.variance.nystrom import (
    GROUP,
    LARGE_GROUP,
    FactorSource,
    factor_bytes,
    landmark_jitter,
    leaves_of,
    remainder_bytes,
)
from dkgp.models.variance.run import UNPROVEN, Request, VarianceRun, variance_task
from dkgp.models.variance.settings import SentRows, TestRows, require_as_begun
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.low_rank.pivots import ROWS_AT_ONCE
from dkgp.operators.vecchia.factor import order_task, vecchia_bytes
from dkgp.registry import byte_text
from dkgp.solvers.conjugate.preconditioner import COLUMNS_AT_ONCE, Batches, shared_phases, variance_phases
from dkgp.solvers.prices import Phase, Prices, Sizes

MEBIBYTE = 1024**2
LEAST_MEMORY_BYTES = 704 * MEBIBYTE
MEMORY_BYTES_PER_SAMPLE = 16384
# Largest shares of the memory for a factor while it is built, for the block-Vecchia factor, and for large blocks.
FACTOR_SHARE, HALO_SHARE, GROUP_SHARE = 0.5, 0.5, 0.125
# Operations that a factor may always take, two or three seconds of work: small problems use the whole matrix. A factor
# for fewer test samples than `FEW_TESTS` takes fewer in proportion, since these would wait for it alone.
FREE_OPERATIONS, FEW_TESTS = 1e11, 64
# The saving of a rank R equals its cost at R^2 + R t = 0.8 n t, that of a halo s at s^(11/4) = 110 n t (kin40k).
RANK_WORTH, HALO_WORTH, HALO_POWER = 0.8, 110.0, 4.0 / 11.0
LEAST_HALO = 256
# Least number of samples that a halo must leave room to solve together, since entries are evaluated once for all.
LEAST_TOGETHER = 100
# A search in float32 holds v, k_x - Kbar v, directions, their images and M^-1 r. The float64 stage holds v in float32
# and r. For the fifth of the samples that continues at a time, it also holds v, r, M^-1 r, images, and directions in
# float32.
SEARCH_BYTES, DOUBLE_BYTES = 5 * 4, 4 + 8 + (4 * 8 + 4) // 5
# Bytes without a search: v, r, M^-1 r, images and the preconditioner's input.
START_BYTES = 5 * 8
# Largest trace(K), a bound on the largest eigenvalue, times float32's epsilon over s2: beyond it a float32
# preconditioner is mostly noise. And the least residual trace over trace(K) for which a float32 triangle is accurate.
SINGLE_PRECISION_UP_TO, SINGLE_PRECISION_TRACE = 1.0, 1e-4


def default_memory_bytes(n: int) -> int:
    """Return the default working memory of one worker process."""
    return max(LEAST_MEMORY_BYTES, min(MEMORY_BYTES_PER_SAMPLE * n, int(psutil.virtual_memory().available) // 3))


def building_bytes(n: int, rank: int) -> int:
    """Return the peak bytes of building a factor, without F: three squares in float64, some rows of F, n-vectors."""
    return 24 * rank * rank + 4 * min(n, ROWS_AT_ONCE) * rank + 24 * n


def chosen_rank(n: int, tests: int, requested: int | None, memory_bytes: int) -> int:
    """Return the largest number of landmarks for n training samples and `tests` test samples.

    Raises
    ------
    MemoryBudgetError
        The requested rank does not fit.
    """
    budget = int(FACTOR_SHARE * memory_bytes) - 24 * n
    linear = 4 * min(n, ROWS_AT_ONCE)
    # 24 R^2 + linear R <= budget
    fits = int((math.sqrt(linear * linear + 96.0 * max(budget, 0)) - linear) / 48.0)
    if requested is not None:
        rank = min(requested, n)
        if rank > fits:
            raise MemoryBudgetError(
                f"a factor of rank {rank:,} takes {byte_text(building_bytes(n, rank))} to make; its share of "
                f"the variance memory is {byte_text(FACTOR_SHARE * memory_bytes)}. "
                f"Lower `rank` to {max(fits, 0):,} or raise `memory_bytes`"
            )
        return rank
    balanced = int(math.sqrt(RANK_WORTH * n * tests + tests * tests / 4.0) - tests / 2.0)
    free = int(math.sqrt(FREE_OPERATIONS * min(1.0, tests / FEW_TESTS) / (2.0 * n)))
    return max(1, min(n, fits, max(balanced, free)))


def chosen_group(n: int, memory_bytes: int) -> int:
    """Return the group size of the blocks of K - Q for runs in which narrow intervals are worth their memory."""
    return LARGE_GROUP if remainder_bytes(n, LARGE_GROUP) <= GROUP_SHARE * memory_bytes else GROUP


def precision_of(proves: bool, residual: float, trace: float, noise_variance: float) -> Precision:
    """Return the precision of a factor's triangles, from trace(K - Q) and trace(K).

    float32 suffices if the factor does not prove by itself and its residual trace is not tiny.
    """
    hopeless = 2.0**-23 * trace > SINGLE_PRECISION_UP_TO * noise_variance
    return "double" if proves or hopeless or not is_rough(residual, trace) else "single"


def is_rough(residual: float, trace: float) -> bool:
    """Return True if the residual trace is so large that F follows from kernel columns and a float32 triangle."""
    return residual >= SINGLE_PRECISION_TRACE * trace


@dataclass(frozen=True)
class Working:
    """Working memory of a process that solves one batch after the other with all of its threads."""

    total: int  # memory limit in bytes
    n: int
    rank: int
    halo: int
    precision: Precision
    held: bool  # whether F is held
    width: int  # the kernel's `feature_width`
    proves: bool = False  # whether the factor certifies by itself
    group: int = GROUP  # samples of a block

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the samples."""
        holds: dict[str, Any] = {"held": self.held, "proves": self.proves, "group": self.group}
        factor = factor_bytes(self.n, self.rank, self.precision, **holds)
        if not self.halo:
            return factor
        at_once = vectors_at_once(self.n)
        vecchia = vecchia_bytes(self.n, self.halo, -(-self.halo // 2), width=self.width, vectors=at_once)
        at_once = vecchia.coordinator + 24 * self.n * at_once
        return factor + vecchia.kept + vecchia.points + at_once

    @property
    def of_a_sample(self) -> int:
        """Bytes for each sample of a batch."""
        return self.n * (max(SEARCH_BYTES, DOUBLE_BYTES) if self.halo else START_BYTES)

    @property
    def samples(self) -> int:
        """Number of samples that may be solved together; 0 if the memory limit is too small for one."""
        room = self.total - self.fixed
        few = room // (self.of_a_sample + product_bytes(self.n, 1))
        many = (room - product_bytes(self.n, max(0, few))) // self.of_a_sample
        return max(0, few if few < COLUMNS_AT_ONCE else many)

    def plan(self, samples: int) -> Memory:
        """Project the memory of a process that solves this number of samples together."""
        batch = samples * self.of_a_sample + product_bytes(self.n, samples)
        parts = {
            "features_bytes": Part(16 * self.n * (self.width + 1), "worker"),
            "factor_bytes": Part(self.fixed, "worker"),
            "batch_bytes": Part(batch, "worker"),
        }
        return Memory("variances", parts, shares_process=False)


def chosen_halo(without: Working, tests: int) -> int:
    """Return the samples of a halo; 0 if the factor is nearly the whole matrix, or memory is too small for a halo.

    `without` is the memory without a halo and without F. The number of threads does not matter: see `leaf_makers`.
    """
    n, total = without.n, without.total
    if 2 * without.rank >= n:
        return 0
    halo = min(n // 4, int((HALO_WORTH * n * tests) ** HALO_POWER))
    while halo >= LEAST_HALO:
        leaves = vecchia_bytes(n, halo, -(-halo // 2), width=without.width)
        kept = leaves.kept + leaves.points
        # Leaves are built before the first batch.
        made = kept <= HALO_SHARE * total and kept + leaves.making <= total - without.fixed
        if made and replace(without, halo=halo).samples >= min(tests, LEAST_TOGETHER):
            return halo
        halo = halo * 15 // 16
    return 0


def leaf_makers(memory: Working) -> int:
    """Return the number of threads of a process that may build leaves at once."""
    leaves = vecchia_bytes(memory.n, memory.halo, -(-memory.halo // 2), width=memory.width)
    return max(1, (memory.total - memory.fixed) // max(1, leaves.making))


# Products per sample that a forecast assumes, in float32 and float64, with a block-Vecchia factor and without.
SEARCHED, UNSEARCHED = (4.0, 1.0), (0.0, 4.0)
# Seconds of a round of tasks, of each of its tasks, and of a byte through the coordinator's link of 1 Gbit/s.
ROUND, TASK, BYTE = 0.02, 1.3e-3, 8e-9
# Tasks of a round per thread, including the additions of their sums.
TASKS_A_THREAD = 8
# Share of the time that sharing a batch must save.
WORTHWHILE = 0.1


@dataclass(frozen=True)
class BatchLayout:
    """Predicted seconds of a run with each layout; `is_shared` chooses the layout."""

    batches: int
    workers: int
    alone: float  # with one batch per worker
    together: float  # with all workers on each batch

    @classmethod
    def of(cls, sizes: Sizes, batches: Batches, workers: int, threads: int) -> BatchLayout:
        """Forecast a run on `workers` processes with `threads` threads each; counts of products are nominal."""
        prices = Prices.nominal(sizes.d)
        return cls(
            batches.batches,
            workers,
            _seconds(variance_phases(sizes, batches), prices, workers, threads),
            _seconds(shared_phases(sizes, batches), prices, workers, threads),
        )

    @property
    def is_shared(self) -> bool:
        """True if all workers solve each batch together."""
        return self.workers > 1 and self.together < (1.0 - WORTHWHILE) * self.alone

    def __str__(self) -> str:
        counted = f"{self.batches:,} batch{'es' if self.batches > 1 else ''} on {self.workers:,} workers"
        taken, other = (self.together, self.alone) if self.is_shared else (self.alone, self.together)
        words = ("all workers share each batch", "a batch a worker")
        first, second = words if self.is_shared else words[::-1]
        return f"{counted}: {first}, about {taken:.2g} s ({second}: {other:.2g} s)"

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain JSON types."""
        return {"shared": self.is_shared, "alone_seconds": self.alone, "shared_seconds": self.together}


def _seconds(phases: Iterable[Phase], prices: Prices, workers: int, threads: int) -> float:
    """Return the total seconds of the phases; a piece of work uses all threads of its process."""
    total = 0.0
    for phase in phases:
        at_work = min(workers, phase.pieces)
        share = math.ceil(phase.pieces / at_work) / phase.pieces
        of_each = prices.seconds(phase.each) + prices.seconds(phase.threaded)
        seconds = (prices.seconds(phase.shared) * share + of_each) / threads + prices.seconds(phase.alone)
        if phase.rounds:
            tasks = min(phase.pieces, TASKS_A_THREAD * workers * threads)
            moved = phase.sent + phase.returned + workers * phase.sent_to_each
            seconds += phase.rounds * (ROUND + TASK * tasks) + BYTE * moved
        total += phase.times * seconds
    return total


def kept_factor(
    model: ModelRecord, kernel: Kernel, rank: int | None, *, proving: bool
) -> tuple[FactorRecord | None, str]:
    """Return the factor stored with a model if it is usable, and a remark if it is not.

    Parameters
    ----------
    rank : int or None
        Requested rank; None accepts any rank.
    proving : bool
        Whether the factor has to certify variances by itself, which requires float64.
    """
    if is_resident(model.url):
        return None, ""
    try:
        kept = open_factor(model.url, fingerprint=model.fingerprint)
    except StoreError as error:
        return None, f"; the factor kept with the model is of no use: {error}"
    if kept is None or rank not in (None, kept.rank):
        return None, ""
    needed = landmark_jitter(kernel, model.input_rows(np.asarray(kept.indices, dtype=np.intp)))
    if kept.metadata.get("jitter", 0.0) < 0.99 * needed:  # half of the jitter is a safety margin
        return None, "; the factor stored with the model is from an older version, which does not count every rounding"
    if kept.metadata["precision"] != "double" and "kernel_trace" not in kept.metadata:
        return None, "; the factor stored with the model is from an older version and cannot be used here"
    return (kept, "") if not proving or kept.metadata["precision"] == "double" else (None, "")


def landmarks_of(kept: FactorRecord) -> Landmarks:
    """Return the landmarks of a stored factor."""
    return Landmarks(
        np.asarray(kept.indices, dtype=np.intp),
        float(kept.metadata["residual_trace"]),
        float(kept.metadata["effective_dimension"]),
        float(kept.metadata.get("kernel_trace", math.nan)),
        float(kept.metadata.get("gain", math.nan)),
    )


def keep_factor(model: ModelRecord, source: FactorSource, landmarks: Landmarks, *, gap: float, seed: int) -> None:
    """Store this process's factor with its model; `gap` and `seed` are those of its landmarks.

    Raises
    ------
    StorageError, StoreError
        The model's folder cannot be written to, or another run is storing a factor there.
    """
    factor = source.factor()
    metadata = {
        "kernel": model.kernel,
        "noise_variance": model.noise_variance,
        "fingerprint": model.fingerprint,
        "precision": source.precision,
        "jitter": landmark_jitter(source.context.kernel, source.landmark_inputs),
        "residual_trace": landmarks.residual_trace,
        "effective_dimension": landmarks.effective_dimension,
        **({} if math.isnan(landmarks.kernel_trace) else {"kernel_trace": landmarks.kernel_trace}),
        **({} if math.isnan(landmarks.gain) else {"gain": landmarks.gain}),
        "gap": gap,
        "seed": seed,
    }
    with FactorWriter.create(model.url, metadata, factor.n, factor.rank) as writer:
        for start, stop in writer.row_chunks():
            features = factor.evaluator.prepare(source.context.source.inputs(start, stop))
            writer.write_columns(start, factor.rows(features, slice(start, stop)))
        writer.commit(
            landmarks.indices,
            factor.lower.astype(np.float64),
            factor.gram_lower.astype(np.float64),
            factor.residual_diagonal,
        )


# Samples of a batch. If a factor is expected to suffice, threads solve batches in parallel: at most `PARTS` batches, of
# `LEAST_BATCH` to `MOST_BATCH` samples. Otherwise a batch uses all threads of a process, and its samples share their
# products.
LEAST_BATCH, MOST_BATCH, PARTS, LARGEST_JOINT_BATCH = 64, 512, 64, 1024
# If a factor is expected to suffice for nearly all samples, the others share products. The number of batches is then
# `DECIDED_BATCHES`, adapted so that a batch has `LEAST_DECIDED` to `MOST_DECIDED` samples, for any number of workers.
DECIDED_BATCHES, LEAST_DECIDED, MOST_DECIDED = 4, 512, 4096


class Needs(Protocol):
    """The precision to which the variances are needed; sent with tasks."""

    def at(self, inputs: FloatArray) -> Enough:
        """Return the `Enough` rule for the run's standardised test samples (t, d)."""


def decided_batch(n_test: int) -> int:
    """Return the samples of a batch if a factor is expected to suffice for nearly all of `n_test` samples."""
    batches = max(min(DECIDED_BATCHES, n_test // LEAST_DECIDED), math.ceil(n_test / MOST_DECIDED))
    return max(1, math.ceil(n_test / max(1, batches)))


@needs_one_arithmetic
@UNPROVEN
def factor_task(source: FactorSource, group: list[int]) -> list[int]:
    """Build or load the factors on the worker that runs this task."""
    rank = source.factor().rank
    source.make_leaves()
    return [rank for _ in group]


@dataclass(frozen=True)
class FactorWay:
    """Bounds by a partial factor and conjugate gradients; `needs` may end the work on samples before the gap is met.

    If an `executor` is given, its workers share the main work of each batch, and this process coordinates them.
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


class IterativeRun(VarianceRun):
    """Variances by a partial Cholesky factor and conjugate gradients.

    Parameters
    ----------
    request : Request
    landmarks : Landmarks, optional
        Landmarks of another run with this model and these settings, to avoid drawing them again.
    factors : int
        Number of the prediction's runs with their own factors, this run included.
    needs : Needs, optional
        The precision to which the variances are needed, if it is coarser than the gap.

    Attributes
    ----------
    plan : dict
        Entries: gap, max_passes, latent, seed, largest_rank, rank, halo, batch_size, together, smooth.

    Raises
    ------
    InputError
        The settings differ from those of the stored plan, or include a `basis`, which other runs use.
    MemoryBudgetError
        The vectors of a single sample do not fit.
    """

    def __init__(
        self, request: Request, *, landmarks: Landmarks | None = None, factors: int = 1, needs: Needs | None = None
    ) -> None:
        settings, stored, executor = request.settings, request.stored, request.executor
        if settings.basis is not None:
            raise InputError(
                "a `basis` for each variance can be used only for predictions of a stored regression; leave it out"
            )
        executor.require_one_arithmetic()
        super().__init__(request)
        self._require_same(self._requested)
        if stored is not None:
            self._require_sizes(stored)
        self._model, self._n, self._needs = request.model, request.model.n_samples, needs
        total = settings.memory_bytes or default_memory_bytes(self._n)
        largest = stored["largest_rank"] if stored else chosen_rank(self._n, self._n_test, settings.rank, total)
        kept, self._trouble = self._kept()
        self._landmarks, smooth = self._judged(kept, landmarks, largest)
        self._memory = self._sized(kept, smooth, total)
        self._source = self._source_of(kept, factors)
        self._whole_process = settings.max_passes >= 1 and (not smooth or needs is not None)
        together = stored["together"] if stored else self._together(smooth)
        self._batch = int(stored["batch_size"] if stored else self._batch_size(together, smooth))
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
            "rank": self._landmarks.rank,
            "halo": int(self._memory.halo),
            "batch_size": self._batch,
            "together": int(together),
            "smooth": smooth,
        }
        self._shared = self._whole_process and needs is None and self.layout(executor).is_shared

    def _kept(self) -> tuple[FactorRecord | None, str]:
        """Return the factor stored with the model if it is usable, and a remark if it is not."""
        settings, model = self._settings, self.request.subject.keeper
        if model is not None:
            return kept_factor(model, self.request.kernel, settings.rank, proving=settings.max_passes < 1)
        if settings.keep_factor:
            raise InputError("`keep_factor` needs a model of a regression whose samples have one noise; leave it out")
        return None, ""

    def _judged(self, kept: FactorRecord | None, landmarks: Landmarks | None, largest: int) -> tuple[Landmarks, bool]:
        """Return the landmarks, and whether a factor on them is expected to suffice by itself."""
        settings, kernel, stored = self._settings, self.request.kernel, self.request.stored
        goal, smooth = value_error_goal(settings.gap), False
        if kept:
            landmarks = landmarks_of(kept)
        elif landmarks is None:
            landmarks = choose_landmarks(
                self._model,
                kernel,
                gap=goal,
                largest_rank=largest,
                latent=settings.latent,
                fixed=settings.rank is not None,
                seed=settings.seed,
            )
        if kept is None or kept.metadata["precision"] == "double":
            landmarks, smooth = judged(landmarks, self._model, kernel, gap=goal, latent=settings.latent)
        if stored is not None:
            require_as_begun(f"a factor of rank {stored['rank']}", f"a factor of rank {landmarks.rank}", None)
        return landmarks, smooth

    def _sized(self, kept: FactorRecord | None, smooth: bool, total: int) -> Working:
        """Return the memory of a process, with the largest useful halo that fits into it."""
        settings, stored, landmarks = self._settings, self.request.stored, self._landmarks
        alone, traces = smooth or settings.max_passes < 1, (landmarks.residual_trace, landmarks.kernel_trace)
        precision: Precision = precision_of(alone, *traces, self._model.noise_variance)
        if kept:
            precision = "double" if kept.metadata["precision"] == "double" else "single"
        proves = precision == "double" and alone
        group = GROUP if self._needs is None else chosen_group(self._n, total)
        width = feature_width(self.request.kernel)
        memory = Working(total, self._n, landmarks.rank, 0, precision, False, width, proves, group)
        if stored is not None:
            halo = stored.get("halo", 0)
        elif settings.halo is not None:
            halo = min(settings.halo, self._n)
        else:
            halo = 0 if smooth or settings.max_passes < 2 else chosen_halo(memory, self._n_test)
        # A factor that proves by itself is evaluated from kernel columns.
        held = not halo and not proves and factor_bytes(self._n, landmarks.rank, precision) <= FACTOR_SHARE * total
        return replace(memory, halo=halo, held=held)

    def _source_of(self, kept: FactorRecord | None, factors: int) -> FactorSource:
        memory, context, s2 = self._memory, self.request.context, self._model.noise_variance
        return FactorSource(
            context,
            s2,
            self._model.input_rows(self._landmarks.indices),
            memory.precision,
            memory.held,
            kept,
            leaves_of(context, s2, self._executor, memory.halo) if memory.halo else None,
            memory.proves,
            memory.group,
            factors,
            leaf_makers(memory) if memory.halo else None,
        )

    def _batch_rows(self, rows: TestRows) -> int:
        """Return the batch size; batches that share products depend on the number of samples of the call."""
        if self._needs is not None and self.plan["smooth"] and self._settings.batch_size is None:
            return decided_batch(rows.n_samples) if self.request.stored is None else self._batch
        return self._batch

    def layout(self, executor: BlockExecutor) -> BatchLayout:
        """Forecast the run on an executor with one batch per worker, and with all workers on each batch."""
        single, double = SEARCHED if self.plan["halo"] else UNSEARCHED
        workers, context = max(1, len(executor.workers)), self.request.context
        threads = max(1, executor.parallelism // workers)
        return BatchLayout.of(
            Sizes(self._n, context.kernel.n_features, blocks=context.n_blocks),
            self.batches(single, double),
            workers,
            threads,
        )

    @property
    def threads(self) -> int:
        """Threads of a process that share a batch."""
        return self._options.factor_threads or self._options.threads

    def batches(self, single: float, double: float, threads: int = 1) -> Batches:
        """Return the counts of the run's work with `single` float32 and `double` float64 products per sample."""
        plan, batch = self.plan, self._batch
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
    def memory(self) -> Working:
        """Planned memory of a worker process."""
        return self._memory

    def prepare(self) -> str:
        """Build the factor on the workers, store it if `keep_factor` is set, and return a line on it."""
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
        trouble, settings, keeper = self._trouble, self._settings, self.request.subject.keeper
        if settings.keep_factor and not loaded and keeper is not None:
            try:
                keep_factor(keeper, self._source, self._landmarks, gap=settings.gap, seed=settings.seed)
            except (StorageError, StoreError) as error:
                trouble = f"; it could not be kept with the model: {error}"
        self._factor_seconds = time.perf_counter() - started
        rank, halo = self._landmarks.rank, int(self.plan["halo"])
        beside = f" and block-Vecchia factor with halos of {halo:,}" if halo else ""
        how = (
            "proves the solutions of block conjugate gradients"
            if halo
            else "starts and preconditions block conjugate gradients"
        )
        if self.plan["smooth"]:
            how = "should suffice without iterations"
        elif self._settings.max_passes < 1:
            how = "is used alone, without passes over the kernel matrix"
        return (
            f"partial Cholesky factor of rank {rank:,}{beside} ({byte_text(self._memory.fixed)}) "
            f"{'loaded' if loaded else 'built'} in {self._factor_seconds:.1f} s; it {how}{trouble}"
            + (f"; {self.layout(self._executor)}" if self._whole_process and len(self._executor.workers) > 1 else "")
        )

    def tried(self, inputs: FloatArray, max_passes: float = 0.0) -> tuple[FloatArray, ProductTally]:
        """Return the relative gaps at a few test inputs after at most `max_passes` products, and the products' tally.

        The factors that this builds stay in the workers' caches.
        """
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
        """Return the figures of the samples that this run computed."""
        return {
            **super().summary(seconds),
            "layout": self.layout(self._executor).to_json(),
            "rank": self._landmarks.rank,
            "halo": int(self.plan["halo"]),
            "smooth": bool(self.plan["smooth"]),
            "residual_trace": self._landmarks.residual_trace,
            "effective_dimension": self._landmarks.effective_dimension,
        }

    def _require_sizes(self, stored: dict[str, Any]) -> None:
        """Refuse settings that differ from the stored plan; the sizes that it chose stay in effect."""
        settings, n = self._settings, self.request.model.n_samples
        sizes = (
            ("rank", settings.rank, stored["largest_rank"], n),
            ("halo", settings.halo, stored.get("halo", 0), n),
            ("batch size", settings.batch_size, stored["batch_size"], self._n_test),
        )
        for name, requested, was, most in sizes:
            if requested is not None:
                require_as_begun(f"a variance {name} of {was:,}", f"a variance {name} of {min(requested, most):,}")

    def _together(self, smooth: bool) -> int:
        memory, fits = self._memory, self._memory.samples
        if fits < 1 and self._settings.max_passes >= 1 and not smooth:
            remaining = memory.total - memory.fixed
            raise MemoryBudgetError(
                f"the vectors of one test sample take {byte_text(memory.of_a_sample)}; the factors and a product "
                f"leave {byte_text(max(0, remaining))} of the variance memory to them. Raise `memory_bytes`, or let "
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
        # All batches have nearly one size, since a last batch of a few samples would cost a pass too.
        return math.ceil(n_test / max(1, math.ceil(n_test / most)))
