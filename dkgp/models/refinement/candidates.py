"""Candidates for the hyperparameters of a regression, judged by their predictions of held-out training samples.

A random subset is sparser than the data. Structure that is shorter than the distance of its samples looks like noise
in it. The evidence of many samples (`dkgp.models.sparse.vif`) sees that structure, but it has a cost, and it is not
always better. So each way to hyperparameters gives a candidate, and the same held-out samples judge them all. They are
in no subset, and no candidate has seen them.

A judge predicts by the model with neighbours of the other samples, at most `MOST_SAMPLES` of them. The variances c V of
a kernel c k with noise c s2 give the same means for every c. Of all c, the mean of z^2 = error^2 / V has the greatest
density, so `Judged.rescaled` costs nothing. If all samples are in the subset, leave-one-out predictions judge.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import NumericalError
from dkgp.kernels import Kernel, kernel_text
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.model import fit_sparse, method_named
from dkgp.models.sparse.near import near_predictor
from dkgp.models.sparse.search import BASIS_SIZES
from dkgp.models.target_units import NORMAL_95
from dkgp.models.tuning.space import NOISE_NAME
from dkgp.models.tuning.subsets import plan_subsets, read_rows

# Training samples of the evidence and of the judge's predictions, and held-out samples, at most.
MOST_SAMPLES, MOST_HELD_OUT = 20_000, 1000
HELD_OUT_SHARE = 0.1
# Nats a sample, and standard errors of the paired difference, that a later candidate must gain.
LEAST_GAIN, ERRORS = 0.002, 1.0
# Nats a sample that another scale of the variances must gain.
LEAST_SCALE_GAIN = 0.01
# z^2 between which error bars pass, and the coverage of 95 % intervals.
SQUARED, COVERAGE = (0.8, 1.25), (0.93, 0.97)


@dataclass(frozen=True)
class Candidate:
    """Hyperparameters, and in a few words where they come from."""

    hyperparameters: Hyperparameters
    origin: str


@dataclass(frozen=True)
class Predicted:
    """Predictions of held-out samples on the standardised scale: truth and means (h, p), variances (h,)."""

    truth: FloatArray
    means: FloatArray
    variances: FloatArray


@dataclass(frozen=True)
class Judged:
    """A candidate and the figures of its predictions; they are None if it could not predict.

    `squared` is the mean of z^2, and `losses` (h,) are negative log densities, averaged over targets.
    """

    candidate: Candidate
    predicted: Predicted | None
    seconds: float

    def __post_init__(self) -> None:
        if self.predicted is not None and not np.isfinite(self.losses).all():
            object.__setattr__(self, "predicted", None)

    @property
    def losses(self) -> FloatArray:
        """Negative log densities of the samples, (h,); empty without predictions."""
        if self.predicted is None:
            return np.empty(0)
        variances = self.predicted.variances
        with np.errstate(all="ignore"):
            return np.asarray(0.5 * (np.log(2.0 * np.pi * variances) + self._squares.mean(axis=1)))

    @property
    def _squares(self) -> FloatArray:
        assert self.predicted is not None
        return np.asarray((self.predicted.truth - self.predicted.means) ** 2 / self.predicted.variances[:, None])

    @property
    def nlpd(self) -> float | None:
        """Mean negative log density in nats."""
        return None if self.predicted is None else float(self.losses.mean())

    @property
    def rmse(self) -> float | None:
        """Root mean square error."""
        if self.predicted is None:
            return None
        return float(np.sqrt(np.mean((self.predicted.truth - self.predicted.means) ** 2)))

    @property
    def coverage_95(self) -> float | None:
        """Share of the 95 % intervals that contain the truth."""
        return None if self.predicted is None else float(np.mean(self._squares <= NORMAL_95**2))

    @property
    def squared(self) -> float | None:
        """Mean of squared error over variance."""
        return None if self.predicted is None else float(self._squares.mean())

    @property
    def is_calibrated(self) -> bool:
        """True if coverage and the mean of z^2 are within their limits, or beyond them by chance (two deviations)."""
        if self.squared is None or self.coverage_95 is None:
            return False
        chance = 2.0 * math.sqrt(0.05 * 0.95 / self._squares.size)
        fits = SQUARED[0] - self._doubt <= self.squared <= SQUARED[1] + self._doubt
        return fits and COVERAGE[0] - chance <= self.coverage_95 <= COVERAGE[1] + chance

    @property
    def _doubt(self) -> float:
        """Two standard errors of the mean of z^2."""
        return 2.0 * float(self._squares.std()) / math.sqrt(self._squares.size)

    def beats(self, other: Judged, least: float = LEAST_GAIN) -> bool:
        """True if this candidate predicts better by more than chance and by more than `least` nats a sample."""
        if self.predicted is None or other.predicted is None:
            return self.predicted is not None
        gains = other.losses - self.losses
        error = float(gains.std(ddof=1)) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
        return float(gains.mean()) > max(least, ERRORS * error)

    def rescaled(self) -> Judged | None:
        """Return the candidate with its variances scaled to the size of the errors; None if that gains too little."""
        predicted, squared = self.predicted, self.squared
        if predicted is None or squared is None or squared <= 0.0:
            return None
        if 0.5 * (squared - 1.0 - np.log(squared)) < LEAST_SCALE_GAIN or abs(squared - 1.0) < self._doubt:
            return None
        if squared < 1.0 and is_at_noise_bound(self.candidate.hyperparameters):
            return None  # repeated rows predict each other, which is no evidence of small errors
        hyperparameters = scaled(self.candidate.hyperparameters, squared)
        candidate = Candidate(hyperparameters, f"{self.candidate.origin}, variances scaled")
        return Judged(candidate, replace(predicted, variances=squared * predicted.variances), 0.0)

    def row(self) -> dict[str, Any]:
        """Return the figures in plain JSON types."""
        hyperparameters = self.candidate.hyperparameters
        names = hyperparameters.feature_names or ()
        return {
            "from": self.candidate.origin,
            "kernel": kernel_text(hyperparameters.kernel.to_json(), names).splitlines()[0].partition(":")[0],
            "noise_variance": hyperparameters.noise_variance,
            "nlpd": self.nlpd,
            "rmse": self.rmse,
            "coverage_95": self.coverage_95,
            "squared_error": self.squared,
            "seconds": self.seconds,
        }


def best_of(judged: Sequence[Judged]) -> Judged:
    """Return the first candidate that no later one beats; candidates stand in the order of their cost."""
    best = judged[0]
    for other in judged[1:]:
        if other.beats(best):
            best = other
    return best


def scaled(hyperparameters: Hyperparameters, factor: float) -> Hyperparameters:
    """Return hyperparameters with `factor` times the prior's variance and the noise: equal means, wider error bars."""
    kernel, index = hyperparameters.kernel, hyperparameters.kernel.amplitude_index
    if index is None:
        kernel = factor * kernel
    else:
        values = np.array([parameter.value for parameter in kernel.parameters()])
        values[index] *= factor
        kernel = kernel.with_parameters(values)
    parameters = hyperparameters.parameters
    if parameters is not None:
        changed = (NOISE_NAME,) if index is None else (NOISE_NAME, "variance")
        parameters = tuple(
            replace(item, value=factor * item.value) if item.name in changed else item for item in parameters
        )
    noise_variance = factor * hyperparameters.noise_variance
    return replace(hyperparameters, kernel=kernel, noise_variance=noise_variance, parameters=parameters)


