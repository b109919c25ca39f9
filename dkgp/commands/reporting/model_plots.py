"""Plots of sparse and linear models, which grow by samples or features, and of hyperparameters that were tuned."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.commands.reporting.plots import FloatArray, History, column, drawn, finish
from dkgp.data import Dataset
from dkgp.models import Hyperparameters, TunedParameter
from dkgp.models.hyperparameters import length_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dkgp.models.linear.train import PathOfTarget

# Features with a name in the legend, and targets with a row of their own.
MOST_FEATURES, MOST_TARGETS = 10, 6
# Of hyperparameters: bars, and lines beside them.
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
    """Draw a growing basis.

    Parameters
    ----------
    history : sequence of mappings
        Records of the rounds of a greedy choice (`dkgp.solvers.greedy_basis.GreedyProgress.to_json`).
    summary, certificate : mapping
        Of the model that it ended in: what is proven of it and of the rungs before, with all roundings, are points.
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
            risks.plot(sizes, column(known, "least"), color="C0", linestyle=":", label="least, in the choice")
        at, least = column(proven, "size"), column(proven, "least")
        risks.plot(at, least, ":s", markersize=3, color="C1", label="least, proven")
        _draw_proven(distances, sizes, distance, proven, "distance", goal["target_distance"])
        labels = {gaps: "duality gap", risks: "regularised risk", distances: "RMS distance to the exact mean, at most"}
        for axis, label in labels.items():
            axis.set(xlabel="basis samples m", ylabel=label)
        finish(*labels)


def _proven(summary: Mapping[str, Any], certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Proofs of the model, and of the rungs below it: of the worst target, and risks of all."""
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
    """One figure: as the choice goes, as it is proven, and what was asked for."""
    if len(sizes):
        axis.semilogy(sizes, values, marker=".", markersize=3, label="in the choice")
    axis.semilogy(column(proven, "size"), column(proven, name), "-s", markersize=5, color="C1", label="proven")
    if goal is not None:
        axis.axhline(goal, color="grey", linestyle="--", linewidth=1, label=f"asked for: {goal:g}")


def plot_weights(path: str | os.PathLike[str], targets: Sequence[PathOfTarget], data: Dataset, *, title: str) -> None:
    """Draw weights and errors of each target's path, both standardised, against the cardinality.

    Parameters
    ----------
    targets : sequence of PathOfTarget
        Of the first few there is a row each.
    data : Dataset
        Whose features and targets they are.
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
        axis.plot(sizes, some.scores, marker=".", label="samples left out")
        if some.spread.any():
            low, high = some.scores - some.spread, some.scores + some.spread
            axis.fill_between(sizes, low, high, alpha=0.2, linewidth=0, color="C1", label="std over folds")
    axis.set_ylabel("mean squared error, standardised")
    if some.errors.min() > 0.0:
        axis.set_yscale("log")


def plot_tuning(path: str | os.PathLike[str], tuned: Hyperparameters) -> None:
    """Draw the length scales as bars on a logarithmic axis, and list the other hyperparameters beside them.

    A short length scale is a feature on which the targets depend strongly. A kernel without length scales is drawn by
    its other parameters.

    Parameters
    ----------
    tuned : Hyperparameters
        With `parameters`, as `tune` returns them.
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
    """Held-out densities of the kernels that were compared, the best on top."""
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
    """One bar: a length scale, or a parameter as it is."""

    def __init__(self, parameter: TunedParameter) -> None:
        self.name = _name(parameter)
        self.fixed = parameter.fixed
        shown = length_scale if parameter.is_gamma else float
        self.value, self.start = shown(parameter.value), shown(parameter.start)
        self.lower, self.upper = sorted((shown(parameter.lower), shown(parameter.upper)))


def _name(parameter: TunedParameter) -> str:
    """A feature's name alone where the kernel is one of a single part."""
    if parameter.feature is not None:
        part = parameter.name.removesuffix(f".{parameter.feature}").rpartition(".")[0]
        return f"{parameter.feature} ({part})" if part else parameter.feature
    return "all features" if parameter.name == "gamma" else parameter.name


def _draw_bars(axis: Axes, bars: Sequence[_Bar]) -> None:
    places = range(len(bars))
    seen = [value for bar in bars for value in (bar.value, bar.start) if value < math.inf]
    low, high = min(seen) / 3.0, max(seen) * 3.0
    # Of a feature that is switched off the length scale is infinite: its bar goes to the end.
    values = [min(bar.value, high) for bar in bars]
    colours = ["tab:grey" if bar.fixed else "tab:blue" for bar in bars]
    axis.barh(places, [value - low for value in values], left=low, color=colours, height=0.7)
    axis.plot([bar.start for bar in bars], places, "|", color="black", markersize=10, label="start")
    # Bounds beyond the picture are where nobody would look for them.
    for place, bar in zip(places, bars, strict=True):
        for bound in (bar.lower, bar.upper):
            if low < bound < high and not bar.fixed:
                axis.plot(bound, place, "d", color="tab:red", markersize=5)
    axis.plot([], [], "d", color="tab:red", markersize=5, linestyle="none", label="bound")
    axis.set(xscale="log", xlim=(low, high), yticks=list(places), yticklabels=[_escaped(bar.name) for bar in bars])
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)


def _lines(others: Sequence[TunedParameter], tuned: Hyperparameters) -> list[str]:
    """The parameters that are no bars, and the scores, one a line."""
    rows = [(parameter.name + (" (fixed)" if parameter.fixed else ""), parameter.value) for parameter in others]
    for group, scores in (tuned.scores or {}).items():
        names = ("rmse", "nlpd", "coverage_95") if tuned.likelihood is None else ("error_rate", "log_loss")
        rows += [(f"{group}, {name.replace('_', ' ')}", scores[name]) for name in names]
    lines = [f"{_escaped(name)}: {value:.4g}" for name, value in rows[:MOST_OTHERS]]
    if len(rows) > MOST_OTHERS:
        lines.append(f"and {len(rows) - MOST_OTHERS} more")
    return lines


def _escaped(text: str) -> str:
    """A dollar sign as itself, not as the beginning of a formula."""
    return text.replace("$", r"\$")


def _title(tuned: Hyperparameters) -> str:
    if tuned.sparse is not None:
        what = f"{tuned.sparse['basis_size']:,} basis samples of {tuned.n_samples:,}"
        return f"{tuned.kernel.type_name} with {what}, {tuned.objective} {tuned.sparse['value']:.1f}"
    if tuned.subset_size is None:  # values given by hand, refined
        return f"{tuned.kernel.type_name} on {tuned.n_samples:,} samples"
    subsets = f"{tuned.subsets} x {tuned.subset_size:,}" if (tuned.subsets or 1) > 1 else f"{tuned.subset_size:,}"
    which = "log marginal likelihood" if tuned.log_marginal_likelihood is not None else "leave-one-out log likelihood"
    if tuned.likelihood is not None:
        which = f"log evidence of {tuned.likelihood} labels"
    value = tuned.log_marginal_likelihood
    value = tuned.leave_one_out_log_likelihood if value is None else value
    reached = "" if value is None else f", {which} {value:.1f}"
    return f"{tuned.kernel.type_name} on {subsets} of {tuned.n_samples:,} samples{reached}"
