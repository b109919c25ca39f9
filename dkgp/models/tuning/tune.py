"""`tune`: hyperparameters by maximising the likelihood of random subsets (section 3 of the GBCD paper).

Several subsets' log likelihoods are added. Each evaluation is one task for each subset, in parallel; values and
gradients are summed in the order of the subsets, so that the result has the same bits on any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import Noise
from dkgp.models.trend import CENTRED, MeanKind
from dkgp.models.tuning.likelihood_search import ProgressCallback, SearchSettings
from dkgp.models.tuning.problem import Choices
from dkgp.models.tuning.run import run_tuning
from dkgp.models.tuning.search_space import LogNormal
from dkgp.models.tuning.subsets import SAME_NOISE, Subsets, plan_subsets, require_finite
from dkgp.models.tuning.tasks import Objective

DEFAULT_SUBSET = 2000


class TuneOptions(TypedDict, total=False):
    """Keywords of `tune` and `tune_dataset`, which documents them: of the subsets, of the search, of what may move."""

    subset: int
    subsets: int
    holdout: float | None
    seed: int
    learn_variance: bool
    tolerance: float
    restarts: int
    max_evaluations: int
    progress: ProgressCallback | None
    kernel: Kernel | str | None
    objective: Objective
    bounds: Mapping[str, tuple[float, float]] | None
    fixed: Mapping[str, float] | None
    priors: Mapping[str, LogNormal | str] | None
    start: Hyperparameters | None
    folds: int | None
    sample_noise: FloatArray | None
    relative_noise: FloatArray | None
    mean: MeanKind


def tune_dataset(
    dataset: Dataset, *, executor: BlockExecutor | None = None, **options: Unpack[TuneOptions]
) -> Hyperparameters:
    """Find a kernel's hyperparameters and the noise variance s2 by maximum likelihood on random subsets.

    Parameters
    ----------
    dataset : Dataset
        The training set, read under its own standardisation; several targets share the hyperparameters.
    kernel : Kernel or str, optional
        A kernel, whose values are where the search starts, or an expression such as "matern32 + linear"
        (`dkgp.kernels.parse_kernel`). By default the squared exponential with one gamma for each feature.
    subset : int, default 2000
        How many samples a subset has; all of them where there are fewer. One evaluation costs O(subset^3) for each
        subset.
    subsets : int, default 1
        How many subsets are drawn, disjoint where the data suffice. Their log likelihoods are added.
    objective : {"likelihood", "loo"}, default "likelihood"
        The log marginal likelihood, or the leave-one-out predictive log likelihood (Rasmussen and Williams 2006,
        section 5.4.2), which takes twice the time and three matrices of a subset's size instead of two.
    seed : int, default 0
        Of the draws, of the starting points after the first, and of the folds.
    learn_variance : bool, default False
        Whether the amplitude v of a kernel that is not a sum or product is free; otherwise v = 1.
    bounds, fixed : mapping, optional
        (lower, upper), or a value to hold on to, for parameters by name or pattern: `gamma.lat` is the gamma of the
        feature 'lat', `gamma*` those of all, `noise_variance` the noise.
    priors : mapping, optional
        Log-normal priors by name or pattern, as `LogNormal` or text, "lognormal(0.1, 1)"; their log densities are added
        to the objective.
    start : Hyperparameters, optional
        Where to start; its kernel is taken where `kernel` is not given.
    tolerance : float, default 1e-4
        Stop when one step changes the objective by at most this (relative to its size, where that exceeds 1) and every
        hyperparameter by at most this (relative to its size; for a gamma below 1, absolutely).
    restarts : int, default 1
        Number of starting points; the best optimum is kept. A few more are tried where they find nothing but noise.
    max_evaluations : int, default 300
        Limit for each starting point.
    folds : int, optional
        Score the result by so many folds of each subset, each predicted from its others, without tuning again.
    holdout : float, optional
        Score the result on rows that no subset holds: as many as this fraction of a subset, predicted from each subset.
    sample_noise : (n,) float64, optional
        Known noise variances of the samples, standardised; s2 is what all have beside. By default those that the data
        set has.
    relative_noise : (n,) float64, optional
        The multiple of s2 that each sample has.
    mean : {"centred", "constant", "linear"}, default "centred"
        The mean to train with, see `dkgp.models.exact.train`: its coefficients are left out of what is maximised
        (restricted likelihood). The amplitude is then always free, and there are no scores.
    executor : BlockExecutor, optional
        Who evaluates the subsets; not closed. Its workers must reach the store. By default this process's threads.
    progress : callable, optional
        Called with a `TuneProgress` after each evaluation.

    Returns
    -------
    Hyperparameters
        On the standardised scale. Not meeting the tolerance is no error: see `converged` and `warnings`.

    Raises
    ------
    InputError
        Subsets with NaN or infinity, names that do not exist, or settings out of range.
    NumericalError
        The kernel matrix was not positive definite at any starting point.
    """
    unknown = options.keys() - TuneOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"tune_dataset() got an unexpected keyword argument '{min(unknown)}'")
    subset, subsets = options.get("subset", DEFAULT_SUBSET), options.get("subsets", 1)
    seed, holdout = options.get("seed", 0), options.get("holdout")
    plan = plan_subsets(dataset.n_samples, subset, subsets=subsets, seed=seed, holdout=holdout)
    if options.get("mean", CENTRED) != CENTRED and holdout is not None:
        raise InputError(f"scores on a holdout know no `mean` {options.get('mean')}; leave `holdout` out")
    settings = SearchSettings(**fields_of(SearchSettings, options))
    choices = Choices(**fields_of(Choices, options))
    source, relative = Subsets(dataset, plan), options.get("relative_noise")
    known = options.get("sample_noise")
    if relative is not None or known is not None:
        noise = replace(SAME_NOISE, by_sample=known, relative=relative).beside(dataset)
        _require_noise(noise, dataset.n_samples)
        source = Subsets.with_noise(dataset, plan, noise)
    return run_tuning(source, tuple(dataset.feature_names), choices, settings, executor)


def _require_noise(noise: Noise, n: int) -> None:
    """Refuse noise of other samples, or below zero; `InputError`."""
    for name, values in (("sample_noise", noise.by_sample), ("relative_noise", noise.relative)):
        if values is None:
            continue
        if values.shape != (n,):
            raise InputError(f"`{name}` has shape {values.shape}; expected ({n},), a value for each sample")
        if not (np.isfinite(values) & (values >= 0.0)).all():
            row = int(np.argmin(np.isfinite(values) & (values >= 0.0)))
            raise InputError(f"`{name}` is {values[row]} for sample {row}; expected finite values, none below zero")


def fields_of(part: type[SearchSettings] | type[Choices], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are fields of a part of a search."""
    return {item.name: options[item.name] for item in fields(part) if item.name in options}


