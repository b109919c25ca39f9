"""The search for hyperparameters: free parameters, starting points, BFGS in log space within bounds, and its end.

The likelihood of subsets, the leave-one-out likelihood, the evidence of labels and a sparse model's bound on all
samples are objectives of this one search. Each brings a value with its gradient (`LikelihoodSearch`) and a way to climb
from one starting point; `SearchProblem` holds everything that they share. Priors are added here.

The GBCD paper's section 3 uses BFGS with a tolerance of 1e-4 on the likelihood and on the hyperparameters. This is its
limited-memory form with bounds, which remembers as many steps as there are parameters. It stops when one step changes
neither the likelihood nor any hyperparameter by more than the tolerance.

A maximum within a box of bounds has a projected gradient of zero: the gradient without the components that point out
of the box at a bound (Nocedal and Wright 2006, section 16.7; the conditions of Karush, Kuhn and Tucker, whose
multipliers are the components left out). A large component that is left out says that the objective itself has its
maximum elsewhere: a bound stopped the search, and it has not converged. Where the parameter no longer changes the
model, such as the gamma of an irrelevant feature at 1e-8, the model can do without it: `switch_off` removes it, because
every feature of a kernel costs time in every entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias, TypedDict

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, fold_white, parse_kernel
from dkgp.limits import should_finish
from dkgp.models.hyperparameters import Hyperparameters, TunedParameter, with_switched_off
from dkgp.models.mean_option import MeanValue
from dkgp.models.trend import CENTRED, Drift
from dkgp.models.tuning.families import KernelFamily, family_of
from dkgp.models.tuning.laplace import LABEL_OBJECTIVES, LabelLikelihood
from dkgp.models.tuning.objectives import OBJECTIVES, Objective, ObjectiveName
from dkgp.models.tuning.space import NOISE_NAME, LogNormal, SearchSpace, search_space
from dkgp.solvers.base import Clock

# The whole variance of the targets: the search then discovers signal step by step. From a small noise variance the
# misfit drives the first steps to gamma = infinity, a maximum where every sample is an island.
_INITIAL_NOISE_VARIANCE = 1.0
# Status of L-BFGS-B if its line search finds no better point.
_LINE_SEARCH_ENDED = 2
# Units of logarithms that a search takes from the curvature of another one, at least and at most; and how far the first
# step may move one of them.
_UNITS, _LONGEST = (1e-4, 1.0), 0.3
# Of the least gain: a search is not begun where the curvature promises no more.
_HARDLY = 0.1
# Further starts if the first found no structure: (factor on the kernel's own gamma, noise variance).
_FALLBACK_STARTS = ((0.2, 0.3), (0.2, 0.1), (5.0, 0.3))


@dataclass(frozen=True)
class TuneProgress:
    """One evaluation of an objective and its gradient, for a progress callback.

    `evaluation` counts within the starting point number `start`, up to at most `max_evaluations`.
    `gradient_inf_norm` is with respect to the logarithms of the free hyperparameters. If the kernel matrix was not
    positive definite, the step is taken back: the norm is NaN and `log_marginal_likelihood` minus infinity. Both log
    likelihoods are values of the search's objective, without priors.
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
    seconds: float | None = None  # no evaluation begins later, once there is a best point

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"tolerance must be positive and finite; got {self.tolerance!r}")
        if self.seconds is not None and not self.seconds >= 0.0:
            raise InputError(f"seconds must be at least 0; got {self.seconds!r}")
        for name, count, least in (
            ("seed", self.seed, 0),
            ("restarts", self.restarts, 1),
            ("max_evaluations", self.max_evaluations, 1),
        ):
            if count < least:
                raise InputError(f"`{name}` must be at least {least}; got {count}")


