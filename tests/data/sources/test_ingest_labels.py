"""Labels of every source: their names, their order, and what is told of those that can be none."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dkgp.data import Dataset, ingest, open_dataset
from dkgp.data.classes import class_name
from dkgp.data.sources.base import Block, Column, Source, row_places
from dkgp.data.sources.ingest import ingest_blocks
from dkgp.data.sources.selection import LabelEncoder, stratified_mask
from dkgp.data.sources.tables.learning import TableOptions
from dkgp.errors import InputError, UsageError
from tests.data.sources.forms import write_csv

N = 60


def _table(rng: np.random.Generator, labels: list[Any]) -> pd.DataFrame:
    frame = pd.DataFrame(rng.normal(size=(N, 2)), columns=["a", "b"])
    frame["kind"] = pd.Series([labels[index] for index in rng.permutation(np.arange(N) % len(labels))])
    return frame


def _named(dataset: Dataset) -> list[str]:
    assert dataset.classes is not None
    return [dataset.classes[code] for code in dataset.all_labels()]


def test_text_of_numbers_is_numbers_where_no_types_are_told(tmp_path: Path, rng: np.random.Generator) -> None:
    frame = _table(rng, ["1", "1.0", "10", "9.", " 2"])
    write_csv(frame, tmp_path / "d.csv")
    report = ingest(tmp_path / "d.csv", tmp_path / "c.zarr", labels="kind")
    assert report.train.classes == ("1", "2", "9", "10")
    assert any("'1', '1.0'" in message or "'1.0', '1'" in message for message in report.warnings)
    frame.to_parquet(tmp_path / "d.parquet")
    assert ingest(tmp_path / "d.parquet", tmp_path / "p.zarr", labels="kind").train.classes == (
        "1",
        "1.0",
        "10",
        "2",
        "9.",
    )
    # One word among them, and all are text.
    write_csv(_table(rng, ["1", "1.0", "x"]), tmp_path / "e.csv")
    assert ingest(tmp_path / "e.csv", tmp_path / "e.zarr", labels="kind").train.classes == ("1", "1.0", "x")


def test_great_numbers_keep_their_digits(tmp_path: Path, rng: np.random.Generator) -> None:
    great = [2**53, 2**53 + 1, 10**30]
    write_csv(_table(rng, great), tmp_path / "d.csv")
    names = tuple(map(str, great))
    assert ingest(tmp_path / "d.csv", tmp_path / "c.zarr", labels="kind").train.classes == names
    _table(rng, great[:2]).to_parquet(tmp_path / "d.parquet")
    assert ingest(tmp_path / "d.parquet", tmp_path / "p.zarr", labels="kind").train.classes == names[:2]
    assert class_name(1e300) == "1e+300"


def test_blanks_and_composed_letters(tmp_path: Path, rng: np.random.Generator) -> None:
    spelled = [unicodedata.normalize("NFC", "né"), unicodedata.normalize("NFD", "né") + " ", "  other"]
    _table(rng, spelled).to_parquet(tmp_path / "d.parquet")
    assert ingest(tmp_path / "d.parquet", tmp_path / "p.zarr", labels="kind").train.classes == ("né", "other")


def test_labels_by_index_without_a_header(tmp_path: Path, rng: np.random.Generator) -> None:
    _table(rng, ["u", "v"]).to_csv(tmp_path / "d.csv", index=False, header=False)
    report = ingest(tmp_path / "d.csv", tmp_path / "c.zarr", labels=-1)
    assert (report.train.classes, report.train.target_names) == (("u", "v"), ("x2",))


def test_several_files_are_one_source(tmp_path: Path, rng: np.random.Generator) -> None:
    """The first file's labels would be numbers on their own."""
    parts = [_table(rng, ["1", "2"]), _table(rng, ["2", "two"])]
    for number, part in enumerate(parts):
        write_csv(part, tmp_path / f"part{number}.csv")
    report = ingest(str(tmp_path / "part*.csv"), tmp_path / "c.zarr", labels="kind")
    assert report.train.classes == ("1", "2", "two")
    assert _named(report.train) == pd.concat(parts)["kind"].tolist()


