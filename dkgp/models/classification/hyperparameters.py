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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data.types import IntArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.classification.calibration import LEAST_OF_A_CLASS, drawn_by_class
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.laplace import LabelLikelihood
from dkgp.models.tuning.search import Choices, ProgressCallback, SearchSettings
from dkgp.models.tuning.space import LogNormal
from dkgp.models.tuning.subsets import LabelledSubsets, draw_subset, plan_subsets, require_finite
from dkgp.models.tuning.tune import fields_of, run_tuning, tune


@dataclass(frozen=True)
class LabelTuning:
    """Settings of a search for the hyperparameters of labels.

    Parameters
    ----------
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
    subsets, start, restarts, folds, holdout
        As there; with a likelihood only. Scores are error rates and log losses of averaged probabilities.
    """

    subset: int = 2000
    seed: int = 0
    kernel: Kernel | str | None = None
    isotropic: bool = False
    learn_variance: bool = False
    bounds: Mapping[str, tuple[float, float]] | None = None
    fixed: Mapping[str, float] | None = None
    priors: Mapping[str, LogNormal | str] | None = None
    tolerance: float = 1e-3
    max_evaluations: int = 200
    progress: ProgressCallback | None = None
    likelihood: LabelLikelihood | None = None
    subsets: int = 1
    start: Hyperparameters | None = None
    restarts: int = 1
    folds: int | None = None
    holdout: float | None = None


def tune_labels(
    data: LabelledData, settings: LabelTuning = LabelTuning(), executor: BlockExecutor | None = None
) -> Hyperparameters:
    """Find kernel and s2 = 1/gamma_K by the marginal likelihood of the signs, or a kernel by the labels' evidence.

    Parameters
    ----------
    data : LabelledData
        The subset's standardised inputs are read. Several classes have a column of signs each, which share
        the hyperparameters; weights count with a likelihood only.
    settings : LabelTuning
    executor : BlockExecutor, optional
        As for `dkgp.models.tuning.tune.tune_dataset`; with a likelihood only.

    Returns
    -------
    Hyperparameters
        In the dataset's standardised inputs.

    Raises
    ------
    InputError
        Labels of one class only, inputs with NaN or infinity; settings out of range.
    NumericalError
        The kernel matrix was not positive definite at any starting point.
    """
    dataset, labels, options = data.dataset, data.labels, dict(vars(settings))
    if settings.isotropic and settings.kernel is None:
        options["kernel"] = "rbf(isotropic=True)"
    if settings.likelihood is not None:
        if settings.likelihood == "softmax" and labels.n_classes == 2:
            options["likelihood"] = "logit"
        choices, search = Choices(**fields_of(Choices, options)), SearchSettings(**fields_of(SearchSettings, options))
        return run_tuning(labelled_subsets(data, settings), tuple(dataset.feature_names), choices, search, executor)
    subset = draw_labelled(labels, settings.subset, settings.seed)
    signs = labels.subset(subset).signs()
    if not np.ptp(signs, axis=0).any():
        raise _one_class_only(subset)
    inputs = dataset.input_rows(subset)
    require_finite("inputs", inputs, "the subset's row")
    moved: Any = {name: options[name] for name in ("kernel", "bounds", "fixed", "priors")}
    moved |= fields_of(SearchSettings, options)
    tuned = tune(inputs, signs - signs.mean(axis=0), feature_names=dataset.feature_names, subset=len(subset), **moved)
    return replace(tuned, n_samples=data.n)


def labelled_subsets(data: LabelledData, settings: LabelTuning) -> LabelledSubsets:
    """Draw the subsets whose evidence is added up; errors as for `tune_labels`.

    As any regression's, but for one that would miss a class: it is drawn by class (`drawn_by_class`).
    """
    labels, weights = data.labels, data.weights
    plan = plan_subsets(data.n, settings.subset, subsets=settings.subsets, seed=settings.seed, holdout=settings.holdout)
    held_out = plan.held_out()
    rest = np.setdiff1d(np.arange(data.n), held_out)
    indices = []
    for number in range(plan.count):
        subset = plan.subset(number)
        if not _has_all_classes(labels, subset):
            subset = rest[drawn_by_class(labels.subset(rest), plan.size, settings.seed + number)]
        if len(np.unique(labels.codes[subset])) < 2:
            raise _one_class_only(subset)
        indices.append(subset)
    return LabelledSubsets(
        data.dataset,
        plan,
        tuple(indices),
        tuple(labels.subset(subset).signs() for subset in indices),
        None if weights is None else tuple(np.asarray(weights[subset], dtype=np.float64) for subset in indices),
        labels.subset(held_out).signs() if len(held_out) else np.zeros((0, labels.n_outputs)),
    )


def _one_class_only(subset: IntArray) -> InputError:
    return InputError(
        f"the {len(subset):,} samples to tune on are of one class only; expected at least two classes to tell apart"
    )


def _has_all_classes(labels: Labels, subset: IntArray) -> bool:
    """True if no class is missed by a subset, or nearly so."""
    counts = np.bincount(labels.codes[subset], minlength=labels.n_classes)
    return bool((counts >= np.minimum(labels.counts(), LEAST_OF_A_CLASS)).all())


def draw_labelled(labels: Labels, size: int, seed: int) -> IntArray:
    """A random subset; by class where one is so rare that it would be missed, or nearly so."""
    subset = draw_subset(labels.n_samples, size, seed)
    return subset if _has_all_classes(labels, subset) else drawn_by_class(labels, size, seed)