@dataclass
class Optimum:
    """The best point of a search.

    `parameters` (q,) are the logarithms of all, fixed ones included. `value` is the sum of `log_likelihood` and
    `log_prior`; `slopes` (q,) are its derivatives, 0 for fixed parameters. `rested`: the search came to rest by itself,
    because no step changed anything by more than the tolerance, or none was uphill. `gain` is the further gain that
    Newton's step within the bounds promises, g'H^-1 g / 2 of the projected gradient g and the search's curvature H:
    unlike the gradient it does not depend on a parameter's stiffness. `inverse_curvature` is H^-1, of the free
    parameters; `limit` is the limit that ended the search.
    """

    parameters: FloatArray
    value: float
    log_likelihood: float
    slopes: FloatArray
    log_prior: float = 0.0
    rested: bool = False
    gain: float = 0.0
    inverse_curvature: FloatArray | None = None
    limit: str | None = None


class _SearchEndedError(Exception):
    """Ends a search from within the objective; the best point so far stands."""


class LikelihoodSearch:
    """Searches from one starting point after another and keeps the best point.

    `space` has the parameters that may move, and their bounds. `best` is None until a starting point has a value.
    `evaluations` counts over all starting points. With a `least_gain` in nats a step that gains no more ends a search,
    however far it moved the parameters.
    """

    def __init__(
        self,
        objective: Objective,
        space: SearchSpace,
        settings: SearchSettings,
        least_gain: float | None = None,
    ) -> None:
        self._least_gain = least_gain
        self.best: Optimum | None = None
        self.evaluations = 0
        self._evaluate = objective
        self._space = space
        self._free = space.free
        self._gamma_like = space.gamma_like[self._free]
        self._settings = settings
        self._clock = Clock()
        self._start = -1
        self._begin()

    def _begin(self) -> None:
        self._start += 1
        self._evaluations_of_start = 0
        self._best_of_start: Optimum | None = None
        self._previous: tuple[FloatArray, float] | None = None
        self._settled = False
        self._inverse_curvature: FloatArray | None = None
        self._units = np.ones(int(self._free.sum()))
        self._known: tuple[FloatArray, tuple[float, FloatArray] | None] | None = None

    @property
    def late(self) -> bool:
        """Whether the time is up, and there is a point to end with."""
        limit = self._settings.seconds
        some = self.best is not None or self._best_of_start is not None
        return some and (should_finish() or (limit is not None and self._clock.seconds >= limit))

    def run(self, parameters: FloatArray, inverse_curvature: FloatArray | None = None) -> Optimum | None:
        """Search from one starting point (q,), within `max_evaluations`; return its best point, if it has any.

        With the `inverse_curvature` of a similar objective nearby, the first step is about as long as it has to be.
        """
        first = parameters[self._free]
        is_there = not first.size
        if inverse_curvature is not None:
            is_there = self._begin_at(parameters, inverse_curvature)
        try:
            rested = self._evaluate_once(first) if is_there else self._minimise(first)
        except _SearchEndedError:
            rested = False
        optimum = self._best_of_start
        if optimum is not None:
            optimum.rested, optimum.gain = rested, self._promised(optimum)
            optimum.inverse_curvature = self._inverse_curvature
            if not rested:
                maximum = f"{self._settings.max_evaluations} evaluations"
                optimum.limit = self._limit_in_time if self.late else maximum
            if self.best is None or optimum.value > self.best.value:
                self.best = optimum
        self._begin()
        return optimum

    def _evaluate_once(self, nothing: FloatArray) -> bool:
        """Evaluate the objective if every parameter is fixed: there is nothing to search for."""
        self._objective(nothing)
        return True

    def _minimise(self, first: FloatArray) -> bool:
        result = scipy.optimize.minimize(
            self._in_units,
            first / self._units,
            jac=True,
            method="L-BFGS-B",
            bounds=self._space.bounds[self._free] / self._units[:, None],
            callback=self._after_step,
            options={
                "maxcor": max(10, first.size),
                "ftol": 0.0,  # `_after_step` decides
                "gtol": self._settings.tolerance,
                # `_objective` keeps the count: the optimiser would check it only between steps.
                "maxfun": 10**9,
                "maxiter": 10**9,
            },
        )
        if (product := getattr(result, "hess_inv", None)) is not None:
            self._inverse_curvature = self._units[:, None] * product.todense() * self._units
        # If rounding stops a line search, the gradient decides whether that is the optimum.
        return self._settled or bool(result.success) or result.status == _LINE_SEARCH_ENDED

    def _begin_at(self, parameters: FloatArray, inverse_curvature: FloatArray) -> bool:
        """Evaluate a point and choose the units; return whether hardly any gain is promised from there.

        In the units the curvature is about 1. The first step is the gradient, and moves no logarithm by more than
        `_LONGEST`.
        """
        self._units = np.clip(np.sqrt(np.diagonal(inverse_curvature)), *_UNITS)
        self._known = parameters, (outcome := self._evaluate(parameters))
        if outcome is None:
            return False
        total = outcome[1] + self._space.log_prior(parameters)[1]
        slopes = projected(total, self._space.sides(parameters))[self._free]
        longest = float(np.abs(self._units**2 * slopes).max(initial=0.0))
        self._units *= math.sqrt(_LONGEST / max(longest, _LONGEST))
        self._inverse_curvature = inverse_curvature
        return 0.5 * float(slopes @ inverse_curvature @ slopes) <= _HARDLY * (self._least_gain or 0.0)

    def _promised(self, optimum: Optimum) -> float:
        """Return the gain that the projected gradient promises at the best point; 0 if no search ended there."""
        if self._inverse_curvature is None:
            return 0.0
        slopes = projected(optimum.slopes, self._space.sides(optimum.parameters))[self._free]
        return 0.5 * float(slopes @ self._inverse_curvature @ slopes)

    def _in_units(self, point: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = self._objective(point * self._units)
        return value, gradient * self._units

    @property
    def _limit_in_time(self) -> str:
        return "the time limit" if self._settings.seconds is None else f"{self._settings.seconds:.3g} s"

    def _objective(self, free_parameters: FloatArray) -> tuple[float, FloatArray]:
        if self.late or self._evaluations_of_start >= self._settings.max_evaluations:
            raise _SearchEndedError
        parameters = self._space.full(free_parameters)
        known, self._known = self._known, None
        is_known = known is not None and np.array_equal(known[0], parameters)
        outcome = known[1] if known is not None and is_known else self._evaluate(parameters)
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
            if self._least_gain is not None and self._previous is None:
                self._previous = free_parameters, value
            return -value, -gradient
        self._report(parameters, -math.inf, np.full(1, math.nan))
        if self._best_of_start is None:
            raise _SearchEndedError  # no likelihood at the starting point itself
        # Far worse than anything seen, and flat: the line search interpolates back towards the last good point.
        return -self._best_of_start.value + 1e3 * (1.0 + abs(self._best_of_start.value)), np.zeros_like(free_parameters)

    def _after_step(self, intermediate_result: scipy.optimize.OptimizeResult) -> None:
        parameters, value = intermediate_result.x * self._units, -float(intermediate_result.fun)
        if self._previous is not None and self._is_settled(*self._previous, parameters, value):
            self._settled = True
            raise StopIteration
        self._previous = parameters, value

    def _is_settled(self, old_parameters: FloatArray, old_value: float, parameters: FloatArray, value: float) -> bool:
        if self._least_gain is not None:
            return abs(value - old_value) <= self._least_gain
        if abs(value - old_value) > self._settings.tolerance * max(1.0, abs(value)):
            return False
        # A change of logarithms is relative. For a gamma below 1 the absolute change counts, because it moves the
        # kernel's exponent; by relative changes the gamma of an irrelevant feature would fall for ever.
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
                elapsed_seconds=self._clock.seconds,
            )
        )


