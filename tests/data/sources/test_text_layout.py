"""Text files as R, NumPy, spreadsheets and old editors write them: layouts, encodings, line ends, other archives."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.commands.predict.lines import LineColumns
from dkgp.data import Dataset, TableOptions, ingest
from dkgp.data.sources import csv as csv_source
from dkgp.data.sources.csv import SPACES, find_delimiter, split_fields
from dkgp.data.sources.tables.encoding import NOTATIONS, PLAIN, Encoding, Notation, Unit, around
from dkgp.data.sources.tables.survey import RefusedColumnsError
from dkgp.data.stores.dataset import TrainingColumns
from dkgp.errors import InputError, StoreError, UsageError
from tests.cli.invoke import refused, run, run_json

ROWS = "1 1.5 2 3\n2 2.5 3 4\n3 3.5 5 5\n"


def table_of(dataset: Dataset) -> pd.DataFrame:
    """Features and targets with their names."""
    values = np.c_[dataset.raw_inputs(0, dataset.n_samples), dataset.all_targets(standardised=False)]
    return pd.DataFrame(values, columns=[*dataset.raw_feature_names, *dataset.target_names])


def read(tmp_path: Path, content: str | bytes, **options: Any) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Ingest a file whose last column is the target; its table, and what was warned of."""
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    report = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target=-1, overwrite=True, **options)
    return table_of(report.train), report.warnings


@pytest.mark.parametrize(
    "text",
    [
        f'"a" "b c" "y"\n{ROWS}',
        '"a" "b c" "y"\n"1" 1.5 2 3\n"row two" 2.5 3 4\n"3" 3.5 5 5\n',
        '"a","b c","y"\n"1",1.5,2,3\n"2",2.5,3,4\n"3",3.5,5,5\n',
        '"a"\t"b c"\t"y"\n"1"\t1.5\t2\t3\n"2"\t2.5\t3\t4\n"3"\t3.5\t5\t5\n',
    ],
)
def test_tables_of_r_have_row_names_that_are_no_feature(tmp_path: Path, text: str) -> None:
    table, warnings = read(tmp_path, text)
    separator = {",": ",", "\t": "\t"}.get(next((mark for mark in ",\t" if mark in text), ""), r"\s+")
    expected = pd.read_csv(io.StringIO(text), sep=separator)  # takes row names for its index
    assert list(table) == ["a", "b c", "y"]
    np.testing.assert_array_equal(table, expected.to_numpy())
    assert len(warnings) == 1
    assert "taken for row names. It is no feature, and is called 'row_names'" in warnings[0]
    kept = ingest(tmp_path / "t.csv", tmp_path / "i.zarr", target="y", ids=["row_names"]).train
    assert kept.ids(0, 3)[:, 0].tolist() == [str(name) for name in expected.index]


def test_quoted_texts_between_blanks(tmp_path: Path) -> None:
    text = '"a" "k" "y"\n"1" 1.5 "red ""one""" 3\n"2" 2.5 "blue two" 4\n"3" 3.5 "blue two" 5\n'
    table, _ = read(tmp_path, text, table=TableOptions(categorical=("k",)))
    assert list(table) == ["a", "k=blue two", 'k=red "one"', "y"]
    assert split_fields('  "a b"  c "d""e" f"g', SPACES, "") == ["a b", "c", 'd"e', 'f"g']


def test_a_header_of_one_field_less_is_no_row_name_without_quotes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Line 2 .* has 4 fields; expected 3"):
        read(tmp_path, "a,b,y\n1,2,3,4\n2,3,4,5\n")


@pytest.mark.parametrize(
    ("header", "delimiter", "names"),
    [
        ("a b y", " ", ["a", "b", "y"]),
        ("a,b,y", ",", ["a", "b", "y"]),
        ("a b y", ",", ["a", "b", "y"]),
        ("a, b, y", " ", ["a", "b", "y"]),
        ("measured on Monday\na;b;y", ";", ["a", "b", "y"]),
        ("measured on some Monday", " ", ["x0", "x1", "x2"]),
        ("measured on some Monday", "\t", ["x0", "x1", "x2"]),
    ],
)
def test_headers_of_numpy(
    tmp_path: Path, rng: np.random.Generator, header: str, delimiter: str, names: list[str]
) -> None:
    values, file = rng.normal(size=(5, 3)), io.BytesIO()
    np.savetxt(file, values, header=header, delimiter=delimiter)
    table, warnings = read(tmp_path, file.getvalue())
    assert list(table) == names
    np.testing.assert_array_equal(table, np.loadtxt(io.BytesIO(file.getvalue()), delimiter=delimiter))
    is_read = len(header.splitlines()) == 1 and names[0] == "a"
    assert [message[:6] for message in warnings] == ([] if is_read else ["1 line"])
    with pytest.raises(InputError, match="no feature 'a'"):
        read(tmp_path, file.getvalue(), header=False, features=["a"])


