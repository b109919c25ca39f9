"""Stores on S3 that are overwritten or removed while they are read: told, never some of each; what looking costs."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dkgp.data import Dataset, dataset_from_arrays, open_dataset
from dkgp.data.remote.storage import join, read_object, remove_object, remove_tree, write_object
from dkgp.data.stores.arrays import StoredArray
from dkgp.data.stores.manifest import MANIFEST_NAME
from dkgp.errors import StoreError
from tests.s3 import S3Server, use_s3

ROWS, CHUNK = 240, 40
TOLD = "was overwritten or removed while it was read"


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of each test's own, on the server and in fsspec's memory file system."""
    use_s3(monkeypatch, server)
    name = f"{abs(hash(request.node.name))}/data.zarr"
    return server.url(name) if request.param == "s3" else f"memory://{name}"


def write(place: str, seed: int) -> np.ndarray:
    """One of two data sets that differ in every number, in nothing that describes them; its inputs."""
    rng = np.random.default_rng(seed)
    X, y = rng.random((ROWS, 3)), rng.random(ROWS)
    dataset_from_arrays(place, X, y, chunk_rows=CHUNK, overwrite=True)
    return X


def by_pieces(dataset: Dataset, rows: int) -> np.ndarray:
    return np.concatenate([dataset.inputs(at, at + rows, standardised=False) for at in range(0, ROWS, rows)])


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("number", [1, 4, ROWS // CHUNK])
def test_one_that_is_replaced_between_two_chunks_is_told(
    place: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = write(place, 0)
    dataset, read, reads = open_dataset(place), StoredArray._get, []

    def swapping(self: StoredArray, selection: Any) -> Any:
        reads.append(selection)
        if len(reads) == number:
            write(place, 1)
        return read(self, selection)

    monkeypatch.setattr(StoredArray, "_get", swapping)
    with pytest.raises(StoreError, match=f"'{place}' {TOLD}"):
        by_pieces(dataset, CHUNK)
    assert len(reads) == number
    # What is opened now is the other one.
    assert (by_pieces(open_dataset(place), CHUNK) != X).all()


def test_one_that_is_removed_is_told_of_as_that(place: str) -> None:
    write(place, 0)
    dataset = open_dataset(place)
    remove_tree(place)
    with pytest.raises(StoreError, match=TOLD):
        dataset.inputs(0, ROWS)


def test_a_damaged_one_is_told_of_as_that(place: str) -> None:
    write(place, 0)
    dataset = open_dataset(place)
    remove_object(join(place, "X/c/3/0"))
    with pytest.raises(StoreError, match=r"Chunk X/c/3/0 .* is missing"):
        dataset.inputs(0, ROWS)


def test_a_copy_is_the_same_store(place: str) -> None:
    X = write(place, 0)
    dataset, manifest = open_dataset(place), join(place, MANIFEST_NAME)
    content = read_object(manifest)
    remove_object(manifest)
    with pytest.raises(StoreError, match=TOLD):
        by_pieces(dataset, CHUNK)
    write_object(manifest, content)
    np.testing.assert_array_equal(by_pieces(dataset, CHUNK), X)


def counted(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> collections.Counter[str]:
    """Requests to the server, by kind."""
    s3fs = pytest.importorskip("s3fs")
    ask, requests = s3fs.S3FileSystem._call_s3, collections.Counter[str]()

    async def counting(self: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        requests[method] += 1
        return await ask(self, method, *arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(s3fs.S3FileSystem, "_call_s3", counting)
        work()
    return requests


def test_a_look_is_one_request_whatever_is_read_at_once(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use_s3(monkeypatch, server)
    place = server.url("counted/data.zarr")
    write(place, 0)
    opening = counted(monkeypatch, lambda: open_dataset(place))
    print(f"\nopen: {dict(opening)}")
    dataset = open_dataset(place)
    dataset.inputs(0, CHUNK)
    for rows in (CHUNK, 3 * CHUNK, ROWS):
        requests = counted(monkeypatch, lambda rows=rows: by_pieces(dataset, rows))
        print(f"{ROWS // CHUNK} chunks, {rows // CHUNK} at once: {dict(requests)}")
        assert requests == {"get_object": ROWS // CHUNK, "head_object": ROWS // rows}
    assert opening["head_object"] == 1
