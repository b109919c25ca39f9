"""Choice of the method for a prediction's variances, by each method's predicted time and trials on a few samples.

There are four methods: the training samples near each test sample (many of both, in one to three features), a partial
factor that suffices by itself (smooth problems), a Cholesky factor of the whole matrix, and conjugate gradients.
The method of neighbours is tried on a few tiles of test samples. The work of the whole factor is known in advance. If
the partial factor is expected to suffice, it is built and tried on a few of the test samples. The products of conjugate
gradients are counted on a subset of the training samples, unless their least cost exceeds that of the whole factor.

Decisions depend on measured seconds, so they may differ from run to run. A prediction's plan records its method, and an
unfinished prediction is completed by that.

A forecast counts the work of a method, and prices it by this machine's current speed. `count_products` counts products
with a random subset of m of the n samples and a few test samples. With halos of s m / n, a rank of R sqrt(m / n) and
noise s2 (n / m)^1/4 a batch takes about as many products to the same gap. Measured (docs/experiments.md) on kin40k,
also with a tenth of its noise and latent, n from 6,000 to 30,000: all counts of 2 to 9 products in float32 were right
within two, and within a factor of two.
"""

from __future__ import annotations

import math
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import psutil

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.data import memory_model, standardised_inputs
from dkgp.data.stores.factor_store import open_factor
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import CheckpointError, InputError, NumericalError, StoreError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.variance.batch import BatchOptions, local_samples, relative_gap, solve_batch, value_error_goal
from dkgp.models.variance.greedy import BasisRun
from dkgp.models.variance.iterative import (
    IterativeRun,
    Working,
    chosen_halo,
    chosen_rank,
    default_memory_bytes,
    precision_of,
)
from dkgp.models.variance.landmarks import Landmarks, choose_landmarks, enough_trace, judged
from dkgp.models.variance.neighbours.run import NeighbourRun, serves
from dkgp.models.variance.nystrom import GROUP, FactorSource, leaves_of
from dkgp.models.variance.row_scales import RowScales
from dkgp.models.variance.run import UNPROVEN, Request, VarianceRun
from dkgp.models.variance.settings import TestRows, VarianceSettings, require_as_begun
from dkgp.models.variance.whole_matrix import (
    WholeRoundings,
    WholeRun,
    are_held,
    forget_tiles,
    held_tiles,
    kept_tiles,
    load_tiles,
    whole_batch,
    whole_layout,
)
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.registry import byte_text
from dkgp.solvers.cholesky.tile_factor import MemoryTiles, Tiles
from dkgp.solvers.conjugate.preconditioner import Batches, variance_phases
from dkgp.solvers.prices import Phase, Prices, Sizes, Work

# Largest shares of the free or requested memory, and of the free disk space, for the whole factor.
MEMORY_SHARE, DISK_SHARE = 0.5, 0.8
# Share of the memory under a limit that variances may work in, beside the model and the batches.
FREE_SHARE = 0.7
# Core-seconds of a whole factor on a nominal machine below which no other method is tried: a trial would take as long.
NO_QUESTION = 1.0
# Test samples of a trial, and the number of runs of rows they come from; training and test samples of a small problem.
TRIED, RUNS, SMALL, SMALL_TESTS = 64, 8, 2000, 64
# Least float32 and float64 products of a sample where a partial factor does not suffice; float64 products of a sample
# that misses the gap although the factor was expected to suffice.
LEAST_SINGLE, LEAST_DOUBLE, RESCUED = 2.0, 1.0, 8.0
# Largest share of the whole factor's time for drawing landmarks that may not suffice.
DRAWING_SHARE = 0.1
# Largest ratio of actual to predicted time of conjugate gradients; the time of the whole factor is known.
UNCERTAIN = 1.3
# Least ratio of a prediction's test samples to a trial's for a trial. Largest predicted time of conjugate gradients
# after a trial, over the whole factor's: the trial's fewer samples share fewer directions, and take more products.
LEAST_SHARED, WORSE = 4, 1.3
# Share of a trial's samples that must meet the gap.
LEAST_MET = 0.95
# Least number of training samples for neighbours; their least core-seconds per test sample; least rank of a partial
# factor that is compared with them; core-seconds of a trial, and their largest share of the whole factor's.
LEAST_NEAR, NEAR_SECONDS, LEAST_RANK, NEAR_PATIENCE, TRIAL_SHARE = 4_000, 2e-4, 100, 15.0, 0.1
# Wider gap whose time a message gives for comparison, and least seconds for a message.
WIDER, WORTH_TELLING = 0.1, 3.0

