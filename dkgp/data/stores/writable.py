"""Checks that a store may be written at a place, made before any work; and its beginning, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dkgp.data.exports import table_suffix
from dkgp.data.remote.addresses import is_local, normalise_url, protocol_of
from dkgp.data.remote.claims import CLAIM_NAME, Claim, PlaceLock, beside, locked
from dkgp.data.remote.limits import in_open_folder
from dkgp.data.remote.storage import (
    TEMPORARY_PREFIX,
    exists,
    is_folder,
    list_folder,
    remove_object,
    remove_store,
    remove_tree,
    sync_folder,
    translate_write_errors,
    write_object,
)
from dkgp.data.stores.arrays import StoredArray, StoredType, create_array, create_group, default_chunk_rows
from dkgp.data.stores.manifest import MANIFEST_NAME, commit, is_committed, recognise, set_aside_place
from dkgp.data.types import Json, Location
from dkgp.errors import InputError, OutputExistsError, StorageError


def ensure_writable(location: Location, overwrite: bool, kind: str | None = None) -> None:
    """Check that a store may be created at a place, before any work is done. Removes nothing.

    Parameters
    ----------
    overwrite
        Whether a dkgp store that is already there may be replaced.
    kind
        The kind of store to be written ("dataset", "model", "prediction"): only a store of the same kind may be
        replaced, so that no slip of the keyboard deletes a training set. None allows any dkgp store.

    Raises
    ------
    InputError
        The place has the name of a file, such as a table.
    OutputExistsError
        Something is there, and overwriting was not asked for or would delete something else than such a store.
    StorageError
        The place cannot be written to.
    """
    url = normalise_url(location)
    suffix = table_suffix(url)
    if suffix is not None:
        raise InputError(
            f"'{url}' is the name of a file ({suffix}), and a dkgp {f'{kind} ' if kind else ''}store is "
            f"a folder; choose a name such as '{url[: -len(suffix)]}.zarr'. Only predictions go into tables, "
            "by dkgp predict and dkgp export."
        )
    if exists(url) and not (is_folder(url) and not list_folder(url)):
        present = recognise(url)
        if present is None:
            raise OutputExistsError(
                f"'{url}' exists and is not a dkgp store; it will not be overwritten. "
                "Choose another path, or remove it yourself."
            )
        if kind is not None and present != kind:
            raise OutputExistsError(
                f"'{url}' holds a dkgp {present} store, but a {kind} store is to be written; it will not be "
                "overwritten. Choose another path, or remove it yourself."
            )
        if not overwrite:
            state = "" if is_committed(url) else ", unfinished (its writing was interrupted, or goes on)"
            raise OutputExistsError(
                f"The output '{url}' already exists{state}. Choose another path, or give `overwrite` to replace it."
            )
    if is_local(url):
        _check_local_folder(Path(url))
    elif protocol_of(url) != "memory":
        _check_remote_place(url)


def require_outside_stores(path: Path, what: str) -> None:
    """Refuse a local place for a file inside a dkgp store, links followed: it could take the place of a store's part.

    `InputError`; `what` names the file in messages.
    """
    for folder in path.resolve().parents:
        if any((folder / name).is_file() for name in (MANIFEST_NAME, CLAIM_NAME)) or _is_begun(folder):
            raise InputError(f"'{path}' ({what}) lies inside the dkgp store '{folder}'; choose a place outside it")


def _is_begun(folder: Path) -> bool:
    """True for a store that is being written, whose manifest comes last."""
    return (folder / "zarr.json").is_file() and recognise(str(folder)) is not None


class NewStore:
    """A store that is being written: its arrays, under the writer's claim; it can be opened once it is committed.

    Attributes
    ----------
    url
        Address of the store once it is committed.
    claim
        The writer's claim. Its `url` is the place that is written to: `url`, or a place beside an earlier store there.
    """

    def __init__(self, url: str, kind: str, claim: Claim, lock: PlaceLock, version: int | None = None) -> None:
        self.url = url
        self.claim = claim
        self.arrays: list[StoredArray] = []
        # The earlier store, while this one is unfinished in its place.
        self._earlier: Path | None = None
        self._lock, self._ended = lock, False
        self._kind, self._version = kind, version

    def create_array(
        self,
        name: str,
        shape: tuple[int, ...],
        dimensions: tuple[str, ...],
        chunk_rows: int,
        attributes: Json | None = None,
        dtype: StoredType = "float64",
    ) -> StoredArray:
        """An array of the store, all its chunks still to be written (see `arrays.create_array`)."""
        array = create_array(self.claim.url, name, shape, chunk_rows, dimensions, attributes, dtype, self.claim)
        self.arrays.append(array)
        return array

    def write_array(self, name: str, values: NDArray[Any], dimensions: tuple[str, ...]) -> None:
        """Write a whole array, in chunks of the default length; integers stay integers."""
        rows = default_chunk_rows(len(values), values.size // max(1, len(values)))
        dtype: StoredType = "int64" if values.dtype.kind == "i" else "float64"
        self.create_array(name, values.shape, dimensions, rows, dtype=dtype).write(0, values)

    def commit(self, metadata: Json) -> None:
        """Write the manifest, and let the store take the place of an earlier one; errors as of `manifest.commit`."""
        commit(self.claim.url, self._kind, metadata, self.arrays, self.claim, self._version)
        self.take_place()
        self._ended = True
        if self._earlier is not None:
            remove_tree(str(self._earlier))
        self._lock.release()

    def take_place(self) -> None:
        """Move a store that was written beside an earlier one to its place, and set the earlier one aside."""
        if self.claim.url != self.url:
            self._earlier = _replace(Path(self.claim.url), self.url)
            self.claim = Claim(self.url, "")

    def remove(self) -> None:
        """Remove the store, unless another writer has taken the place over; a store set aside is put back."""
        if self._ended:  # the place may be another writer's by now
            return
        remove_store(self.claim)
        if self._earlier is not None and self._earlier.exists():
            with translate_write_errors(self.url):
                _move(self._earlier, Path(self.url))
        self._ended = True
        self._lock.release()


@contextlib.contextmanager
def new_store(url: str, kind: str, attributes: Json, overwrite: bool, version: int | None = None) -> Iterator[NewStore]:
    """Begin a store at a place that may be written to: a group without arrays.

    `version` is its format, by default the newest; a store without newer features keeps an earlier one.

    On a disk a finished store of its kind stays in its place, and may be read, until `commit` replaces it: the new one
    is written beside it. Elsewhere, since objects cannot be moved, it is removed first. The new store is removed if the
    block fails. A local place is locked until the store is committed or removed. Parameters and errors as of
    `ensure_writable`, `PlaceLock.take` and `create_group`.
    """
    ensure_writable(url, overwrite, kind)
    lock = PlaceLock.take(url)
    ensure_writable(url, overwrite, kind)  # another writer may have finished before the lock was taken
    place = _place_to_write(url, overwrite) if is_local(url) else url
    claim = Claim.take(place, kind, over=overwrite)
    store = NewStore(url, kind, claim, lock, version)
    try:
        remove_store(claim, keep_claim=True)
        create_group(place, kind, attributes, claim, version)
        yield store
    except BaseException:
        store.remove()
        raise


def take_the_place(store: str, url: str, kind: str) -> None:
    """Move a finished local store to the place of an earlier one of its kind, which is there until then, and goes.

    Errors as of `ensure_writable`: something else lies at the place by now, or it cannot be written to; both stores
    stay. A kill leaves both, too: this may be done again.
    """
    with locked(url):
        ensure_writable(url, True, kind)
        aside = _replace(Path(normalise_url(store)), normalise_url(url))
        if aside is not None:
            remove_tree(str(aside))


def _place_to_write(url: str, overwrite: bool) -> str:
    """Return the place at which a new local store is written: beside an earlier one that it replaces.

    Removes the remains of a killed writer, and puts back the earlier store that it had set aside.
    """
    new, aside = beside(Path(url), ".dkgp-new-"), set_aside_place(url)
    remove_tree(str(new))
    if not overwrite:
        return url
    if aside.exists() and not is_committed(url):
        remove_tree(url)
        with translate_write_errors(url):
            _move(aside, Path(url))
    return str(new) if is_committed(url) else url


def _replace(store: Path, url: str) -> Path | None:
    """Move a local store to a place. Return the earlier store, which is set aside; None if there is none.

    If the store cannot be moved, the earlier one is put back.
    """
    aside = _set_aside(url)
    remove_tree(url)
    with translate_write_errors(url):
        try:
            _move(store, Path(url))
        except BaseException:
            if aside is not None:
                _move(aside, Path(url))
            raise
    sync_folder(store.parent)
    return aside


def _set_aside(url: str) -> Path | None:
    """Move a finished local store out of the way; where it lies then, None where there is none.

    A store that a killed run has set aside stays, in preference to the unfinished store that it left.
    """
    aside = set_aside_place(url)
    if is_committed(url):
        remove_tree(str(aside))
        with translate_write_errors(url):
            try:
                _move(Path(url), aside)
            except OSError as error:
                # A container's own file system does not move folders of its image: that store is removed first.
                if error.errno != errno.EXDEV:
                    raise
    return aside if aside.exists() else None


def _move(store: Path, place: Path) -> None:
    """Give a local store another name in its folder."""
    with in_open_folder(store) as present:
        os.rename(present, present.with_name(place.name))


def _check_local_folder(target: Path) -> None:
    folder = target if target.exists() else target.parent
    while not folder.exists():
        folder = folder.parent
    with translate_write_errors(target):
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        # Permission bits mislead (root, network mounts, read-only mounts): try, and in the folder as it is now. Where a
        # link turns in between, a file would be made in one folder and looked for in another.
        with in_open_folder(folder / TEMPORARY_PREFIX) as place:
            tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX, dir=place.parent).close()


def _check_remote_place(url: str) -> None:
    # Beside the place, not in it: another process that looks there shall not find anything.
    probe = f"{url}{TEMPORARY_PREFIX}{secrets.token_hex(6)}"
    try:
        write_object(probe, b"dkgp")
        remove_object(probe)
    except StorageError as error:
        raise StorageError(str(error).replace(probe, url)) from error
