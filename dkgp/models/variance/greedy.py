"""Variances by a basis for each test sample: Smola and Bartlett's error bars, in proven intervals.

The variance of the function at x is V = k(x, x) - q, q = k'Kbar^-1 k with k = k_x. Their greedy choice, with k as the
targets, returns a basis S with weights beta and samples S* with weights alpha. For any S, beta, S* and alpha,

    2 a'k - a'Kbar a <= q <= |k - K_nS beta|^2 / s2 + beta'K_SS beta,    a zero outside S*,

which is theorem 1. S and S* grow, each by the best of 59 samples drawn at random, until the difference of the bounds
over their mean is the requested gap. The reported bounds are evaluated again in float64 with their own roundings: an
entry k(x, x') is at most w w', w = sqrt(k(x, x)), with an error of eps w w' (t + t'), t the errors of rows.

A sample takes about n (59 m + m^2) entries, and other samples cannot reuse them. The shared factor of
`dkgp.models.variance.iterative` is faster for more than a few samples.

References
----------
A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), sections 3 to 5, theorem 1, equation (10).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.base import HereExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import MemoryBudgetError, NumericalError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import EPS, EVALUATION, UNIT, outward
from dkgp.models.sums import certified_means
from dkgp.models.variance.iterative import default_memory_bytes
from dkgp.models.variance.run import Ends, Request, VarianceRun
from dkgp.models.variance.settings import TestRows
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext, InputSource, centre_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.registry import byte_text
from dkgp.solvers.greedy_basis import GreedySettings, choose_greedily

PIECE_ROWS = 512
# Samples per task, regions of a store, and samples that the run's time is estimated from.
BATCH, REGIONS, PROBED = 8, 1000, 2
# Share of k(x, x): the bounds on q are compared with at least this much, even if their mean is smaller.
NOTHING = 1e-9
# Arrays of n numbers that a sample takes besides the columns of its basis.
VECTORS = 12


@dataclass(frozen=True)
class BasisBounds:
    """Bounds on the function's variance at one test sample, standardised."""

    lower: float
    upper: float
    kernels: int  # basis samples
    met: bool  # whether the bounds on q = k(x, x) - V are within the gap, roundings included


