"""Arrays in a Zarr v3 group, chunked by rows only; every failure to read one is named.

Each chunk ends in a CRC32C, so a flipped bit is an error. The fill value is NaN (-1 for row numbers, 255 for bytes of
text, which is no part of UTF-8). No array of dkgp may hold it: a fill value that is read is a chunk that has vanished.

A chunk is read and decoded whole, and blocks of rows may end within chunks. Each process keeps the latest such chunks,
so that neighbouring blocks do not read a chunk twice.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.claims import Claim
from dkgp.data.remote.limits import active
from dkgp.data.remote.storage import is_local, join, normalise_url, translate_write_errors
from dkgp.data.stores.manifest import (
    Manifest,
    check_complete,
    chunk_keys,
    chunk_place,
    chunk_rows_of_key,
    manifest_mark,
    read_manifest,
    refuse_large_chunks,
    store_attributes,
    stored_checksum,
)
from dkgp.data.types import FloatArray, IntArray, Json, Location, block_rows
from dkgp.errors import InputError, StorageError, StoreError, is_mistake
from dkgp.forks import FeatureCache
from dkgp.registry import LaterModule

if TYPE_CHECKING:
    import zarr
    import zarr.codecs

    from dkgp.data.remote import zarr_store
else:
    zarr, zarr_store = LaterModule("zarr"), LaterModule("dkgp.data.remote.zarr_store")

_MIB = 2**20
# Of every array that is read back. Another codec could make any number of bytes of a chunk.
_CODECS = ("BytesCodec", "BloscCodec", "Crc32cCodec")

StoredType: TypeAlias = Literal["float64", "float32", "int64", "int8", "uint8"]
_FILL_VALUES: dict[StoredType, float | int] = {
    "float64": float("nan"),
    "float32": float("nan"),
    "int64": -1,
    "int8": -1,
    "uint8": 255,
}


def default_chunk_rows(n_samples: int | None, n_columns: int) -> int:
    """Rows of a chunk: about 8192, within 1 to 8 MiB, and even over the chunks where the length is known."""
    row_bytes = 8 * max(n_columns, 1)
    most = max(8 * _MIB // row_bytes, 1)
    # A chunk of few columns need not reach 1 MiB: too few chunks would leave workers without a task.
    least = min(_MIB // row_bytes, 16384)
    rows = min(max(8192, least), most)
    return rows if n_samples is None else even_chunk_rows(n_samples, rows)


def sample_chunk_rows(n_samples: int | None, n_columns: int) -> int:
    """Rows of a chunk of samples to train on: of a block, or an even part of one where that is more than 8 MiB.

    A pass over the blocks then reads each chunk once. Samples that fit into one chunk, and those whose number is not
    known in advance, are chunked as other arrays are.
    """
    rows = default_chunk_rows(n_samples, n_columns)
    if n_samples is None or rows >= n_samples:
        return rows
    block, most = block_rows(n_samples), 8 * _MIB // (8 * max(n_columns, 1))
    return next((block // parts for parts in range(1, block) if block % parts == 0 and block // parts <= most), 1)


def even_chunk_rows(n_rows: int, most: int) -> int:
    """Rows of a chunk, at most `most`, such that the last chunk is about as long as the others."""
    n_chunks = -(-max(n_rows, 1) // most)
    return -(-max(n_rows, 1) // n_chunks)


def row_ranges(n_rows: int, chunk_rows: int) -> list[tuple[int, int]]:
    """Row ranges [start, stop) of the chunks, in order."""
    return [(start, min(start + chunk_rows, n_rows)) for start in range(0, n_rows, chunk_rows)]


def target_layout(n_samples: int, n_targets: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and dimensions of an array with a column for each target; one target is stored as a vector."""
    if n_targets == 1:
        return (n_samples,), ("sample",)
    return (n_samples, n_targets), ("sample", "target")


def create_group(url: str, kind: str, attributes: Json, claim: Claim | None = None, version: int | None = None) -> None:
    """A Zarr v3 group, marked as a dkgp store of `kind`, at a place that is empty but for the writer's claim."""
    with translate_write_errors(url):
        zarr.create_group(
            zarr_store.zarr_place(url, claim),
            zarr_format=3,
            attributes={**store_attributes(kind, version), **attributes},
            # On an object store, a writer that was taken over may just have put its own there.
            overwrite=not is_local(url),
        )


