"""Zarr's view of a store within limits, and of a remote one.

Of a remote one every request is retried, every write conditional, and there are about four reads at a time.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from dkgp.data.remote.addresses import is_local, normalise_url, shown
from dkgp.data.remote.claims import Claim
from dkgp.data.remote.limits import Limits, active, open_local, task_limited_to
from dkgp.data.remote.object_store import backend, put_async
from dkgp.data.remote.retries import Attempts, retried
from dkgp.data.remote.storage import remove_tree, write_object
from dkgp.data.remote.zarr_metadata import CheckedStore

T = TypeVar("T")

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
        """The same store, to be read alone or to be written as well."""
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


class RemoteStore(WrapperStore[FsspecStore]):
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
        """Write one object, where nothing is or in the place of exactly what was looked at."""
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

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        """Parts of objects, None for each that is not there."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for key, prototype, byte_range in requests:
            yield key, await self.get(key, prototype, byte_range)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        for key, value in values:
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Remove one object."""
        await self._retried("remove", key, lambda: self._store.delete(key))

    async def delete_dir(self, prefix: str) -> None:
        """Nothing: a place is cleared under its claim, and what another writer leaves later is replaced one by one."""

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
