"""Student's t as the likelihood: its degrees of freedom and scale, and the kernel with them, on a subset.

In turns: the samples' weights, by what is left of each and how sure the function is there (variational EM: lambda is
given by r^2 + V on average); nu and s2, by the density of each sample given all others, of t around a normal; and the
kernel, by the objective of tuning under the samples' noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import scipy

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import Noise, StudentT
from dkgp.models.tuning.dense_algebra import invert
from dkgp.models.tuning.kernel_family import family_of
from dkgp.models.tuning.likelihood_search import LikelihoodSearch, SearchSettings
from dkgp.models.tuning.noise.comparison import NoiseSearch, Prediction, Rows, held_out_function, normal_losses
from dkgp.models.tuning.problem import Choices, SearchProblem
from dkgp.models.tuning.scores import ScoreSums
from dkgp.models.tuning.tasks import OBJECTIVES

NoiseLikelihood: TypeAlias = Literal["gaussian", "student-t", "auto"]
NOISE_LIKELIHOODS: tuple[NoiseLikelihood, ...] = get_args(NoiseLikelihood)

_START_DEGREES, _DEGREES = 4.0, (2.2, 200.0)
_TURNS, _TURN_TOLERANCE = 6, 0.02
_MOST_REWEIGHTED, WEIGHT_TOLERANCE = 40, 0.01


@dataclass(frozen=True)
class Weighed:
    """A subset's samples under their noise `least + beyond`, of a mode or a variational mean.

    Attributes
    ----------
    beyond
        What samples have beside the least noise, (n,).
    errors, latent
        Of each sample given all others: what is left of it, and the variance of the function there, (n,).
    """

    beyond: FloatArray
    errors: FloatArray
    latent: FloatArray


def weigh(
    kernel_matrix: FloatArray, targets: FloatArray, likelihood: StudentT, beyond: FloatArray, *, sure: bool = False
) -> Weighed:
    """Reweigh samples until no weight changes by more than a hundredth, for targets (n,), from `beyond` (n,) on.

    With `sure` the function's variance counts for nothing, as in training: the result is the posterior's mode.

    Raises `NumericalError` where Kbar is not positive definite.
    """
    for _ in range(_MOST_REWEIGHTED):
        noise = likelihood.least + beyond
        matrix = np.array(kernel_matrix, order="F")
        np.einsum("ii->i", matrix)[:] += noise
        inverted = invert(matrix, np.asfortranarray(targets[:, None]))
        if inverted is None:
            raise NumericalError("the kernel matrix of the subset is not positive definite under the samples' noise")
        alpha, precision = inverted[0][:, 0], np.diagonal(matrix).copy()
        left, variance = noise * alpha, np.maximum(noise - noise**2 * precision, 0.0)
        found = likelihood.beyond_least(left**2 + (0.0 if sure else variance))
        change = float(np.max(np.abs(likelihood.weights(found) - likelihood.weights(beyond))))
        if change <= WEIGHT_TOLERANCE:
            break
        beyond = found
    return Weighed(noise - likelihood.least, alpha / precision, np.maximum(1.0 / precision - noise, 0.0))


def fit_student(
    start: Hyperparameters, inputs: FloatArray, targets: FloatArray, choices: Choices, settings: SearchSettings
) -> Hyperparameters:
    """Find nu, s2 and the kernel from `start` on, by a subset, standardised: (n, d) and (n, 1).

    Raises `NumericalError` where a kernel matrix is not positive definite.
    """
    y, value, tuned = targets[:, 0], math.nan, start
    likelihood = StudentT(_START_DEGREES, start.noise_variance / 2.0)
    beyond = np.full(len(y), likelihood.scale - likelihood.least)
    for _ in range(_TURNS):
        matrix = tuned.kernel.matrix(inputs, inputs)
        weighed = weigh(matrix, y, likelihood, beyond)
        found = _likeliest(likelihood, weighed)
        moved = abs(math.log(found.scale / likelihood.scale)) + abs(math.log(found.degrees / likelihood.degrees))
        likelihood, beyond = found, weigh(matrix, y, found, weighed.beyond).beyond
        tuned = replace(tuned, noise_variance=likelihood.scale)
        noise = Noise(1.0, relative=(likelihood.least + beyond) / likelihood.scale)
        tuned, value = _kernel_under((inputs, targets), noise, tuned, choices, settings)
        if moved < _TURN_TOLERANCE:
            break
    of_likelihood = choices.objective == "likelihood"
    *of_kernel, noise_parameter = tuned.parameters or ()
    return replace(
        tuned,
        parameters=(*of_kernel, replace(noise_parameter, value=likelihood.variance, fixed=False)),
        noise_variance=likelihood.variance,
        student_t=likelihood,
        log_prior=None,
        scores=None,
        log_marginal_likelihood=value if of_likelihood else None,
        leave_one_out_log_likelihood=None if of_likelihood else value,
    )


def _likeliest(likelihood: StudentT, weighed: Weighed) -> StudentT:
    """The distribution under which samples are likeliest, each given all others."""

    def at(parameters: FloatArray) -> StudentT:
        degrees = float(np.clip(2.0 + math.exp(float(parameters[0])), *_DEGREES))
        return StudentT(degrees, math.exp(float(np.clip(parameters[1], -30.0, 30.0))))

    first = np.array([math.log(likelihood.degrees - 2.0), math.log(likelihood.scale)])
    result = scipy.optimize.minimize(
        lambda parameters: -float(at(parameters).log_density(weighed.errors, weighed.latent).sum()),
        first,
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-3, "maxfev": 120},
    )
    return at(result.x)


def _kernel_under(
    samples: tuple[FloatArray, FloatArray],
    noise: Noise,
    start: Hyperparameters,
    choices: Choices,
    settings: SearchSettings,
) -> tuple[Hyperparameters, float]:
    """`start` with the kernel that the objective prefers under the samples' noise at its s2, held; and the value."""
    (inputs, targets), names = samples, start.feature_names or tuple(f"x{j}" for j in range(start.n_features))
    problem = SearchProblem.of(names, replace(choices, kernel=None, start=start), settings)
    family = family_of(problem.kernel, inputs, problem.settings.learn_variance, names)
    held = problem.space.fixed.copy()
    held[-1] = math.log(start.noise_variance)
    space = replace(problem.space, fixed=held)
    objective = OBJECTIVES[choices.objective](family, targets, noise=noise)
    best = LikelihoodSearch(objective, space, settings).run(space.within(problem.first))
    if best is None:
        raise NumericalError("the kernel matrix of the subset is not positive definite under the samples' noise")
    tuned = problem.space.tuned(best.parameters, problem.space.within(problem.first), names)
    begun = {parameter.name: parameter.start for parameter in start.parameters or ()}
    moved = replace(
        start,
        kernel=problem.family.kernel(best.parameters[:-1]),
        parameters=tuple(replace(item, start=begun.get(item.name, item.start)) for item in tuned),
    )
    return moved, best.log_likelihood


