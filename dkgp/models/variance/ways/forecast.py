"""Forecasts of the ways to variances: work counted, and priced by what this machine does it in now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dkgp.kernels import TileEvaluator
from dkgp.models.variance.search import local_samples
from dkgp.models.variance.whole_matrix.factor import whole_layout
from dkgp.models.variance.whole_matrix.run import whole_batch
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.conjugate.phases import Batches, variance_phases
from dkgp.solvers.prices import Phase, Prices, Sizes, Work

# Of the float64 matrix product's speed, what the factor comes to in tiles.
FACTOR_EFFICIENCY = 0.85
# Bytes of tiles that a core writes, and reads and checks again, in a second.
DISK_BYTES = 5e8
# Samples of a batch; of one so small, for each thread, a solve waits for memory.
TOGETHER, WAITING = 512, 8
TIMED_ROWS, TIMES = 512, 3


@dataclass(frozen=True)
class Measured:
    """Prices of this machine, now: a core's own seconds, and how many of a clock go by in each of them."""

    prices: Prices
    slowdown: float  # 1 on a machine that does nothing else

    @classmethod
    def nominal(cls, d: int) -> Measured:
        """Of a machine in the books."""
        return cls(Prices.nominal(d), 1.0)

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


def whole_phases(n: int, tests: int, threads: int = 1) -> list[Phase]:
    """Work of a Cholesky factor of all samples, and of a solve with it for each test sample."""
    size, t = float(n), float(tests)
    factor = Work(double_entries=size * size / 2.0, double_operations=size**3 / (3.0 * FACTOR_EFFICIENCY))
    # A number of the factor takes as long to read as about four operations with it.
    waiting = 2.0 * size * size if tests < threads * WAITING else 0.0
    solves = Work(double_entries=size * t, double_operations=size * size * t + waiting)
    panels = whole_layout(n).n_panels
    return [
        Phase("factor", 1.0, factor, rounds=panels, pieces=panels),
        Phase("solves", 1.0, solves, rounds=1, pieces=math.ceil(t / whole_batch(n, tests))),
    ]


@dataclass(frozen=True)
class Forecast:
    """Seconds of each way, of this process's clock if nobody else is at work.

    Attributes
    ----------
    n, tests, d : int
        Training samples, test samples, features.
    threads : int
        That work at once.
    in_memory : bool
        Whether tiles are.
    measured : Measured
    """

    n: int
    tests: int
    d: int
    threads: int
    in_memory: bool
    measured: Measured

    def whole(self) -> float:
        """Of a Cholesky factor of all samples, and a solve for each test sample."""
        t, seconds = float(self.tests), self._of(whole_phases(self.n, self.tests, self.threads))
        if not self.in_memory:
            layout = whole_layout(self.n)
            passes = 1.0 + layout.n_panels / 4.0 + math.ceil(t / 128.0)
            seconds += layout.disk_bytes * passes / DISK_BYTES / self.threads
        return seconds

    def alone(self, rank: int) -> float:
        """Of a partial factor that suffices by itself."""
        return self.iterative(rank, 0, 0.0, 0.0, double=True)

    def iterative(self, rank: int, halo: int, single: float, products: float, *, double: bool = False) -> float:
        """Of a partial factor, and so many products for each sample in float32 and in float64."""
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
        """Return the largest rank at which a partial factor that suffices takes less than another way's seconds.

        These are the whole factor's by default.
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
        """Products of conjugate gradients, in either precision, that take so long; two at least."""
        one = self.iterative(rank, halo, 1.0 if halo else 0.0, 1.0)
        two = self.iterative(rank, halo, 2.0 if halo else 0.0, 1.0 if halo else 2.0)
        return max(2.0, math.ceil(2.0 + (seconds - one) / max(two - one, 1e-9)))

    def shown(self, seconds: float) -> str:
        """Seconds as they will go by on this machine as it is."""
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