Note = Callable[[str], None]


def chosen_run(request: Request, note: Note | None = None) -> VarianceRun:
    """Return the run by the requested method, by that of the stored plan, or by the fastest one predicted.

    Raises
    ------
    InputError
        The whole factor is requested, but there is no room for it.
    """
    settings, stored, has_bases = request.settings, request.stored, request.settings.basis is not None
    if stored is not None:
        before, now = ("a `basis` for each sample" if each else "no `basis`" for each in ("basis" in stored, has_bases))
        require_as_begun(before, now, "repeat it as it was")
    if has_bases:
        return BasisRun(request)
    way = settings.way
    if stored is not None:
        taken = str(stored.get("way", "iterative"))
        if way != "auto":
            require_as_begun(f"the `way` {taken}", f"the `way` {way}")
        way = taken
    elif way == "auto" and settings.is_iterative:
        way = "iterative"
    elif way == "auto" and (are_held(request.context) or _kept(request) is not None):
        way = "cholesky"
    elif way == "auto" and _keeps_partial(request):
        way = "iterative"
    if way == "iterative":
        return IterativeRun(request)
    if way == "vif":
        raise InputError("the `way` vif gives approximate variances of a regression; take another `way` here")
    if way == "neighbours":
        request.executor.require_one_arithmetic()
        return NeighbourRun(request)
    if way == "auto":
        near = _near_run(request, note)
        if near is not None:
            return near
    place, lacks = _place(request)
    if way == "cholesky":
        if lacks is not None:
            raise InputError(f"{lacks}; take the iterative `way`")
        return _by_whole(request, place, note)
    if lacks is not None:
        return IterativeRun(request)
    request.executor.require_one_arithmetic()
    run = _Choice(request, place, note or (lambda words: None)).run()
    if isinstance(run, WholeRun) and not _is_sure(request):
        try:
            run.prepare()
        except NumericalError:
            if isinstance(place, MemoryTiles):
                forget_tiles(request.context)
            return IterativeRun(request)
    return run


def _may_be_near(request: Request) -> bool:
    """Return True if neighbours may be the fastest method; a trial on test samples, known later, then decides."""
    if request.settings.way != "auto" or request.settings.is_iterative or request.model.n_samples < LEAST_NEAR:
        return False
    if request.settings.basis is not None or not serves(request.context):
        return False
    forecast = _nominal(request)
    return request.n_test * NEAR_SECONDS / forecast.threads < forecast.whole()


def _nominal(request: Request) -> Forecast:
    n, d = request.model.n_samples, request.kernel.n_features
    return Forecast(n, request.n_test, d, max(1, request.executor.parallelism), True, Measured.nominal(d))


def _near_run(request: Request, note: Note | None) -> NeighbourRun | None:
    """Return the run by neighbours if a trial meets the gap and no other method can be faster; else None."""
    if not request.rows.n_samples or not _may_be_near(request):
        return None
    t, forecast = request.n_test, _nominal(request)
    request.executor.require_one_arithmetic()
    try:
        run = NeighbourRun(request, forecast.patience())
    except InputError:  # too many samples are near
        return None
    seconds = run.trial.seconds * t / forecast.threads
    if run.trial.met < LEAST_MET or UNCERTAIN * seconds >= forecast.whole():
        return None
    if _partial_is_quicker(request, forecast, seconds):
        return None
    if note is not None and seconds >= WORTH_TELLING:
        note(f"variances of {t:,} samples take about {forecast.shown(seconds)} by the samples near each")
    return run


