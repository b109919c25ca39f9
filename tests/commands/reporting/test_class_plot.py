"""Plots and tables of predicted classes: as many panels as there is to show, names as they are."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from dkgp.codec import to_json
from dkgp.commands.reporting.plots import plot_classes
from dkgp.commands.reporting.tables import evaluated_class_tables
from dkgp.models.classification.metrics import ClassMetrics, OperatingCurve, operating_curve
from tests.models.classification.problems import class_metrics


def measured(rng: np.random.Generator, count: int, *, probabilities: bool) -> tuple[ClassMetrics, list[OperatingCurve]]:
    codes = rng.permutation(np.arange(20 * count) % count)
    scores = np.where(codes[:, None] == np.arange(count), 1.0, 0.0) + rng.normal(size=(len(codes), count))
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    names = [f"class {number} [of] many" for number in range(count)]
    decisions = scores if count > 2 else scores[:, 1:] - scores[:, :1]
    metrics = class_metrics(
        names,
        codes,
        scores.argmax(axis=1),
        decisions=decisions,
        probabilities=shares if probabilities else None,
        certified=rng.random(len(codes)) < 0.5,
        abstain=True,
    )
    curves = [OperatingCurve(name, *operating_curve(scores[:, c], codes == c)) for c, name in enumerate(names)]
    return metrics, curves


@pytest.mark.long
@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow), 40])
def test_a_panel_for_each_thing_that_is_known(rng: np.random.Generator, tmp_path: Path, count: int) -> None:
    metrics, curves = measured(rng, count, probabilities=True)
    without, _ = measured(rng, count, probabilities=False)
    widths = []
    for number, (figures, shown) in enumerate([(metrics, curves), (without, curves), (without, [])]):
        path = tmp_path / f"{number}.png"
        plot_classes(path, figures, shown, title="classes")
        widths.append(matplotlib.image.imread(path).shape[1])
    assert widths == [3 * widths[2], 2 * widths[2], widths[2]]


@pytest.mark.parametrize(("count", "matrix"), [(2, True), (12, True), (13, False)])
def test_table_has_a_matrix_where_it_can_be_read(rng: np.random.Generator, count: int, matrix: bool) -> None:
    metrics, _ = measured(rng, count, probabilities=True)
    console = Console(width=300, record=True)
    for table in evaluated_class_tables(to_json(metrics)):
        console.print(table)
    text = console.export_text()
    assert ("True labels (rows)" in text) == matrix
    assert ("class 0 [of] ma…" in text) == matrix
    assert f"{metrics.error_rate:.2%}" in text
    assert f"{metrics.abstained:.2%} of all" in text
    assert ("each class against the rest" in text) == (count > 2)
