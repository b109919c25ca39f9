"""Forecast of a training run's column passes, from the same solve on a few small random subsets.

The subsets are solved with blocks of the same share of the samples, m / n, as the run will have. On a logarithmic
scale passes then follow n along a gentle curve: they rise while new samples are news, and fall once samples lie closer
together than the length scales. From subsets of up to 8,000 samples, the mean of three continuations of that curve
(flat, straight, bent) came within 13 % of the passes that kin40k, California housing and Friedman1 took at n = 16,000
to 100,000, and what they took lay between the outermost two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models import Hyperparameters
from dkgp.models.tuning.tune import draw_subset
from dkgp.operators import ArrayInputs, BlockedKernelOperator, PendingColumns
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers import GreedyBlockCoordinateDescent, MaxSeconds, solve

__all__ = ["PassesEstimate", "Trial", "estimate_passes", "extrapolate", "trial_sizes"]

LARGEST_TRIAL = 8000
LEAST_TRIAL = 100
TRIALS = 4
MOST_TRIAL_SECONDS = 60.0
# Below this a block is chosen by other rules (one variable a step) and a round costs more than its work.
LEAST_BLOCK = 16
# Where a subset's blocks cannot be as small a share as the run's, passes are carried over as a power of n / m: measured
# exponents lie between the outer two.
RATIO_EXPONENTS = (0.1, 0.3, 0.5)
# What even a perfect curve leaves open: another subset, a round more or less; and more, the further it is carried on.
MARGIN = 1.1
MARGIN_PER_DOUBLING = 1.03


@dataclass(frozen=True)
class Trial:
    """One subset that was solved.

    Attributes
    ----------
    n, block_size
        Of the subset.
    passes, double_passes
        Column passes it took, and those of them that were evaluated in float64.
    refreshes
        Full float64 passes.
    seconds
        How long it took.
    """

    n: int
    block_size: int
    passes: float
    double_passes: float
    refreshes: int
    seconds: float


@dataclass(frozen=True)
class PassesEstimate:
    """Column passes that a run is expected to take, and between which numbers.

    Attributes
    ----------
    passes, low, high
        Expected, and the ends of the interval.
    double_passes
        Those of them in float64.
    refreshes
        Full float64 passes.
    exact
        Whether the whole problem was solved to find out.
    trials
        What it was drawn from.
    """

    passes: float
    low: float
    high: float
    double_passes: float
    refreshes: int
    exact: bool
    trials: tuple[Trial, ...]


class _CountingOperator(BlockedKernelOperator):
    """Counts the columns evaluated in float64."""

    double_columns = 0

    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Start Kbar[:, B] @ delta."""
        if precision == "double":
            self.double_columns += len(indices)
        return super().submit_columns(indices, delta, precision)


