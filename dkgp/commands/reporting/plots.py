"""Plots as image files: convergence, predictions against the truth, calibration, and comparisons of methods.

Matplotlib is an optional dependency. It is imported when a plot is drawn, always with the backend without a display.
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

from dkgp.commands.reporting.progress import ConvergenceEstimate, duration
from dkgp.data.remote.storage import replacing
from dkgp.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from dkgp.data import Dataset
    from dkgp.models import Hyperparameters, TunedParameter
    from dkgp.models.classification.metrics import ClassMetrics, OperatingCurve, Reliability
    from dkgp.models.linear import PathOfTarget
    from dkgp.models.metrics import CoverageCurve

FloatArray = NDArray[np.float64]
History = Sequence[Mapping[str, Any]]

FORMATS = (".png", ".pdf", ".svg")
MOST_POINTS = 5000
MOST_NAMES = 8
_ERROR, _GOAL = "#1f5f8b", "#3a7d44"
# Seconds per unit, and the axis label; a plot uses the largest unit with several units in the run.
_TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
# At each single level, a calibrated model's coverage is inside the band with this probability.
BAND = 0.95


def check_plot_file(path: str | os.PathLike[str]) -> None:
    """Check, before the work starts, that a plot can be drawn to this file.

    Raises `MissingExtraError`: Matplotlib is not installed. Raises `InputError`: the suffix is not .png, .pdf or .svg.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot", "Drawing a plot")
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"a plot file ends in one of {', '.join(FORMATS)}; got '{os.fspath(path)}'")


@contextmanager
def drawn(path: str | os.PathLike[str], width: float, height: float, title: str) -> Iterator[Figure]:
    """Open a figure of the given size in inches, and write it to a .png, .pdf or .svg file on exit.

    Raises `MissingExtraError`: Matplotlib is not installed. Raises `StorageError`: the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "Drawing a plot") from error
    # Without pyplot there is no global state: no backend is selected, and no figure outlives its file.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    figure.suptitle(title, fontsize="medium")
    with replacing(Path(path)) as place:
        figure.savefig(os.fspath(place), dpi=120, format=Path(path).suffix[1:])


def plot_convergence(
    path: str | os.PathLike[str], history: History, *, tolerance: float, title: str = "Convergence"
) -> None:
    """Draw the largest residual over time, its ratio to the tolerance, and the forecast time at which it gets there.

    Parameters
    ----------
    history : sequence of mappings
        Records of the rounds (`dkgp.solvers.Progress.to_json`).
    tolerance : float
        Drawn as a line. If the run stopped above it, the end is extrapolated at the recent rate.
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
    unit: str = "",
) -> None:
    """Draw predictions against the truth and, if there are variances, their calibration.

    Parameters
    ----------
    truth, mean : (n,) or (n, p) float64
        In the units of the targets.
    coverage : CoverageCurve, optional
        Coverage of the predictive intervals.
    unit : str
        Name of the target, which has its unit if any.
    """
    with drawn(path, 5.5 if coverage is None else 11.0, 5.5, title) as figure:
        panels = _panels(figure, 1 if coverage is None else 2)
        _draw_predictions(panels[0].subplots(), truth, mean, unit)
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
    unit: str = "",
) -> None:
    """Draw residuals against predictions, and their distribution; a calibrated model's distribution is normal.

    Parameters
    ----------
    truth, mean : (n, p) float64
        In the units of the targets.
    standardised : (n, p) float64
        Residuals divided by a standard deviation; for a transformed target, on the scale of the model.
    of_prediction : bool
        Whether that standard deviation is the predicted one, or that of the residuals.
    unit : str
        Name of the target, which has its unit if any.
    """
    truth, mean = truth.reshape(len(truth), -1)[:, :MOST_NAMES], mean.reshape(len(mean), -1)[:, :MOST_NAMES]
    residuals = truth - mean
    scaled = standardised.reshape(len(standardised), -1)[:, :MOST_NAMES]
    step = max(1, -(-len(truth) // MOST_POINTS))
    with drawn(path, 11.0, 4.0, title) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(mean[::step], residuals[::step], ".", markersize=_marker(residuals.size), alpha=0.5)
        left.axhline(0.0, color="grey", linewidth=1)
        left.set(xlabel=f"predicted {unit}".rstrip(), ylabel=f"true - predicted {unit}".rstrip())
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
    """Draw a whole run: convergence, predictions against the truth and, if there are variances, their calibration."""
    count = 2 if coverage is None else 3
    with drawn(path, 5.5 * count, 5.0, title) as figure:
        panels = _panels(figure, count)
        left = panels[0].subplots()
        _draw_error(left, history, tolerance)
        _draw_predictions(panels[1].subplots(), truth, mean)
        if coverage is not None:
            _draw_calibration(panels[2], coverage)


def plot_plan(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw run times in seconds, with their interval, and worker-hours over the number of workers.

    Parameters
    ----------
    rows : sequence of mappings
        Rows of the plan's document.
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
    """Return `count` panels, side by side."""
    side_by_side: list[SubFigure] = np.ravel(np.asarray(figure.subfigures(1, count), dtype=object)).tolist()
    return side_by_side


def column(history: History, name: str) -> FloatArray:
    """Return a field of each record; unknown values are nan and are not drawn."""
    return np.asarray([math.nan if record[name] is None else float(record[name]) for record in history])


def finish(*axes: Axes, legend: str | None = "small") -> None:
    """Draw the grid of axes, and their legend in the given font size."""
    for axis in axes:
        axis.grid(alpha=0.3)
        if legend is not None:
            axis.legend(fontsize=legend)


def _draw_error(axis: Axes, history: History, tolerance: float) -> None:
    """Draw the largest residual of each round, the least so far, and their ratio to the tolerance."""
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
    axis.semilogy(times, least, color=_ERROR, linewidth=1.8, label="smallest so far", drawstyle="steps-post")
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
            label="factor above the tolerance",
        )
        words = _draw_end(axis, (last, float(least[-1])), left, tolerance, unit)
        axis.annotate(
            words, (0.98, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize="small", color="0.25"
        )
        axis.set_ylim(0.4 * min(tolerance, float(least[-1])), 2.5 * float(errors.max()))
    axis.set(xlabel=name, ylabel="largest residual")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, which="major")
    axis.set_xlim(left=0.0)
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.88), fontsize="small", frameon=False)


