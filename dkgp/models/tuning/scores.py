"""Scores of tuned hyperparameters: k-fold on the subsets they were tuned on, and on rows that no subset held.

A label's prediction is that of a Gaussian process in Laplace's approximation on the other samples, its probability
averaged over the latent functions; of several columns, one against the rest, the averages are divided by their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.tuning.dense_algebra import solve_factored, solve_half
from dkgp.models.tuning.laplace.columns import SeenSamples
from dkgp.models.tuning.leave_one_out import factored, fold_predictions
from dkgp.models.tuning.tasks import LABEL_OBJECTIVES, CachedSubset, TuningContext
from dkgp.models.variance_scores import NORMAL_95

LEAST_PROBABILITY = 1e-300
_BLOCK_SHARE = 4  # held-out rows are predicted by blocks of a quarter of the subset


@dataclass(frozen=True)
class ScoreSums:
    """Sums over predictions, which add up over subsets.

    `count` values are predicted, targets times samples, and `covered` of them lie within their central 95 % interval.
    Errors are of standardised targets; `log_loss` is the negative log predictive density in nats.
    """

    count: int
    squared_error: float
    log_loss: float
    covered: int

    @classmethod
    def of(cls, truth: FloatArray, mean: FloatArray, variance: FloatArray) -> ScoreSums:
        """Sums over `truth` and `mean` (m, p) and variances (m,) of new observations."""
        squares = (truth - mean) ** 2
        ratios = squares / variance[:, None]
        losses = 0.5 * (np.log(2.0 * math.pi * variance)[:, None] + ratios)
        covered = int(np.count_nonzero(ratios <= NORMAL_95**2))
        return cls(squares.size, float(squares.sum()), float(losses.sum()), covered)

    def means(self) -> dict[str, float]:
        """RMSE and NLPD of standardised targets, and the coverage of 95 % intervals."""
        return {
            "rmse": math.sqrt(self.squared_error / self.count),
            "nlpd": self.log_loss / self.count,
            "coverage_95": self.covered / self.count,
        }


def check_folds(folds: int | None, n_samples: int) -> None:
    """Refuse a number of folds that cannot be cut from a subset of n samples; `InputError`."""
    if folds is not None and not 2 <= folds <= n_samples:
        raise InputError(f"folds must be from 2 to the subset's size, {n_samples}; got {folds}")


def cut_folds(n_samples: int, folds: int, seed: int, subset: int) -> list[IntArray]:
    """Random folds of sizes that differ by at most one, each sample in one of them: sorted indices."""
    order = np.random.default_rng([seed, 3, subset]).permutation(n_samples)
    return [np.sort(part) for part in np.array_split(order, folds)]


@dataclass(frozen=True)
class LabelSums:
    """Sums over `count` predicted samples, which add up over subsets: errors, and -log p of the labels in nats."""

    count: int
    errors: int
    log_loss: float

    @classmethod
    def of(cls, probabilities: FloatArray, targets: FloatArray) -> LabelSums:
        """Sums over the classes' probabilities (m, C), for `targets` (m, t) of signs."""
        codes = targets.argmax(axis=1) if targets.shape[1] > 1 else (targets[:, 0] > 0.0).astype(np.int64)
        errors = int(np.count_nonzero(probabilities.argmax(axis=1) != codes))
        of_label = probabilities[np.arange(len(codes)), codes]
        return cls(len(codes), errors, float(-np.log(np.maximum(of_label, LEAST_PROBABILITY)).sum()))

    def means(self) -> dict[str, float]:
        """Error rate and mean log loss."""
        return {"error_rate": self.errors / self.count, "log_loss": self.log_loss / self.count}


def scores_of(parts: Sequence[ScoreSums | LabelSums]) -> dict[str, float | int]:
    """The number of predictions, and the means over all parts in order."""
    kind, columns = type(parts[0]), zip(*(astuple(part) for part in parts), strict=True)
    total = kind(*(sum(column) for column in columns))
    return {"predictions": total.count, **total.means()}


