"""A plot of predicted classes: confusion, operating curves, and probabilities against what came true."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dkgp.commands.reporting.plots import BAND, MOST_NAMES, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dkgp.models.classification.evaluation import OperatingCurve
    from dkgp.models.classification.metrics import ClassMetrics, Reliability

# Numbers are written into the cells of a confusion matrix of so many classes at most.
MOST_WRITTEN = 12


def plot_classes(
    path: str | os.PathLike[str], metrics: ClassMetrics, curves: Sequence[OperatingCurve], *, title: str
) -> None:
    """Draw the confusion matrix, and beside it the operating curves and the reliability, of those that there are.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg.
    metrics : ClassMetrics
    curves : sequence of OperatingCurve
    title : str
    """
    panels = 1 + bool(curves) + (metrics.reliability is not None)
    with drawn(path, 5.2 * panels, 5.0, title) as figure:
        axes = list(np.ravel(np.asarray(figure.subplots(1, panels), dtype=object)))
        _draw_confusion(axes.pop(0), metrics)
        if curves:
            _draw_curves(axes.pop(0), metrics, curves)
        if metrics.reliability is not None:
            _draw_reliability(axes.pop(0), metrics, metrics.reliability)


def _draw_confusion(axis: Axes, metrics: ClassMetrics) -> None:
    """Shares of each true class's samples, with counts in the cells where they can be read."""
    count = len(metrics.classes)
    by_class = metrics.confusion.sum(axis=1, keepdims=True)
    shares = metrics.confusion / np.maximum(by_class, 1)
    axis.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if count <= MOST_WRITTEN:
        for i, row in enumerate(metrics.confusion):
            for j, cell in enumerate(row):
                colour = "white" if shares[i, j] > 0.5 else "black"
                axis.text(j, i, f"{cell:,}", ha="center", va="center", color=colour, fontsize="small")
    step = -(-count // MOST_WRITTEN)
    ticks = range(0, count, step)
    names = [metrics.classes[number] for number in ticks]
    axis.set_xticks(ticks, names, rotation=45, ha="right", fontsize="small")
    axis.set_yticks(ticks, names, fontsize="small")
    axis.set(xlabel="label that was given", ylabel="true label")
    axis.set_title(f"error {metrics.error_rate:.2%}, balanced {metrics.balanced_error:.2%}", fontsize="small")


def _draw_curves(axis: Axes, metrics: ClassMetrics, curves: Sequence[OperatingCurve]) -> None:
    for number, curve in enumerate(curves):
        axis.plot(curve.false, curve.true, label=curve.name if number < MOST_NAMES else None)
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    axis.set(xlabel="share of false alarms", ylabel="share of true alarms", xlim=(0, 1), ylim=(0, 1))
    axis.set_title("" if metrics.auc is None else f"area under the curve {metrics.auc:.4f}", fontsize="small")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize="small")


def _draw_reliability(axis: Axes, metrics: ClassMetrics, reliability: Reliability) -> None:
    """Shares that came true against the probabilities that were claimed, with the band of sampling error by bin."""
    from scipy.stats import binom

    there = reliability.counts > 0
    claimed, observed, counts = (
        each[there] for each in (reliability.claimed, reliability.observed, reliability.counts)
    )
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="calibrated")
    low, high = (binom.ppf(end, counts, claimed) / counts for end in ((1.0 - BAND) / 2.0, (1.0 + BAND) / 2.0))
    axis.fill_between(claimed, low, high, color="grey", alpha=0.3, linewidth=0, label=f"sampling error ({BAND:.0%})")
    axis.plot(claimed, observed, marker="o", markersize=4)
    of = f"of '{metrics.classes[1]}'" if len(metrics.classes) == 2 else "of the given label"
    axis.set(xlabel=f"probability {of}", ylabel="share that came true", xlim=(0, 1), ylim=(0, 1))
    shares = axis.twinx()
    width = 1.0 / len(reliability.counts)
    centres = (np.arange(len(reliability.counts)) + 0.5) * width
    shares.bar(centres, reliability.counts / reliability.counts.sum(), width=width, alpha=0.15, color="C0")
    shares.set(ylim=(0, 1), ylabel="share of samples (bars)")
    axis.set_title(f"calibration error {reliability.error:.4f}", fontsize="small")
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left", fontsize="small")
