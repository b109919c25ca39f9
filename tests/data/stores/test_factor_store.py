from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr.storage

from dkgp.data import (
    Dataset,
    FactorRecord,
    FactorWriter,
    dataset_from_arrays,
    discard_factor,
    open_dataset,
    open_factor,
    open_model,
)
from dkgp.data.stores.tile_store import TILE_HEADER_BYTES, TileStore
from dkgp.errors import InputError, NumericalError, OutputExistsError, StorageError, StoreError
from tests.data.stores.factors import (
    CHUNK_ROWS,
    METADATA,
    RANK,
    Factor,
    N,
    begin,
    folders,
    found,
    keep,
    opened,
    save,
    small,
)

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]


# --- what is kept comes back ------------------------------------------------------------------------------------------


def test_round_trip_in_any_order(model: str, factor: Factor) -> None:
    writer = begin(model)
    for start, stop in [(910, 1000), (130, 520), (520, 910), (0, 130)]:
        copy = pickle.loads(pickle.dumps(writer))
        copy.write_columns(start, factor["columns"][start:stop])
    committed = writer.commit(**small(factor))
    for record in (committed, pickle.loads(pickle.dumps(opened(model)))):
        assert (record.n, record.rank, record.chunk_rows) == (N, RANK, CHUNK_ROWS)
        assert record.metadata == {**METADATA, "seed": 4, "fingerprint": open_model(model).fingerprint}
        assert record.indices.dtype == np.int64
        np.testing.assert_array_equal(record.indices, factor["indices"])
        for name in ("lower", "gram_lower", "residual_diagonal"):
            values = getattr(record, name)()
            assert values.dtype == np.float64
            np.testing.assert_array_equal(values, factor[name])
        assert record.columns(0, 0).shape == (0, RANK)
        assert record.columns(100, 700).dtype == np.float32
        np.testing.assert_array_equal(record.columns(100, 700), factor["columns"][100:700])
        np.testing.assert_array_equal(
            np.concatenate([record.columns(start, stop) for start, stop in record.row_chunks()]), factor["columns"]
        )
        assert record.nbytes == sum(values.nbytes for values in factor.values())


def test_columns_are_stored_in_half_the_bytes_and_read_by_the_chunks_touched(local: Path, factor: Factor) -> None:
    record = keep(local, factor)
    folder = Path(record.url) / "columns"
    assert json.loads((folder / "zarr.json").read_text())["data_type"] == "float32"
    assert sum(file.stat().st_size for file in folder.rglob("c/*/0")) < 1.02 * factor["columns"].nbytes
    for index in (0, 2, 3, 4, 5, 6, 7):
        (folder / "c" / str(index) / "0").unlink()
    np.testing.assert_array_equal(record.columns(130, 260), factor["columns"][130:260])
    with pytest.raises(StoreError, match=r"Chunk columns/c/2/0 \(rows 260 to 389\).*is missing"):
        record.columns(130, 261)


