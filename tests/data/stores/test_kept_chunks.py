"""Chunks that are read for a part of their rows: once, whatever blocks they are read in, and within a budget."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import Dataset, dataset_from_arrays, open_dataset
from dkgp.data.stores import arrays
from dkgp.data.stores.arrays import KeptChunks, StoredArray
from dkgp.data.types import block_rows
from dkgp.errors import StoreError

N = 2990


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptChunks:
    chunks = KeptChunks(64 * 2**20)
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


def test_blocks_of_a_new_store_are_chunks(tmp_path: Path, reads: list[int], kept: KeptChunks) -> None:
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
    # The store comes back: the rows that were read meanwhile are not its own.
    shutil.rmtree(tmp_path / "d.zarr")
    shutil.move(tmp_path / "aside.zarr", tmp_path / "d.zarr")
    np.testing.assert_array_equal(data.inputs(10, 20, standardised=False), X[10:20])


def test_the_budget_is_kept_to_and_the_latest_stay() -> None:
    chunks, made = KeptChunks(80), []

    def get(key: int, size: int = 4) -> None:
        chunks.get((key,), lambda: made.append(key) or np.zeros(size))

    for key in (1, 2, 1, 3, 1):
        get(key)
    assert made == [1, 2, 3]
    get(2)
    assert made == [1, 2, 3, 2]
    # One larger than the budget is read and not kept, and drives out no other.
    get(9, 100)
    get(9, 100)
    get(2)
    assert made == [1, 2, 3, 2, 9, 9]


def test_a_failed_read_is_tried_by_the_next_reader() -> None:
    chunks, begun = KeptChunks(80), threading.Event()

    def fail() -> Any:
        begun.set()
        raise StoreError("damaged")

    with pytest.raises(StoreError, match="damaged"):
        chunks.get((1,), fail)
    assert begun.is_set()
    np.testing.assert_array_equal(chunks.get((1,), lambda: np.ones(2)), np.ones(2))
