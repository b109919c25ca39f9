"""Judge the end of a search: it came to rest at an optimum, or at a bound that keeps it from one.

A maximum within a box of bounds has a projected gradient of zero: the gradient without the components that point out
of the box at a bound (Nocedal and Wright 2006, section 16.7; the conditions of Karush, Kuhn and Tucker, whose
multipliers are the components left out). A component that is left out and large says that the objective itself has its
maximum elsewhere: such a search has not converged, it was stopped. Where the parameter no longer changes the model, as
the gamma of a feature that does not matter does at 1e-8, it is one that the model can do without; and so the model does
(`switch_off`), for every feature of a kernel costs time in every entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import FloatArray
from dkgp.models.tuned_parameter import TunedParameter
from dkgp.models.tuning.likelihood_search import Optimum, projected
from dkgp.models.tuning.search_space import NOISE_NAME, SearchSpace
from dkgp.models.tuning.tasks import SubsetSummary

# Nats a sample, for a factor of e: by how much the objective rises beyond a bound that matters.
PRESSING = 1e-3
# Nats, of all subsets together, that switching features off may cost.
MOST_LOST = 0.1
# A gamma whose length scale is a hundred deviations; features that matter more are not tried.
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
        Targets of all subsets, by which slopes are judged.
    """

    slopes: FloatArray
    sides: NDArray[np.int8]
    count: int

    @classmethod
    def of(cls, space: SearchSpace, parameters: FloatArray, slopes: FloatArray, count: int) -> Rest:
        """Of log parameters (q,) and the objective's slopes (q,) there, of `count` targets."""
        return cls(slopes, space.sides(parameters), max(1, count))

    @property
    def outward(self) -> NDArray[np.bool_]:
        """True where the objective rises beyond a bound, (q,)."""
        return np.asarray(self.sides * self.slopes > 0.0)

    @property
    def projected(self) -> FloatArray:
        """The projected gradient, (q,)."""
        return projected(self.slopes, self.sides)

    @property
    def projected_norm(self) -> float:
        """Its largest component."""
        return float(np.abs(self.projected).max(initial=0.0))

    def is_optimum(self, gain: float, tolerance: float) -> bool:
        """True if the projected gradient promises no more than a `gain` of the tolerance, in nats a sample."""
        return gain <= tolerance * self.count

    def judged(self, parameters: Sequence[TunedParameter]) -> tuple[TunedParameter, ...]:
        """Return the parameters (q), `pressed` where a bound keeps one from where the objective is larger."""
        beyond = (self.outward & (np.abs(self.slopes) > PRESSING * self.count)).tolist()
        return tuple(
            replace(item, pressed=is_beyond and not item.idle)
            for item, is_beyond in zip(parameters, beyond, strict=True)
        )


def bound_warnings(
    parameters: Sequence[TunedParameter], labels: Sequence[str], summaries: Sequence[SubsetSummary]
) -> list[str]:
    """A sentence for each place that parameters are pressed against: which, the likely cause, and what to do.

    Parameters
    ----------
    parameters : sequence of TunedParameter
        All q, judged.
    labels : sequence of str
        What each is called in messages, (q,).
    summaries : sequence of SubsetSummary
        Of the subsets, which know how many of their rows are copies.
    """
    places: dict[str, list[tuple[TunedParameter, str]]] = {}
    for parameter, label in zip(parameters, labels, strict=True):
        if not parameter.pressed:
            continue
        end = parameter.lower if parameter.bound == "lower" else parameter.upper
        places.setdefault(f"on its {parameter.bound} bound, {end:.3g}", []).append((parameter, label))
    return [
        f"{place}: {', '.join(label for _, label in named)}; beyond it the model would be likelier, so this is no "
        f"optimum. {_cause(named[0][0], summaries)}"
        for place, named in places.items()
    ]


def _cause(parameter: TunedParameter, summaries: Sequence[SubsetSummary]) -> str:
    copies = sum(summary.copies for summary in summaries)
    rows = sum(summary.rows for summary in summaries)
    copied = f"{copies:,} of the {rows:,} samples repeat another one, target included" if copies else ""
    if parameter.name == NOISE_NAME and parameter.bound == "lower":
        if copied:
            return f"{copied}, which reads as no noise: remove the repeats from the table and ingest it again"
        seen = "No sample is repeated: the" if rows else "The"
        return (
            f"{seen} targets have hardly any noise, or the kernel follows it. Where there is none, "
            f"hold it at a value (`fixed` {NOISE_NAME}=1e-5) or lower its bound (`bounds`); otherwise take a smoother "
            "`kernel` or a larger `subset`"
        )
    if parameter.is_gamma and parameter.bound == "upper":
        cause = copied or "the samples are too sparse for this kernel, or the targets do not depend on the features"
        remedy = "remove the repeats" if copies else "take a larger `subset`, other features"
        return f"Each sample explains itself alone: {cause}; {remedy}, or keep length scales longer by `bounds`"
    if parameter.name == NOISE_NAME:
        return "The noise exceeds the targets' own variance: standardise them, or look for outliers"
    return "Widen its range by `bounds`, hold it at a value by `fixed`, or take another `kernel`"


def candidates(space: SearchSpace, parameters: FloatArray, feature_names: Sequence[str]) -> list[int]:
    """Positions of gammas that are worth a try, the least first: free, of one feature, and small.

    Of a part of a kernel at least one stays, and none is tried that was given bounds or a prior, or with which a period
    would go.
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
    likelihood: Callable[[FloatArray], tuple[float, FloatArray] | None],
    space: SearchSpace,
    best: Optimum,
    feature_names: Sequence[str],
) -> tuple[Optimum, int]:
    """Switch off as many features as a few tries show to be dispensable; return the optimum, and evaluations taken.

    The gamma of a feature that does not matter ends at some small number, and every kernel entry goes on paying for it.
    What may be lost is a tenth of a nat: a linear effect of size b is worth n b^2 / (2 s2) of them, n samples of a
    subset. A gamma that is switched off is minus infinity among the optimum's log parameters. All candidates are tried
    together, then by bisection the most of the smallest.

    Parameters
    ----------
    likelihood : callable
        As of `LikelihoodSearch`.
    best : Optimum
        The end of a search.
    feature_names : sequence of d str
    """
    positions = candidates(space, best.parameters, feature_names)
    evaluations, passed, failed = 0, 0, len(positions) + 1
    reduced, (_, prior_slopes) = best, space.log_prior(best.parameters)
    while failed - passed > 1:
        count = len(positions) if not evaluations else (passed + failed) // 2
        trial = best.parameters.copy()
        trial[positions[:count]] = -np.inf
        outcome = likelihood(trial)
        evaluations += 1
        if outcome is None or not outcome[0] >= best.log_likelihood - MOST_LOST:  # what is no number is no gain
            failed = count
            continue
        passed, value = count, best.value + outcome[0] - best.log_likelihood
        slopes = np.where(space.free, outcome[1] + prior_slopes, 0.0)
        reduced = replace(best, parameters=trial, log_likelihood=outcome[0], value=value, slopes=slopes)
    return reduced, evaluations
