"""Noise that depends on the inputs: a model of it that was named, or the one that predicts held-out samples best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, get_args

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import KINDS, Noise
from dkgp.models.tuning.likelihood_search import SearchSettings
from dkgp.models.tuning.noise.comparison import NoiseSearch, Prediction, Rows, held_out_function, normal_losses
from dkgp.models.tuning.noise.search import fit_noise
from dkgp.models.tuning.problem import Choices
from dkgp.models.tuning.scores import ScoreSums

NoiseKind: TypeAlias = Literal["none", "linear", "gp", "auto"]
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)


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

    Raises `InputError`: a noise variance that is held fixed, known noise of the samples, or fewer than 20 of them for
    `auto`; `NumericalError`: a kernel matrix is not positive definite.

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
    """
    if kind == "none":
        return start
    settings = replace(settings, tolerance=max(settings.tolerance, 1e-3), restarts=1, max_evaluations=150)
    search = NoiseSearch("noise model", dataset, start, subset, settings.seed, note or (lambda line: None))
    fits = {
        name: partial(fit_noise, name, start, choices=choices, settings=settings)
        for name in (KINDS if kind == "auto" else (kind,))
    }
    with single_threaded_blas():
        return search.best_of("none", fits, _predicted) if kind == "auto" else search.fitted(fits[kind])


def _predicted(hyperparameters: Hyperparameters, rows: Rows, held_out: Rows) -> Prediction:
    new, truth = held_out
    noise = Noise(hyperparameters.noise_variance, law=hyperparameters.noise_model)
    mean, latent = held_out_function(hyperparameters.kernel, noise.at(rows[0]), rows, new)
    variance = latent + noise.at(new)
    return Prediction(normal_losses(truth - mean, variance), ScoreSums.of(truth, mean, variance))
