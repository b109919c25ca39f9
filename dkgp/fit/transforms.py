"""The choice of a transform of the target, on training samples alone.

Some of them are tuned on and predict others, as they are. If the verdict on these predictions is that the noise grows
with the mean, or that residuals are skewed, or if the target itself is skewed, the same samples are tuned on and
predicted again through each transform. All densities are of the target in its own units, of the same samples, so that
their differences are paired; a transform is taken where it gains more than a margin that neither chance nor a small
benefit reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import scipy

from dkgp.data import Dataset
from dkgp.data.stores.standardisation import RunningMoments, Standardisation, TransformName, fit_transform
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models import tune
from dkgp.models.verdict import FEWEST_SAMPLES, Residuals, findings

# Samples that are tuned on, and others that are predicted, at most.
TUNED, PREDICTED = 500, 1000
# Findings of a verdict that a transform may mend.
MENDABLE = ("noise and mean", "skewed")
# Skewness of the target from which transforms are compared without a finding: other faults can hide the noise's shape.
SKEWED = 1.0
# Nats a sample and target that a transform has to gain, and standard errors of that gain.
LEAST_GAIN, ERRORS = 0.02, 3.0


@dataclass(frozen=True)
class Samples:
    """Samples to tune on, inputs (n, d) standardised and targets (n, p) in their units, and others to predict."""

    inputs: FloatArray
    targets: FloatArray
    new_inputs: FloatArray
    new_targets: FloatArray
    all_positive: bool  # all that there are, those not drawn included: only then is there a logarithm of them


@dataclass(frozen=True)
class Scored:
    """A transform's predictions: negative log densities (m,), summed over targets, and residuals of each target."""

    losses: FloatArray
    residuals: tuple[Residuals, ...]


