"""Tables: names with commas, labels that read like missing values, extreme values, and thousands of columns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas._libs.parsers import STR_NA_VALUES

from dkgp.data import TableOptions, ingest
from dkgp.data.sources.base import MISSING_TEXTS
from dkgp.data.sources.tables.encoding import Encoding, date_seconds, may_be_date
from dkgp.data.sources.tables.learning import DATE_FORMATS
from dkgp.data.stores.dataset import TrainingColumns
from dkgp.data.types import joined, split_names
from dkgp.errors import InputError
from dkgp.fit.job import column_words
from tests.cli.invoke import refused, run, run_json


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
    with pytest.raises(
        InputError, match="4 missing .*, 2 written 'NA': where that is a value, name it in `not_missing`"
    ):
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


MANY = tuple(f"column {index}" for index in range(9000))


@pytest.mark.parametrize("name", ["categorical", "dates", "drop", "numbers", "ordinal"])
def test_options_of_many_columns_take_time_in_proportion(name: str) -> None:
    named: Any = dict.fromkeys(MANY, ("a", "b")) if name == "ordinal" else MANY
    began = time.process_time()
    table = TableOptions(**{name: named}, cyclic=dict.fromkeys(MANY, ("year",)) if name == "dates" else {})
    assert time.process_time() - began < 0.5
    assert table


@pytest.mark.long
@pytest.mark.parametrize("role", ["drop", "ids", "features", "target"])
def test_tables_of_many_columns_take_time_in_proportion(tmp_path: Path, role: str) -> None:
    rows = [",".join(str((index * 7 + row * row) % 5) for index in range(len(MANY))) + f",{row}" for row in range(4)]
    (tmp_path / "t.csv").write_text("\n".join([",".join([*MANY, "y"]), *rows]) + "\n")
    options: dict[str, Any] = {role: list(MANY[1:])} if role != "drop" else {"table": TableOptions(drop=MANY[1:])}
    began = time.process_time()
    ingest(tmp_path / "t.csv", tmp_path / "t.zarr", **{"target": "y", **options})
    assert time.process_time() - began < 6.0