def projected(slopes: FloatArray, sides: NDArray[np.int8]) -> FloatArray:
    """Return the gradient (q,) without components that point out of the box; `sides`: see `SearchSpace.sides`."""
    return np.where(sides * slopes > 0.0, 0.0, slopes)


def first_point(kernel_values: FloatArray, noise_variance: float | None = None) -> FloatArray:
    """Return the first point: log values of the kernel and of the noise variance, by default the targets' 1."""
    noise = _INITIAL_NOISE_VARIANCE if noise_variance is None else noise_variance
    return np.append(kernel_values, math.log(noise))


def starting_points(first: FloatArray, space: SearchSpace, settings: SearchSettings) -> list[FloatArray]:
    """Return the starting point `first` (q,), then seeded random ones around it, by factors of about e."""
    generator = np.random.default_rng([settings.seed, 1])
    others = [first + generator.standard_normal(first.size) for _ in range(settings.restarts - 1)]
    return [space.within(point) for point in [first, *others]]


def fallback_starting_points(first: FloatArray, space: SearchSpace) -> list[FloatArray]:
    """Return further starting points, for a search that has found nothing but noise."""
    points = []
    for factor, noise_variance in _FALLBACK_STARTS:
        point = first.copy()
        point[-1] = math.log(noise_variance)
        point[space.gamma_like] += math.log(factor)
        points.append(space.within(point))
    return points


