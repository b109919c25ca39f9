"""Local paths and fsspec URLs behind one set of calls, with failures turned into dkgp's errors.

Every object that commits something (a manifest, a checkpoint) is written through `write_object`, which a crash
leaves either whole or absent: locally by a synced temporary file and a rename, on an object store by a single put.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import fsspec
import fsspec.core
import fsspec.utils

from dkgp.data._types import Location
from dkgp.errors import InputError, MissingExtraError, OutputExistsError, StorageError

__all__ = [
    "ensure_writable",
    "exists",
    "filesystem",
    "is_local",
    "join",
    "list_object_bytes",
    "normalise_url",
    "read_object",
    "remove_object",
    "remove_tree",
    "sync_tree",
    "translate_write_errors",
    "write_object",
]

TEMPORARY_PREFIX = ".dkgp-temporary-"

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
    errno.EFBIG: "the file would exceed the largest size allowed; raise the limit (ulimit -f) or choose another place",
    errno.EACCES: "permission denied; choose a place you may write to",
    errno.EPERM: "permission denied; choose a place you may write to",
    errno.EROFS: "the file system is read-only; choose a place you may write to",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EISDIR: "the path is a folder where a file was expected; choose another path",
    errno.ENOENT: "the folder cannot be created there; choose another path",
}


def normalise_url(location: Location) -> str:
    """One spelling per place: absolute paths for local files, fsspec URLs unchanged but for a trailing slash."""
    text = os.fspath(location)
    if not text:
        raise InputError("Got an empty path; expected a local path or an fsspec URL such as s3://bucket/name.zarr.")
    if text.startswith(("file://", "local://")):
        text = text.split("://", 1)[1]
    if "://" in text or "::" in text:
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))


def is_local(location: Location) -> bool:
    """Whether the place is on a file system of this machine."""
    url = normalise_url(location)
    return "://" not in url and "::" not in url


def join(location: Location, *parts: str) -> str:
    """The place `parts` below a place."""
    return "/".join([normalise_url(location).rstrip("/"), *parts])


def filesystem(location: Location) -> tuple[fsspec.AbstractFileSystem, str]:
    """The fsspec file system of a place and the place's path within it.

    Raises `MissingExtraError` where the protocol's package is not installed, `InputError` for an unknown protocol.
    """
    url = normalise_url(location)
    protocol = fsspec.utils.get_protocol(url)
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package, extra = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}.get(protocol, ("", ""))
        if not package:
            raise InputError(f"Cannot work with the address '{url}': {error}.") from error
        raise MissingExtraError(package, extra, f"Reading or writing {protocol}:// addresses") from error
    except ValueError as error:
        raise InputError(f"Cannot work with the address '{url}': {error}. Expected a path or an fsspec URL.") from error
    return file_system, path


def exists(location: Location) -> bool:
    """Whether there is an object or a folder at the place."""
    file_system, path = filesystem(location)
    file_system.invalidate_cache()
    return bool(file_system.exists(path))


@contextlib.contextmanager
def translate_write_errors(location: Location, action: str = "write") -> Iterator[None]:
    """Turn an `OSError` raised inside the block into a `StorageError` that names the place and what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        code = error.errno if error.errno is not None else 0
        if isinstance(error, PermissionError) and code == 0:
            code = errno.EACCES
        advice = _ADVICE.get(code, error.strerror or str(error) or type(error).__name__)
        raise StorageError(f"Cannot {action} '{normalise_url(location)}': {advice}.") from error


def read_object(location: Location) -> bytes:
    """The bytes of one object; `FileNotFoundError` where there is none."""
    file_system, path = filesystem(location)
    if is_local(location):
        return Path(path).read_bytes()
    return cast(bytes, file_system.cat_file(path))


def write_object(location: Location, pieces: bytes | Iterable[bytes | memoryview]) -> None:
    """Write one object so that a crash leaves it whole or as it was before.

    Parameters
    ----------
    location
        Where to write.
    pieces
        The content, in order. Remote stores get it as a single put, so there it is held in memory once more.

    Raises
    ------
    StorageError
        The storage refused: full, read-only, no permission.
    """
    parts: Iterable[bytes | memoryview] = [pieces] if isinstance(pieces, bytes) else pieces
    with translate_write_errors(location):
        if not is_local(location):
            file_system, path = filesystem(location)
            file_system.pipe_file(path, b"".join(parts))
            file_system.invalidate_cache()
            return
        target = Path(normalise_url(location))
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files private; a store is as readable as the user's umask says.
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(target.parent)


