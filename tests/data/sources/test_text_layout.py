"""Text files as R, NumPy, spreadsheets and old editors write them: layouts, encodings, line ends, other archives."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.data import Dataset, TableOptions, ingest
from dkgp.data.sources import csv as csv_source
from dkgp.data.sources.csv import SPACES, find_delimiter, split_fields
from dkgp.errors import InputError, UsageError

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
    lines = ['"' * 50_001, "1," * 50_000, '"a ' * 30_000, "#" * 100_000]
    began = time.process_time()
    find_delimiter(lines)
    for line in lines:
        split_fields(line, SPACES, "")
    assert time.process_time() - began < 2.0


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
