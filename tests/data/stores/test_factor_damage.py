from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr.storage

from dkgp.data import FactorRecord, discard_factor, open_model
from dkgp.errors import StorageError, StoreError
from tests.data.stores.factors import (
    CHUNK_ROWS,
    Factor,
    N,
    begin,
    folders,
    found,
    keep,
    opened,
    small,
)


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
    subprocess.run([sys.executable, "-c", KILLED, *arguments], env=importable, timeout=60, check=False)
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
