"""From decisions to probabilities, by the decisions of samples that are left out of a subset's own model.

Left-out decisions of the exact LS-SVM have a closed form. With C = [[Kbar, 1], [1', 0]] and M the leading n x n part of
its inverse, alpha = M y, and the decision at a sample by all others is y_i - alpha_i / M_ii (Cawley, *Leave-one-out
cross-validation based model selection criteria for weighted LS-SVMs*, 2006). With A = Kbar^-1 and S = 1'A1,
M = A - (A1)(A1)'/S.
"""

from __future__ import annotations

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.classification.calibration import Calibration, fit_calibration
from dkgp.models.classification.labels import Labels
from dkgp.models.tuning.dense_algebra import invert
from dkgp.operators.base import Variances, noise_at

# Of each class, where it has so many.
LEAST_OF_A_CLASS = 5


def calibrated(
    dataset: Dataset,
    labels: Labels,
    kernel: Kernel,
    noise: Variances,
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


def left_out_decisions(matrix: FloatArray, signs: FloatArray, *, fit_intercept: bool = True) -> FloatArray:
    """Decisions (n, t) at each sample by all others.

    `matrix` is Kbar in Fortran order, and overwritten; `signs` (n, t) are labels, -1 and 1. `NumericalError`: Kbar is
    not numerically positive definite, or without a sample nothing is left to tell the intercept by.
    """
    n, t = signs.shape
    inverse = invert(matrix, np.asfortranarray(np.column_stack([signs, np.ones(n)])))
    if inverse is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite in float64, so that no sample of it can be left "
            "out. Raise the noise variance"
        )
    solved = inverse[0]
    alpha, diagonal = np.array(solved[:, :t]), np.diagonal(matrix).copy()
    if fit_intercept:
        ones, total = solved[:, t], float(solved[:, t].sum())
        alpha -= np.outer(ones, solved[:, :t].sum(axis=0) / total)
        diagonal -= ones**2 / total
    if not (diagonal > 0.0).all():
        raise NumericalError("a sample that is left out leaves nothing to tell the intercept by; take more samples")
    return np.asarray(signs - alpha / diagonal[:, None])


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
