from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.data import ingest, open_dataset
from dkgp.errors import DkgpError, InputError, MissingExtraError, OutputExistsError, StorageError, StoreError

Place = Callable[[str], str]

TEXTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "empty": ("", {}, "is empty"),
    "blank lines only": ("\n \n", {}, "is empty"),
    "header only": ("a,b,y\n", {}, "holds 0 samples; at least 2"),
    "one sample": ("a,b,y\n1,2,3\n", {}, "holds 1 sample; at least 2"),
    "short line": ("a,b,y\n1,2,3\n1,2\n1,2,3\n", {}, r"Line 3 .* has 2 fields; expected 3"),
    "long line": ("a,b,y\n1,2,3\n\n1,2,3,4\n", {}, r"Line 4 .* has 4 fields; expected 3"),
    "short line of blanks": ("1 2 3\n4 5\n", {"target": 2}, r"Line 2 .* has 2 fields; expected 3"),
    "quoted comma too many": ('a,b,y\n"1,5",2,3\n"1","2"\n', {"features": ["b"]}, r"Line 3 .* has 2 fields"),
    "open quote": ('a,b,y\n1,2,3\n"1,2,3\n', {}, r"Line 3 .* unbalanced quotes"),
    "header shorter than data": ("a,y\n1,2,3\n4,5,6\n", {}, r"Line 2 .* has 3 fields; expected 2"),
    "text in a feature": ("a,b,y\n1,2,3\n1,red,3\n", {}, r"'b' holds the text 'red' in line 3"),
    "text in the target": ("a,b,y\n1,2,?\n1,2,3\n", {}, r"'y' holds the text '\?' in line 2"),
    "text deep in a number": ("a,b,y\n1,2,3\n1,2,3\n1,2e,3\n", {}, r"'b' holds the text '2e' in line 4"),
    "decimal commas": ("a;b;y\n1,5;2,5;3\n1;2;4\n", {}, r"'a' holds the text '1,5'"),
    "missing value": (
        "a,b,y\n1,2,3\n1,,4\n1,NA,5\n",
        {},
        r"'b' holds a missing value or NaN in line 3 .*2 such values",
    ),
    "nan": ("a,b,y\n1,2,nan\n1,3,4\n", {}, r"'y' holds a missing value or NaN in line 2 .*1 such value in"),
    "infinity": ("a,b,y\n1,2,3\n-inf,2,4\n1,5,6\n", {}, r"'a' holds minus infinity in line 3"),
    "overflow": ("a,b,y\n1,2,3\n1e999,2,4\n1,5,6\n", {}, r"'a' holds (infinity|the text '1e999') in line 3"),
    "missing target": ("a,b,y\n1,2,3\n2,3,4\n", {"target": "z"}, r"no target 'z' in .*available: 'a', 'b', 'y'"),
    "target out of range": ("1,2,3\n2,3,4\n", {"target": 3}, "target index 3 is out of range: .*has 3 columns"),
    "target out of range below": ("1,2,3\n2,3,4\n", {"target": -4}, "target index -4 is out of range"),
    "unknown feature": ("a,b,y\n1,2,3\n2,3,4\n", {"features": ["a", "c"]}, "no feature 'c'"),
    "target among features": ("a,b,y\n1,2,3\n2,3,4\n", {"features": ["a", "y"]}, "target 'y' is among the features"),
    "target among features by index": ("a,b,y\n1,2,3\n2,3,4\n", {"features": [0, -1]}, "'y' is among the features"),
    "feature twice": ("a,b,y\n1,2,3\n2,3,4\n", {"features": ["a", 0]}, "'a' occurs 2 times"),
    "target twice": ("a,b,y\n1,2,3\n2,3,4\n", {"target": ["y", 2]}, "'y' occurs 2 times"),
    "duplicate names": ("a,a,y\n1,2,3\n2,3,4\n", {}, "'a' occurs 2 times"),
    "duplicate name asked for": ("a,y,y\n1,2,3\n2,3,4\n", {}, "'y' occurs 2 times"),
    "constant target": ("a,b,y\n1,2,3\n2,3,3\n", {}, "target 'y' is constant: all 2 samples are 3"),
    "constant features": ("a,b,y\n1,2,3\n1,2,4\n", {}, r"No feature \(2 in all\) varies"),
    "only a target": ("y\n1\n2\n", {}, "no column left for the features"),
    "bad chunk rows": ("a,b,y\n1,2,3\n2,3,4\n", {"chunk_rows": 0}, "chunk_rows must be at least 1"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_text_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    text, options, message = TEXTS[case]
    (tmp_path / "data.csv").write_bytes(text.encode(options.get("encoding", "utf-8")))
    arguments = {"target": "y", **{name: value for name, value in options.items() if name != "encoding"}}
    with pytest.raises(InputError, match=message) as caught:
        ingest(tmp_path / "data.csv", tmp_path / "d.zarr", **arguments)
    assert caught.value.exit_code == 3
    assert os.listdir(tmp_path) == ["data.csv"]


def test_nothing_there_and_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for sources, message in [
        (tmp_path / "no.csv", "no file or folder"),
        (tmp_path / "*.csv", "No file matches"),
        (tmp_path / "empty", "holds no files"),
        ([], "No source"),
        ("memory://no/where.csv", "no file or folder"),
    ]:
        with pytest.raises(InputError, match=message):
            ingest(sources, tmp_path / "d.zarr", target="y")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["empty"]


def test_a_late_line_is_named_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines, quotes and block borders must not shift the number."""
    monkeypatch.setattr("dkgp.data.sources.csv._READ_BYTES", 64)
    lines = ["a,b,y", *[f"{index},{index * index},{-index}" for index in range(100)]]
    lines[20] = '"19","361",-19'
    lines.insert(40, "")
    lines.insert(41, "   ")
    for number, bad, message in [(70, "1,2", "Line 70 .* has 2 fields"), (91, "1,x,2", "text 'x' in line 91")]:
        broken = [*lines]
        broken[number - 1] = bad
        (tmp_path / "data.csv").write_text("\n".join(broken))
        with pytest.raises(InputError, match=message):
            ingest(tmp_path / "data.csv", tmp_path / "d.zarr", target="y")
    (tmp_path / "data.csv").write_text("\n".join(lines))
    assert ingest(tmp_path / "data.csv", tmp_path / "d.zarr", target="y").n_samples == 100


@given(
    st.lists(
        st.lists(st.sampled_from(["1", "2.5", "-3e4", '"4"', ""]), min_size=1, max_size=4), min_size=2, max_size=12
    ),
    st.sampled_from([8, 30, 10**6]),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_either_ragged_or_every_number_arrives(rows: list[list[str]], read_bytes: int, last_line_ends: bool) -> None:
    """Against Python's own csv module, whatever the block borders."""
    rows = [row for row in rows if "".join(row)] or [["1"], ["2"]]
    text = "\n".join(",".join(row) for row in rows) + ("\n" if last_line_ends else "")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/audit.csv", text.encode())
    ragged = len({len(row) for row in rows}) > 1
    missing = any(not field for row in rows for field in row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkgp.data.sources.csv._READ_BYTES", read_bytes)
        if ragged or missing:
            with pytest.raises(InputError, match="fields; expected" if ragged else "missing value"):
                ingest("memory://audit.csv", "memory://audit.zarr", target=None, header=False, overwrite=True)
            return
        dataset = ingest("memory://audit.csv", "memory://audit.zarr", target=None, header=False, overwrite=True).train
    expected = [[float(field.strip('"')) for field in row] for row in rows]
    np.testing.assert_array_equal(dataset.raw_inputs(0, len(rows)), expected)


# --- damaged and unsuitable files -------------------------------------------------------------------------------------


def _arrays() -> dict[str, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(50, 2))
    return {"X": X, "y": X[:, 0]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short.csv.gz", gzip.compress(b"a,y\n" + b"1,2\n3,4\n" * 1000, mtime=0)[:-10], "truncated or damaged"),
        ("bad.csv.gz", b"\x1f\x8bnonsense", "truncated or damaged"),
        ("bad.npy", b"nonsense", "does not begin as its name's format does"),
        ("bad.npz", b"PK\x03\x04nonsense", "not a whole NPZ"),
        ("bad.parquet", b"PAR1nonsense", "not a whole Parquet"),
        ("bad.nc", b"\x89HDF\r\n\x1a\nnonsense", "cannot be opened"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        ingest(tmp_path / name, tmp_path / "d.zarr", target="y")
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["data.npy", "by-columns.npy", "data.npz"])
def test_truncated_arrays(tmp_path: Path, name: str) -> None:
    if name.endswith(".npy"):
        X = _arrays()["X"]
        np.save(tmp_path / name, X if name == "data.npy" else np.asfortranarray(X))
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-30])
    else:
        np.savez(tmp_path / name, **_arrays())
        content = bytearray((tmp_path / name).read_bytes())
        content[400] ^= 1  # within the numbers of X, whose checksum then fails
        (tmp_path / name).write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"truncated|damaged"):
        ingest(tmp_path / name, tmp_path / "d.zarr", target=-1)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.array([["1", "red"]] * 50)}, r"'x0' holds the text '1' in row 1"),
        ({"y": np.array(["good"] * 50)}, "'y' holds the text 'good' in row 1 "),
        ({"y": np.arange(50) + 1j}, r"'y' holds complex numbers \(complex128, from row 1"),
        ({"y": np.arange(49)}, "target 'y' .* has 49 rows, where there are 50 samples"),
        ({"y": np.array([None] * 50)}, "target 'y' .* holds Python objects, which are not read"),
        ({"y": np.zeros((50, 2, 2))}, r"target 'y' .* has shape \(50, 2, 2\)"),
        ({"feature_names": np.array(["a", "a"])}, "'a' occurs 2 times"),
        ({"feature_names": np.array(["a", "y"])}, "target 'y' is among the features"),
    ],
)
def test_unsuitable_npz(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "data.npz", **{**_arrays(), **changes})
    with pytest.raises(InputError, match=message):
        ingest(tmp_path / "data.npz", tmp_path / "d.zarr", target="y")
    assert os.listdir(tmp_path) == ["data.npz"]


