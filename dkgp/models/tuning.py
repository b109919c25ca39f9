"""`tune`: hyperparameters by maximising the marginal likelihood on a random subset (section 3 of the GBCD paper)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.likelihood_search import (
    LikelihoodSearch,
    Optimum,
    ProgressCallback,
    SearchSettings,
    fallback_starting_points,
    starting_points,
)
from dkgp.models.marginal_likelihood import ArdSquaredExponential, KernelFamily, LogMarginalLikelihood

__all__ = ["TunedDataset", "draw_subset", "tune", "tune_dataset"]

FloatArray: TypeAlias = NDArray[np.float64]

NOISE_VARIANCE_BOUNDS = (1e-6, 4.0)
_LEAST_GAIN_PER_SAMPLE = 0.005  # nats; a signal that explains 1 % of the variance
_IRRELEVANT = " (the targets hardly depend on a feature whose gamma is that small)"
_BOUND_MARGIN = 1e-3  # in log space: nearer to a bound than a tenth of a per cent is on it


class TunedDataset(Protocol):
    """What `tune_dataset` needs of a dataset: sizes, names, and rows on the standardised scale."""

    @property
    def n_samples(self) -> int:
        """Number of samples n."""

    @property
    def chunk_rows(self) -> int:
        """Rows to read at a time."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features kept."""

    def input_rows(self, indices: Any, /) -> FloatArray:
        """Rows of the standardised inputs: (len(indices), d)."""

    def targets(self, start: int, stop: int, /) -> FloatArray:
        """Standardised targets of the samples from `start` up to `stop`: (stop - start, p)."""


def tune(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    subset: int = 2000,
    seed: int = 0,
    learn_variance: bool = False,
    tolerance: float = 1e-4,
    restarts: int = 1,
    max_evaluations: int = 300,
    progress: ProgressCallback | None = None,
    feature_names: Sequence[str] | None = None,
) -> Hyperparameters:
    """Find gamma_1 .. gamma_d, the noise variance s2 and, by choice, the amplitude v by maximum marginal likelihood.

    Parameters
    ----------
    inputs : (n, d) array_like
        Standardised inputs.
    targets : (n,) or (n, p) array_like
        Standardised targets; several share the hyperparameters.
    subset : int
        How many samples to draw; all of them where there are fewer. One evaluation costs O(subset^3).
    seed : int
        Of the draw and of the starting points after the first.
    learn_variance : bool
        Whether the amplitude v is free; otherwise v = 1.
    tolerance : float
        Stop when one step changes the log marginal likelihood by at most this (relative to its size, where that
        exceeds 1) and every hyperparameter by at most this (relative to its size; for a gamma below 1, absolutely).
    restarts : int
        Number of starting points; the best optimum is kept. A few more are tried where they find nothing but noise.
    max_evaluations : int
        Limit for each starting point.
    progress : callable, optional
        Called with a `TuneProgress` after each evaluation.
    feature_names : sequence of d str, optional
        Kept in the result and used in messages.

    Returns
    -------
    Hyperparameters
        On the standardised scale. Not meeting the tolerance is no error: see `converged` and `warnings`.

    Raises
    ------
    InputError
        Arrays of unfit shape or with NaN or infinity, or settings out of range.
    NumericalError
        The kernel matrix was not positive definite at any starting point.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((60, 2))
    >>> found = tune(x, np.sin(2.0 * x[:, 0]))
    >>> bool(found.gamma[0] > 10.0 * found.gamma[1])
    True
    """
    all_inputs = np.asarray(inputs, dtype=np.float64)
    all_targets = _as_columns(np.asarray(targets, dtype=np.float64))
    if all_inputs.ndim != 2 or all_inputs.shape[1] == 0:
        raise InputError(f"inputs must be of shape (n, d) with at least one feature; got {all_inputs.shape}")
    if all_targets.shape[0] != all_inputs.shape[0]:
        raise InputError(
            f"inputs have {all_inputs.shape[0]} rows, but targets {all_targets.shape[0]}; expected as many"
        )
    names = (
        tuple(f"x{index}" for index in range(all_inputs.shape[1])) if feature_names is None else tuple(feature_names)
    )
    settings = SearchSettings(seed, learn_variance, tolerance, restarts, max_evaluations, progress)
    indices = draw_subset(all_inputs.shape[0], subset, seed)
    return _tune(all_inputs[indices], all_targets[indices], all_inputs.shape[0], names, settings)


def tune_dataset(
    dataset: TunedDataset,
    *,
    subset: int = 2000,
    seed: int = 0,
    learn_variance: bool = False,
    tolerance: float = 1e-4,
    restarts: int = 1,
    max_evaluations: int = 300,
    progress: ProgressCallback | None = None,
) -> Hyperparameters:
    """Like `tune`, on a subset drawn from a dataset store; only the subset is held in memory.

    Parameters
    ----------
    dataset : Dataset
        The training set; read under its own standardisation.
    subset, seed, learn_variance, tolerance, restarts, max_evaluations, progress
        As for `tune`.

    Returns
    -------
    Hyperparameters
        The same as `tune` gives for the whole dataset as arrays.
    """
    settings = SearchSettings(seed, learn_variance, tolerance, restarts, max_evaluations, progress)
    indices = draw_subset(dataset.n_samples, subset, seed)
    inputs = dataset.input_rows(indices)
    return _tune(inputs, _target_rows(dataset, indices), dataset.n_samples, tuple(dataset.feature_names), settings)


