"""Plots of classifiers: predicted classes, a search of prototypes, and the course of a risk that is minimised."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.plots import BAND, MOST_NAMES, History, column, drawn, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dkgp.models.classification.metrics import ClassMetrics, OperatingCurve, Reliability

# Numbers are written into the cells of a confusion matrix of so many classes at most.
MOST_WRITTEN = 12


def plot_classes(
    path: str | os.PathLike[str], metrics: ClassMetrics, curves: Sequence[OperatingCurve], *, title: str
) -> None:
    """Draw the confusion matrix, and beside it the operating curves and the reliability, of those that there are."""
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
    axis.legend(loc="lower right", fontsize="small")
    finish(axis, legend=None)


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
    axis.legend(loc="upper left", fontsize="small")
    finish(axis, legend=None)


def plot_path(
    path: str | os.PathLike[str],
    cardinalities: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    *,
    title: str,
) -> None:
    """Draw the scores of a fixed-size classifier.

    Parameters
    ----------
    cardinalities : sequence of mappings
        Of the kernel and noise that were chosen: cardinality, score (mean squared error of cross-validation) and std
        (over folds) of each.
    history : sequence of mappings
        What the search looked at: scale, noise_variance and score of each.
    summary : mapping
        Of the model: cardinality is that which was chosen, best_cardinality that of the least score.
    """
    # The axis has no place for none at all.
    some = [record for record in cardinalities if record["cardinality"] > 0]
    size, score, spread = (
        np.array([float(record[name]) for record in some]) for name in ("cardinality", "score", "std")
    )
    with drawn(path, 11.0, 4.2, title) as figure:
        by_size, by_width = figure.subplots(1, 2)
        by_size.fill_between(size, score - spread, score + spread, alpha=0.2, linewidth=0, label="std over folds")
        by_size.plot(size, score, label="cross-validation")
        chosen = int(summary["cardinality"])
        by_size.axvline(chosen, color="C1", linestyle="--", label=f"chosen: {chosen:,}")
        best = int(summary["best_cardinality"])
        if best != chosen:
            by_size.axvline(best, color="grey", linestyle=":", label=f"least: {best:,}")
        by_size.set(xlabel="prototypes", ylabel="mean squared error of decisions", xscale="log")
        order = np.argsort([-record["scale"] for record in history], kind="stable")
        widths = np.array([float(history[index]["scale"]) ** -0.5 for index in order])
        scores = np.array([float(history[index]["score"]) for index in order])
        by_width.plot(widths, scores, "o-", markersize=4, label="best penalty of each")
        if len(scores):
            least = int(np.argmin(scores))
            by_width.plot(widths[least], scores[least], "s", color="C1", label="chosen")
        by_width.set(
            xlabel="width: factor of the length scales at the start", ylabel="mean squared error", xscale="log"
        )
        for axis in (by_size, by_width):
            # Labels between powers of ten run into each other.
            axis.xaxis.set_minor_formatter(lambda value, place: "")
            finish(axis)


def plot_risk(path: str | os.PathLike[str], history: History, *, title: str, goal: float | None = None) -> None:
    """Draw the proven gap of the risk, and the risk itself, by products and by seconds.

    Parameters
    ----------
    history : sequence of mappings
        Records of the rounds: `duality_gap` is relative, `objective` the risk.
    goal : float, optional
        Relative gap at which the search was to stop.
    """
    with drawn(path, 9.0, 6.0, title) as figure:
        axes = figure.subplots(2, 2, sharex="col")
        for column, (name, label) in enumerate((("column_passes", "products"), ("seconds", "seconds"))):
            _draw_falling(axes[0, column], history, name, "duality_gap", "proven relative gap", goal)
            _draw_risk(axes[1, column], history, name, label)


def plot_newton(path: str | os.PathLike[str], history: History, *, tolerance: float, title: str) -> None:
    """Draw the steps of Newton's method on a basis: distance of decisions to the basis' best function, and the risk.

    Parameters
    ----------
    path, title
        As for `plot_risk`.
    history : sequence of mappings
        Records of the steps; `relative_residual` is the distance.
    tolerance : float
        Distance at which they were to stop.
    """
    with drawn(path, 9.0, 4.0, title) as figure:
        left, right = figure.subplots(1, 2)
        _draw_falling(left, history, "iteration", "relative_residual", "distance to the basis' best", tolerance)
        left.set_xlabel("Newton steps")
        _draw_risk(right, history, "iteration", "Newton steps")


def _draw_falling(axis: Axes, history: History, by: str, name: str, label: str, goal: float | None) -> None:
    """A positive figure on a logarithmic scale, as far as it is known."""
    x, y = column(history, by), column(history, name)
    shown = np.isfinite(y) & (y > 0.0)
    axis.plot(x[shown], y[shown], ".-", markersize=4)
    axis.set(ylabel=label)
    if shown.any() or goal is not None:
        axis.set_yscale("log")
    if goal is not None:
        axis.axhline(goal, color="grey", linestyle=":", label=f"goal: {goal:g}")
    finish(axis, legend=None if goal is None else "small")


def _draw_risk(axis: Axes, history: History, by: str, label: str) -> None:
    axis.plot(column(history, by), column(history, "objective"), ".-", markersize=4)
    axis.set(xlabel=label, ylabel="risk")
    finish(axis, legend=None)