def test_text_in_a_parquet_column(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": [1.0, 2.0], "colour": [None, "red"], "y": [1, 2]}).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(InputError, match="'colour' holds the text 'red' in row 2"):
        ingest(tmp_path / "data.parquet", tmp_path / "d.zarr", target="y")
    assert ingest(tmp_path / "data.parquet", tmp_path / "d.zarr", target="y", features=["a"]).n_samples == 2


def test_netcdf_without_samples(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    xr.Dataset({"field": (("a", "b", "c"), np.zeros((2, 3, 4)))}).to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="no variables along a common dimension"):
        ingest(tmp_path / "data.nc", tmp_path / "d.zarr", target="field")


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"dkgp\[parquet\]"):
        ingest(tmp_path / "data.parquet", tmp_path / "d.zarr", target="y")


# --- outputs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "data.csv").write_text("a,b,y\n1,2,3\n2,4,5\n8,2,9\n")
    return tmp_path / "data.csv"


def test_bad_input_spares_the_store_it_would_replace(source: Path, tmp_path: Path) -> None:
    ingest(source, tmp_path / "d.zarr", target="y")
    source.write_text("a,b,y\n1,2,3\n2,red,5\n")
    with pytest.raises(InputError, match="red"):
        ingest(source, tmp_path / "d.zarr", target="y", overwrite=True)
    assert open_dataset(tmp_path / "d.zarr").n_samples == 3


