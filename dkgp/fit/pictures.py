"""Pictures of a fit as SVG that stands within a page: nothing in it is fetched, run, or named twice."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dkgp.commands.evaluate import read_coverage, read_pairs
from dkgp.commands.reporting.class_plots import plot_classes
from dkgp.commands.reporting.plots import plot_predictions, plot_residuals
from dkgp.data import Dataset, Prediction
from dkgp.models.classification.metrics import evaluate_classes
from dkgp.models.verdict import read_residuals

_IDENTIFIER = re.compile(r'(\bid="|url\(#|href="#)')


def regression_pictures(prediction: Prediction, dataset: Dataset) -> dict[str, str]:
    """Predicted against true with the calibration, and residuals; SVG by title."""
    truth, mean = read_pairs(prediction, dataset)
    coverage = read_coverage(prediction, dataset, noise_free=False)
    if coverage is not None:
        coverage = replace(coverage, target_names=tuple(map(_plain, coverage.target_names)))
    residuals = list(read_residuals(prediction, dataset).values())
    seen, predicted, scaled = (
        np.column_stack([getattr(of_target, name) for of_target in residuals])
        for name in ("truth", "means", "standardised")
    )
    of_prediction = "variance" in prediction.variables
    title = f"{len(truth):,} held-out samples"
    return {
        "Predicted against true, and how well intervals are calibrated": inlined(
            lambda path: plot_predictions(path, truth, mean, coverage=coverage, title=title), "predicted"
        ),
        "Residuals": inlined(
            lambda path: plot_residuals(path, seen, predicted, scaled, of_prediction=of_prediction, title=title),
            "residuals",
        ),
    }


def class_pictures(prediction: Prediction, dataset: Dataset) -> dict[str, str]:
    """Confusion, operating curves and reliability; SVG by title."""
    figures = evaluate_classes(prediction, dataset, curves=True)
    metrics = replace(figures.metrics, classes=tuple(map(_plain, figures.metrics.classes)))
    curves = [replace(curve, name=_plain(curve.name)) for curve in figures.curves]
    title = f"{metrics.n:,} held-out samples"
    return {
        "Labels given against true ones, and how well probabilities are calibrated": inlined(
            lambda path: plot_classes(path, metrics, curves, title=title), "classes"
        )
    }


def inlined(draw: Callable[[Path], None], name: str) -> str:
    """Return the SVG element that `draw` writes; its identifiers begin with `name`, as a page has several."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        draw(path)
        text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    # A style within is the page's, too; what it says of joints is said of every line by the page.
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(?:xmlns(?::\w+)?="[^"]*"|version="[^"]*")', "", text.replace("xlink:href", "href"))
    return _IDENTIFIER.sub(lambda match: f"{match[1]}{name}-", text)


def _plain(name: str) -> str:
    """A name whose dollar signs begin no formula."""
    return name.replace("$", r"\$")
