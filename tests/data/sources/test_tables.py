"""Tables of text, dates and gaps: what becomes of a column, one report of all problems, the same rules for new data."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from dkgp.data import Dataset, TableOptions, ingest, open_dataset, save_model
from dkgp.data.sources.base import MISSING_TEXTS
from dkgp.data.sources.tables.encoding import Categories, Encoding, cycle_position, date_seconds, may_be_date
from dkgp.data.sources.tables.learning import DATE_FORMATS
from dkgp.data.sources.tables.survey import RefusedColumnsError, RepeatedRows
from dkgp.data.stores.dataset import TrainingColumns
from dkgp.data.stores.manifest import read_manifest
from dkgp.data.types import joined, split_names
from dkgp.errors import InputError, StoreError, UsageError
from dkgp.fit.ways import column_words
from tests.cli.invoke import refused, run, run_json

ALL = TableOptions(
    categorical=("cut",),
    ordinal={"size": ("small", "medium", "large")},
    dates=("sold",),
    cyclic={"sold": ("year", "week", "day")},
    drop=("agent",),
    gap_texts=("?",),
    impute="median",
)


def frame_of(rng: np.random.Generator, n: int = 60) -> pd.DataFrame:
    """A table with something of everything in it; rows 3 and 7 have gaps, row 5 a '?'."""
    depth = rng.normal(61.0, 1.5, n).round(3).astype(object)
    depth[3], depth[5] = None, "?"
    cut = rng.choice(["Fair", "Good", "Ideal"], n).astype(object)
    cut[7] = ""
    return pd.DataFrame(
        {
            "agent": [f"agent {index}" for index in range(n)],
            "cut": cut,
            "size": rng.choice(["small", "medium", "large"], n),
            "depth": depth,
            "sold": [
                f"20{20 + index % 4}-{1 + index % 12:02}-{1 + index % 28:02}T{index % 24:02}:30" for index in range(n)
            ],
            "price": rng.normal(size=n).round(4),
        }
    )


@pytest.fixture
def table(tmp_path: Path, rng: np.random.Generator) -> tuple[pd.DataFrame, Path]:
    """A table, and the CSV file that holds it."""
    frame = frame_of(rng)
    frame.to_csv(tmp_path / "table.csv", index=False)
    return frame, tmp_path / "table.csv"


def column(dataset: Dataset, name: str) -> np.ndarray:
    """A raw feature of all samples."""
    return dataset.raw_inputs(0, dataset.n_samples)[:, dataset.raw_feature_names.index(name)]


def test_columns_become_what_pandas_and_the_calendar_say(table: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    frame, path = table
    train = ingest(path, tmp_path / "train.zarr", target="price", table=ALL).train
    cycles = [f"sold.{cycle}.{part}" for cycle in ("year", "week", "day") for part in ("sin", "cos")]
    assert train.raw_feature_names == (
        *("cut=Fair", "cut=Good", "cut=Ideal", "cut=(missing)", "size", "depth", "sold"),
        *cycles,
    )
    one_hot = pd.get_dummies(frame["cut"].replace("", "(missing)")).astype(float)
    for level in one_hot:
        np.testing.assert_array_equal(column(train, f"cut={level}"), one_hot[level])
    np.testing.assert_array_equal(column(train, "size"), frame["size"].map({"small": 0, "medium": 1, "large": 2}))
    depth = pd.to_numeric(frame["depth"], errors="coerce")
    np.testing.assert_array_equal(column(train, "depth"), depth.fillna(depth.median()))
    times = [datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC) for text in frame["sold"]]
    np.testing.assert_array_equal(column(train, "sold"), [sold.timestamp() for sold in times])
    for row, sold in enumerate(times):
        first = datetime.datetime(sold.year, 1, 1, tzinfo=datetime.UTC)
        following = datetime.datetime(sold.year + 1, 1, 1, tzinfo=datetime.UTC)
        hours = sold.hour + sold.minute / 60
        position = {
            "year": (sold - first) / (following - first),
            "week": (sold.weekday() + hours / 24) / 7,
            "day": hours / 24,
        }
        for cycle, share in position.items():
            assert column(train, f"sold.{cycle}.sin")[row] == pytest.approx(math.sin(2 * math.pi * share), abs=1e-9)
            assert column(train, f"sold.{cycle}.cos")[row] == pytest.approx(math.cos(2 * math.pi * share), abs=1e-9)


def test_rows_that_are_left_out_are_counted_in_words(tmp_path: Path) -> None:
    lines = ["a,b,n,y", "1,2,k,3", ",3,l,4", "3,5,m,5", "4,,o,6", "5,1,p,9"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    table = TableOptions(drop=("n",), drop_gaps=True)
    whole = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=table)
    words = f"2 of 5 rows have a missing value and were left out; the first is in line 3 of '{tmp_path}/t.csv'."
    assert words in whole.warnings
    assert (whole.n_samples, whole.train.n_samples) == (3, 3)
    # Predictions at new rows have other numbers than the rows of the table, unless a column names them.
    (tmp_path / "new.csv").write_text("\n".join(lines[:3]))
    new = ingest(tmp_path / "new.csv", tmp_path / "new.zarr", like=tmp_path / "t.zarr")
    (warning,) = new.warnings
    assert warning.startswith("1 of 2 rows has a missing value and was left out; the first is in line 3 of ")
    assert warning.endswith("to match them with the table, give a column as `ids`.")
    named = ingest(tmp_path / "new.csv", tmp_path / "named.zarr", like=tmp_path / "t.zarr", ids=["n"])
    (warning,) = named.warnings
    assert "Predictions" not in warning


def test_rows_with_gaps_are_left_out_and_places_stay_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,y\n1,1,1\n,2,2\n3,3,3\n4,,4\n5,5,inf\n6,6,6\n")
    with pytest.raises(InputError, match=r"'y' holds infinity in line 6 of"):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=TableOptions(drop_gaps=True))
    assert not (tmp_path / "t.zarr").exists()
    (tmp_path / "t.csv").write_text("a,b,y\n1,1,1\n,2,2\n3,3,3\n4,,4\n5,5,\n6,7,6\n")
    train = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=TableOptions(drop_gaps=True)).train
    np.testing.assert_array_equal(train.raw_inputs(0, 3), [[1, 1], [3, 3], [6, 7]])
    np.testing.assert_array_equal(train.all_targets(standardised=False)[:, 0], [1, 3, 6])


def test_a_target_is_never_filled_in(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,1\n2,\n,3\n4,4\n")
    with pytest.raises(InputError, match="'y' holds a missing value"):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=TableOptions(impute="median"))
    both = TableOptions(impute="median", drop_gaps=True)
    train = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=both).train
    np.testing.assert_array_equal(column(train, "a"), [1, 2, 4])  # the median of 1, 2 and 4


def test_one_message_tells_all_columns_and_its_line_solves_them(
    table: tuple[pd.DataFrame, Path], tmp_path: Path
) -> None:
    _, path = table
    with pytest.raises(InputError) as caught:
        ingest(path, tmp_path / "t.zarr", target="price")
    message = str(caught.value)
    for part in (
        "The column 'agent' holds the text 'agent 0' in line 2",
        "'agent': text of 60 different values",
        "'cut': text of 3 different values",
        "'cut'",
        "1 missing (1.7 % of the rows), first in line 9",
        "'size': text of 3 different values",
        "1 times '?' among numbers",
        "'sold': dates, such as '2020-01-01T00:30'",
        "--categorical cut,size --date sold --drop agent --missing '?' --impute median",
    ):
        assert part in message
    assert not (tmp_path / "t.zarr").exists()
    solved = TableOptions(("cut", "size"), dates=("sold",), drop=("agent",), gap_texts=("?",), impute="median")
    assert ingest(path, tmp_path / "t.zarr", target="price", table=solved).train.n_samples == 60


def test_what_is_suggested_leaves_what_was_chosen_as_it_is(table: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    _, path = table
    chosen = TableOptions(ordinal={"size": ("small", "medium", "large")}, drop=("cut",), drop_gaps=True)
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="price", table=chosen)
    both = caught.value.survey.table(chosen)
    assert (both.ordinal, both.drop, both.drop_gaps) == (chosen.ordinal, ("cut", "agent"), True)
    assert (both.categorical, both.dates, both.gap_texts) == ((), ("sold",), ("?",))
    # Rows with gaps are left out, as was chosen, and not filled in.
    assert ingest(path, tmp_path / "t.zarr", target="price", table=both).train.n_samples == 58
    assert caught.value.survey.table(both) == both


def test_the_target_of_text_is_not_offered_as_a_feature(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,kind\n1,x\n2,y\n3,x\n")
    with pytest.raises(InputError) as caught:
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="kind")
    assert "and a target of classes in `labels`" in str(caught.value)
    assert "--categorical" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_new_data_get_the_rules_of_the_store_or_of_its_model(
    suffix: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    frame = frame_of(rng).replace({"": None, "?": None})
    frame["depth"] = frame["depth"].astype(float)
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
        frame["sold"] = pd.to_datetime(frame["sold"])
    write = {"csv": lambda part, at: part.to_csv(at, index=False), "parquet": lambda part, at: part.to_parquet(at)}
    write[suffix](frame, tmp_path / f"train.{suffix}")
    train = ingest(tmp_path / f"train.{suffix}", tmp_path / "train.zarr", target="price", table=ALL).train
    new = frame.drop(columns="price").iloc[::-1].head(20)
    write[suffix](new, tmp_path / f"new.{suffix}")
    like = ingest(tmp_path / f"new.{suffix}", tmp_path / "new.zarr", like=tmp_path / "train.zarr").train
    assert like.raw_feature_names == train.raw_feature_names
    assert like.n_targets == 0
    expected = train.raw_inputs(0, train.n_samples)[::-1][:20]
    np.testing.assert_array_equal(like.raw_inputs(0, 20), expected)


def test_a_level_that_was_not_there_is_refused_or_zeros(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,a,y\nu,1,1\nv,2,2\nu,3,4\n")
    ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=TableOptions(("c",)))
    (tmp_path / "n.csv").write_text("c,a\nv,1\nw,2\n")
    with pytest.raises(InputError, match=r"'c' holds 'w' in line 3 of .*none of its levels 'u', 'v'"):
        ingest(tmp_path / "n.csv", tmp_path / "n.zarr", like=tmp_path / "t.zarr")
    assert not (tmp_path / "n.zarr").exists()
    new = ingest(tmp_path / "n.csv", tmp_path / "n.zarr", like=tmp_path / "t.zarr", unseen="zeros").train
    np.testing.assert_array_equal(new.raw_inputs(0, 2), [[0, 1, 1], [0, 0, 2]])


def test_a_level_beyond_those_of_an_order_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("s,y\nsmall,1\nhuge,2\nsmall,3\n")
    with pytest.raises(InputError, match="'huge' in line 3 .*Name it in `ordinal`"):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=TableOptions(ordinal={"s": ("small", "big")}))


def test_models_keep_the_rules_of_their_training_set(table: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    train = ingest(table[1], tmp_path / "t.zarr", target="price", table=ALL).train
    facts: Any = {"kernel": {"type": "rbf", "length_scales": [1.0] * train.n_features}, "noise_variance": 0.1}
    alpha = np.zeros((train.n_samples, 1))
    save_model(tmp_path / "m.zarr", alpha=alpha, dataset=train, **facts)
    columns = TrainingColumns.read(tmp_path / "m.zarr")
    assert (columns.encoding, columns.features) == (train.encoding, train.feature_names)
    table[0].head(5).to_csv(tmp_path / "new.csv", index=False)
    new = ingest(tmp_path / "new.csv", tmp_path / "n.zarr", like=tmp_path / "m.zarr").train
    kept = [train.raw_feature_names.index(name) for name in train.feature_names]
    np.testing.assert_array_equal(new.raw_inputs(0, 5), train.raw_inputs(0, 5)[:, kept])


def test_labels_go_by_their_own_codes_and_gaps_among_them_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,kind\nu,x\nv,?\nu,z\nv,x\n,z\n")
    options = TableOptions(categorical=("c",), gap_texts=("?",), drop_gaps=True)
    train = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", labels="kind", table=options).train
    assert train.classes == ("x", "z")
    assert train.all_labels().tolist() == [0, 1, 0]
    np.testing.assert_array_equal(train.raw_inputs(0, 3), [[1, 0], [1, 0], [0, 1]])


def test_an_index_counts_the_columns_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,a,y\nu,1,1\nv,2,2\nw,3,4\n")
    train = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target=2, features=[0], table=TableOptions(("c",))).train
    assert train.target_names == ("y",)
    assert train.raw_feature_names == ("c=u", "c=v", "c=w")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categorical": ("c",), "drop": ("c",)}, "named twice"),
        ({"impute": "mean"}, "expected median"),
        ({"cyclic": {"d": ("year",)}}, "no date"),
        ({"dates": ("d",), "cyclic": {"d": ("month",)}}, "'month'"),
        ({"ordinal": {"c": ("a",)}}, "two different levels"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TableOptions(**options)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("c,y\nu,1\nv,2\n", TableOptions(("z",)), "no column 'z'"),
        ("c,y\nu,1\nv,2\n", TableOptions(("y",)), "'y' is a target"),
        ("d,y\n01/02/2020,1\n03/04/2020,2\n", TableOptions(dates=("d",)), "may be of the format"),
        ("d,y\n2020-01-01,1\nsoon,2\n", TableOptions(dates=("d",)), "'soon'"),
        ("a,y\n,1\n,2\n", TableOptions(impute="median"), "no number at all"),
        (
            "c,y\n" + "".join(f"level {index},{index}\n" for index in range(1001)),
            TableOptions(("c",)),
            "more than 1000",
        ),
    ],
)
def test_columns_that_are_not_what_they_are_said_to_be(
    text: str, options: TableOptions, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=options)
    assert not (tmp_path / "t.zarr").exists()


def test_a_date_of_two_readings_is_settled_by_a_later_one_or_by_its_format(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("d,y\n01/02/2020,1\n13/04/2020,2\n")
    train = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", table=TableOptions(dates=("d",))).train
    assert column(train, "d")[0] == datetime.datetime(2020, 2, 1, tzinfo=datetime.UTC).timestamp()
    (tmp_path / "t.csv").write_text("d,y\n01/02/2020,1\n03/04/2020,2\n")
    named = TableOptions(dates=("d:%m/%d/%Y",))
    train = ingest(tmp_path / "t.csv", tmp_path / "u.zarr", target="y", table=named).train
    assert column(train, "d")[0] == datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize("form", DATE_FORMATS)
def test_every_format_reads_what_it_writes(form: str) -> None:
    day = datetime.datetime(1999, 12, 31, tzinfo=datetime.UTC)
    text = day.date().isoformat() if form == "ISO8601" else day.strftime(form)
    np.testing.assert_array_equal(date_seconds(np.array([text], dtype=object), form), [day.timestamp()])


def test_positions_of_a_leap_year_and_of_gaps() -> None:
    times = np.array([datetime.datetime(2020, 12, 31, 12, tzinfo=datetime.UTC).timestamp(), np.nan, -86400.0 * 365])
    np.testing.assert_allclose(cycle_position(times, "year"), [365.5 / 366.0, np.nan, 0.0], atol=1e-12)


def test_several_files_share_their_levels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("c,y\nu,1\nv,2\n")
    (tmp_path / "b.csv").write_text("y,c\n3,w\n4,u\n")
    places = [tmp_path / "a.csv", tmp_path / "b.csv"]
    train = ingest(places, tmp_path / "t.zarr", target="y", table=TableOptions(("c",))).train
    np.testing.assert_array_equal(train.raw_inputs(0, 4), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])


def test_rules_survive_json_and_a_damaged_manifest_is_refused(table: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    train = ingest(table[1], tmp_path / "train.zarr", target="price", table=ALL).train
    content = read_manifest(train.url, "dataset")["metadata"]["encoding"]
    assert Encoding.from_json(content).to_json() == content
    assert open_dataset(train.url).encoding == content
    with pytest.raises(StoreError, match="damaged"):
        Encoding.from_json({**content, "categories": {"cut": {"levels": ["a"]}}})


def test_a_store_of_numbers_has_no_rules_and_its_manifest_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,1\n2,2\n3,5\n")
    train = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y").train
    assert train.encoding is None
    assert "encoding" not in read_manifest(train.url, "dataset")["metadata"]
    like = ingest(tmp_path / "t.csv", tmp_path / "n.zarr", like=train.url).train
    assert like.raw_feature_names == ("a",)


def test_options_beside_like_and_unseen_without_it_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,1\n2,2\n3,5\n")
    with pytest.raises(UsageError, match="without `like`"):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", unseen="zeros")
    ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y")
    with pytest.raises(UsageError, match="beside `like`"):
        ingest(tmp_path / "t.csv", tmp_path / "n.zarr", like=tmp_path / "t.zarr", table=TableOptions(drop=("y",)))
    with pytest.raises(StoreError):
        ingest(tmp_path / "t.csv", tmp_path / "n.zarr", like=tmp_path / "nothing.zarr")


def test_repeated_samples_of_a_regression_are_told(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,1\n2,2\n1,1\n1,3\n-0.0,1\n0,1\n")
    report = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y")
    assert any("2 of the 6 samples repeat an earlier one" in warning for warning in report.warnings)


def test_repeats_are_counted_as_a_set_counts_them(rng: np.random.Generator) -> None:
    values = rng.integers(0, 6, (3000, 5)).astype(np.float64)
    values[rng.random(values.shape) < 0.1] = np.nan
    counter = RepeatedRows()
    for start in range(0, 3000, 700):
        counter.update(values[start : start + 700])
    assert counter.count() == 3000 - len({tuple(np.nan_to_num(row, nan=-1.0)) for row in values})


def test_unseen_levels_of_categories_are_minus_one() -> None:
    rule = Categories("c", ("a", "b"), unseen="zeros")
    codes = rule.read(np.array(["b", "z", None], dtype=object), str)
    np.testing.assert_array_equal(codes, [1.0, -1.0, np.nan])
    np.testing.assert_array_equal(rule.features(codes), [[0, 1], [0, 0], [np.nan, np.nan]])


def test_no_option_is_promised_to_read_infinite_values(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,c,y\ninf,u,1\n2,v,2\n3,u,4\n")
    with pytest.raises(InputError, match="no option reads infinite values: remove those rows, or leave out 'a'"):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y")


# Tables: names with commas, labels that read like missing values, extreme values, and thousands of columns.


def test_names_with_commas_stand_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"a, in m","b ""c""",d,y\n1,2,u,3\n2,5,v,4\n3,1,u,5\n')
    refused(
        run("ingest", path, tmp_path / "t.zarr", "--target", "y", "--features", "a, in m"), "stands in double quotes"
    )
    names = ["--features", '"a, in m","b ""c"""']
    assert run_json("ingest", path, tmp_path / "t.zarr", "--target", "y", *names)["features"] == ["a, in m", 'b "c"']
    table = TableOptions(drop=("a, in m",), categorical=("d",), gap_texts=("x,y", "?"))
    words = column_words(table, ['b "c"'])
    document = run_json("ingest", path, tmp_path / "t.zarr", "--target", "y", "--overwrite", *words)
    assert (document["features"], document["ids"]) == (["d=u", "d=v"], ['b "c"'])
    path.write_text('"a, b",y\n,3\n1,4\n,7\n')
    with pytest.raises(InputError, match="--impute"):
        ingest(path, tmp_path / "o.zarr", target="y")
    path.write_text('"a, b",y\nu,3\nv,4\nu,7\n')
    with pytest.raises(InputError, match="""--categorical '"a, b"'$"""):
        ingest(path, tmp_path / "o.zarr", target="y")


