"""Local paths and fsspec URLs behind one set of calls, with failures turned into dkgp's errors.

Every object that commits something (a manifest, a checkpoint) is written through `write_object`, which a crash
leaves either whole or absent: locally by a synced temporary file and a rename, on an object store by a single
conditional put. Requests to an object store are retried where that may help (see `object_store`).
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

# Callers that read or write need addresses too.
from dkgp.data.remote.addresses import is_local as is_local
from dkgp.data.remote.addresses import join as join
from dkgp.data.remote.addresses import normalise_url as normalise_url
from dkgp.data.remote.addresses import shown as shown
from dkgp.data.remote.addresses import split_address as split_address
from dkgp.data.remote.claims import CLAIM_NAME, Claim
from dkgp.data.remote.limits import in_open_folder, open_local, require_within
from dkgp.data.remote.object_store import backend, call, open_remote, put, remove_many
from dkgp.data.types import Location
from dkgp.errors import OutputExistsError, StorageError, StoreError

TEMPORARY_PREFIX = ".dkgp-temporary-"
_REMOVED_AT_ONCE = 1000
_REMOVAL_ROUNDS = 3
# As in `_manifest`, which is itself written through this module.
_MANIFEST_NAME = "dkgp-manifest.json"

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


def filesystem(location: Location) -> tuple[Any, str]:
    """The fsspec file system of a place, to be called from any thread, and the place's path within it.

    Calls on it are not retried. Errors as of `object_store.backend`.
    """
    url = normalise_url(location)
    file_system, path = backend(url)
    return getattr(file_system, "sync_fs", file_system), path


def exists(location: Location) -> bool:
    """True if there is an object or a folder at the place."""
    return _kind(location) is not None


def is_file(location: Location) -> bool:
    """True if there is an object at the place."""
    return _kind(location) == "file"


def is_folder(location: Location) -> bool:
    """True if there is a folder at the place, or objects below it."""
    return _kind(location) == "directory"


def _kind(location: Location) -> str | None:
    url = normalise_url(location)
    if is_local(url):
        path = Path(url)
        return "directory" if path.is_dir() else "file" if path.exists() else None
    try:
        return str(call(url, "info", "read").get("type", "file"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def list_folder(location: Location) -> list[str]:
    """The addresses of a folder's direct entries, sorted."""
    url = normalise_url(location)
    if is_local(url):
        return sorted(str(entry) for entry in Path(url).iterdir())
    names = sorted(str(name) for name in call(url, "ls", "list", detail=False))
    return [_address(url, name) for name in names if name.rstrip("/") != backend(url)[1].rstrip("/")]


def expand_glob(location: Location) -> list[str]:
    """The addresses that match a pattern with `*`, `?` or `[...]`, sorted."""
    url = normalise_url(location)
    if is_local(url):
        return sorted(glob.glob(url, recursive=True))
    return [_address(url, name) for name in sorted(str(name) for name in call(url, "glob", "list"))]


def _address(url: str, name: str) -> str:
    return name if "://" in name else str(backend(url)[0].unstrip_protocol(name))


def object_bytes(location: Location) -> int:
    """The size of one object; 0 where a web server does not tell."""
    url = normalise_url(location)
    return Path(url).stat().st_size if is_local(url) else int(call(url, "info", "read").get("size") or 0)


def open_object(location: Location) -> BinaryIO:
    """One object as a binary file to read and seek in; read errors of a remote one are tried again."""
    url = normalise_url(location)
    if is_local(url):
        return open_local(url)
    return cast(BinaryIO, open_remote(url))


