"""Which way a prediction's variances take: what each is foreseen to take, by prices measured here, and a few samples.

Three things do: a partial factor that suffices by itself (smooth problems), a Cholesky factor of the whole matrix, and
conjugate gradients. The whole factor's work is known beforehand. Where the partial factor is expected to suffice, it is
built and tried on a few of the test samples; how many products conjugate gradients take is counted in small, on a
subset of the training samples, unless the least that they can take is more than the factor does.

Decisions are taken by seconds, and so may differ from run to run; a prediction's plan records its own, and a resumed
run keeps to it.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import psutil

from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.data import ModelRecord, standardised_inputs
from dkgp.data.stores.factor_store import open_factor
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import CheckpointError, InputError, StoreError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.certificate import Certificate
from dkgp.models.variance.batch import value_error_goal
from dkgp.models.variance.batched import BatchedRun
from dkgp.models.variance.in_small import Counted, count_products
from dkgp.models.variance.kept_whole import are_held, held_tiles, kept_tiles, load_tiles
from dkgp.models.variance.landmarks import Landmarks, SupportSamples, choose_landmarks, judged
from dkgp.models.variance.row_scales import RowScales
from dkgp.models.variance.search import local_samples
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.models.variance.sizes import Memory, chosen_halo, chosen_rank, default_memory_bytes
from dkgp.models.variance.variances import VarianceRun
from dkgp.models.variance.whole import WholeRoundings, whole_layout
from dkgp.models.variance.whole_run import WholeRun
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.solvers.cholesky.memory_tiles import MemoryTiles, Tiles
from dkgp.solvers.conjugate.phases import Batches, variance_phases
from dkgp.solvers.prices import Phase, Prices, Sizes, Work

# Of the memory that is free, or that is asked for, what the whole factor may take; and of the disk's.
MEMORY_SHARE, DISK_SHARE = 0.5, 0.8
# Core-seconds of a whole factor, of a nominal machine, below which nothing else is looked at: it would take as long.
NO_QUESTION = 1.0
# Of the float64 matrix product's speed, what the factor comes to in tiles.
FACTOR_EFFICIENCY = 0.85
# Bytes of tiles that a core writes, and reads and checks again, in a second.
DISK_BYTES = 5e8
# Test samples of a trial, in so many runs spread over all; samples of a problem in small, and of its test samples.
TRIED, RUNS, SMALL, SMALL_TESTS = 64, 8, 2000, 64
# Float32 and float64 products that a sample takes at least where a partial factor does not suffice; float64 ones that
# one takes which a factor was expected to suffice for.
LEAST_SINGLE, LEAST_DOUBLE, RESCUED = 2.0, 1.0, 8.0
# A wider gap that is told of, and seconds from which there is anything to tell.
WIDER, WORTH_TELLING = 0.1, 3.0
TIMED_ROWS, TIMES = 512, 3

Note = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What variances are of, and how they are asked for; see `VarianceRun`."""

    model: SupportSamples
    kernel: Kernel
    context: BlockContext
    certificate: Certificate | None
    test: TestRows
    executor: BlockExecutor
    settings: VarianceSettings
    stored: dict[str, Any] | None = None
    tests: int | None = None  # test samples in all, where `test` is a part of them

    @property
    def n_test(self) -> int:
        """Test samples in all."""
        return self.test.n_samples if self.tests is None else self.tests

    def iterative(self, landmarks: Landmarks | None = None) -> VarianceRun:
        """The run by a partial factor and conjugate gradients."""
        return VarianceRun(
            self.model,
            self.kernel,
            self.context,
            self.certificate,
            self.test,
            self.executor,
            self.settings,
            self.stored,
            n_test=self.tests,
            landmarks=landmarks,
        )

    def whole(self, place: Tiles | str | None) -> WholeRun:
        """The run by the factor of the whole matrix."""
        s2 = self.model.noise_variance
        return WholeRun(
            self.context,
            s2,
            self.certificate,
            self.test,
            self.executor,
            self.settings,
            place=place,
            stored=self.stored,
            n_test=self.tests,
        )