class BasisSearch:
    """Chooses bases among the training samples, one test sample at a time, on the calling thread.

    Parameters
    ----------
    noise_variance : float
        s2.
    source : InputSource
        Standardised training inputs.
    memory_bytes : int
        Most bytes of the columns of a basis while it grows.
    """

    def __init__(self, kernel: Kernel, noise_variance: float, source: InputSource, memory_bytes: int = 0) -> None:
        executor = HereExecutor()
        executor.tiles = TileBudget(memory_bytes)
        self._kernel, self._noise_variance, self._source = kernel, noise_variance, source
        self.operator = BlockedKernelOperator(kernel, noise_variance, source, executor)
        # Distances by differences: the expanded form has an error of |x|^2 eps, which the bounds do not include.
        self._evaluator = TileEvaluator(kernel, "double", expanded=False, centre=centre_of(source))

    def close(self) -> None:
        """Discard this process's cached training samples."""
        self.operator.close()

    @cached_property
    def _rows(self) -> tuple[FloatArray, FloatArray]:
        """w of all training samples, with its own rounding, and t."""
        context = self.operator.context
        inputs = (self._source.inputs(*context.bounds(block)) for block in range(context.n_blocks))
        scales = [self._scales(rows) for rows in inputs]
        return np.concatenate([w for w, _ in scales]), np.concatenate([t for _, t in scales])

    def _scales(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        errors = self._evaluator.row_errors(inputs)
        diagonal = np.asarray(self._kernel.diagonal(inputs), dtype=np.float64)
        return np.sqrt(diagonal * (1.0 + 2.0 * EPS * errors)) * (1.0 + EPS), errors

    def products(self, columns: FloatArray, weights: FloatArray) -> FloatArray:
        """Return K(X, columns) weights, for inputs `columns` (m, d) and weights (m, t): (n, t)."""
        context, features = self.operator.context, self._evaluator.prepare(columns)
        images = np.empty((self.operator.n, weights.shape[1]))
        for block in range(context.n_blocks):
            first, last = context.bounds(block)
            rows = context.block_features(block, "double")
            for start in range(0, last - first, PIECE_ROWS):
                stop = min(start + PIECE_ROWS, last - first)
                images[first + start : first + stop] = self._evaluator.tile(rows.slice(start, stop), features) @ weights
        return images

    def __call__(self, x: FloatArray, settings: GreedySettings) -> BasisBounds:
        """Bound the variance at a standardised input x (1, d) by a greedy choice with these settings.

        Raises
        ------
        NumericalError
            The bounds contradict each other: the kernel is not positive definite.
        """
        with single_threaded_blas():
            k = self.products(x, np.ones((1, 1)))
            prior = float(self._kernel.diagonal(x)[0])
            w, t = (float(some[0]) for some in self._scales(x))
            rounded = 2.0 * EPS * t * prior
            S, beta, dual = np.empty(0, dtype=np.intp), np.empty((0, 1)), np.empty(0, dtype=np.intp)
            if k.any():
                basis = choose_greedily(self.operator, k, settings)
                S, beta, dual = basis.indices, basis.weights, basis.dual
            most, least = self._most(k, S, beta, w, t), self._least(k, dual, w, t)
        lower = math.nextafter(prior - rounded - most, -math.inf)
        upper = math.nextafter(prior + rounded - least, math.inf)
        if upper < max(lower, 0.0):
            raise NumericalError(
                f"bounds on a variance contradict each other, by {max(lower, 0.0) - upper:.3g}: the kernel is not "
                "positive definite. A user's function is only checked on a sample of the inputs; use one that is known "
                "to be positive definite"
            )
        mean = max(0.5 * (most + least), NOTHING * prior)
        met = settings.gap is not None and most - least <= settings.gap * mean
        return BasisBounds(max(lower, 0.0), upper, len(S), met)

    def _most(self, k: FloatArray, S: IndexArray, beta: FloatArray, w: float, t: float) -> float:
        """Return an upper bound on q: |k - K_nS beta|^2 / s2 + beta'K_SS beta, roundings included."""
        all_w, all_t = self._rows
        m, residual, quadratic = len(S), k, 0.0
        size, spread, joint = w, w * t, 0.0
        if m:
            inputs = self.operator.inputs(S)
            residual = k - self.products(inputs, beta)
            features = self._evaluator.prepare(inputs)
            magnitude, weighed = float(np.abs(beta[:, 0]) @ all_w[S]), float(np.abs(beta[:, 0]) @ (all_w[S] * all_t[S]))
            quadratic = float(beta[:, 0] @ (self._evaluator.tile(features, features) @ beta[:, 0]))
            joint = 2.0 * EPS * magnitude * weighed + (2 * m + 4) * UNIT * magnitude**2
            size, spread = size + magnitude, spread + weighed
        # Error of entry i: eps w_i (t_i size + spread) from the kernel's entries, and m + 2 roundings of the sum.
        length = float(np.linalg.norm(all_w))
        off = EPS * (size * float(np.linalg.norm(all_w * all_t)) + spread * length) + (m + 2) * UNIT * size * length
        norm = float(np.linalg.norm(residual)) * (1.0 + (len(k) + 4) * UNIT) + EVALUATION * off
        return (norm**2 / self._noise_variance + max(quadratic, 0.0) + EVALUATION * joint) * (1.0 + 8.0 * EPS)

    def _least(self, k: FloatArray, S: IndexArray, w: float, t: float) -> float:
        """Return a lower bound on q: 2 a'k - a'Kbar a, roundings included, for the best a on these samples."""
        if not len(S):
            return 0.0
        all_w, all_t = self._rows
        features, s2 = self._evaluator.prepare(self.operator.inputs(S)), self._noise_variance
        K = self._evaluator.tile(features, features)
        try:
            factor = scipy.linalg.cho_factor(K + s2 * np.eye(len(S)), lower=True, check_finite=False)
        except scipy.linalg.LinAlgError:
            return 0.0
        a = scipy.linalg.cho_solve(factor, k[S, 0], check_finite=False)
        magnitude, weighed = float(np.abs(a) @ all_w[S]), float(np.abs(a) @ (all_w[S] * all_t[S]))
        square = s2 * float(a @ a)
        value = 2.0 * float(a @ k[S, 0]) - float(a @ (K @ a)) - square
        entries = 2.0 * EPS * (w * (t * magnitude + weighed) + magnitude * weighed)
        sums = (2 * len(S) + 8) * UNIT * (2.0 * w * magnitude + magnitude**2 + square)
        return max(0.0, value - EVALUATION * (entries + sums))


@dataclass(frozen=True)
class BasisWay:
    """A worker's inputs, sent with every task."""

    context: BlockContext
    noise_variance: float
    settings: GreedySettings
    memory_bytes: int

    def of_row(self, row: int) -> GreedySettings:
        """Return the settings for a test sample; its random draws do not depend on its batch."""
        return replace(self.settings, seed=self.settings.seed + row)


@needs_one_arithmetic
def basis_task(
    way: BasisWay, certificate: Certificate | None, test: TestRows, batches: list[tuple[int, int]]
) -> list[tuple[FloatArray, FloatArray, list[BasisBounds]]]:
    """Return the mean and its error bound (rows, p), and the bounds of each row; without a certificate p = 0."""
    search = BasisSearch(way.context.kernel, way.noise_variance, way.context.source, way.memory_bytes)
    results = []
    try:
        for start, stop in batches:
            inputs = test.inputs(start, stop)
            bounds = [search(inputs[[row - start]], way.of_row(row)) for row in range(start, stop)]
            mean = error = np.zeros((len(inputs), 0))
            if certificate is not None:
                mean, error = certified_means(way.context, certificate, inputs)
            results.append((mean, error, bounds))
    finally:
        search.close()
    return results


class BasisRun(VarianceRun):
    """Variances by a basis for each sample; the settings' `basis` is its largest size.

    Attributes
    ----------
    plan : dict
        Entries: basis, basis_gap, latent, seed. `gap` is None, since `basis_gap` does not limit intervals' widths.

    Raises
    ------
    MemoryBudgetError
        The columns of the basis do not fit.
    """

    _label, _task = "kbasis", staticmethod(basis_task)

    def __init__(self, request: Request) -> None:
        settings, executor, context = request.settings, request.executor, request.context
        assert settings.basis is not None
        executor.require_one_arithmetic()
        super().__init__(request)
        s2 = request.model.noise_variance
        self._noise = 0.0 if settings.latent else s2
        most = min(settings.basis, context.n)
        memory = (settings.memory_bytes or default_memory_bytes(context.n)) // executor.threads_per_process
        needed = 8 * (VECTORS * context.n + 6 * most * most)
        if needed > memory:
            raise MemoryBudgetError(
                f"a basis of {most:,} samples takes {byte_text(needed)} for each test sample at work; its share of "
                f"the variance memory is {byte_text(memory)}. Lower `basis`, or raise `memory_bytes`"
            )
        greedy = GreedySettings(most, gap=settings.gap, gap_of="risk", seed=settings.seed)
        self._basis_way = BasisWay(context, s2, greedy, memory - needed)
        self._batch = min(settings.batch_size or BATCH, max(1, self._n_test))
        self.plan = {
            "gap": None,
            "basis": int(most),
            "basis_gap": settings.gap,
            "latent": settings.latent,
            "seed": settings.seed,
        }
        self._kernels: list[int] = []

    def _way(self, batches: int) -> BasisWay:
        return self._basis_way

    def prepare(self) -> str:
        """Choose the bases of a few samples, to estimate the time of all samples."""
        n, threads = self._n_test, self._executor.parallelism
        rows = sorted({round(place * (n - 1)) for place in np.linspace(0.0, 1.0, PROBED)})
        began, found = 0.0, list[BasisBounds]()
        for row in rows:
            # Each row restarts the clock, so that compilation and first reads are not timed.
            began = time.perf_counter()
            ((_, _, bounds),) = basis_task(self._basis_way, None, self.request.test, [(row, row + 1)])
            found += bounds
        seconds = time.perf_counter() - began
        kernels = max(some.kernels for some in found)
        return (
            f"each variance takes a basis of its own, up to {kernels:,} of {self.request.context.n:,} samples for the "
            f"first {len(found)} looked at: about {n * seconds / threads:,.1f} s for {n:,} samples on {threads} "
            "threads like this one. Without `basis` test samples share their work, which takes less where they are many"
        )

    def collect(self, results: list[Any]) -> Ends:
        """Join a region's batches and add to the counts."""
        mean, error = (np.concatenate(parts) for parts in list(zip(*results, strict=True))[:2])
        found: list[BasisBounds] = [some for *_, bounds in results for some in bounds]
        self._met += sum(some.met for some in found)
        self._kernels += [some.kernels for some in found]
        lower, upper = (np.asarray([getattr(some, end) for some in found]) for end in ("lower", "upper"))
        if self._noise:
            lower, upper = outward(lower + self._noise, upper + self._noise)
            lower = np.maximum(lower, self._noise)
        return Ends(mean, error, *self.request.subject.interval(lower, upper))

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the samples that this run computed."""
        count = len(self._kernels)
        return {
            **self.plan,
            "met": self._met,
            "unmet": count - self._met,
            "kernels_mean": float(np.mean(self._kernels)) if count else None,
            "kernels_std": float(np.std(self._kernels)) if count else None,
            "kernels_max": max(self._kernels, default=None),
            "seconds_per_sample": seconds / max(1, count),
        }