@contextlib.contextmanager
def translate_write_errors(location: Location, action: str = "write") -> Iterator[None]:
    """Turn an `OSError` raised inside the block into a `StorageError` with the place and advice."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        if not is_local(location):
            raise StorageError(
                f"Cannot {action} '{normalise_url(location)}': there is no such bucket, container or folder. "
                "Create it, or check the address."
            ) from error
        raise _local_error(location, action, error) from error
    except OSError as error:
        raise _local_error(location, action, error) from error


def _local_error(location: Location, action: str, error: OSError) -> StorageError:
    code = error.errno if error.errno is not None else 0
    if isinstance(error, PermissionError) and code == 0:
        code = errno.EACCES
    advice = _ADVICE.get(code, error.strerror or str(error) or type(error).__name__)
    return StorageError(f"Cannot {action} '{normalise_url(location)}': {advice}.")


def read_object(location: Location, most_bytes: int | None = None) -> bytes:
    """The bytes of one object; `FileNotFoundError` where there is none, `StoreError` where it is larger."""
    url = normalise_url(location)
    if is_local(url):
        with open_local(url) as file:
            size = os.fstat(file.fileno()).st_size
            content = b"" if most_bytes is not None and size > most_bytes else file.read()
    else:
        part = {} if most_bytes is None else {"start": 0, "end": most_bytes + 1}
        content = cast(bytes, call(url, "cat_file", "read", **part))
        size = len(content)
    if most_bytes is not None and size > most_bytes:
        raise StoreError(
            f"'{url}' has {object_bytes(url):,} bytes; a file of its kind has {most_bytes:,} at most. Write it again."
        )
    return content


def write_object(
    location: Location, pieces: bytes | Iterable[bytes | memoryview], *, replace: bool = True, synced: bool = True
) -> None:
    """Write one object so that a crash leaves it whole or as it was before.

    The `pieces` are the content, in order; remote stores get it as a single put, so there it is held in memory once
    more. Without `replace` an object that holds something else stays (`OutputExistsError`); it is a remote storage that
    refuses, so that of two writers at the same time one learns of the other. Without `synced` it may not be on the disk
    when this returns: a crash of the machine may garble it. `StorageError` where the storage refuses.
    """
    parts: Iterable[bytes | memoryview] = [pieces] if isinstance(pieces, bytes) else pieces
    with translate_write_errors(location):
        if not is_local(location):
            put(normalise_url(location), b"".join(parts), replace=replace)
            return
        # By hand: fsspec's local files are neither synced nor moved into place unless in a transaction of its own.
        target = Path(normalise_url(location))
        if not replace and target.exists():
            raise OutputExistsError(f"'{target}' already exists.")
        with replaced_file(target, synced=synced) as temporary, temporary.open("wb") as file:
            for part in parts:
                file.write(part)


@contextlib.contextmanager
def replaced_file(target: Path, *, synced: bool = True) -> Iterator[Path]:
    """A new file beside a local one, which takes its place when the block ends; it goes where the block fails."""
    with in_open_folder(target, make=True) as place:
        handle, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=place.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            if synced:
                _sync_path(temporary)
            # mkstemp makes files private; a store is as readable as the user's umask says.
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, place)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if synced:
            sync_folder(place.parent)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """The place to write a file in that takes another's when the block ends, and leaves it whole where the block fails.

    A device or a pipe is written to in place. `StorageError` where the storage refuses.
    """
    with translate_write_errors(target):
        if target.exists() and not target.is_file():
            handle = _open_device(target)
            try:
                yield Path("/dev/fd", str(handle))
            finally:
                os.close(handle)
        else:
            with replaced_file(target) as place:
                yield place


def open_new(target: Path) -> IO[str]:
    """A local text file to write line by line, in place of an earlier one; the target of a link stays unchanged.

    A device or a pipe is written to in place. Errors as of `replacing`.
    """
    with translate_write_errors(target):
        if target.exists() and not target.is_file():
            return open(_open_device(target), "w", encoding="utf-8")
        with in_open_folder(target, make=True) as place:
            place.unlink(missing_ok=True)
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            return open(handle, "w", encoding="utf-8")


def _open_device(target: Path) -> int:
    """Open a device or a pipe; `StorageError` where a plain file, or a link to one, has taken its place."""
    handle = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            raise StorageError(
                f"'{target}' was no plain file when it was looked at, and is one now: it was exchanged, and is not "
                "written to. Choose another place."
            )
        require_within(handle, target)
    except BaseException:
        os.close(handle)
        raise
    return handle


def remove_object(location: Location) -> None:
    """Remove one object; nothing happens where there is none."""
    url = normalise_url(location)
    with translate_write_errors(url, "remove"), contextlib.suppress(FileNotFoundError):
        if is_local(url):
            with in_open_folder(Path(url)) as place:
                place.unlink()
        else:
            call(url, "rm_file", "remove")


def remove_tree(location: Location) -> None:
    """Remove a place and everything below it; nothing happens where there is nothing."""
    url = normalise_url(location)
    if is_local(url):
        missing = contextlib.suppress(FileNotFoundError)
        with translate_write_errors(url, "remove"), missing, in_open_folder(Path(url)) as place:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
        return
    _remove_objects(url, list_object_bytes(url))
    with contextlib.suppress(FileNotFoundError):
        call(url, "rm_file", "remove")


def remove_store(claim: Claim, *, keep_claim: bool = False) -> None:
    """Remove the objects of a store, if the claim still holds; a store that another writer has taken over stays.

    With `keep_claim` the place stays claimed: to write a store where another one was.

    Raises `StorageError`: the storage refuses; or, to keep a claim, it has been lost.
    """
    if not claim.writer:
        remove_tree(claim.url)
        return

    def is_mine() -> bool:
        if keep_claim:
            claim.require()
        return keep_claim or claim.is_mine()

    names = [name for name in list_object_bytes(claim.url) if name != CLAIM_NAME]
    # The manifest first: an interrupted removal then leaves an unfinished store, not a damaged one. The claim, which
    # guards the rest, last.
    batches = [[name for name in names if name == _MANIFEST_NAME]]
    names = [name for name in names if name != _MANIFEST_NAME]
    batches += [names[start : start + _REMOVED_AT_ONCE] for start in range(0, len(names), _REMOVED_AT_ONCE)]
    for batch in filter(None, batches):
        if not is_mine():
            return
        # Objects that a superseded writer puts back meanwhile are replaced one by one.
        remove_many([join(claim.url, name) for name in batch])
    if not keep_claim and is_mine():
        remove_object(join(claim.url, CLAIM_NAME))


def _remove_objects(url: str, names: Iterable[str]) -> None:
    remaining = list(names)
    for _ in range(_REMOVAL_ROUNDS):
        for start in range(0, len(remaining), _REMOVED_AT_ONCE):
            addresses = [join(url, name) for name in remaining[start : start + _REMOVED_AT_ONCE]]
            remove_many(addresses)
        # A store may skip objects that it reports as removed: only a listing shows.
        there = list_object_bytes(url) if remaining else {}
        remaining = [name for name in remaining if name in there]
        if not remaining:
            return
    raise StorageError(
        f"Cannot remove '{join(url, remaining[0])}': the store keeps it. Check the permissions of the credentials."
    )


def list_object_bytes(location: Location) -> dict[str, int]:
    """Every object below a place: its name relative to the place, and its size in bytes."""
    url = normalise_url(location)
    if is_local(url):
        sizes: dict[str, int] = {}
        for folder, _, names in os.walk(url):
            for name in names:
                # Another process may be removing these objects.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    path = Path(folder, name)
                    status = path.stat()
                    if stat.S_ISREG(status.st_mode):
                        sizes[path.relative_to(url).as_posix()] = status.st_size
        return sizes
    try:
        entries = cast(dict[str, dict[str, Any]], call(url, "find", "list", detail=True))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    root = backend(url)[1].rstrip("/") + "/"
    return {
        name.removeprefix(root): int(entry["size"] or 0) for name, entry in entries.items() if name.startswith(root)
    }


def sync_tree(location: Location, names: Iterable[str]) -> None:
    """Force objects below a local place to the disk, so that a later commit cannot outlive them."""
    if not is_local(location):
        return
    folders: set[Path] = set()
    with translate_write_errors(location):
        for name in names:
            file = Path(normalise_url(location)) / name
            _sync_path(file)
            folders.add(file.parent)
        for folder in folders:
            sync_folder(folder)


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


def sync_folder(folder: Path) -> None:
    """Force a local folder's names to the disk, if its file system allows that."""
    # Not every file system lets a folder be synced; the rename itself has happened by now.
    with contextlib.suppress(OSError):
        _sync_path(folder)
