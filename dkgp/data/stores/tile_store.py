"""Matrix tiles as files in a folder, which a factorisation larger than memory writes once and reads many times.

One file a tile, written whole or not at all, never changed after; a description of the matrix is written first. Nothing
is forced to the disk: the checksum detects a tile that a crash of the machine garbled, and it is computed again.

Layout of a file, little-endian: magic (8 bytes) | CRC-32 (4 bytes) | values, row by row. The checksum covers the tile's
name, type and shape, so that no tile passes for another.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.limits import active, open_local, task_limited_to
from dkgp.data.remote.storage import (
    TEMPORARY_PREFIX,
    is_local,
    join,
    list_object_bytes,
    normalise_url,
    read_object,
    remove_object,
    translate_write_errors,
    write_object,
)
from dkgp.data.stores.manifest import json_bytes
from dkgp.data.types import Json, Location
from dkgp.errors import OutputExistsError, StorageError, StoreError

_MAGIC = b"DKGPTIL1"
TILE_HEADER_BYTES = len(_MAGIC) + 4
_DESCRIPTION = "tiles.json"
_SUFFIX = ".tile"
_NAME = re.compile(r"[0-9a-z-]+")


class TileStore:
    """A folder of tiles; picklable, so that workers read and write with copies.

    Parameters
    ----------
    url
        Local folder or fsspec URL. Workers on other machines must reach it under the same name.
    """

    def __init__(self, url: Location) -> None:
        self.url = normalise_url(url)
        # The maker's limits; workers keep to them as well.
        self._limits = active()

    def create(self, description: Json) -> None:
        """Make the folder and write the description of its tiles; `OutputExistsError` where other files lie there."""
        strangers = [name for name in list_object_bytes(self.url) if not _is_ours(name)]
        if strangers:
            raise OutputExistsError(
                f"'{self.url}' holds other files than tiles ('{strangers[0]}'); expected an empty folder, or none. "
                "Choose another folder"
            )
        self._remove_ours()
        write_object(join(self.url, _DESCRIPTION), json_bytes(description))

    def description(self) -> Json | None:
        """Return the description, None where there are no tiles; `StoreError` where it is damaged."""
        try:
            description: Json = json.loads(read_object(join(self.url, _DESCRIPTION)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(f"the description of the tiles in '{self.url}' is damaged; remove that folder") from error
        return description

    def names(self) -> set[str]:
        """Return the names of the tiles that are there, whole or damaged."""
        return {name.removesuffix(_SUFFIX) for name in list_object_bytes(self.url) if name.endswith(_SUFFIX)}

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Write one tile, whole or not at all; `StorageError` also where there is no such folder on this machine."""
        array = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        payload = array.reshape(-1).view(np.uint8).data
        header = _MAGIC + _checksum(name, array, payload).to_bytes(4, "little")
        place = self._place(name)
        if is_local(self.url) and not Path(self.url).is_dir():
            raise StorageError(
                f"Cannot write '{place}': there is no such folder on this machine; name one that all workers share."
            )
        with task_limited_to(self._limits):
            write_object(place, (header, payload), synced=False)

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read one tile of a known shape; `StoreError` where it is missing, truncated or damaged."""
        array = np.empty(shape, dtype.newbyteorder("<"))
        payload = array.reshape(-1).view(np.uint8).data
        place = self._place(name)
        try:
            with task_limited_to(self._limits):
                header, size = _read_local(place, payload) if is_local(self.url) else _read_remote(place, payload)
        except FileNotFoundError as error:
            raise StoreError(
                f"the tile '{place}' is missing; expected a file that a worker wrote earlier. Workers on several "
                "machines need a folder that all of them share"
            ) from error
        if size != TILE_HEADER_BYTES + array.nbytes:
            raise StoreError(
                f"the tile '{place}' has {size:,} bytes; expected {TILE_HEADER_BYTES + array.nbytes:,}. {_REMEDY}"
            )
        if header != _MAGIC + _checksum(name, array, payload).to_bytes(4, "little"):
            raise StoreError(f"the tile '{place}' is damaged: its checksum does not match. {_REMEDY}")
        return array

    def remove(self, name: str) -> None:
        """Remove one tile; nothing happens where there is none."""
        with task_limited_to(self._limits):
            remove_object(self._place(name))

    def drop_temporaries(self) -> None:
        """Remove files that killed writers left; only where no writer is alive."""
        for name in list_object_bytes(self.url):
            if name.startswith(TEMPORARY_PREFIX):
                remove_object(join(self.url, name))

    def clear(self) -> None:
        """Remove the tiles and their description, and the folder where nothing else lies in it."""
        self._remove_ours()
        if is_local(self.url):
            with contextlib.suppress(OSError):
                os.rmdir(self.url)

    def free_bytes(self) -> int | None:
        """Return the free bytes of the place; None where they are unknown."""
        if not is_local(self.url):
            return None
        folder = Path(self.url)
        while not folder.exists():
            folder = folder.parent
        with translate_write_errors(self.url, "look at"):
            return shutil.disk_usage(folder).free

    def _remove_ours(self) -> None:
        # The description first: without it, tiles are nobody's.
        for name in sorted(list_object_bytes(self.url), key=lambda name: name != _DESCRIPTION):
            if _is_ours(name):
                remove_object(join(self.url, name))

    def _place(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a tile's name consists of digits, small letters and hyphens; got {name!r}")
        return join(self.url, name + _SUFFIX)


_REMEDY = "Run again with the same folder: the tiles that are whole are kept"


def _is_ours(name: str) -> bool:
    return name == _DESCRIPTION or name.endswith(_SUFFIX) or name.startswith(TEMPORARY_PREFIX)


def _checksum(name: str, array: NDArray[Any], payload: memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode()))


def _read_local(place: str, payload: memoryview) -> tuple[bytes, int]:
    with open_local(place) as file:
        header = file.read(TILE_HEADER_BYTES)
        cast(io.BufferedReader, file).readinto(payload)
        return header, os.fstat(file.fileno()).st_size


def _read_remote(place: str, payload: memoryview) -> tuple[bytes, int]:
    content = read_object(place)
    if len(content) == TILE_HEADER_BYTES + len(payload):
        payload[:] = content[TILE_HEADER_BYTES:]
    return content[:TILE_HEADER_BYTES], len(content)