def draw(train: Dataset, test: Dataset, seed: int) -> Samples:
    """Draw the samples of a comparison from a training set that is not transformed.

    Of the test samples nothing is looked at but whether all are positive.
    """
    n = train.n_samples
    tuned = min(TUNED, n // 2)
    order = np.random.default_rng([seed, 7]).permutation(n)
    first, second = np.sort(order[:tuned]), np.sort(order[tuned : tuned + PREDICTED])
    targets, positive = (np.empty((len(rows), train.n_targets)) for rows in (first, second)), True
    of_first, of_second = targets
    for dataset in (train, test):
        for start, stop in dataset.row_chunks():
            block = dataset.targets(start, stop, standardised=False)
            positive &= bool((block > 0.0).all())
            if dataset is train:
                for rows, taken in ((first, of_first), (second, of_second)):
                    low, high = np.searchsorted(rows, [start, stop])
                    taken[low:high] = block[rows[low:high] - start]
    return Samples(train.input_rows(first), of_first, train.input_rows(second), of_second, positive)


def compare_transforms(
    samples: Samples,
    kernel: str | Kernel,
    feature_names: tuple[str, ...],
    *,
    seconds: float,
    seed: int = 0,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Return the transform to take and why, in plain JSON types.

    Parameters
    ----------
    kernel : str or Kernel
        That each is tuned with.
    feature_names : tuple of str
    seconds : float
        Time limit; a transform is left out if it would exceed it, judged by the time of the first.
    note : callable, optional
        Called with a line for each that is scored.

    Returns
    -------
    dict
        `transform`, a name or None; `reason`, in words; `findings` of the targets as they are; `compared`, of each its
        `nlpd` (nats a sample, in the units of the targets) and `seconds`.
    """
    began = time.perf_counter()
    answer: dict[str, Any] = {"transform": None, "reason": "", "findings": [], "compared": []}
    if len(samples.new_targets) < FEWEST_SAMPLES:
        return {**answer, "reason": "too few samples for a held-out set"}
    plain = _scored(None, samples, kernel, feature_names, seed)
    if plain is None:
        return {**answer, "reason": "the kernel could not be tuned on some of the samples"}
    longest = time.perf_counter() - began
    answer["compared"].append(_row("none", plain, longest))
    kinds = [finding for item in plain.residuals for finding in findings(item) if finding.kind in MENDABLE]
    answer["findings"] = [finding.text for finding in kinds]
    if not kinds and not np.any(np.abs(scipy.stats.skew(samples.targets, axis=0)) > SKEWED):
        return {**answer, "reason": "no sign that a transform would help"}
    best: tuple[TransformName, Scored] | None = None
    left_out = []
    for name in get_args(TransformName):
        if name == "log" and not samples.all_positive:
            continue
        if time.perf_counter() - began + longest > seconds:
            left_out.append(name)
            continue
        started = time.perf_counter()
        scored = _scored(name, samples, kernel, feature_names, seed)
        if scored is None:
            continue
        longest = max(longest, time.perf_counter() - started)
        answer["compared"].append(_row(name, scored, time.perf_counter() - started))
        note(f"transform {name}: NLPD {scored.losses.mean():.4f} nats per sample, without it {plain.losses.mean():.4f}")
        if best is None or scored.losses.mean() < best[1].losses.mean():
            best = name, scored
    late = f"; no time for {', '.join(left_out)}" if left_out else ""
    if best is None:
        return {**answer, "reason": f"no transform was tried{late}"}
    taken, scored = best
    gains = plain.losses - scored.losses
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
    p = samples.targets.shape[1]
    seen = (
        f"negative log predictive density of {len(gains):,} held-out training samples {scored.losses.mean():.4g} with "
        f"{taken}, {plain.losses.mean():.4g} without"
    )
    least = max(LEAST_GAIN * p, ERRORS * error)
    if gain > least:
        return {**answer, "transform": taken, "reason": f"{seen}{late}"}
    return {**answer, "reason": f"{seen}; a transform must lower it by more than {least:.2g}{late}"}


def _row(name: str, scored: Scored, seconds: float) -> dict[str, Any]:
    return {"transform": name, "nlpd": float(scored.losses.mean()), "seconds": seconds}


def _scored(
    name: TransformName | None, samples: Samples, kernel: str | Kernel, feature_names: tuple[str, ...], seed: int
) -> Scored | None:
    """Tune with a transform and predict; None if the targets do not allow it or tuning fails."""
    p = samples.targets.shape[1]
    try:
        transforms = () if name is None else tuple(fit_transform(name, column) for column in samples.targets.T)
        scale = Standardisation.identity(samples.inputs.shape[1], p)
        scale = Standardisation(scale.input_mean, scale.input_std, np.zeros(p), np.ones(p), scale.kept, transforms)
        inside = scale.targets(samples.targets)
        moments = RunningMoments(p)
        moments.update(inside)
        mean, std = moments.mean, moments.std
        if not (np.isfinite(mean).all() and (std > 0.0).all() and np.isfinite(std).all()):
            return None
        z = (inside - mean) / std
        tuned = tune(samples.inputs, z, kernel=kernel, feature_names=feature_names, seed=seed)
        means, variance = _predictions(tuned.kernel, tuned.noise_variance, samples.inputs, z, samples.new_inputs)
        errors = (scale.targets(samples.new_targets) - mean) / std - means
    except (InputError, NumericalError, np.linalg.LinAlgError):
        return None
    losses = 0.5 * np.log(2.0 * np.pi * variance)[:, None] + 0.5 * errors**2 / variance[:, None] + np.log(std)
    for t, transform in enumerate(transforms):
        losses[:, t] -= transform.log_slope(samples.new_targets[:, t])
    latent = float(np.mean(np.maximum(1.0 - tuned.noise_variance / variance, 0.0)))
    residuals = tuple(
        Residuals(
            samples.new_targets[:, t],
            samples.new_targets[:, t] - std[t] * errors[:, t],
            std[t] * np.sqrt(variance),
            samples.new_inputs,
            feature_names,
            latent_share=latent,
        )
        for t in range(p if name is None else 0)
    )
    return Scored(losses.sum(axis=1), residuals) if np.isfinite(losses).all() else None


def _predictions(
    kernel: Kernel, noise_variance: float, inputs: FloatArray, targets: FloatArray, new: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Means (m, p) and variances (m,) of new observations, by a Cholesky factor."""
    matrix = kernel.matrix(inputs, inputs)
    matrix[np.diag_indices_from(matrix)] += noise_variance
    lower = np.linalg.cholesky(matrix)
    half = scipy.linalg.solve_triangular(lower, kernel.matrix(inputs, new), lower=True)
    means = half.T @ scipy.linalg.solve_triangular(lower, targets, lower=True)
    explained = np.einsum("ij,ij->j", half, half)
    return means, np.maximum(kernel.diagonal(new) - explained, 0.0) + noise_variance
