"""`tune`: hyperparameters by maximising the likelihood of random subsets (section 3 of the GBCD paper).

Several subsets' log likelihoods are added. Each evaluation is one task for each subset, in parallel; values and
gradients are summed in the order of the subsets, so that the result has the same bits on any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.likelihood_search import ProgressCallback, SearchSettings
from dkgp.models.tuning.priors import LogNormal
from dkgp.models.tuning.run import Choices, run_tuning
from dkgp.models.tuning.subsets import (
    ArraySubsets,
    StoredSubsets,
    TunedDataset,
    as_columns,
    draw_subset,
    plan_subsets,
)
from dkgp.models.tuning.tasks import Objective

__all__ = ["TunedDataset", "draw_subset", "tune", "tune_dataset"]


def tune(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    kernel: Kernel | str | None = None,
    subset: int = 2000,
    subsets: int = 1,
    objective: Objective = "likelihood",
    seed: int = 0,
    learn_variance: bool = False,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    fixed: Mapping[str, float] | None = None,
    priors: Mapping[str, LogNormal | str] | None = None,
    start: Hyperparameters | None = None,
    tolerance: float = 1e-4,
    restarts: int = 1,
    max_evaluations: int = 300,
    folds: int | None = None,
    holdout: float | None = None,
    executor: BlockExecutor | None = None,
    progress: ProgressCallback | None = None,
    feature_names: Sequence[str] | None = None,
) -> Hyperparameters:
    """Find a kernel's hyperparameters and the noise variance s2 by maximum likelihood on random subsets.

    Parameters
    ----------
    inputs : (n, d) array_like
        Standardised inputs.
    targets : (n,) or (n, p) array_like
        Standardised targets; several share the hyperparameters.
    kernel : Kernel or str, optional
        A kernel, whose values are where the search starts, or an expression such as "matern32 + linear"
        (`dkgp.kernels.parse_kernel`). By default the squared exponential with one gamma for each feature.
    subset : int
        How many samples a subset has; all of them where there are fewer. One evaluation costs O(subset^3) for each
        subset.
    subsets : int
        How many subsets are drawn, disjoint where the data suffice. Their log likelihoods are added.
    objective : {"likelihood", "loo"}
        The log marginal likelihood, or the leave-one-out predictive log likelihood (Rasmussen and Williams 2006,
        section 5.4.2), which takes twice the time and three matrices of a subset's size instead of two.
    seed : int
        Of the draws, of the starting points after the first, and of the folds.
    learn_variance : bool
        Whether the amplitude v of a kernel that is not a sum or product is free; otherwise v = 1.
    bounds, fixed : mapping, optional
        (lower, upper), or a value to hold on to, for parameters by name or pattern: `gamma.lat` is the gamma of the
        feature 'lat', `gamma*` those of all, `noise_variance` the noise.
    priors : mapping, optional
        Log-normal priors by name or pattern, as `LogNormal` or text, "lognormal(0.1, 1)"; their log densities are added
        to the objective.
    start : Hyperparameters, optional
        Where to start; its kernel is taken where `kernel` is not given.
    tolerance : float
        Stop when one step changes the objective by at most this (relative to its size, where that exceeds 1) and every
        hyperparameter by at most this (relative to its size; for a gamma below 1, absolutely).
    restarts : int
        Number of starting points; the best optimum is kept. A few more are tried where they find nothing but noise.
    max_evaluations : int
        Limit for each starting point.
    folds : int, optional
        Score the result by so many folds of each subset, each predicted from its others, without tuning again.
    holdout : float, optional
        Score the result on rows that no subset holds: as many as this fraction of a subset, predicted from each subset.
    executor : BlockExecutor, optional
        Who evaluates the subsets; not closed. By default this process's threads. Arrays need one in this process.
    progress : callable, optional
        Called with a `TuneProgress` after each evaluation.
    feature_names : sequence of d str, optional
        Kept in the result and used in messages; x0, x1, ... by default.

    Returns
    -------
    Hyperparameters
        On the standardised scale. Not meeting the tolerance is no error: see `converged` and `warnings`.

    Raises
    ------
    InputError
        Arrays of unfit shape or with NaN or infinity, names that do not exist, or settings out of range.
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
    all_targets = as_columns(np.asarray(targets, dtype=np.float64))
    if all_inputs.ndim != 2 or all_inputs.shape[1] == 0:
        raise InputError(f"inputs must be of shape (n, d) with at least one feature; got {all_inputs.shape}")
    if all_targets.shape[0] != all_inputs.shape[0]:
        raise InputError(
            f"inputs have {all_inputs.shape[0]} rows, but targets {all_targets.shape[0]}; expected as many"
        )
    if executor is not None and not executor.shares_memory:
        raise InputError(
            "workers in other processes cannot read arrays of this one; write the data to a store first (dkgp ingest) "
            "and use tune_dataset, or take an executor in this process"
        )
    d = all_inputs.shape[1]
    names = tuple(f"x{index}" for index in range(d)) if feature_names is None else tuple(feature_names)
    if len(names) != d:
        raise InputError(f"inputs have {d} features, but {len(names)} names are given")
    plan = plan_subsets(all_inputs.shape[0], subset, subsets=subsets, seed=seed, holdout=holdout)
    settings = SearchSettings(seed, learn_variance, tolerance, restarts, max_evaluations, progress)
    choices = Choices(kernel, objective, bounds, fixed, priors, start, folds)
    return run_tuning(ArraySubsets.of(all_inputs, all_targets, plan), plan, names, choices, settings, executor)


def tune_dataset(
    dataset: TunedDataset,
    *,
    kernel: Kernel | str | None = None,
    subset: int = 2000,
    subsets: int = 1,
    objective: Objective = "likelihood",
    seed: int = 0,
    learn_variance: bool = False,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    fixed: Mapping[str, float] | None = None,
    priors: Mapping[str, LogNormal | str] | None = None,
    start: Hyperparameters | None = None,
    tolerance: float = 1e-4,
    restarts: int = 1,
    max_evaluations: int = 300,
    folds: int | None = None,
    holdout: float | None = None,
    executor: BlockExecutor | None = None,
    progress: ProgressCallback | None = None,
) -> Hyperparameters:
    """Like `tune`, on subsets drawn from a dataset store, which each worker reads for itself.

    Parameters
    ----------
    dataset : Dataset
        The training set; read under its own standardisation.
    kernel, subset, subsets, objective, seed, learn_variance, bounds, fixed, priors, start, tolerance, restarts
        As for `tune`.
    max_evaluations, folds, holdout, progress
        As for `tune`.
    executor : BlockExecutor, optional
        Who evaluates the subsets; not closed. Its workers must reach the store.

    Returns
    -------
    Hyperparameters
        The same as `tune` gives for the whole dataset as arrays. Errors as there.
    """
    plan = plan_subsets(dataset.n_samples, subset, subsets=subsets, seed=seed, holdout=holdout)
    settings = SearchSettings(seed, learn_variance, tolerance, restarts, max_evaluations, progress)
    choices = Choices(kernel, objective, bounds, fixed, priors, start, folds)
    names = tuple(dataset.feature_names)
    return run_tuning(StoredSubsets(dataset, plan), plan, names, choices, settings, executor)
