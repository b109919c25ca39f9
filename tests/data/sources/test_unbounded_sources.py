"""Files of a few bytes that promise any width, length of names or size of values: refused before memory is taken."""

from __future__ import annotations

import io
import json
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import zarr
from pyarrow import parquet

import dkgp.data.sources.numpy as numpy_sources
import dkgp.data.sources.xarray as xarray_sources
from dkgp.data import ingest
from dkgp.data.sources.base import block_rows
from dkgp.data.sources.formats import formats, open_source
from dkgp.errors import InputError, StorageError

WIDE = 2_000_000_000


@contextmanager
def little_memory(most_megabytes: int) -> Iterator[None]:
    """Fail where the block takes more memory than this at a time."""
    formats()  # with the libraries that they need
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_megabytes * 2**20
    finally:
        tracemalloc.stop()


def npy(shape: tuple[int, ...], descr: Any = "<f8", *, fortran: bool = False, content: bytes = b"") -> bytes:
    """An NPY file with this header and content, whether or not they fit."""
    file = io.BytesIO()
    np.lib.format.write_array_header_2_0(file, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return file.getvalue() + content


def array_bytes(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def npz(place: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return place


def file(place: Path, content: bytes) -> Path:
    place.write_bytes(content)
    return place


def zarr_2(place: Path, named: bool = False, n: int = 5, **changes: Any) -> Path:
    """A group with a matrix `X`, changed as told, and a vector `y`, in chunks of five rows at most and not written."""
    zarr.create_group(place, zarr_format=2)
    for name, shape in (("X", [n, 2]), ("y", [n])):
        array = {"zarr_format": 2, "shape": shape, "chunks": [1 if n > 5 else 5, *shape[1:]], "dtype": "<f8"}
        array |= {"order": "C", "fill_value": 0.0, "compressor": None, "filters": None}
        (place / name).mkdir()
        (place / name / ".zarray").write_text(json.dumps({**array, **(changes if name == "X" else {})}))
        if named:
            attributes = {"_ARRAY_DIMENSIONS": ["sample", "feature"][: len(shape)]}
            (place / name / ".zattrs").write_text(json.dumps(attributes))
    return place


def hdf5(place: Path, **options: Any) -> Path:
    with h5py.File(place, "w") as opened:
        opened["y"] = np.arange(5.0)
        opened.create_dataset("X", **options)
    return place


def long_header() -> bytes:
    """A header that says that it has 1 GB, of blanks."""
    start = npy((5, 2))
    return start[:8] + (10**9).to_bytes(4, "little") + start[12:] + b" " * 10**7


def feature_names(n_names: int, descr: str) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        width = n_names * np.dtype(descr).itemsize
        return npz(
            place / "a.npz",
            X=array_bytes(np.zeros((5, 2))),
            y=array_bytes(np.zeros(5)),
            feature_names=npy((n_names,), descr, content=bytes(min(width, 10**7))),
        )

    return write


COLUMNS = "has 2,000,000,000 columns|has 2,000,000,001 columns"
UNBOUNDED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "npy": (lambda place: file(place / "a.npy", npy((1, WIDE))), COLUMNS),
    "csv": (lambda place: file(place / "a.csv", b"," * 600_000 + b"\n1\n"), "A line of .* has 600,001 columns"),
    "npy in Fortran order": (lambda place: file(place / "a.npy", npy((1, WIDE), fortran=True)), COLUMNS),
    "npy of long texts": (
        lambda place: file(place / "a.npy", npy((5, 2), "<U500000000")),
        "rows of 4,000,000,000 bytes",
    ),
    "npy of arrays": (
        lambda place: file(place / "a.npy", npy((5, 2), ("<f8", (10**8,)))),
        "expected an array of plain",
    ),
    "npy of nothing": (
        lambda place: file(place / "a.npy", npy((WIDE, 2), "|S0")),
        "expected an array of plain numbers",
    ),
    "npy of a negative": (lambda place: file(place / "a.npy", npy((-1, 2))), "its shape is"),
    "npy with a long header": (
        lambda place: file(place / "a.npy", long_header()),
        "its header has 1,000,000,000 bytes",
    ),
    "npz": (lambda place: npz(place / "a.npz", X=npy((5, WIDE)), y=array_bytes(np.zeros(5))), COLUMNS),
    "npz beside X": (
        lambda place: npz(
            place / "a.npz", X=array_bytes(np.zeros((5, 1))), Z=npy((5, WIDE)), y=array_bytes(np.zeros(5))
        ),
        "has 2,000,000,002 columns",
    ),
    "npz with a long header": (
        lambda place: npz(place / "a.npz", X=long_header()),
        "its header has 1,000,000,000 bytes",
    ),
    "npz of long texts": (
        lambda place: npz(place / "a.npz", X=npy((5, 2), "<U500000000"), y=array_bytes(np.zeros(5))),
        "rows of 4,000,000,008 bytes",
    ),
    "many names": (feature_names(WIDE, "<U1"), "'feature_names' of .* has 2,000,000,000 columns"),
    "names of nothing": (feature_names(WIDE, "<U0"), "'feature_names' of .* has 2,000,000,000 columns"),
    "long names": (feature_names(100, "<U500000"), "takes 200,000,000 bytes; names of at most"),
    "zarr": (lambda place: zarr_2(place / "a.zarr", shape=[5, WIDE], chunks=[5, 100]), COLUMNS),
    "zarr with names": (lambda place: zarr_2(place / "a.zarr", True, shape=[5, WIDE], chunks=[5, 100]), COLUMNS),
    "zarr of many chunks": (
        lambda place: zarr_2(place / "a.zarr", n=20_000_000),
        "has 20,000,000 chunks; at most 10,000,000 are read",
    ),
    "hdf5": (lambda place: hdf5(place / "a.h5", shape=(5, WIDE), dtype="f8", chunks=(5, 100)), COLUMNS),
    "hdf5 without chunks": (lambda place: hdf5(place / "a.h5", shape=(5, WIDE), dtype="f8"), COLUMNS),
    "hdf5 of long texts": (
        lambda place: hdf5(place / "a.h5", shape=(5, 2), dtype="S500000000"),
        "rows of 1,000,000,008",
    ),
}


@pytest.mark.parametrize("case", UNBOUNDED)
def test_sources_that_promise_too_much_take_no_memory(tmp_path: Path, case: str) -> None:
    write, message = UNBOUNDED[case]
    place = write(tmp_path)
    with little_memory(40), pytest.raises(InputError, match=message):
        ingest(place, tmp_path / "d.zarr", target=0 if place.suffix in (".npy", ".csv") else "y")
    assert not (tmp_path / "d.zarr").exists()


def test_a_coordinate_of_any_length_takes_no_memory(tmp_path: Path) -> None:
    """A coordinate of a dimension that no column runs along is not read."""
    with h5py.File(tmp_path / "a.h5", "w") as opened:
        opened["y"] = np.arange(5.0)
        opened["x"] = np.arange(5.0)
        opened.create_dataset("time", (10**9,), "f8", chunks=(1000,))
        opened["time"].make_scale("time")
    with little_memory(40):
        source = open_source([str(tmp_path / "a.h5")], {})
    assert [column.name for column in source.columns] == ["x", "y"]


def test_long_chunks_are_read_in_parts(tmp_path: Path) -> None:
    # Up to 512 MB a block is as long as a chunk, beyond it a part of one.
    assert block_rows(1, 2**26) == 2**26
    assert block_rows(1, 2**27) == 2**26
    assert block_rows(3, 10**8) * 3 * 8 <= 512 * 2**20 < block_rows(3, 10**8) * 3 * 8 * 2
    assert block_rows(1, row_bytes=2**20) == 8
    assert block_rows(10**9, row_bytes=1) == 1


@pytest.mark.parametrize("form", ["plain", "named", "hdf5", "grid"])
def test_few_of_many_chunks_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    X, y = np.random.default_rng(0).normal(size=(53, 7)), np.arange(53.0)
    if form == "hdf5":
        with h5py.File(tmp_path / "a.h5", "w") as opened:
            opened.create_dataset("X", data=X, chunks=(3, 2))
            opened.create_dataset("y", data=y, chunks=(1,), maxshape=(None,))
    else:
        group = zarr.open_group(tmp_path / "a.zarr", mode="w")
        names = None if form == "plain" else ["sample", "feature"]
        group.create_array("X", data=X, chunks=(3, 2), dimension_names=names)
        group.create_array("y", data=y, chunks=(1,), dimension_names=names and names[:1])
    place = next(tmp_path.iterdir())
    plain, reads = xarray_sources._by_chunks, []

    def watched(read: Any, spans: tuple[slice, ...], chunks: Any, dtype: Any) -> np.ndarray:
        def counted(part: tuple[slice, ...]) -> np.ndarray:
            touched = [len({i // size for i in range(a.start, a.stop)}) for a, size in zip(part, chunks, strict=True)]
            reads.append(np.prod(touched))
            return read(part)

        return plain(counted, spans, chunks, dtype) if read.__name__ != "counted" else plain(read, spans, chunks, dtype)

    monkeypatch.setattr(xarray_sources, "_MOST_CHUNKS_AT_ONCE", 5)
    monkeypatch.setattr(xarray_sources, "_by_chunks", watched)
    source = open_source([str(place)], {"stack": True} if form == "grid" else {})
    if form == "grid":
        (block,) = source.blocks([source.by_name["X"][0], source.by_name["y"][0]])
        np.testing.assert_array_equal(block.values, np.stack([X.ravel(), np.repeat(y, 7)], axis=1))
    else:
        (block,) = source.blocks([*source.groups["X"], *source.groups["y"]])
        np.testing.assert_array_equal(block.values, np.column_stack([X, y]))
    assert 1 < max(reads) <= 5
    assert len(reads) >= (18 * 4 + 53) / 5


@pytest.mark.parametrize("n", [7, 1000])
def test_arrays_in_fortran_order_are_copied_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(numpy_sources, "_MOST_LOADED_BYTES", 100)
    monkeypatch.setattr(numpy_sources, "BLOCK_BYTES", 800)
    X = np.random.default_rng(0).normal(size=(n, 3))
    np.savez_compressed(tmp_path / "a.npz", X=np.asfortranarray(X), y=X[:, 0])
    dataset = ingest(tmp_path / "a.npz", tmp_path / "d.zarr", target="y").train
    np.testing.assert_array_equal(dataset.raw_inputs(0, n), X)


def test_a_full_disk_for_an_array_in_fortran_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_sources, "_MOST_LOADED_BYTES", 100)

    def full(**options: Any) -> Any:
        if options:
            return temporary_file(**options)
        raise OSError(28, "No space left on device")

    temporary_file = tempfile.TemporaryFile
    np.savez_compressed(tmp_path / "a.npz", X=np.asfortranarray(np.ones((50, 3))), y=np.ones(50))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(StorageError, match="Cannot unpack an array in Fortran order to .*: the disk is full"):
        ingest(tmp_path / "a.npz", tmp_path / "d.zarr", target="y")


def test_a_member_that_inflates_is_not_unpacked_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros in Fortran order, a thousandth of their size in the archive."""
    monkeypatch.setattr(numpy_sources, "_MOST_LOADED_BYTES", 10**6)
    npz(tmp_path / "a.npz", X=npy((50_000, 100), fortran=True, content=bytes(40 * 10**6)), y=array_bytes(np.ones(5)))
    assert (tmp_path / "a.npz").stat().st_size < 100_000
    source = open_source([str(tmp_path / "a.npz")], {})
    with little_memory(35):
        next(source.blocks(source.columns[:1]))


@pytest.mark.parametrize("named", [False, True])
def test_wide_sources_within_the_bounds_are_read(tmp_path: Path, named: bool) -> None:
    place = zarr_2(tmp_path / "a.zarr", named, shape=[5, 3000], chunks=[5, 1000])
    assert len(open_source([str(place)], {}).columns) == 3001


@pytest.mark.parametrize("stored", [True, False], ids=["categories", "texts"])
def test_a_text_that_many_rows_share_is_held_once(tmp_path: Path, stored: bool) -> None:
    """Twelve gigabytes of labels, in a file of half a megabyte."""
    texts = ["a" * 500_000, "b", None]
    codes = np.arange(60_000) % 3
    labels = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=codes == 2), pa.array(texts[:2]))
    table = pa.table({"x": np.arange(60_000.0), "label": labels})
    parquet.write_table(table, tmp_path / "a.parquet", store_schema=stored, row_group_size=25_000)
    assert (tmp_path / "a.parquet").stat().st_size < 2_000_000
    source = open_source([str(tmp_path / "a.parquet")], {})
    values, arrow_bytes = [], []

    def encode(entries: np.ndarray, place: object) -> np.ndarray:
        arrow_bytes.append(pa.total_allocated_bytes())
        values.extend(entries.tolist())
        return np.zeros(len(entries))

    x, label = source.columns
    for block in source.blocks([replace(label, encode=encode), x]):
        assert block.values[:, 0].tolist() == [0.0] * len(block.values)
    assert values == [texts[code] for code in codes]
    assert max(arrow_bytes) < 50 * 2**20
    with pytest.raises(InputError, match="'label' holds the text 'aaaa.*' in row 1"):
        list(source.blocks([label]))
