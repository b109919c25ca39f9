"""Scores of found hyperparameters: k-fold on the subsets they were found on, and on rows that no subset held."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.models.metrics import NORMAL_95
from dkgp.models.tuning.dense_algebra import solve_factored, solve_half
from dkgp.models.tuning.leave_one_out import factored, fold_predictions
from dkgp.models.tuning.tasks import TuningContext

__all__ = ["ScoreSums", "check_folds", "cut_folds", "fold_task", "holdout_task", "scores_of"]


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
    found = []
    for index in subsets:
        subset = context.subset(index)
        parts = cut_folds(len(subset.inputs), folds, seed, index)
        with context.matrices(len(subset.inputs)).lent() as matrices:
            mean, variance = fold_predictions(subset.family, parameters, subset.targets, parts, matrices)
        found.append(ScoreSums.of(subset.targets, mean, variance))
    return found


@needs_one_arithmetic
def holdout_task(context: TuningContext, parameters: FloatArray, subsets: list[int]) -> list[ScoreSums]:
    """Predict the rows that no subset holds from each subset by itself.

    Raises
    ------
    NumericalError
        A kernel matrix is not positive definite.
    """
    inputs, targets = context.source.held_out()
    found = []
    for index in subsets:
        subset = context.subset(index)
        kernel, noise_variance = subset.family.kernel(parameters[:-1]), math.exp(parameters[-1])
        mean, variance = np.empty_like(targets), np.empty(len(targets))
        with context.matrices(len(subset.inputs)).lent() as matrices:
            lower = factored(subset.family, parameters, matrices[0])
            alpha = solve_factored(lower, np.asfortranarray(subset.targets))
            rows = max(1, len(subset.inputs) // _BLOCK_SHARE)
            for start in range(0, len(inputs), rows):
                block = slice(start, start + rows)
                cross = np.asfortranarray(kernel(subset.inputs, inputs[block]))
                mean[block] = cross.T @ alpha
                solve_half(lower, cross)
                explained = np.einsum("ij,ij->j", cross, cross)
                variance[block] = np.maximum(kernel.diagonal(inputs[block]) - explained, 0.0) + noise_variance
        found.append(ScoreSums.of(targets, mean, variance))
    return found