def _draw_end(axis: Axes, last: tuple[float, float], left: float | None, tolerance: float, unit: float) -> str:
    """Extrapolate from the last error (seconds, error) at the recent rate; return a text about the end."""
    at, error = last
    if error <= tolerance:
        axis.plot([at / unit], [error], "o", color=_GOAL, markersize=7)
        return f"within the tolerance after {duration(at)}"
    factor = error / tolerance
    times = f"stopped after {duration(at)}, at {factor:,.{0 if factor >= 100.0 else 1}f} times the tolerance"
    if left is None:
        return f"{times};\nno convergence rate, so no forecast of the end"
    # A forecast far beyond the observed time is cut.
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
    """Return a marker size for a number of points: few points are visible, and many do not cover each other."""
    return min(8.0, max(2.0, 100.0 / math.sqrt(count)))


def _draw_predictions(axis: Axes, truth: FloatArray, mean: FloatArray, unit: str = "") -> None:
    truths, means = np.ravel(truth), np.ravel(mean)
    step = max(1, truths.size // MOST_POINTS)
    axis.plot(truths[::step], means[::step], ".", markersize=_marker(truths.size), alpha=0.5)
    ends = [float(min(truths.min(), means.min())), float(max(truths.max(), means.max()))]
    axis.plot(ends, ends, color="grey", linewidth=1)
    axis.set(xlabel=f"true {unit or 'target'}", ylabel=f"predicted {unit or 'mean'}")
    finish(axis, legend=None)


def _draw_calibration(panel: SubFigure, coverage: CoverageCurve) -> None:
    """Draw observed against expected coverage, and below it their difference with the band of sampling error."""
    from scipy.stats import binom

    levels, observed, n = coverage.levels, coverage.observed, coverage.n
    band = np.array([binom.ppf(end, n, levels) / n for end in ((1.0 - BAND) / 2.0, (1.0 + BAND) / 2.0)])
    # At probability 0 or 1, the quantile of a share is that share itself.
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


# Features with a name in the legend, and targets with their own row.
MOST_FEATURES, MOST_TARGETS = 10, 6
# Maximum numbers of hyperparameters as bars, and as lines beside the bars.
MOST_BARS, MOST_OTHERS = 60, 40
INCHES_A_BAR, INCHES_A_LINE = 0.28, 0.19


def plot_basis(
    path: str | os.PathLike[str],
    history: History,
    summary: Mapping[str, Any],
    certificate: Mapping[str, Any],
    *,
    title: str,
) -> None:
    """Draw the growth of a basis.

    Parameters
    ----------
    history : sequence of mappings
        Records of the rounds of a greedy selection (the fields of `dkgp.solvers.greedy_basis.GreedyProgress`).
    summary, certificate : mapping
        Summary and certificate of the final model. Its proven bounds, and those of earlier rungs, are points; they
        include all rounding errors.
    """
    known = [record for record in history if record["least"] is not None]
    excess = np.maximum(column(known, "risk") - column(known, "least"), 0.0)
    distance = np.sqrt(2.0 * excess * certificate["largest_noise"] / certificate["n"])
    gap, goal, sizes = column(known, "gap"), summary["settings"], column(known, "size")
    proven = _proven(summary, certificate)
    with drawn(path, 13.0, 4.2, title) as figure:
        gaps, risks, distances = figure.subplots(1, 3)
        _draw_proven(gaps, sizes, gap, proven, "gap", goal["gap"])
        _draw_proven(risks, column(history, "size"), column(history, "risk"), proven, "risk", None)
        if known:
            risks.plot(sizes, column(known, "least"), color="C0", linestyle=":", label="smallest, while choosing")
        at, least = column(proven, "size"), column(proven, "least")
        risks.plot(at, least, ":s", markersize=3, color="C1", label="smallest, proven")
        _draw_proven(distances, sizes, distance, proven, "distance", goal["target_distance"])
        labels = {gaps: "duality gap", risks: "regularised risk", distances: "RMS distance to the exact mean, at most"}
        for axis, label in labels.items():
            axis.set(xlabel="basis samples m", ylabel=label)
        finish(*labels)


def _proven(summary: Mapping[str, Any], certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return proven bounds of the model and of the rungs below it: the worst target's, and the total risks."""
    rungs = summary.get("ladder", {}).get("rungs", [])
    if rungs:
        return [{**rung, "risk": sum(rung["risk"]), "least": sum(rung["least"])} for rung in rungs]
    least = sum(max(bound) for bound in zip(*certificate["least_risk"].values(), strict=True))
    gap = None if None in summary["gap"] else max(summary["gap"])
    ends = {"gap": gap, "distance": max(summary["rms_bound"])}
    return [{"size": summary["basis_size"], "risk": sum(certificate["risk"]), "least": least, **ends}]


def _draw_proven(
    axis: Axes, sizes: FloatArray, values: FloatArray, proven: History, name: str, goal: float | None
) -> None:
    """Draw a figure: its course during the selection, its proven values, and its goal."""
    if len(sizes):
        axis.semilogy(sizes, values, marker=".", markersize=3, label="in the choice")
    axis.semilogy(column(proven, "size"), column(proven, name), "-s", markersize=5, color="C1", label="proven")
    if goal is not None:
        axis.axhline(goal, color="grey", linestyle="--", linewidth=1, label=f"requested: {goal:g}")


def plot_weights(path: str | os.PathLike[str], targets: Sequence[PathOfTarget], data: Dataset, *, title: str) -> None:
    """Draw weights and errors of each target's path, both standardised, over the cardinality.

    Parameters
    ----------
    targets : sequence of PathOfTarget
        The paths; each of the first few targets has a row.
    data : Dataset
        The data with the features and the targets.
    """
    shown = targets[:MOST_TARGETS]
    with drawn(path, 11.0, 4.2 * len(shown), title) as figure:
        rows = figure.subplots(len(shown), 2, squeeze=False)
        for (by_weight, by_error), some, name in zip(rows, shown, data.target_names, strict=False):
            _draw_weights(by_weight, some, data.feature_names)
            by_weight.set(title=name, ylabel="standardised weight")
            _draw_errors(by_error, some)
            for axis in (by_weight, by_error):
                axis.axvline(some.cardinality, color="grey", linestyle="--", linewidth=1)
                axis.set_xlabel("features")
                axis.grid(alpha=0.3)
                axis.legend(fontsize="x-small", ncols=2)


def _draw_weights(axis: Axes, some: PathOfTarget, names: Sequence[str]) -> None:
    size = len(names)
    weights = np.stack([some.path.solution(k, size) for k in range(some.path.longest + 1)])
    used = some.path.used()
    largest = used[np.argsort(-np.abs(weights[-1, used]), kind="stable")]
    for number, feature in enumerate(largest):
        label = names[feature] if number < MOST_FEATURES else None
        axis.plot(weights[:, feature], marker=".", label=label, alpha=1.0 if number < MOST_FEATURES else 0.4)
    axis.plot([], [], color="grey", linestyle="--", label=f"chosen: {some.cardinality:,}")


def _draw_errors(axis: Axes, some: PathOfTarget) -> None:
    axis.plot(some.errors, marker=".", label="training samples")
    if some.scores is not None and some.spread is not None:
        sizes = np.arange(len(some.scores))
        axis.plot(sizes, some.scores, marker=".", label="held-out samples")
        if some.spread.any():
            low, high = some.scores - some.spread, some.scores + some.spread
            axis.fill_between(sizes, low, high, alpha=0.2, linewidth=0, color="C1", label="std over folds")
    axis.set_ylabel("mean squared error, standardised")
    if some.errors.min() > 0.0:
        axis.set_yscale("log")


def plot_tuning(path: str | os.PathLike[str], tuned: Hyperparameters) -> None:
    """Draw the length scales as bars on a logarithmic axis, and list the other hyperparameters beside them.

    A short length scale means that the targets depend strongly on the feature. For a kernel without length scales, the
    bars show its other parameters.

    Parameters
    ----------
    tuned : Hyperparameters
        Hyperparameters with `parameters`, as `tune` returns them.
    """
    parameters = tuned.parameters or ()
    scales = [parameter for parameter in parameters if parameter.is_gamma]
    others = [parameter for parameter in parameters if not parameter.is_gamma]
    chosen = scales or others
    bars = sorted((_Bar(parameter) for parameter in chosen), key=lambda bar: bar.value)
    lines = _lines(others if scales else [], tuned)
    height = max(3.0, 1.6 + INCHES_A_BAR * min(len(bars), MOST_BARS), 1.0 + INCHES_A_LINE * len(lines))
    compared = tuned.comparison is not None
    with drawn(path, 13.0 if compared else 9.0, height, _title(tuned)) as figure:
        axis, table, *more = figure.subplots(1, 3 if compared else 2, width_ratios=(3.0, 1.2, 2.0)[: 2 + compared])
        if tuned.comparison is not None:
            _draw_comparison(more[0], tuned.comparison)
        _draw_bars(axis, bars[:MOST_BARS])
        axis.set_xlabel("length scale, in standard deviations of the feature" if scales else "value")
        if len(bars) > MOST_BARS:
            axis.set_title(f"the {MOST_BARS} shortest of {len(bars)}", fontsize="small")
        table.axis("off")
        table.text(0.0, 1.0, "\n".join(lines), va="top", fontsize="small", transform=table.transAxes)
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")


def _draw_comparison(axis: Axes, comparison: Mapping[str, Any]) -> None:
    """Draw the held-out densities of the compared kernels, the best on top."""
    rows = sorted((row for row in comparison["kernels"] if row["nlpd"] is not None), key=lambda row: row["nlpd"])
    places = range(len(rows))
    colours = ["tab:blue" if row["kernel"] == comparison["kernel"] else "tab:grey" for row in rows]
    axis.scatter([row["nlpd"] for row in rows], places, c=colours)
    axis.set(yticks=list(places), yticklabels=[_escaped(row["kernel"]) for row in rows])
    axis.set_xlabel(f"NLPD of {comparison['held_out']:,} held-out samples")
    axis.margins(y=0.15)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)


class _Bar:
    """A bar: a length scale, or the plain value of another parameter."""

    def __init__(self, parameter: TunedParameter) -> None:
        from dkgp.models.hyperparameters import length_scale  # clients of a service need no import of models

        self.name = _name(parameter)
        self.fixed = parameter.fixed
        shown = length_scale if parameter.is_gamma else float
        self.value, self.start = shown(parameter.value), shown(parameter.start)
        self.lower, self.upper = sorted((shown(parameter.lower), shown(parameter.upper)))


def _name(parameter: TunedParameter) -> str:
    """Return a parameter's label: the feature's name alone if the kernel has a single part."""
    if parameter.feature is not None:
        part = parameter.name.removesuffix(f".{parameter.feature}").rpartition(".")[0]
        return f"{parameter.feature} ({part})" if part else parameter.feature
    return "all features" if parameter.name == "gamma" else parameter.name


def _draw_bars(axis: Axes, bars: Sequence[_Bar]) -> None:
    places = range(len(bars))
    seen = [value for bar in bars for value in (bar.value, bar.start) if value < math.inf]
    low, high = min(seen) / 3.0, max(seen) * 3.0
    # The length scale of a disabled feature is infinite: its bar extends to the end.
    values = [min(bar.value, high) for bar in bars]
    colours = ["tab:grey" if bar.fixed else "tab:blue" for bar in bars]
    axis.barh(places, [value - low for value in values], left=low, color=colours, height=0.7)
    axis.plot([bar.start for bar in bars], places, "|", color="black", markersize=10, label="start")
    # Bounds outside the plot are not drawn.
    for place, bar in zip(places, bars, strict=True):
        for bound in (bar.lower, bar.upper):
            if low < bound < high and not bar.fixed:
                axis.plot(bound, place, "d", color="tab:red", markersize=5)
    axis.plot([], [], "d", color="tab:red", markersize=5, linestyle="none", label="bound")
    axis.set(xscale="log", xlim=(low, high), yticks=list(places), yticklabels=[_escaped(bar.name) for bar in bars])
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)


