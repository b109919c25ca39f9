"""Pictures of kriging as image files: variograms, variogram maps, maps, and cross-validations.

Matplotlib is an optional dependency, imported when a picture is drawn, without a display.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.commands.reporting.plots import drawn
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kriging.empirical import EmpiricalVariogram, VariogramMap
from dkgp.kriging.grids import Grid
from dkgp.kriging.variogram import Variogram

_DATA, _GREY, _BARS = "#1d2430", "#8a93a0", "#c9d3df"
_MOST_DOTS = 2000
_MOST_COUNTS = 20
_NORMAL_95 = 1.959963984540054
Path = str | os.PathLike[str]


def _text(title: str) -> str:
    """Return text in which Matplotlib finds no formula."""
    return title.replace("$", r"\$")


def plot_variogram(
    path: Path,
    empirical: EmpiricalVariogram,
    models: Sequence[Variogram] | Mapping[str, Variogram] = (),
    title: str = "",
) -> None:
    """Draw semivariances with two sampling errors, pairs by bin, the variance of the values, and models.

    Parameters
    ----------
    path : str
        A .png, .pdf or .svg file.
    empirical : EmpiricalVariogram
    models : sequence of Variogram, or mapping
        Drawn as lines under their model's name, or the mapping's key.
    title : str
    """
    known = empirical.known & np.isfinite(empirical.gamma)
    named = list(models.items()) if isinstance(models, Mapping) else [(model.model, model) for model in models]
    with drawn(path, 6.5, 5.0, _text(title)) as figure:
        axis, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        lag, gamma, errors = empirical.lag[known], empirical.gamma[known], 2.0 * empirical.sampling_error[known]
        label = f"{empirical.of}, {empirical.estimator}" + (" ± 2 standard errors" if errors.any() else "")
        axis.errorbar(lag, gamma, errors if errors.any() else None, fmt="o", markersize=4, color=_DATA, label=label)
        axis.axhline(empirical.variance, color=_GREY, linewidth=0.8, linestyle=":", label=f"variance of {empirical.of}")
        lags = np.linspace(0.0, float(empirical.edges[-1]), 300)[1:]
        turn = 0.0 if empirical.direction is None else math.radians(empirical.direction)
        for name, model in named:
            # Along a direction, an anisotropic model has another length.
            step = np.array([math.cos(turn), math.sin(turn)])
            stretch = 1.0 if empirical.direction is None else float(np.linalg.norm(model.anisotropy(2) @ step))
            axis.plot(lags, model(lags * stretch), label=_text(name))
        axis.set_xlim(0.0, float(empirical.edges[-1]))
        axis.set_ylim(0.0)
        axis.set_ylabel("semivariance")
        axis.legend(fontsize="small", loc="lower right")
        below.bar(
            empirical.edges[:-1],
            empirical.count,
            np.diff(empirical.edges),
            align="edge",
            color=_BARS,
            edgecolor="white",
        )
        if len(empirical.count) <= _MOST_COUNTS:
            middles = 0.5 * (empirical.edges[:-1] + empirical.edges[1:])
            for middle, count in zip(middles, empirical.count, strict=True):
                below.annotate(
                    _short(int(count)), (middle, 0.0), (0, 2), textcoords="offset points", ha="center", size=7
                )
        along = "" if empirical.direction is None else f" along {empirical.direction:g}° from east"
        below.set_xlabel(f"lag{along}{f' ({empirical.unit})' if empirical.unit else ''}")
        below.set_ylabel("pairs")
        below.set_yticks([])


def _short(count: int) -> str:
    """Return a count in at most four letters."""
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.2g}{letter}" if count < 10 * unit else f"{count / unit:.0f}{letter}"
    return str(count)


def plot_variogram_map(path: Path, variogram_map: VariogramMap, title: str = "") -> None:
    """Draw the semivariances of lag vectors as cells; cells without pairs stay empty."""
    centres = variogram_map.centres
    half = 0.5 * float(centres[1] - centres[0])
    extent = (float(centres[0]) - half, float(centres[-1]) + half) * 2
    with drawn(path, 6.0, 5.0, _text(title)) as figure:
        axis = figure.subplots()
        image = axis.imshow(variogram_map.gamma, origin="lower", extent=extent, cmap="viridis", aspect="equal")
        axis.plot(0.0, 0.0, "+", color="white")
        axis.set_xlabel("lag to the east")
        axis.set_ylabel("lag to the north")
        figure.colorbar(image, ax=axis, label=f"semivariance of {variogram_map.of}")


def plot_map(
    path: Path,
    grid: Any,
    layers: Mapping[str, Any] | None = None,
    samples: tuple[Any, Any] = ((), ()),
    title: str = "",
    *,
    unit: str = "",
    axes: tuple[str, ...] = ("", ""),
) -> None:
    """Draw layers side by side, with the positions of samples.

    Parameters
    ----------
    path : str
        A .png, .pdf or .svg file.
    grid : xarray.Dataset or Grid
        A map of `Kriging.grid`, or the grid of the layers.
    layers : mapping, optional
        Values (rows from the south, columns) by name, such as the mean, its deviation and its bound. The second and
        later ones have another colour map. By default the mean of a map, and its standard deviation if it has
        variances.
    samples : (x, y), optional
        Drawn as dots; at most 2,000.
    title : str
    unit : str
        Unit of the values, beside the colour bars.
    axes : (str, str)
        Labels of the coordinates.
    """
    if hasattr(grid, "data_vars"):
        names = next(iter(grid.data_vars.values())).dims[-2:]
        axes = axes if any(axes) else (str(names[1]), str(names[0]))
        layers = _layers(grid) if layers is None else layers
        grid = Grid.of_centres(grid[names[1]].to_numpy(), grid[names[0]].to_numpy())
    if layers is None:
        raise InputError("a Grid has no values; pass `layers`, or the map of `Kriging.grid` instead of the grid")
    half = 0.5 * grid.spacing[1], 0.5 * grid.spacing[0]
    extent = (grid.x[0] - half[0], grid.x[-1] + half[0], grid.y[0] - half[1], grid.y[-1] + half[1])
    some = np.linspace(0, len(samples[0]) - 1, min(len(samples[0]), _MOST_DOTS)).astype(int)
    x, y = np.asarray(samples[0])[some], np.asarray(samples[1])[some]
    with drawn(path, 5.5 * len(layers), 4.8, _text(title)) as figure:
        panels = np.atleast_1d(figure.subplots(1, len(layers)))
        for number, (axis, (name, values)) in enumerate(zip(panels, layers.items(), strict=True)):
            colours = "viridis" if number == 0 else "magma"
            image = axis.imshow(values, origin="lower", extent=extent, cmap=colours, aspect="equal")
            dots = {"color": "white", "markeredgecolor": "black", "markeredgewidth": 0.3, "alpha": 0.8}
            axis.plot(x, y, "o", markersize=max(1.2, min(4.0, 60.0 / math.sqrt(len(x) + 1.0))), **dots)
            axis.set_xlim(extent[:2])
            axis.set_ylim(extent[2:])
            axis.set_title(_text(name), fontsize="small")
            axis.tick_params(labelsize="small")
            axis.locator_params(axis="x", nbins=4)
            axis.set_xlabel(_text(axes[0]), fontsize="small")
            axis.set_ylabel(_text(axes[1]), fontsize="small")
            figure.colorbar(image, ax=axis, shrink=0.8, label=_text(unit))


def _layers(map_: Any) -> dict[str, Any]:
    """Return the mean of a map, and the standard deviation if it has variances."""
    layers = {"mean": next(iter(map_.data_vars.values())).to_numpy()}
    if "variance" in map_:
        layers["standard deviation"] = np.sqrt(map_["variance"].to_numpy())
    return layers


def plot_cross_validation(
    path: Path,
    value: Any,
    error: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    title: str = "",
    *,
    unit: str = "",
) -> None:
    """Draw predictions of left-out samples against measured values, and the histogram of standardised errors.

    Parameters
    ----------
    path : str
        A .png, .pdf or .svg file.
    value, error, variance : (n,)
        Measured values, values minus predictions, and the variances of these errors. Rows with NaN are left out. Or
        the table of `Kriging.leave_one_out` or `cross_validate` as `value`, alone.
    title, unit : str

    Raises
    ------
    InputError
        No row with finite numbers.
    """
    if hasattr(value, "columns"):
        value, error, variance = (value[name] for name in ("value", "error", "variance"))
    truth, off, spread = (np.asarray(one, dtype=np.float64).reshape(-1) for one in (value, error, variance))
    usable = np.isfinite(truth) & np.isfinite(off) & np.isfinite(spread) & (spread > 0.0)
    if not usable.any():
        raise InputError("no value has a finite error and variance; nothing can be drawn")
    truth, off, deviation = truth[usable], off[usable], np.sqrt(spread[usable])
    with drawn(path, 11.0, 4.8, _text(title)) as figure:
        left, right = figure.subplots(1, 2)
        _draw_left_out(left, truth, off, deviation)
        named = f" ({_text(unit)})" if unit else ""
        left.set(xlabel=f"measured{named}", ylabel=f"predicted without the sample{named}")
        standardised = off / deviation
        edges = np.linspace(-5.0, 5.0, 41)
        right.hist(np.clip(standardised, -5.0, 5.0), bins=edges.tolist(), density=True, color=_BARS, edgecolor="white")
        fine = np.linspace(-5.0, 5.0, 201)
        right.plot(fine, np.exp(-(fine**2) / 2.0) / math.sqrt(2.0 * math.pi), color=_DATA, label="standard normal")
        right.set(xlabel="standardised error (beyond 5: at 5)", ylabel="density")
        root, covered = np.sqrt(np.mean(standardised**2)), np.mean(np.abs(standardised) <= _NORMAL_95)
        right.set_title(f"root mean square {root:.2f}; {covered:.1%} within 1.96", fontsize="small")
        right.legend(fontsize="small")


def _draw_left_out(axis: Any, truth: FloatArray, off: FloatArray, deviation: FloatArray) -> None:
    """Draw predictions with 95 % intervals; intervals that miss the measured value are coloured."""
    some = np.linspace(0, len(truth) - 1, min(len(truth), _MOST_DOTS)).astype(int)
    truth, off, deviation = truth[some], off[some], deviation[some]
    covered = np.abs(off) <= _NORMAL_95 * deviation
    for inside, colour, label in ((covered, "#1f5f8b", "covers"), (~covered, "#c0392b", "misses")):
        if inside.any():
            axis.errorbar(
                truth[inside],
                (truth - off)[inside],
                _NORMAL_95 * deviation[inside],
                fmt="o",
                markersize=3,
                linewidth=0.6,
                alpha=0.6,
                color=colour,
                label=f"95 % interval {label} the value",
            )
    ends = [float(min(truth.min(), (truth - off).min())), float(max(truth.max(), (truth - off).max()))]
    axis.plot(ends, ends, color=_GREY, linewidth=1.0)
    axis.legend(fontsize="small", loc="upper left")