def tune_likelihood(
    dataset: Dataset,
    start: Hyperparameters,
    likelihood: NoiseLikelihood,
    *,
    choices: Choices,
    settings: SearchSettings,
    subset: int,
    note: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Find Student's t for the noise, and move the kernel with it.

    Raises `InputError`: several targets, known noise of the samples, a noise variance that is held fixed, or too few
    samples for `auto`; `NumericalError`: a kernel matrix is not positive definite.

    Parameters
    ----------
    dataset, start, choices, settings, subset, note
        As for `tune_noise`.
    likelihood : {"gaussian", "student-t", "auto"}
        auto: Student's t where held-out samples have a better density by more than twice the standard error.

    Returns
    -------
    Hyperparameters
        With `student_t`, or `start`; after `auto` with the comparison.
    """
    if likelihood == "gaussian":
        return start
    if dataset.n_targets != 1:
        raise InputError(
            f"the likelihood {likelihood} weighs samples by one target; there are {dataset.n_targets}. Train them one "
            "by one, or take the normal distribution"
        )
    settings = replace(settings, tolerance=max(settings.tolerance, 1e-3), restarts=1, max_evaluations=40)
    search = NoiseSearch("likelihood", dataset, start, subset, settings.seed, note or (lambda line: None))
    fit = partial(fit_student, start, choices=choices, settings=settings)
    with single_threaded_blas():
        if likelihood == "auto":
            return search.best_of("gaussian", {"student-t": fit}, _predicted)
        return search.fitted(fit)


def _predicted(hyperparameters: Hyperparameters, rows: Rows, held_out: Rows) -> Prediction:
    """Scores count coverage by a normal distribution of the same variance."""
    (inputs, targets), (new, truth) = rows, held_out
    kernel, likelihood = hyperparameters.kernel, hyperparameters.student_t
    noise = np.full(len(inputs), hyperparameters.noise_variance)
    if likelihood is not None:
        matrix = np.asfortranarray(kernel.matrix(inputs, inputs))
        even = np.full(len(inputs), likelihood.scale - likelihood.least)
        noise = likelihood.least + weigh(matrix, targets[:, 0], likelihood, even, sure=True).beyond
    mean, latent = held_out_function(kernel, noise, rows, new)
    variance = latent + hyperparameters.noise_variance
    losses = normal_losses(truth - mean, variance)
    if likelihood is not None:
        losses = -likelihood.log_density((truth - mean)[:, 0], latent)
    return Prediction(losses, ScoreSums.of(truth, mean, variance))