def _lines(others: Sequence[TunedParameter], tuned: Hyperparameters) -> list[str]:
    """Return the parameters without bars, and the scores, one per line."""
    rows = [(parameter.name + (" (fixed)" if parameter.fixed else ""), parameter.value) for parameter in others]
    for group, scores in (tuned.scores or {}).items():
        names = ("rmse", "nlpd", "coverage_95") if tuned.likelihood is None else ("error_rate", "log_loss")
        rows += [(f"{group}, {name.replace('_', ' ')}", scores[name]) for name in names]
    lines = [f"{_escaped(name)}: {value:.4g}" for name, value in rows[:MOST_OTHERS]]
    if len(rows) > MOST_OTHERS:
        lines.append(f"and {len(rows) - MOST_OTHERS} more")
    return lines


def _escaped(text: str) -> str:
    """Escape dollar signs, which would begin a formula."""
    return text.replace("$", r"\$")


def _title(tuned: Hyperparameters) -> str:
    if tuned.sparse is not None:
        what = f"{tuned.sparse['basis_size']:,} basis samples of {tuned.n_samples:,}"
        return f"{tuned.kernel.type_name} with {what}, {tuned.objective} {tuned.sparse['value']:.1f}"
    if tuned.subset_size is None:  # refined values that the user gave
        return f"{tuned.kernel.type_name} on {tuned.n_samples:,} samples"
    subsets = f"{tuned.subsets} x {tuned.subset_size:,}" if (tuned.subsets or 1) > 1 else f"{tuned.subset_size:,}"
    which = "log marginal likelihood" if tuned.log_marginal_likelihood is not None else "leave-one-out log likelihood"
    if tuned.likelihood is not None:
        which = f"log evidence of {tuned.likelihood} labels"
    value = tuned.log_marginal_likelihood
    value = tuned.leave_one_out_log_likelihood if value is None else value
    reached = "" if value is None else f", {which} {value:.1f}"
    return f"{tuned.kernel.type_name} on {subsets} of {tuned.n_samples:,} samples{reached}"