def _partial_is_quicker(request: Request, forecast: Forecast, seconds: float) -> bool:
    """Return True if a partial factor is expected to suffice at a rank that takes less than `seconds`."""
    settings, n = request.settings, request.model.n_samples
    most = chosen_rank(n, request.n_test, None, settings.memory_bytes or default_memory_bytes(n))
    rank = forecast.worthwhile_rank(most, seconds)
    if rank < LEAST_RANK:
        return False
    return _drawn(request, rank, DRAWING_SHARE * seconds * forecast.threads)[1]


def _drawn(request: Request, rank: int, seconds: float) -> tuple[Landmarks, bool]:
    """Draw at most `rank` landmarks in `seconds` core-seconds; return them, and whether their factor should suffice."""
    model, kernel, settings = request.model, request.kernel, request.settings
    goal, n, s2 = value_error_goal(settings.gap), model.n_samples, model.noise_variance
    landmarks = choose_landmarks(
        model,
        kernel,
        gap=goal,
        largest_rank=rank,
        latent=settings.latent,
        seed=settings.seed,
        hopeful=_Hope(rank, seconds, lambda d: enough_trace(d, s2, goal, n, GROUP, latent=settings.latent)),
    )
    return judged(landmarks, model, kernel, gap=goal, latent=settings.latent)


@UNPROVEN
def _is_sure(request: Request) -> bool:
    """Return True if the Cholesky factor with this noise provably does not break down."""
    scales = RowScales.of(request.context, request.model.noise_variance)
    layout = whole_layout(request.model.n_samples)
    return WholeRoundings(layout, scales, request.model.noise_variance).least > 0.0


def _kept(request: Request) -> str | None:
    """Return the folder of the whole factor stored with the model, or None."""
    record = request.subject.record
    return None if record is None else kept_tiles(record)


def _by_whole(request: Request, place: Tiles | str | None, note: Note | None) -> WholeRun:
    """Return the run by a whole factor; use the stored factor if it is usable."""
    url = _kept(request)
    if url is None:
        return WholeRun(request, place)
    try:
        if not isinstance(place, MemoryTiles):
            return WholeRun(request, url)
        if place.description() is None:
            load_tiles(url, whole_layout(request.model.n_samples), place)
        return WholeRun(request, place)
    except (StoreError, CheckpointError) as error:
        if isinstance(place, MemoryTiles):
            place.clear()
        if note is not None:
            note(f"the factor kept with the model is of no use: {error}")
        return WholeRun(request, place)


def _keeps_partial(request: Request) -> bool:
    model = request.subject.keeper
    if model is None:
        return False
    try:
        return open_factor(model.url, fingerprint=model.fingerprint) is not None
    except StoreError:
        return False


def _place(request: Request) -> tuple[Tiles | str | None, str | None]:
    """Return the place of a whole factor's tiles, and the reason if there is no room for them."""
    n = request.model.n_samples
    needed, room = whole_layout(n).disk_bytes, _room(request.settings.memory_bytes)
    if _in_this_process(request.executor) and (are_held(request.context) or needed <= room):
        return held_tiles(request.context, request.model.noise_variance), None
    if not request.executor.sees_folder(tempfile.gettempdir()):
        return None, "workers see no folder of this process's for the tiles of a Cholesky factor"
    free = TileStore(tempfile.gettempdir()).free_bytes() or 0
    if needed <= DISK_SHARE * free:
        return None, None
    return None, (
        f"a Cholesky factor of {n:,} samples takes {byte_text(needed)}; there are {byte_text(room)} of memory for "
        f"it, and {byte_text(free)} on the disk of temporary files"
    )


def _room(limit: int | None) -> int:
    return int(MEMORY_SHARE * psutil.virtual_memory().available) if limit is None else limit


