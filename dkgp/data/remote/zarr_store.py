"""Zarr's view of a store: within limits, and remote ones with retries; metadata is checked before Zarr reads it.

Every request to a remote store is retried, every write is conditional, and there are about four reads at a time. A few
bytes of metadata may name a codec that runs code, such as pickle, or promise a chunk of any size: `CheckedStore`
refuses them.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.dtype import get_data_type_from_json
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from dkgp.data.remote.addresses import is_local, normalise_url, shown
from dkgp.data.remote.claims import Claim
from dkgp.data.remote.limits import Limits, active, open_local, task_limited_to
from dkgp.data.remote.object_store import Attempts, backend, put_async, retried
from dkgp.data.remote.storage import remove_tree, write_object
from dkgp.data.types import MOST_CHUNK_BYTES, MOST_DOCUMENT_BYTES
from dkgp.errors import InputError

T = TypeVar("T")
AnyStore = TypeVar("AnyStore", bound=Store)

# Requests at a time are Dask's threads times this; Zarr's own default of 10 floods a store. A user's setting wins.
zarr.config.update_defaults({"async": {"concurrency": 4}})


def zarr_place(url: str, claim: Claim | None = None, limits: tuple[Limits, ...] = ()) -> Any:
    """A place as Zarr and xarray take it: the path of a local one, a guarded store of its own for a remote one.

    A local one is guarded as well where there are limits, this process's or others besides.

    `url` is that of a store, or of a group or array in one; `claim` the writer's, None for readers and where no two
    writers can meet.
    """
    address = normalise_url(url)
    if is_local(address):
        held_to = limits or active()
        return LimitedStore(address, limits=held_to) if held_to else address
    file_system, path = backend(address, asynchronous=True)
    root = path if claim is None else backend(claim.url, asynchronous=True)[1]
    return RemoteStore(FsspecStore(fs=file_system, path=path.rstrip("/")), address, claim, root)


def readable_store(url: str) -> CheckedStore:
    """Return a Zarr store of somebody else's, to read from; its metadata is checked (see `zarr_metadata`)."""
    place = zarr_place(url)
    store = place if isinstance(place, Store) else LocalStore(place)
    return CheckedStore(store.with_read_only(True), shown(url))


