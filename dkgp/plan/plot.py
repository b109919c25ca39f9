"""Plot of `dkgp plan`: seconds and worker-hours by number of workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.commands.reporting.plots import drawn


def plot_plan(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw seconds, with their interval, and worker-hours against the number of workers.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg; matplotlib is installed, which `check_side_files` sees to.
    rows : sequence of mappings
        Of the plan's document.
    """
    with drawn(path, 10.0, 4.0, title) as figure:
        left, right = figure.subplots(1, 2)
        workers = [row["workers"] for row in rows]
        seconds = [row["seconds"] for row in rows]
        left.fill_between(
            workers, [row["seconds_low"] for row in rows], [row["seconds_high"] for row in rows], alpha=0.2, linewidth=0
        )
        left.plot(workers, seconds, marker="o", label="planned")
        left.plot(
            workers, [seconds[0] * workers[0] / count for count in workers], "--", color="grey", label="in proportion"
        )
        left.set(xscale="log", yscale="log", xlabel="workers", ylabel="seconds", xticks=workers, xticklabels=workers)
        left.legend()
        right.plot(workers, [row["worker_hours"] for row in rows], marker="o")
        right.set(
            xscale="log", yscale="log", xlabel="workers", ylabel="worker-hours", xticks=workers, xticklabels=workers
        )
        for axis in (left, right):
            axis.minorticks_off()
            axis.grid(alpha=0.3)