@needs_one_arithmetic
def fold_task(
    context: TuningContext, parameters: FloatArray, folds: int, seed: int, subsets: list[int]
) -> list[ScoreSums | LabelSums]:
    """Predict each fold of a subset from its other folds.

    Raises `NumericalError`: a kernel matrix of labels is not positive definite.
    """
    predict = _folds if context.likelihood is None else _label_folds
    sums = []
    for index in subsets:
        subset = context.subset(index)
        sums.append(predict(context, subset, parameters, cut_folds(len(subset.inputs), folds, seed, index)))
    return sums


@needs_one_arithmetic
def holdout_task(context: TuningContext, parameters: FloatArray, subsets: list[int]) -> list[ScoreSums | LabelSums]:
    """Predict the rows that no subset holds from each subset by itself; errors as of `fold_task`."""
    inputs, targets = context.source.held_out()
    predict = _held_out if context.likelihood is None else _label_held_out
    return [predict(context, context.subset(index), parameters, inputs, targets) for index in subsets]


def _folds(context: TuningContext, subset: CachedSubset, parameters: FloatArray, folds: list[IntArray]) -> ScoreSums:
    with context.matrices(len(subset.inputs)).lent() as matrices:
        mean, variance = fold_predictions(subset.family, parameters, subset.targets, folds, matrices, subset.noise)
    return ScoreSums.of(subset.targets, mean, variance)


def _held_out(
    context: TuningContext, subset: CachedSubset, parameters: FloatArray, inputs: FloatArray, targets: FloatArray
) -> ScoreSums:
    held = context.source.noise(-1).with_common(math.exp(parameters[-1]))
    kernel, noise = subset.family.kernel(parameters[:-1]), np.broadcast_to(held.diagonal, len(targets))
    mean, variance = np.empty_like(targets), np.empty(len(targets))
    with context.matrices(len(subset.inputs)).lent() as matrices:
        lower = factored(subset.family, parameters, matrices[0], subset.noise)
        alpha = solve_factored(lower, np.asfortranarray(subset.targets))
        rows = max(1, len(subset.inputs) // _BLOCK_SHARE)
        for start in range(0, len(inputs), rows):
            block = slice(start, start + rows)
            cross = np.asfortranarray(kernel(subset.inputs, inputs[block]))
            mean[block] = cross.T @ alpha
            solve_half(lower, cross)
            explained = np.einsum("ij,ij->j", cross, cross)
            variance[block] = np.maximum(kernel.diagonal(inputs[block]) - explained, 0.0) + noise[block]
    return ScoreSums.of(targets, mean, variance)


def _label_folds(
    context: TuningContext, subset: CachedSubset, parameters: FloatArray, folds: list[IntArray]
) -> LabelSums:
    n, kernel = len(subset.inputs), subset.family.kernel(parameters[:-1])
    probabilities = np.empty((n, max(2, subset.targets.shape[1])))
    for fold in folds:
        rest = np.setdiff1d(np.arange(n), fold)
        weights = None if subset.weights is None else subset.weights[rest]
        training = subset.inputs[rest], subset.targets[rest], weights
        probabilities[fold] = _predicted(context, kernel, training, subset.inputs[fold])
    return LabelSums.of(probabilities, subset.targets)


def _label_held_out(
    context: TuningContext, subset: CachedSubset, parameters: FloatArray, inputs: FloatArray, targets: FloatArray
) -> LabelSums:
    kernel, training = subset.family.kernel(parameters[:-1]), (subset.inputs, subset.targets, subset.weights)
    return LabelSums.of(_predicted(context, kernel, training, inputs), targets)


def _predicted(
    context: TuningContext, kernel: Kernel, training: tuple[FloatArray, FloatArray, Any], inputs: FloatArray
) -> FloatArray:
    """Averaged probabilities of the classes at inputs (r, d), from samples that are given: (r, C)."""
    training_inputs, targets, weights = training
    assert context.likelihood is not None
    matrix = np.asfortranarray(kernel.matrix(training_inputs, training_inputs))
    cross, prior = kernel.matrix(training_inputs, inputs), kernel.diagonal(inputs)
    samples = SeenSamples(matrix, targets, weights, cross, prior)
    probabilities = LABEL_OBJECTIVES[context.likelihood].probabilities(samples)
    if probabilities is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "it cannot be scored. Lower the upper bound of the amplitude"
        )
    return probabilities
