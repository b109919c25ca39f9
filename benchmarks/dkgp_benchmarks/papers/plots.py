"""Pictures of `dkgp bench papers`, drawn from a section's document: one for each figure and data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.outputs import Document, check_output_file
from dkgp.commands.reporting.plots import check_plot_file, drawn
from dkgp.errors import InputError
from dkgp_benchmarks.papers.part import Drawing, Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST_SHARE = 1e-13
# Of a title.
LETTERS_AN_INCH = 10.0
COLOURS = {"kcg": "tab:cyan", "paramcg": "tab:red", "cg": "tab:green"}
# Draws beyond the first are there to show the spread.
OTHER_DRAWS = 0.25


def shown(section: Document) -> Shown:
    """Return a section with the picture that its kind has; most have none."""
    name = str(section["section"])
    make = _pictures().get(name.partition(":")[0])
    return Shown(section) if make is None else Shown(section, Drawing(file_name(name), partial(make, document=section)))


def file_name(name: str) -> str:
    """Name of the file, without its ending, of what is called so."""
    return name.replace(":", "_").replace("/", "_")


def check_plot_folder(folder: str, names: Sequence[str], *, replace: bool) -> None:
    """Make sure, before any work, that pictures of such names can be drawn; errors as for `check_output_file`."""
    place = Path(folder).expanduser()
    if place.is_file():
        raise InputError(f"--plots needs a folder; '{folder}' is a file")
    check_plot_file(place / "any.png")
    for name in names:
        for path in sorted({place / f"{name}.png", *place.glob(f"{name}_*.png")}):
            check_output_file(path, replace=replace, option="`plots`")


def draw(folder: str | Path, shown: Shown) -> Path | None:
    """Draw the picture into a folder, under its name as a PNG; return the file, or None where there is no picture."""
    if shown.drawing is None:
        return None
    path = Path(folder).expanduser() / f"{shown.drawing.name}.png"
    width = shown.drawing.width
    title = "\n".join(wrap(str(shown.section["title"]), int(LETTERS_AN_INCH * width)))
    with drawn(path, width, shown.drawing.height, title) as figure:
        shown.drawing.draw(figure)
    return path


def _pictures() -> dict[str, Callable[..., None]]:
    return {
        "figure_1": _histograms,
        "figure_2": partial(_convergence, against="seconds", with_errors=True),
        "figure_3": partial(_convergence, against="iteration", with_errors=False),
        "figure_4": _growth,
        "table_2": _bars_of_table_2,
        "table_3": _variances,
        "table_4": _sparse,
        "table_5": _targets,
        "figure_kcg": _risks,
        "figure_sb": _gaps,
    }


def _histograms(figure: Figure, document: Document) -> None:
    curves = document["curves"]
    edges = np.asarray(curves["edges"])
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (system, draws) in zip(panels, curves["shares"].items(), strict=True):
        shares = np.asarray(draws)
        spread = shares.std(axis=0, ddof=1) if len(shares) > 1 else None
        width = np.diff(edges)
        panel.bar(edges[:-1], shares.mean(axis=0), width=width, align="edge", edgecolor="white", yerr=spread, capsize=2)
        panel.set(xlabel="correlation of a sample's gradient and its neighbours'", title=f"right-hand side {system}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("share of pairs")


def _convergence(figure: Figure, document: Document, *, against: str, with_errors: bool) -> None:
    draws: Sequence[Mapping[str, Any]] = document["curves"]["draws"]
    panels = figure.subplots(1, 3 if with_errors else 2)
    # The draw that is shown in full lies above the others.
    for number, curves in reversed(list(enumerate(draws))):
        for index, (label, run) in enumerate(curves["runs"].items()):
            style: dict[str, Any] = {"color": f"C{index % 10}"}
            style |= {"label": label} if number == 0 else {"alpha": OTHER_DRAWS, "linewidth": 1}
            _converging(panels, curves, run, against, style)
    first = draws[0]
    panels[0].axhline(float(first["tolerance"]), color="grey", linestyle="--", linewidth=1, label="tolerance")
    panels[0].set_ylabel("max |g|")
    panels[1].set_ylabel("objective above its minimum")
    if with_errors:
        panels[2].set_ylabel("RMSE on test samples")
        if first["rmse"] is not None:
            panels[2].axhline(float(first["rmse"]), color="grey", linestyle="--", linewidth=1, label="Cholesky")
    for panel in panels:
        _finish(panel, against, legend=False)
    # The same methods in all panels: one legend.
    handles = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize="small")


def _converging(
    panels: Any, curves: Mapping[str, Any], run: Mapping[str, Any], against: str, style: Mapping[str, Any]
) -> None:
    minimum = float(curves["minimum"])
    x = np.asarray([point[against] for point in run["history"]])
    if not len(x):
        return
    panels[0].loglog(x, [point["gradient_inf_norm"] for point in run["history"]], **style)
    gap = np.asarray([point["objective"] for point in run["history"]]) - minimum
    # What lies at the minimum to within rounding has no place on a logarithmic axis.
    above = gap > SMALLEST_SHARE * abs(minimum)
    panels[1].loglog(x[above], gap[above], **style)
    if len(panels) > 2:
        panels[2].loglog([p["seconds"] for p in run["test"]], [p["rmse"] for p in run["test"]], **style)


def _growth(figure: Figure, document: Document) -> None:
    panels = figure.subplots(1, 2)
    for solver in dict.fromkeys(row["solver"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["solver"] == solver and row["converged"]]
        for panel, name in zip(panels, ("seconds", "column_passes"), strict=True):
            spread = [row.get(f"{name}_spread") or 0.0 for row in rows]
            panel.errorbar(
                [row["n"] for row in rows],
                [row[name] for row in rows],
                yerr=spread if any(spread) else None,
                marker="o",
                capsize=3,
                label=solver,
            )
    for panel in panels:
        panel.set_xscale("log")
        _finish(panel, "n")
    panels[0].set_yscale("log")
    panels[0].set_ylabel("seconds")
    panels[1].set_ylabel("column passes")


def _bars_of_table_2(figure: Figure, document: Document) -> None:
    """Seconds and passes over GBCD's, beside the paper's."""
    panels = figure.subplots(1, 2, sharey=True)
    rows = [row for row in document["rows"] if row.get("seconds_ratio") is not None]
    if not rows:
        panels[0].set_title("GBCD as in the paper was cut off: no ratios to it", fontsize="medium")
        return
    places = np.arange(len(rows))
    for panel, name, title in zip(panels, ("seconds", "passes"), ("seconds", "column passes"), strict=True):
        values = [row.get(f"{name}_ratio") or np.nan for row in rows]
        hatches = ["" if row["converged"] else "//" for row in rows]
        bars = panel.barh(places + 0.18, values, height=0.36, label="here (hatched: cut off, more is needed)")
        for bar, hatch in zip(bars, hatches, strict=True):
            bar.set_hatch(hatch)
        panel.set_xscale("log")
        panel.set_xlabel(f"{title}, over those of GBCD as in the paper")
        panel.grid(alpha=0.3, axis="x")
        panel.axvline(1.0, color="grey", linewidth=1)
    paper = [_number(row["paper_ratio"]) for row in rows]
    if any(value is not None for value in paper):
        shown_ratios = [np.nan if value is None else value for value in paper]
        panels[0].barh(places - 0.18, shown_ratios, height=0.36, color="silver", label="the paper")
    panels[0].set_yticks(places, labels=[row["solver"] for row in rows])
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")


def _number(text: str) -> float | None:
    """A ratio as it is printed, bounds included; None of a dash."""
    digits = text.lstrip("> ").replace(",", "")
    return None if digits == "-" else float(digits)


def _variances(figure: Figure, document: Document) -> None:
    """Relative errors of the variances, and seconds of each, by data set."""
    panels = figure.subplots(1, 2)
    rows = [row for row in document["rows"] if row.get("seconds_per_sample") is not None]
    places = np.arange(len(rows))
    kinds = (
        (panels[0], "relative_rmse", "paper_rmse", "relative RMSE of the variances (equation 17)"),
        (panels[1], "seconds_per_sample", "paper_seconds", "seconds a variance"),
    )
    for panel, ours, theirs, title in kinds:
        spread = [row.get(f"{ours}_spread") or 0.0 for row in rows]
        values = [np.nan if row.get(ours) is None else row[ours] for row in rows]
        panel.errorbar(places - 0.08, values, yerr=spread, fmt="o", capsize=3, label="here")
        panel.plot(places + 0.08, [row[theirs] for row in rows], "s", color="grey", label="the paper")
        panel.set_yscale("log")
        panel.set_ylabel(title)
        panel.set_xticks(places, labels=[str(row["data"]) for row in rows])
        panel.set_xlim(-0.6, len(rows) - 0.4)
        panel.grid(alpha=0.3, axis="y")
        panel.legend(fontsize="small")


def _sparse(figure: Figure, document: Document) -> None:
    """Test error and training time of each sparse model over the exact one's, beside the paper's."""
    panels = figure.subplots(1, 2)
    rows = document["rows"]
    places = np.arange(len(rows))
    exact = next(row for row in rows if row["model"].startswith("exact"))
    for panel, name, title in zip(panels, ("rmse", "seconds"), ("RMSE", "seconds of training"), strict=True):
        values = [row[f"{name}_ratio"] for row in rows]
        spread = [(row.get("spread") or 0.0) / exact["rmse"] for row in rows] if name == "rmse" else None
        panel.bar(places - 0.2, values, width=0.4, yerr=spread, capsize=3, label="here")
        paper = [np.nan if row.get(f"paper_{name}_ratio") is None else row[f"paper_{name}_ratio"] for row in rows]
        panel.bar(places + 0.2, paper, width=0.4, color="silver", label="the paper")
        panel.set_xticks(places, labels=[row["model"] for row in rows])
        panel.set_ylabel(f"{title}, over the exact model's")
        panel.axhline(1.0, color="grey", linewidth=1)
        panel.grid(alpha=0.3, axis="y")
    panels[0].legend(fontsize="small")
    panels[1].set_yscale("log")


def _targets(figure: Figure, document: Document) -> None:
    """Error of both models on each target."""
    panel = figure.subplots()
    rows = [row for row in document["rows"] if row.get("is_target")]
    places = np.arange(len(rows))
    for offset, name, label in ((-0.2, "sparse", document["figures"]["sparse_model"]), (0.2, "exact", "GBCD")):
        values = [row[f"{name}_error"] for row in rows]
        spread = [row.get(f"{name}_spread") or 0.0 for row in rows]
        panel.bar(places + offset, values, width=0.4, yerr=spread, capsize=3, label=label)
    panel.set_xticks(places, labels=[row["target"] for row in rows])
    panel.set_ylabel("mean absolute error, standard deviations")
    panel.grid(alpha=0.3, axis="y")
    panel.legend(fontsize="small")


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


def _finish(panel: Axes, label: str, *, legend: bool = True) -> None:
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)
    # A panel may be empty: nothing converged, or nothing could be matched.
    if legend and panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="small")