def test_comments_before_a_header_and_a_name_that_begins_with_the_sign(tmp_path: Path) -> None:
    table, warnings = read(tmp_path, "# one\n# two b y\n#a,b,y\n1,2,3\n4,5,7\n")
    assert list(table) == ["a", "b", "y"]
    assert warnings[0].startswith("2 lines at the beginning")
    table, warnings = read(tmp_path, "# one two three\na,b,y\n1,2,3\n4,5,7\n")
    assert (list(table), len(warnings)) == (["a", "b", "y"], 1)
    text = "#1,2,3\n#2,3,7\n"
    assert len(read(tmp_path, text, table=TableOptions(categorical=("x0",)), header=False)[0]) == 2


@pytest.mark.parametrize("read_bytes", [7, 64 * 1024])
@pytest.mark.parametrize("last", ["", "\r"])
def test_carriage_returns_end_lines(
    tmp_path: Path, read_bytes: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_source, "_READ_BYTES", read_bytes)
    table, _ = read(tmp_path, f"a,b,y\r1,2,3\r2,5,4\r\r3,4,5{last}")
    np.testing.assert_array_equal(table, [[1, 2, 3], [2, 5, 4], [3, 4, 5]])
    with pytest.raises(InputError, match="'b' holds the text 'x' in line 3"):
        read(tmp_path, "a,b,y\r1,2,3\r2,x,4\r3,4,5")


@pytest.mark.parametrize("header", ["a,b,y,", "a,b,y"])
def test_a_delimiter_at_the_end_of_lines_makes_no_column(tmp_path: Path, header: str) -> None:
    lines = "1,2,3,\n2,5,4,\n"
    table, warnings = read(tmp_path, f"{header}\n{lines * 15}")
    assert (list(table), warnings) == (["a", "b", "y"], warnings)
    assert not any("has no name" in message for message in warnings)
    np.testing.assert_array_equal(table[:2], [[1, 2, 3], [2, 5, 4]])
    with pytest.raises(InputError, match="The field after the last delimiter holds '7.* in line 32"):
        read(tmp_path, f"{header}\n{lines * 15}5,6,7,7\n")
    assert len(read(tmp_path, "1,2,3,\n2,5,4,\n")[0].columns) == 3


def test_an_empty_column_is_dropped_by_the_line_that_is_suggested(tmp_path: Path) -> None:
    text = "a,e,b,y\n1,,2,3\n2,,5,4\n,,3,3\n"
    with pytest.raises(InputError, match="(?s)'e': no value in any row.*--drop e --impute median"):
        read(tmp_path, text)
    with pytest.raises(InputError, match="(?s)'e' holds no number at all.*: --drop e"):
        read(tmp_path, text, table=TableOptions(impute="median"))
    table, _ = read(tmp_path, text, table=TableOptions(impute="median", drop=("e",)))
    np.testing.assert_array_equal(table, [[1, 2, 3], [2, 5, 4], [1.5, 3, 3]])


@pytest.mark.parametrize(
    ("encoding", "options"),
    [("latin-1", {}), ("cp1252", {}), ("utf-16", {}), ("utf-8-sig", {}), ("cp1250", {"encoding": "cp1250"})],
)
def test_encodings(tmp_path: Path, encoding: str, options: dict[str, str]) -> None:
    names = ["größe", "š" if encoding != "latin-1" else "é", "y"]
    table, warnings = read(tmp_path, f"{','.join(names)}\n1,2,3\n2,5,4\n".encode(encoding), **options)
    assert list(table) == names
    assert len(warnings) == (encoding in ("latin-1", "cp1252"))
    assert all("is no UTF-8 text (byte 0xf6); the file is read as cp1252. Name" in message for message in warnings)


