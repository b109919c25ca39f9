""""""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zarr.storage
from hypothesis import given
from hypothesis import strategies as st

from dkgp.data import Dataset, dataset_from_arrays, open_dataset
from dkgp.data.remote.storage import remove_tree
from dkgp.data.stores import arrays
from dkgp.data.stores.arrays import (
    StoredArray,
    create_array,
    create_group,
    default_chunk_rows,
    even_chunk_rows,
    row_ranges,
    target_layout,
)
from dkgp.data.types import block_rows
from dkgp.errors import InputError, StorageError, StoreError
from dkgp.forks import FeatureCache

StoredType = Literal["float64", "float32", "int64"]


def _array(folder: Path, dtype: StoredType) -> StoredArray:
    """20 rows of 3 in chunks of 6."""
    create_group(str(folder), "dataset", {})
    return create_array(str(folder), "values", (20, 3), 6, ("sample", "feature"), dtype=dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_values_come_back_in_the_type_asked_for(tmp_path: Path, dtype: StoredType, rng: np.random.Generator) -> None:
    array = _array(tmp_path / "a.zarr", dtype)
    values = (1e6 * rng.uniform(size=(20, 3))).astype(dtype)
    array.write(0, values)
    stored = array.read_as_stored(4, 15)
    assert stored.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(stored, values[4:15])
    for read, expected in ((array.read(4, 15), values[4:15]), (array.rows(np.array([19, 0])), values[[19, 0]])):
        assert read.dtype == np.float64
        np.testing.assert_array_equal(read, expected)
    described = json.loads((tmp_path / "a.zarr" / "values" / "zarr.json").read_text())
    assert described["data_type"] == dtype
    assert described["fill_value"] == (-1 if dtype == "int64" else "NaN")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("value", [0, 1, "largest"])
def test_a_chunk_that_was_never_written_is_no_value(tmp_path: Path, dtype: StoredType, value: Any) -> None:
    array = _array(tmp_path / "a.zarr", dtype)
    # The sum of the largest values overflows, which must neither be taken for a missing chunk nor hide one.
    limits = np.iinfo(np.int64) if dtype == "int64" else np.finfo(dtype)
    values = np.full((20, 3), limits.max if value == "largest" else value, dtype=dtype)
    array.write(0, values[:6])
    array.write(12, values[12:])
    np.testing.assert_array_equal(array.read_as_stored(12, 20), values[12:])
    for attempt in (
        lambda: array.read_as_stored(0, 20),
        lambda: array.read(10, 13),
        lambda: array.rows(np.array([1, 7])),
    ):
        with pytest.raises(StoreError, match=r"Chunk values/c/1/0 \(rows 6 to 11\).*is missing"):
            attempt()


@pytest.mark.long
@pytest.mark.parametrize("refused", ["values/zarr.json", "values/c/0/0", "values/c/2/0"])
def test_nothing_arrives_after_a_refusal(tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects removed after a failed write stay removed: no write is under way then."""
    late: list[str] = []

    def slowed(put: Any) -> Any:
        async def slow(self: zarr.storage.LocalStore, key: str, value: Any) -> None:
            if f"{self.root}/{key}".endswith(refused):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            await asyncio.sleep(0.05)
            late.append(key)
            await put(self, key, value)

        return slow

    for name in ("set", "set_if_not_exists"):
        monkeypatch.setattr(zarr.storage.LocalStore, name, slowed(getattr(zarr.storage.LocalStore, name)))

    def attempt() -> None:
        _array(tmp_path / "a.zarr", "float64").write(0, np.ones((20, 3)))

    with pytest.raises(StorageError, match="disk is full"):
        attempt()
    before = list(late)
    remove_tree(tmp_path / "a.zarr")
    time.sleep(0.2)
    assert late == before
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize(("start", "stop"), [(0, 20), (3, 4), (3, 17), (6, 12), (11, 13), (5, 5)])
def test_any_rows_may_be_written(tmp_path: Path, start: int, stop: int, rng: np.random.Generator) -> None:
    array = _array(tmp_path / "a.zarr", "float64")
    expected = rng.normal(size=(20, 3))
    array.write(0, expected)
    block = rng.normal(size=(stop - start, 3))
    array.write(start, block)
    expected[start:stop] = block
    np.testing.assert_array_equal(array.read(0, 20), expected)


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (6, 18), (18, 20), (0, 20)])
def test_whole_chunks(start: int, stop: int) -> None:
    StoredArray("memory://whole.zarr", "values", (20,), 6).require_whole_chunks(start, stop)


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 6), (6, 6), (12, 20 + 1), (-6, 0), (18, 24)])
def test_parts_of_chunks(start: int, stop: int) -> None:
    with pytest.raises(InputError, match="not made of whole chunks of 6 rows of the 20"):
        StoredArray("memory://whole.zarr", "values", (20,), 6).require_whole_chunks(start, stop)


@given(st.integers(1, 10**8), st.integers(1, 10**6))
def test_even_chunks(n_rows: int, most: int) -> None:
    rows = even_chunk_rows(n_rows, most)
    n_chunks = -(-n_rows // rows)
    assert 1 <= rows <= most
    # As few as there can be, and the last one shorter by no more than the rounding makes it.
    assert n_chunks <= -(-n_rows // most)
    assert 0 <= n_chunks * rows - n_rows < -(-n_rows // most)


def test_chunks_are_of_about_8192_rows_and_of_one_to_eight_mebibytes() -> None:
    # Of few columns as many rows as a mebibyte has, 16,384 at most.
    rows = {columns: default_chunk_rows(None, columns) for columns in (0, 1, 8, 10, 16, 100, 128, 1000, 10**7)}
    assert rows == {0: 16384, 1: 16384, 8: 16384, 10: 13107, 16: 8192, 100: 8192, 128: 8192, 1000: 1048, 10**7: 1}
    assert default_chunk_rows(20_000, 16) == 6667
    assert row_ranges(7, 3) == [(0, 3), (3, 6), (6, 7)]


def test_one_target_is_a_vector_and_two_are_columns() -> None:
    assert target_layout(5, 1) == ((5,), ("sample",))
    assert target_layout(5, 2) == ((5, 2), ("sample", "target"))


def test_no_rows_are_an_array_without_rows_and_rows_that_are_not_there_are_named(tmp_path: Path) -> None:
    array = _array(tmp_path / "a.zarr", "float64")
    array.write(0, np.ones((20, 3)))
    assert array.rows(np.array([], dtype=int)).shape == (0, 3)
    assert array.read(20, 20).shape == (0, 3)
    np.testing.assert_array_equal(array.rows(np.array([19, 0, 19])), np.ones((3, 3)))
    for indices, named in (([0, 20], "Row 20"), ([3, -1], "Row -1")):
        with pytest.raises(InputError, match=f"The array 'values' has 20 rows; got the {named.lower()}"):
            array.rows(np.array(indices))
    for start, stop in ((-1, 3), (5, 4), (0, 21)):
        with pytest.raises(InputError, match=f"'values' has .* rows; got the rows {start} to {stop}"):
            array.read(start, stop)


def test_an_array_that_is_not_as_its_manifest_says_is_refused(tmp_path: Path) -> None:
    array = _array(tmp_path / "a.zarr", "float64")
    array.write(0, np.ones((20, 3)))
    for shape, chunk_rows in (((20, 2), 6), ((19, 3), 6), ((20, 3), 5)):
        other = StoredArray(array.url, "values", shape, chunk_rows)
        with pytest.raises(StoreError, match="its manifest says"):
            other.read(0, 5)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["codecs"].pop(),
        lambda document: document["codecs"].insert(1, {"name": "gzip", "configuration": {"level": 1}}),
        lambda document: document["chunk_grid"]["configuration"]["chunk_shape"].__setitem__(1, 2_000_000_000),
    ],
    ids=["no checksum", "gzip", "wide chunks"],
)
def test_codecs_and_chunks_that_are_not_written_are_not_read(tmp_path: Path, change: Callable[[Any], object]) -> None:
    create_group(str(tmp_path), "dataset", {})
    array = create_array(str(tmp_path), "X", (8, 2), 8, ("sample", "feature"))
    array.write(0, np.ones((8, 2)))
    description = tmp_path / "X" / "zarr.json"
    document = json.loads(description.read_text())
    change(document)
    description.write_text(json.dumps(document))
    with pytest.raises(StoreError, match="'X' of .* codecs that dkgp does not write. Write the store again"):
        StoredArray(str(tmp_path), "X", (8, 2), 8).read(0, 8)


def test_a_damaged_chunk_is_named_with_its_reason(tmp_path: Path) -> None:
    array = _array(tmp_path / "a.zarr", "float64")
    array.write(0, np.random.default_rng(0).normal(size=(20, 3)))
    chunk = tmp_path / "a.zarr" / "values" / "c" / "2" / "0"
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1
    chunk.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"Chunk values/c/2/0 \(rows 12 to 17\).*cannot be read: .*[Cc]hecksum"):
        array.read(0, 20)
    np.testing.assert_array_equal(array.read(0, 12).shape, (12, 3))


# Chunks that are read for a part of their rows: once, whatever blocks they are read in, and within a budget.


N = 2990


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> FeatureCache:
    chunks = FeatureCache(64 * 2**20)
    monkeypatch.setattr(arrays, "KEPT_CHUNKS", chunks)
    return chunks


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The chunks that are read, each as often as it is."""
    original, numbers = StoredArray._get, []

    def counted(self: StoredArray, selection: Any) -> Any:
        if isinstance(selection, slice):
            numbers.extend(range(selection.start // self.chunk_rows, -(-selection.stop // self.chunk_rows)))
        return original(self, selection)

    monkeypatch.setattr(StoredArray, "_get", counted)
    return numbers


def dataset(tmp_path: Path, chunk_rows: int | None, n: int = N) -> tuple[np.ndarray, Dataset]:
    X = np.random.default_rng(5).normal(size=(n, 2))
    return X, dataset_from_arrays(tmp_path / "d.zarr", X, X[:, 0], chunk_rows=chunk_rows)


@pytest.mark.parametrize("chunk_rows", [299, 500, 1024, 2990])
@pytest.mark.parametrize("rows", [64, 384, 1000])
def test_a_pass_reads_each_chunk_once(tmp_path: Path, chunk_rows: int, rows: int, reads: list[int]) -> None:
    X, data = dataset(tmp_path, chunk_rows)
    reads.clear()
    got = [data.inputs(start, min(start + rows, N), standardised=False) for start in range(0, N, rows)]
    np.testing.assert_array_equal(np.concatenate(got), X)
    assert sorted(reads) == list(range(-(-N // chunk_rows)))


def test_blocks_of_a_new_store_are_chunks(tmp_path: Path, reads: list[int], kept: FeatureCache) -> None:
    n = 20_000
    _, data = dataset(tmp_path, None, n)
    kept.budget_bytes = 0
    reads.clear()
    rows = block_rows(n)
    for start in range(0, n, rows):
        data.inputs(start, min(start + rows, n))
    assert reads == list(range(8))


def test_threads_read_a_chunk_once(tmp_path: Path, reads: list[int]) -> None:
    X, data = dataset(tmp_path, 1000)
    reads.clear()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: data.inputs(start, start + 115, standardised=False), range(0, N, 115)))
    np.testing.assert_array_equal(np.concatenate(parts), X)
    assert sorted(reads) == [0, 1, 2]


def test_rows_that_are_changed_by_their_reader_stay_as_they_are(tmp_path: Path) -> None:
    X, data = dataset(tmp_path, 1000)
    data.inputs(10, 20, standardised=False)[:] = 7.0
    np.testing.assert_array_equal(data.inputs(10, 30, standardised=False), X[10:30])


def test_a_store_that_was_overwritten_is_not_read_from_memory(tmp_path: Path) -> None:
    X, data = dataset(tmp_path, 1000)
    data.inputs(10, 20)
    dataset_from_arrays(tmp_path / "d.zarr", -X, X[:, 0], chunk_rows=1000, overwrite=True)
    with pytest.raises(StoreError, match="was overwritten or removed while it was read"):
        data.inputs(10, 20)
    np.testing.assert_array_equal(open_dataset(tmp_path / "d.zarr").inputs(10, 20, standardised=False), -X[10:20])


def test_chunks_of_another_store_are_not_kept(tmp_path: Path) -> None:
    X, data = dataset(tmp_path, 1000)
    other = tmp_path / "other.zarr"
    dataset_from_arrays(other, -X, X[:, 0], chunk_rows=1000)
    shutil.move(tmp_path / "d.zarr", tmp_path / "aside.zarr")
    shutil.move(other, tmp_path / "d.zarr")
    with pytest.raises(StoreError, match="was overwritten or removed while it was read"):
        data.inputs(10, 20)
    # The store comes back: the rows read meanwhile are not its own.
    shutil.rmtree(tmp_path / "d.zarr")
    shutil.move(tmp_path / "aside.zarr", tmp_path / "d.zarr")
    np.testing.assert_array_equal(data.inputs(10, 20, standardised=False), X[10:20])
