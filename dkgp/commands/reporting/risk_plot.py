"""Plots of a classifier's course whose risk is minimised: its gap by products, or the steps of Newton's method."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.plots import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

History = Sequence[Mapping[str, Any]]
FloatArray = NDArray[np.float64]


def plot_risk(path: str | os.PathLike[str], history: History, *, title: str, goal: float | None = None) -> None:
    """Draw the proven gap of the risk, and the risk itself, by products and by seconds.

    Parameters
    ----------
    path : path
        .png, .pdf or .svg.
    history : sequence of mappings
        Records of the rounds: `duality_gap` is relative, `objective` the risk.
    title : str
    goal : float, optional
        Relative gap at which the search was to stop.
    """
    with drawn(path, 9.0, 6.0, title) as figure:
        axes = figure.subplots(2, 2, sharex="col")
        for column, (name, label) in enumerate((("column_passes", "products"), ("seconds", "seconds"))):
            _draw_falling(axes[0, column], history, name, "duality_gap", "proven relative gap", goal)
            _draw_risk(axes[1, column], history, name, label)


def plot_newton(path: str | os.PathLike[str], history: History, *, tolerance: float, title: str) -> None:
    """Draw the steps of Newton's method on a basis: distance of decisions to the basis' best function, and the risk.

    Parameters
    ----------
    path, title
        As for `plot_risk`.
    history : sequence of mappings
        Records of the steps; `relative_residual` is the distance.
    tolerance : float
        Distance at which they were to stop.
    """
    with drawn(path, 9.0, 4.0, title) as figure:
        left, right = figure.subplots(1, 2)
        _draw_falling(left, history, "iteration", "relative_residual", "distance to the basis' best", tolerance)
        left.set_xlabel("Newton steps")
        _draw_risk(right, history, "iteration", "Newton steps")


def _column(history: History, name: str) -> FloatArray:
    return np.array([float("nan") if record[name] is None else float(record[name]) for record in history])


def _draw_falling(axis: Axes, history: History, by: str, name: str, label: str, goal: float | None) -> None:
    """A positive figure on a logarithmic scale, as far as it is known."""
    x, y = _column(history, by), _column(history, name)
    shown = np.isfinite(y) & (y > 0.0)
    axis.plot(x[shown], y[shown], ".-", markersize=4)
    axis.set(ylabel=label)
    if shown.any() or goal is not None:
        axis.set_yscale("log")
    if goal is not None:
        axis.axhline(goal, color="grey", linestyle=":", label=f"goal: {goal:g}")
        axis.legend(fontsize="small")
    axis.grid(alpha=0.3)


def _draw_risk(axis: Axes, history: History, by: str, label: str) -> None:
    axis.plot(_column(history, by), _column(history, "objective"), ".-", markersize=4)
    axis.set(xlabel=label, ylabel="risk")
    axis.grid(alpha=0.3)
