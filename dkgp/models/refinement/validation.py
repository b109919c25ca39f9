"""Validation of refined hyperparameters: samples held out of the refinement, predicted with both values.

The held-out samples take no part in gradients or in the predictions that are scored on them. Means are of a solve to
the tolerance of training, variances the upper ends of proven intervals.

Approximate products serve far too many samples for products with every entry. The variance conditioned on the samples
that covary most with the point is then an upper end, because more samples can only lower it. In the few features for
which such products exist, the other samples add little.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import scipy

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.codec import rule
from dkgp.errors import InputError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.noise import Noise
from dkgp.models.target_units import NORMAL_95
from dkgp.models.variance.batch import BatchOptions, batch_bytes, relative_gap, solve_batch
from dkgp.models.variance.nystrom import FactorSource
from dkgp.models.variance.scaled import ScaledInputs, scaled_kernel
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext, InputSource
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    MaxPasses,
    RelativeResidual,
    solve,
)
from dkgp.solvers.conjugate.preconditioner import Preconditioning
from dkgp.solvers.driver import Watch
from dkgp.solvers.stopping import StoppingRule

# Odd multipliers and shifts of the splitmix64 generator (Steele, Lea and Flood 2014).
_INCREMENT, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class ExceptRows:
    """An input source without some rows of another one; the numbers `excluded` (h,) are sorted and distinct."""

    def __init__(self, source: InputSource, excluded: IndexArray) -> None:
        if excluded.size and (np.any(np.diff(excluded) <= 0) or excluded[0] < 0 or excluded[-1] >= source.n_samples):
            raise InputError(f"rows to leave out must be sorted, distinct and in 0..{source.n_samples - 1}")
        self._source, self._excluded = source, excluded
        # How many rows are kept before each excluded one.
        self._kept_before = excluded - np.arange(len(excluded))

    @property
    def n_samples(self) -> int:
        """Number of rows, without the excluded ones."""
        return self._source.n_samples - len(self._excluded)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self._source.n_features

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop, counted without the excluded ones: (stop - start, d) float64."""
        if start >= stop:
            return self._source.inputs(0, 0)
        first, last = self._position(start), self._position(stop - 1) + 1
        inside = self._excluded[(self._excluded >= first) & (self._excluded < last)] - first
        return np.asarray(np.delete(self._source.inputs(first, last), inside, axis=0))

    def _position(self, row: int) -> int:
        return row + int(np.searchsorted(self._kept_before, row, side="right"))


class SomeRows:
    """One row of every `every` consecutive ones of another source, each drawn at random, and the same for a `seed`."""

    def __init__(self, source: InputSource, every: int, seed: int) -> None:
        self._source, self._every, self._seed = source, every, seed

    @property
    def n_samples(self) -> int:
        """Number of rows, without the last ones that do not fill a group."""
        return self._source.n_samples // self._every

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self._source.n_features

    def rows(self, start: int, stop: int) -> IndexArray:
        """Numbers, in the source, of rows start:stop."""
        groups = np.arange(start, stop, dtype=np.uint64)
        mixed = (groups + np.uint64(self._seed << 40)) * np.uint64(_INCREMENT)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
        offsets = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(self._every)
        return np.asarray(groups * np.uint64(self._every) + offsets, dtype=np.intp)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop: (stop - start, d) float64."""
        first = start * self._every
        return np.asarray(self._source.inputs(first, stop * self._every)[self.rows(start, stop) - first])


LARGEST_SHARE = 0.1
LEAST_TRAINING_SAMPLES = 2
TOLERANCE, MOST_PASSES = 1e-4, 300.0
GAP, MOST_VARIANCE_PASSES = 0.02, 30.0
# Test samples that share a pass: a function of n alone, so that the score does not depend on the executor.
BATCH = 256
BATCH_BYTES = 512 * 1024**2
# With approximate products: relative residual of the means' solve, and samples that condition a variance.
APPROXIMATE_TOLERANCE, NEAREST = 1e-3, 256


@dataclass(frozen=True)
class HeldOut:
    """The samples held out."""

    inputs: FloatArray  # (h, d), standardised
    targets: FloatArray  # (h, p), standardised
    noise: Noise

    def with_noise(self, noise_variance: float) -> HeldOut:
        """Return the samples under another s2."""
        return replace(self, noise=self.noise.with_common(noise_variance))


def held_out_samples(n: int, most: int) -> int:
    """Return the number of samples to hold out of n: a tenth, at most `most`."""
    return min(most, int(LARGEST_SHARE * n), max(0, n - LEAST_TRAINING_SAMPLES))


def held_out_rows(n: int, most: int, seed: int) -> IndexArray:
    """Draw the rows to hold out, sorted; a seed fixes them."""
    count = held_out_samples(n, most)
    return np.sort(np.random.default_rng([seed, 4]).choice(n, count, replace=False)).astype(np.intp)


@dataclass(frozen=True)
class HeldOutScore:
    """Score of predictions of the held-out samples, on the standardised scale."""

    nlpd: float  # mean negative log predictive density, in nats
    rmse: float
    coverage_95: float
    # Largest relative gap of the variances' proven intervals, which begin at the noise with approximate products.
    gap_max: float
    column_passes: float  # passes of the solve and of all variances' batches
    # (h,): of each sample, averaged over its targets
    losses: FloatArray = field(repr=False, metadata=rule(stored=False))


@dataclass(frozen=True)
class Nearest:
    """The samples that covary most with each of h points: covariances and indices, (h, m), the greatest first."""

    covariances: FloatArray
    samples: IndexArray

    @classmethod
    def none(cls, points: int) -> Nearest:
        """No samples."""
        return cls(np.zeros((points, 0)), np.zeros((points, 0), np.intp))

    def merged(self, other: Nearest) -> Nearest:
        """Return the best of both, at most `NEAREST`; ties keep their order, this one's first."""
        covariances = np.hstack([self.covariances, other.covariances])
        order = np.argsort(-covariances, axis=1, kind="stable")[:, :NEAREST]
        samples = np.hstack([self.samples, other.samples])
        return Nearest(np.take_along_axis(covariances, order, axis=1), np.take_along_axis(samples, order, axis=1))


