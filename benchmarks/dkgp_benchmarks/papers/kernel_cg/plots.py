"""Pictures of the kernel CG paper's Figure 1 and Table 2: drawn from sections, onto a figure that is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.outputs import Document
from dkgp_benchmarks.risk.runs import LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As in the paper: kernel CG in light blue, parameter CG in red.
COLOURS = {"kcg": "tab:cyan", "paramcg": "tab:red", "gradient": "tab:orange"}
SMALLEST_SHARE = 1e-12


def draw_losses(figure: Figure, document: Document) -> None:
    """Risk and bound by iteration; distance from the least; parameter CG's iterations to what kernel CG reached."""
    panels = figure.subplots(1, 3)
    curves, least = document["curves"]["runs"], document["curves"]["least"]
    for key, curve in curves.items():
        iteration, label = np.asarray(curve["iteration"], dtype=float), LABELS[key]
        for bound, style in (("upper", "-"), ("lower", ":")):
            values = _numbers(curve[bound])
            shown = values > 0.0
            legend = label if bound == "upper" else f"{label}, bound from below"
            panels[0].loglog(iteration[shown], values[shown], style, color=COLOURS[key], label=legend)
        above = (_numbers(curve["upper"]) - least) / abs(least)
        shown = above > SMALLEST_SHARE
        panels[1].loglog(iteration[shown], above[shown], color=COLOURS[key], label=label)
    _equivalent(panels[2], curves["kcg"], curves["paramcg"])
    for panel, label, what in zip(
        panels,
        ("iteration", "iteration", "kernel CG's iterations"),
        ("risk", "above the least risk, relative", "parameter CG's iterations to the same risk"),
        strict=True,
    ):
        _finish(panel, label, what)


def draw_counts(figure: Figure, document: Document) -> None:
    """Iterations of both, one point for each problem and loss, with the line of equal ones and the square."""
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, prefix, title in zip(panels, ("", "same_"), ("to the gap", "to the same risk"), strict=True):
        most = 1.0
        for loss, colour in (("klr", "tab:blue"), ("rls", "tab:green")):
            rows = [row for row in document["rows"] if row["loss"] == loss and row[f"{prefix}times"] is not None]
            ours = np.asarray([row[f"{prefix}kcg"] for row in rows], dtype=float)
            theirs = ours * np.asarray([row[f"{prefix}times"] for row in rows], dtype=float)
            late = np.asarray([row[f"{prefix}cut_off"] for row in rows], dtype=bool)
            panel.loglog(ours[~late], theirs[~late], "o", color=colour, label=loss)
            if late.any():
                panel.loglog(ours[late], theirs[late], "^", color=colour, label=f"{loss}, cut off: at least")
            most = max(most, ours.max(initial=1.0))
        along = np.geomspace(1.0, most, 50)
        panel.loglog(along, along**2, "--", color="grey", linewidth=1, label="the square")
        panel.loglog(along, along, ":", color="grey", linewidth=1, label="as many")
        panel.set_title(title, fontsize="medium")
        _finish(panel, "kernel CG's iterations", "parameter CG's iterations")


def draw_trees(figure: Figure, document: Document) -> None:
    """Seconds by size, and the risk of a single run by seconds, with trees and without."""
    left, right = figure.subplots(1, 2)
    single = document["curves"]["single"]
    for key, label, colour in (("tree", "with trees", "tab:green"), ("plain", "without", "tab:red")):
        points = [(n, seconds) for n, seconds in document["curves"]["sizes"][key] if seconds is not None]
        if points:
            left.loglog(*np.asarray(points, dtype=float).T, marker="o", color=colour, label=label)
        if key in single:
            right.loglog(_numbers(single[key]["seconds"]), _numbers(single[key]["risk"]), color=colour, label=label)
    _finish(left, "samples", "seconds of the same iterations")
    _finish(right, f"seconds, n = {single['n']:,}", "risk")


def _equivalent(panel: Axes, kcg: Mapping[str, Any], pcg: Mapping[str, Any]) -> None:
    theirs = np.minimum.accumulate(_numbers(pcg["upper"]))
    steps = [
        (iteration, pcg["iteration"][int(np.argmax(theirs <= risk))])
        for iteration, risk in zip(kcg["iteration"], kcg["upper"], strict=True)
        if (theirs <= risk).any()
    ]
    if steps:
        ours, others = np.asarray(steps, dtype=float).T
        panel.loglog(ours, others, marker=".", label="measured")
        panel.loglog(ours, ours**2, "--", color="grey", linewidth=1, label="the square")


def _numbers(values: Any) -> Any:
    """Values as numbers; what JSON has no word for is not drawn."""
    return np.asarray([np.nan if value is None else value for value in values], dtype=float)


def _finish(panel: Axes, label: str, what: str) -> None:
    panel.set(xlabel=label, ylabel=what)
    panel.grid(alpha=0.3)
    # A panel may be empty: nothing could be matched.
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="x-small")