@pytest.mark.parametrize("names", [["a"], ["a,b", "c"], ['"', "b"], ['a"b', "c, d"], ["'", "?"], ["x=y", "1,2,3"]])
def test_lists_of_names_come_back(names: list[str]) -> None:
    assert split_names(joined(names)) == names


@pytest.mark.parametrize(
    ("text", "names"), [("a, b,c", ["a", "b", "c"]), ('"', ['"']), ('a",b', ['a"', "b"]), (",", [])]
)
def test_plain_lists_are_read_as_before(text: str, names: list[str]) -> None:
    assert split_names(text) == names


COUNTRIES = "a,k\n1,NA\n2,DE\n3,NA\n4,DE\n5,None\n6,\n"


def test_labels_that_read_like_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(COUNTRIES)
    with pytest.raises(InputError, match="4 missing .*, 2 written 'NA': if that is a value, name it in `not_missing`"):
        ingest(path, tmp_path / "t.zarr", labels="k")
    table = TableOptions(not_missing=("NA",), drop_gaps=True)
    train = ingest(path, tmp_path / "t.zarr", labels="k", table=table).train
    expected = pd.read_csv(path, keep_default_na=False, na_values=["", *sorted(MISSING_TEXTS - {"NA"})]).dropna()
    assert train.classes is not None
    assert [train.classes[code] for code in train.all_labels()] == expected["k"].tolist()
    encoding = TrainingColumns.read(train.url).encoding
    assert encoding is not None
    assert Encoding.from_json(encoding).to_json() == encoding
    path.write_text("a,k\n1,NA\n")
    new = ingest(path, tmp_path / "n.zarr", labels="k", like=tmp_path / "t.zarr").train
    assert new.classes == ("DE", "NA")
    assert new.all_labels().tolist() == [1]


