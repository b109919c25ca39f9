"""The choice of a noise model: one that was named, or the one of the best density of held-out samples.

A model with more to it is taken where its mean log density of the held-out samples is greater by more than twice the
standard error of the difference, sample by sample, and by what matters: where the noise is the same everywhere, that is
rarely so. What a single sample gains counts for three nats at most, so that a few outliers, which gain most, neither
decide alone nor hide behind the standard error that they make.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise.model import KINDS
from dkgp.models.tuning.dense_algebra import factor, solve_factored, solve_half
from dkgp.models.tuning.likelihood_search import SearchSettings
from dkgp.models.tuning.noise.search import fit_noise
from dkgp.models.tuning.problem import Choices
from dkgp.models.tuning.scores import ScoreSums, scores_of
from dkgp.models.tuning.subsets import SubsetPlan, Subsets, plan_subsets

NoiseKind: TypeAlias = Literal["none", "linear", "gp", "auto"]
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)

# Samples that decide, as a fraction of the subset; fewer say little.
HELD_OUT, FEWEST = 0.5, 20
# What a model with more to it must be better by: standard errors of the difference, and nats; of one sample at most.
_ERRORS, _LEAST_GAIN, _MOST_GAIN = 2.0, 0.005, 3.0


@dataclass(frozen=True)
class _Scored:
    kind: str
    hyperparameters: Hyperparameters
    losses: FloatArray  # (m,): negative log densities of held-out samples, mean over targets
    sums: ScoreSums


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


def tune_noise(
    dataset: Dataset,
    start: Hyperparameters,
    kind: NoiseKind,
    *,
    choices: Choices,
    settings: SearchSettings,
    subset: int,
    note: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Find how the noise depends on the inputs, and move the kernel with it.

    Parameters
    ----------
    dataset : Dataset
        The training set.
    start : Hyperparameters
        As `tune_dataset` found them, with the same noise everywhere.
    kind : {"none", "linear", "gp", "auto"}
        Whether log s2 is linear in the inputs or a Gaussian process; auto: what held-out samples say, none included.
    choices, settings
        Of the search that found `start`; their bounds, fixed values and priors hold on.
    subset : int
        Samples of the subset; for `auto` half as many more are held out, of few samples a third of them.
    note : callable, optional
        Called with a line for each kind that was looked at.

    Returns
    -------
    Hyperparameters
        With a noise model, or `start` where there is to be none; after `auto` with the comparison.

    Raises
    ------
    InputError
        A noise variance that is held fixed, known noise of the samples, or fewer than 20 of them for `auto`.
    NumericalError
        A kernel matrix is not positive definite.
    """
    if kind == "none":
        return start
    if any(parameter.name == "noise_variance" and parameter.fixed for parameter in start.parameters or ()):
        raise InputError(
            "the noise variance is held fixed, and a noise model lets it depend on the inputs; leave one of them out"
        )
    if dataset.all_sample_noise() is not None:
        raise InputError(
            "the noise of the samples is known beside the common one; a noise model finds all of it from the inputs. "
            "Leave the noise model out, or ingest without the column of known noise"
        )
    settings = replace(settings, tolerance=max(settings.tolerance, 1e-3), restarts=1, max_evaluations=150)
    size = min(subset, dataset.n_samples)
    with single_threaded_blas():
        if kind != "auto":
            rows = Subsets(dataset, plan_subsets(dataset.n_samples, size, seed=settings.seed)).rows(0)
            return fit_noise(kind, start, *rows, choices, settings)
        if dataset.n_samples < FEWEST:
            raise InputError(
                f"a noise model by `auto` holds samples out, and needs {FEWEST}; there are {dataset.n_samples}. Name "
                "the noise model, or leave it out"
            )
        return _compared(dataset, start, choices, settings, size, note)