@dataclass(frozen=True)
class SubsetSummary:
    """Summary of a subset for the search."""

    n_targets: int  # samples times columns
    independent: float  # value of the objective for targets that do not depend on their inputs
    deviations: FloatArray  # (p,): standard deviations of the targets; empty for labels, which have no scale
    rows: int = 0  # samples checked for copies, and samples that repeat an earlier one, targets included
    copies: int = 0


# Nats a sample, for a factor of e: the least rise of the objective beyond a bound that matters.
PRESSING = 1e-3
# Nats, of all subsets together, that switching features off may cost.
MOST_LOST = 0.1
# The gamma of a length scale of a hundred deviations; features that matter more are not tried.
LARGEST_GAMMA = 1.0 / (2.0 * 100.0**2)


@dataclass(frozen=True)
class Rest:
    """The end of a search.

    Attributes
    ----------
    slopes
        Derivatives of the objective by the logarithms of all q parameters, (q,), in nats; 0 of those held fixed.
    sides
        -1 for a parameter on its lower bound, 1 on its upper, 0 elsewhere, (q,).
    count
        Number of targets in all subsets; slopes are compared with it.
    """

    slopes: FloatArray
    sides: NDArray[np.int8]
    count: int

    @classmethod
    def of(cls, space: SearchSpace, parameters: FloatArray, slopes: FloatArray, count: int) -> Rest:
        """Describe the end at log parameters (q,), where the objective of `count` targets has the slopes (q,)."""
        return cls(slopes, space.sides(parameters), max(1, count))

    @property
    def outward(self) -> NDArray[np.bool_]:
        """Mask of parameters beyond whose bound the objective rises, (q,)."""
        return np.asarray(self.sides * self.slopes > 0.0)

    @property
    def projected(self) -> FloatArray:
        """The projected gradient, (q,)."""
        return projected(self.slopes, self.sides)

    @property
    def projected_norm(self) -> float:
        """Largest component of the projected gradient."""
        return float(np.abs(self.projected).max(initial=0.0))

    def is_optimum(self, gain: float, tolerance: float) -> bool:
        """True if the projected gradient promises no more than a `gain` of the tolerance, in nats a sample."""
        return gain <= tolerance * self.count

    def judged(self, parameters: Sequence[TunedParameter]) -> tuple[TunedParameter, ...]:
        """Return the parameters (q), `pressed` if the objective is larger beyond the bound that one lies on."""
        beyond = (self.outward & (np.abs(self.slopes) > PRESSING * self.count)).tolist()
        return tuple(
            replace(item, pressed=is_beyond and not item.idle)
            for item, is_beyond in zip(parameters, beyond, strict=True)
        )


