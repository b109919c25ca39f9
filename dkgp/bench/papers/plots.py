"""Plots of `dkgp bench papers`: a file for each figure and data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.outputs import check_output_file
from dkgp.commands.reporting.plots import check_plot_file, drawn
from dkgp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_plot_folder", "draw_section", "plot_name"]

SMALLEST_SHARE = 1e-13
COLOURS = {"kcg": "tab:cyan", "paramcg": "tab:red", "cg": "tab:green"}


def plot_name(section: str) -> str:
    """File name of a section's plot."""
    return section.replace(":", "_") + ".png"


def check_plot_folder(folder: str, sections: list[str], *, replace: bool) -> None:
    """Make sure, before any work, that all plots can be drawn; errors as for `check_output_file`."""
    if Path(folder).expanduser().is_file():
        raise InputError(f"--plots needs a folder; '{folder}' is a file")
    for name in sections:
        path = Path(folder).expanduser() / plot_name(name)
        check_plot_file(path)
        check_output_file(path, replace=replace, option="--plots")


def draw_section(folder: str, document: Document) -> str | None:
    """Draw one section's curves; return the file, or None for a section without any."""
    kind = str(document["section"]).partition(":")[0]
    draw: dict[str, Callable[[Figure, Document], None]] = {
        "figure_1": _histograms,
        "figure_2": partial(_convergence, against="seconds", with_errors=True),
        "figure_3": partial(_convergence, against="iteration", with_errors=False),
        "figure_4": _growth,
        "figure_kcg": _risks,
        "figure_sb": _gaps,
    }
    if kind not in draw:
        return None
    path = Path(folder).expanduser() / plot_name(str(document["section"]))
    with drawn(path, 11.0, 4.5, str(document["title"])) as figure:
        draw[kind](figure, document)
    return str(path)


def _histograms(figure: Figure, document: Document) -> None:
    edges = np.asarray(document["curves"]["edges"])
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (system, counts) in zip(panels, document["curves"]["histograms"].items(), strict=True):
        panel.bar(edges[:-1], counts, width=np.diff(edges), align="edge", edgecolor="white")
        panel.set(xlabel="correlation of a sample's gradient and its neighbours'", title=f"right-hand side {system}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("pairs")


def _convergence(figure: Figure, document: Document, *, against: str, with_errors: bool) -> None:
    curves: Mapping[str, Any] = document["curves"]
    panels = figure.subplots(1, 3 if with_errors else 2)
    minimum = float(curves["minimum"])
    for label, run in curves["runs"].items():
        x = np.asarray([point[against] for point in run["history"]])
        if not len(x):
            continue
        panels[0].loglog(x, [point["gradient_inf_norm"] for point in run["history"]], label=label)
        gap = np.asarray([point["objective"] for point in run["history"]]) - minimum
        # What lies at the minimum to within rounding has no place on a logarithmic axis.
        shown = gap > SMALLEST_SHARE * abs(minimum)
        panels[1].loglog(x[shown], gap[shown], label=label)
        if with_errors:
            panels[2].loglog([p["seconds"] for p in run["test"]], [p["rmse"] for p in run["test"]], label=label)
    panels[0].axhline(float(curves["tolerance"]), color="grey", linestyle="--", linewidth=1, label="tolerance")
    panels[0].set_ylabel("max |g|")
    panels[1].set_ylabel("objective above its minimum")
    if with_errors:
        panels[2].set_ylabel("RMSE on test samples")
        if curves["rmse"] is not None:
            panels[2].axhline(float(curves["rmse"]), color="grey", linestyle="--", linewidth=1, label="Cholesky")
    for panel in panels:
        _finish(panel, against)


def _growth(figure: Figure, document: Document) -> None:
    panels = figure.subplots(1, 2)
    for solver in dict.fromkeys(row["solver"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["solver"] == solver and row["converged"]]
        panels[0].loglog([row["n"] for row in rows], [row["seconds"] for row in rows], marker="o", label=solver)
        panels[1].semilogx([row["n"] for row in rows], [row["column_passes"] for row in rows], marker="o", label=solver)
    panels[0].set_ylabel("seconds")
    panels[1].set_ylabel("column passes")
    for panel in panels:
        _finish(panel, "n")


def _risks(figure: Figure, document: Document) -> None:
    """Bounds by iteration; and PCG's iterations against KCG's for the same risk, with their square."""
    left, right = figure.subplots(1, 2)
    curves: Mapping[str, Any] = document["curves"]
    for key, curve in curves.items():
        for bound, style in (("upper", "-"), ("lower", ":")):
            values = np.asarray(curve[bound], dtype=np.float64)
            shown = values > SMALLEST_SHARE
            iterations = np.asarray(curve["iteration"])[shown]
            label = f"{curve['label']}, {bound} bound"
            left.loglog(iterations, values[shown], style, color=COLOURS[key], label=label)
    left.set_ylabel("distance from the least risk, relative")
    kcg, pcg = curves["kcg"], curves["paramcg"]
    steps = [
        (iteration, matching)
        for iteration, value in zip(kcg["iteration"], kcg["upper"], strict=True)
        if (matching := _reached(pcg, value)) is not None
    ]
    if steps:
        ours, theirs = np.asarray(steps, dtype=np.float64).T
        right.loglog(ours, theirs, marker=".", label="measured")
        right.loglog(ours, ours**2, color="grey", linestyle="--", linewidth=1, label="the square")
    right.set_ylabel("PCG's iterations to the same risk")
    for panel in (left, right):
        _finish(panel, "KCG's iterations" if panel is right else "iteration")


def _gaps(figure: Figure, document: Document) -> None:
    """The gap by the number of kernels, one curve for each size of the subsets."""
    panel = figure.subplots()
    for candidates, gaps in document["curves"].items():
        panel.semilogy(range(1, len(gaps) + 1), gaps, label=f"subsets of {candidates}")
    panel.set_ylabel("gap of the bounds on the log posterior")
    _finish(panel, "kernels")


def _reached(curve: Mapping[str, Any], value: float) -> int | None:
    return next((i for i, v in zip(curve["iteration"], curve["upper"], strict=True) if v <= value), None)


def _finish(panel: Axes, label: str) -> None:
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)
    # A panel may be empty: nothing converged, or nothing could be matched.
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="small")
