"""Warnings that a user should have of a tuning run besides its result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.models.tuning.likelihood_search import Optimum, SearchSettings
from dkgp.models.tuning.search_space import SearchSpace
from dkgp.models.tuning.tasks import SubsetSummary

__all__ = ["is_mere_noise", "tuning_warnings"]


_LEAST_GAIN_PER_SAMPLE = 0.005  # nats; a signal that explains 1 % of the variance
_IRRELEVANT = " (the targets hardly depend on a feature whose gamma is that small)"
_BOUND_MARGIN = 1e-3  # in log space: nearer to a bound than a tenth of a per cent is on it


def is_mere_noise(best: Optimum | None, summaries: Sequence[SubsetSummary]) -> bool:
    """True if the best model found explains no more than independent samples of the targets' variance would.

    That holds for the marginal and for the leave-one-out likelihood alike: for independent samples they are the same.
    """
    if best is None:
        return True
    independent = sum(summary.independent for summary in summaries)
    count = sum(summary.n_targets for summary in summaries)
    return best.log_likelihood < independent + _LEAST_GAIN_PER_SAMPLE * count


def tuning_warnings(
    space: SearchSpace,
    best: Optimum,
    summaries: Sequence[SubsetSummary],
    settings: SearchSettings,
    *,
    amplitude: float | None,
) -> list[str]:
    """Return messages about a search that did not converge, found nothing, ended on bounds, or lacks an amplitude.

    `amplitude` is the one that was held, where it was.
    """
    found = []
    if not best.converged:
        found.append(
            f"tuning stopped before its tolerance of {settings.tolerance:g} was met (at most "
            f"{settings.max_evaluations} evaluations): raise the limit, or take the values as a good guess"
        )
    if is_mere_noise(best, summaries):
        found.append(
            "no structure found: the model is no likelier than one of pure noise. Look at the choice of features and "
            "target, or tune on a larger subset"
        )
    on_bound: dict[str, list[tuple[str, bool]]] = {}
    parameters = zip(space.labels, space.free, space.gamma_like, best.parameters, space.bounds, strict=True)
    for label, free, gamma_like, value, (lower, upper) in parameters:
        for bound, side in ((lower, "lower"), (upper, "upper")):
            if free and abs(value - bound) <= _BOUND_MARGIN:
                on_bound.setdefault(f"on its {side} bound, {math.exp(bound):.3g}", []).append((label, bool(gamma_like)))
    for where, listed in on_bound.items():
        names = ", ".join(label for label, _ in listed)
        found.append(f"{where}: {names}" + (_IRRELEVANT if "lower" in where and listed[0][1] else ""))
    spread = np.concatenate([summary.deviations for summary in summaries])
    if amplitude is not None and bool(np.any((spread < 0.3) | (spread > 3.0))):
        found.append(
            f"the targets' standard deviation on the subset is {_span(spread)}, not near 1, but the amplitude is fixed "
            f"at {amplitude:g}: standardise the targets, or let the variance be learnt"
        )
    return found


def _span(values: FloatArray) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