def whole_memory_bytes(n: int, tests: int, threads: int, limit: int | None) -> int:
    """Return the bytes of a whole factor and of its batches in this process; 0 if its tiles do not fit there.

    `limit` is the working memory that the settings allow; by default it is a share of the available memory.
    """
    tiles = whole_layout(n).disk_bytes
    return tiles + 16 * threads * n * whole_batch(n, tests) if tiles <= _room(limit) else 0


def variance_memory(n: int, free_bytes: int) -> int:
    """Return the `memory_bytes` of variances within so many free bytes, with room for a whole factor if that fits."""
    most = int(FREE_SHARE * free_bytes)
    return max(1, most if whole_layout(n).disk_bytes <= most else min(most, default_memory_bytes(n)))


def _in_this_process(executor: BlockExecutor) -> bool:
    return executor.shares_memory or isinstance(executor, LocalExecutor)


class _Hope:
    """Extrapolates whether the landmarks will suffice at a worthwhile rank, within a time limit."""

    def __init__(self, worthwhile: int, seconds: float, enough: Callable[[float], float]) -> None:
        self._worthwhile, self._seconds, self._enough = worthwhile, seconds, enough
        self._began, self._seen = time.thread_time(), list[tuple[int, float]]()

    def __call__(self, rank: int, trace: float, dimension: float) -> bool:
        """Extrapolate the trace at its current rate; eigenvalues of a kernel decay no faster later."""
        self._seen.append((rank, trace))
        if time.thread_time() - self._began > self._seconds:
            return False
        before = next((known for known in self._seen if 2 * known[0] >= rank), self._seen[0])
        goal = self._enough(dimension)
        if before[0] == rank or trace <= goal or trace <= 0.0:
            return True
        rate = math.log(before[1] / trace) / (rank - before[0])
        return rate > 0.0 and rank + math.log(trace / goal) / rate <= self._worthwhile


