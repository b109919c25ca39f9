from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from dkgp.data.stores.tile_store import TILE_HEADER_BYTES, TileStore
from dkgp.errors import OutputExistsError, StorageError, StoreError

FLOAT32 = np.dtype(np.float32)


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    store = TileStore(str(tmp_path / "tiles") if request.param == "local" else f"memory://{tmp_path.name}/tiles")
    store.create({"of": "a test"})
    return store


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_was_written_is_read(store: TileStore, rng: np.random.Generator, dtype: type) -> None:
    tile = rng.standard_normal((5, 3)).astype(dtype)
    store.write("00001-00000", tile)
    store.write("00001-00001", tile[:, ::-1].T)  # not contiguous
    copy = pickle.loads(pickle.dumps(store))
    assert copy.names() == {"00001-00000", "00001-00001"}
    assert copy.description() == {"of": "a test"}
    found = copy.read("00001-00000", (5, 3), np.dtype(dtype))
    assert found.tobytes() == tile.tobytes()
    assert found.dtype == dtype
    np.testing.assert_array_equal(copy.read("00001-00001", (3, 5), np.dtype(dtype)), tile[:, ::-1].T)
    found[0, 0] = 0.0  # a copy, to work in


def test_a_missing_tile(store: TileStore) -> None:
    with pytest.raises(StoreError, match=r"00000-00000\.tile' is missing.*folder that all of them share"):
        store.read("00000-00000", (2, 2), FLOAT32)


@pytest.mark.parametrize("position", [0, 9, TILE_HEADER_BYTES, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, position: int) -> None:
    store = TileStore(tmp_path / "tiles")
    store.create({})
    store.write("00000-00000", np.ones((4, 4), np.float32))
    file = tmp_path / "tiles" / "00000-00000.tile"
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="damaged: its checksum does not match. Run again with the same folder"):
        store.read("00000-00000", (4, 4), FLOAT32)


@pytest.mark.parametrize("change", [-1, 1, -80])
def test_a_wrong_size_is_found(tmp_path: Path, change: int) -> None:
    store = TileStore(tmp_path / "tiles")
    store.create({})
    store.write("00000-00000", np.ones((4, 4), np.float32))
    file = tmp_path / "tiles" / "00000-00000.tile"
    content = file.read_bytes()
    file.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(StoreError, match=f"has {max(0, 76 + change)} bytes; expected 76"):
        store.read("00000-00000", (4, 4), FLOAT32)


def test_a_tile_does_not_pass_for_another(store: TileStore) -> None:
    store.write("00001-00000", np.ones((4, 4), np.float32))
    for shape, dtype in (((2, 8), FLOAT32), ((2, 4), np.dtype(np.float64))):
        with pytest.raises(StoreError, match="checksum"):
            store.read("00001-00000", shape, dtype)


def test_a_renamed_tile_is_found(tmp_path: Path) -> None:
    store = TileStore(tmp_path / "tiles")
    store.create({})
    store.write("00001-00000", np.ones((4, 4), np.float32))
    (tmp_path / "tiles" / "00001-00000.tile").rename(tmp_path / "tiles" / "00002-00000.tile")
    with pytest.raises(StoreError, match="checksum"):
        store.read("00002-00000", (4, 4), FLOAT32)


def test_only_tiles_are_replaced_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "tiles"
    store = TileStore(folder)
    assert store.description() is None
    assert store.names() == set()
    store.create({"of": "one"})
    store.write("00000-00000", np.ones((1, 1)))
    (folder / ".dkgp-temporary-killed").write_bytes(b"half a tile")
    store.create({"of": "another"})
    assert store.names() == set()
    assert [path.name for path in folder.iterdir()] == ["tiles.json"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"holds other files than tiles \('notes.txt'\)"):
        store.create({})
    store.clear()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    store.clear()
    assert not folder.exists()


def test_a_damaged_description(tmp_path: Path) -> None:
    (tmp_path / "tiles.json").write_text("{")
    with pytest.raises(StoreError, match="description of the tiles in .* is damaged; remove that folder"):
        TileStore(tmp_path).description()


def test_a_worker_that_does_not_see_the_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such folder on this machine; name one that all workers share"):
        TileStore(tmp_path / "elsewhere").write("00000-00000", np.ones((1, 1)))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = TileStore(tmp_path / "tiles")
    store.create({})
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match=r"00000-00000\.tile': the disk is full"):
        store.write("00000-00000", np.ones((3, 3)))
    assert [path.name for path in (tmp_path / "tiles").iterdir()] == ["tiles.json"]


def test_room(tmp_path: Path) -> None:
    free = TileStore(tmp_path / "not" / "there").free_bytes()
    assert free is not None
    assert free > 0
    assert TileStore("memory://room").free_bytes() is None
