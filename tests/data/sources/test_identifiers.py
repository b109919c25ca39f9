"""Columns that identify samples: no features, kept as text beside them through everything that rows go through."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dkgp.data import (
    Dataset,
    DatasetWriter,
    Progress,
    TableOptions,
    friedman1,
    ingest,
    open_dataset,
    rbf_mixture,
    write_friedman1,
    write_rbf_mixture,
)
from dkgp.data.sources.selection import MOST_BYTES, IdTexts
from dkgp.data.sources.synthetic import RBFMixture
from dkgp.data.sources.tables.survey import ColumnSurvey, Survey
from dkgp.data.stores.dataset import ColumnNames, text_bytes, texts_of_bytes
from dkgp.errors import InputError, OutputExistsError, StoreError, UsageError
from tests.cli.invoke import run_json

# Of one to four bytes a character; a comma, quotes, a line's end; zeros in front; a blank; nothing.
TEXTS = ["a", "hüs-7", "木, 3", '"q" 🌲', "tab\tand;", "0012", "a blank", "", "1e5", "x" * 40]


@pytest.fixture
def frame(rng: np.random.Generator) -> pd.DataFrame:
    """Samples whose ids differ in length, with gaps in one feature."""
    n = 50
    numbers = rng.normal(size=(n, 3))
    numbers[[4, 11, 12, 49], 1] = np.nan
    table = pd.DataFrame(numbers, columns=["a", "b", "price"])
    table.insert(0, "id", [TEXTS[row % len(TEXTS)] + (f"/{row}" if row % len(TEXTS) != 7 else "") for row in range(n)])
    table.insert(2, "number", np.arange(n) * 10)
    return table


def all_ids(dataset: Dataset) -> list[list[str]]:
    return dataset.ids(0, dataset.n_samples).T.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_ids_are_what_stands_in_the_file(frame: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    path, whole = tmp_path / f"d{suffix}", frame.fillna(0.0)
    whole.to_parquet(path) if suffix == ".parquet" else whole.to_csv(path, index=False)
    plain = ingest(path, tmp_path / "plain.zarr", target="price", features=["a", "b"]).train
    train = ingest(path, tmp_path / "d.zarr", target="price", ids=["id", "number"], chunk_rows=7).train
    assert train.id_names == ("id", "number")
    assert all_ids(train) == [frame["id"].tolist(), [str(number) for number in frame["number"]]]
    assert train.raw_feature_names == ("a", "b")
    assert train.fingerprint == plain.fingerprint
    np.testing.assert_array_equal(train.ids(13, 15)[:, 0], frame["id"][13:15])
    assert plain.id_names == ()
    assert plain.ids(0, 3).shape == (3, 0)


@pytest.mark.parametrize("table", [TableOptions(drop_gaps=True), TableOptions(impute="median")])
def test_ids_stay_with_their_rows_through_gaps_and_splits(
    frame: pd.DataFrame, tmp_path: Path, table: TableOptions
) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    report = ingest(
        tmp_path / "d.csv",
        tmp_path / "a.zarr",
        target="price",
        ids=["id"],
        table=table,
        test_fraction=0.3,
        test_out=tmp_path / "b.zarr",
        chunk_rows=6,
    )
    assert report.test is not None
    kept = frame.dropna() if table.drop_gaps else frame
    assert report.train.n_samples + report.test.n_samples == len(kept)
    seen = []
    for dataset in (report.train, report.test):
        prices, numbers = dataset.all_targets(standardised=False)[:, 0], dataset.raw_inputs(0, dataset.n_samples)[:, 1]
        by_price = kept.set_index("price")
        np.testing.assert_array_equal(by_price.loc[prices, "id"], all_ids(dataset)[0])
        np.testing.assert_array_equal(by_price.loc[prices, "number"], numbers)
        seen += prices.tolist()
    assert sorted(seen) == sorted(kept["price"])


@pytest.mark.parametrize("table", [None, TableOptions(drop_gaps=True)])
def test_ids_stand_beside_labels_weights_and_a_mask(
    tmp_path: Path, rng: np.random.Generator, table: TableOptions | None
) -> None:
    n = 40
    frame = pd.DataFrame(
        {
            "kind": rng.choice(["rot", "grün"], n),
            "id": [f"ß{row}" for row in range(n)],
            "held": np.arange(n) % 3 == 0,
            "x": rng.normal(size=n),
            "weight": 1.0 + np.arange(n),
        }
    )
    frame["held"] = frame["held"].astype(int)
    frame.to_csv(tmp_path / "d.csv", index=False)
    report = ingest(
        tmp_path / "d.csv",
        tmp_path / "a.zarr",
        labels="kind",
        weights="weight",
        ids=["id"],
        test_mask="held",
        test_out=tmp_path / "b.zarr",
        table=table,
        chunk_rows=8,
    )
    assert report.test is not None
    assert report.to_json()["ids"] == ["id"]
    for dataset, rows in ((report.train, frame[frame["held"] == 0]), (report.test, frame[frame["held"] == 1])):
        assert dataset.raw_feature_names == ("x",)
        assert dataset.classes is not None
        assert all_ids(dataset) == [rows["id"].tolist()]
        assert [dataset.classes[code] for code in dataset.all_labels()] == rows["kind"].tolist()
        np.testing.assert_array_equal(dataset.all_weights(), rows["weight"])


def test_new_data_like_a_store_keep_the_same_ids(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="price", ids=["id"], table=TableOptions(drop_gaps=True))
    frame.drop(columns="price").to_csv(tmp_path / "new.csv", index=False)
    new = ingest(tmp_path / "new.csv", tmp_path / "new.zarr", like=tmp_path / "a.zarr").train
    assert all_ids(new) == [frame.dropna()["id"].tolist()]
    assert new.raw_feature_names == ("a", "number", "b")
    frame.drop(columns=["price", "id"]).to_csv(tmp_path / "bare.csv", index=False)
    assert ingest(tmp_path / "bare.csv", tmp_path / "bare.zarr", like=tmp_path / "a.zarr").train.id_names == ()
    # What the store dropped may be an id of new data.
    ingest(tmp_path / "d.csv", tmp_path / "c.zarr", target="price", table=TableOptions(drop=("id",), impute="median"))
    late = ingest(tmp_path / "new.csv", tmp_path / "late.zarr", like=tmp_path / "c.zarr", ids=["id"]).train
    assert all_ids(late) == [frame["id"].tolist()]


def test_a_store_as_a_source_has_the_ids_that_it_kept(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    kept = frame.dropna()["id"].tolist()
    ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="price", ids=["id"], table=TableOptions(drop_gaps=True))
    again = ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", target="price", ids=["id"]).train
    assert all_ids(again) == [kept]
    assert again.raw_feature_names == ("a", "number", "b")
    split = ingest(
        tmp_path / "a.zarr", tmp_path / "train.zarr", target="price", ids=["id"],
        test_fraction=0.3, test_out=tmp_path / "test.zarr",
    )  # fmt: skip
    assert split.test is not None
    assert sorted(all_ids(split.train)[0] + all_ids(split.test)[0]) == sorted(kept)
    rows = [kept.index(text) for text in all_ids(split.test)[0]]
    np.testing.assert_array_equal(split.test.raw_inputs(0, len(rows)), again.raw_inputs(0, len(kept))[rows])
    # Not named they are no features, and like a store that has them they come by themselves.
    plain = ingest(tmp_path / "a.zarr", tmp_path / "c.zarr", target="price").train
    assert (plain.id_names, plain.raw_feature_names) == ((), ("a", "number", "b"))
    like = ingest(tmp_path / "a.zarr", tmp_path / "e.zarr", like=tmp_path / "b.zarr").train
    assert all_ids(like) == [kept]
    with pytest.raises(InputError, match=r"The column 'id' holds the text .* in row 1 of"):
        ingest(tmp_path / "a.zarr", tmp_path / "f.zarr", target="price", features=["a", "id"])
    assert not (tmp_path / "f.zarr").exists()


def test_ids_of_sources_without_text(tmp_path: Path, rng: np.random.Generator) -> None:
    X = rng.normal(size=(9, 3))
    X[:, 0] = np.arange(9) + 0.5
    np.save(tmp_path / "d.npy", X)
    assert all_ids(ingest(tmp_path / "d.npy", tmp_path / "a.zarr", target=2, ids=[0]).train) == [
        [f"{row}.5" for row in range(9)]
    ]
    variables = {name: ("sample", X[:, column]) for column, name in enumerate("abc")}
    variables["name"] = ("sample", np.array([f"é{row}" for row in range(9)], dtype=object))
    xr.Dataset(variables).to_netcdf(tmp_path / "d.nc", engine="h5netcdf")
    train = ingest(tmp_path / "d.nc", tmp_path / "b.zarr", target="c", features=["a", "b"], ids=["name"]).train
    assert all_ids(train) == [[f"é{row}" for row in range(9)]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ids": ["price"]}, "a column has one role"),
        ({"ids": ["id", "id"]}, "named twice"),
        ({"ids": ["id"], "features": ["id", "a"]}, "The id 'id' is among the features"),
        ({"ids": ["nothing"]}, "no id 'nothing'"),
        ({"ids": ["id"], "table": TableOptions(drop=("id",))}, "a label or an id, and `drop` takes only features"),
    ],
)
def test_a_column_has_one_role(frame: pd.DataFrame, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    frame.fillna(0.0).to_csv(tmp_path / "d.csv", index=False)
    with pytest.raises((InputError, UsageError), match=words):
        ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="price", **options)
    assert not (tmp_path / "a.zarr").exists()


def test_a_text_that_is_too_long_to_identify_is_refused(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[3, "id"] = "ü" * (MOST_BYTES // 2 + 1)
    frame.fillna(0.0).to_csv(tmp_path / "d.csv", index=False)
    with pytest.raises(InputError, match=r"'id' takes 1,026 bytes in .*; expected at most 1,024"):
        ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="price", ids=["id"])


def test_a_vanished_or_damaged_chunk_of_ids_is_named(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.fillna(0.0).to_csv(tmp_path / "d.csv", index=False)
    train = ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="price", ids=["id"], chunk_rows=10).train
    chunk = next((tmp_path / "a.zarr" / "ids").rglob("c/2/0"))
    content = chunk.read_bytes()
    chunk.unlink()
    with pytest.raises(StoreError, match=r"ids/c/2/0 \(rows 20 to 29\)"):
        train.ids(18, 25)
    with pytest.raises(StoreError, match="ids"):
        open_dataset(tmp_path / "a.zarr")
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreError, match="damaged"):
        train.ids(0, 50)
    assert train.ids(0, 20).shape == (20, 1)


def test_bytes_and_texts_are_each_other() -> None:
    texts = np.array([TEXTS, TEXTS[::-1]], dtype=object).T
    width = max(len(text.encode()) for text in TEXTS)
    columns = [("a", width), ("b", width + 3)]
    rows = text_bytes(texts, columns)
    assert rows.shape == (len(TEXTS), 2 * width + 3)
    assert not (rows == 255).any()
    assert texts_of_bytes(rows, [width, width + 3]).tolist() == texts.tolist()
    with pytest.raises(InputError, match="takes 40 bytes; its column has 39"):
        text_bytes(texts, [("a", 39), ("b", 40)])
    with pytest.raises(InputError, match=r"expected \(rows, 1\)"):
        text_bytes(texts, columns[:1])


def test_numbers_stand_for_texts_until_they_are_taken() -> None:
    kept = IdTexts("id")
    first = kept(np.array([1.0, 2.5, np.nan]), str)
    second = kept(np.array([b"x\0", None, "y"], dtype=object), str)
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [3, 4, 5]
    assert kept.take(first[[1]]).tolist() == ["2.5"]
    assert kept.take(np.array([2.0, 5.0])).tolist() == ["", "y"]
    assert kept.take(np.empty(0)).tolist() == []
    assert (kept.width, kept.rows_seen) == (3, 6)


def test_rows_of_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    writer = DatasetWriter.of_names(tmp_path / "a.zarr", ColumnNames.checked(["x"], [], ids=[("id", 2)]))
    with pytest.raises(InputError, match="1 of ids"):
        writer.append(np.zeros((2, 1)), ids=np.array([["a"]], dtype=object))
    assert not (tmp_path / "a.zarr").exists()


def test_the_survey_keeps_what_its_name_calls_an_id() -> None:
    columns = []
    for name, values in (
        ("order_id", np.arange(5)),
        ("row", np.arange(5)),
        ("ID", np.array([f"t{row}" for row in range(5)], dtype=object)),
        ("uuid", np.array([f"t{row}" for row in range(60)], dtype=object)),
        ("note", np.array([f"t{row}" for row in range(60)], dtype=object)),
    ):
        columns.append(ColumnSurvey(name))
        columns[-1](values, str)
    options = Survey(tuple(columns), (), None, 0).options()
    assert options == {"id": ["order_id", "uuid"], "categorical": ["ID"], "drop": ["row", "note"]}


def test_ids_from_the_command_line_reach_the_table(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "h.json").write_text('{"kernel": {"type": "rbf", "variance": 1, "gamma": [1, 1]}, "noise_variance": 1}')
    aside = ("--id", "id", "--id", "number", "--drop-missing")
    run_json("ingest", tmp_path / "d.csv", tmp_path / "d.zarr", "--target", "price", *aside)
    run_json("train", tmp_path / "d.zarr", "--hyper", tmp_path / "h.json", "--out", tmp_path / "m.zarr")
    # New data like the model: the ids that its training set had.
    run_json("ingest", tmp_path / "d.csv", tmp_path / "n.zarr", "--like", tmp_path / "m.zarr")
    told = run_json("predict", tmp_path / "m.zarr", tmp_path / "n.zarr", "--out", tmp_path / "p.csv")
    assert told["columns"] == ["row", "id", "number", "mean", "mean_error_bound"]
    table = pd.read_csv(tmp_path / "p.csv", dtype={"id": str}, keep_default_na=False)
    kept = frame.dropna()
    assert table["id"].tolist() == kept["id"].tolist()
    assert table["number"].tolist() == kept["number"].tolist()
    assert table["row"].tolist() == list(range(1, len(kept) + 1))
    shutil.rmtree(tmp_path / "n.zarr")


Place = Callable[[str], str]


def _naive_friedman1(x: np.ndarray) -> float:
    return float(10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4])


def test_friedman1_is_the_formula() -> None:
    X, y = friedman1(200, noise_std=0.0, seed=4)
    assert X.shape == (200, 10)
    assert 0 <= X.min() < 0.01 < 0.99 < X.max() < 1
    np.testing.assert_allclose(y, [_naive_friedman1(x) for x in X], rtol=1e-13)


def test_noise_has_the_variance_asked_for() -> None:
    X, y = friedman1(40_000, noise_std=1.0, seed=1)
    noise = y - friedman1(40_000, noise_std=0.0, seed=1)[1]
    assert abs(noise.std() - 1.0) < 0.02
    assert abs(np.corrcoef(noise, X[:, 0])[0, 1]) < 0.03


def test_streams_and_seeds_differ_and_repeat() -> None:
    X, y = friedman1(10_000, seed=0)
    np.testing.assert_array_equal(friedman1(10_000, seed=0)[1], y)
    np.testing.assert_array_equal(friedman1(9_000, seed=0)[0], X[:9_000])
    assert not np.isin(friedman1(10_000, seed=1)[0][:, 0], X[:, 0]).any()
    assert not np.isin(friedman1(10_000, seed=0, test=True)[0][:, 0], X[:, 0]).any()
    assert not np.isin(X[8192:, 0], X[:8192, 0]).any()


def test_stores_hold_the_same_samples_and_clean_test_targets(place: Place) -> None:
    seen: list[Progress] = []
    train, test = write_friedman1(place("a"), place("b"), 20_000, 500, seed=3, chunk_rows=3000, progress=seen.append)
    assert test is not None
    X, y = friedman1(20_000, seed=3)
    np.testing.assert_array_equal(train.inputs(0, 20_000, standardised=False), X)
    np.testing.assert_array_equal(train.targets(0, 20_000, standardised=False)[:, 0], y)
    raw = test.inputs(0, 500, standardised=False)
    np.testing.assert_allclose(test.targets(0, 500, standardised=False)[:, 0], [_naive_friedman1(x) for x in raw])
    assert test.standardisation == train.standardisation
    assert seen[-1] == Progress("test samples", 500, 500, "rows")
    assert [item.done for item in seen if item.phase == "training samples"] == [8192, 16384, 20_000]


def test_rbf_mixture_is_the_formula() -> None:
    X, y = rbf_mixture(50, noise_variance=0.0, seed=2)
    function = RBFMixture(seed=2)
    assert function.centres.shape == (200, 20)
    expected = [
        sum(
            c * np.exp(-np.sum((x - z) ** 2) / 40) for c, z in zip(function.coefficients, function.centres, strict=True)
        )
        for x in X
    ]
    np.testing.assert_allclose(y, expected, rtol=1e-10)
    noisy = rbf_mixture(20_000, seed=2)[1]
    clean = rbf_mixture(20_000, noise_variance=0.0, seed=2)[1]
    assert abs((noisy - clean).var() - 0.1) < 0.005
    assert not np.array_equal(RBFMixture(seed=3).centres, function.centres)


def test_rbf_mixture_store(tmp_path: Path) -> None:
    train, test = write_rbf_mixture(tmp_path / "a", None, 300, seed=5)
    assert test is None
    np.testing.assert_array_equal(train.targets(0, 300, standardised=False)[:, 0], rbf_mixture(300, seed=5)[1])


def test_what_cannot_be_generated(tmp_path: Path) -> None:
    for call in (
        lambda: friedman1(10, n_features=4),
        lambda: friedman1(0),
        lambda: friedman1(10, noise_std=-1.0),
        lambda: friedman1(10, seed=-1),
        lambda: rbf_mixture(10, width=0.0),
        lambda: rbf_mixture(10, noise_variance=-0.1),
        lambda: write_friedman1(tmp_path / "a", tmp_path / "b", 1, 10),
        lambda: write_friedman1(tmp_path / "a", tmp_path / "a", 10, 10),
    ):
        with pytest.raises(InputError):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_taken_test_store_is_found_before_the_training_store_is_written(tmp_path: Path) -> None:
    write_friedman1(tmp_path / "b", None, 10)
    with pytest.raises(OutputExistsError):
        write_friedman1(tmp_path / "a", tmp_path / "b", 10, 10)
    assert not (tmp_path / "a").exists()
