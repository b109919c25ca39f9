"""Plot of `dkgp bench classify`: test errors of the methods on every problem, with their spread over splits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.plots import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "os^vDP*X"
COLUMNS = 4


def plot_errors(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw a panel for each problem: the error of each method over the splits, the paper's beside it.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg; matplotlib is installed, which `check_side_files` sees to.
    rows : sequence of dict
        problem, method, error, error_std, and where the paper has them paper_error, paper_error_std; in percent.
    """
    across, down = _layout(rows)
    with drawn(path, 4.0 * across, 3.2 * down + 0.5, title) as figure:
        draw_errors(figure, rows)


def draw_errors(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the same into a figure."""
    across, down = _layout(rows)
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    panels = figure.subplots(down, across, squeeze=False).reshape(-1)
    for panel, problem in zip(panels, problems, strict=False):
        problem_rows = [row for row in rows if row["problem"] == problem]
        for number, row in enumerate(problem_rows):
            style = {"color": f"C{number % 10}", "marker": MARKERS[number % len(MARKERS)], "capsize": 3}
            panel.errorbar(number - 0.12, row["error"], yerr=row.get("error_std") or 0.0, **style)
            if row.get("paper_error") is not None:
                grey = {"color": "grey", "marker": "_", "capsize": 2, "elinewidth": 1}
                panel.errorbar(number + 0.18, row["paper_error"], yerr=row["paper_error_std"], **grey)
        panel.set(title=problem, ylabel="test error, %")
        panel.set_xticks(
            np.arange(len(problem_rows)), labels=[row["method"] for row in problem_rows], rotation=60, ha="right"
        )
        panel.grid(alpha=0.3, axis="y")
    for panel in panels[len(problems) :]:
        panel.set_visible(False)


def _layout(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Panels side by side, and rows of them."""
    problems = len({row["problem"] for row in rows})
    across = max(1, min(COLUMNS, problems))
    return across, -(-problems // across)