class _Choice:
    """Chooses between a partial factor, a whole factor and conjugate gradients, by a forecast."""

    def __init__(self, request: Request, place: Tiles | str | None, note: Note) -> None:
        self._request, self._place, self._note = request, place, note
        self._n, self._t, d = request.model.n_samples, request.n_test, request.kernel.n_features
        threads, in_memory = max(1, request.executor.parallelism), isinstance(place, MemoryTiles)
        self._forecast = Forecast(self._n, self._t, d, threads, in_memory, Measured.nominal(d))

    def run(self) -> VarianceRun:
        """Return the run by the chosen method."""
        request, settings, forecast = self._request, self._request.settings, self._forecast
        if forecast.whole() * forecast.threads <= NO_QUESTION:
            return WholeRun(request, self._place)
        forecast = self._forecast = replace(forecast, measured=Measured.of(request.context))
        memory_bytes = settings.memory_bytes or default_memory_bytes(self._n)
        rank = chosen_rank(self._n, self._t, None, memory_bytes)
        seconds = DRAWING_SHARE * forecast.whole() * forecast.threads
        landmarks, smooth = _drawn(request, forecast.worthwhile_rank(rank), seconds)
        return self._tried(landmarks) if smooth else self._counted(rank, memory_bytes)

    def _tried(self, landmarks: Landmarks) -> VarianceRun:
        """Build a partial factor that is expected to suffice, and test it on a few samples."""
        request, forecast = self._request, self._forecast
        run, inputs = IterativeRun(request, landmarks=landmarks), _spread_rows(request.test)
        seconds = forecast.alone(landmarks.rank)
        if len(inputs):
            gaps, _ = run.tried(inputs)
            missed = float(np.mean(gaps > request.settings.gap))
            # The samples of a batch that miss the gap continue together.
            rescue = forecast.iterative(landmarks.rank, 0, 0.0, RESCUED * missed, double=True) - seconds
            if missed and rescue > forecast.whole():
                return self._by_whole(
                    f"a partial factor of rank {landmarks.rank:,} suffices for {1.0 - missed:.0%} of {len(inputs)} "
                    "samples tried"
                )
            seconds += rescue if missed else 0.0
        self._tell(
            seconds, f"variances of {self._t:,} samples take about {forecast.shown(seconds)} by a partial factor"
        )
        return run

    def _counted(self, rank: int, memory_bytes: int) -> VarianceRun:
        """Choose between the whole factor and conjugate gradients, whose products are counted on a small problem."""
        request, settings, forecast = self._request, self._request.settings, self._forecast
        memory = Working(memory_bytes, self._n, rank, 0, "single", held=False, width=feature_width(request.kernel))
        halo, whole = chosen_halo(memory, self._t), forecast.whole()
        least = forecast.iterative(rank, halo, LEAST_SINGLE if halo else 0.0, LEAST_DOUBLE)
        if UNCERTAIN * least >= whole:
            return self._by_whole()
        counted = self._in_small(settings, rank, halo)
        seconds = forecast.iterative(rank, halo, counted.single, counted.double)
        if UNCERTAIN * seconds >= whole or counted.met < LEAST_MET:
            return self._by_whole(f"conjugate gradients are expected to take {forecast.shown(seconds)}")
        if seconds * forecast.measured.slowdown >= WORTH_TELLING:
            words = f"variances of {self._t:,} samples to {settings.gap:.2g} take about {forecast.shown(seconds)}"
            if settings.gap < WIDER:
                wider = self._in_small(replace(settings, gap=WIDER), rank, halo)
                less = min(seconds, forecast.iterative(rank, halo, wider.single, wider.double))
                words += f", to {WIDER:.2g} about {forecast.shown(less)}"
            self._note(f"{words}; a Cholesky factor of all samples, {forecast.shown(whole)}")
        return self._watched(IterativeRun(request), counted)

    def _watched(self, run: IterativeRun, counted: Counted) -> VarianceRun:
        """Solve a few of many test samples first; keep conjugate gradients if they take about the counted products."""
        request, forecast = self._request, self._forecast
        if self._t < LEAST_SHARED * TRIED or not request.rows.n_samples:
            return run
        rank, halo, inputs = int(run.plan["rank"]), int(run.plan["halo"]), _spread_rows(request.test)
        limit, began = WORSE * forecast.whole(), time.perf_counter()
        most = min(forecast.affordable(rank, halo, limit), request.settings.max_passes)
        gaps, tally = run.tried(inputs, most)
        single, double = tally.single_columns / len(inputs), tally.double_columns / len(inputs)
        missed = float(np.mean(gaps > request.settings.gap))
        if forecast.iterative(rank, halo, single, double) <= limit and missed <= 1.0 - LEAST_MET:
            return run
        return self._by_whole(
            f"a trial of {len(inputs)} samples took {single:.1f} products in float32 and {double:.1f} in float64 for "
            f"each, not {counted.single:.1f} and {counted.double:.1f}, and {missed:.0%} missed the gap, in "
            f"{time.perf_counter() - began:.1f} s"
        )

    def _in_small(self, settings: VarianceSettings, rank: int, halo: int) -> Counted:
        request = self._request
        rng = np.random.default_rng([settings.seed, 7])
        some = np.sort(rng.permutation(self._n)[: min(self._n, SMALL)]).astype(np.intp)
        inputs, tests = np.asarray(request.model.input_rows(some)), _spread_rows(request.test)
        if not len(tests):  # test samples are not known yet
            tests = inputs[-SMALL_TESTS:] + 0.0
            inputs = inputs[: -len(tests)] if len(inputs) > 2 * len(tests) else inputs
        s2 = request.model.noise_variance
        return count_products(inputs, tests, self._n, request.kernel, s2, settings, rank=rank, halo=halo)

    def _by_whole(self, why: str = "") -> WholeRun:
        """Return the run by the whole factor; report a failed alternative, or the seconds if they matter."""
        seconds = self._forecast.whole()
        words = (
            f"variances of {self._t:,} samples take about {self._forecast.shown(seconds)} by a Cholesky factor of all "
            "samples, however narrow the intervals"
        )
        if why:
            self._note(f"{why}; {words}")
        else:
            self._tell(seconds, words)
        return WholeRun(self._request, self._place)

    def _tell(self, seconds: float, words: str) -> None:
        if seconds * self._forecast.measured.slowdown >= WORTH_TELLING:
            self._note(words)