def chosen_run(request: Request, note: Note | None = None) -> BatchedRun:
    """The run by the way that is asked for, or that was taken before, or that is foreseen to take least.

    Raises
    ------
    InputError
        The whole factor is asked for where it cannot be: no room for it, or nothing that it would prove.
    """
    settings, stored = request.settings, request.stored
    if settings.basis is not None:
        return request.iterative()  # which refuses
    way = settings.way
    if stored is not None:
        taken = str(stored.get("way", "iterative"))
        if way not in ("auto", taken):
            raise InputError(
                f"the prediction to resume was started by the {taken} `way`, not '{way}'; leave it out, or `overwrite`"
            )
        way = taken
    elif way == "auto" and settings.is_iterative:
        way = "iterative"
    elif way == "auto" and (are_held(request.context) or _kept(request) is not None):
        way = "cholesky"
    elif way == "auto" and _keeps_partial(request):
        way = "iterative"
    if way == "iterative":
        return request.iterative()
    place, lacks = _place(request)
    if way == "cholesky":
        if lacks is not None:
            raise InputError(f"{lacks}; take the iterative `way`")
        return _by_whole(request, place, note)
    if lacks is not None:
        return request.iterative()
    request.executor.require_one_arithmetic()
    return _Choice(request, place, note or (lambda words: None)).run()


def _kept(request: Request) -> str | None:
    """The folder of a whole factor that is kept with the model."""
    return kept_tiles(request.model) if isinstance(request.model, ModelRecord) else None


def _by_whole(request: Request, place: Tiles | str | None, note: Note | None) -> WholeRun:
    """The run by a whole factor, by one that is kept where it will do."""
    url = _kept(request)
    if url is None:
        return request.whole(place)
    try:
        if not isinstance(place, MemoryTiles):
            return request.whole(url)
        if place.description() is None:
            load_tiles(url, whole_layout(request.model.n_samples), place)
        return request.whole(place)
    except (StoreError, CheckpointError) as error:
        if isinstance(place, MemoryTiles):
            place.clear()
        if note is not None:
            note(f"the factor kept with the model is of no use: {error}")
        return request.whole(place)


def _keeps_partial(request: Request) -> bool:
    if not isinstance(request.model, ModelRecord):
        return False
    try:
        return open_factor(request.model.url, fingerprint=request.model.fingerprint) is not None
    except StoreError:
        return False


def _place(request: Request) -> tuple[Tiles | str | None, str | None]:
    """Where the tiles of a whole factor go, and if they cannot, why."""
    n = request.model.n_samples
    scales = RowScales.of(request.context, request.model.noise_variance)
    layout = whole_layout(n)
    needed = layout.disk_bytes
    proof = WholeRoundings(layout, scales, request.model.noise_variance)
    if proof.least <= 0.0:
        return None, (
            f"the roundings of a Cholesky factor of {n:,} samples may come to {proof.off:.2g}, beside a noise variance "
            f"of {request.model.noise_variance:.2g}, and it would prove nothing"
        )
    limit = request.settings.memory_bytes
    room = int(MEMORY_SHARE * psutil.virtual_memory().available) if limit is None else limit
    if _in_this_process(request.executor) and (are_held(request.context) or needed <= room):
        return held_tiles(request.context, request.model.noise_variance), None
    if not _on_this_machine(request.executor):
        return None, "workers on other machines share no folder for the tiles of a Cholesky factor"
    free = TileStore(tempfile.gettempdir()).free_bytes() or 0
    if needed <= DISK_SHARE * free:
        return None, None
    return None, (
        f"a Cholesky factor of {n:,} samples takes {needed / 1e9:.3g} GB; there are {room / 1e9:.3g} GB of memory for "
        f"it, and {free / 1e9:.3g} GB on the disk of temporary files"
    )


def _in_this_process(executor: BlockExecutor) -> bool:
    return executor.shares_memory or isinstance(executor, LocalExecutor)


def _on_this_machine(executor: BlockExecutor) -> bool:
    local = ("tcp://127.", "tls://127.")
    return _in_this_process(executor) or all(address.startswith(local) for address in executor.workers)


@dataclass(frozen=True)
class Measured:
    """Prices of this machine, now: a core's own seconds, and how many of a clock go by in each of them."""

    prices: Prices
    slowdown: float  # 1 on a machine that does nothing else

    @classmethod
    def of(cls, context: BlockContext) -> Measured:
        """Time entries and products' operations; other work costs in proportion."""
        inputs = context.source.inputs(0, min(TIMED_ROWS, context.n))
        single, double = context.evaluator("single"), TileEvaluator(context.kernel, "double", expanded=False)
        nominal = Prices.nominal(context.kernel.n_features)
        began, own = time.perf_counter(), time.thread_time()
        seconds = {
            "entries": _tile_seconds(single, inputs),
            "double_entries": _tile_seconds(double, inputs),
            "operations": _product_seconds(np.float32),
            "double_operations": _product_seconds(np.float64),
        }
        slowdown = (time.perf_counter() - began) / max(time.thread_time() - own, 1e-9)
        slower = seconds["double_operations"] / nominal.double_operations
        others = {each.name: slower * getattr(nominal, each.name) for each in fields(Work) if each.name not in seconds}
        return cls(Prices(**seconds, **others), max(1.0, slowdown))