def test_a_labelled_store_is_a_source(tmp_path: Path, rng: np.random.Generator) -> None:
    frame = _table(rng, ["no", "yes", "10"])
    write_csv(frame, tmp_path / "d.csv")
    first = ingest(tmp_path / "d.csv", tmp_path / "a.zarr", labels="kind").train
    again = ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", labels="kind").train
    assert again.classes == ("10", "no", "yes")
    assert again.fingerprint == first.fingerprint
    as_numbers = ingest(tmp_path / "a.zarr", tmp_path / "n.zarr", target="kind").train
    assert as_numbers.classes is None
    np.testing.assert_array_equal(as_numbers.targets(0, N, standardised=False)[:, 0], first.all_labels())


class _NumbersOnly(Source):
    """A source that was written before there were labels: it gives numbers, whatever is asked of a column."""

    def __init__(self, values: np.ndarray) -> None:
        self.url, self.groups, self.warnings, self.unit, self.total = "numbers", {}, [], "rows", len(values)
        self._values = values
        self.columns = self.positional = tuple(Column(name, "", index) for index, name in enumerate(("a", "kind")))

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        for start in range(0, self.total, 7):
            rows = self._values[start : start + 7]
            yield Block(rows[:, [column.index for column in columns]], row_places("numbers", start), start + len(rows))


