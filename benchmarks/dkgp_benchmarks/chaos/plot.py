"""Time lines of `dkgp bench chaos`: a bar for each worker's life, a line for each start of the command."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dkgp.commands.reporting.plots import drawn
from dkgp_benchmarks.chaos.members import TimeLine

COLOURS = {
    "killed": "tab:red",
    "cut off": "tab:orange",
    "left": "tab:blue",
    "died": "tab:purple",
    "stayed": "tab:green",
}


def plot_chaos(path: str | os.PathLike[str], lines: Mapping[str, tuple[float, TimeLine]], *, title: str) -> None:
    """Draw the runs under faults, by task: the quiet run's seconds, and the time line of the other.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg.
    lines : mapping of str to (float, TimeLine)
    """
    most = max(len(line.workers) for _, line in lines.values())
    with drawn(path, 9.0, 1.2 + len(lines) * (1.0 + 0.12 * most), title) as figure:
        axes = figure.subplots(len(lines), squeeze=False)[:, 0]
        for axis, (task, (quiet, line)) in zip(axes, lines.items(), strict=True):
            shown: set[str] = set()
            for number, worker in enumerate(line.workers):
                begun, ended = max(0.0, worker.started), line.seconds if worker.ended is None else worker.ended
                label = f"worker {worker.end}" if worker.end not in shown else None
                axis.barh(number, ended - begun, left=begun, height=0.8, color=COLOURS[worker.end], label=label)
                shown.add(worker.end)
            for number, start in enumerate(line.starts[1:]):
                axis.axvline(start, color="black", label="command killed and resumed" if not number else None)
            axis.axvline(quiet, color="grey", linestyle=":", label="end of the undisturbed run")
            axis.set(
                title=f"{task}: {line.seconds:.0f} s, undisturbed {quiet:.0f} s", xlabel="seconds", ylabel="workers"
            )
            axis.set_xlim(0.0, 1.02 * max(line.seconds, quiet))
            axis.invert_yaxis()
            axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)
