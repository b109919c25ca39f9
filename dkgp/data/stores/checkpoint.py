"""Checkpoints: named arrays and metadata in one file each, protected by a SHA-256, the last two kept.

A file is written whole or not at all (see `storage.write_object`). Where storage breaks that promise, the hash tells,
and the checkpoint before it is used. (NumPy's .npz has no place for metadata, and its checksums are of the members
alone.) Layout, all numbers little-endian:

    magic (8 bytes) | header length (8 bytes) | header (JSON) | arrays, in the header's order | SHA-256 of all before
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.limits import open_local
from dkgp.data.remote.storage import (
    TEMPORARY_PREFIX,
    is_local,
    join,
    list_object_bytes,
    normalise_url,
    read_object,
    remove_object,
    write_object,
)
from dkgp.data.stores.manifest import json_bytes
from dkgp.data.types import Json, Location
from dkgp.errors import CheckpointError, InputError, StorageError

_MAGIC = b"DKGPCKP1"
_DIGEST_BYTES = 32
_NAME = re.compile(r"checkpoint-(\d{10,})\.dkgp")
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state that was saved last.

    Attributes
    ----------
    sequence_number
        As given to `CheckpointStore.save`.
    arrays, metadata
        As given; arrays are writable copies of the same dtype and shape.
    skipped
        Newer checkpoint files that were damaged and passed over; the user should hear of them.
    """

    sequence_number: int
    arrays: dict[str, NDArray[Any]]
    metadata: Json
    skipped: tuple[str, ...] = ()


class CheckpointStore:
    """A folder of checkpoints; it is created by the first `save`."""

    def __init__(self, url: Location) -> None:
        self.url = normalise_url(url)

    def save(self, sequence_number: int, arrays: Mapping[str, NDArray[Any]], metadata: Json) -> str:
        """Write a checkpoint, then drop all but the last two.

        On object stores the content is held in memory once more while it is sent, and is looked for afterwards: a
        store that has lost it gets it again.

        Parameters
        ----------
        sequence_number
            Not negative, growing from one checkpoint to the next. Checkpoints with a higher number are dropped:
            they belong to a run that was given up.
        arrays
            Name -> array of numbers, of any shape.

        Returns
        -------
        The address of the checkpoint.

        Raises
        ------
        StorageError
            The storage refused; the checkpoints before it are untouched.
        """
        if sequence_number < 0:
            raise InputError(f"A checkpoint's sequence number must not be negative; got {sequence_number}.")
        address = join(self.url, f"checkpoint-{sequence_number:010d}.dkgp")
        write_object(address, _encoded(sequence_number, arrays, metadata))
        self._drop_old(sequence_number)
        return address

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None where there is none at all.

        Raises
        ------
        CheckpointError
            There are checkpoints, and all of them are damaged.
        StorageError
            The storage does not answer.
        """
        reasons: dict[str, str] = {}
        for sequence_number, name in sorted(self._names(), reverse=True):
            try:
                checkpoint = _decoded(read_object(join(self.url, name)))
                if checkpoint.sequence_number != sequence_number:
                    raise CheckpointError(f"it holds the checkpoint {checkpoint.sequence_number}")
            except StorageError:
                # A store that does not answer says nothing about its checkpoints.
                raise
            except (CheckpointError, OSError) as error:
                reasons[name] = str(error)
                continue
            return Checkpoint(checkpoint.sequence_number, checkpoint.arrays, checkpoint.metadata, tuple(reasons))
        if reasons:
            details = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise CheckpointError(
                f"No checkpoint in '{self.url}' is whole ({details}). Remove that folder, and start afresh."
            )
        return None

    def latest_metadata(self) -> Json | None:
        """Return the metadata of the newest checkpoint whose header can be read, arrays unread on a local disk."""
        for _, name in sorted(self._names(), reverse=True):
            address = join(self.url, name)
            with contextlib.suppress(CheckpointError, OSError, ValueError, KeyError, TypeError):
                if not is_local(address):
                    return _decoded(read_object(address)).metadata
                with open_local(address) as file:
                    start = file.read(len(_MAGIC) + 8)
                    # A damaged length asks for more than there is.
                    length = min(int.from_bytes(start[len(_MAGIC) :], "little"), os.fstat(file.fileno()).st_size)
                    content = json.loads(file.read(length))
                return dict(content["metadata"])
        return None

    def clear(self) -> None:
        """Remove all checkpoints. Other files in the folder stay."""
        for _, name in self._names():
            remove_object(join(self.url, name))
        self._drop_temporaries()

    def _names(self) -> list[tuple[int, str]]:
        matches = (_NAME.fullmatch(name) for name in list_object_bytes(self.url))
        return [(int(match.group(1)), match.group(0)) for match in matches if match]

    def _drop_old(self, sequence_number: int) -> None:
        names = sorted(self._names(), reverse=True)
        current = [name for number, name in names if number <= sequence_number]
        for _, name in names:
            if name not in current[:_KEPT]:
                remove_object(join(self.url, name))
        self._drop_temporaries()

    def _drop_temporaries(self) -> None:
        # Left by a process that was killed while it wrote. There is one writer, so none of them is alive.
        for name in list_object_bytes(self.url) if is_local(self.url) else ():
            if name.startswith(TEMPORARY_PREFIX):
                remove_object(join(self.url, name))


def _encoded(sequence_number: int, arrays: Mapping[str, NDArray[Any]], metadata: Json) -> Iterator[bytes | memoryview]:
    plain: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        array = np.ascontiguousarray(values).reshape(np.shape(values))
        if array.dtype.kind not in "biufc":
            raise InputError(f"The checkpoint array '{name}' has dtype {array.dtype}; expected numbers.")
        plain[name] = array.astype(array.dtype.newbyteorder("<"), copy=False)
    entries = [{"name": name, "dtype": array.dtype.str, "shape": array.shape} for name, array in plain.items()]
    content = {"sequence_number": sequence_number, "metadata": metadata, "arrays": entries}
    header = json_bytes(content, indent=None)  # a long history, checkpoint after checkpoint
    digest = hashlib.sha256()
    for piece in (_MAGIC, len(header).to_bytes(8, "little"), header):
        digest.update(piece)
        yield piece
    for array in plain.values():
        if array.size:
            view = array.reshape(-1).view(np.uint8).data
            digest.update(view)
            yield view
    yield digest.digest()


def _decoded(content: bytes) -> Checkpoint:
    if len(content) < len(_MAGIC) + 8 + _DIGEST_BYTES or not content.startswith(_MAGIC):
        raise CheckpointError(f"truncated or not a checkpoint ({len(content)} bytes)")
    body = memoryview(content)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != content[-_DIGEST_BYTES:]:
        raise CheckpointError(f"truncated or damaged ({len(content)} bytes; the checksum does not match)")
    start = len(_MAGIC) + 8
    stop = start + int.from_bytes(body[len(_MAGIC) : start], "little")
    header = json.loads(bytes(body[start:stop]))
    arrays: dict[str, NDArray[Any]] = {}
    for entry in header["arrays"]:
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        start, stop = stop, stop + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays[entry["name"]] = np.frombuffer(body[start:stop], dtype=dtype).reshape(shape).copy()
    return Checkpoint(header["sequence_number"], arrays, header["metadata"])