# The cells of a confusion matrix contain numbers up to this number of classes.
MOST_WRITTEN = 12


def plot_classes(
    path: str | os.PathLike[str], metrics: ClassMetrics, curves: Sequence[OperatingCurve], *, title: str
) -> None:
    """Draw the confusion matrix and, if available, the operating curves and the reliability."""
    panels = 1 + bool(curves) + (metrics.reliability is not None)
    with drawn(path, 5.2 * panels, 5.0, title) as figure:
        axes = list(np.ravel(np.asarray(figure.subplots(1, panels), dtype=object)))
        _draw_confusion(axes.pop(0), metrics)
        if curves:
            _draw_curves(axes.pop(0), metrics, curves)
        if metrics.reliability is not None:
            _draw_reliability(axes.pop(0), metrics, metrics.reliability)


def _draw_confusion(axis: Axes, metrics: ClassMetrics) -> None:
    """Draw the shares of each true class's samples, with counts in the cells if there is room."""
    count = len(metrics.classes)
    by_class = metrics.confusion.sum(axis=1, keepdims=True)
    shares = metrics.confusion / np.maximum(by_class, 1)
    axis.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if count <= MOST_WRITTEN:
        for i, row in enumerate(metrics.confusion):
            for j, cell in enumerate(row):
                colour = "white" if shares[i, j] > 0.5 else "black"
                axis.text(j, i, f"{cell:,}", ha="center", va="center", color=colour, fontsize="small")
    step = -(-count // MOST_WRITTEN)
    ticks = range(0, count, step)
    names = [metrics.classes[number] for number in ticks]
    axis.set_xticks(ticks, names, rotation=45, ha="right", fontsize="small")
    axis.set_yticks(ticks, names, fontsize="small")
    axis.set(xlabel="predicted label", ylabel="true label")
    axis.set_title(f"error {metrics.error_rate:.2%}, balanced {metrics.balanced_error:.2%}", fontsize="small")


def _draw_curves(axis: Axes, metrics: ClassMetrics, curves: Sequence[OperatingCurve]) -> None:
    for number, curve in enumerate(curves):
        axis.plot(curve.false, curve.true, label=curve.name if number < MOST_NAMES else None)
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    axis.set(xlabel="share of false alarms", ylabel="share of true alarms", xlim=(0, 1), ylim=(0, 1))
    axis.set_title("" if metrics.auc is None else f"area under the curve {metrics.auc:.4f}", fontsize="small")
    axis.legend(loc="lower right", fontsize="small")
    finish(axis, legend=None)


def _draw_reliability(axis: Axes, metrics: ClassMetrics, reliability: Reliability) -> None:
    """Draw observed shares against predicted probabilities, with the band of sampling error per bin."""
    from scipy.stats import binom

    there = reliability.counts > 0
    claimed, observed, counts = (
        each[there] for each in (reliability.claimed, reliability.observed, reliability.counts)
    )
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="calibrated")
    low, high = (binom.ppf(end, counts, claimed) / counts for end in ((1.0 - BAND) / 2.0, (1.0 + BAND) / 2.0))
    axis.fill_between(claimed, low, high, color="grey", alpha=0.3, linewidth=0, label=f"sampling error ({BAND:.0%})")
    axis.plot(claimed, observed, marker="o", markersize=4)
    of = f"of '{metrics.classes[1]}'" if len(metrics.classes) == 2 else "of the given label"
    axis.set(xlabel=f"probability {of}", ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1))
    shares = axis.twinx()
    width = 1.0 / len(reliability.counts)
    centres = (np.arange(len(reliability.counts)) + 0.5) * width
    shares.bar(centres, reliability.counts / reliability.counts.sum(), width=width, alpha=0.15, color="C0")
    shares.set(ylim=(0, 1), ylabel="share of samples (bars)")
    axis.set_title(f"calibration error {reliability.error:.4f}", fontsize="small")
    axis.legend(loc="upper left", fontsize="small")
    finish(axis, legend=None)


