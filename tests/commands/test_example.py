"""`dkgp example`: the table that README and tour read."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.example import ExampleJob, run_example
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data.sources.synthetic import GENERATION_ROWS
from dkgp.errors import InputError, OutputExistsError


def test_price_is_the_formula_with_a_noise_of_fifteen(tmp_path: Path) -> None:
    out = tmp_path / "houses.csv"
    rows = GENERATION_ROWS + 10
    document = run_example(ExampleJob(str(out), samples=rows), SilentReporter())
    assert (document["n"], document["columns"]) == (rows, ["area", "age", "lat", "lon", "price"])
    area, age, lat, lon, price = np.loadtxt(out, delimiter=",", skiprows=1).T
    assert len(price) == rows
    noise = price - 3.0 * area * np.exp(-6.0 * np.hypot(lat - 48.2, lon - 16.37)) * (1.0 - 0.004 * age)
    # Three standard errors of the mean and of the standard deviation.
    assert abs(noise.mean()) < 3.0 * 15.0 / rows**0.5
    assert abs(noise.std() - 15.0) < 3.0 * 15.0 / (2.0 * rows) ** 0.5


def test_a_shorter_table_is_the_beginning_of_a_longer_one(tmp_path: Path) -> None:
    for name, rows, seed in (("short", 20, 0), ("long", GENERATION_ROWS + 5, 0), ("other", 20, 1)):
        run_example(ExampleJob(str(tmp_path / f"{name}.csv"), samples=rows, seed=seed), SilentReporter())
    short, long, other = (list(csv.reader((tmp_path / f"{name}.csv").open())) for name in ("short", "long", "other"))
    assert len(short) == 21
    assert long[:21] == short
    assert len({tuple(row) for row in long}) == len(long)
    assert other != short


def test_refusals_leave_the_file(tmp_path: Path) -> None:
    out = tmp_path / "houses.csv"
    out.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"houses\.csv' \(`out`\) already exists"):
        run_example(ExampleJob(str(out)), SilentReporter())
    with pytest.raises(InputError, match="no suffix of a table"):
        run_example(ExampleJob(str(tmp_path / "houses.zarr")), SilentReporter())
    assert out.read_text() == "mine"
    run_example(ExampleJob(str(out), samples=2, overwrite=True), SilentReporter())
    assert len(out.read_text().splitlines()) == 3
