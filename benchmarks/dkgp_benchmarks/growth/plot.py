"""Plot of `dkgp bench growth`: seconds against samples, both logarithmic, with what the machine allows as a line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dkgp.commands.reporting.plots import drawn

PARTS = (
    ("product_seconds", "products"),
    ("check_seconds", "products in float64"),
    ("factor_seconds", "factor"),
    ("apply_seconds", "factor applied"),
)


def plot_growth(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw the whole time, its parts and the limit.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg; matplotlib is installed, which `check_plot_file` sees to.
    rows : sequence of mapping
        As in the table, the smallest n first.
    """
    n = np.asarray([row["n"] for row in rows], dtype=np.float64)
    with drawn(path, 7.0, 5.0, title) as figure:
        axis = figure.subplots()
        axis.loglog(n, [row["seconds"] for row in rows], marker="o", color="black", label="the whole solve")
        for name, label in PARTS:
            seconds = np.asarray([row[name] for row in rows])
            if (seconds > 0.0).any():
                axis.loglog(n[seconds > 0.0], seconds[seconds > 0.0], marker=".", linewidth=1, label=label)
        axis.loglog(
            n,
            [row["limit_seconds"] for row in rows],
            color="grey",
            linestyle="--",
            label="limit: entries x time of an entry / cores",
        )
        axis.set(xlabel="training samples", ylabel="seconds")
        axis.grid(alpha=0.3, which="both")
        axis.legend()
