"""Scores of tuned hyperparameters: k-fold on the subsets they were tuned on, and on rows that no subset held.

A label's prediction is that of a Gaussian process in Laplace's approximation on the other samples, its probability
averaged over the latent functions; of several columns, one against the rest, the averages are divided by their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.tuning.dense_algebra import solve_factored, solve_half
from dkgp.models.tuning.laplace.columns import SeenSamples
from dkgp.models.tuning.leave_one_out import factored, fold_predictions
from dkgp.models.tuning.marginal_likelihood import noise_at
from dkgp.models.tuning.tasks import LABEL_OBJECTIVES, TuningContext
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


def scores_of(parts: list[ScoreSums]) -> dict[str, float | int]:
    """RMSE and NLPD of standardised targets and the coverage of 95 % intervals, over all parts in order."""
    count = sum(part.count for part in parts)
    return {
        "predictions": count,
        "rmse": math.sqrt(sum(part.squared_error for part in parts) / count),
        "nlpd": sum(part.log_loss for part in parts) / count,
        "coverage_95": sum(part.covered for part in parts) / count,
    }


def check_folds(folds: int | None, n_samples: int) -> None:
    """Refuse a number of folds that cannot be cut from a subset of n samples; `InputError`."""
    if folds is not None and not 2 <= folds <= n_samples:
        raise InputError(f"folds must be from 2 to the subset's size, {n_samples}; got {folds}")


def cut_folds(n_samples: int, folds: int, seed: int, subset: int) -> list[IntArray]:
    """Random folds of sizes that differ by at most one, each sample in one of them: sorted indices."""
    order = np.random.default_rng([seed, 3, subset]).permutation(n_samples)
    return [np.sort(part) for part in np.array_split(order, folds)]


@needs_one_arithmetic
def fold_task(
    context: TuningContext, parameters: FloatArray, folds: int, seed: int, subsets: list[int]
) -> list[ScoreSums]:
    """Predict each fold of a subset from its other folds."""
    sums = []
    for index in subsets:
        subset = context.subset(index)
        parts = cut_folds(len(subset.inputs), folds, seed, index)
        with context.matrices(len(subset.inputs)).lent() as matrices:
            mean, variance = fold_predictions(subset.family, parameters, subset.targets, parts, matrices, subset.noise)
        sums.append(ScoreSums.of(subset.targets, mean, variance))
    return sums


@needs_one_arithmetic
def holdout_task(context: TuningContext, parameters: FloatArray, subsets: list[int]) -> list[ScoreSums]:
    """Predict the rows that no subset holds from each subset by itself.

    Raises `NumericalError`: a kernel matrix is not positive definite.
    """
    inputs, targets = context.source.held_out()
    held, sums = context.source.held_out_noise(), list[ScoreSums]()
    for index in subsets:
        subset = context.subset(index)
        kernel, noise = subset.family.kernel(parameters[:-1]), np.broadcast_to(noise_at(held, parameters), len(targets))
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
        sums.append(ScoreSums.of(targets, mean, variance))
    return sums


@dataclass(frozen=True)
class LabelSums:
    """Sums over `count` predicted samples, which add up over subsets: errors, and -log p of the labels in nats."""

    count: int
    errors: int
    log_loss: float


def label_scores_of(parts: list[LabelSums]) -> dict[str, float | int]:
    """Error rate and mean log loss over all parts in order."""
    count = sum(part.count for part in parts)
    return {
        "predictions": count,
        "error_rate": sum(part.errors for part in parts) / count,
        "log_loss": sum(part.log_loss for part in parts) / count,
    }


@needs_one_arithmetic
def label_fold_task(
    context: TuningContext, parameters: FloatArray, folds: int, seed: int, subsets: list[int]
) -> list[LabelSums]:
    """Predict each fold of a subset from its other folds. Raises `NumericalError` as `label_holdout_task`."""
    sums = []
    for index in subsets:
        subset = context.subset(index)
        n, kernel = len(subset.inputs), subset.family.kernel(parameters[:-1])
        probabilities = np.empty((n, max(2, subset.targets.shape[1])))
        for fold in cut_folds(n, folds, seed, index):
            rest = np.setdiff1d(np.arange(n), fold)
            weights = None if subset.weights is None else subset.weights[rest]
            training = subset.inputs[rest], subset.targets[rest], weights
            probabilities[fold] = _predicted(context, kernel, training, subset.inputs[fold])
        sums.append(_sums(probabilities, subset.targets))
    return sums


@needs_one_arithmetic
def label_holdout_task(context: TuningContext, parameters: FloatArray, subsets: list[int]) -> list[LabelSums]:
    """Predict the rows that no subset holds from each subset by itself.

    Raises `NumericalError`: a kernel matrix is not positive definite.
    """
    inputs, targets = context.source.held_out()
    sums = []
    for index in subsets:
        subset = context.subset(index)
        kernel = subset.family.kernel(parameters[:-1])
        training = subset.inputs, subset.targets, subset.weights
        sums.append(_sums(_predicted(context, kernel, training, inputs), targets))
    return sums


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


def _sums(probabilities: FloatArray, targets: FloatArray) -> LabelSums:
    codes = targets.argmax(axis=1) if targets.shape[1] > 1 else (targets[:, 0] > 0.0).astype(np.int64)
    errors = int(np.count_nonzero(probabilities.argmax(axis=1) != codes))
    of_label = probabilities[np.arange(len(codes)), codes]
    return LabelSums(len(codes), errors, float(-np.log(np.maximum(of_label, LEAST_PROBABILITY)).sum()))