def _tile_seconds(evaluator: TileEvaluator, inputs: FloatArray) -> float:
    features = evaluator.prepare(inputs)
    return _best(lambda: evaluator.tile(features, features)) / len(inputs) ** 2


def _product_seconds(dtype: type[np.floating[Any]]) -> float:
    rows = TIMED_ROWS
    left = np.full((rows, rows), 0.5, dtype)
    out = np.zeros_like(left)
    sizes = rows, rows, rows
    seconds = _best(lambda: blas("gemm", b"T", b"N", *sizes, -1.0, left, rows, left, rows, 1.0, out, rows))
    return seconds / (2.0 * rows**3)


def _best(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(TIMES):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return max(min(taken), 1e-9)


@dataclass
class _Choice:
    """One decision, and what it was founded on."""

    request: Request
    place: Tiles | str | None
    note: Note

    def __post_init__(self) -> None:
        request = self.request
        self._n, self._t = request.model.n_samples, request.n_test
        self._sizes = Sizes(self._n, request.kernel.n_features)
        self._threads = max(1, request.executor.parallelism)
        self._prices, self._slowdown = Prices.nominal(request.kernel.n_features), 1.0
        self._whole = self._whole_seconds()

    def run(self) -> BatchedRun:
        """Decide."""
        request, settings = self.request, self.request.settings
        if self._whole * self._threads <= NO_QUESTION:
            return request.whole(self.place)
        measured = Measured.of(request.context)
        self._prices, self._slowdown = measured.prices, measured.slowdown
        self._whole = self._whole_seconds()
        memory_bytes = settings.memory_bytes or default_memory_bytes(self._n)
        rank = chosen_rank(self._n, self._t, None, memory_bytes)
        goal = value_error_goal(settings.gap)
        landmarks = choose_landmarks(
            request.model,
            request.kernel,
            gap=goal,
            largest_rank=min(rank, self._worthwhile_rank(rank)),
            latent=settings.latent,
            seed=settings.seed,
        )
        landmarks, smooth = judged(landmarks, request.model, request.kernel, gap=goal, latent=settings.latent)
        if smooth:
            return self._tried(landmarks)
        return self._counted(rank, memory_bytes)

    def _tried(self, landmarks: Landmarks) -> BatchedRun:
        """Where a partial factor is expected to suffice: build it, and see on a few samples if it does."""
        request = self.request
        run = request.iterative(landmarks)
        inputs = _spread_rows(request.test)
        alone = self._seconds(self._batches(landmarks.rank, 0, True, 0.0, 0.0))
        if len(inputs):
            trial = run.tried(standardised_inputs(inputs, [f"x{index}" for index in range(inputs.shape[1])]))
            missed = float(np.mean(trial > request.settings.gap))
            # Those that miss go on together with the others of their batch, each batch for itself.
            rescue = self._seconds(self._batches(landmarks.rank, 0, True, 0.0, RESCUED * missed)) - alone
            if rescue > self._whole:
                self.note(
                    f"a partial factor of rank {landmarks.rank:,} suffices for {1.0 - missed:.0%} of {len(inputs)} "
                    f"samples tried; {self._told_whole()}"
                )
                return request.whole(self.place)
            alone += rescue
        self._tell(alone, f"variances of {self._t:,} samples take about {self._shown(alone)} by a partial factor")
        return run

    def _counted(self, rank: int, memory_bytes: int) -> BatchedRun:
        """Where no partial factor suffices: the whole one, or conjugate gradients, by products counted in small."""
        request, settings = self.request, self.request.settings
        without = Memory(
            memory_bytes,
            self._n,
            rank,
            0,
            "single",
            held=False,
            width=feature_width(request.kernel),
            batches=1 if request.executor.shares_memory else request.executor.threads_per_process,
        )
        halo = chosen_halo(without, self._t, request.executor.threads_per_process)
        least = self._seconds(self._batches(rank, halo, False, LEAST_SINGLE if halo else 0.0, LEAST_DOUBLE))
        if least >= self._whole:
            self._tell(self._whole, self._told_whole())
            return request.whole(self.place)
        counted = self._in_small(settings, rank, halo)
        seconds = self._seconds(self._batches(rank, halo, False, counted.single, counted.double))
        if seconds >= self._whole or counted.met < 1.0 - settings.gap:
            self._tell(self._whole, f"{self._told_whole()}; conjugate gradients, {self._shown(seconds)}")
            return request.whole(self.place)
        if seconds * self._slowdown >= WORTH_TELLING:
            words = f"variances of {self._t:,} samples to {settings.gap:.2g} take about {self._shown(seconds)}"
            if settings.gap < WIDER:
                wider = self._in_small(replace(settings, gap=WIDER), rank, halo)
                less = self._seconds(self._batches(rank, halo, False, wider.single, wider.double))
                words += f", to {WIDER:.2g} about {self._shown(min(less, seconds))}"
            self.note(f"{words}; a Cholesky factor of all samples, {self._shown(self._whole)}")
        return request.iterative()

    def _in_small(self, settings: VarianceSettings, rank: int, halo: int) -> Counted:
        request = self.request
        rng = np.random.default_rng([settings.seed, 7])
        some = np.sort(rng.permutation(self._n)[: min(self._n, SMALL)]).astype(np.intp)
        inputs, tests = np.asarray(request.model.input_rows(some)), _spread_rows(request.test)
        if not len(tests):
            tests = inputs[-SMALL_TESTS:] + 0.0
            inputs = inputs[: -len(tests)] if len(inputs) > 2 * len(tests) else inputs
        s2 = request.model.noise_variance
        return count_products(inputs, tests, self._n, request.kernel, s2, settings, rank=rank, halo=halo)

    def _worthwhile_rank(self, most: int) -> int:
        """The largest rank at which a partial factor that suffices takes less than the whole one."""
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if self._seconds(self._batches(middle, 0, True, 0.0, 0.0)) <= self._whole:
                low = middle
            else:
                high = middle - 1
        return low

    def _batches(self, rank: int, halo: int, double: bool, single: float, products: float) -> Batches:
        together = min(512, self._t)
        count = math.ceil(self._t / max(1, together))
        return Batches(self._t, count, max(1, together), rank, halo, local_samples(self._n), double, single, products)

    def _seconds(self, batches: Batches) -> float:
        return self._of(variance_phases(self._sizes, batches))

    def _whole_seconds(self) -> float:
        n, t = float(self._n), float(self._t)
        operations = n**3 / (3.0 * FACTOR_EFFICIENCY) + n * n * t
        # A single sample's solve waits for memory, at about eight operations' time for each number.
        operations += 4.0 * n * n / 2.0 if t < self._threads * 8 else 0.0
        work = Work(double_entries=n * n / 2.0 + n * t, double_operations=operations)
        seconds = self._of([Phase("whole", 1.0, work)])
        if not isinstance(self.place, MemoryTiles):
            layout = whole_layout(self._n)
            passes = 1.0 + layout.n_panels / 4.0 + math.ceil(t / 128.0)
            seconds += layout.disk_bytes * passes / DISK_BYTES / self._threads
        return seconds

    def _of(self, phases: list[Phase]) -> float:
        total = 0.0
        for phase in phases:
            shared = sum(self._prices.seconds(work) for work in (phase.shared, phase.threaded, phase.each))
            total += phase.times * (shared / self._threads + self._prices.seconds(phase.alone))
        return total

    def _shown(self, seconds: float) -> str:
        seconds *= self._slowdown
        return f"{seconds:.2g} s" if seconds < 100.0 else f"{seconds / 60.0:.2g} min"

    def _told_whole(self) -> str:
        return (
            f"variances of {self._t:,} samples take about {self._shown(self._whole)} by a Cholesky factor of all "
            "samples, however narrow the intervals"
        )

    def _tell(self, seconds: float, words: str) -> None:
        if seconds * self._slowdown >= WORTH_TELLING:
            self.note(words)


def _spread_rows(test: TestRows) -> FloatArray:
    """A few of the test samples, in runs of neighbours spread over all of them."""
    n = test.n_samples
    if n <= TRIED:
        return np.asarray(test.inputs(0, n))
    length = TRIED // RUNS
    starts = np.linspace(0, n - length, RUNS).astype(int)
    return np.concatenate([test.inputs(int(start), int(start) + length) for start in starts])
