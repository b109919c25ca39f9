"""References in a store to other stores, and limits to what is opened: the author of a store may be unknown.

A model by reference names its training set in its manifest. That is no argument of a user: it may point to addresses
that only this machine reaches, or chain file systems that run code. So it has to be a plain place on storage, and where
somebody set limits to what may be read (the jobs service), within these.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dkgp.data.remote.addresses import is_local, join, normalise_url, shown, split_address
from dkgp.data.remote.limits import require_within
from dkgp.data.remote.storage import filesystem
from dkgp.data.stores.dataset import Dataset, open_dataset
from dkgp.data.stores.manifest import MANIFEST_NAME, read_manifest, recognise
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.types import Json
from dkgp.errors import InputError, StoreError

# `memory` is this process's own.
_PROTOCOLS = ("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory")

_limits: list[Callable[[str], None]] = []


@contextmanager
def limited_references(check: Callable[[str], None]) -> Iterator[None]:
    """Have a check see every place that a store names, before it is opened, in all threads of this process.

    The check takes the place, and raises an error if it may not be read.
    """
    _limits.append(check)
    try:
        yield
    finally:
        _limits.remove(check)


def check_reference(url: str) -> None:
    """Refuse to have a model name a training set that nobody would open; `InputError`."""
    if reason := _why_not(url):
        raise InputError(
            f"A model cannot refer to the training set '{shown(url)}': {reason}. Save it with its inputs "
            "(without `by_reference`)."
        )


def _why_not(url: object) -> str | None:
    """Say why a store may not name a place; None where it may."""
    if not isinstance(url, str) or not url:
        return "it is no text"
    if "::" in url:
        return "it chains file systems ('::')"
    if not url.isprintable():
        return "it holds a control character"
    try:
        protocol, path = split_address(url)
    except InputError:
        return "it can be read as a path and as a URL"
    if protocol not in _PROTOCOLS:
        return "it is neither a local path nor an address of s3://, gs:// or az://"
    if protocol == "file" and not os.path.isabs(path):
        return "it is no absolute path"
    return None


def require_reference(url: object, store: str) -> str:
    """Return the place that a store names, in dkgp's spelling, or refuse to open it.

    `url` is as it stands in the store, which lies at `store`.

    Raises `StoreError`: it is no plain place on storage. The message does not show it: it may hold a secret.
    `InputError`: it holds credentials, or a limit rules it out.
    """
    reason = _why_not(url)
    if reason is not None:
        raise StoreError(
            f"'{store}' names a training set that is not opened: {reason}. Train again on a data set that lies on a "
            "disk or on object storage, or save the model with its inputs (without `by_reference`)."
        )
    place = normalise_url(str(url))
    for check in _limits:
        # As it was written too: programs may read symbolic links and `..` differently.
        check(str(url))
        check(place)
    return place


def referenced_training_set(url: str, content: Json, expected: str | None) -> Dataset:
    """The training set that a model by reference names, under the model's standardisation.

    `expected` is the place that the model has to name, "" where it may name none; any by default. Raises `StoreError`
    where the training set is gone, has changed or may not be named.
    """
    training_url = require_reference(content["training_url"], url)
    if expected is not None and training_url != expected:
        raise StoreError(f"The model '{url}' names another training set than before; it was changed while it was used.")
    try:
        dataset = open_dataset(training_url)
    except StoreError as error:
        raise StoreError(f"The model '{url}' refers to its training set at '{training_url}': {error}") from error
    if dataset.fingerprint != content["fingerprint"]:
        raise StoreError(
            f"The model '{url}' refers to its training set at '{training_url}', whose content has changed since. "
            "Put the training set back, or train again."
        )
    return dataset.with_standardisation(Standardisation.from_json(content["standardisation"]))


def training_set_named(store: str, fingerprint: str) -> Dataset:
    """The training set that a model of any kind was trained on, where it still lies there, under its own map.

    `fingerprint` is the training set's, by the predictions of the model. Raises `StoreError` if the model or the
    training set is gone, has changed or may not be named.
    """
    address = normalise_url(store)
    content = read_manifest(address, recognise(address) or "model")["metadata"]
    if content.get("fingerprint") != fingerprint:
        raise StoreError(f"'{address}' is another model than the one that predicted; predict again.")
    return referenced_training_set(address, content, None)


def named_training_set(store: str) -> object:
    """The training set that a model store's manifest names; None where it names none or cannot be read now.

    Nothing is tried again: opening the model itself does, and checks the named place once more.
    """
    try:
        content = json.loads(_manifest(normalise_url(store)))["metadata"]
        return content["training_url"] if content["by_reference"] else None
    except Exception:  # storages raise errors of any kind, and a manifest may hold anything
        return None


def _manifest(store: str) -> bytes:
    place = join(store, MANIFEST_NAME)
    if not is_local(place):
        file_system, path = filesystem(place)
        content: Any = file_system.cat_file(path)
        return bytes(content)
    # Whoever may write to the store may have put something there that never ends.
    handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        require_within(handle, place)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InputError(f"'{place}' is no file")
        return file.read()
