"""A plot of a basis as it grows: duality gap, risk and the distance to the exact mean, against its size m."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.plots import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Figures = NDArray[np.float64]


def plot_basis(
    path: str | os.PathLike[str],
    history: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    certificate: Mapping[str, Any],
    *,
    title: str,
) -> None:
    """Draw a growing basis.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg.
    history : sequence of mappings
        Records of the rounds of a greedy choice (`dkgp.solvers.greedy_basis.settings.GreedyProgress.to_json`).
    summary, certificate : mapping
        Of the model that it ended in: what is proven of it and of the rungs before, with all roundings, are points.
    title : str
    """
    known = [record for record in history if record["least"] is not None]
    excess = np.maximum(_column(known, "risk") - _column(known, "least"), 0.0)
    distance = np.sqrt(2.0 * excess * certificate["largest_noise"] / certificate["n"])
    gap, goal, sizes = _column(known, "gap"), summary["settings"], _column(known, "size")
    proven = _proven(summary, certificate)
    with drawn(path, 13.0, 4.2, title) as figure:
        gaps, risks, distances = figure.subplots(1, 3)
        _draw(gaps, sizes, gap, proven, "gap", goal["gap"])
        _draw(risks, _column(history, "size"), _column(history, "risk"), proven, "risk", None)
        if known:
            risks.plot(sizes, _column(known, "least"), color="C0", linestyle=":", label="least, in the choice")
        at, least = _column(proven, "size"), _column(proven, "least")
        risks.plot(at, least, ":s", markersize=3, color="C1", label="least, proven")
        _draw(distances, sizes, distance, proven, "distance", goal["target_distance"])
        labels = {gaps: "duality gap", risks: "regularised risk", distances: "RMS distance to the exact mean, at most"}
        for axis, label in labels.items():
            axis.set(xlabel="basis samples m", ylabel=label)
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small")


def _proven(summary: Mapping[str, Any], certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Proofs of the model, and of the rungs below it: of the worst target, and risks of all."""
    rungs = summary.get("ladder", {}).get("rungs", [])
    if rungs:
        return [{**rung, "risk": sum(rung["risk"]), "least": sum(rung["least"])} for rung in rungs]
    least = sum(max(bound) for bound in zip(*certificate["least_risk"].values(), strict=True))
    gap = None if None in summary["gap"] else max(summary["gap"])
    ends = {"gap": gap, "distance": max(summary["rms_bound"])}
    return [{"size": summary["basis_size"], "risk": sum(certificate["risk"]), "least": least, **ends}]


def _draw(
    axis: Axes, sizes: Figures, values: Figures, proven: Sequence[Mapping[str, Any]], name: str, goal: float | None
) -> None:
    """One figure: as the choice goes, as it is proven, and what was asked for."""
    if len(sizes):
        axis.semilogy(sizes, values, marker=".", markersize=3, label="in the choice")
    axis.semilogy(_column(proven, "size"), _column(proven, name), "-s", markersize=5, color="C1", label="proven")
    if goal is not None:
        axis.axhline(goal, color="grey", linestyle="--", linewidth=1, label=f"asked for: {goal:g}")


def _column(history: Sequence[Mapping[str, Any]], name: str) -> Figures:
    """Figures of a record each; what is not known is not drawn."""
    return np.asarray([math.nan if record[name] is None else float(record[name]) for record in history])