def _spread_rows(test: TestRows) -> FloatArray:
    """Return a few of the test samples, in runs of consecutive rows spread over all rows."""
    n = test.n_samples
    if n <= TRIED:
        return np.asarray(test.inputs(0, n))
    length = TRIED // RUNS
    starts = np.linspace(0, n - length, RUNS).astype(int)
    return np.concatenate([test.inputs(int(start), int(start) + length) for start in starts])


# Speed of the tiled factorisation over that of the float64 matrix product.
FACTOR_EFFICIENCY = 0.85
# Bytes of tiles per second that a core writes, reads and checks.
DISK_BYTES = 5e8
# Samples of a batch; with fewer than `WAITING` samples per thread, a solve is limited by memory bandwidth.
TOGETHER, WAITING = 512, 8
TIMED_ROWS, TIMES = 512, 3


@dataclass(frozen=True)
class Measured:
    """Current prices of this machine in core-seconds, and the wall-clock seconds per core-second."""

    prices: Prices
    slowdown: float  # 1 on an otherwise idle machine

    @classmethod
    def nominal(cls, d: int) -> Measured:
        """Return the prices of a nominal machine."""
        return cls(Prices.nominal(d), 1.0)

    @classmethod
    def of(cls, context: BlockContext) -> Measured:
        """Measure the time of kernel entries and of products; scale the other nominal prices in proportion."""
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


def whole_phases(n: int, tests: int, threads: int = 1) -> list[Phase]:
    """Return the work of a Cholesky factor of all samples, and of a solve with it for each test sample."""
    size, t = float(n), float(tests)
    factor = Work(double_entries=size * size / 2.0, double_operations=size**3 / (3.0 * FACTOR_EFFICIENCY))
    # Reading a number of the factor takes as long as about four operations.
    waiting = 2.0 * size * size if tests < threads * WAITING else 0.0
    solves = Work(double_entries=size * t, double_operations=size * size * t + waiting)
    panels = whole_layout(n).n_panels
    return [
        Phase("factor", 1.0, factor, rounds=panels, pieces=panels),
        Phase("solves", 1.0, solves, rounds=1, pieces=math.ceil(t / whole_batch(n, tests))),
    ]