def test_categories_that_read_like_missing_values_beside_gaps_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("k,x,y\nNA,1,1\nDE,NA,2\nNA,3,3\n,5,4\n")
    table = TableOptions(categorical=("k",), not_missing=("NA",), impute="median")
    train = ingest(path, tmp_path / "t.zarr", target="y", table=table).train
    assert train.raw_feature_names == ("k=DE", "k=NA", "k=(missing)", "x")
    np.testing.assert_array_equal(train.raw_inputs(0, 4), [[0, 1, 0, 1], [1, 0, 0, 3], [0, 1, 0, 3], [0, 0, 1, 5]])


@pytest.mark.parametrize("table", [TableOptions(), TableOptions(drop=("b",))])
def test_ids_are_texts_as_they_stand(tmp_path: Path, table: TableOptions) -> None:
    path = tmp_path / "t.csv"
    path.write_text("i,a,b,y\nNA,1,1,1\nnull,2,5,2\n,4,3,3\n")
    train = ingest(path, tmp_path / "t.zarr", target="y", ids=["i"], table=table).train
    assert train.ids(0, 3)[:, 0].tolist() == ["NA", "null", ""]


def test_texts_of_missing_values_are_those_of_pandas() -> None:
    assert MISSING_TEXTS | {""} == STR_NA_VALUES