def test_texts_of_another_encoding_are_refused_and_read_where_it_is_named(tmp_path: Path) -> None:
    content = "k,y\ncaf\xe9,3\ncaf\xe8,4\ncaf\xe9,1\n".encode("latin-1")
    table = TableOptions(categorical=("k",))
    with pytest.raises(InputError, match="'k' holds 'caf\ufffd' in line 2 .* name its `encoding`"):
        read(tmp_path, content, table=table)
    assert list(read(tmp_path, content, table=table, encoding="latin-1")[0]) == ["k=café"[:-1] + "è", "k=café", "y"]
    with pytest.raises(UsageError, match="`encoding` is 'punycode'; expected one of utf-8"):
        read(tmp_path, content, encoding="punycode")


@pytest.mark.parametrize(
    ("lines", "delimiter"),
    [
        (["1,5;2,5;3", "2;3,5;4"], ";"),
        (["a;b", "1,5;2,5", "2;3,5"], ";"),
        (['"a" "b"', "1,5 2,5", "2,5 3,5"], SPACES),
        (['"a" "b" "y"', '"1" 1,5 2,5 3', '"2" 2,5 3,5 4'], SPACES),
        (["b;a", "5 %;-9.000,25"], ";"),
        (["a, in m;b", "1,5;2", "2,5;3"], ";"),
        (["x|y,b", "u|v,2", "w|z,3"], ","),
        (["when,y", "2020-01-01 10:00,5", "2020-01-02 11:00,6"], ","),
        (["y", "1", "2"], ","),
        (["a, b", "1, 2", "3, 4"], ","),
        (["date time", "2020-01-01 10:00", "2020-01-02 11:00"], SPACES),
    ],
)
def test_the_delimiter_cuts_all_lines_alike(lines: list[str], delimiter: str) -> None:
    assert find_delimiter(lines) == delimiter


def test_layouts_of_hostile_lines_take_no_time() -> None:
    # Work that grows with the square of the length would take hours.
    lines = ['"' * 500_001, "1," * 500_000, '"a ' * 300_000, "#" * 1_000_000]
    find_delimiter(lines)
    for line in lines:
        split_fields(line, SPACES, "")