def test_a_source_that_knows_of_no_labels(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.column_stack([rng.normal(size=N), rng.permutation(np.arange(N) % 3) * 5.0])
    (tmp_path / "x").write_text("x")
    monkeypatch.setattr("dkgp.data.sources.ingest.open_source", lambda urls, options: _NumbersOnly(values))
    found = ingest(tmp_path / "x", tmp_path / "out.zarr", labels="kind").train
    assert found.classes == ("0", "5", "10")
    assert [float(name) for name in _named(found)] == values[:, 1].tolist()


def test_lazy_arrays(tmp_path: Path, rng: np.random.Generator) -> None:
    X, codes = rng.normal(size=(N, 2)), np.arange(N) % 3
    names = {"feature_names": ("a", "b"), "target_names": ("y",), "classes": ("u", "v", "w")}
    lazy = da.from_array(X, chunks=(17, 2)), da.from_array(codes, chunks=17)
    found = ingest_blocks(tmp_path / "out.zarr", *lazy, **names, scheduler="synchronous")  # type: ignore[arg-type]
    assert found.classes == ("u", "v", "w")
    np.testing.assert_array_equal(found.all_labels(), codes)


@pytest.mark.parametrize("read_bytes", [64, 10**6])
def test_blocks_do_not_matter(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    """A late label that is text makes text of the numbers before it, and the order is that of all."""
    frame = _table(rng, ["3", "2"])
    frame.loc[N - 1, "kind"] = "1st"
    write_csv(frame, tmp_path / "d.csv")
    monkeypatch.setattr("dkgp.data.sources.csv._READ_BYTES", read_bytes)
    report = ingest(tmp_path / "d.csv", tmp_path / "c.zarr", labels="kind")
    assert report.train.classes == ("1st", "2", "3")
    assert _named(report.train) == frame["kind"].tolist()


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "missing": ("a,y\n1,u\n2,\n3,v\n4,\n", {}, r"'y' holds a missing value or NaN in line 3 .*2 such values"),
    "blanks only": ('a,y\n1,u\n2,"  "\n3,v\n', {}, r"'y' holds a missing value or NaN in line 3"),
    "NaN": ("a,y\n1,1\n2,nan\n3,2\n", {}, r"'y' holds a missing value or NaN in line 3"),
    "not available": ("a,y\n1,u\n2,NA\n3,v\n", {}, r"'y' holds a missing value or NaN in line 3"),
    "infinity": ("a,y\n1,1\n2,inf\n3,2\n", {}, r"'y' are numbers, but one is 'inf'"),
    "overflow": ("a,y\n1,1\n2,1e999\n3,2\n", {}, r"'y' are numbers, but one is '1e999'"),
    "one class": ("a,y\n1,u\n2,u\n3,u\n", {}, r"'y' are one class only: all 3 samples are 'u'"),
    "one class, spelled twice": ("a,y\n1,1\n2,1.0\n3,01\n", {}, r"one class only: all 3 samples are '1'"),
    "control character": ("a,y\n1,u\n2,v\x01w\n3,v\n", {}, r"control character '\\x01'.*line 3"),
    "NUL": ("a,y\n" + "1,u\n" * 20 + "2,v\x00w\n3,v\n", {}, r"control character '\\x00'.*line 22"),
    "not UTF-8": ("a,y\n1,u\n2,v\xe9\n3,v\n", {"encoding": "latin-1"}, r"not written in UTF-8.*line 3"),
    "too long": ("a,y\n1,u\n2," + "v" * 300 + "\n", {}, r"300 characters, 'v+\.\.\.'; expected at most 200.*line 3"),
    "a number to predict": (
        "a,y\n" + "".join(f"{row},{row / 7}\n" for row in range(1100)),
        {},
        r"'y' hold more than 1000 different values.*\(up to line 1002 .*`target`",
    ),
    "the same inputs": ("a,b,y\n1,2,u\n1,2,v\n1,2,u\n", {}, "All 3 samples have the same inputs"),
    "text in a feature": ("a,y\n1,u\nred,v\n", {}, r"'a' holds the text 'red' in line 3"),
    "labels among features": ("a,y\n1,u\n2,v\n", {"features": ["a", "y"]}, "'y' is among the features"),
    "no such column": ("a,y\n1,u\n2,v\n", {"labels": "z"}, "no column of labels 'z' in .*available: 'a', 'y'"),
    "nothing to split off": ("a,y\n1,u\n2,v\n", {"test_fraction": 0.5}, "has one sample only; none can be split"),
    "a class for testing only": (
        "a,m,y\n1,0,u\n2,0,v\n3,0,v\n4,1,w\n5,1,u\n",
        {"test_mask": "m"},
        "All samples of the class 'w' are test samples",
    ),
    "no samples": ("a,y\n", {}, "holds 0 samples; at least 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_labels_are_told_before_anything_is_written(tmp_path: Path, name: str) -> None:
    text, options, message = BAD[name]
    (tmp_path / "d.csv").write_text(text, encoding=options.get("encoding", "utf-8"), newline="")
    options = {"labels": "y", **{key: value for key, value in options.items() if key != "encoding"}}
    if "test_fraction" in options or "test_mask" in options:
        options["test_out"] = tmp_path / "test.zarr"
    with pytest.raises(InputError, match=message):
        ingest(tmp_path / "d.csv", tmp_path / "out.zarr", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "y", "target": "a"}, "both a target and labels"),
        ({"target": "y", "test_fraction": 0.5, "test_out": "t", "stratify": True}, "`stratify` without `labels`"),
        ({"target": "y", "weights": "a"}, "`weights` without `labels`"),
        ({"labels": "y", "stratify": False}, "`stratify` without a random split"),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "d.csv").write_text("a,y\n1,u\n2,v\n")
    with pytest.raises(UsageError, match=message):
        ingest(tmp_path / "d.csv", tmp_path / "out.zarr", **options)


def test_values_that_are_no_labels(tmp_path: Path) -> None:
    days = pd.DataFrame({"a": [1.0, 2.0], "y": pd.to_datetime(["2020-01-01", "2020-01-02"]), "l": [[1], [2]]})
    days.to_parquet(tmp_path / "d.parquet")
    with pytest.raises(InputError, match=r"of type datetime64.*\(row 1 of .*expected text or numbers"):
        ingest(tmp_path / "d.parquet", tmp_path / "out.zarr", labels="y", features=["a"])
    with pytest.raises(InputError, match="neither text nor numbers"):
        ingest(tmp_path / "d.parquet", tmp_path / "out.zarr", labels="l", features=["a"])
    np.savez(tmp_path / "d.npz", X=np.arange(4.0)[:, None], y=np.eye(4), t=np.array(["b", b"\xff"] * 2, dtype="S2"))
    with pytest.raises(InputError, match=r"labels 'y' have 4 columns; choose one, as in 'y:0'"):
        ingest(tmp_path / "d.npz", tmp_path / "out.zarr", labels="y")
    with pytest.raises(InputError, match=r"b'\\xff' is not UTF-8 text.*row 2"):
        ingest(tmp_path / "d.npz", tmp_path / "out.zarr", labels="t", features=["X"])
    assert not (tmp_path / "out.zarr").exists()


def test_pickled_labels_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=np.arange(4.0)[:, None], y=np.array(["u", "v"] * 2, dtype=object))
    with pytest.raises(InputError, match=r"'y' of .*Python objects, which are not read.* text"):
        ingest(tmp_path / "d.npz", tmp_path / "out.zarr", labels="y")
    assert not (tmp_path / "out.zarr").exists()