def plot_path(
    path: str | os.PathLike[str],
    cardinalities: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    *,
    title: str,
) -> None:
    """Draw the scores of a fixed-size classifier.

    Parameters
    ----------
    cardinalities : sequence of mappings
        Cardinality, score (mean squared error of cross-validation) and std (over folds) of each cardinality, for the
        selected kernel and noise.
    history : sequence of mappings
        Scale, noise_variance and score of each candidate of the search.
    summary : mapping
        Summary of the model: cardinality is the selected one, best_cardinality that of the least score.
    """
    # A logarithmic axis cannot show zero prototypes.
    some = [record for record in cardinalities if record["cardinality"] > 0]
    size, score, spread = (
        np.array([float(record[name]) for record in some]) for name in ("cardinality", "score", "std")
    )
    with drawn(path, 11.0, 4.2, title) as figure:
        by_size, by_width = figure.subplots(1, 2)
        by_size.fill_between(size, score - spread, score + spread, alpha=0.2, linewidth=0, label="std over folds")
        by_size.plot(size, score, label="cross-validation")
        chosen = int(summary["cardinality"])
        by_size.axvline(chosen, color="C1", linestyle="--", label=f"chosen: {chosen:,}")
        best = int(summary["best_cardinality"])
        if best != chosen:
            by_size.axvline(best, color="grey", linestyle=":", label=f"least: {best:,}")
        by_size.set(xlabel="prototypes", ylabel="mean squared error of decisions", xscale="log")
        order = np.argsort([-record["scale"] for record in history], kind="stable")
        widths = np.array([float(history[index]["scale"]) ** -0.5 for index in order])
        scores = np.array([float(history[index]["score"]) for index in order])
        by_width.plot(widths, scores, "o-", markersize=4, label="with the best penalty")
        if len(scores):
            least = int(np.argmin(scores))
            by_width.plot(widths[least], scores[least], "s", color="C1", label="chosen")
        by_width.set(xlabel="width: factor of the initial length scales", ylabel="mean squared error", xscale="log")
        for axis in (by_size, by_width):
            # Labels between powers of ten would overlap.
            axis.xaxis.set_minor_formatter(lambda value, place: "")
            finish(axis)