def bound_warnings(
    parameters: Sequence[TunedParameter], labels: Sequence[str], summaries: Sequence[SubsetSummary]
) -> list[str]:
    """Return a sentence for each bound that parameters are pressed against: names, likely cause, remedy.

    Parameters
    ----------
    parameters : sequence of TunedParameter
        All q, with `pressed` set.
    labels : sequence of str
        Name of each in messages, (q,).
    summaries : sequence of SubsetSummary
        They count the copies among the subsets' rows.
    """
    places: dict[str, list[tuple[TunedParameter, str]]] = {}
    for parameter, label in zip(parameters, labels, strict=True):
        if not parameter.pressed:
            continue
        end = parameter.lower if parameter.bound == "lower" else parameter.upper
        places.setdefault(f"at the {parameter.bound} bound of the search, {end:.3g}", []).append((parameter, label))
    return [
        f"{', '.join(label for _, label in named)} {'is' if len(named) == 1 else 'are'} {place}. "
        f"{_cause(named[0][0], summaries)}"
        for place, named in places.items()
    ]


# Advice for noise at its lower bound.
HOLD_NOISE = f"To fix it, tune with `fixed` {NOISE_NAME}=1e-5"


def _cause(parameter: TunedParameter, summaries: Sequence[SubsetSummary]) -> str:
    copies = sum(summary.copies for summary in summaries)
    rows = sum(summary.rows for summary in summaries)
    copied = f"{copies:,} of the {rows:,} samples repeat another one, target included" if copies else ""
    if parameter.name == NOISE_NAME and parameter.bound == "lower":
        if copied:
            return f"{copied}, which reads as no noise: remove the repeats from the table and ingest it again"
        return f"The targets have hardly any noise. {HOLD_NOISE}"
    if parameter.is_gamma and parameter.bound == "upper":
        cause = copied or "the samples are too sparse for this kernel, or the targets do not depend on the features"
        remedy = "remove the repeats" if copies else "take a larger `subset`, other features"
        return f"The length scale is so short that each sample explains only itself: {cause}; {remedy}, or set `bounds`"
    if parameter.name == NOISE_NAME:
        return "The noise exceeds the targets' own variance: standardise them, or look for outliers"
    return "Widen its range by `bounds`, fix it at a value by `fixed`, or take another `kernel`"


def candidates(space: SearchSpace, parameters: FloatArray, feature_names: Sequence[str]) -> list[int]:
    """Return positions of gammas to try, the least first: free, of one feature, and small.

    Each part of a kernel keeps at least one. Gammas with bounds or a prior of the user's are not tried, nor gammas of a
    feature with a period.
    """
    of_feature = [
        (position, feature, name.removesuffix(f".{feature_names[feature]}").rpartition("."))
        for position, (name, feature) in enumerate(zip(space.names, space.features, strict=True))
        if feature is not None
    ]
    periodic = {(part, feature) for _, feature, (part, _, kind) in of_feature if kind == "period"}
    small, kept = {}, set()
    for position, feature, (part, _, kind) in of_feature:
        if kind != "gamma":
            continue
        flat = parameters[position] <= math.log(LARGEST_GAMMA)
        if flat and position not in space.restricted and (part, feature) not in periodic:
            small[position] = part
        else:
            kept.add(part)
    return sorted((place for place, part in small.items() if part in kept), key=lambda at: (parameters[at], at))


def switch_off(
    objective: Objective,
    space: SearchSpace,
    best: Optimum,
    feature_names: Sequence[str],
) -> tuple[Optimum, int]:
    """Switch off as many features as a few tries show to be dispensable; return the optimum and the evaluations.

    The gamma of an irrelevant feature ends at some small number, and every kernel entry pays for it. Switching features
    off may cost a tenth of a nat: a linear effect of size b is worth n b^2 / (2 s2) nats, n samples of a subset. The
    log parameter of a gamma that is switched off is minus infinity. All candidates are tried together, then by
    bisection as many of the smallest as possible.

    Parameters
    ----------
    best : Optimum
        The end of a search.
    feature_names : sequence of d str
    """
    positions = candidates(space, best.parameters, feature_names)
    evaluations, passed, failed = 0, 0, len(positions) + 1
    reduced, (_, prior_slopes) = best, space.log_prior(best.parameters)
    while failed - passed > 1 and not should_finish():
        count = len(positions) if not evaluations else (passed + failed) // 2
        trial = best.parameters.copy()
        trial[positions[:count]] = -np.inf
        outcome = objective(trial)
        evaluations += 1
        if outcome is None or not outcome[0] >= best.log_likelihood - MOST_LOST:  # NaN is no gain
            failed = count
            continue
        passed, value = count, best.value + outcome[0] - best.log_likelihood
        slopes = np.where(space.free, outcome[1] + prior_slopes, 0.0)
        reduced = replace(best, parameters=trial, log_likelihood=outcome[0], value=value, slopes=slopes)
    return reduced, evaluations