def is_at_noise_bound(hyperparameters: Hyperparameters) -> bool:
    """True if the noise variance stopped at its lower bound."""
    parameters = hyperparameters.parameters or ()
    return any(item.name == NOISE_NAME and item.bound == "lower" and not item.fixed for item in parameters)


def held_out_count(n: int, subset: int) -> int:
    """Return the number of rows that judge: a tenth of n, at most `MOST_HELD_OUT`, and fewer than the subset has."""
    return max(0, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * n), min(subset, n) - 1))


def draw_held_out(n: int, subset: int, seed: int) -> IntArray:
    """Draw the rows that judge, none of them in the subset of this size."""
    size = min(subset, n)
    return plan_subsets(n, size, seed=seed, holdout=held_out_count(n, subset) / size).held_out()


@dataclass(frozen=True)
class Judge:
    """Held-out samples, and the samples that predict them.

    Attributes
    ----------
    training
        Samples that predict, and from which candidates may learn; in memory.
    inputs, targets
        The held-out samples, standardised: (h, d) and (h, p).
    """

    training: Dataset
    inputs: FloatArray
    targets: FloatArray
    seed: int

    @classmethod
    def of(cls, dataset: Dataset, held_out: IntArray, most: int, seed: int) -> Judge:
        """Hold out these rows; `most` of the others, drawn at random, predict."""
        others = np.delete(np.arange(dataset.n_samples), held_out)
        if len(others) > most:
            others = np.sort(np.random.default_rng([seed, 5]).choice(others, most, replace=False))
        inputs, targets = read_rows(dataset, others)
        names = tuple(dataset.feature_names), tuple(dataset.target_names)
        identity = Standardisation.identity(inputs.shape[1], targets.shape[1])
        return cls(assembled_dataset(inputs, targets, identity, *names, ""), *read_rows(dataset, held_out), seed)

    def judge(self, candidate: Candidate, context: RunContext) -> Judged:
        """Predict the held-out samples by the model with neighbours."""

        def predict(kernel: Kernel, noise_variance: float) -> Predicted:
            with context.operator(kernel, noise_variance, self.training) as operator:
                size = min(BASIS_SIZES["vif"], operator.n)
                predictor = near_predictor(operator, self.training.all_targets(), size, self.seed)
            means, latent, _ = predictor.predicted(self.inputs, None)
            return Predicted(self.targets, means, latent + noise_variance)

        return _judged(candidate, predict)

    def judge_basis(self, candidate: Candidate, size: int, context: RunContext) -> Judged:
        """Predict the held-out samples by the variational model of `size` basis samples, without neighbours."""

        def predict(kernel: Kernel, noise_variance: float) -> Predicted:
            with context.operator(kernel, noise_variance, self.training) as operator:
                basis = blind_basis(operator, "pivoted", min(size, operator.n), self.seed)
                model = fit_sparse(operator, self.training.all_targets(), basis, method_named("vfe")).model
            return Predicted(self.targets, model.mean(self.inputs), model.variance(self.inputs) + noise_variance)

        return _judged(candidate, predict)

    def judge_exact(self, candidate: Candidate) -> Judged:
        """Predict the held-out samples by the exact model, with a dense factor of the matrix of all other samples."""

        def predict(kernel: Kernel, noise_variance: float) -> Predicted:
            inputs, new = self.training.inputs(0, self.training.n_samples), self.inputs
            cross, prior = kernel.matrix(inputs, new), kernel.diagonal(new)
            factor = _factor(kernel, noise_variance, inputs)
            with single_threaded_blas():
                means = cross.T @ scipy.linalg.cho_solve((factor, True), self.training.all_targets())
                half = scipy.linalg.solve_triangular(factor, cross, lower=True)
            return Predicted(self.targets, means, prior - np.sum(half**2, axis=0) + noise_variance)

        return _judged(candidate, predict)


