"""Bounds on the metadata of Zarr groups and arrays, checked before Zarr reads them.

A few bytes of metadata may name a codec that runs code, such as pickle, or promise a chunk of any size.
"""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Literal

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.dtype import get_data_type_from_json
from zarr.storage import WrapperStore

from dkgp.errors import InputError

# One metadata document, or the attributes of one HDF5 file.
MOST_DOCUMENT_BYTES = 16 * 2**20
# One chunk, decoded.
MOST_CHUNK_BYTES = 2 * 2**30
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


class CheckedStore(WrapperStore[Store]):
    """A store to read from, each metadata document of which is checked; `url` is for messages.

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


def check_document(key: str, content: bytes, where: str) -> None:
    """Refuse metadata of which Zarr would make more than numbers and text of bounded size; `InputError`.

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
            f"{where} names the codec {str(name)[:80]!r}, which is not one that is read, since a codec may run code. "
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