_LEAST_GAIN_PER_SAMPLE = 0.005  # nats, of a signal that explains 1 % of the variance


class TuneOptions(TypedDict, total=False):
    """Keywords of `tune` and `tune_dataset`, which documents them."""

    subset: int
    subsets: int
    holdout: float | None
    seed: int
    learn_variance: bool
    tolerance: float
    restarts: int
    max_evaluations: int
    seconds: float | None
    progress: ProgressCallback | None
    kernel: Kernel | str | None
    objective: ObjectiveName
    bounds: Mapping[str, tuple[float, float]] | None
    fixed: Mapping[str, float] | None
    priors: Mapping[str, LogNormal | str] | None
    start: Hyperparameters | None
    folds: int | None
    sample_noise: FloatArray | None
    relative_noise: FloatArray | None
    mean: Drift | MeanValue


@dataclass(frozen=True)
class Choices:
    """Choices that `tune` documents under the same names; `InputError` for an unknown objective.

    With the `likelihood` of labels the search maximises their evidence in Laplace's approximation. The amplitude is
    then always free, because it stands for the steepness of probabilities, and there is no noise. With a mean the
    amplitude is free too, because the mean takes its share of the targets' variance.
    """

    kernel: Kernel | str | None = None
    objective: ObjectiveName = "likelihood"
    bounds: Mapping[str, tuple[float, float]] | None = None
    fixed: Mapping[str, float] | None = None
    priors: Mapping[str, LogNormal | str] | None = None
    start: Hyperparameters | None = None
    folds: int | None = None
    likelihood: LabelLikelihood | None = None
    mean: Drift | MeanValue = CENTRED

    def __post_init__(self) -> None:
        self._check_mean()  # also an unknown word
        if self.likelihood is not None:
            if self.likelihood not in LABEL_OBJECTIVES:
                known = ", ".join(LABEL_OBJECTIVES)
                raise InputError(f"the likelihood of labels must be one of {known}; got {self.likelihood!r}")
            if self.objective != "likelihood":
                raise InputError(
                    f"the objective {self.objective!r} is of regressions; leave it out with the likelihood of labels"
                )
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}; got {self.objective!r}")

    @property
    def drift(self) -> Drift:
        """The mean of the function."""
        return Drift.parse(self.mean)

    def columns(self, rows: FloatArray, feature_names: tuple[str, ...]) -> FloatArray | None:
        """Return the columns of the mean at samples (m, d + c), (m, q), or None if it has no coefficients.

        Raises `InputError` if the columns depend on each other.
        """
        if not self.drift.is_fitted:
            return None
        columns = self.drift.columns_at(rows)
        self.drift.require_independent(columns, feature_names)
        return columns

    def _check_mean(self) -> None:
        for name, other in (
            ("the objective loo", self.objective == "loo"),
            ("the likelihood of labels", self.likelihood is not None),
            ("a score by folds", self.folds is not None),
        ):
            if other:
                self.require_centred(name)

    def require_centred(self, name: str) -> None:
        """Refuse another mean than the targets' average beside something that does not know it; `InputError`."""
        if self.drift != CENTRED:
            raise InputError(f"{name} knows no `mean` {self.drift.word}; leave it out, or take `mean` {CENTRED.word}")

    def initial(self, feature_names: tuple[str, ...]) -> tuple[Kernel, float | None]:
        """Return the kernel to tune, at its starting values, and the noise variance to start from, if known.

        Raises `InputError`: a kernel or a start for other features, or a start with another kernel.
        """
        start = self.start
        if start is not None:
            start.check_features(len(feature_names), feature_names)
        if self.kernel is None:
            if start is not None:
                return start.kernel, start.noise_variance
            return parse_kernel("rbf", len(feature_names)), None
        is_text = isinstance(self.kernel, str)
        kernel = self.kernel
        if isinstance(kernel, str):
            kernel = parse_kernel(kernel, len(feature_names), feature_names)
        kernel, white = fold_white(kernel, 0.0)
        if white and self.likelihood is not None:
            raise InputError("labels have no noise of their own: leave white noise out of the kernel")
        if start is None:
            return kernel, None if is_text or white == 0.0 else white
        if not _same_structure(kernel, start.kernel):
            raise InputError(
                "the start is of another kernel than the one to tune; leave the kernel out to go on with the start's, "
                "or leave the start out"
            )
        return start.kernel, start.noise_variance