def test_rare_classes_and_repeated_inputs_are_told(tmp_path: Path, rng: np.random.Generator) -> None:
    frame = pd.DataFrame({"a": rng.integers(0, 3, 50) * 1.0, "b": -0.0, "y": ["u"] * 44 + ["v"] * 4 + ["w"] * 2})
    frame.loc[::2, "b"] = 0.0
    frame.loc[::3, "b"] = 1.0
    write_csv(frame, tmp_path / "d.csv")
    report = ingest(tmp_path / "d.csv", tmp_path / "out.zarr", labels="y")
    rare, repeated = report.warnings
    assert "fewer than 10 training samples: 'v' (4), 'w' (2)" in rare
    assert "Only 6 of the 50 samples have inputs of their own" in repeated


def test_both_stores_of_a_split_share_classes(tmp_path: Path, rng: np.random.Generator) -> None:
    frame = _table(rng, ["u", "u", "u", "u", "v", "w"])
    write_csv(frame, tmp_path / "d.csv")
    places = tmp_path / "a.zarr", tmp_path / "b.zarr"
    report = ingest(tmp_path / "d.csv", places[0], labels="kind", test_fraction=0.2, test_out=places[1], seed=4)
    train, test = open_dataset(places[0]), open_dataset(places[1])
    assert train.classes == test.classes == ("u", "v", "w")
    assert (train.class_counts, test.class_counts) == ((32, 8, 8), (8, 2, 2))
    assert test.standardisation == train.standardisation
    assert sorted(_named(train) + _named(test)) == sorted(frame["kind"])
    assert report.warnings[0].startswith("Classes of fewer than 10")
    # One class may be missing among the test samples: it is a class nonetheless.
    frame["m"] = (frame["kind"] == "v").astype(int) * (np.arange(N) % 2)
    write_csv(frame, tmp_path / "m.csv")
    masked = ingest(tmp_path / "m.csv", tmp_path / "c", labels="kind", test_mask="m", test_out=tmp_path / "d").test
    assert masked is not None
    assert masked.classes == ("u", "v", "w")
    assert masked.class_counts is not None
    assert masked.class_counts[0] == masked.class_counts[2] == 0


def test_not_stratified_is_the_split_of_numbers(tmp_path: Path, rng: np.random.Generator) -> None:
    write_csv(_table(rng, [1, 0]), tmp_path / "d.csv")
    stores = []
    for number, options in enumerate(({"labels": "kind", "stratify": False}, {"target": "kind"})):
        ingest(
            tmp_path / "d.csv",
            tmp_path / f"a{number}",
            test_fraction=0.3,
            test_out=tmp_path / f"b{number}",
            seed=1,
            **options,  # type: ignore[arg-type]
        )
        stores.append(open_dataset(tmp_path / f"b{number}"))
    np.testing.assert_array_equal(stores[0].inputs(0, 18, False), stores[1].inputs(0, 18, False))