def held_out_plan(n_samples: int, size: int, seed: int) -> SubsetPlan:
    """A subset of `size` samples and half as many held out; of too few samples, a third of them are."""
    plan = plan_subsets(n_samples, size, seed=seed, holdout=HELD_OUT)
    third = n_samples // 3
    return plan if plan.size == size else replace(plan, size=n_samples - third, holdout=third)


def _compared(
    dataset: Dataset,
    start: Hyperparameters,
    choices: Choices,
    settings: SearchSettings,
    size: int,
    note: Callable[[str], None] | None,
) -> Hyperparameters:
    plan = held_out_plan(dataset.n_samples, size, settings.seed)
    source = Subsets(dataset, plan)
    rows, held_out = source.rows(0), source.held_out()
    scored = [_scored("none", start, rows, held_out)]
    best = scored[0]
    table: list[dict[str, Any]] = [_row(best, None)]
    for kind in KINDS:
        try:
            found = _scored(kind, fit_noise(kind, start, *rows, choices, settings), rows, held_out)
        except NumericalError as failure:
            if note is not None:
                note(f"noise model {kind}: {failure}")
            continue
        gain = Gain.of(best.losses, found.losses)
        table.append(_row(found, best.kind, gain))
        if gain.decides:
            best = found
    if note is not None:
        for row in table:
            against = row["against"]
            gained = "" if against is None else f" ({row['gain']:+.4f} than {against}, +- {row['standard_error']:.4f})"
            note(f"noise model {row['kind']}: NLPD {row['nlpd']:.4f} on {plan.holdout:,} held-out samples{gained}")
        note(f"the noise model is {best.kind}")
    result = best.hyperparameters
    if best.kind != "none" and plan.size < size:
        # The samples that were held out have decided; now they count.
        rows = Subsets(dataset, plan_subsets(dataset.n_samples, size, seed=settings.seed)).rows(0)
        result = fit_noise(best.kind, start, *rows, choices, settings)
    comparison = {"kind": best.kind, "samples": plan.size, "held_out": plan.holdout, "kinds": table}
    return replace(result, noise_comparison=comparison)


def _row(scored: _Scored, against: str | None, gain: Gain | None = None) -> dict[str, Any]:
    figures = {name: value for name, value in scores_of([scored.sums]).items() if name != "predictions"}
    mean, error = (None, None) if gain is None else (gain.mean, gain.error)
    return {"kind": scored.kind, **figures, "against": against, "gain": mean, "standard_error": error}


def _scored(
    kind: str,
    hyperparameters: Hyperparameters,
    rows: tuple[FloatArray, FloatArray],
    held_out: tuple[FloatArray, FloatArray],
) -> _Scored:
    """Predict the held-out samples (m, d), (m, p) from a subset's by dense algebra."""
    (inputs, targets), (new, truth) = rows, held_out
    kernel, noise = hyperparameters.kernel, noise_at(hyperparameters, inputs)
    matrix = np.asfortranarray(kernel.matrix(inputs, inputs))
    np.einsum("ii->i", matrix)[:] += noise
    if not factor(matrix):
        raise NumericalError("the kernel matrix of the subset is not positive definite")
    cross = np.asfortranarray(kernel.matrix(inputs, new))
    mean = cross.T @ solve_factored(matrix, np.asfortranarray(targets))
    solve_half(matrix, cross)
    latent = np.maximum(kernel.diagonal(new) - np.einsum("ij,ij->j", cross, cross), 0.0)
    variance = latent + noise_at(hyperparameters, new)
    losses = 0.5 * (np.log(2.0 * math.pi * variance)[:, None] + (truth - mean) ** 2 / variance[:, None])
    return _Scored(kind, hyperparameters, losses.mean(axis=1), ScoreSums.of(truth, mean, variance))


def noise_at(hyperparameters: Hyperparameters, inputs: FloatArray) -> FloatArray:
    """Noise variances at standardised inputs (m, d): (m,)."""
    model = hyperparameters.noise_model
    return np.full(len(inputs), hyperparameters.noise_variance) if model is None else model.variances(inputs)