@pytest.mark.parametrize(("n", "rank"), [(100_000, 2000), (1_000_000, 1000), (5_000_000, 37)])
def test_default_chunks_are_8_to_16_mebibytes(
    tmp_path: Path, n: int, rank: int, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(str(tmp_path / "model.zarr"), dataset_from_arrays(tmp_path / "data.zarr", *arrays))
    manifest = {"arrays": {"alpha": {"shape": [n]}}}
    monkeypatch.setattr("dkgp.data.stores.factor_store.read_manifest", lambda url, kind: manifest)
    writer = FactorWriter.create(tmp_path / "model.zarr", {"fingerprint": "abc"}, n, rank)
    chunks = writer.row_chunks()
    assert all(8 * 2**20 <= 4 * rank * (stop - start) <= 16 * 2**20 for start, stop in chunks[:-1])
    assert chunks[0][0] == 0
    assert chunks[-1][1] == n
    assert writer.chunk_rows - (chunks[-1][1] - chunks[-1][0]) < len(chunks)


def test_a_model_opens_as_before(model: str, factor: Factor) -> None:
    before = xr.open_zarr(model)
    begin(model)
    for _ in range(2):
        as_before = open_model(model)
        np.testing.assert_array_equal(as_before.alpha, np.zeros((N, 1)))
        assert as_before.inputs(0, N).shape == (N, 3)
        xr.testing.assert_identical(xr.open_zarr(model), before)
        record = keep(model, factor)
    shown = xr.open_zarr(record.url)
    assert shown["columns"].dims == ("sample", "landmark")
    np.testing.assert_array_equal(shown["columns"].values, factor["columns"])
    np.testing.assert_array_equal(shown["indices"].values, factor["indices"])
    assert shown.attrs["metadata"]["reason"] == "rank reached"


def test_processes_write_side_by_side(local: Path, factor: Factor, importable: dict[str, str]) -> None:
    writer = begin(local)
    (local.parent / "writer").write_bytes(pickle.dumps(writer))
    code = (
        "import pickle, sys, numpy as np\nwriter = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for start, stop in writer.row_chunks()[int(sys.argv[2])::2]:\n"
        "    writer.write_columns(start, np.full((stop - start, 40), start, np.float32))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(local.parent / "writer"), "0"], env=importable)
    for start, stop in writer.row_chunks()[1::2]:
        writer.write_columns(start, np.full((stop - start, 40), start, np.float32))
    assert process.wait(timeout=240) == 0
    record = writer.commit(**small(factor))
    expected = np.repeat(np.arange(N) // CHUNK_ROWS * CHUNK_ROWS, RANK).reshape(N, RANK)
    np.testing.assert_array_equal(record.columns(0, N), expected)


def test_a_model_by_reference_keeps_one_too(place: Place, dataset: Dataset, factor: Factor) -> None:
    model = save(place("reference.zarr"), dataset, by_reference=True)
    keep(model, factor)
    np.testing.assert_array_equal(opened(model).lower(), factor["lower"])


# --- which model it belongs to ----------------------------------------------------------------------------------------


def test_none_is_kept(model: str) -> None:
    assert found(model) is None
    discard_factor(model)
    assert open_model(model).n_samples == N


def test_a_wrong_fingerprint_is_never_used(model: str, factor: Factor) -> None:
    keep(model, factor)
    assert open_factor(model, fingerprint="another") is None
    keep(model, factor, fingerprint="another")
    assert found(model) is None
    assert open_factor(model, fingerprint="another") is not None
    assert len(folders(model)) == 1


def test_a_factor_of_another_model_is_never_used(local: Path, tmp_path: Path, factor: Factor) -> None:
    """Same data, same fingerprint, another noise variance: a folder copied by hand must not be taken for its own."""
    own = save(str(tmp_path / "own.zarr"), open_dataset(tmp_path / "data.zarr"))
    record = keep(own, factor)
    other = Path(save(str(tmp_path / "other.zarr"), open_dataset(tmp_path / "data.zarr"), noise_variance=0.02))
    shutil.copytree(record.url, other / Path(record.url).name)
    assert open_model(other).fingerprint == record.metadata["fingerprint"]
    assert found(other) is None
    same = Path(save(str(tmp_path / "same.zarr"), open_dataset(tmp_path / "data.zarr")))
    shutil.copytree(record.url, same / Path(record.url).name)
    assert found(same) is not None


def test_overwriting_the_model_removes_it(model: str, dataset: Dataset, factor: Factor) -> None:
    record = keep(model, factor)
    unfinished = begin(model)
    save(model, dataset)
    assert folders(model) == set()
    assert found(model) is None
    with pytest.raises(StoreError, match="cannot be used"):
        record.columns(0, 10)
    with pytest.raises(StoreError, match="removed while it was being written"):
        unfinished.write_columns(0, factor["columns"][:CHUNK_ROWS])
    assert folders(model) == set()


def test_it_moves_with_the_model(local: Path, tmp_path: Path, factor: Factor) -> None:
    keep(local, factor)
    shutil.move(local, tmp_path / "elsewhere" / "moved.zarr")
    moved = opened(tmp_path / "elsewhere" / "moved.zarr")
    np.testing.assert_array_equal(moved.columns(0, N), factor["columns"])


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (({"fingerprint": "abc"}, 999, 40), InputError, r"\(999, 40\) does not fit .* 1000 samples"),
        (({"fingerprint": "abc"}, N, 0), InputError, "does not fit"),
        (({"fingerprint": "abc"}, N, N + 1), InputError, "does not fit"),
        (({"seed": 3}, N, RANK), InputError, "lacks 'fingerprint'"),
        (({"fingerprint": "abc", "a": object()}, N, RANK), TypeError, "JSON"),
        (({"fingerprint": "abc"}, N, RANK, 0), InputError, "at least 1"),
    ],
)
def test_factors_that_cannot_be_begun(
    local: Path, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FactorWriter.create(local, *arguments)
    assert folders(local) == set()


def test_places_without_a_model(place: Place, dataset: Dataset) -> None:
    for attempt in (
        lambda url: open_factor(url, fingerprint="abc"),
        lambda url: FactorWriter.create(url, {"fingerprint": "abc"}, N, RANK),
    ):
        with pytest.raises(StoreError, match="no model store"):
            attempt(place("nothing.zarr"))
        with pytest.raises(StoreError, match="holds a dkgp dataset store; expected a model store"):
            attempt(dataset.url)
    assert folders(dataset.url) == set()


@pytest.mark.parametrize(
    ("start", "block", "error", "message"),
    [
        (5, np.zeros((CHUNK_ROWS, RANK)), InputError, "not made of whole chunks"),
        (0, np.zeros((CHUNK_ROWS - 1, RANK)), InputError, "not made of whole chunks"),
        (910, np.zeros((CHUNK_ROWS, RANK)), InputError, "not made of whole chunks"),
        (0, np.zeros((0, RANK)), InputError, "not made of whole chunks"),
        (0, np.zeros((CHUNK_ROWS, RANK - 1)), InputError, r"expected \(rows, 40\)"),
        (0, np.zeros(CHUNK_ROWS), InputError, r"expected \(rows, 40\)"),
        (130, np.where(np.arange(130 * 40).reshape(130, 40) == 90, np.nan, 0), NumericalError, "row 132"),
        (0, np.full((CHUNK_ROWS, RANK), np.inf), NumericalError, "row 0"),
    ],
)
def test_columns_that_do_not_fit(
    local: Path, factor: Factor, start: int, block: np.ndarray, error: type[Exception], message: str
) -> None:
    writer = begin(local)
    with pytest.raises(error, match=message):
        writer.write_columns(start, block)
    # Nothing was written, and nothing is lost.
    writer.write_columns(0, factor["columns"])
    np.testing.assert_array_equal(writer.commit(**small(factor)).columns(0, N), factor["columns"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"indices": np.arange(RANK - 1)}, InputError, "40 distinct integers"),
        ({"indices": np.zeros(RANK, int)}, InputError, "40 distinct integers"),
        ({"indices": np.arange(float(RANK))}, InputError, "40 distinct integers"),
        ({"indices": np.arange(RANK) - 1}, InputError, "rows -1 to 38"),
        ({"indices": np.arange(RANK) + N - 1}, InputError, "rows 0 to 999"),
        ({"lower": np.eye(RANK + 1)}, InputError, r"'lower' has shape \(41, 41\)"),
        ({"gram_lower": np.full((RANK, RANK), np.nan)}, NumericalError, "'gram_lower'.*row 0"),
        ({"residual_diagonal": np.zeros(N - 1)}, InputError, "'residual_diagonal' has shape"),
    ],
)
def test_small_arrays_that_do_not_fit(
    local: Path, factor: Factor, changes: dict[str, np.ndarray], error: type[Exception], message: str
) -> None:
    writer = begin(local)
    writer.write_columns(0, factor["columns"])
    with pytest.raises(error, match=message):
        writer.commit(**{**small(factor), **changes})
    assert found(local) is None
    writer.commit(**small(factor))
    assert found(local) is not None


