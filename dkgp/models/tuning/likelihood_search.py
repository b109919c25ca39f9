"""The search for the hyperparameters of greatest likelihood: BFGS in log space, within bounds.

The GBCD paper's section 3 uses BFGS with a tolerance of 1e-4 on the likelihood and on the hyperparameters. This is its
limited-memory form with bounds, remembering as many steps as there are parameters, which loses next to nothing; it
stops when one step changes neither the likelihood nor any hyperparameter by more than the tolerance. The likelihood may
be a sum over subsets or the leave-one-out one; priors are added here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.models.tuning.search_space import SearchSpace

# The whole variance of the targets, so that the search discovers signal step by step. From a small noise variance the
# misfit drives the first steps to gamma = infinity, where every sample is an island: a maximum without a way out.
_INITIAL_NOISE_VARIANCE = 1.0
# What L-BFGS-B ends with where its line search does not find a better point.
_LINE_SEARCH_ENDED = 2
# Tried besides where that start found no structure: (factor on the kernel's own gamma, noise variance).
_FALLBACK_STARTS = ((0.2, 0.3), (0.2, 0.1), (5.0, 0.3))


@dataclass(frozen=True)
class TuneProgress:
    """One evaluation of likelihood and gradient; handed to a progress callback.

    `evaluation` counts within the starting point number `start`, up to at most `max_evaluations`.
    `gradient_inf_norm` is with respect to the logarithms of the free hyperparameters. Where the kernel matrix was not
    positive definite, so that the step is taken back, it is not a number and `log_marginal_likelihood` minus infinity.
    Both log likelihoods are those of the objective that is searched with, without priors.
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
    """Settings that `tune` documents under the same names; `InputError` for a value out of range."""

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
    """The best point of a search.

    `parameters` (q,) are the logarithms of all, those held fixed included; `value`, the objective's, is the sum of
    `log_likelihood` and `log_prior`; `slopes` (q,) are its derivatives, 0 of parameters held fixed. `rested` says
    whether the search came to rest by itself: no step changed anything by more than the tolerance, or none led on.
    `gain` is what Newton's step within the bounds promises yet, g'H^-1 g / 2 of the projected gradient g and the
    search's own curvature H: unlike the gradient it does not depend on how stiff a parameter is.
    """

    parameters: FloatArray
    value: float
    log_likelihood: float
    slopes: FloatArray
    log_prior: float = 0.0
    rested: bool = False
    gain: float = 0.0


class _SearchEndedError(Exception):
    """Ends a search from within the objective; the best point so far stands."""


