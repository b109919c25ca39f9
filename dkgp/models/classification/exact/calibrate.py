"""From decisions to probabilities, by the decisions of samples that are left out of a subset's own model."""

from __future__ import annotations

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import IntArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.classification.calibration import Calibration, fit_calibration
from dkgp.models.classification.exact.leave_one_out import left_out_decisions
from dkgp.models.classification.labels import Labels
from dkgp.operators.base import Noise, noise_at

# Of each class, where it has so many.
LEAST_OF_A_CLASS = 5


def calibrated(
    dataset: Dataset,
    labels: Labels,
    kernel: Kernel,
    noise: Noise,
    fit_intercept: bool = True,
    subset: int = 2000,
    seed: int = 0,
) -> Calibration:
    """Fit the map from decisions to probabilities to left-out decisions of a subset.

    The exact LS-SVM of the subset, with the same kernel and noise, tells each of its samples by all others
    (`left_out_decisions`): decisions that have not seen their labels, as those of new samples have not. Errors are
    those of `drawn_by_class` and `left_out_decisions`.
    """
    indices = drawn_by_class(labels, subset, seed)
    inputs, drawn = dataset.input_rows(indices), labels.subset(indices)
    with single_threaded_blas():
        evaluator = TileEvaluator(kernel, "double")
        rows = evaluator.prepare(inputs)
        matrix = np.asfortranarray(evaluator.tile(rows, rows))
        np.einsum("ii->i", matrix)[:] += noise_at(noise, indices)
        decisions = left_out_decisions(matrix, drawn.signs(), fit_intercept=fit_intercept)
    # A class that is rare has more samples in the subset than its share; probabilities are those of all samples.
    weights = (labels.counts() / labels.n_samples / (drawn.counts() / drawn.n_samples))[drawn.codes]
    return fit_calibration(decisions, drawn.codes, weights)


def drawn_by_class(labels: Labels, size: int, seed: int) -> IntArray:
    """Sorted indices of a random subset in which classes have their shares, and a few samples each at least.

    `InputError` for fewer than 4 samples, or a negative seed.
    """
    if size < 4:
        raise InputError(f"a subset of {size} samples is too small to draw from classes; expected at least 4")
    if seed < 0:
        raise InputError(f"the seed must not be negative; got {seed}")
    if size >= labels.n_samples:
        return np.arange(labels.n_samples)
    generator = np.random.default_rng([seed, 3])
    counts = labels.counts()
    sizes = np.minimum(counts, np.maximum(LEAST_OF_A_CLASS, np.rint(counts * (size / labels.n_samples)))).astype(int)
    parts = [
        generator.choice(np.flatnonzero(labels.codes == code), size=int(count), replace=False)
        for code, count in enumerate(sizes)
    ]
    return np.sort(np.concatenate(parts))