@pytest.mark.parametrize(("n", "place"), [(200, 7), (5000, 4000)])
def test_one_extreme_value_is_told_of(tmp_path: Path, rng: np.random.Generator, n: int, place: int) -> None:
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y").warnings == ()
    frame.loc[place, "b"] = 1e12
    frame.to_csv(tmp_path / "t.csv", index=False)
    (message,) = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", overwrite=True).warnings
    assert message.startswith("The values of 'b' reach from -")
    assert " to 1e+12, and the middle half of them lies between -0." in message
    standardised = (frame["b"] - frame["b"].mean()) / frame["b"].std()
    distance = standardised.quantile(0.75) - standardised.quantile(0.25)
    assert distance < float(message.split("within ")[1].split()[0])
    frame.drop(index=place).assign(y=np.exp(2.0 * frame["y"])).to_csv(tmp_path / "t.csv", index=False)
    assert ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="y", overwrite=True).warnings == ()


def test_a_look_at_the_library_loses_no_date() -> None:
    texts = [
        "2024-01-31",
        "2024-1-3",
        "31.01.2024",
        " 3.1.2024 ",
        "20240131",
        "3 Jan 2024",
        "1/2/2024",
        "2024-01",
        "2024",
    ]
    for text in [*texts, "2024-01-31T10:00:00Z", "2024-01-31 10:00", "2024/01/31", "31-01-2024", "abc", "12:30", "5"]:
        for form in DATE_FORMATS:
            is_date = not np.isnan(date_seconds(np.array([text], dtype=object), form)[0])
            assert may_be_date(text, form) or not is_date


