"""The search for the hyperparameters of greatest marginal likelihood: BFGS in log space, within bounds.

The GBCD paper's section 3 uses BFGS with a tolerance of 1e-4 on the likelihood and on the hyperparameters. This is its
limited-memory form with bounds, remembering as many steps as there are parameters, which loses next to nothing; it
stops when one step changes neither the likelihood nor any hyperparameter by more than the tolerance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from dkgp.errors import InputError
from dkgp.models.marginal_likelihood import KernelFamily, LogMarginalLikelihood

__all__ = [
    "LikelihoodSearch",
    "Optimum",
    "SearchSettings",
    "TuneProgress",
    "fallback_starting_points",
    "starting_points",
]

FloatArray: TypeAlias = NDArray[np.float64]

# All of the targets' variance: the search then discovers signal step by step. From a small noise variance the misfit
# drives the first steps to where every sample is an island (gamma to infinity), a maximum that nothing leads out of.
_INITIAL_NOISE_VARIANCE = 1.0
# Tried besides where that start found no structure: (factor on the kernel's own gamma, noise variance).
_FALLBACK_STARTS = ((0.2, 0.3), (0.2, 0.1), (5.0, 0.3))


@dataclass(frozen=True)
class TuneProgress:
    """One evaluation of likelihood and gradient; handed to a progress callback.

    `evaluation` counts within the starting point number `start`, up to at most `max_evaluations`.
    `gradient_inf_norm` is with respect to the logarithms of the hyperparameters. Where the kernel matrix was not
    positive definite, so that the step is taken back, it is not a number and `log_marginal_likelihood` minus infinity.
    """

    evaluation: int
    max_evaluations: int
    start: int
    log_marginal_likelihood: float
    best_log_marginal_likelihood: float
    gradient_inf_norm: float
    noise_variance: float
    elapsed_seconds: float


ProgressCallback: TypeAlias = Callable[[TuneProgress], None]


@dataclass(frozen=True)
class SearchSettings:
    """What `tune` documents under the same names; `InputError` for a value out of range."""

    seed: int = 0
    learn_variance: bool = False
    tolerance: float = 1e-4
    restarts: int = 1
    max_evaluations: int = 300
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"tolerance must be positive and finite; got {self.tolerance!r}")
        for name, count, least in (
            ("seed", self.seed, 0),
            ("restarts", self.restarts, 1),
            ("max_evaluations", self.max_evaluations, 1),
        ):
            if count < least:
                raise InputError(f"{name} must be at least {least}; got {count}")


@dataclass
class Optimum:
    """The best point of a search: log parameters, log marginal likelihood, and whether the tolerance was met there."""

    parameters: FloatArray
    value: float
    converged: bool = False


class _SearchEndedError(Exception):
    """Ends a search from within the objective; the best point so far stands."""


class LikelihoodSearch:
    """Searches from one starting point after another and remembers the best point seen.

    Parameters
    ----------
    likelihood : callable
        (value, gradient) of the log marginal likelihood at given log parameters, or None where it does not exist.
    bounds : (parameters, 2) float64
        Of the log parameters.
    n_gamma : int
        How many of the parameters, the first ones, are logarithms of a gamma.
    settings : SearchSettings

    Attributes
    ----------
    best : Optimum or None
        None until some starting point had a likelihood at all.
    evaluations : int
        Of the likelihood, over all starting points.
    """

    def __init__(
        self,
        likelihood: LogMarginalLikelihood | Callable[[FloatArray], tuple[float, FloatArray] | None],
        bounds: FloatArray,
        n_gamma: int,
        settings: SearchSettings,
    ) -> None:
        self.best: Optimum | None = None
        self.evaluations = 0
        self._likelihood = likelihood
        self._bounds = bounds
        self._n_gamma = n_gamma
        self._settings = settings
        self._started = time.perf_counter()
        self._start = -1
        self._begin()

    def _begin(self) -> None:
        self._start += 1
        self._evaluations_of_start = 0
        self._here: Optimum | None = None
        self._previous: tuple[FloatArray, float] | None = None
        self._settled = False

    def run(self, parameters: FloatArray) -> None:
        """Search from one starting point, within `max_evaluations`."""
        try:
            result = optimize.minimize(
                self._objective,
                parameters,
                jac=True,
                method="L-BFGS-B",
                bounds=self._bounds,
                callback=self._after_step,
                options={
                    "maxcor": max(10, parameters.size),
                    "ftol": 0.0,  # `_after_step` decides
                    "gtol": self._settings.tolerance,
                    # `_objective` keeps the count: the optimiser would look at it only between steps.
                    "maxfun": 10**9,
                    "maxiter": 10**9,
                },
            )
            converged = self._settled or bool(result.success)
        except _SearchEndedError:
            converged = False
        if self._here is not None:
            self._here.converged = converged
            if self.best is None or self._here.value > self.best.value:
                self.best = self._here
        self._begin()

    def _objective(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        if self._evaluations_of_start >= self._settings.max_evaluations:
            raise _SearchEndedError
        outcome = self._likelihood(parameters)
        self.evaluations += 1
        self._evaluations_of_start += 1
        if outcome is not None and (self._here is None or outcome[0] > self._here.value):
            self._here = Optimum(parameters.copy(), outcome[0])
        self._report(parameters, outcome)
        if outcome is not None:
            return -outcome[0], -outcome[1]
        if self._here is None:
            raise _SearchEndedError  # no likelihood at the starting point itself
        # Far worse than anything seen, and flat: the line search interpolates back towards the last good point.
        return -self._here.value + 1e3 * (1.0 + abs(self._here.value)), np.zeros_like(parameters)

    def _after_step(self, intermediate_result: optimize.OptimizeResult) -> None:
        parameters, value = np.array(intermediate_result.x), -float(intermediate_result.fun)
        if self._previous is not None and self._is_settled(*self._previous, parameters, value):
            self._settled = True
            raise StopIteration
        self._previous = parameters, value

    def _is_settled(self, old_parameters: FloatArray, old_value: float, parameters: FloatArray, value: float) -> bool:
        if abs(value - old_value) > self._settings.tolerance * max(1.0, abs(value)):
            return False
        # A change of logarithms is relative. For a gamma below 1 the absolute change is what moves the kernel's
        # exponent; relatively, the gamma of an irrelevant feature would slide towards zero for ever.
        change = np.abs(parameters - old_parameters)
        change[: self._n_gamma] *= np.minimum(1.0, np.exp(parameters[: self._n_gamma]))
        return bool(change.max() <= self._settings.tolerance)

    def _report(self, parameters: FloatArray, outcome: tuple[float, FloatArray] | None) -> None:
        if self._settings.progress is None:
            return
        values = [optimum.value for optimum in (self.best, self._here) if optimum is not None]
        self._settings.progress(
            TuneProgress(
                evaluation=self._evaluations_of_start,
                max_evaluations=self._settings.max_evaluations,
                start=self._start,
                log_marginal_likelihood=-math.inf if outcome is None else outcome[0],
                best_log_marginal_likelihood=max(values, default=-math.inf),
                gradient_inf_norm=math.nan if outcome is None else float(np.abs(outcome[1]).max()),
                noise_variance=math.exp(parameters[-1]),
                elapsed_seconds=time.perf_counter() - self._started,
            )
        )


def starting_points(family: KernelFamily, bounds: FloatArray, settings: SearchSettings) -> list[FloatArray]:
    """The kernel's own starting point, then seeded random ones around it, by factors of about e."""
    first = np.append(family.initial(), math.log(_INITIAL_NOISE_VARIANCE))
    generator = np.random.default_rng([settings.seed, 1])
    others = [first + generator.standard_normal(first.size) for _ in range(settings.restarts - 1)]
    return [np.clip(point, bounds[:, 0], bounds[:, 1]) for point in [first, *others]]


def fallback_starting_points(family: KernelFamily, bounds: FloatArray, n_gamma: int) -> list[FloatArray]:
    """Other starting points, for where the first ones found nothing but noise."""
    points = []
    for factor, noise_variance in _FALLBACK_STARTS:
        point = np.append(family.initial(), math.log(noise_variance))
        point[:n_gamma] += math.log(factor)
        points.append(np.clip(point, bounds[:, 0], bounds[:, 1]))
    return points
