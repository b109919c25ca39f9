from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dkgp.data import ensure_writable, exists
from dkgp.data.remote.storage import (
    is_local,
    join,
    list_object_bytes,
    normalise_url,
    read_object,
    remove_object,
    remove_tree,
    translate_write_errors,
    write_object,
)
from dkgp.errors import InputError, MissingExtraError, StorageError

Place = Callable[[str], str]


def test_objects_round_trip(place: Place) -> None:
    assert not exists(place("a"))
    write_object(place("a/b/c"), b"one")
    write_object(place("a/d"), iter([b"tw", memoryview(b"o")]))
    assert exists(place("a"))
    assert read_object(place("a/d")) == b"two"
    assert list_object_bytes(place("a")) == {"b/c": 3, "d": 3}
    remove_object(place("a/d"))
    remove_object(place("a/never"))
    assert list_object_bytes(place("a")) == {"b/c": 3}
    remove_tree(place("a"))
    remove_tree(place("a"))
    assert not exists(place("a"))
    assert list_object_bytes(place("a")) == {}


def test_local_spellings_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise_url("x.zarr/") == normalise_url(tmp_path / "x.zarr") == normalise_url(f"file://{tmp_path}/x.zarr")
    assert normalise_url("s3://bucket/x.zarr/") == "s3://bucket/x.zarr"
    assert is_local("x.zarr")
    assert not is_local("memory://x")
    assert join("memory://x/", "y", "z") == "memory://x/y/z"


def test_a_failed_write_leaves_the_old_object_and_no_temporary(tmp_path: Path) -> None:
    write_object(tmp_path / "object", b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new, but"
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_object(tmp_path / "object", pieces())
    assert (tmp_path / "object").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["object"]


def test_written_objects_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_object(tmp_path / "object", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "object").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permission denied"), (errno.EROFS, "read-only"), (errno.EIO, "")],
)
def test_refusals_become_storage_errors(code: int, advice: str) -> None:
    with (
        pytest.raises(StorageError, match=rf"Cannot write '/there/x\.zarr': .*{advice}"),
        translate_write_errors("/there/x.zarr"),
    ):
        raise OSError(code, os.strerror(code))


def test_addresses_that_cannot_be_used() -> None:
    with pytest.raises(InputError, match="Protocol not known"):
        exists("nonsense://bucket/x.zarr")
    with pytest.raises(InputError, match="empty path"):
        normalise_url("")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"dkgp\[s3\]"):
            exists("s3://bucket/x.zarr")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="permission denied"):
        ensure_writable(tmp_path / "locked" / "x.zarr", overwrite=False)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc as a place where nothing can be created")
def test_a_place_where_nothing_can_be_created() -> None:
    with pytest.raises(StorageError, match="Cannot write"):
        ensure_writable("/proc/self/x.zarr", overwrite=False)


FULL_DISK = """
import numpy as np, resource, signal, sys
from dkgp.data import CheckpointStore, dataset_from_arrays
from dkgp.errors import StorageError
X = np.random.default_rng(0).normal(size=(20000, 4))
dataset_from_arrays(sys.argv[1] + "/before.zarr", X[:50], X[:50, 0])
store = CheckpointStore(sys.argv[1] + "/checkpoints")
store.save(1, {"a": X[:10]}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for attempt in (
    lambda: dataset_from_arrays(sys.argv[1] + "/d.zarr", X, X[:, 0], chunk_rows=20000),
    lambda: store.save(2, {"a": X}, {}),
):
    try:
        attempt()
    except StorageError as error:
        print("refused:", error)
print("still there:", store.load_latest().sequence_number)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_write_that_fails_for_real_leaves_nothing(tmp_path: Path, importable: dict[str, str]) -> None:
    """The kernel refuses large files to this process, as a full disk would."""
    found = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=importable,
    )
    assert found.stdout.count("refused: Cannot write") == 2, found
    assert "still there: 1" in found.stdout
    assert sorted(os.listdir(tmp_path)) == ["before.zarr", "checkpoints"]
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint-0000000001.dkgp"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to tell what is synced")
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what a power cut leaves has the name, and nothing in it."""
    done: list[tuple[str, str]] = []
    replace = os.replace

    def named(source: str, target: str | Path) -> None:
        done.append(("named", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda handle: done.append(("synced", os.readlink(f"/proc/self/fd/{handle}"))))
    monkeypatch.setattr(os, "replace", named)
    write_object(tmp_path / "a.json", b"{}")
    assert [what for what, _ in done] == ["synced", "named", "synced"]
    (_, written), (_, name), (_, folder) = done
    assert Path(written).parent == tmp_path.resolve()
    assert name == str(tmp_path / "a.json") != written
    assert folder == str(tmp_path.resolve())