def remove_object(location: Location) -> None:
    """Remove one object; nothing happens where there is none."""
    file_system, path = filesystem(location)
    with translate_write_errors(location, "remove"), contextlib.suppress(FileNotFoundError):
        file_system.rm_file(path)


def remove_tree(location: Location) -> None:
    """Remove a place and everything below it; nothing happens where there is nothing."""
    file_system, path = filesystem(location)
    file_system.invalidate_cache()
    with translate_write_errors(location, "remove"), contextlib.suppress(FileNotFoundError):
        if file_system.exists(path):
            file_system.rm(path, recursive=True)
    file_system.invalidate_cache()


def list_object_bytes(location: Location) -> dict[str, int]:
    """Every object below a place: its name relative to the place, and its size in bytes."""
    file_system, path = filesystem(location)
    file_system.invalidate_cache()
    try:
        found = cast(dict[str, dict[str, Any]], file_system.find(path, detail=True))
    except FileNotFoundError:
        return {}
    root = path.rstrip("/") + "/"
    return {name.removeprefix(root): int(entry["size"] or 0) for name, entry in found.items() if name.startswith(root)}


def sync_tree(location: Location, names: Iterable[str]) -> None:
    """Force objects below a local place to the disk, so that what is committed next cannot outlive them."""
    if not is_local(location):
        return
    folders: set[Path] = set()
    with translate_write_errors(location):
        for name in names:
            file = Path(normalise_url(location)) / name
            _sync_path(file)
            folders.add(file.parent)
        for folder in folders:
            _sync_folder(folder)


def ensure_writable(location: Location, overwrite: bool, kind: str | None = None) -> None:
    """Check that a store may be created at a place, before any work is done. Removes nothing.

    Parameters
    ----------
    location
        Where the store is to be.
    overwrite
        Whether a dkgp store that is already there may be replaced.
    kind
        The kind of store to be written ("dataset", "model", "prediction"): only a store of the same kind may be
        replaced, so that no slip of the keyboard deletes a training set. None allows any dkgp store.

    Raises
    ------
    OutputExistsError
        Something is there, and overwriting was not asked for or would delete something else than such a store.
    StorageError
        The place cannot be written to.
    """
    from dkgp.data._manifest import MANIFEST_NAME, recognise  # the manifest is itself written through this module

    url = normalise_url(location)
    if exists(url) and not _is_empty(url):
        found = recognise(url)
        if found is None:
            raise OutputExistsError(
                f"'{url}' exists and is not a dkgp store; it will not be overwritten. "
                "Choose another path, or remove it yourself."
            )
        if kind is not None and found != kind:
            raise OutputExistsError(
                f"'{url}' holds a dkgp {found} store, but a {kind} store is to be written; it will not be overwritten. "
                "Choose another path, or remove it yourself."
            )
        if not overwrite:
            state = "" if exists(join(url, MANIFEST_NAME)) else ", unfinished (its writing was interrupted)"
            raise OutputExistsError(
                f"The output '{url}' exists already{state}. "
                "Choose another path, or replace it: --overwrite (overwrite=True)."
            )
    if is_local(url):
        _check_local_folder(Path(url))


def _check_local_folder(target: Path) -> None:
    folder = target if target.exists() else target.parent
    while not folder.exists():
        folder = folder.parent
    with translate_write_errors(target):
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        # Permission bits mislead (root, network mounts, read-only mounts): try.
        with tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX, dir=folder):
            pass


def _is_empty(url: str) -> bool:
    file_system, path = filesystem(url)
    if not file_system.isdir(path):
        return False
    return not file_system.ls(path, detail=False)


def _umask() -> int:
    # The umask can only be read by setting it; /proc shows it without that race between threads.
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    # Not every file system lets a folder be synced; the rename itself has happened by now.
    with contextlib.suppress(OSError):
        _sync_path(folder)