def test_weights_go_with_their_samples(tmp_path: Path, rng: np.random.Generator) -> None:
    frame = _table(rng, ["u", "v"])
    frame["w"] = rng.uniform(0.1, 5.0, N)
    write_csv(frame, tmp_path / "d.csv")
    places = {"test_fraction": 0.25, "test_out": tmp_path / "b.zarr"}
    report = ingest(tmp_path / "d.csv", tmp_path / "a.zarr", labels="kind", weights="w", chunk_rows=7, **places)  # type: ignore[arg-type]
    by_input = dict(zip(frame["a"], frame["w"], strict=True))
    assert report.test is not None
    for store in (report.train, report.test):
        assert (store.weight_name, store.feature_names) == ("w", ("a", "b"))
        inputs = store.inputs(0, store.n_samples, False)[:, 0]
        weights = store.all_weights()
        assert weights is not None
        assert weights.tolist() == [by_input[value] for value in inputs]
        np.testing.assert_array_equal(store.weights(3, 9), weights[3:9])
    again = ingest(tmp_path / "a.zarr", tmp_path / "c.zarr", labels="kind", weights="w").train
    assert again.fingerprint == report.train.fingerprint
    without = ingest(tmp_path / "a.zarr", tmp_path / "n.zarr", labels="kind").train
    assert (without.weight_name, without.all_weights(), without.n_features) == (None, None, 2)
    assert without.fingerprint != report.train.fingerprint
    frame["w"] *= 2.0
    write_csv(frame, tmp_path / "e.csv")
    other = ingest(tmp_path / "e.csv", tmp_path / "e.zarr", labels="kind", weights="w").train
    first = ingest(tmp_path / "d.csv", tmp_path / "f.zarr", labels="kind", weights="w").train
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (["1", "0", "2"], {}, "weights 'w' go down to 0; expected positive numbers"),
        (["1", "-1", "2"], {}, "go down to -1"),
        (["1", "", "2"], {}, "'w' holds a missing value or NaN in line 3"),
        (["1", "inf", "2"], {}, "'w' holds infinity in line 3"),
        (["1", "much", "2"], {}, "'w' holds the text 'much' in line 3"),
        (["1", "1", "2"], {"weights": "y"}, "or labels or test mask"),
        (["1", "1", "2"], {"features": ["a", "w"]}, "column of weights 'w' is among the features"),
        (["1", "1", "2"], {"weights": "z"}, "no column of weights 'z'"),
    ],
)
def test_weights_that_are_refused(tmp_path: Path, weights: list[str], options: dict[str, Any], message: str) -> None:
    lines = ["a,w,y", *(f"{row},{weight},{row % 2}" for row, weight in enumerate(weights))]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        ingest(tmp_path / "d.csv", tmp_path / "out.zarr", **{"labels": "y", "weights": "w", **options})
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]


# Any labels, drawn at random: as codes, through a CSV file's quotes, and split by class.


NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=0, max_size=12)