def set_attributes(url: str, attributes: Json, claim: Claim | None = None) -> None:
    """Add attributes to the root of a group, for those who look at it with xarray."""
    with translate_write_errors(url):
        zarr.open_group(zarr_store.zarr_place(url, claim), mode="r+", zarr_format=3).attrs.update(attributes)


def create_array(
    url: str,
    name: str,
    shape: tuple[int, ...],
    chunk_rows: int,
    dimension_names: tuple[str, ...],
    attributes: Json | None = None,
    dtype: StoredType = "float64",
    claim: Claim | None = None,
) -> StoredArray:
    """An array in the group at `url`, chunked by rows, all its chunks still to be written.

    An array of integers is one of numbers of rows or classes: it may not hold a negative. The array writes under the
    claim.
    """
    refuse_large_chunks(name, shape, chunk_rows)
    shuffled = zarr.codecs.BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=np.dtype(dtype).itemsize)
    with translate_write_errors(url):
        # By its own address, not through the group, which Zarr would write at the same time (see `StoredArray.write`).
        zarr.create_array(
            zarr_store.zarr_place(join(url, name), claim),
            shape=shape,
            chunks=(chunk_rows, *shape[1:]),
            dtype=dtype,
            fill_value=_FILL_VALUES[dtype],
            compressors=[shuffled, zarr.codecs.Crc32cCodec()],
            dimension_names=dimension_names,
            attributes=attributes,
            zarr_format=3,
            config={"write_empty_chunks": True},
            overwrite=not is_local(url),
        )
    return StoredArray(url, name, shape, chunk_rows, claim)


def create_name_array(url: str, name: str, names: Sequence[str], claim: Claim | None = None) -> StoredArray:
    """The coordinate of a dimension, of its own name: text, written at once and never read back by dkgp."""
    with translate_write_errors(url), warnings.catch_warnings():
        # zarr may remark that its type for text is not in the text of the specification yet.
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            zarr_store.zarr_place(join(url, name), claim),
            shape=(len(names),),
            chunks=(len(names),),
            dtype="string",
            dimension_names=(name,),
            zarr_format=3,
            config={"write_empty_chunks": True},
            overwrite=not is_local(url),
        )
        array[:] = np.array(names, dtype=object)
    return StoredArray(url, name, (len(names),), len(names), claim)


def open_arrays(url: Location, kind: str) -> tuple[str, Manifest, dict[str, StoredArray]]:
    """A finished store's address, manifest and arrays; `StoreError` where it is none of the kind, or damaged."""
    address = normalise_url(url)
    manifest = read_manifest(address, kind)
    check_complete(address, manifest)
    arrays = {name: StoredArray.from_manifest(address, name, manifest) for name in manifest["arrays"]}
    return address, manifest, arrays