def plot_risk(path: str | os.PathLike[str], history: History, *, title: str, goal: float | None = None) -> None:
    """Draw the proven gap of the risk, and the risk, over products and over seconds.

    Parameters
    ----------
    history : sequence of mappings
        Records of the rounds: `duality_gap` is relative, `objective` the risk.
    goal : float, optional
        Relative gap at which the search should stop.
    """
    with drawn(path, 9.0, 6.0, title) as figure:
        axes = figure.subplots(2, 2, sharex="col")
        for column, (name, label) in enumerate((("column_passes", "products"), ("seconds", "seconds"))):
            _draw_falling(axes[0, column], history, name, "duality_gap", "proven relative gap", goal)
            _draw_risk(axes[1, column], history, name, label)


def plot_newton(path: str | os.PathLike[str], history: History, *, tolerance: float, title: str) -> None:
    """Draw Newton's method on a basis: the distance of decisions to the basis' best function, and the risk.

    Parameters
    ----------
    path, title
        As for `plot_risk`.
    history : sequence of mappings
        Records of the steps; `relative_residual` is the distance.
    tolerance : float
        Distance at which the method should stop.
    """
    with drawn(path, 9.0, 4.0, title) as figure:
        left, right = figure.subplots(1, 2)
        _draw_falling(
            left, history, "iteration", "relative_residual", "distance to the optimum on the basis", tolerance
        )
        left.set_xlabel("Newton steps")
        _draw_risk(right, history, "iteration", "Newton steps")


def _draw_falling(axis: Axes, history: History, by: str, name: str, label: str, goal: float | None) -> None:
    """Draw the known values of a positive figure on a logarithmic scale."""
    x, y = column(history, by), column(history, name)
    shown = np.isfinite(y) & (y > 0.0)
    axis.plot(x[shown], y[shown], ".-", markersize=4)
    axis.set(ylabel=label)
    if shown.any() or goal is not None:
        axis.set_yscale("log")
    if goal is not None:
        axis.axhline(goal, color="grey", linestyle=":", label=f"goal: {goal:g}")
    finish(axis, legend=None if goal is None else "small")


def _draw_risk(axis: Axes, history: History, by: str, label: str) -> None:
    axis.plot(column(history, by), column(history, "objective"), ".-", markersize=4)
    axis.set(xlabel=label, ylabel="risk")
    finish(axis, legend=None)