@given(st.lists(NAMES, min_size=2, max_size=8), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_any_text_comes_back_as_it_was_or_is_refused(names: list[str], seed: int) -> None:
    """As typed text (Parquet, NetCDF), and through a CSV file's quotes where its rules let it through."""
    column = np.random.default_rng(seed).permutation(np.array((names * 3)[: 3 * len(names)], dtype=object))
    encoder = LabelEncoder("y")
    tidy = {unicodedata.normalize("NFC", name.strip()) for name in names}
    if any(unicodedata.category(mark) == "Cc" or mark == "\ufffd" for name in tidy for mark in name):
        with pytest.raises(InputError, match=r"control character|UTF-8"):
            encoder(column, lambda row: f"row {row}")
        return
    first = encoder(column, lambda row: f"row {row}")
    np.testing.assert_array_equal(np.isnan(first), [not name.strip() for name in column])
    if np.isnan(first).any():
        return
    if len(tidy) == 1:
        with pytest.raises(InputError, match="one class only"):
            encoder.settle()
        return
    encoder.settle()
    codes = encoder(column, lambda row: f"row {row}").astype(int)
    assert list(encoder.classes) == sorted(set(encoder.classes))
    found = [encoder.classes[code] for code in codes]
    assert found == [unicodedata.normalize("NFC", name.strip()) for name in column]


@given(
    st.lists(
        st.one_of(
            st.text("ab\"',;| .1é", min_size=1, max_size=6),
            st.integers(-(10**20), 10**20).map(str),
            st.floats(allow_nan=False, allow_infinity=False).map(repr),
        ),
        min_size=2,
        max_size=6,
    )
)
@settings(deadline=None, max_examples=20)
def test_a_csv_files_quotes_hold_any_label(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["a", "y"])
    writer.writerows((row, name) for row, name in enumerate(names * 2))
    (folder / "d.csv").write_text(text.getvalue())
    wanted = [name.strip() for name in names * 2]
    assume(all(wanted) and len({_number_or_text(name) for name in wanted}) > 1)
    assume(not any(name in ("NA", "nan", "inf") for name in wanted))
    found = ingest(folder / "d.csv", folder / "out.zarr", labels="y").train
    if all(isinstance(_number_or_text(name), float) for name in wanted):
        assert [float(name) for name in _named(found)] == [float(name) for name in wanted]
        assert sorted(found.classes or (), key=float) == list(found.classes or ())
    else:
        assert _named(found) == [unicodedata.normalize("NFC", name) for name in wanted]


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6),
    st.floats(0.01, 0.99),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=60)
def test_the_stratified_split_keeps_shares(counts: list[int], fraction: float, seed: int, order: int) -> None:
    codes = np.random.default_rng(order).permutation(np.repeat(np.arange(len(counts)), counts))
    classes = tuple("abcdef"[: len(counts)])
    assume(max(counts) > 1)
    mask = stratified_mask(codes, classes, fraction, seed)
    np.testing.assert_array_equal(mask, stratified_mask(codes, classes, fraction, seed))
    tested = np.bincount(codes[mask], minlength=len(counts))
    n = len(codes)
    assert mask.sum() == min(max(1, round(n * fraction)), n - len(counts))
    assert (tested < np.array(counts)).all()
    exact = fraction * np.array(counts)
    if (np.array(counts) - np.ceil(exact) >= 1).all():
        assert (np.abs(tested - exact) < 1.0 + 1e-9).all()


# Several targets that are not all known of the same samples: what is said of them, and that it works.


def test_they_are_ingested_one_by_one(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,u,v\n1,2,3,\n2,1,,4\n3,5,1,2\n4,4,2,1\n0,1,5,\n")
    with pytest.raises(InputError, match="one by one, .* name one target, `drop` the others, and `drop_missing`"):
        ingest(str(table), str(tmp_path / "both.zarr"), target=["u", "v"])
    for target, other, known in (("u", "v", [3.0, 1.0, 2.0, 5.0]), ("v", "u", [4.0, 2.0, 1.0])):
        options = TableOptions(drop=(other,), drop_gaps=True)
        report = ingest(str(table), str(tmp_path / target), target=target, table=options)
        np.testing.assert_array_equal(report.train.all_targets(standardised=False)[:, 0], known)
    table.write_text("a,u,v\n1,2,3\n,1,2\n3,5,1\n")
    with pytest.raises(InputError, match="'a' holds a missing value") as error:
        ingest(str(table), str(tmp_path / "features.zarr"), target=["u", "v"])
    assert "one by one" not in str(error.value)