def trial_sizes(n: int) -> list[int]:
    """Sizes of the subsets for a problem of n samples, smallest first; n itself where that is small enough."""
    if n <= LARGEST_TRIAL:
        return [n]
    largest = min(LARGEST_TRIAL, n // 2)
    return sorted({max(LEAST_TRIAL, largest >> shift) for shift in range(TRIALS)})


def estimate_passes(
    dataset: Dataset,
    found: Hyperparameters,
    options: SolverOptions,
    solver: GreedyBlockCoordinateDescent,
    executor: BlockExecutor,
    reporter: Reporter,
) -> PassesEstimate:
    """Solve subsets and extrapolate.

    Parameters
    ----------
    options : SolverOptions
        Tolerance and limits.
    solver : GreedyBlockCoordinateDescent
        As the run will have it, block size resolved.
    executor : BlockExecutor
        Solves the subsets.

    Raises
    ------
    InputError
        A subset that did not converge within its time.
    """
    n, ratio = dataset.n_samples, dataset.n_samples / int(solver.block_size)
    sizes = trial_sizes(n)
    rows = draw_subset(n, sizes[-1], options.seed)
    order = np.arange(n) if len(rows) == n else np.random.default_rng(options.seed).permutation(len(rows))
    X = dataset.input_rows(rows)[order]
    chunks = [(start, stop, *np.searchsorted(rows, (start, stop))) for start, stop in dataset.row_chunks()]
    y = np.concatenate(
        [dataset.targets(start, stop)[rows[first:last] - start] for start, stop, first, last in chunks if last > first]
    )[order]
    trials = []
    with reporter.work("subsets") as show:
        for number, size in enumerate(sizes):
            show(WorkProgress(f"{size:,} samples", number, len(sizes), "subsets"))
            block = min(size, max(min(LEAST_BLOCK, int(solver.block_size)), round(size / ratio)))
            # Blocks that grow, as they do where a solve gets on slowly, take fewer passes than this says.
            fixed = replace(solver, block_size=block, largest_block_size=block)
            trials.append(_solve_subset(X[:size], y[:size], found, options, fixed, executor))
        show(WorkProgress("done", len(sizes), len(sizes), "subsets"))
    last = trials[-1]
    if last.n == n:
        return PassesEstimate(
            last.passes, last.passes, last.passes, last.double_passes, last.refreshes, True, tuple(trials)
        )
    lowest, middle, highest = extrapolate(trials, n, ratio)
    doubled = last.double_passes / last.passes * middle
    return PassesEstimate(
        middle, lowest, highest, doubled, max(trial.refreshes for trial in trials), False, tuple(trials)
    )


def extrapolate(trials: Sequence[Trial], n: int, ratio: float) -> tuple[float, float, float]:
    """Carry the trials' passes on to n samples and n / m = ratio: least, expected, most.

    Parameters
    ----------
    trials : sequence of Trial
        Smallest first; at least one.
    """
    curves = []
    for exponent in RATIO_EXPONENTS:
        sizes = np.log([trial.n for trial in trials])
        passes = np.log(
            [max(trial.passes, 1e-3) * (ratio * trial.block_size / trial.n) ** exponent for trial in trials]
        )
        curves.append(_continuations(sizes, passes, math.log(n)))
    middle = float(np.exp(np.mean(curves[1])))
    lowest = min(min(curve) for curve in curves)
    highest = max(max(curve) for curve in curves)
    margin = MARGIN * MARGIN_PER_DOUBLING ** math.log2(max(1.0, n / trials[-1].n))
    return math.exp(lowest) / margin, middle, math.exp(highest) * margin


def _continuations(sizes: FloatArray, values: FloatArray, at: float) -> list[float]:
    """The curve's last value, its last slope carried on, and a parabola through all of it."""
    flat = float(values[-1])
    if len(sizes) == 1:
        return [flat]
    slope = float((values[-1] - values[-2]) / (sizes[-1] - sizes[-2]))
    straight = flat + slope * (at - float(sizes[-1]))
    if len(sizes) == 2:
        return [flat, straight]
    return [flat, straight, float(np.polyval(np.polyfit(sizes, values, 2), at))]


def _solve_subset(
    X: FloatArray,
    y: FloatArray,
    found: Hyperparameters,
    options: SolverOptions,
    solver: GreedyBlockCoordinateDescent,
    executor: BlockExecutor,
) -> Trial:
    began = time.perf_counter()
    with _CountingOperator(found.kernel, found.noise_variance, ArrayInputs(X), executor) as operator:
        stopping = options.stopping() | MaxSeconds(MOST_TRIAL_SECONDS)
        solution = solve(operator, y, solver=solver, stopping=stopping)
        double_columns = operator.double_columns
    if solution.reason.rule == "max_seconds" and options.max_seconds is None:
        raise InputError(
            f"a subset of {len(X):,} samples did not reach the tolerance {options.tolerance:g} within "
            f"{MOST_TRIAL_SECONDS:.0f} s; passes cannot be foreseen. Raise --tol, or give the passes with --passes"
        )
    progress = solution.progress
    return Trial(
        len(X),
        int(solver.block_size),
        progress.column_passes,
        double_columns / len(X),
        solution.refreshes,
        time.perf_counter() - began,
    )