def nearest_task(context: BlockContext, inputs: FloatArray, blocks: list[int]) -> list[Nearest]:
    """Return the samples in neighbouring blocks that are nearest to the rows of `inputs`."""
    evaluator, nearest = context.evaluator("double"), Nearest.none(len(inputs))
    rows = evaluator.prepare(inputs)
    for block in blocks:
        start, stop = context.bounds(block)
        covariances = np.array(evaluator.tile(rows, context.block_features(block, "double")))
        samples = np.broadcast_to(np.arange(start, stop, dtype=np.intp), covariances.shape)
        nearest = nearest.merged(Nearest(covariances, samples))
    return [nearest]


def means_task(
    context: BlockContext, inputs: FloatArray, alpha: dict[int, FloatArray], blocks: list[int]
) -> list[FloatArray]:
    """Return k(x, X_block) @ alpha_block for the rows of `inputs`: (h, p) for each block."""
    evaluator = context.evaluator("double")
    rows = evaluator.prepare(inputs)
    return [evaluator.matmat(rows, context.block_features(block, "double"), alpha[block]) for block in blocks]


@needs_one_arithmetic
def variances_task(
    source: FactorSource, inputs: FloatArray, together: int, batches: list[tuple[int, int]]
) -> list[tuple[FloatArray, FloatArray, float]]:
    """Return bounds of the variances of each batch of the rows of `inputs`, and their passes."""
    results = []
    for start, stop in batches:
        options = BatchOptions(GAP, MOST_VARIANCE_PASSES, together=together)
        bounds = solve_batch(source.factor(), inputs[start:stop], options)
        results.append((bounds.lower, bounds.upper, float(bounds.passes.max(initial=0.0))))
    return results


def variance_batch_bytes(n: int, held_out: int, threads: int) -> int:
    """Return the bytes of the variances' batches in a process that runs this many at once."""
    return threads * batch_bytes(n, min(_together(n), held_out))


