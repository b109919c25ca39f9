"""Picture of `dkgp tune`: length scales by feature name, shortest first, with where they started and could go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dkgp.commands.reporting.plots import drawn
from dkgp.models import Hyperparameters, TunedParameter
from dkgp.models.tuned_parameter import length_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 60
MOST_OTHERS = 40
INCHES_A_BAR = 0.28
INCHES_A_LINE = 0.19


def plot_tuning(path: str | os.PathLike[str], tuned: Hyperparameters) -> None:
    """Draw the length scales as bars on a logarithmic axis, and list the other hyperparameters beside them.

    A short length scale is a feature on which the targets depend strongly. A kernel without length scales is drawn by
    its other parameters.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg; matplotlib is installed, which `check_side_files` sees to.
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
    with drawn(path, 9.0, height, _title(tuned)) as figure:
        axis, table = figure.subplots(1, 2, width_ratios=(3.0, 1.2))
        _draw(axis, bars[:MOST_BARS])
        axis.set_xlabel("length scale, in standard deviations of the feature" if scales else "value")
        if len(bars) > MOST_BARS:
            axis.set_title(f"the {MOST_BARS} shortest of {len(bars)}", fontsize="small")
        table.axis("off")
        table.text(0.0, 1.0, "\n".join(lines), va="top", fontsize="small", transform=table.transAxes)
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")


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


def _draw(axis: Axes, bars: Sequence[_Bar]) -> None:
    places = range(len(bars))
    values = [bar.value for bar in bars]
    seen = [*values, *(bar.start for bar in bars)]
    low, high = min(seen) / 3.0, max(seen) * 3.0
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
