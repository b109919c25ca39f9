"""Zarr's view of a remote store: every request retried, every write conditional, about four reads at a time."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, WrapperStore

from dkgp.data.remote.addresses import is_local, normalise_url
from dkgp.data.remote.claims import Claim
from dkgp.data.remote.object_store import backend, put_async
from dkgp.data.remote.retries import Attempts, retried

T = TypeVar("T")

# Requests at a time are Dask's threads times this; Zarr's own default of 10 floods a store. A user's setting wins.
zarr.config.update_defaults({"async": {"concurrency": 4}})


def zarr_place(url: str, claim: Claim | None = None) -> Any:
    """A place as Zarr and xarray take it: the path of a local one, a guarded store of its own for a remote one.

    `url` is that of a store, or of a group or array in one; `claim` the writer's, None for readers and where no two
    writers can meet.
    """
    address = normalise_url(url)
    if is_local(address):
        return address
    file_system, path = backend(address, asynchronous=True)
    root = path if claim is None else backend(claim.url, asynchronous=True)[1]
    return RemoteStore(FsspecStore(fs=file_system, path=path.rstrip("/")), address, claim, root)


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