@dataclass(frozen=True)
class Forecast:
    """Predicted seconds of each method on this machine without other load.

    Attributes
    ----------
    n, tests, d : int
        Training samples, test samples, features.
    threads : int
        Threads that work in parallel.
    in_memory : bool
        Whether the tiles of the whole factor are in memory.
    measured : Measured
    """

    n: int
    tests: int
    d: int
    threads: int
    in_memory: bool
    measured: Measured

    def whole(self) -> float:
        """Return the seconds of a Cholesky factor of all samples and a solve for each test sample."""
        t, seconds = float(self.tests), self._of(whole_phases(self.n, self.tests, self.threads))
        if not self.in_memory:
            layout = whole_layout(self.n)
            passes = 1.0 + layout.n_panels / 4.0 + math.ceil(t / 128.0)
            seconds += layout.disk_bytes * passes / DISK_BYTES / self.threads
        return seconds

    def patience(self) -> float:
        """Return the core-seconds that a trial of neighbours may take."""
        return min(NEAR_PATIENCE, TRIAL_SHARE * self.whole() * self.threads)

    def alone(self, rank: int) -> float:
        """Return the seconds of a partial factor that suffices by itself."""
        return self.iterative(rank, 0, 0.0, 0.0, double=True)

    def iterative(self, rank: int, halo: int, single: float, products: float, *, double: bool = False) -> float:
        """Return the seconds of a partial factor with `single` float32 and `products` float64 products per sample."""
        together = max(1, min(TOGETHER, self.tests))
        batches = Batches(
            self.tests,
            math.ceil(self.tests / together),
            together,
            rank,
            halo,
            local_samples(self.n),
            double,
            single,
            products,
        )
        return self._of(variance_phases(Sizes(self.n, self.d), batches))

    def worthwhile_rank(self, most: int, other: float | None = None) -> int:
        """Return the largest rank at which a sufficient partial factor takes at most `other` seconds.

        `other` is the time of the whole factor by default.
        """
        low, high, limit = 1, most, self.whole() if other is None else other
        while low < high:
            middle = (low + high + 1) // 2
            if self.alone(middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def affordable(self, rank: int, halo: int, seconds: float) -> float:
        """Return how many products of conjugate gradients, in either precision, fit in `seconds`; at least two."""
        one = self.iterative(rank, halo, 1.0 if halo else 0.0, 1.0)
        two = self.iterative(rank, halo, 2.0 if halo else 0.0, 1.0 if halo else 2.0)
        return max(2.0, math.ceil(2.0 + (seconds - one) / max(two - one, 1e-9)))

    def shown(self, seconds: float) -> str:
        """Format the wall-clock time of these core-seconds at the machine's current load."""
        seconds *= self.measured.slowdown
        return f"{seconds:.2g} s" if seconds < 100.0 else f"{seconds / 60.0:.2g} min"

    def _of(self, phases: list[Phase]) -> float:
        prices, total = self.measured.prices, 0.0
        for phase in phases:
            shared = sum(prices.seconds(work) for work in (phase.shared, phase.threaded, phase.each))
            total += phase.times * (shared / self.threads + prices.seconds(phase.alone))
        return total


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


# Exponents of m / n for the rank and the noise of the small problem.
RANK_POWER, NOISE_POWER = 0.5, -0.25


@dataclass(frozen=True)
class Counted:
    """Products per sample in float32 and float64, and the share of samples that met the gap."""

    single: float
    double: float
    met: float


def count_products(
    inputs: FloatArray,
    tests: FloatArray,
    n: int,
    kernel: Kernel,
    noise_variance: float,
    settings: VarianceSettings,
    *,
    rank: int,
    halo: int,
) -> Counted:
    """Count the products of a batch on a small problem.

    Parameters
    ----------
    inputs : (m, d) float64
        A random subset of the n samples, standardised.
    tests : (t, d) float64
        Test samples.
    rank, halo : int
        Rank and halo of the factors of all n samples.
    """
    m = len(inputs)
    few = standardised_inputs(inputs, [f"x{index}" for index in range(inputs.shape[1])])
    rank, noise_variance = max(1, round(rank * (m / n) ** RANK_POWER)), noise_variance * (m / n) ** NOISE_POWER
    model = memory_model(few, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=np.zeros((m, 1)))
    landmarks = choose_landmarks(
        model, kernel, gap=settings.gap, largest_rank=rank, latent=settings.latent, fixed=True, seed=settings.seed
    )
    traces = landmarks.residual_trace, landmarks.kernel_trace
    context, executor = BlockContext(f"small-{uuid.uuid4().hex[:12]}", few, kernel, m), LocalExecutor(1)
    leaves = leaves_of(context, noise_variance, executor, max(1, round(halo * m / n))) if halo else None
    source = FactorSource(
        context,
        noise_variance,
        model.input_rows(landmarks.indices),
        precision_of(False, *traces, noise_variance),
        leaves is None,
        None,
        leaves,
    )
    try:
        bounds = solve_batch(
            source.factor(),
            tests,
            BatchOptions(settings.gap, settings.max_passes, settings.latent, factor_first=False),
            source.preconditioner(),
        )
    finally:
        worker_cache().discard_run(context.run_id)
        executor.close()
    met = float(np.mean(relative_gap(bounds.lower, bounds.upper) <= settings.gap))
    return Counted(bounds.tally.single_columns / len(tests), bounds.tally.double_columns / len(tests), met)