def draw_subset(n_samples: int, subset: int, seed: int) -> NDArray[np.int64]:
    """Sorted indices of a random subset without replacement: (min(n, subset),) int64; the same for the same seed."""
    if subset < 2:
        raise InputError(f"subset must be at least 2; got {subset}")
    if n_samples < 2:
        raise InputError(f"tuning needs at least 2 samples; got {n_samples}")
    if subset >= n_samples:
        return np.arange(n_samples)
    return np.sort(np.random.default_rng(seed).choice(n_samples, size=subset, replace=False))


def _tune(
    inputs: FloatArray, targets: FloatArray, n_samples: int, feature_names: tuple[str, ...], settings: SearchSettings
) -> Hyperparameters:
    started = time.perf_counter()
    if len(feature_names) != inputs.shape[1]:
        raise InputError(f"inputs have {inputs.shape[1]} features, but {len(feature_names)} names are given")
    _require_finite("inputs", inputs)
    _require_finite("targets", targets)
    family = ArdSquaredExponential(inputs, learn_variance=settings.learn_variance, feature_names=feature_names)
    bounds = np.vstack([family.bounds, np.log(np.array([NOISE_VARIANCE_BOUNDS]))])
    search = LikelihoodSearch(LogMarginalLikelihood(family, targets), bounds, inputs.shape[1], settings)
    # A second BLAS thread gains a tenth here; on a busy machine BLAS threads waiting for each other cost many times
    # that.
    with single_threaded_blas():
        for parameters in starting_points(family, bounds, settings):
            search.run(parameters)
        if _is_mere_noise(search.best, targets):
            for parameters in fallback_starting_points(family, bounds, inputs.shape[1]):
                search.run(parameters)
                if not _is_mere_noise(search.best, targets):
                    break
    best = search.best
    if best is None:
        raise NumericalError(
            "the kernel matrix was not positive definite at any starting point. Look for inputs that are not "
            "standardised, or give the hyperparameters yourself"
        )
    return Hyperparameters(
        kernel=family.kernel(best.parameters[:-1]),
        noise_variance=math.exp(best.parameters[-1]),
        log_marginal_likelihood=best.value,
        evaluations=search.evaluations,
        seconds=time.perf_counter() - started,
        converged=best.converged,
        subset_size=inputs.shape[0],
        n_samples=n_samples,
        seed=settings.seed,
        feature_names=feature_names,
        warnings=tuple(_warnings(family, bounds, best, targets, settings)),
    )


def _is_mere_noise(best: Optimum | None, targets: FloatArray) -> bool:
    """Whether the best model found explains no more than independent samples of the targets' variance would."""
    n_samples = targets.shape[0]
    variances = np.maximum(np.mean(targets * targets, axis=0), np.finfo(np.float64).tiny)
    independent = -0.5 * n_samples * float(np.log(2.0 * math.pi * math.e * variances).sum())
    return best is None or best.value < independent + _LEAST_GAIN_PER_SAMPLE * targets.size


def _warnings(
    family: KernelFamily, bounds: FloatArray, best: Optimum, targets: FloatArray, settings: SearchSettings
) -> list[str]:
    found = []
    if not best.converged:
        found.append(
            f"tuning stopped before its tolerance of {settings.tolerance:g} was met (at most "
            f"{settings.max_evaluations} evaluations): raise the limit, or take the values as a good guess"
        )
    if _is_mere_noise(best, targets):
        found.append(
            "no structure found: the model is no likelier than one of pure noise. Look at the choice of features and "
            "target, or tune on a larger subset"
        )
    on_bound: dict[str, list[str]] = {}
    for name, value, (lower, upper) in zip((*family.names, "the noise variance"), best.parameters, bounds, strict=True):
        for bound, side in ((lower, "lower"), (upper, "upper")):
            if abs(value - bound) <= _BOUND_MARGIN:
                on_bound.setdefault(f"on its {side} bound, {math.exp(bound):.3g}", []).append(name)
    for where, names in on_bound.items():
        found.append(f"{where}: {', '.join(names)}" + (_IRRELEVANT if "lower" in where and "gamma" in names[0] else ""))
    spread = targets.std(axis=0)
    if not settings.learn_variance and bool(np.any((spread < 0.3) | (spread > 3.0))):
        found.append(
            f"the targets' standard deviation on the subset is {_span(spread)}, not near 1, but the amplitude is fixed "
            "at 1: standardise the targets, or let the variance be learnt"
        )
    return found


def _span(values: FloatArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _target_rows(dataset: TunedDataset, indices: NDArray[np.int64]) -> FloatArray:
    blocks = []
    for start in range(0, dataset.n_samples, dataset.chunk_rows):
        stop = min(start + dataset.chunk_rows, dataset.n_samples)
        first, last = np.searchsorted(indices, [start, stop])
        if first < last:
            blocks.append(dataset.targets(start, stop)[indices[first:last] - start])
    return _as_columns(np.concatenate(blocks))


def _as_columns(targets: FloatArray) -> FloatArray:
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[1] == 0):
        raise InputError(f"targets must be of shape (n,) or (n, p); got {targets.shape}")
    return targets[:, None] if targets.ndim == 1 else targets


def _require_finite(name: str, values: FloatArray) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise InputError(
            f"{name} hold {int(bad.sum())} values that are NaN or infinite, the first in the subset's row {row}, "
            f"column {column}; expected finite numbers. Remove or fill those rows"
        )
