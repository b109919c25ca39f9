"""Plot of `dkgp bench variance`: how wide the proven intervals are, and where the exact variances lie in them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from dkgp.commands.reporting.plots import drawn
from dkgp_benchmarks.variance.measure import Intervals


def plot_intervals(path: str | os.PathLike[str], intervals: Sequence[Intervals], *, title: str) -> None:
    """Draw the sorted relative gaps and, where exact variances are known, the intervals around them.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg; matplotlib is installed, which `check_side_files` sees to.
    intervals : sequence
        One for each gap wanted.
    """
    known = [(each, each.exact) for each in intervals if each.exact is not None]
    with drawn(path, 11.0 if known else 5.5, 4.5, title) as figure:
        panels = figure.subplots(1, 2 if known else 1, squeeze=False)[0]
        for number, each in enumerate(intervals):
            sorted_gaps = np.sort(each.relative_gap)
            share = np.arange(1, len(sorted_gaps) + 1) / len(sorted_gaps)
            panels[0].step(sorted_gaps, share, where="post", color=f"C{number}", label=f"wanted: {each.gap:g}")
            panels[0].axvline(each.gap, color=f"C{number}", linestyle="--", linewidth=1)
        panels[0].set(
            xscale="log", xlabel="relative gap, (upper - lower) / upper", ylabel="share of samples", ylim=(0, 1)
        )
        for number, (each, exact) in enumerate(known):
            low, high = each.lower / exact - 1.0, each.upper / exact - 1.0
            panels[1].vlines(
                exact, low, high, color=f"C{number}", linewidth=1, alpha=0.6, label=f"wanted: {each.gap:g}"
            )
        if known:
            panels[1].axhline(0.0, color="black", linewidth=1)
            panels[1].set(xlabel="exact variance (Cholesky, standardised)", ylabel="interval, relative to it")
        for panel in panels:
            panel.grid(alpha=0.3)
            panel.legend()
