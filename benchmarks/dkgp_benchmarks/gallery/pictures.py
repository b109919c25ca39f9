"""Pictures of the gallery: curves with bands, probabilities over a plane, bars; and both sides beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dkgp_benchmarks.gallery.example import Example, FloatArray, Part

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
WIDTH = 13.0  # of a picture, in inches


def curves(
    axes: Any,
    grid: FloatArray,
    parts: Sequence[Part],
    samples: tuple[FloatArray, FloatArray] | None,
    *,
    deviations: float,
) -> None:
    """Means over one feature, each in a band of so many standard deviations; samples as dots."""
    for colour, part in zip(COLOURS, parts, strict=False):
        assert part.mean is not None
        axes.plot(grid, part.mean, color=colour, lw=1.5, label=_named(part))
        if part.std is not None:
            band = deviations * part.std
            axes.fill_between(grid, part.mean - band, part.mean + band, color=colour, alpha=0.18, lw=0)
    if samples is not None:
        axes.plot(*samples, "k.", markersize=4 if len(samples[0]) < 200 else 1)
    axes.legend(fontsize=7, loc="best")


def probabilities(axes: Any, grid: FloatArray, parts: Sequence[Part], samples: tuple[FloatArray, FloatArray]) -> None:
    """Probabilities of the second class over one feature."""
    for colour, part in zip(COLOURS, parts, strict=False):
        assert part.probability is not None
        axes.plot(grid, part.probability[:, 1], color=colour, label=_named(part))
    axes.plot(*samples, "k.", markersize=4)
    axes.legend(fontsize=7, loc="best")


def plane(axes: Any, side: FloatArray, part: Part, X: FloatArray, labels: Any, levels: Sequence[float]) -> None:
    """Probabilities over two features, on a grid of `side` by `side`; of two classes with lines of equal ones."""
    assert part.probability is not None
    r = len(side)
    extent = (side[0], side[-1], side[0], side[-1])
    if part.probability.shape[1] == 2:
        values = part.probability[:, 1].reshape(r, r)
        axes.imshow(values, extent=extent, origin="lower", cmap="PuOr_r", vmin=0, vmax=1, aspect="auto")
        lines = axes.contour(side, side, values, levels=levels, colors="k", linewidths=0.8)
        axes.clabel(lines, fontsize=7)
    else:
        axes.imshow(part.probability.reshape(r, r, -1), extent=extent, origin="lower", aspect="auto")
    axes.scatter(X[:, 0], X[:, 1], c=labels, s=9, cmap="Paired", edgecolors="k", linewidths=0.3)
    axes.set_xlim(side[0], side[-1])
    axes.set_ylim(side[0], side[-1])
    axes.set_title(_named(part), fontsize=8)


def bars(axes: Any, names: Sequence[str], values: FloatArray, truth: Mapping[int, float]) -> None:
    """Predictions of things with names, and what is known of some."""
    axes.bar(range(len(names)), values, color="tab:blue", alpha=0.6)
    axes.plot(list(truth), list(truth.values()), "k_", markersize=14)
    axes.set_xticks(range(len(names)), names, fontsize=7, rotation=45)


def beside(path: Path, example: Example, mine: list[Part], theirs: list[Part], figures: Mapping[str, Any]) -> None:
    """Draw scikit-learn's picture and dkgp's beside each other, with the largest differences, into a .png file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, example.height), layout="constrained")
    FigureCanvasAgg(figure)
    told = ", ".join(f"{name} {value:.1e}" for name, value in figures.items() if value is not None)
    figure.suptitle(f"{example.title}   (largest differences: {told})", fontsize=9)
    halves: Any = figure.subfigures(1, 2)
    for half, title, parts in zip(halves, ("scikit-learn", "dkgp"), (theirs, mine), strict=True):
        half.suptitle(title, fontsize=10)
        example.draw(half, parts)
    figure.savefig(path, dpi=90)


def _named(part: Part) -> str:
    """A model's name, with its likelihood where it has one."""
    return part.label if part.likelihood is None else f"{part.label}, log likelihood {part.likelihood:.3f}"


def square(low: float, high: float, r: int) -> tuple[FloatArray, FloatArray]:
    """A grid's side (r,) and its points (r^2, 2), as `plane` draws them."""
    side = np.linspace(low, high, r)
    x, y = np.meshgrid(side, side)
    return side, np.column_stack([x.ravel(), y.ravel()])