def archive_of(*names: str) -> bytes:
    """A ZIP archive of files with these names."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, "a,y\n1,2\n3,4\n")
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv.zip", archive_of("t.csv"), "is a ZIP archive of 't.csv'; unpack it"),
        ("t.xlsx", archive_of("[Content_Types].xml", "xl/workbook.xml"), "is a workbook .*; save its sheet as CSV"),
        ("t.ods", archive_of("mimetype", "content.xml"), "is a workbook .*; save its sheet as CSV"),
        ("t.zip", archive_of("a", "b"), "is a ZIP archive of 2 files, and none is a NumPy array"),
        ("t.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "is an Excel workbook; save its sheet as CSV"),
    ],
)
def test_archives_and_workbooks_are_refused_in_words(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        ingest(tmp_path / name, tmp_path / "t.zarr", target="y")


# Numbers written for people: pandas' reading of decimal commas and thousands, units, and what is not guessed.


GERMAN = "preis;menge;rate;y\n1.234,56;1.234;0,5;3\n500;2.000;-1,25;4\n-1.000,5;17;1e3;5,5\n,9;1.234.567;3;6\n"


def written(tmp_path: Path, text: str, name: str = "table.csv") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def raw(dataset: Dataset) -> np.ndarray:
    """All features and targets."""
    return np.c_[dataset.raw_inputs(0, dataset.n_samples), dataset.all_targets(standardised=False)]


@pytest.mark.parametrize(
    ("text", "options", "of_pandas"),
    [
        (GERMAN, {"decimal": ",", "thousands": "."}, {"sep": ";", "decimal": ",", "thousands": "."}),
        ('a,y\n"1,234.5",1\n"-12,345,678",2\n7,3\n', {"thousands": ","}, {"thousands": ","}),
        ("a;y\n1,5;1\n2;2,25\n-3,;3\n", {"decimal": ","}, {"sep": ";", "decimal": ","}),
        ("a;y\n1'234.5;1\n12'345;2\n3;3\n", {"thousands": "'"}, {"sep": ";", "thousands": "'"}),
        *(
            (f"a;y\n1{blank}234,5;1\n-12{blank}345{blank}678;2\n3;3\n", {"decimal": ",", "thousands": " "}, None)
            for blank in " \u00a0\u202f"
        ),
    ],
)
def test_marks_are_read_as_pandas_reads_them(
    tmp_path: Path, text: str, options: dict[str, Any], of_pandas: dict[str, Any] | None
) -> None:
    path = written(tmp_path, text)
    train = ingest(path, tmp_path / "t.zarr", target="y", table=TableOptions(**options)).train
    if of_pandas is None:  # pandas takes one character: the text without blanks
        text, of_pandas = re.sub("[ \u00a0\u202f]", "", text), {"sep": ";", "decimal": ","}
    np.testing.assert_array_equal(raw(train), pd.read_csv(io.StringIO(text), **of_pandas).to_numpy())


def test_a_table_is_recognised_and_its_line_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path, GERMAN)
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="y")
    message = str(caught.value)
    assert (
        "'preis': reads like numbers with a decimal comma and points between thousands, such as '1.234,56'" in message
    )
    assert "'menge': reads like numbers with points between thousands, such as '1.234.567'" in message
    assert message.endswith("--decimal , --thousands .")
    assert caught.value.survey.unclear(TableOptions()) == []
    document = run_json("ingest", path, tmp_path / "t.zarr", "--target", "y", *message.rsplit(": ", 1)[1].split())
    assert document["features"] == ["preis", "menge", "rate"]


def test_units_currencies_and_parentheses_are_left_off(tmp_path: Path) -> None:
    text = "m;p;c;t;y\n3.5 kg;12 %;$1,200;\u22123 °C;(2.5)\n400 kg;7%;-$5;4 °C;4\n1e3 kg;0.5 %;$0.25;5 °C;1,000\n"
    path = written(tmp_path, text)
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="y")
    message = str(caught.value)
    assert "'m': reads like numbers with 'kg' at the end, such as '3.5 kg'" in message
    assert "'c': reads like numbers with commas between thousands and '$' in front, such as '$1,200'" in message
    assert message.endswith("--number m,p,c,t,y --thousands ,")
    table = caught.value.survey.table(TableOptions())
    train = ingest(path, tmp_path / "t.zarr", target="y", table=table).train
    expected = [[3.5, 12, 1200, -3, -2.5], [400, 7, -5, 4, 4], [1000, 0.5, 0.25, 5, 1000]]
    np.testing.assert_array_equal(raw(train), expected)
    new = written(tmp_path, "m;p;c;t\n2 kg;1 %;$1,000;0 °C\n3 lb;1 %;$1;0 °C\n", "new.csv")
    with pytest.raises(
        InputError, match="'m' holds the text '3 lb' in line 3 .*expected a number with .*'kg' at the end"
    ):
        ingest(new, tmp_path / "n.zarr", like=tmp_path / "t.zarr")
    written(tmp_path, "m;p;c;t\n2 kg;1 %;$1,000;0 °C\n", "new.csv")
    inputs = ingest(new, tmp_path / "n.zarr", like=tmp_path / "t.zarr").train.raw_inputs(0, 1)
    np.testing.assert_array_equal(inputs, [[2, 1, 1000, 0]])


def test_numbers_with_a_few_other_texts_are_no_categories(tmp_path: Path) -> None:
    """Texts that are rare among many numbers are missing values; a column of few numbers and texts has categories."""
    rows = [f"{k + 0.5},{k % 4},{k % 2 or 'b'},{k}" for k in range(200)]
    rows[7] = "ERROR,x,b,7"
    path = written(tmp_path, "\n".join(["rare,few,both,y", *rows]) + "\n")
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="y")
    message = str(caught.value)
    assert "'rare': text in 1 of 200 rows, with 1 different value, first 'ERROR' in line 9" in message
    assert "numbers otherwise, so that such text is read as a missing value" in message
    assert message.endswith("--categorical few,both --missing ERROR --impute median")
    table = caught.value.survey.table(TableOptions())
    train = ingest(path, tmp_path / "t.zarr", target="y", table=table).train
    assert "few=x" in train.raw_feature_names
    rare = train.raw_inputs(0, 200)[:, train.raw_feature_names.index("rare")]
    numbers = np.array([float(line.split(",")[0]) for line in rows if not line.startswith("ERROR")])
    np.testing.assert_array_equal(np.delete(rare, 7), numbers)
    assert rare[7] == np.median(numbers)


def test_a_typographic_minus_alone_is_told_of_and_read(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y\n\u22121.5,1\n2,2\n3,\u22123\n")
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="y")
    assert "'a': reads like numbers with negative ones in parentheses or with a typographic minus" in str(caught.value)
    assert str(caught.value).endswith("--number a,y")
    train = ingest(path, tmp_path / "t.zarr", target="y", table=caught.value.survey.table(TableOptions())).train
    np.testing.assert_array_equal(raw(train), [[-1.5, 1], [2, 2], [3, -3]])


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ('a,b,y\n"1,234",7,1\n"2,345",8,2\n"3,456",9,3\n', "a", "whose commas are decimal marks or stand between"),
        ("a;b;y\n1,5;2.5;1\n2,5;3;2\n3,5;4;3\n", "a", "with a decimal comma, such as '1,5' in line 2"),
    ],
)
def test_notations_that_the_values_do_not_tell_are_reported(tmp_path: Path, text: str, name: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="y")
    assert words in str(caught.value)
    assert caught.value.survey.unclear(TableOptions()) == [name]
    assert caught.value.survey.options() == {}
    refused(run("fit", path, "--target", "y", "--out", tmp_path / "fit"), words)
    assert not (tmp_path / "fit").exists()


def test_an_option_or_another_column_settles_what_a_column_does_not_tell(tmp_path: Path) -> None:
    path = written(tmp_path, 'a,b,y\n"1,234",7,1\n"2,345",8,2\n"3,456",9,3\n')
    values = {}
    for name, table in {
        "comma": TableOptions(decimal=","),
        "thousands": TableOptions(thousands=","),
    }.items():
        values[name] = ingest(path, tmp_path / f"{name}.zarr", target="y", table=table).train.raw_inputs(0, 1)[0, 0]
    assert values == {"comma": 1.234, "thousands": 1234.0}
    written(tmp_path, 'a,b,y\n"1,234",0.5,1\n"2,345",8,2\n"3,456",9,3\n')
    with pytest.raises(RefusedColumnsError, match=r"--thousands ,$"):
        ingest(path, tmp_path / "t.zarr", target="y")


@pytest.mark.parametrize("column", ["3 kg;500 g", "A12;B7", "2024-01-31;2024-02-01", "12:30;13:00", "1.2.3.4;10.0.0.1"])
def test_other_texts_are_no_numbers(tmp_path: Path, column: str) -> None:
    first, second = column.split(";")
    path = written(tmp_path, f"a,b,y\n{first},1,1\n{second},2,2\n{first},4,3\n")
    with pytest.raises(RefusedColumnsError) as caught:
        ingest(path, tmp_path / "t.zarr", target="y")
    assert caught.value.survey.options().keys() <= {"categorical", "date"}


def test_labels_keep_their_texts(tmp_path: Path) -> None:
    path = written(tmp_path, 'a,y\n"1,5",10 %\n"2,5",20 %\n"4,25",10 %\n')
    with pytest.raises(RefusedColumnsError, match=r"--decimal ,$"):
        ingest(path, tmp_path / "t.zarr", labels="y")
    train = ingest(path, tmp_path / "t.zarr", labels="y", table=TableOptions(decimal=",")).train
    assert train.classes == ("10 %", "20 %")
    with pytest.raises(UsageError, match="labels 'y' are among `numbers`; labels keep their texts"):
        ingest(path, tmp_path / "n.zarr", labels=-1, table=TableOptions(decimal=",", numbers=("y",)))


def test_marks_in_wrong_places_are_refused_where_pandas_takes_them(tmp_path: Path) -> None:
    path = written(tmp_path, 'a,y\n"1,234",1\n"1,5",2\n3,3\n')
    with pytest.raises(InputError, match="'a' holds the text '1,5' in line 3 .*a number with commas between thousands"):
        ingest(path, tmp_path / "t.zarr", target="y", table=TableOptions(thousands=","))


def test_gaps_among_written_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "a;y\n1,5;1\n?;2\n2,5;3\n;4\n")
    with pytest.raises(
        RefusedColumnsError, match="(?s)1 times '\\?' among numbers.*--decimal , --missing '\\?' --impute"
    ):
        ingest(path, tmp_path / "t.zarr", target="y")
    table = TableOptions(decimal=",", gap_texts=("?",), impute="median")
    train = ingest(path, tmp_path / "t.zarr", target="y", table=table).train
    np.testing.assert_array_equal(train.raw_inputs(0, 4)[:, 0], [1.5, 2.0, 2.5, 2.0])


def test_rules_are_kept_for_files_and_lines_of_new_data(tmp_path: Path) -> None:
    path = written(tmp_path, "a;b;y\n1.234,5;2 %;1\n2,25;3 %;2\n3;4 %;4\n")
    table = TableOptions(decimal=",", thousands=".", numbers=("b",))
    train = ingest(path, tmp_path / "t.zarr", target="y", table=table).train
    encoding = TrainingColumns.read(train.url).encoding
    assert encoding is not None
    assert Encoding.from_json(encoding).to_json() == encoding
    new = written(tmp_path, "b;a\n5 %;-9.000,25\n", "new.csv")
    like = ingest(new, tmp_path / "n.zarr", like=tmp_path / "t.zarr").train
    np.testing.assert_array_equal(like.raw_inputs(0, 1), [[-9000.25, 5]])
    kept = SimpleNamespace(kept=np.array([True, True]), covariate_names=(), covariates=(), raw_order=(0, 1))
    model: Any = SimpleNamespace(encoding=encoding, feature_names=("a", "b"), standardisation=kept)
    for lines in (["-9.000,25;5 %"], ["b;a", "5 %;-9.000,25"]):
        columns = LineColumns(model)
        assert columns.begin(lines[0]) is (len(lines) == 2)
        np.testing.assert_array_equal(columns.inputs(lines[-1], "line 1"), [-9000.25, 5])
    with pytest.raises(StoreError, match="encoding in the manifest is damaged"):
        Encoding.from_json({**encoding, "notation": [",", ","]})


def test_a_refusal_of_new_data_takes_the_notation_of_the_training_set(tmp_path: Path) -> None:
    path = written(tmp_path, "a;b;k;y\n1.234,5;1,5;u;1\n2,25;2,5;v;2\n3;3,5;u;4\n")
    table = TableOptions(decimal=",", thousands=".", categorical=("k",))
    ingest(path, tmp_path / "t.zarr", target="y", table=table)
    new = written(tmp_path, "a;b;k\n1,5;;u\n2,5;x;v\n", "new.csv")
    with pytest.raises(InputError, match="'b' holds the text 'x' in line 3 .*a number with a decimal comma") as caught:
        ingest(new, tmp_path / "n.zarr", like=tmp_path / "t.zarr")
    assert "reads like numbers" not in str(caught.value)
    assert "'k'" not in str(caught.value)
    assert "Add these options" not in str(caught.value)


def test_new_data_need_no_column_that_makes_no_feature(tmp_path: Path) -> None:
    path = written(tmp_path, "a,note,y\n1,u,$1\n2,v,$2\n4,w,$3\n")
    ingest(path, tmp_path / "t.zarr", target="y", table=TableOptions(numbers=("y",), drop=("note",)))
    new = written(tmp_path, "a\n7\n", "new.csv")
    assert ingest(new, tmp_path / "n.zarr", like=tmp_path / "t.zarr").train.raw_inputs(0, 1)[0, 0] == 7.0


def test_typed_text_of_other_sources_is_read_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", a=np.array(["1,5", "2,5", "4"]), y=np.array([1.0, 2.0, 3.0]))
    train = ingest(tmp_path / "t.npz", tmp_path / "t.zarr", target="y", table=TableOptions(decimal=",")).train
    np.testing.assert_array_equal(train.raw_inputs(0, 3)[:, 0], [1.5, 2.5, 4.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decimal": ";"}, "`decimal` is ';'; expected a point or a comma"),
        ({"thousands": "x"}, "`thousands` is 'x'; expected"),
        ({"decimal": ",", "thousands": ","}, "both ','"),
        ({"numbers": ("a",), "drop": ("a",)}, "named twice"),
    ],
)
def test_marks_that_are_none(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TableOptions(**options)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(NOTATIONS), st.booleans())
def test_every_number_comes_back(value: float, notation: Notation, scientific: bool) -> None:
    text = repr(value) if scientific else f"{value:,.3f}"
    if not scientific and not notation.thousands:
        text = text.replace(",", "")
    expected = float(text.replace(",", ""))
    text = text.translate({ord(","): notation.thousands, ord("."): notation.decimal})
    if len(text) <= 400:
        assert notation.number(text) == expected
        if not scientific:
            parts = around(f"{text} kg")
            assert parts is not None
            assert parts[0] == Unit("", "kg")
            assert notation.number(parts[1]) == expected


@pytest.mark.parametrize("text", ["1,2", "1,23,4", ",123", "12,34,567.8.9", "1_000", "", "e5", "0x10", "1 234", "١٢"])
def test_texts_that_are_no_number_with_commas(text: str) -> None:
    assert Notation(".", ",").number(text) is None
    assert PLAIN.number("12,34,567") is None
    assert Notation(".", ",").number("12,34,567") == 1234567.0, "as India groups digits"
