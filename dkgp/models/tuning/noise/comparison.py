"""The choice between models of the noise: the plain one, and others that have to predict held-out samples better.

One with more to it is taken where its mean log density of the held-out samples is greater by more than twice the
standard error of the difference, sample by sample, and by what matters: where the plain model is right, that is rarely
so. What a single sample gains counts for three nats at most, so that a few outliers, which gain most, neither decide
alone nor hide behind the standard error that they make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.dense_algebra import factor, solve_factored, solve_half
from dkgp.models.tuning.scores import ScoreSums, scores_of
from dkgp.models.tuning.subsets import SAME_NOISE, SubsetPlan, Subsets, plan_subsets

# Standardised inputs (n, d) and targets (n, p) of a subset.
Rows: TypeAlias = tuple[FloatArray, FloatArray]
Fit: TypeAlias = Callable[[FloatArray, FloatArray], Hyperparameters]
# Of held-out samples from a subset's rows, by dense algebra; `NumericalError` where Kbar is not positive definite.
Predict: TypeAlias = "Callable[[Hyperparameters, Rows, Rows], Prediction]"

# Samples that decide, as a fraction of the subset; fewer say little.
HELD_OUT, FEWEST = 0.5, 20
# What a model with more to it must be better by: standard errors of the difference, and nats; of one sample at most.
_ERRORS, _LEAST_GAIN, _MOST_GAIN = 2.0, 0.005, 3.0


@dataclass(frozen=True)
class Prediction:
    """Held-out samples as a model tells them: `losses` (m,), negative log densities, mean over targets, and scores."""

    losses: FloatArray
    sums: ScoreSums

    def row(self) -> dict[str, Any]:
        """The scores; the density is that of the losses, which need not be a normal one."""
        scores = {name: value for name, value in scores_of([self.sums]).items() if name != "predictions"}
        return {**scores, "nlpd": float(self.losses.mean())}


@dataclass(frozen=True)
class Gain:
    """The gain of one model over another on held-out samples: mean log density, in nats, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, before: FloatArray, after: FloatArray) -> Gain:
        """Of losses (m,) of the same samples."""
        gains = np.minimum(before - after, _MOST_GAIN)
        return cls(float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(len(gains)))

    @property
    def decides(self) -> bool:
        """True if the other model is to be taken."""
        return self.mean > max(_ERRORS * self.error, _LEAST_GAIN)


@dataclass(frozen=True)
class NoiseSearch:
    """A search of a noise model beyond `start`, on a subset of `size` samples at most; `subject` names it in words.

    Raises `InputError` where there is nothing to search: the noise is held fixed, or known.
    """

    subject: str
    dataset: Dataset
    start: Hyperparameters
    size: int
    seed: int
    note: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        if any(parameter.name == "noise_variance" and parameter.fixed for parameter in self.start.parameters or ()):
            raise InputError(
                f"the noise variance is held fixed, and a {self.subject} finds it from the data; leave one of them out"
            )
        if not SAME_NOISE.beside(self.dataset).is_common:
            raise InputError(
                f"the noise of the samples is known beside the common one, and a {self.subject} finds all of it from "
                f"the data. Leave the {self.subject} out, or ingest without the column of known noise"
            )

    def fitted(self, fit: Fit) -> Hyperparameters:
        """The model that was named, of the whole subset."""
        n = self.dataset.n_samples
        return fit(*Subsets(self.dataset, plan_subsets(n, min(self.size, n), seed=self.seed)).rows(0))

    def best_of(self, plain: str, fits: Mapping[str, Fit], predict: Predict) -> Hyperparameters:
        """The best of `start`, whose name is `plain`, and of what `fits` find, with the comparison.

        Raises `InputError` where there are fewer than 20 samples.
        """
        if self.dataset.n_samples < FEWEST:
            raise InputError(
                f"a {self.subject} by `auto` holds samples out, and needs {FEWEST}; there are "
                f"{self.dataset.n_samples}. Name the {self.subject}, or leave it out"
            )
        plan = self._plan()
        source = Subsets(self.dataset, plan)
        rows, held_out = source.rows(0), source.held_out()
        kind, best, taken = plain, self.start, predict(self.start, rows, held_out)
        table = [{"kind": plain, **taken.row(), "against": None, "gain": None, "standard_error": None}]
        for name, fit in fits.items():
            try:
                tuned = fit(*rows)
                predicted = predict(tuned, rows, held_out)
            except NumericalError as failure:
                self.note(f"{self.subject} {name}: {failure}")
                continue
            gain = Gain.of(taken.losses, predicted.losses)
            of_gain = {"against": kind, "gain": gain.mean, "standard_error": gain.error}
            table.append({"kind": name, **predicted.row(), **of_gain})
            if gain.decides:
                kind, best, taken = name, tuned, predicted
        self._tell(table, plan)
        self.note(f"the {self.subject} is {kind}")
        if kind != plain and plan.size < min(self.size, self.dataset.n_samples):
            best = self.fitted(fits[kind])  # the samples that were held out have decided; now they count
        comparison = {"kind": kind, "samples": plan.size, "held_out": plan.holdout, "kinds": table}
        return replace(best, noise_comparison=comparison)

    def _plan(self) -> SubsetPlan:
        """A subset and half as many samples held out; of too few samples, a third of them are."""
        n = self.dataset.n_samples
        size, third = min(self.size, n), n // 3
        plan = plan_subsets(n, size, seed=self.seed, holdout=HELD_OUT)
        return plan if plan.size == size else replace(plan, size=n - third, holdout=third)

    def _tell(self, table: list[dict[str, Any]], plan: SubsetPlan) -> None:
        for row in table:
            against = row["against"]
            gained = "" if against is None else f" ({row['gain']:+.4f} than {against}, +- {row['standard_error']:.4f})"
            samples = f"{plan.holdout:,} held-out samples"
            self.note(f"{self.subject} {row['kind']}: NLPD {row['nlpd']:.4f} on {samples}{gained}")


def held_out_function(
    kernel: Kernel, noise: FloatArray, rows: Rows, inputs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean (m, p) and variance (m,) of the function at inputs (m, d), of samples with noise variances (n,).

    Raises `NumericalError` where Kbar is not positive definite.
    """
    matrix = np.asfortranarray(kernel.matrix(rows[0], rows[0]))
    np.einsum("ii->i", matrix)[:] += noise
    if not factor(matrix):
        raise NumericalError("the kernel matrix of the subset is not positive definite")
    cross = np.asfortranarray(kernel.matrix(rows[0], inputs))
    mean = cross.T @ solve_factored(matrix, np.asfortranarray(rows[1]))
    solve_half(matrix, cross)
    return mean, np.maximum(kernel.diagonal(inputs) - np.einsum("ij,ij->j", cross, cross), 0.0)


def normal_losses(errors: FloatArray, variance: FloatArray) -> FloatArray:
    """Negative log densities (m,) of errors (m, p), of normal distributions of variance (m,); mean over targets."""
    losses = 0.5 * (np.log(2.0 * math.pi * variance)[:, None] + errors**2 / variance[:, None])
    return np.asarray(losses.mean(axis=1))