def test_rows_that_are_not_there(local: Path, factor: Factor) -> None:
    record = keep(local, factor)
    with pytest.raises(InputError, match="has 1000 rows; got the rows 900 to 1001"):
        record.columns(900, 1001)


# A factor that is torn, spoilt or replaced.


def test_a_torn_factor_does_not_count_and_goes_when_the_next_is_begun(model: str, factor: Factor) -> None:
    torn = begin(model)
    torn.write_columns(0, factor["columns"][:260])
    assert found(model) is None
    with pytest.raises(StoreError, match=r"Chunk columns/c/2/0 \(rows 260 to 389\).*was never written \(5 more chunks"):
        torn.commit(**small(factor))
    assert folders(model) == set()
    torn = begin(model)
    torn.write_columns(0, factor["columns"])
    writer = begin(model)
    assert len(folders(model)) == 1
    for attempt in (
        lambda: torn.write_columns(0, factor["columns"][:CHUNK_ROWS]),
        lambda: torn.commit(**small(factor)),
    ):
        with pytest.raises(StoreError, match="another run has begun"):
            attempt()
    writer.write_columns(0, factor["columns"])
    writer.commit(**small(factor))
    np.testing.assert_array_equal(opened(model).columns(0, N), factor["columns"])


def test_a_finished_factor_stays_until_the_next_is_finished(model: str, factor: Factor) -> None:
    first = keep(model, factor, seed=1)
    writer = begin(model, seed=2)
    writer.write_columns(0, -factor["columns"])
    assert opened(model).metadata["seed"] == 1
    np.testing.assert_array_equal(first.columns(0, N), factor["columns"])
    second = writer.commit(**small(factor))
    assert opened(model).metadata["seed"] == second.metadata["seed"] == 2
    assert len(folders(model)) == 1
    with pytest.raises(StoreError, match="was overwritten or removed"):
        first.columns(0, N)
    with pytest.raises(StoreError, match="is finished"):
        writer.write_columns(0, factor["columns"])
    with pytest.raises(StoreError, match="is finished"):
        writer.commit(**small(factor))
    writer.abort()
    np.testing.assert_array_equal(second.columns(0, N), -factor["columns"])


