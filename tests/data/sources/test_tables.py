"""Tables of text, dates and gaps: what becomes of a column, one report of all problems, the same rules for new data."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.data import Dataset, TableOptions, ingest, open_dataset, save_model
from dkgp.data.sources.tables.encoding import Categories, Encoding, cycle_position, date_seconds
from dkgp.data.sources.tables.learning import DATE_FORMATS
from dkgp.data.sources.tables.survey import RefusedColumnsError, RepeatedRows
from dkgp.data.stores.dataset import TrainingColumns
from dkgp.data.stores.manifest import read_manifest
from dkgp.errors import InputError, StoreError, UsageError

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
    np.testing.assert_array_equal(column(train, "sold"), [time.timestamp() for time in times])
    for row, time in enumerate(times):
        first = datetime.datetime(time.year, 1, 1, tzinfo=datetime.UTC)
        following = datetime.datetime(time.year + 1, 1, 1, tzinfo=datetime.UTC)
        hours = time.hour + time.minute / 60
        position = {
            "year": (time - first) / (following - first),
            "week": (time.weekday() + hours / 24) / 7,
            "day": hours / 24,
        }
        for cycle, share in position.items():
            assert column(train, f"sold.{cycle}.sin")[row] == pytest.approx(math.sin(2 * math.pi * share), abs=1e-9)
            assert column(train, f"sold.{cycle}.cos")[row] == pytest.approx(math.cos(2 * math.pi * share), abs=1e-9)


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
        "1 missing (0.017 of the rows), first in line 9",
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
    assert "take it as `labels`" in str(caught.value)
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