@dataclass(frozen=True)
class SearchProblem:
    """A search with checked names, bounds and starting values, before any sample is read."""

    feature_names: tuple[str, ...]
    choices: Choices
    settings: SearchSettings
    kernel: Kernel
    family: KernelFamily  # the kernel's parameters, on no samples in particular
    space: SearchSpace
    first: FloatArray  # log parameters to start from, (q,), which may lie outside the bounds

    @classmethod
    def of(cls, feature_names: tuple[str, ...], choices: Choices, settings: SearchSettings) -> Self:
        """Check choices and settings; errors are those of `tune`."""
        kernel, noise_variance = choices.initial(feature_names)
        of_labels = choices.likelihood is not None
        if of_labels or choices.drift != CENTRED:
            settings = replace(settings, learn_variance=True)
        # Names, bounds and starting values do not depend on the rows, which only workers hold.
        family = family_of(kernel, np.zeros((2, len(feature_names))), settings.learn_variance, feature_names)
        space = search_space(
            family,
            feature_names,
            bounds=choices.bounds,
            fixed=choices.fixed,
            priors=choices.priors,
            has_noise=not of_labels,
        )
        first = first_point(family.initial(), noise_variance)
        return cls(feature_names, choices, settings, kernel, family, space, first)

    def point(self, parameters: FloatArray) -> tuple[Kernel, float]:
        """Return the kernel and the noise variance at log parameters (q,)."""
        return self.family.kernel(parameters[:-1]), math.exp(parameters[-1])

    @classmethod
    def from_start(cls, start: Hyperparameters, choices: Choices, settings: SearchSettings) -> Self:
        """Return a search with these choices that goes on from hyperparameters."""
        names = start.feature_names or tuple(f"x{index}" for index in range(start.n_features))
        return cls.of(names, replace(choices, kernel=None, start=start), settings)

    def parameters_from_start(self, parameters: FloatArray) -> tuple[TunedParameter, ...]:
        """Return the parameters by name at log values (q,), each with the start of the first search that moved it."""
        earlier = () if self.choices.start is None else self.choices.start.parameters or ()
        first = {item.name: item.start for item in earlier}
        tuned = self.space.tuned(parameters, self.space.within(self.first), self.feature_names)
        return tuple(replace(item, start=first.get(item.name, item.start)) for item in tuned)

    def starts(self, search: LikelihoodSearch, summaries: Sequence[SubsetSummary]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the starting points (q,) with their numbers, and others if those lead to nothing but noise.

        The caller runs `search` from each of them before it asks for the next one.
        """
        points = starting_points(self.first, self.space, self.settings)
        yield from enumerate(points)
        for number, point in enumerate(fallback_starting_points(self.first, self.space), len(points)):
            if not is_mere_noise(search.best, summaries):
                break
            yield number, point

    def hyperparameters(
        self, best: Optimum, summaries: Sequence[SubsetSummary], further_warnings: Sequence[str] = (), **record: Any
    ) -> Hyperparameters:
        """Return the result of a search; `record` has the fields of `Hyperparameters` that its objective sets."""
        kernel, noise_variance = self.point(best.parameters)
        rest = Rest.of(self.space, best.parameters, best.slopes, sum(summary.n_targets for summary in summaries))
        tuned = rest.judged(self.space.tuned(best.parameters, self.space.within(self.first), self.feature_names))
        start = self.choices.start
        shown = tuned if self.choices.likelihood is None else tuned[:-1]
        rested = best.rested and rest.is_optimum(best.gain, self.settings.tolerance)
        return Hyperparameters(
            kernel=kernel,
            noise_variance=noise_variance,
            converged=rested and not any(item.pressed for item in tuned),
            projected_gradient=rest.projected_norm,
            likelihood=self.choices.likelihood,
            log_prior=best.log_prior if self.space.priors else None,
            parameters=with_switched_off(shown, () if start is None else start.parameters or ()),
            seed=self.settings.seed,
            feature_names=self.feature_names,
            warnings=(*self._warnings(best, rest, rested, tuned, summaries), *further_warnings),
            **record,
        )

    def _warnings(
        self,
        best: Optimum,
        rest: Rest,
        rested: bool,
        tuned: Sequence[TunedParameter],
        summaries: Sequence[SubsetSummary],
    ) -> list[str]:
        """Warn of a search that did not converge, found nothing, ended on bounds, or had a wrong fixed amplitude."""
        messages = []
        if best.rested and not rested:
            messages.append(
                f"tuning stopped near an optimum, with a gradient of {rest.projected_norm:.3g} nats instead of 0. "
                "Continue from the result with `start`, lower the `tolerance`, or use the values as they "
                "are"
            )
        elif not rested:
            messages.append(
                f"tuning stopped at {best.limit}, before it reached its tolerance of "
                f"{self.settings.tolerance:g}. Raise the limit, or use the values as they are"
            )
        if is_mere_noise(best, summaries):
            messages.append(
                "no structure found: the model is no likelier than one of pure noise. Look at the choice of features "
                "and target, or tune on a larger subset"
            )
        messages += bound_warnings(tuned, self.space.labels, summaries)
        spread = np.concatenate([summary.deviations for summary in summaries])
        amplitude = self._held_amplitude()
        if amplitude is not None and bool(np.any((spread < 0.3) | (spread > 3.0))):
            messages.append(
                f"the targets' standard deviation on the subset is {_span(spread)}, not near 1, but the amplitude is "
                f"fixed at {amplitude:g}: standardise the targets, or let the variance be learnt"
            )
        return messages

    def _held_amplitude(self) -> float | None:
        """Return the amplitude that `learn_variance` would have set free, if there is one."""
        if self.settings.learn_variance or not self.kernel.stationary or self.kernel.amplitude_index is None:
            return None
        return self.kernel.parameters()[self.kernel.amplitude_index].value


def is_mere_noise(best: Optimum | None, summaries: Sequence[SubsetSummary]) -> bool:
    """Return True if the best model explains no more than independent samples of the targets' variance would.

    For independent samples the marginal and the leave-one-out likelihood are the same.
    """
    if best is None:
        return True
    independent = sum(summary.independent for summary in summaries)
    count = sum(summary.n_targets for summary in summaries)
    return best.log_likelihood < independent + _LEAST_GAIN_PER_SAMPLE * count


def _same_structure(first: Kernel, second: Kernel) -> bool:
    """Return True if both are one kernel with other values; a search may have switched off gammas of the second."""
    names, others = ([(item.name, item.feature) for item in kernel.parameters()] for kernel in (first, second))
    kept = [item for item in names if item in others or item[0].rpartition(".")[2] != "gamma"]
    return first.type_name == second.type_name and kept == others


def _span(values: FloatArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
