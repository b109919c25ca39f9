"""A search for hyperparameters: free parameters, starting points, warnings, result.

The likelihood of subsets, the leave-one-out likelihood, the evidence of labels and a sparse model's bound on all
samples are objectives of this one search. Each brings a value with its gradient (`LikelihoodSearch`) and a way to climb
from one starting point; all that they share is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, fold_white, parse_kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.trend import CENTRED, MeanKind, checked_mean
from dkgp.models.tuned_parameter import TunedParameter, with_switched_off
from dkgp.models.tuning.kernel_family import family_of
from dkgp.models.tuning.likelihood_search import (
    LikelihoodSearch,
    Optimum,
    SearchSettings,
    fallback_starting_points,
    first_point,
    starting_points,
)
from dkgp.models.tuning.marginal_likelihood import KernelFamily
from dkgp.models.tuning.rest import Rest, bound_warnings
from dkgp.models.tuning.search_space import LogNormal, SearchSpace, search_space
from dkgp.models.tuning.tasks import LABEL_OBJECTIVES, OBJECTIVES, LabelLikelihood, Objective, SubsetSummary

_LEAST_GAIN_PER_SAMPLE = 0.005  # nats; a signal that explains 1 % of the variance


@dataclass(frozen=True)
class Choices:
    """Choices that `tune` documents under the same names; `InputError` for an objective that does not exist.

    With the `likelihood` of labels their evidence in Laplace's approximation is maximised: the amplitude is then always
    free, since it stands for how steeply probabilities rise, and there is no noise. So it is with a mean, which takes
    its share of the targets' variance.
    """

    kernel: Kernel | str | None = None
    objective: Objective = "likelihood"
    bounds: Mapping[str, tuple[float, float]] | None = None
    fixed: Mapping[str, float] | None = None
    priors: Mapping[str, LogNormal | str] | None = None
    start: Hyperparameters | None = None
    folds: int | None = None
    likelihood: LabelLikelihood | None = None
    mean: MeanKind = CENTRED

    def __post_init__(self) -> None:
        self._check_mean()
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

    def _check_mean(self) -> None:
        if checked_mean(self.mean) == CENTRED:
            return
        for name, other in (
            ("the objective loo", self.objective == "loo"),
            ("the likelihood of labels", self.likelihood is not None),
            ("scores by folds", self.folds is not None),
        ):
            if other:
                raise InputError(f"{name} knows no `mean` {self.mean}; leave it out, or take `mean` {CENTRED}")

    def initial(self, feature_names: tuple[str, ...]) -> tuple[Kernel, float | None]:
        """The kernel to tune, whose values are where it starts, and the noise variance to start from, if known.

        Raises `InputError`: a kernel or a start that is for other features, or a start of another kernel.
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
    """A search whose names, bounds and starting values have been checked; no sample has been read for it."""

    feature_names: tuple[str, ...]
    choices: Choices
    settings: SearchSettings
    kernel: Kernel
    family: KernelFamily  # the kernel's parameters, on no samples in particular
    space: SearchSpace
    first: FloatArray  # log parameters to start from, (q,), which may lie outside the bounds

    @classmethod
    def of(cls, feature_names: tuple[str, ...], choices: Choices, settings: SearchSettings) -> SearchProblem:
        """Check choices and settings; errors as of `tune`."""
        kernel, noise_variance = choices.initial(feature_names)
        of_labels = choices.likelihood is not None
        if of_labels or choices.mean != CENTRED:
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
        """The kernel and the noise variance that log parameters (q,) stand for."""
        return self.family.kernel(parameters[:-1]), math.exp(parameters[-1])

    def maximise(
        self,
        search: LikelihoodSearch,
        climb: Callable[[int, FloatArray], object],
        summaries: Sequence[SubsetSummary],
    ) -> Optimum | None:
        """Climb from every starting point, and from others where those lead to nothing but noise; the best of all.

        `climb` takes the number of a starting point and its log parameters (q,), and runs `search`.
        """
        points = starting_points(self.first, self.space, self.settings)
        for number, point in enumerate(points):
            climb(number, point)
        for number, point in enumerate(fallback_starting_points(self.first, self.space), len(points)):
            if not is_mere_noise(search.best, summaries):
                break
            climb(number, point)
        return search.best

    def hyperparameters(
        self, best: Optimum, summaries: Sequence[SubsetSummary], further_warnings: Sequence[str] = (), **record: Any
    ) -> Hyperparameters:
        """The result of a search; `record` are the fields of `Hyperparameters` that its objective knows."""
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
        """Warn of a search that did not converge, found nothing, ended on bounds, or had a wrong amplitude held."""
        messages = []
        if best.rested and not rested:
            messages.append(
                f"tuning came to rest beside an optimum, where its gradient is still {rest.projected_norm:.2g} nats: "
                "go on from the result by `start`, lower the `tolerance`, or take the values as a good guess"
            )
        elif not rested:
            messages.append(
                f"tuning stopped before its tolerance of {self.settings.tolerance:g} was met (at most "
                f"{self.settings.max_evaluations} evaluations): raise the limit, or take the values as a good guess"
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
        """The amplitude that `learn_variance` would have set free."""
        if self.settings.learn_variance or not self.kernel.stationary or self.kernel.amplitude_index is None:
            return None
        return self.kernel.parameters()[self.kernel.amplitude_index].value


def is_mere_noise(best: Optimum | None, summaries: Sequence[SubsetSummary]) -> bool:
    """True if the best model explains no more than independent samples of the targets' variance would.

    That holds for the marginal and for the leave-one-out likelihood alike: for independent samples they are the same.
    """
    if best is None:
        return True
    independent = sum(summary.independent for summary in summaries)
    count = sum(summary.n_targets for summary in summaries)
    return best.log_likelihood < independent + _LEAST_GAIN_PER_SAMPLE * count


def _same_structure(first: Kernel, second: Kernel) -> bool:
    """True if they are one kernel with other values; of the second, a search may have switched gammas off."""
    names, others = ([(item.name, item.feature) for item in kernel.parameters()] for kernel in (first, second))
    kept = [item for item in names if item in others or item[0].rpartition(".")[2] != "gamma"]
    return first.type_name == second.type_name and kept == others


def _span(values: FloatArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
