"""Plots as image files: convergence, predictions against the truth, calibration, and several methods side by side.

Matplotlib is an extra: it is imported when a plot is drawn, always with the backend that needs no display.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.convergence import ConvergenceEstimate
from dkgp.commands.reporting.lines import duration
from dkgp.data.remote.storage import replacing
from dkgp.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from dkgp.models.metrics import CoverageCurve

FloatArray = NDArray[np.float64]
History = Sequence[Mapping[str, Any]]

FORMATS = (".png", ".pdf", ".svg")
MOST_POINTS = 5000
MOST_NAMES = 8
_ERROR, _GOAL = "#1f5f8b", "#3a7d44"
# Seconds of a unit, and what the axis says; the largest that makes a few of a run.
_TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
# A calibrated model's coverage stays inside the band with this probability, at each level by itself.
BAND = 0.95


def check_plot_file(path: str | os.PathLike[str]) -> None:
    """Make sure, before any work, that a plot can be drawn into this file.

    Raises `MissingExtraError`: Matplotlib is not installed; `InputError`: another suffix than .png, .pdf or .svg.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot", "Drawing a plot")
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"a plot file ends in one of {', '.join(FORMATS)}; got '{os.fspath(path)}'")


@contextmanager
def drawn(path: str | os.PathLike[str], width: float, height: float, title: str) -> Iterator[Figure]:
    """Open a figure of so many inches to draw on, and write it to a .png, .pdf or .svg.

    Raises `MissingExtraError`: Matplotlib is not installed; `StorageError`: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "Drawing a plot") from error
    # Without pyplot nothing global is touched: no backend is chosen, no figure outlives its file.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    figure.suptitle(title, fontsize="medium")
    with replacing(Path(path)) as place:
        figure.savefig(os.fspath(place), dpi=120, format=Path(path).suffix[1:])


def plot_convergence(
    path: str | os.PathLike[str], history: History, *, tolerance: float, title: str = "Convergence"
) -> None:
    """Draw the largest error against time, what is left of it to the tolerance, and when it would be there.

    Parameters
    ----------
    history : sequence of mappings
        Records of the rounds (`dkgp.solvers.Progress.to_json`).
    tolerance : float
        Drawn as a line; where a run stopped above it, the end at its recent rate is foreseen.
    """
    with drawn(path, 8.0, 4.5, title) as figure:
        _draw_error(figure.subplots(), history, tolerance)


def plot_predictions(
    path: str | os.PathLike[str],
    truth: FloatArray,
    mean: FloatArray,
    *,
    coverage: CoverageCurve | None = None,
    title: str,
) -> None:
    """Draw predictions against the truth, and with variances their calibration beside them.

    Parameters
    ----------
    truth, mean : (n,) or (n, p) float64
        In the units of the targets.
    coverage : CoverageCurve, optional
        How often the truth lies in the predictive intervals.
    """
    with drawn(path, 5.5 if coverage is None else 11.0, 5.5, title) as figure:
        panels = _panels(figure, 1 if coverage is None else 2)
        _draw_predictions(panels[0].subplots(), truth, mean)
        if coverage is not None:
            _draw_calibration(panels[1], coverage)


def plot_residuals(
    path: str | os.PathLike[str],
    truth: FloatArray,
    mean: FloatArray,
    standardised: FloatArray,
    *,
    of_prediction: bool,
    title: str,
) -> None:
    """Draw residuals against predictions, and their distribution where a calibrated model's is the normal one.

    Parameters
    ----------
    truth, mean : (n, p) float64
        In the units of the targets.
    standardised : (n, p) float64
        Residuals in units of a standard deviation, of a transformed target on the scale that is modelled.
    of_prediction : bool
        Whether these deviations are the predicted ones, or the residuals' own.
    """
    truth, mean = truth.reshape(len(truth), -1)[:, :MOST_NAMES], mean.reshape(len(mean), -1)[:, :MOST_NAMES]
    residuals = truth - mean
    scaled = standardised.reshape(len(standardised), -1)[:, :MOST_NAMES]
    step = max(1, -(-len(truth) // MOST_POINTS))
    with drawn(path, 11.0, 4.0, title) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(mean[::step], residuals[::step], ".", markersize=_marker(residuals.size), alpha=0.5)
        left.axhline(0.0, color="grey", linewidth=1)
        left.set(xlabel="predicted", ylabel="true - predicted")
        edges = np.linspace(-5.0, 5.0, 41)
        right.hist(np.clip(scaled, -5.0, 5.0), bins=edges.tolist(), density=True, alpha=0.6)
        right.plot(edges, np.exp(-(edges**2) / 2.0) / math.sqrt(2.0 * math.pi), color="grey", label="calibrated")
        of = "predicted" if of_prediction else "their own"
        right.set(xlabel=f"residual / {of} standard deviation (beyond 5: at 5)", ylabel="density")
        right.legend(loc="best", fontsize="small")
        for axis in (left, right):
            axis.grid(alpha=0.3)


def plot_run(
    path: str | os.PathLike[str],
    history: History,
    truth: FloatArray,
    mean: FloatArray,
    *,
    coverage: CoverageCurve | None = None,
    tolerance: float,
    title: str,
) -> None:
    """Draw a whole run: convergence, predictions against the truth, and with variances their calibration."""
    count = 2 if coverage is None else 3
    with drawn(path, 5.5 * count, 5.0, title) as figure:
        panels = _panels(figure, count)
        left = panels[0].subplots()
        _draw_error(left, history, tolerance)
        _draw_predictions(panels[1].subplots(), truth, mean)
        if coverage is not None:
            _draw_calibration(panels[2], coverage)


def plot_plan(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw seconds, with their interval, and worker-hours against the number of workers.

    Parameters
    ----------
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


def _panels(figure: Figure, count: int) -> list[SubFigure]:
    """Return as many panels, side by side."""
    side_by_side: list[SubFigure] = np.ravel(np.asarray(figure.subfigures(1, count), dtype=object)).tolist()
    return side_by_side


def column(history: History, name: str) -> FloatArray:
    """Return a figure of each record; what is not known is nan, which is not drawn."""
    return np.asarray([math.nan if record[name] is None else float(record[name]) for record in history])


def finish(*axes: Axes, legend: str | None = "small") -> None:
    """Draw the grid of axes, and their legend in letters of that size."""
    for axis in axes:
        axis.grid(alpha=0.3)
        if legend is not None:
            axis.legend(fontsize=legend)


def _draw_error(axis: Axes, history: History, tolerance: float) -> None:
    """The largest error round by round, the least so far, and what separates it from the tolerance."""
    seconds, errors = column(history, "seconds"), column(history, "gradient_inf_norm")
    known = np.isfinite(errors) & (errors > 0.0)
    seconds, errors = seconds[known], errors[known]
    estimate = ConvergenceEstimate(tolerance)
    for second, error in zip(seconds.tolist(), errors.tolist(), strict=True):
        estimate.update(SimpleNamespace(seconds=second, gradient_inf_norm=error))
    last, left = (float(seconds[-1]) if seconds.size else 0.0), estimate.seconds_left
    unit, name = next((of for of in _TIME_UNITS if last >= 3.0 * of[0]), _TIME_UNITS[-1])
    times, least = seconds / unit, np.minimum.accumulate(errors)
    axis.semilogy(times, errors, ".", color=_ERROR, alpha=0.35, markersize=_marker(4 * max(1, errors.size)))
    axis.semilogy(times, least, color=_ERROR, linewidth=1.8, label="least so far", drawstyle="steps-post")
    axis.axhline(tolerance, color=_GOAL, linestyle="--", linewidth=1.2, label=f"tolerance {tolerance:g}")
    if errors.size:
        axis.fill_between(
            times,
            tolerance,
            np.maximum(least, tolerance),
            step="post",
            color=_ERROR,
            alpha=0.08,
            linewidth=0,
            label="left to the tolerance",
        )
        words = _draw_end(axis, (last, float(least[-1])), left, tolerance, unit)
        axis.annotate(
            words, (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize="small", color="0.25"
        )
        axis.set_ylim(0.4 * min(tolerance, float(least[-1])), 2.5 * float(errors.max()))
    axis.set(xlabel=name, ylabel="largest error")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, which="major")
    axis.set_xlim(left=0.0)
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.88), fontsize="small", frameon=False)


def _draw_end(axis: Axes, last: tuple[float, float], left: float | None, tolerance: float, unit: float) -> str:
    """Draw the way on from the last error (seconds, error) at the recent rate; return how it ended, in words."""
    at, error = last
    if error <= tolerance:
        axis.plot([at / unit], [error], "o", color=_GOAL, markersize=7)
        return f"within the tolerance after {duration(at)}"
    factor = error / tolerance
    times = f"stopped after {duration(at)}, at {factor:,.{0 if factor >= 100.0 else 1}f} times the tolerance"
    if left is None:
        return f"{times};\nno rate to foresee the end by"
    # A forecast far beyond what was seen is not drawn to its end.
    share = min(1.0, max(at, 1e-9) / max(left, 1e-9))
    end = error * (tolerance / error) ** share
    axis.semilogy(
        [at / unit, (at + share * left) / unit],
        [error, end],
        ":",
        color=_ERROR,
        linewidth=1.8,
        label="forecast, at the recent rate",
    )
    return f"{times};\nabout {duration(left)} more at the recent rate"


def _marker(count: int) -> float:
    """The size of points of which there are so many: a few are seen, many do not hide each other."""
    return min(8.0, max(2.0, 100.0 / math.sqrt(count)))


def _draw_predictions(axis: Axes, truth: FloatArray, mean: FloatArray) -> None:
    truths, means = np.ravel(truth), np.ravel(mean)
    step = max(1, truths.size // MOST_POINTS)
    axis.plot(truths[::step], means[::step], ".", markersize=_marker(truths.size), alpha=0.5)
    ends = [float(min(truths.min(), means.min())), float(max(truths.max(), means.max()))]
    axis.plot(ends, ends, color="grey", linewidth=1)
    axis.set(xlabel="true target", ylabel="predicted mean")
    finish(axis, legend=None)


def _draw_calibration(panel: SubFigure, coverage: CoverageCurve) -> None:
    """Observed against expected coverage; below it the difference, where the band of sampling error can be seen."""
    from scipy.stats import binom

    levels, observed, n = coverage.levels, coverage.observed, coverage.n
    band = np.array([binom.ppf(end, n, levels) / n for end in ((1.0 - BAND) / 2.0, (1.0 + BAND) / 2.0)])
    # Of no trial, or of certain ones, the quantile of a share is that share itself.
    band[:, [0, -1]] = levels[[0, -1]]
    top, bottom = panel.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
    for axis, origin, unit in ((top, np.zeros_like(levels), 1.0), (bottom, levels, 100.0)):
        label = f"sampling error ({100 * BAND:g} %), n = {n:,}"
        axis.fill_between(levels, *(unit * (band - origin)), color="grey", alpha=0.3, linewidth=0, label=label)
        axis.plot(levels, unit * (levels - origin), color="grey", linewidth=1, label="calibrated")
        for index, name in enumerate(coverage.target_names):
            shown = name if len(coverage.target_names) > 1 else "predicted variances"
            axis.plot(levels, unit * (observed[:, index] - origin), label=shown if index < MOST_NAMES else None)
        finish(axis, legend=None)
    top.set(ylabel="observed coverage", xlim=(0, 1), ylim=(0, 1))
    top.legend(loc="best", fontsize="small")
    bottom.set(xlabel="expected coverage of central intervals", ylabel="difference, %")
    widest = 100.0 * max(np.max(np.abs(observed - levels[:, None])), np.max(np.abs(band - levels)))
    bottom.set_ylim(-1.15 * widest, 1.15 * widest)
    panel.align_ylabels()