def test_of_two_finished_ones_the_newest_counts(model: str, factor: Factor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed, or refused by the storage, after its manifest was written leaves the one before it."""

    def refuse(url: str) -> None:
        raise StorageError(f"Cannot remove '{url}'.")

    for seed in range(3):
        with monkeypatch.context() as context:
            context.setattr("dkgp.data.stores.factor_store._remove", refuse)
            keep(model, factor, seed=seed)
        assert opened(model).metadata["seed"] == seed
    assert len(folders(model)) == 3
    keep(model, factor, seed=7)
    assert len(folders(model)) == 1
    assert opened(model).metadata["seed"] == 7


def test_discarding(model: str, factor: Factor) -> None:
    keep(model, factor)
    begin(model)
    assert len(folders(model)) == 2
    discard_factor(model)
    assert folders(model) == set()
    assert found(model) is None
    assert open_model(model).n_samples == N


def test_an_interrupted_removal_leaves_no_damaged_factor(
    local: Path, factor: Factor, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(local, factor)

    def interrupted(url: str) -> None:
        (Path(url) / "columns" / "c" / "0" / "0").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("dkgp.data.stores.factor_store.remove_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        discard_factor(local)
    assert found(local) is None


@pytest.mark.covering
@pytest.mark.parametrize("name", ["indices/c/0", "lower/c/0/0", "gram_lower/c/0/0", "columns/c/7/0"])
def test_a_missing_chunk_is_found_atfound(model: str, factor: Factor, name: str) -> None:
    record = keep(model, factor)
    file_system, path = fsspec.core.url_to_fs(record.url)
    file_system.rm_file(f"{path}/{name}")
    with pytest.raises(StoreError, match=rf"cannot be used\. Chunk {name} .*is missing.*'{record.url}' is removed"):
        found(model)
    assert open_model(model).n_samples == N
    # It can be replaced as it is.
    np.testing.assert_array_equal(keep(model, factor).lower(), factor["lower"])
    assert found(model) is not None


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("columns/c/1/0", lambda record: record.columns(0, N)),
        ("lower/c/0/0", lambda record: record.lower()),
        ("residual_diagonal/c/0", lambda record: record.residual_diagonal()),
    ],
)
def test_a_flipped_bit_is_found_when_read(
    local: Path, factor: Factor, name: str, read: Callable[[FactorRecord], np.ndarray]
) -> None:
    chunk = Path(keep(local, factor).url) / name
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 4
    chunk.write_bytes(bytes(content))
    record = opened(local)
    with pytest.raises(StoreError, match=rf"cannot be used\. Chunk {name} .*is damaged.* is removed"):
        read(record)


def test_landmarks_whose_chunk_is_damaged(local: Path, factor: Factor) -> None:
    chunk = Path(keep(local, factor).url) / "indices" / "c" / "0"
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 1
    chunk.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="cannot be used. Chunk indices/c/0"):
        found(local)


def test_a_damaged_manifest(local: Path, factor: Factor) -> None:
    manifest = Path(keep(local, factor).url) / "dkgp-manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"cannot be used\. The manifest .* is damaged"):
        found(local)


KILLED = """
import os, signal, sys
import numpy as np
from dkgp.data import FactorWriter
writer = FactorWriter.create(sys.argv[1], {"fingerprint": sys.argv[2]}, 1000, 40, chunk_rows=130)
writer.write_columns(0, np.ones((1000, 40), np.float32))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_that_opens(local: Path, factor: Factor, importable: dict[str, str]) -> None:
    arguments = [str(local), open_model(local).fingerprint]
    subprocess.run([sys.executable, "-c", KILLED, *arguments], env=importable, timeout=240, check=False)
    assert len(folders(local)) == 1
    assert found(local) is None
    keep(local, factor)
    assert len(folders(local)) == 1
    np.testing.assert_array_equal(opened(local).columns(0, N), factor["columns"])


@pytest.mark.parametrize(
    ("refused", "code", "message"),
    [
        ("columns/c/3", errno.ENOSPC, "disk is full"),
        ("lower/c", errno.EDQUOT, "quota"),
        ("columns/zarr.json", errno.EACCES, "permission denied"),
    ],
)
def test_a_refused_write_leaves_nothing_new(
    local: Path, factor: Factor, refused: str, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(local, factor, seed=1)
    put = zarr.storage.LocalStore.set

    async def refuse(self: zarr.storage.LocalStore, key: str, value: Any) -> None:
        if refused in f"{self.root}/{key}":
            raise OSError(code, os.strerror(code))
        await put(self, key, value)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", refuse)
    with pytest.raises(StorageError, match=message):
        keep(local, factor, seed=2)
    assert folders(local) == {Path(kept.url).name}
    assert opened(local).metadata["seed"] == 1


def test_a_manifest_that_cannot_be_written_leaves_nothing_new(
    local: Path, factor: Factor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = begin(local)
    writer.write_columns(0, factor["columns"])
    monkeypatch.setattr("dkgp.data.remote.storage.os.replace", refuse)
    with pytest.raises(StorageError, match="disk is full"):
        writer.commit(**small(factor))
    assert folders(local) == set()
    assert found(local) is None


def test_a_block_that_ends_early_leaves_nothing(model: str, factor: Factor) -> None:
    def interrupted() -> None:
        with begin(model) as writer:
            writer.write_columns(0, factor["columns"])
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        interrupted()
    assert folders(model) == set()
    with begin(model) as writer:
        writer.write_columns(0, factor["columns"])
        writer.commit(**small(factor))
    assert found(model) is not None


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


@pytest.mark.parametrize(
    ("flipped", "change"),
    [*((at, 0) for at in (0, 9, TILE_HEADER_BYTES, -1)), *((None, change) for change in (-1, 1, -80))],
)
def test_a_flipped_bit_and_a_wrong_size_are_found(tmp_path: Path, flipped: int | None, change: int) -> None:
    store = TileStore(tmp_path / "tiles")
    store.create({})
    store.write("00000-00000", np.ones((4, 4), np.float32))
    file = tmp_path / "tiles" / "00000-00000.tile"
    content, words = bytearray(file.read_bytes()), f"has {max(0, 76 + change)} bytes; expected 76"
    if flipped is not None:
        content[flipped] ^= 1
        words = "damaged: its checksum does not match. Run again with the same folder"
    file.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(StoreError, match=words):
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
