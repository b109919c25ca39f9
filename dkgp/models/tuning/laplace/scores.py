"""Scores of hyperparameters of labels: folds of the subsets they were found on, and rows that no subset held.

Each prediction is that of a Gaussian process in Laplace's approximation on the other samples, its probability averaged
over the latent functions; of several columns, one against the rest, the averages are divided by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.data.types import FloatArray
from dkgp.errors import NumericalError
from dkgp.kernels import Kernel
from dkgp.models.tuning.scores import cut_folds
from dkgp.models.tuning.tasks import LABEL_OBJECTIVES, TuningContext

__all__ = ["LabelSums", "label_fold_task", "label_holdout_task", "label_scores_of"]

LEAST_PROBABILITY = 1e-300


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
    found = []
    for index in subsets:
        subset = context.subset(index)
        n, kernel = len(subset.inputs), subset.family.kernel(parameters[:-1])
        probabilities = np.empty((n, max(2, subset.targets.shape[1])))
        for fold in cut_folds(n, folds, seed, index):
            rest = np.setdiff1d(np.arange(n), fold)
            weights = None if subset.weights is None else subset.weights[rest]
            given = subset.inputs[rest], subset.targets[rest], weights
            probabilities[fold] = _predicted(context, kernel, given, subset.inputs[fold])
        found.append(_sums(probabilities, subset.targets))
    return found


@needs_one_arithmetic
def label_holdout_task(context: TuningContext, parameters: FloatArray, subsets: list[int]) -> list[LabelSums]:
    """Predict the rows that no subset holds from each subset by itself.

    Raises `NumericalError`: a kernel matrix is not positive definite.
    """
    inputs, targets = context.source.held_out()
    found = []
    for index in subsets:
        subset = context.subset(index)
        kernel = subset.family.kernel(parameters[:-1])
        given = subset.inputs, subset.targets, subset.weights
        found.append(_sums(_predicted(context, kernel, given, inputs), targets))
    return found


def _predicted(
    context: TuningContext, kernel: Kernel, given: tuple[FloatArray, FloatArray, Any], inputs: FloatArray
) -> FloatArray:
    """Averaged probabilities of the classes at inputs (r, d), from samples that are given: (r, C)."""
    own, targets, weights = given
    assert context.likelihood is not None
    matrix, cross = np.asfortranarray(kernel.matrix(own, own)), kernel.matrix(own, inputs)
    evidence = LABEL_OBJECTIVES[context.likelihood]
    found = evidence.probabilities(matrix, targets, weights, cross, kernel.diagonal(inputs))
    if found is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "it cannot be scored. Lower the upper bound of the amplitude"
        )
    return found


def _sums(probabilities: FloatArray, targets: FloatArray) -> LabelSums:
    codes = targets.argmax(axis=1) if targets.shape[1] > 1 else (targets[:, 0] > 0.0).astype(np.int64)
    errors = int(np.count_nonzero(probabilities.argmax(axis=1) != codes))
    of_label = probabilities[np.arange(len(codes)), codes]
    return LabelSums(len(codes), errors, float(-np.log(np.maximum(of_label, LEAST_PROBABILITY)).sum()))
