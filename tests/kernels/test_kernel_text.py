"""Kernels of all kinds as people read them in `dkgp info`, and as benchmarks take them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dkgp.bench import contenders as bench_references
from dkgp.commands.info import InfoJob, run_info
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.kernels import SquaredExponential, kernel_text, parse_kernel
from dkgp.models import Hyperparameters, write_hyperparameters

NAMES = ["lat", "lon", "day"]


def test_each_part_has_its_line_with_the_features_it_is_of() -> None:
    text = "rbf['lat', 'lon'] * periodic['day'](period=0.5) + 0.25 * (linear + constant(variance=2.0))"
    lines = kernel_text(parse_kernel(text, 3, NAMES).to_json(), NAMES).splitlines()
    assert lines[0] == "rbf[lat, lon] * periodic[day] + 0.25 * (linear + constant)"
    assert lines[1].startswith("rbf[lat, lon]: variance 1, gamma 0.25 (lat), 0.25 (lon)")
    assert lines[2].startswith("periodic[day]: ")
    assert "period 0.5" in lines[2]
    assert lines[3] == "linear: variance 1, weight 0.3333 (lat), 0.3333 (lon), 0.3333 (day)"
    assert lines[4] == "constant: variance 2"


def test_features_without_names_have_numbers_and_many_are_cut_short() -> None:
    assert kernel_text(SquaredExponential((0.1, 0.2)).to_json()).splitlines()[1] == (
        "rbf: variance 1, gamma 0.1 (feature 0), 0.2 (feature 1)"
    )
    assert kernel_text(SquaredExponential((0.1,) * 15).to_json()).endswith("0.1 (feature 11) and 3 more")
    isotropic = kernel_text(SquaredExponential((0.1,), n_features=4).to_json())
    assert isotropic.splitlines()[1] == "rbf: variance 1, gamma 0.1"


def test_a_kernel_of_some_features_within_one_of_some_features() -> None:
    inner = parse_kernel("rbf", 1).on([1], 2).on([2, 0], 3)
    assert kernel_text(inner.to_json(), NAMES).splitlines() == ["rbf[lat]", "rbf[lat]: variance 1, gamma 0.5"]


def test_a_description_of_an_unknown_type_is_shown_all_the_same() -> None:
    shown = kernel_text({"type": "user", "function": "mine", "gamma": [0.5, 0.25], "n_features": 2})
    assert shown.splitlines() == ["user", "user: function mine, gamma 0.5 (feature 0), 0.25 (feature 1)"]


@pytest.mark.parametrize("text", ["rbf", "matern32 + linear", "2.0 * polynomial(degree=3)"])
def test_info_shows_any_kernel(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hyper.json"
    found = Hyperparameters(parse_kernel(text, 3), 0.1, feature_names=tuple(NAMES))
    write_hyperparameters(path, found)
    document = run_info(InfoJob(str(path)), SilentReporter())
    assert document["kernel"] == json.loads(path.read_text())["kernel"]  # the document itself is as it was
    shown = _drawn(document)
    assert "(lat)" in shown
    assert kernel_text(found.kernel.to_json(), NAMES).splitlines()[0] in shown


@pytest.mark.parametrize("text", ["rbf", "rbf(isotropic=True, variance=1.5)", "matern32 + linear", "polynomial"])
def test_references_of_benchmarks_take_any_kernel(text: str, rng: np.random.Generator) -> None:
    found = Hyperparameters(parse_kernel(text, 3), 0.2)
    A, B, V = rng.normal(size=(40, 3)), rng.normal(size=(30, 3)), rng.normal(size=(30, 2))
    expected = found.kernel(A, B)
    np.testing.assert_allclose(bench_references.kernel_columns(A, B, found), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(bench_references.kernel_product(A, B, V, found), expected @ V, rtol=1e-9, atol=1e-11)
    matrix = bench_references.assemble(A, found)
    np.testing.assert_allclose(np.tril(matrix), np.tril(found.kernel(A, A) + 0.2 * np.eye(40)), rtol=1e-10, atol=1e-12)


def _drawn(document: dict[str, Any]) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    for table in tables(document):
        console.print(table)
    return console.export_text()