def leave_one_out(dataset: Dataset, rows: IntArray, candidate: Candidate) -> Judged:
    """Predict each of some rows from the others: mean y_i - alpha_i / P_ii, variance 1 / P_ii, P = Kbar^-1."""

    def predict(kernel: Kernel, noise_variance: float) -> Predicted:
        inputs, targets = read_rows(dataset, rows)
        factor = _factor(kernel, noise_variance, inputs)
        with single_threaded_blas():
            precision = scipy.linalg.cho_solve((factor, True), np.eye(len(inputs)), overwrite_b=True)
        diagonal = precision.diagonal().copy()
        return Predicted(targets, targets - (precision @ targets) / diagonal[:, None], 1.0 / diagonal)

    return _judged(candidate, predict)


def _judged(candidate: Candidate, predict: Callable[[Kernel, float], Predicted]) -> Judged:
    """Judge predictions by the candidate's kernel and noise variance; there are no figures if these fail."""
    began, predicted = time.perf_counter(), None
    with suppress(NumericalError, np.linalg.LinAlgError):
        predicted = predict(candidate.hyperparameters.kernel, candidate.hyperparameters.noise_variance)
    return Judged(candidate, predicted, time.perf_counter() - began)


def _factor(kernel: Kernel, noise_variance: float, inputs: FloatArray) -> FloatArray:
    """Return the lower Cholesky factor of K + s2 I for inputs (n, d); the entries above its diagonal are not zero."""
    matrix = np.asfortranarray(kernel.matrix(inputs, inputs))
    matrix[np.diag_indices_from(matrix)] += noise_variance
    with single_threaded_blas():
        return np.asarray(scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True)[0])