class LikelihoodSearch:
    """Searches from one starting point after another and remembers the best point seen.

    `likelihood` gives (value, gradient) of the log likelihood at log parameters (q,), or None where it does not exist;
    `space` says what may be moved, and where to.

    `best`: None until some starting point had a likelihood at all. `evaluations`: of the likelihood, over all starting
    points.
    """

    def __init__(
        self,
        likelihood: Callable[[FloatArray], tuple[float, FloatArray] | None],
        space: SearchSpace,
        settings: SearchSettings,
    ) -> None:
        self.best: Optimum | None = None
        self.evaluations = 0
        self._likelihood = likelihood
        self._space = space
        self._free = space.free
        self._gamma_like = space.gamma_like[self._free]
        self._settings = settings
        self._started = time.perf_counter()
        self._start = -1
        self._begin()

    def _begin(self) -> None:
        self._start += 1
        self._evaluations_of_start = 0
        self._best_of_start: Optimum | None = None
        self._previous: tuple[FloatArray, float] | None = None
        self._settled = False
        self._inverse_curvature: Any = None

    def run(self, parameters: FloatArray) -> Optimum | None:
        """Search from one starting point (q,), within `max_evaluations`; return the best of it, if there was any."""
        first = parameters[self._free]
        try:
            rested = self._minimise(first) if first.size else self._evaluate_once(first)
        except _SearchEndedError:
            rested = False
        optimum = self._best_of_start
        if optimum is not None:
            optimum.rested, optimum.gain = rested, self._promised(optimum)
            if self.best is None or optimum.value > self.best.value:
                self.best = optimum
        self._begin()
        return optimum

    def _evaluate_once(self, nothing: FloatArray) -> bool:
        """Evaluate the likelihood where every parameter is held fixed, so that there is nothing to search for."""
        self._objective(nothing)
        return True

    def _minimise(self, first: FloatArray) -> bool:
        result = scipy.optimize.minimize(
            self._objective,
            first,
            jac=True,
            method="L-BFGS-B",
            bounds=self._space.bounds[self._free],
            callback=self._after_step,
            options={
                "maxcor": max(10, first.size),
                "ftol": 0.0,  # `_after_step` decides
                "gtol": self._settings.tolerance,
                # `_objective` keeps the count: the optimiser would look at it only between steps.
                "maxfun": 10**9,
                "maxiter": 10**9,
            },
        )
        self._inverse_curvature = getattr(result, "hess_inv", None)
        # Where rounding leaves a line search nowhere to go the gradient tells whether that is the optimum.
        return self._settled or bool(result.success) or result.status == _LINE_SEARCH_ENDED

    def _promised(self, optimum: Optimum) -> float:
        """The gain that the projected gradient promises at the best point; 0 where no search has ended there."""
        if self._inverse_curvature is None:
            return 0.0
        slopes = projected(optimum.slopes, self._space.sides(optimum.parameters))[self._free]
        return 0.5 * float(slopes @ self._inverse_curvature.matvec(slopes))

    def _objective(self, free_parameters: FloatArray) -> tuple[float, FloatArray]:
        if self._evaluations_of_start >= self._settings.max_evaluations:
            raise _SearchEndedError
        parameters = self._space.full(free_parameters)
        outcome = self._likelihood(parameters)
        self.evaluations += 1
        self._evaluations_of_start += 1
        if outcome is not None:
            likelihood, gradient = outcome
            log_prior, its_gradient = self._space.log_prior(parameters)
            value, gradient = likelihood + log_prior, (gradient + its_gradient)[self._free]
            if self._best_of_start is None or value > self._best_of_start.value:
                slopes = np.zeros(len(parameters))
                slopes[self._free] = gradient
                self._best_of_start = Optimum(parameters, value, likelihood, slopes, log_prior)
            self._report(parameters, likelihood, gradient)
            return -value, -gradient
        self._report(parameters, -math.inf, np.full(1, math.nan))
        if self._best_of_start is None:
            raise _SearchEndedError  # no likelihood at the starting point itself
        # Far worse than anything seen, and flat: the line search interpolates back towards the last good point.
        return -self._best_of_start.value + 1e3 * (1.0 + abs(self._best_of_start.value)), np.zeros_like(free_parameters)

    def _after_step(self, intermediate_result: scipy.optimize.OptimizeResult) -> None:
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
        change[self._gamma_like] *= np.minimum(1.0, np.exp(parameters[self._gamma_like]))
        return bool(change.max() <= self._settings.tolerance)

    def _report(self, parameters: FloatArray, likelihood: float, gradient: FloatArray) -> None:
        if self._settings.progress is None:
            return
        bests = [optimum.log_likelihood for optimum in (self.best, self._best_of_start) if optimum is not None]
        self._settings.progress(
            TuneProgress(
                evaluation=self._evaluations_of_start,
                max_evaluations=self._settings.max_evaluations,
                start=self._start,
                log_marginal_likelihood=likelihood,
                best_log_marginal_likelihood=max(bests, default=-math.inf),
                gradient_inf_norm=float(np.abs(gradient).max(initial=0.0)),
                noise_variance=math.exp(parameters[-1]),
                elapsed_seconds=time.perf_counter() - self._started,
            )
        )


def projected(slopes: FloatArray, sides: NDArray[np.int8]) -> FloatArray:
    """The gradient (q,) without what points out of the box; `sides` as of `SearchSpace.sides`."""
    return np.where(sides * slopes > 0.0, 0.0, slopes)


def first_point(kernel_values: FloatArray, noise_variance: float | None = None) -> FloatArray:
    """The search's first point: log values of the kernel and of the noise variance, by default the targets' 1."""
    noise = _INITIAL_NOISE_VARIANCE if noise_variance is None else noise_variance
    return np.append(kernel_values, math.log(noise))


def starting_points(first: FloatArray, space: SearchSpace, settings: SearchSettings) -> list[FloatArray]:
    """The starting point `first` (q,), then seeded random ones around it, by factors of about e."""
    generator = np.random.default_rng([settings.seed, 1])
    others = [first + generator.standard_normal(first.size) for _ in range(settings.restarts - 1)]
    return [space.within(point) for point in [first, *others]]


def fallback_starting_points(first: FloatArray, space: SearchSpace) -> list[FloatArray]:
    """Other starting points, for a search whose first ones led to nothing but noise."""
    points = []
    for factor, noise_variance in _FALLBACK_STARTS:
        point = first.copy()
        point[-1] = math.log(noise_variance)
        point[space.gamma_like] += math.log(factor)
        points.append(space.within(point))
    return points
