"""A plot of linear regressions: weights and errors by cardinality, and which was chosen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dkgp.commands.reporting.plots import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dkgp.models.linear.train import PathOfTarget

# Features with a name in the legend, and targets with a row of their own.
MOST_NAMES, MOST_TARGETS = 10, 6


class Named(Protocol):
    """Names of features and targets."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the targets."""


def plot_weights(path: str | os.PathLike[str], targets: Sequence[PathOfTarget], names: Named, *, title: str) -> None:
    """Draw weights and errors of each target's path, both standardised, against the cardinality.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg.
    targets : sequence of PathOfTarget
        Of the first few there is a row each.
    names : Dataset, or what else has their names
    title : str
    """
    shown = targets[:MOST_TARGETS]
    with drawn(path, 11.0, 4.2 * len(shown), title) as figure:
        rows = figure.subplots(len(shown), 2, squeeze=False)
        for (by_weight, by_error), some, name in zip(rows, shown, names.target_names, strict=False):
            _draw_weights(by_weight, some, names.feature_names)
            by_weight.set(title=name, ylabel="standardised weight")
            _draw_errors(by_error, some)
            for axis in (by_weight, by_error):
                axis.axvline(some.cardinality, color="grey", linestyle="--", linewidth=1)
                axis.set_xlabel("features")
                axis.grid(alpha=0.3)
                axis.legend(fontsize="x-small", ncols=2)


def _draw_weights(axis: Axes, some: PathOfTarget, names: Sequence[str]) -> None:
    size = len(names)
    weights = np.stack([some.path.solution(k, size) for k in range(some.path.longest + 1)])
    used = some.path.used()
    largest = used[np.argsort(-np.abs(weights[-1, used]), kind="stable")]
    for number, feature in enumerate(largest):
        label = names[feature] if number < MOST_NAMES else None
        axis.plot(weights[:, feature], marker=".", label=label, alpha=1.0 if number < MOST_NAMES else 0.4)
    axis.plot([], [], color="grey", linestyle="--", label=f"chosen: {some.cardinality:,}")


def _draw_errors(axis: Axes, some: PathOfTarget) -> None:
    axis.plot(some.errors, marker=".", label="training samples")
    if some.scores is not None and some.spread is not None:
        sizes = np.arange(len(some.scores))
        axis.plot(sizes, some.scores, marker=".", label="samples left out")
        if some.spread.any():
            low, high = some.scores - some.spread, some.scores + some.spread
            axis.fill_between(sizes, low, high, alpha=0.2, linewidth=0, color="C1", label="std over folds")
    axis.set_ylabel("mean squared error, standardised")
    if some.errors.min() > 0.0:
        axis.set_yscale("log")