def score_held_out(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    held_out: HeldOut,
    preconditioner: Preconditioning,
    landmarks: FactorPreconditioning,
    *,
    initial: FloatArray | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> HeldOutScore:
    """Predict the held-out samples from all others with the operator's hyperparameters.

    `operator` and `targets` (n, p) are those of the other samples. `landmarks`: settings of the landmarks of the
    variances' factor. `initial` (n, p): coefficients to start from. `interrupted`: see `dkgp.solvers.solve`.

    Raises `NumericalError`, `InterruptedRunError`.
    """
    stopping: StoppingRule = GradientInfNorm(TOLERANCE)
    if operator.approximate:
        stopping = RelativeResidual(APPROXIMATE_TOLERANCE)
    solution = solve(
        operator,
        targets,
        solver=ConjugateGradient(preconditioner),
        stopping=stopping | MaxPasses(MOST_PASSES),
        initial=initial,
        watch=Watch(interrupted=interrupted),
    )
    mean = _means(operator.context, operator.executor, held_out.inputs, solution.alpha)
    if operator.approximate:
        upper, passes = variances_given_nearest(operator, held_out.inputs), 0.0
        lower = np.full(len(upper), operator.noise_variance)
    else:
        lower, upper, passes = _intervals(operator, held_out.inputs, landmarks)
    if not held_out.noise.is_common:
        beyond = held_out.noise.diagonal - operator.noise_variance
        lower, upper = lower + beyond, upper + beyond
    squares = (held_out.targets - mean) ** 2 / upper[:, None]
    losses = 0.5 * (np.log(2.0 * math.pi * upper)[:, None] + squares)
    return HeldOutScore(
        nlpd=float(losses.mean()),
        rmse=float(np.sqrt(np.mean((held_out.targets - mean) ** 2))),
        coverage_95=float(np.mean(squares <= NORMAL_95**2)),
        gap_max=float(relative_gap(lower, upper).max()),
        column_passes=solution.progress.column_passes + solution.refreshes + passes,
        losses=losses.mean(axis=1),
    )


def _intervals(
    operator: BlockedKernelOperator, points: FloatArray, landmarks: FactorPreconditioning
) -> tuple[FloatArray, FloatArray, float]:
    """Return lower and upper ends of the variances at points (h, d), (h,) each, and the passes of all batches."""
    largest = float(operator.diagonal().max())
    hopeless = operator.n * float(np.finfo(np.float32).eps) * largest > operator.noise_variance
    precision: Precision = "double" if hopeless else "single"
    landmark_rows = landmarks.resolved(operator.n, operator.kernel.n_features).choose(operator)
    context, landmark_inputs, inputs = _subject(operator, landmark_rows, points)
    source = FactorSource(context, operator.noise_variance, landmark_inputs, precision)
    rows = [(start, min(start + BATCH, len(inputs))) for start in range(0, len(inputs), BATCH)]
    pending = operator.executor.submit(
        "kvariance", variances_task, (source, inputs, _together(operator.n)), [[batch] for batch in rows]
    )
    parts = pending.result()
    lower, upper = (np.concatenate([part[index] for part in parts]) for index in (0, 1))
    return lower, upper, sum(part[2] for part in parts)


def variances_given_nearest(operator: BlockedKernelOperator, points: FloatArray) -> FloatArray:
    """Return variances at points (h, d) given only the nearest samples of each, with the least noise: (h,)."""
    context, executor, kernel = operator.context, operator.executor, operator.kernel
    groups = split_evenly(range(context.n_blocks), executor.parallelism)
    nearest = Nearest.none(len(points))
    for part in executor.submit("knearest", nearest_task, (context, points), groups).result():
        nearest = nearest.merged(part)
    variances = np.array(kernel.diagonal(points), dtype=np.float64)
    for place, (samples, covariances) in enumerate(zip(nearest.samples, nearest.covariances, strict=True)):
        matrix = operator.submatrix(samples, samples)
        whitened = scipy.linalg.solve_triangular(np.linalg.cholesky(matrix), covariances, lower=True)
        variances[place] -= float(whitened @ whitened)
    return np.maximum(variances, 0.0) + operator.noise_variance


def _subject(
    operator: BlockedKernelOperator, landmarks: IndexArray, inputs: FloatArray
) -> tuple[BlockContext, FloatArray, FloatArray]:
    """Return the regression whose variances are computed, and inputs of its landmarks and tests.

    With noise by sample it is the equivalent one with the least noise for all; see `dkgp.models.variance.scaled`.
    """
    context, of_landmarks = operator.context, operator.inputs(landmarks)
    if isinstance(operator.noise, float):
        return context, of_landmarks, inputs
    roots = np.sqrt(operator.noise_variance / operator.noise)
    kernel = scaled_kernel(context.kernel, inputs.shape[1])
    source = ScaledInputs(context.source, partial(_rows_of, roots))
    scaled = BlockContext(f"{context.run_id}/noise", source, kernel, operator.n)
    return (
        scaled,
        np.column_stack([of_landmarks, roots[landmarks]]),
        np.column_stack([inputs, np.ones(len(inputs))]),
    )


def _rows_of(values: FloatArray, start: int, stop: int) -> FloatArray:
    return values[start:stop]


def _means(context: BlockContext, executor: BlockExecutor, inputs: FloatArray, alpha: FloatArray) -> FloatArray:
    total = np.zeros((len(inputs), alpha.shape[1]))
    pending = [
        executor.submit(
            "kmean",
            means_task,
            (context, inputs, {block: alpha[slice(*context.bounds(block))] for block in group}),
            [group],
        )
        for group in split_evenly(range(context.n_blocks), executor.parallelism)
    ]
    for round_ in pending:
        for part in round_.result():
            total += part
    return total


def _together(n: int) -> int:
    return int(min(BATCH, max(1, BATCH_BYTES // batch_bytes(n, 1))))
