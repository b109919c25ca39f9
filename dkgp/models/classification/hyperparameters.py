"""Hyperparameters of labels: of an LS-SVM, or of a logistic machine and a Gaussian process on labels.

An LS-SVM's kernel and regularisation come from the marginal likelihood of a regression on labels -1 and 1.

The LS-SVM's decision, its intercept apart, is the posterior mean of a Gaussian process on the signs with noise s2 =
1/gamma_K, so that the likelihood of a subset gives a length scale to every feature and s2 in one search by gradients,
where cross-validation on a grid affords one length scale for all. The intercept is taken out by centring the signs.

With the likelihood of labels it is their evidence in Laplace's approximation that is maximised. There is no noise then:
the kernel's amplitude, which is always free, says how sure the model may be, and takes the place of 1 / lambda.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.classification.exact.calibrate import LEAST_OF_A_CLASS, drawn_by_class
from dkgp.models.classification.labels import Labels
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.likelihood_search import ProgressCallback, SearchSettings
from dkgp.models.tuning.priors import LogNormal
from dkgp.models.tuning.run import Choices, run_tuning
from dkgp.models.tuning.subsets import LabelledSubsets, plan_subsets, require_finite
from dkgp.models.tuning.tasks import LabelLikelihood
from dkgp.models.tuning.tune import draw_subset, tune

__all__ = ["labelled_subsets", "tune_labels"]


def tune_labels(
    dataset: Dataset,
    labels: Labels,
    *,
    subset: int = 2000,
    seed: int = 0,
    kernel: Kernel | str | None = None,
    isotropic: bool = False,
    learn_variance: bool = False,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    fixed: Mapping[str, float] | None = None,
    priors: Mapping[str, LogNormal | str] | None = None,
    tolerance: float = 1e-3,
    max_evaluations: int = 200,
    progress: ProgressCallback | None = None,
    likelihood: LabelLikelihood | None = None,
    subsets: int = 1,
    start: Hyperparameters | None = None,
    restarts: int = 1,
    folds: int | None = None,
    holdout: float | None = None,
    weights: FloatArray | None = None,
    executor: BlockExecutor | None = None,
) -> Hyperparameters:
    """Find kernel and s2 = 1/gamma_K by the marginal likelihood of the signs, or a kernel by the labels' evidence.

    Parameters
    ----------
    dataset : Dataset
        Of which the subset's standardised inputs are read.
    labels : Labels
        Several classes have a column of signs each, which share the hyperparameters.
    subset, seed, kernel, bounds, fixed, priors, progress
        As for `dkgp.models.tuning.tune.tune_dataset`; the subset is drawn as there, unless that leaves a class with
        fewer than `LEAST_OF_A_CLASS` of its samples: then by class (`drawn_by_class`), with so many of each.
    isotropic : bool
        One length scale for all features, of the squared exponential unless `kernel` is given.
    learn_variance : bool
        Whether the kernel's amplitude is free. Decisions depend on its ratio to s2 alone.
    tolerance, max_evaluations
        As there, but for defaults: decisions do not change with the last digits.
    likelihood : {"logit", "probit", "softmax"}, optional
        Maximise the evidence of the labels instead, in Laplace's approximation; of several classes, of each against the
        rest, added up, unless softmax couples them (of two classes that is logit). `learn_variance` is of no account
        then.
    subsets, start, restarts, folds, holdout, executor
        As there; with a likelihood only. Scores are error rates and log losses of averaged probabilities.
    weights : (n,) float64, optional
        Of the samples; with a likelihood only.

    Returns
    -------
    Hyperparameters
        In the dataset's standardised inputs.

    Raises
    ------
    InputError
        Labels of another number of samples or of one class only, inputs with NaN or infinity; settings out of
        range.
    NumericalError
        The kernel matrix was not positive definite at any starting point.
    """
    n = dataset.n_samples
    if labels.n_samples != n:
        raise InputError(f"there are labels of {labels.n_samples:,} samples; '{dataset.url}' has {n:,}")
    if isotropic and kernel is None:
        kernel = "rbf(isotropic=True)"
    if likelihood is not None:
        if likelihood == "softmax" and labels.n_classes == 2:
            likelihood = "logit"
        choices = Choices(
            kernel, bounds=bounds, fixed=fixed, priors=priors, start=start, folds=folds, likelihood=likelihood
        )
        settings = SearchSettings(seed, True, tolerance, restarts, max_evaluations, progress)
        drawn = labelled_subsets(dataset, labels, subset, subsets=subsets, seed=seed, holdout=holdout, weights=weights)
        return run_tuning(drawn, tuple(dataset.feature_names), choices, settings, executor)
    chosen = _drawn(labels, subset, seed)
    signs = labels.subset(chosen).signs()
    if not np.ptp(signs, axis=0).any():
        raise InputError(
            f"the {len(chosen):,} samples to tune on are of one class only; expected at least two classes to tell apart"
        )
    inputs = dataset.input_rows(chosen)
    require_finite("inputs", inputs, "the subset's row")
    found: Hyperparameters = tune(
        inputs,
        signs - signs.mean(axis=0),
        feature_names=dataset.feature_names,
        **_given(kernel=kernel, bounds=bounds, fixed=fixed, priors=priors, progress=progress),
        subset=len(chosen),
        seed=seed,
        learn_variance=learn_variance,
        tolerance=tolerance,
        max_evaluations=max_evaluations,
    )
    return replace(found, n_samples=n)


def labelled_subsets(
    dataset: Dataset,
    labels: Labels,
    subset: int,
    *,
    subsets: int = 1,
    seed: int = 0,
    holdout: float | None = None,
    weights: FloatArray | None = None,
) -> LabelledSubsets:
    """Draw the subsets of which the evidence is added up; parameters and errors as of `tune_labels`.

    As any regression's, but for one that would miss a class: it is drawn by class (`drawn_by_class`).
    """
    plan = plan_subsets(dataset.n_samples, subset, subsets=subsets, seed=seed, holdout=holdout)
    held = plan.held_out()
    rest = np.setdiff1d(np.arange(dataset.n_samples), held)
    indices = []
    for number in range(plan.count):
        chosen = plan.subset(number)
        if not _has_all_classes(labels, chosen):
            chosen = rest[drawn_by_class(labels.subset(rest), plan.size, seed + number)]
        if len(np.unique(labels.codes[chosen])) < 2:
            raise InputError(
                f"the {len(chosen):,} samples to tune on are of one class only; expected at least two classes to tell "
                "apart"
            )
        indices.append(chosen)
    return LabelledSubsets(
        dataset,
        plan,
        tuple(indices),
        tuple(labels.subset(chosen).signs() for chosen in indices),
        None if weights is None else tuple(np.asarray(weights[chosen], dtype=np.float64) for chosen in indices),
        labels.subset(held).signs() if len(held) else np.zeros((0, labels.n_outputs)),
    )


def _has_all_classes(labels: Labels, chosen: IntArray) -> bool:
    """True if no class is missed by a subset, or nearly so."""
    found = np.bincount(labels.codes[chosen], minlength=labels.n_classes)
    return bool((found >= np.minimum(labels.counts(), LEAST_OF_A_CLASS)).all())


def _drawn(labels: Labels, subset: int, seed: int) -> IntArray:
    """A random subset; by class where one is so rare that it would be missed, or nearly so."""
    chosen = draw_subset(labels.n_samples, subset, seed)
    return chosen if _has_all_classes(labels, chosen) else drawn_by_class(labels, subset, seed)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