def tune(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    executor: BlockExecutor | None = None,
    feature_names: Sequence[str] | None = None,
    **settings: Unpack[TuneOptions],
) -> Hyperparameters:
    """Like `tune_dataset`, on arrays: (n, d) standardised inputs and (n,) or (n, p) standardised targets.

    Parameters
    ----------
    inputs, targets : array_like
    executor : BlockExecutor, optional
        As for `tune_dataset`; in this process.
    feature_names : sequence of d str, optional
        Kept in the result and used in messages; x0, x1, ... by default.
    settings
        As for `tune_dataset`.

    Returns
    -------
    Hyperparameters
        As of `tune_dataset`.

    Raises
    ------
    InputError
        Arrays of unfit shape, NaN or infinity anywhere in them, or as `tune_dataset`.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((60, 2))
    >>> found = tune(x, np.sin(2.0 * x[:, 0]))
    >>> bool(found.gamma[0] > 10.0 * found.gamma[1])
    True
    """
    all_inputs, all_targets = np.asarray(inputs, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if all_inputs.ndim != 2 or all_inputs.shape[1] == 0:
        raise InputError(f"inputs must be of shape (n, d) with at least one feature; got {all_inputs.shape}")
    if all_targets.ndim not in (1, 2) or 0 in all_targets.shape[1:]:
        raise InputError(f"targets must be of shape (n,) or (n, p); got {all_targets.shape}")
    if len(all_targets) != len(all_inputs):
        raise InputError(f"inputs have {len(all_inputs)} rows, but targets {len(all_targets)}; expected as many")
    for name, values in (("inputs", all_inputs), ("targets", all_targets)):
        require_finite(name, values.reshape(len(values), -1), "the arrays' row")
    if executor is not None and not executor.shares_memory:
        raise InputError(
            "workers in other processes cannot read arrays of this one; write the data to a store first (dkgp ingest) "
            "and use tune_dataset, or take an executor in this process"
        )
    columns = all_targets[:, None] if all_targets.ndim == 1 else all_targets
    d, p = all_inputs.shape[1], columns.shape[1]
    names = tuple(f"x{index}" for index in range(d)) if feature_names is None else tuple(feature_names)
    if len(names) != d:
        raise InputError(f"inputs have {d} features, but {len(names)} names are given")
    dataset = assembled_dataset(all_inputs, columns, Standardisation.identity(d, p), names, ("",) * p, "")
    return tune_dataset(dataset, executor=executor, **settings)