def test_output_that_exists(place: Place, source: Path) -> None:
    ingest(source, place("d.zarr"), target="y")
    with pytest.raises(OutputExistsError, match="`overwrite`"):
        ingest(source, place("d.zarr"), target="y")
    assert ingest(source, place("d.zarr"), target="b", overwrite=True).train.target_names == ("b",)


def test_source_is_never_the_output(source: Path, tmp_path: Path) -> None:
    ingest(source, tmp_path / "d.zarr", target="y")
    with pytest.raises(InputError, match="is also a source"):
        ingest(tmp_path / "d.zarr", tmp_path / "d.zarr", target="y", overwrite=True)
    assert open_dataset(tmp_path / "d.zarr").n_samples == 3


def test_a_model_is_no_source(source: Path, tmp_path: Path) -> None:
    dataset = ingest(source, tmp_path / "d.zarr", target="y").train
    manifest = Path(dataset.url) / "dkgp-manifest.json"
    content = json.loads(manifest.read_text())
    content["kind"] = "model"
    manifest.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="holds a dkgp model store; expected data"):
        ingest(tmp_path / "d.zarr", tmp_path / "e.zarr", target="y")


def test_full_disk_while_writing_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zarr.storage

    put = zarr.storage.LocalStore.set

    async def full(self: zarr.storage.LocalStore, key: str, value: Any) -> None:
        if f"/{key}".count("/c/"):
            raise OSError(28, "No space left on device")
        await put(self, key, value)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", full)
    with pytest.raises(StorageError, match="disk is full"):
        ingest(source, tmp_path / "d.zarr", target="y", test_fraction=0.3, test_out=tmp_path / "t.zarr")
    assert os.listdir(tmp_path) == ["data.csv"]


@pytest.mark.long
def test_every_error_is_one_of_ours_and_says_what_to_do(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DkgpError, match="choose another path"):
        ingest(source, tmp_path / "file" / "d.zarr", target="y")