class StoredArray:
    """A handle on one array; picklable, opened in the process that uses it.

    `shape` is (n,) or (n, columns); reads and writes are by whole rows. A writer's has its claim.
    """

    def __init__(
        self, url: str, name: str, shape: tuple[int, ...], chunk_rows: int, claim: Claim | None = None
    ) -> None:
        self.url = normalise_url(url)
        self.name = name
        self.shape = shape
        self.chunk_rows = chunk_rows
        self._claim = claim
        # The maker's limits; workers keep to them as well.
        self._limits = active()
        self._opened: Any = None
        # Of the manifest that describes a finished store's array: its mark (`manifest_mark`), and its checksum.
        self._described_by: tuple[str, str] | None = None

    @classmethod
    def from_manifest(cls, url: str, name: str, manifest: Manifest) -> StoredArray:
        """The array as the manifest of a finished store describes it, of that store and no other."""
        entry = manifest["arrays"][name]
        array = cls(url, name, tuple(int(size) for size in entry["shape"]), int(entry["chunk_rows"]))
        if manifest.mark is not None:
            array._described_by = manifest.mark, manifest.written
        return array

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop), float64. `StoreError` names a chunk that is missing or damaged."""
        return np.asarray(self.read_as_stored(start, stop), dtype=np.float64)

    def read_as_stored(self, start: int, stop: int) -> NDArray[Any]:
        """Rows [start, stop) in the type that they are stored in. Errors as for `read`."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise InputError(f"The array '{self.name}' has {self.shape[0]} rows; got the rows {start} to {stop}.")
        return self._checked(slice(start, stop), start, stop)

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices` (any order, repeats allowed), float64, reading only the chunks they lie in."""
        indices = np.asarray(indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise InputError(f"Row indices must be a vector of integers; got shape {indices.shape}, {indices.dtype}.")
        if indices.size == 0:
            return np.empty((0, *self.shape[1:]))
        ordered, inverse = np.unique(indices, return_inverse=True)
        first, last = int(ordered[0]), int(ordered[-1])
        if first < 0 or last >= self.shape[0]:
            raise InputError(
                f"The array '{self.name}' has {self.shape[0]} rows; got the row {first if first < 0 else last}."
            )
        return np.asarray(self._checked(ordered, first, last + 1)[inverse], dtype=np.float64)

    def reads(self, url: str) -> bool:
        """Return True if the array belongs to the store at an address."""
        return self.url == normalise_url(url)

    def require_whole_chunks(self, start: int, stop: int) -> None:
        """Check that the rows [start, stop) are there and make up whole chunks; `InputError` where they do not."""
        n_rows = self.shape[0]
        aligned = start % self.chunk_rows == 0 and (stop % self.chunk_rows == 0 or stop == n_rows)
        if not (aligned and 0 <= start < stop <= n_rows):
            raise InputError(
                f"The region of rows {start} to {stop - 1} is not made of whole chunks of {self.chunk_rows} rows "
                f"of the {n_rows}."
            )

    def write(self, start: int, block: NDArray[Any]) -> None:
        """Write rows from `start` on; `StorageError` where the storage refuses.

        The caller keeps to whole chunks: one chunk has one writer.
        """
        with translate_write_errors(join(self.url, self.name)):
            array = self._handle("r+")
            # One object at a time: when one of several has failed, the others are still on their way, and would restore
            # objects that the caller then removes.
            done = 0
            while done < len(block):
                rows = min(self.chunk_rows - (start + done) % self.chunk_rows, len(block) - done)
                array[start + done : start + done + rows] = block[done : done + rows]
                done += rows

    def resize(self, n_rows: int) -> None:
        """Change the number of rows; chunks in place stay."""
        with translate_write_errors(join(self.url, self.name)):
            self._handle("r+").resize((n_rows, *self.shape[1:]))
        self.shape = (n_rows, *self.shape[1:])

    def _handle(self, mode: Literal["r", "r+"]) -> Any:
        # A forked process must not use its parent's connections.
        if self._opened is None or self._opened[0] != (mode, os.getpid()):
            place = zarr_store.zarr_place(join(self.url, self.name), self._claim, self._limits)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", category=UserWarning)
                array = zarr.open_array(place, mode=mode, zarr_format=3, config={"write_empty_chunks": True})
            self._opened = ((mode, os.getpid()), array)
        return self._opened[1]

    def _checked(self, selection: slice | IntArray, start: int, stop: int) -> NDArray[Any]:
        try:
            while True:
                # Before the rows: another thread may note a copy's manifest while this one reads.
                described = self._described_by
                try:
                    if isinstance(selection, slice) and described is not None:
                        block = self._by_chunks(start, stop, described)
                    else:
                        block = self._whole(selection, start, stop)
                except StoreError:
                    # The store may be gone or replaced rather than damaged; report that first.
                    self._require_same_store(described)
                    raise
                if self._require_same_store(described):
                    return block
                # A copy took the store's place. Another store may have stood there in between: read again.
                KEPT_CHUNKS.discard((self.url, self.name))
        except BaseException:
            # They may be another store's.
            KEPT_CHUNKS.discard((self.url, self.name))
            raise

    def _by_chunks(self, start: int, stop: int, described: tuple[str, str]) -> NDArray[Any]:
        """Read rows of a finished store; keep chunks that they share with other rows for those rows' readers."""
        parts: list[NDArray[Any]] = []
        whole = False
        while start < stop or not parts:
            first = start - start % self.chunk_rows
            end = min(first + self.chunk_rows, self.shape[0])
            whole = start == first and stop >= end
            if whole or start == stop:
                # With all whole chunks that follow.
                end = stop if stop == self.shape[0] else max(start, stop - stop % self.chunk_rows)
                parts.append(self._whole(slice(start, end), start, end))
            else:
                key = ((self.url, self.name), described, first)
                chunk = KEPT_CHUNKS.get(key, functools.partial(self._whole, slice(first, end), first, end))
                end = min(end, stop)
                parts.append(chunk[start - first : end - first])
            start = end
        return parts[0] if whole and len(parts) == 1 else np.concatenate(parts)

    def _whole(self, selection: slice | IntArray, start: int, stop: int) -> NDArray[Any]:
        try:
            block = self._get(selection)
        except (StoreError, StorageError):
            raise
        except Exception as error:
            if is_mistake(error):
                raise
            self._blame(selection, start, stop)
            # No chunk fails on its own: the failure was the array's, or it has passed.
            try:
                block = self._get(selection)
            except StorageError:
                raise
            except Exception:
                raise StoreError(f"The array '{self.name}' of '{self.url}' cannot be read: {error}") from error
        if _holds_fill_value(block):
            self._blame(selection, start, stop)
        return block

    def _require_same_store(self, described: tuple[str, str] | None) -> bool:
        """Refuse rows that were read while another store of the same shape took the place; `StoreError`.

        `described` holds the mark and the checksum of the manifest before these rows were read. Returns False if a copy
        of the store has replaced it since.

        A store is overwritten by one whose manifest comes last: while the manifest is the one that was read when the
        store was opened, so were the chunks that were read before this look. One look for all the rows that are read at
        once; on object storage it is a request beside one for each chunk.
        """
        if described is None:
            return True
        mark, written = described
        present = manifest_mark(self.url)
        if present == mark:
            return True
        # A copy of the same store is the same store.
        with contextlib.suppress(OSError, ValueError, AttributeError, StoreError):
            if present is not None and stored_checksum(self.url) == written:
                self._described_by = present, written
                return False
        raise StoreError(
            f"'{self.url}' was overwritten or removed while it was read. Run the command again once it is whole."
        )

    def _get(self, selection: slice | IntArray) -> NDArray[Any]:
        try:
            array = self._handle("r")
        except StorageError:
            raise
        except Exception as error:
            if is_mistake(error):
                raise
            raise StoreError(
                f"The metadata of the array '{self.name}' of '{self.url}' cannot be read: {error}. "
                "Write the store again."
            ) from error
        if array.shape != self.shape or array.chunks[0] != self.chunk_rows:
            raise StoreError(
                f"The array '{self.name}' of '{self.url}' has shape {array.shape} in chunks of {array.chunks[0]} rows; "
                f"its manifest says {self.shape} in chunks of {self.chunk_rows}. Write the store again."
            )
        codecs = tuple(getattr(zarr.codecs, name) for name in _CODECS)
        if tuple(map(type, array.metadata.codecs)) != codecs or math.prod(array.chunks[1:]) > math.prod(
            max(size, 1) for size in self.shape[1:]
        ):
            raise StoreError(
                f"The array '{self.name}' of '{self.url}' has chunks of shape {array.chunks} and codecs that dkgp does "
                "not write. Write the store again."
            )
        return np.asarray(array[selection] if isinstance(selection, slice) else array.oindex[selection])

    def _blame(self, selection: slice | IntArray, start: int, stop: int) -> None:
        """Read the chunks of a failed read one by one, and raise `StoreError` for the first that is not whole."""
        keys = chunk_keys(self.shape, self.chunk_rows)
        if isinstance(selection, slice):
            touched = range(start // self.chunk_rows, -(-stop // self.chunk_rows))
        else:
            touched = np.unique(selection // self.chunk_rows).tolist()
        for index in touched:
            first, last = chunk_rows_of_key(keys[index], self.shape[0], self.chunk_rows)
            where = chunk_place(self.url, f"{self.name}/{keys[index]}", self.shape[0], self.chunk_rows)
            try:
                block = self._get(slice(first, last))
            except (StoreError, StorageError):
                raise
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise StoreError(f"{where} is damaged and cannot be read: {reason}. Write the store again.") from error
            if _holds_fill_value(block):
                raise StoreError(f"{where} is missing. Write the store again.")


def _holds_fill_value(block: NDArray[Any]) -> bool:
    if block.dtype.kind == "i":
        return bool((block == _FILL_VALUES["int64"]).any())
    if block.dtype.kind == "u":
        return bool((block == _FILL_VALUES["uint8"]).any())
    # The sum finds a NaN without a temporary as large as the block; only then is it worth looking closer.
    with np.errstate(all="ignore"):
        return bool(np.isnan(block.sum())) and bool(np.isnan(block).any())


# Eight chunks of the largest default size, one for each thread of a usual worker.
BUDGET_BYTES = 64 * 2**20


KEPT_CHUNKS = FeatureCache(BUDGET_BYTES)
