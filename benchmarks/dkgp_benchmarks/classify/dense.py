"""The exact LS-SVM with an intercept on a few thousand samples by dense algebra: the paper's rival "LS-SVM".

[K + s2 I, 1; 1', 0] (alpha; b) = (y; 0), equation 23. Ten-fold cross-validation of all noise variances takes one
eigendecomposition a bandwidth: with C the inverse of that matrix, the residuals of a fold v, left out, are
C_vv^-1 alpha_v. They are those of a refit on the other folds, the intercept refitted with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from dkgp.errors import UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.labels import stratified_folds
from dkgp_benchmarks.classify.trial import Classifier, Trial, median_gamma, refined

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FOLDS = 10
MOST_SAMPLES = 4000
NOISE_VARIANCES = tuple(10.0 ** (exponent / 2.0) for exponent in range(-10, 9))
# Grid of log gamma about the median distance's, and how often its step is halved.
REACH, STEP, HALVINGS = (5, 3), 1.0, 3


@dataclass(frozen=True)
class _Trained:
    kernel: SquaredExponential
    inputs: FloatArray
    alpha: FloatArray
    intercept: float
    size: int | None = None

    def decide(self, inputs: FloatArray) -> FloatArray:
        decisions: FloatArray = self.kernel(inputs, self.inputs) @ self.alpha + self.intercept
        return decisions


class LeastSquaresSVM:
    """Dense, with isotropic bandwidth and noise variance of least cross-validated squared error (35)."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Search the bandwidth; all noise variances of a bandwidth come from one eigendecomposition."""
        self._check(trial)
        parts = stratified_folds(trial.labels, FOLDS, trial.seed)
        best: dict[float, tuple[float, float]] = {}

        def evaluate(at: float) -> float:
            matrix = _kernel(trial, at)(trial.inputs, trial.inputs)
            errors = fold_errors(matrix, trial.signs, parts, NOISE_VARIANCES)
            place = int(np.argmin(errors))
            best[at] = errors[place], NOISE_VARIANCES[place]
            return errors[place]

        at = refined(evaluate, float(np.log(median_gamma(trial.inputs, trial.seed))), REACH, STEP, HALVINGS)
        return {"gamma": float(np.exp(at)), "noise_variance": best[at][1], "score": best[at][0]}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Solve by Cholesky with two right-hand sides, y and 1."""
        self._check(trial)
        kernel = _kernel(trial, float(np.log(tuning["gamma"])))
        matrix = kernel(trial.inputs, trial.inputs)
        matrix[np.diag_indices_from(matrix)] += tuning["noise_variance"]
        both = cho_solve(cho_factor(matrix, lower=True), np.column_stack([trial.signs, np.ones(trial.n)]))
        intercept = float(both[:, 0].sum() / both[:, 1].sum())
        return _Trained(kernel, trial.inputs, both[:, 0] - intercept * both[:, 1], intercept)

    def _check(self, trial: Trial) -> None:
        if trial.n > MOST_SAMPLES:
            raise UsageError(
                f"ls-svm is dense here and takes {MOST_SAMPLES:,} samples at most; got {trial.n:,}. `dkgp classify "
                "--method exact` trains it on any number"
            )


def fold_errors(
    matrix: FloatArray, signs: FloatArray, parts: IntArray, noise_variances: tuple[float, ...]
) -> list[float]:
    """Cross-validated mean squared error of each noise variance, of a kernel matrix (n, n) and labels (n,) of +-1."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0.0)
    projected, ones = vectors.T @ signs, vectors.sum(axis=0)
    members = [np.flatnonzero(parts == part) for part in np.unique(parts)]
    errors = []
    for noise_variance in noise_variances:
        inverse = 1.0 / (values + noise_variance)
        total = float(ones @ (inverse * ones))
        intercept = float(ones @ (inverse * projected)) / total
        alpha = vectors @ (inverse * (projected - intercept * ones))
        share = vectors @ (inverse * ones)
        squared = 0.0
        for rows in members:
            own = vectors[rows]
            block = (own * inverse) @ own.T - np.outer(share[rows], share[rows]) / total
            squared += float(np.sum(np.linalg.solve(block, alpha[rows]) ** 2))
        errors.append(squared / len(signs))
    return errors


def _kernel(trial: Trial, log_gamma: float) -> SquaredExponential:
    return SquaredExponential(gamma=(float(np.exp(log_gamma)),) * trial.inputs.shape[1])
