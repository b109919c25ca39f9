"""A plot of a basis as it grows: duality gap, risk and the distance to the exact mean, against its size m."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.plots import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_basis"]


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
        Of the model that it ended in: what is proven of it, with all roundings, is a point of its own.
    title : str
    """
    sizes, risk = _column(history, "size"), _column(history, "risk")
    known = [record for record in history if record["least"] is not None]
    known_sizes, least = _column(known, "size"), _column(known, "least")
    excess = np.maximum(_column(known, "risk") - least, 0.0)
    distance = np.sqrt(2.0 * excess * certificate["largest_noise"] / certificate["n"])
    asked, m = summary["settings"], summary["basis_size"]
    with drawn(path, 13.0, 4.2, title) as figure:
        gaps, risks, distances = figure.subplots(1, 3)
        _draw(gaps, known_sizes, _column(known, "gap"), m, max(summary["gap"]), asked["gap"])
        _draw(distances, known_sizes, distance, m, max(summary["rms_bound"]), asked["target_distance"])
        risks.plot(sizes, risk, marker=".", markersize=3, label="in the choice")
        risks.plot(known_sizes, least, color="grey", label="the least there is, at least")
        risks.plot([m], [sum(certificate["risk"])], "s", color="C1", label="of the model")
        labels = {gaps: "duality gap", risks: "regularised risk", distances: "RMS distance to the exact mean, at most"}
        for axis, label in labels.items():
            axis.set(xlabel="basis samples m", ylabel=label)
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small")


def _draw(
    axis: Axes, sizes: np.ndarray[Any, Any], values: np.ndarray[Any, Any], m: int, proven: float, asked: float | None
) -> None:
    """One bound: as the choice goes, what is proven of the model, and what was asked for."""
    if len(sizes):
        axis.semilogy(sizes, values, marker=".", markersize=3, label="in the choice")
    axis.semilogy([m], [proven], "s", color="C1", label="proven of the model")
    if asked is not None:
        axis.axhline(asked, color="grey", linestyle="--", linewidth=1, label=f"asked for: {asked:g}")


def _column(history: Sequence[Mapping[str, Any]], name: str) -> np.ndarray[Any, Any]:
    return np.asarray([float(record[name]) for record in history])
