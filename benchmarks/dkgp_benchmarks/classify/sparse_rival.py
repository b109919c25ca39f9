"""spSVM as the tables take it: tuned by cross-validated misclassification, its size by the rule of the pursuit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.labels import stratified_folds
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.block_tasks import ArrayInputs
from dkgp_benchmarks.classify.spsvm import SparseSVM, SparseSVMSettings, train_spsvm, validated_errors
from dkgp_benchmarks.classify.trial import Classifier, Trial, median_gamma

FloatArray = NDArray[np.float64]

# Samples beyond which the kernel is that of a random subset, and there are more basis samples and fewer folds.
SUBSET, SEARCH_FOLDS, SIZE_FOLDS, LARGE_FOLDS = 1000, 5, 10, 3
# Of the search: a size that tells the settings apart, log gamma about the median distance's, and s2.
SEARCH_SIZE, GAMMA_STEPS, NOISE_VARIANCES = 24, (-3.0, -2.0, -1.0, 0.0, 1.0), (1e-3, 1e-2, 1e-1, 1.0)
MOST, MOST_LARGE = 64, 512


@dataclass(frozen=True)
class _Trained:
    machine: SparseSVM

    @property
    def size(self) -> int:
        return self.machine.size

    def decide(self, inputs: FloatArray) -> FloatArray:
        return self.machine.decisions(inputs)


class SparseMachine:
    """spSVM with an isotropic kernel; 59 candidates for each basis sample."""

    def tune(self, trial: Trial) -> dict[str, Any]:
        """Search kernel and s2 at a small size, then the size with them."""
        few, executor = trial.subset(SUBSET), _executor(trial)
        start, errors = float(np.log(median_gamma(few.inputs, few.seed))), {}
        parts = stratified_folds(few.labels, SEARCH_FOLDS, few.seed)
        for step in GAMMA_STEPS:
            for s2 in NOISE_VARIANCES:
                settings = SparseSVMSettings(SEARCH_SIZE, seed=few.seed)
                gamma = float(np.exp(start + step))
                shares = validated_errors(executor, _kernel(few, gamma), s2, few.inputs, few.signs, parts, settings)
                errors[gamma, s2] = float(shares.mean(axis=0).min())
        gamma, s2 = min(errors, key=lambda place: (errors[place], *place))
        large = few is not trial
        parts = stratified_folds(trial.labels, LARGE_FOLDS if large else SIZE_FOLDS, trial.seed)
        settings = SparseSVMSettings(min(trial.n, MOST_LARGE if large else MOST), seed=trial.seed)
        shares = validated_errors(executor, _kernel(trial, gamma), s2, trial.inputs, trial.signs, parts, settings)
        size = chosen_size(shares)
        return {"gamma": gamma, "s2": s2, "size": size, "score": float(shares[:, size - 1].mean())}

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Grow a basis of that size on all samples."""
        kernel, inputs = _kernel(trial, tuning["gamma"]), ArrayInputs(trial.inputs)
        with BlockedKernelOperator(kernel, tuning["s2"], inputs, _executor(trial)) as operator:
            return _Trained(train_spsvm(operator, trial.signs, SparseSVMSettings(tuning["size"], seed=trial.seed)))


def chosen_size(shares: FloatArray) -> int:
    """The smallest size whose error is within a tenth of the folds' standard deviation of the least (section 4.5).

    Parameters
    ----------
    shares : (folds, k) float64
        Share of wrong labels in each fold, with 1, 2, .. k basis samples.
    """
    means = shares.mean(axis=0)
    best = int(np.argmin(means))
    return int(np.argmax(means <= means[best] + shares[:, best].std(ddof=1) / 10.0)) + 1


def _kernel(trial: Trial, gamma: float) -> SquaredExponential:
    return SquaredExponential(gamma=(gamma,) * trial.inputs.shape[1])


def _executor(trial: Trial) -> LocalExecutor:
    return LocalExecutor(1 if trial.subset(SUBSET) is trial else available_cores())