class Name(str):
    """A name that counts its comparisons: a search through all names for each name is a comparison of each pair."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


MANY = tuple(Name(f"column {index}") for index in range(9000))


@pytest.mark.parametrize("name", ["categorical", "dates", "drop", "numbers", "ordinal"])
def test_options_of_many_columns_take_time_in_proportion(name: str) -> None:
    named: Any = dict.fromkeys(MANY, ("a", "b")) if name == "ordinal" else MANY
    Name.compared = 0
    assert TableOptions(**{name: named}, cyclic=dict.fromkeys(MANY, ("year",)) if name == "dates" else {})
    assert Name.compared < 10 * len(MANY)


@pytest.mark.long
@pytest.mark.parametrize("role", ["drop", "ids", "features", "target"])
def test_tables_of_many_columns_take_time_in_proportion(tmp_path: Path, role: str) -> None:
    rows = [",".join(str((index * 7 + row * row) % 5) for index in range(len(MANY))) + f",{row}" for row in range(4)]
    (tmp_path / "t.csv").write_text("\n".join([",".join([*MANY, "y"]), *rows]) + "\n")
    options: dict[str, Any] = {role: list(MANY[1:])} if role != "drop" else {"table": TableOptions(drop=MANY[1:])}
    Name.compared = 0
    ingest(tmp_path / "t.csv", tmp_path / "t.zarr", **{"target": "y", **options})
    assert Name.compared < 50 * len(MANY)
