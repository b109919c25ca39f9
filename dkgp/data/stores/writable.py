"""Checks that a store may be written at a place, made before any work; and its beginning, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dkgp.data.remote.addresses import is_local, normalise_url, protocol_of
from dkgp.data.remote.claims import Claim
from dkgp.data.remote.storage import (
    TEMPORARY_PREFIX,
    exists,
    is_folder,
    list_folder,
    remove_object,
    remove_store,
    translate_write_errors,
    write_object,
)
from dkgp.data.stores.arrays import create_group
from dkgp.data.stores.manifest import is_committed, recognise
from dkgp.data.types import Json, Location
from dkgp.errors import OutputExistsError, StorageError

__all__ = ["ensure_writable", "new_store"]


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
    url = normalise_url(location)
    if exists(url) and not (is_folder(url) and not list_folder(url)):
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
            state = "" if is_committed(url) else ", unfinished (its writing was interrupted, or goes on)"
            raise OutputExistsError(
                f"The output '{url}' exists already{state}. Choose another path, or replace it by `overwrite`."
            )
    if is_local(url):
        _check_local_folder(Path(url))
    elif protocol_of(url) != "memory":
        _check_remote_place(url)


@contextlib.contextmanager
def new_store(url: str, kind: str, attributes: Json, overwrite: bool) -> Iterator[Claim]:
    """Begin a store at a place that may be written to: a group without arrays, under a claim that the block writes by.

    Another of its kind that is there is removed first, and whatever was written if the block fails. Parameters and
    errors as of `ensure_writable` and `create_group`.
    """
    ensure_writable(url, overwrite, kind)
    claim = Claim.take(url, kind, over=overwrite)
    try:
        remove_store(claim, keep_claim=True)
        create_group(url, kind, attributes, claim)
        yield claim
    except BaseException:
        remove_store(claim)
        raise


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


def _check_remote_place(url: str) -> None:
    # Beside the place, not in it: another process that looks there shall not find anything.
    probe = f"{url}{TEMPORARY_PREFIX}{secrets.token_hex(6)}"
    try:
        write_object(probe, b"dkgp")
        remove_object(probe)
    except StorageError as error:
        raise StorageError(str(error).replace(probe, url)) from error
