"""A plot of a fixed-size classifier: its score by cardinality with the one that was chosen, and how it was searched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dkgp.commands.reporting.plots import drawn


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
    path : path
        .png, .pdf or .svg.
    cardinalities : sequence of mappings
        Of the kernel and noise that were chosen: cardinality, score (mean squared error of cross-validation) and std
        (over folds) of each.
    history : sequence of mappings
        What the search looked at: scale, noise_variance and score of each.
    summary : mapping
        Of the model: cardinality is that which was chosen, best_cardinality that of the least score.
    title : str
    """
    # The axis has no place for none at all.
    some = [record for record in cardinalities if record["cardinality"] > 0]
    size, score, spread = (
        np.array([float(record[name]) for record in some]) for name in ("cardinality", "score", "std")
    )
    with drawn(path, 11.0, 4.2, title) as figure:
        by_size, by_scale = figure.subplots(1, 2)
        by_size.fill_between(size, score - spread, score + spread, alpha=0.2, linewidth=0, label="std over folds")
        by_size.plot(size, score, label="cross-validation")
        chosen = int(summary["cardinality"])
        by_size.axvline(chosen, color="C1", linestyle="--", label=f"chosen: {chosen:,}")
        best = int(summary["best_cardinality"])
        if best != chosen:
            by_size.axvline(best, color="grey", linestyle=":", label=f"least: {best:,}")
        by_size.set(xlabel="prototypes", ylabel="mean squared error of decisions", xscale="log")
        order = np.argsort([record["scale"] for record in history])
        scales = np.array([float(history[index]["scale"]) for index in order])
        scores = np.array([float(history[index]["score"]) for index in order])
        by_scale.plot(scales, scores, "o-", markersize=4, label="best noise of each")
        if len(scores):
            least = int(np.argmin(scores))
            by_scale.plot(scales[least], scores[least], "s", color="C1", label="chosen")
        by_scale.set(xlabel="scale of the inverse squared length scales", ylabel="score", xscale="log")
        for axis in (by_size, by_scale):
            # Labels between powers of ten run into each other.
            axis.xaxis.set_minor_formatter(lambda value, place: "")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small")
