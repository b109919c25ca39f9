"""Pictures of the commands of kriging: a variogram with its models, and maps of a mean and of its deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dkgp.commands.reporting.plots import drawn
from dkgp.kriging.empirical import EmpiricalVariogram
from dkgp.kriging.grids import Grid
from dkgp.kriging.variogram import Variogram


def plot_variogram(path: Any, empirical: EmpiricalVariogram, models: Sequence[Variogram], title: str) -> None:
    """Draw the semivariances with their sampling errors, the variance of the values, and models."""
    known = empirical.known & np.isfinite(empirical.gamma)
    with drawn(path, 6.5, 4.5, title.replace("$", r"\$")) as figure:
        axis = figure.subplots()
        errors = 2.0 * empirical.sampling_error[known]
        axis.errorbar(empirical.lag[known], empirical.gamma[known], errors, fmt="o", color="#1d2430", label="samples")
        axis.axhline(empirical.variance, color="#8a93a0", linewidth=0.8, linestyle=":", label="variance of the values")
        lags = np.linspace(0.0, float(empirical.edges[-1]), 200)[1:]
        for model in models:
            axis.plot(lags, model(lags), label=model.model)
        axis.set_xlim(0.0)
        axis.set_ylim(0.0)
        axis.set_xlabel(f"lag{f' ({empirical.unit})' if empirical.unit else ''}")
        axis.set_ylabel(f"semivariance ({empirical.estimator})")
        axis.legend(fontsize="small")


def plot_map(path: Any, grid: Grid, layers: Mapping[str, Any], samples: tuple[Any, Any], title: str) -> None:
    """Draw layers (rows from the south) side by side, the samples as dots on the first."""
    half = 0.5 * grid.spacing[1], 0.5 * grid.spacing[0]
    extent = (grid.x[0] - half[0], grid.x[-1] + half[0], grid.y[0] - half[1], grid.y[-1] + half[1])
    with drawn(path, 5.5 * len(layers), 4.8, title.replace("$", r"\$")) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(layers)))
        for number, (axis, (name, values)) in enumerate(zip(axes, layers.items(), strict=True)):
            image = axis.imshow(
                values, origin="lower", extent=extent, cmap="viridis" if number == 0 else "magma", aspect="equal"
            )
            if number == 0:
                some = np.linspace(0, len(samples[0]) - 1, min(len(samples[0]), 2000)).astype(int)
                axis.plot(samples[0][some], samples[1][some], ".", markersize=1.5, color="black", alpha=0.5)
            axis.set_xlim(extent[:2])
            axis.set_ylim(extent[2:])
            axis.set_title(name, fontsize="small")
            figure.colorbar(image, ax=axis, shrink=0.8)