class LimitedStore(LocalStore):
    """A local store whose every file is opened within limits (see `dkgp.data.remote.limits`)."""

    def __init__(self, root: Path | str, *, read_only: bool = False, limits: tuple[Limits, ...] = ()) -> None:
        super().__init__(root, read_only=read_only)
        self._limits = limits

    def with_read_only(self, read_only: bool = False) -> LimitedStore:
        """Return this store for reading alone, or for reading and writing."""
        return type(self)(self.root, read_only=read_only, limits=self._limits)

    async def _open(self, *, mode: Any = None) -> None:
        # Without making the folder, as Zarr would by its name: the first file does.
        self._is_open = True

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """One object, or None where there is none."""
        try:
            content = self._limited(_read_part, key, byte_range)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(content)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write one object, whole or not at all."""
        self._check_writable()
        self._limited(write_object, key, value.to_bytes(), synced=False)

    def delete_sync(self, key: str) -> None:
        """Remove one object, or a folder."""
        self._check_writable()
        self._limited(remove_tree, key)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """`get_sync`, in a thread."""
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        """Parts of objects, None for each that is not there."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def set(self, key: str, value: Buffer) -> None:
        """`set_sync`, in a thread."""
        await asyncio.to_thread(self.set_sync, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write one object unless it is there."""
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """`delete_sync`, in a thread."""
        await asyncio.to_thread(self.delete_sync, key)

    async def delete_dir(self, prefix: str) -> None:
        """Remove a folder."""
        await self.delete(prefix)

    async def clear(self) -> None:
        """Remove all."""
        await self.delete("")

    def _limited(self, work: Callable[..., T], key: str, *arguments: Any, **options: Any) -> T:
        with task_limited_to(self._limits):
            return work(str(self.root / key), *arguments, **options)


def _read_part(path: str, part: ByteRequest | None) -> bytes:
    """Return a part of a local file, without reading the rest."""
    with open_local(path) as file:
        match part:
            case RangeByteRequest(start, end):
                file.seek(start)
                return file.read(end - start)
            case OffsetByteRequest(offset):
                file.seek(offset)
            case SuffixByteRequest(suffix):
                file.seek(max(os.fstat(file.fileno()).st_size - suffix, 0))
        return file.read()


class _OneByOne(WrapperStore[AnyStore]):
    """A store that reads several objects by its own `get`, one after the other."""

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        """Return parts of objects, None for each that is not there."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for key, prototype, byte_range in requests:
            yield key, await self.get(key, prototype, byte_range)


class RemoteStore(_OneByOne[FsspecStore]):
    """See the module; `store` does the work, at `url`, and `root` is the path of the claim's store within it."""

    def __init__(self, store: FsspecStore, url: str = "", claim: Claim | None = None, root: str = "") -> None:
        super().__init__(store)
        self._url = url
        self._claim = claim
        self._root = root

    def _with_store(self, store: FsspecStore) -> RemoteStore:
        return type(self)(store, self._url, self._claim, self._root)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """One object, or None where there is none."""
        return await self._retried("read", key, lambda: self._store.get(key, prototype, byte_range))

    async def exists(self, key: str) -> bool:
        """True if there is an object."""
        return await self._retried("read", key, lambda: self._store.exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        """Write one object, where none is or in place of exactly the one that was looked at."""
        self._check_writable()
        file_system, claim = self._store.fs, self._claim

        async def guard() -> None:
            if claim is not None:
                await claim.require_on(file_system, self._root)

        path = f"{self._store.path}/{key}"
        await put_async(file_system, path, self._address(key), value.to_bytes(), guard=guard)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write one object unless it is there."""
        if not await self.exists(key):
            await self.set(key, value)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        for key, value in values:
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Remove one object."""
        await self._retried("remove", key, lambda: self._store.delete(key))

    async def delete_dir(self, prefix: str) -> None:
        """Do nothing: a place is cleared under its claim; objects of a superseded writer are replaced one by one."""

    def list(self) -> AsyncIterator[str]:
        """All keys."""
        return self._listed("", self._store.list)

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with a prefix."""
        return self._listed(prefix, lambda: self._store.list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names in a folder."""
        return self._listed(prefix, lambda: self._store.list_dir(prefix))

    async def _listed(self, prefix: str, listing: Callable[[], AsyncIterator[str]]) -> AsyncIterator[str]:
        async def list_all() -> tuple[str, ...]:
            self._store.fs.invalidate_cache()
            return tuple([key async for key in listing()])

        for key in await self._retried("list", prefix, list_all):
            yield key

    async def _retried(self, action: str, key: str, operation: Callable[[], Awaitable[T]]) -> T:
        return await retried(operation, Attempts(action, self._address(key)))

    def _address(self, key: str) -> str:
        return f"{self._url}/{key}" if key else self._url


# The index of one shard takes 16 bytes for each of its chunks.
_MOST_INDEX_BYTES = 64 * 2**20
_DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"})
# These make numbers or text of bytes and do nothing else. Pickle, JSON and MessagePack are not among them, and neither
# are the codecs of other packages.
_NUMCODECS = frozenset(
    [
        "adler32",
        "astype",
        "bitround",
        "blosc",
        "bz2",
        "crc32",
        "crc32c",
        "delta",
        "fixedscaleoffset",
        "fletcher32",
        "gzip",
        "jenkins_lookup3",
        "lz4",
        "lzma",
        "packbits",
        "pcodec",
        "quantize",
        "shuffle",
        "vlen-bytes",
        "vlen-utf8",
        "zfpy",
        "zlib",
        "zstd",
    ]
)
_SHARDING = "sharding_indexed"
_CODECS = frozenset(
    {"blosc", "bytes", "crc32c", "endian", "gzip", "transpose", "vlen-bytes", "vlen-utf8", "zstd", _SHARDING}
    | {f"numcodecs.{name}" for name in _NUMCODECS}
)
# Fields of a codec's configuration that name a type to decode to.
_TYPE_FIELDS = ("dtype", "astype", "encode_dtype", "decode_dtype")


class CheckedStore(_OneByOne[Store]):
    """A store to read from; each metadata document is checked. `url` is for messages.

    Raises `InputError` for a document that is too large, or describes an array that is not read.
    """

    def __init__(self, store: Store, url: str = "") -> None:
        super().__init__(store)
        self._url = url

    def _with_store(self, store: Store) -> CheckedStore:
        return type(self)(store, self._url)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return one object, None where there is none."""
        if key.rsplit("/", 1)[-1] not in _DOCUMENTS or byte_range is not None:
            return await self._store.get(key, prototype, byte_range)
        content = await self._store.get(key, prototype, RangeByteRequest(0, MOST_DOCUMENT_BYTES + 1))
        if content is not None:
            check_document(key, content.to_bytes(), f"'{self._url}/{key}'" if self._url else f"'{key}'")
        return content


def check_document(key: str, content: bytes, where: str) -> None:
    """Refuse metadata unless it describes numbers or text of bounded size only; `InputError`.

    Metadata that is not valid JSON is left for Zarr to refuse.
    """
    if len(content) > MOST_DOCUMENT_BYTES:
        raise InputError(
            f"The metadata {where} takes more than {MOST_DOCUMENT_BYTES:,} bytes, which is more than is read. Save the "
            "columns as one matrix 'X', and large attributes as arrays."
        )
    try:
        document = json.loads(content)
    except ValueError:
        return
    except RecursionError as error:
        raise InputError(
            f"The metadata {where} is nested too deep to be read. Write it again with fewer levels."
        ) from error
    if key.endswith(".zmetadata"):
        _check_consolidated(document, where)
    elif not key.endswith(".zattrs"):
        _check_node(document, where)


def _check_consolidated(document: Any, where: str) -> None:
    """Check the metadata of all nodes below a group of Zarr v2, put together by path as Zarr does."""
    nodes: dict[str, dict[str, Any]] = {}
    for name, entry in (_mapping(_mapping(document, where).get("metadata", {}), where)).items():
        path, _, kind = name.rpartition("/.")
        if kind != "zattrs" and name != ".zattrs":
            nodes.setdefault(path, {}).update(_mapping(entry, where))
    for path, node in nodes.items():
        _check_node(node, f"{where} of '{path}'")


def _check_node(node: Any, where: str) -> None:
    node = _mapping(node, where)
    inline = node.get("consolidated_metadata")
    if inline is not None:
        for path, member in _mapping(_mapping(inline, where).get("metadata", {}), where).items():
            _check_node(member, f"{where} of '{path}'")
    if "codecs" in node:
        grid = _mapping(_mapping(node.get("chunk_grid", {}), where).get("configuration", {}), where)
        item_bytes = _item_bytes(node.get("data_type"), 3, where)
        _check_codecs(node["codecs"], _lengths(grid.get("chunk_shape", []), where), item_bytes, where)
    coders = [*_listed(node.get("filters"), where), *_listed(node.get("compressor"), where)]
    for coder in coders:
        _check_codec(coder, _mapping(coder, where).get("id"), _NUMCODECS, where)
    if "chunks" in node:
        _check_chunk(_lengths(node["chunks"], where), _item_bytes(node.get("dtype"), 2, where), where)


def _check_codecs(codecs: Any, shape: list[int], item_bytes: int, where: str) -> None:
    """Check the codecs of Zarr v3 of a chunk of this shape; of shards, also those of the chunks within."""
    named = [
        (codec, codec if isinstance(codec, str) else _mapping(codec, where).get("name"))
        for codec in _listed(codecs, where)
    ]
    for codec, name in named:
        configuration = {} if isinstance(codec, str) else codec.get("configuration") or {}
        _check_codec(configuration, name, _CODECS, where)
        if name == _SHARDING:
            inner = _lengths(_mapping(configuration, where).get("chunk_shape", []), where)
            index_bytes = 16 * math.prod(
                -(-outer // max(length, 1)) for outer, length in zip(shape, inner, strict=False)
            )
            if index_bytes > _MOST_INDEX_BYTES:
                raise InputError(
                    f"The index of a shard of {where} takes {index_bytes:,} bytes; at most {_MOST_INDEX_BYTES:,} are "
                    "read at once. Write the array again with smaller shards."
                )
            _check_codecs(configuration.get("codecs", []), inner, item_bytes, where)
            _check_codecs(configuration.get("index_codecs", []), [], 0, where)
    # The chunks of a shard are read one by one, unless another codec is wrapped around it.
    if [name for _, name in named] != [_SHARDING]:
        _check_chunk(shape, item_bytes, where)


def _check_codec(configuration: Any, name: Any, known: frozenset[str], where: str) -> None:
    if name not in known:
        raise InputError(
            f"{where} names the codec {str(name)[:80]!r}, which dkgp does not read, since a codec may run code. "
            f"Known: {', '.join(sorted(known))}. Write the array again with one of these."
        )
    for field in _TYPE_FIELDS:
        decoded = _mapping(configuration, where).get(field)
        if decoded is not None and not _is_number_type(decoded):
            raise InputError(
                f"{where} names the codec '{name}' with the type {str(decoded)[:80]!r}; expected a type of numbers. "
                "Write the array again without this codec."
            )


def _is_number_type(name: Any) -> bool:
    try:
        return isinstance(name, str) and np.dtype(name).kind in "biufcmM"
    except TypeError:
        return False


def _check_chunk(shape: list[int], item_bytes: int, where: str) -> None:
    chunk_bytes = math.prod(shape) * item_bytes
    if chunk_bytes > MOST_CHUNK_BYTES:
        raise InputError(
            f"A chunk of {where} takes {chunk_bytes:,} bytes; at most {MOST_CHUNK_BYTES:,} are read at once. Write the "
            "array again with smaller chunks."
        )


def _item_bytes(data_type: Any, zarr_format: Literal[2, 3], where: str) -> int:
    """Return the bytes of one value of a type, as metadata of this version names it."""
    # A vector of objects has its type by its codec; only text has one of the list.
    codec = "vlen-utf8" if data_type == "|O" else None
    specification = data_type if zarr_format == 3 else {"name": data_type, "object_codec_id": codec}
    try:
        native = get_data_type_from_json(specification, zarr_format=zarr_format).to_native_dtype()
    except Exception as error:
        raise InputError(
            f"{where} names the type {str(data_type)[:80]!r}, which Zarr does not read. Write the array again with a "
            "type of numbers or text."
        ) from error
    return max(native.itemsize, 1)


def _lengths(shape: Any, where: str) -> list[int]:
    lengths = _listed(shape, where)
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise InputError(f"{where} holds {str(shape)[:80]!r} where lengths belong; it is damaged. Write it again.")
    return lengths


def _listed(value: Any, where: str) -> list[Any]:
    """Return a value of metadata as a list; None is an empty one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} holds {str(value)[:80]!r} where fields belong; it is damaged. Write it again.")
    return value
