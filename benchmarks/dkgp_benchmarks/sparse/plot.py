"""Plot of `dkgp bench sparse`: test errors and coverage of the models by their number of basis samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.commands.reporting.plots import drawn

MARKERS = "os^"
PANELS = (("rmse", "RMSE"), ("nlpd", "negative log predictive density"), ("coverage", "covered by 95 % intervals"))


def plot_sparse(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw the rows of the table, the exact model's as a line.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg; matplotlib is installed, which `check_side_files` sees to.
    rows : sequence of dict
        model, m, rmse, nlpd, coverage.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    sizes = sorted({row["m"] for row in rows if row["model"] != "exact"})
    with drawn(path, 15.0, 5.0, title) as figure:
        panels = figure.subplots(1, len(PANELS))
        for panel, (name, label) in zip(panels, PANELS, strict=True):
            for number, model in enumerate(models):
                own = [row for row in rows if row["model"] == model]
                if model == "exact":
                    panel.axhline(own[0][name], color="black", linewidth=1, label=model)
                else:
                    style = {"color": f"C{number % 10}", "marker": MARKERS[number // 10 % len(MARKERS)]}
                    panel.plot([row["m"] for row in own], [row[name] for row in own], label=model, **style)
            panel.set(xlabel="basis samples", ylabel=label, xscale="log")
            panel.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
            panel.set_xticks([], minor=True)
            panel.grid(alpha=0.3)
        panels[0].set_yscale("log")
        panels[2].axhline(0.95, color="grey", linestyle="--", linewidth=1)
        panels[-1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.02, 1.0))
