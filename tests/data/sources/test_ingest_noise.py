"""A column of known noise: ingested with its samples, checked, split, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import Dataset, TableOptions, ingest, open_dataset
from dkgp.data.stores.dataset import ColumnNames
from dkgp.data.stores.dataset_writer import DatasetWriter
from dkgp.data.stores.manifest import read_manifest
from dkgp.errors import InputError

N = 40
RNG = np.random.default_rng(9)
ROWS = np.column_stack([RNG.normal(size=(N, 2)), 50.0 + 7.0 * RNG.normal(size=N), RNG.uniform(0.0, 3.0, N)])
ROWS[5, 3] = 0.0


def written(folder: Path, rows: np.ndarray = ROWS, header: str = "a,b,y,v") -> Path:
    np.savetxt(folder / "d.csv", rows, delimiter=",", header=header, comments="", fmt="%.17g")
    return folder / "d.csv"


def noise_of(dataset: Dataset) -> np.ndarray:
    noise = dataset.all_sample_noise(standardised=False)
    assert noise is not None
    return noise


@pytest.mark.parametrize("column", ["noise_column", "noise_std_column"])
def test_noise_goes_with_its_samples(tmp_path: Path, column: str) -> None:
    places: dict[str, Any] = {"test_out": tmp_path / "b.zarr", "test_fraction": 0.3, "seed": 3, "chunk_rows": 7}
    report = ingest(written(tmp_path), tmp_path / "a.zarr", target="y", **{column: "v"}, **places)
    assert report.to_json()["noise"] == "v"
    by_input = {row[0]: row[3] if column == "noise_column" else row[3] ** 2 for row in ROWS}
    assert report.test is not None
    for store in (report.train, report.test):
        assert store.noise_name == "v"
        assert store.feature_names == ("a", "b")
        np.testing.assert_array_equal(
            noise_of(store), [by_input[a] for a in store.raw_inputs(0, store.n_samples)[:, 0]]
        )
        scaled = store.sample_noise(2, 9)
        assert scaled is not None
        np.testing.assert_allclose(scaled, noise_of(store)[2:9] / report.train.standardisation.target_std[0] ** 2)
    assert read_manifest(report.train.url, "dataset")["version"] == 4
    # Seen by a model it is on the model's scale; without its target it has none.
    seen = report.test.as_seen_by(("b", "a"), ("y",), report.train.standardisation)
    np.testing.assert_array_equal(seen.all_sample_noise(), report.test.all_sample_noise())
    assert report.test.as_seen_by(("b", "a"), ("z",), report.train.standardisation).all_sample_noise() is None


def test_without_the_column_stores_are_what_they_were(tmp_path: Path) -> None:
    data = written(tmp_path)
    plain = ingest(data, tmp_path / "a.zarr", target="y", features=["a", "b"]).train
    noisy = ingest(data, tmp_path / "b.zarr", target="y", features=["a", "b"], noise_column="v").train
    as_std = ingest(data, tmp_path / "c.zarr", target="y", features=["a", "b"], noise_std_column="v").train
    assert plain.all_sample_noise() is None
    assert read_manifest(plain.url, "dataset")["version"] == 3
    assert len({plain.fingerprint, noisy.fingerprint, as_std.fingerprint}) == 3
    assert "noise" not in ingest(data, tmp_path / "d.zarr", target="y").to_json()


def test_a_store_is_ingested_again(tmp_path: Path) -> None:
    first = ingest(written(tmp_path), tmp_path / "a.zarr", target="y", noise_column="v").train
    again = ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", target="y", noise_column="v").train
    assert again.fingerprint == first.fingerprint
    without = ingest(tmp_path / "a.zarr", tmp_path / "c.zarr", target="y").train
    assert (without.noise_name, without.n_features) == (None, 2)
    assert open_dataset(again.url).noise_name == "v"


def test_gaps_and_categories_leave_noise_alone(tmp_path: Path) -> None:
    lines = ["a,kind,y,v", *(f"{i}.5,{'ab'[i % 2]},{i * i},{i / 10}" for i in range(12)), ",b,7,0.5"]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    table = TableOptions(categorical=("kind",), impute="median")
    store = ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="y", noise_column="v", table=table).train
    np.testing.assert_allclose(noise_of(store), [*(i / 10 for i in range(12)), 0.5])


@pytest.mark.parametrize(
    ("value", "column", "message"),
    [
        (-1e-3, "noise_column", r"noise 'v' is -0.001 in line 9 .*expected variances, none below zero"),
        (-1.0, "noise_std_column", r"noise 'v' is -1 in line 9 .*expected standard deviations"),
        (1e200, "noise_std_column", r"noise 'v' is 1e\+200 in line 9"),
        (np.nan, "noise_column", r"'v' holds a missing value or NaN in line 9"),
        (np.inf, "noise_std_column", r"'v' holds infinity in line 9"),
    ],
)
def test_noise_that_is_none_is_told_by_its_row(tmp_path: Path, value: float, column: str, message: str) -> None:
    rows = ROWS.copy()
    rows[7, 3] = value
    with pytest.raises(InputError, match=message.replace(" .*", ".*")):
        ingest(written(tmp_path, rows), tmp_path / "a.zarr", target="y", **{column: "v"})  # type: ignore[arg-type]
    assert not (tmp_path / "a.zarr").exists()


def test_the_writer_checks_what_it_is_handed(tmp_path: Path) -> None:
    names = ColumnNames.checked(("a",), ("y",), noise="v")
    for values, message in ((np.array([1.0, -1.0]), "noise variance in row 2 is -1"), (np.ones(3), "3 of noise")):
        with (
            DatasetWriter.of_names(str(tmp_path / "a.zarr"), names) as writer,
            pytest.raises(InputError, match=message),
        ):
            writer.append(np.ones((2, 1)), np.ones(2), values)
        assert not (tmp_path / "a.zarr").exists()
    with pytest.raises(InputError, match="feature name 'a' occurs 2 times"):
        ColumnNames.checked(("a",), ("y",), noise="a")
