"""Objects on remote storage: every call retried, every write conditional on what is there.

A write fails where the object exists already (`If-None-Match: *`), or, where one is replaced, where it is no longer the
one that was looked at (`If-Match` and its ETag; on Azure the same). Ceph compares the text of the header with the bare
ETag, so a refused S3 write is sent again without the quotation marks if the object is unchanged. Google's fsspec
package can do the first only, so there a replacement looks first and writes then. So does one in fsspec's memory file
system. (obstore writes under conditions and retries by itself, but users' addresses and credentials are fsspec's, of
any protocol.)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

import fsspec
import fsspec.asyn
import fsspec.core
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.spec import AbstractBufferedFile

from dkgp.data.remote.addresses import protocol_of, scrubbed, shown
from dkgp.data.remote.retries import Attempts, ConflictError, RetryPolicy, retried
from dkgp.errors import InputError, MissingExtraError, OutputExistsError, StorageError

Guard = Callable[[], Awaitable[None]]

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("adlfs", "azure")),
}
_S3, _AZURE = ("s3", "s3a"), ("az", "abfs", "abfss")
# One put takes 5 GiB at most; up to there an object is sent as one.
_SINGLE_PUT_BYTES = 5 * 2**30 // 2
_ROUNDS = 5
_REMOVALS_AT_A_TIME = 16


def backend(url: str, asynchronous: bool = False) -> tuple[Any, str]:
    """The fsspec file system of a place, with coroutines, and the place's path within it.

    fsspec keeps one for each process (and, asynchronous, for each thread), so that a forked process gets its own.

    `url` is as `normalise_url` returns it; an asynchronous one is for use inside another event loop, such as Zarr's.

    Raises `MissingExtraError`: the protocol's package is not installed. `InputError`: an unknown protocol.
    """
    file_system, path = _made(url, {**_options(url), **({"asynchronous": True} if asynchronous else {})})
    if protocol_of(url) in _S3:
        # s3fs retries by itself, without jitter or deadline; twice would multiply.
        file_system.retries = 1
    if not file_system.async_impl:
        file_system = _with_coroutines(file_system, asynchronous, os.getpid())
    return file_system, path


@functools.lru_cache(maxsize=32)
def _with_coroutines(file_system: Any, asynchronous: bool, process: int) -> AsyncFileSystemWrapper:
    """Wrap a file system that has no coroutines; once a process, since wrapping it costs more than a request."""
    return AsyncFileSystemWrapper(file_system, asynchronous=asynchronous)


def _made(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    try:
        file_system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        package, extra = _EXTRAS.get(protocol_of(url), ("", ""))
        if not package:
            raise InputError(f"Cannot work with the address '{shown(url)}': {error}.") from error
        raise MissingExtraError(package, extra, f"Reading or writing {protocol_of(url)}:// addresses") from error
    except ValueError as error:
        hint = ""
        if protocol_of(url) in _EXTRAS and _EXTRAS[protocol_of(url)][1] == "azure":
            hint = " Name the account in AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING."
        raise InputError(
            f"Cannot work with the address '{shown(url)}': {scrubbed(str(error)).rstrip('.')}. "
            f"Expected a path or an fsspec URL.{hint}"
        ) from (error if shown(url) == url else None)
    return file_system, path


def _options(url: str) -> dict[str, Any]:
    if protocol_of(url) not in _S3:
        return {}
    seconds = RetryPolicy.from_environment().answer_seconds
    config = {
        "connect_timeout": min(seconds, 10.0),
        "read_timeout": seconds,
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "max_pool_connections": 32,
    }
    # Another process may write at any time: no listing is kept. With a concurrency of one a read is one request.
    return {"config_kwargs": config, "use_listings_cache": False, "max_concurrency": 1}


def call(url: str, method: str, action: str, *arguments: Any, **keywords: Any) -> Any:
    """The result of one of fsspec's methods ("cat_file", "find") for a place, tried again where that may help.

    Errors as of `Attempts.delay_after`.
    """
    file_system, path = backend(url)
    file_system.invalidate_cache()
    attempts = Attempts(action, url)
    coroutine = getattr(file_system, f"_{method}")
    return _run(file_system, lambda: retried(lambda: coroutine(path, *arguments, **keywords), attempts))


def remove_many(urls: list[str]) -> None:
    """Remove objects of one file system; those that are not there do not matter, nor do letters like `*` and `[`.

    A store may leave out some of many without a word; whoever must know lists them afterwards.
    """
    file_system, _ = backend(urls[0])
    file_system.invalidate_cache()
    paths = [backend(url)[1] for url in urls]
    _run(file_system, lambda: _remove_all(file_system, paths, urls[0]))


async def _remove_all(file_system: Any, paths: list[str], url: str) -> None:
    if hasattr(file_system, "_bulk_delete"):
        await retried(lambda: file_system._bulk_delete(paths), Attempts("remove", url))
        return
    gate = asyncio.Semaphore(_REMOVALS_AT_A_TIME)

    async def remove(path: str) -> None:
        async with gate:
            with contextlib.suppress(FileNotFoundError):
                await retried(lambda: file_system._rm_file(path), Attempts("remove", url))

    await asyncio.gather(*(remove(path) for path in paths))


def put(url: str, data: bytes, *, replace: bool = True, exactly: str | None = None) -> None:
    """Write one object from outside an event loop; see `put_async`. `exactly`: see `replace_exactly`."""
    file_system, path = backend(url)
    if exactly is not None:
        tag = exactly
        _run(file_system, lambda: replace_exactly(file_system, path, url, data, tag))
    else:
        _run(file_system, lambda: put_async(file_system, path, url, data, replace=replace, verify=True))


async def put_async(
    file_system: Any,
    path: str,
    url: str,
    data: bytes,
    *,
    guard: Guard | None = None,
    replace: bool = True,
    verify: bool = False,
) -> None:
    """Write one object: where nothing is, or in the place of exactly what was looked at.

    `guard` is awaited between that look and the replacement, and raises where the caller has lost the right to it.
    With `verify` an object that the store has lost is sent again. `OutputExistsError`: something else is there, and not
    to be replaced; `StorageError`: the store refuses, or another process keeps changing the object.
    """
    for _ in range(_ROUNDS):
        try:
            await _pipe(file_system, path, url, data, mode="create")
        except (FileExistsError, ConflictError):
            info = await _info(file_system, path, url)
            if info is None:
                continue
            # An attempt whose answer was lost has written already; so has whoever resumes with the same result.
            if not await _holds(file_system, path, url, info, data):
                if not replace:
                    raise OutputExistsError(f"'{shown(url)}' exists already.") from None
                if guard is not None:
                    await guard()
                try:
                    await _replace(file_system, path, url, data, info)
                except ConflictError:
                    continue
        if not verify or await _is_there(file_system, path, url, len(data)):
            return
    raise StorageError(
        f"Cannot write '{shown(url)}': the store took it {_ROUNDS} times and does not have it, or another process "
        "writes it at the same time. Check the store, and that nobody else writes there."
    )


async def replace_exactly(file_system: Any, path: str, url: str, data: bytes, tag: str) -> None:
    """Replace an object that still has the tag that was read; `ConflictError` where it has not."""
    info = await _info(file_system, path, url)
    if info is not None and _tag(info) == tag:
        try:
            await _replace(file_system, path, url, data, info)
            return
        except ConflictError:
            info = await _info(file_system, path, url)
    # Only an attempt of this call can have written the same.
    if info is None or not await _holds(file_system, path, url, info, data):
        raise ConflictError(f"'{shown(url)}' was changed by another process meanwhile.")


def tag_of(url: str) -> str | None:
    """The tag that tells one state of an object from the next; None where there is no object."""
    file_system, path = backend(url)
    file_system.invalidate_cache()
    info = _run(file_system, lambda: _info(file_system, path, url))
    return None if info is None else _tag(info)


async def _pipe(file_system: Any, path: str, url: str, data: bytes, **keywords: Any) -> None:
    if protocol_of(url) in _S3:
        keywords["chunksize"] = _SINGLE_PUT_BYTES
    attempts = Attempts("write", url, len(data))
    try:
        await retried(lambda: file_system._pipe_file(path, data, **keywords), attempts)
    except FileNotFoundError as error:
        raise StorageError(
            f"Cannot write '{shown(url)}': there is no such bucket, container or folder. Create it, or check the "
            "address."
        ) from error


async def _replace(file_system: Any, path: str, url: str, data: bytes, info: dict[str, Any]) -> None:
    """Replace the object that `info` describes; `ConflictError` if it has changed since."""
    tag = str(info.get("ETag") or info.get("etag") or "")
    if tag and protocol_of(url) in _S3:
        await _replace_on_s3(file_system, path, url, data, tag)
        return
    conditions = _azure_condition(tag) if tag and protocol_of(url) in _AZURE else {}
    await _pipe(file_system, path, url, data, mode="overwrite", **conditions)


async def _replace_on_s3(file_system: Any, path: str, url: str, data: bytes, tag: str) -> None:
    """Replace the object with this ETag; `StorageError` if the store refuses although the object has it still.

    The standard wants the ETag in quotation marks. Ceph answers 412 to those, and takes the bare ETag. The bare one is
    sent second, and only to a store that refuses the first for an unchanged object, since others might ignore it.
    """
    for form in (tag, tag.strip('"')):
        try:
            await _pipe(file_system, path, url, data, IfMatch=form)
            return
        except ConflictError:
            latest = await _info(file_system, path, url)
            if latest is None or latest.get("ETag") != tag:
                raise
    raise StorageError(
        f"Cannot replace '{shown(url)}': the store answers 412 (precondition failed) to a write under the condition "
        f"that the object still has the ETag {tag} (If-Match), with and without quotation marks, and the object still "
        "has it. Nothing was written. Use a store that has conditional writes, or a new place for the output."
    )


def _azure_condition(tag: str) -> dict[str, Any]:
    try:
        from azure.core import MatchConditions
    except ImportError:
        return {}
    return {"etag": tag, "match_condition": MatchConditions.IfNotModified}


async def _info(file_system: Any, path: str, url: str) -> dict[str, Any] | None:
    file_system.invalidate_cache()
    try:
        return cast(dict[str, Any], await retried(lambda: file_system._info(path), Attempts("read", url)))
    except FileNotFoundError:
        return None


async def _holds(file_system: Any, path: str, url: str, info: dict[str, Any], data: bytes) -> bool:
    if int(info.get("size") or 0) != len(data):
        return False
    try:
        return bool(await retried(lambda: file_system._cat_file(path), Attempts("read", url)) == data)
    except FileNotFoundError:
        return False


async def _is_there(file_system: Any, path: str, url: str, n_bytes: int) -> bool:
    info = await _info(file_system, path, url)
    return info is not None and int(info.get("size") or 0) == n_bytes


def _tag(info: dict[str, Any]) -> str:
    names = ("ETag", "etag", "generation", "created", "last_modified", "mtime", "size")
    return "|".join(str(info[name]) for name in names if info.get(name) is not None)


def _run(file_system: Any, coroutine: Callable[[], Awaitable[Any]]) -> Any:
    loop = getattr(file_system, "loop", None) or fsspec.asyn.get_loop()
    return fsspec.asyn.sync(loop, coroutine)


def open_remote(url: str) -> io.IOBase:
    """A remote object as a binary file to read and seek in. Errors as of `Attempts.delay_after`."""
    if protocol_of(url) in _EXTRAS:
        info = cast(dict[str, Any], call(url, "info", "read"))
        if info.get("type") != "file":
            raise IsADirectoryError(url)
        return cast(io.IOBase, _RemoteFile(url, int(info["size"])))
    file_system, path = _made(url, {})
    return io.BufferedReader(_ScrubbedFile(lambda: file_system.open(path, "rb"), url), buffer_size=2**20)


class _RemoteFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object of a store, read in ranges, each tried again where that may help."""

    def __init__(self, url: str, size: int) -> None:
        file_system, path = backend(url)
        self._url = url
        super().__init__(file_system, path, mode="rb", size=size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return cast(bytes, call(self._url, "cat_file", "read", start=start, end=end))


class _ScrubbedFile(io.RawIOBase):
    """A file of another file system, whose errors do not repeat an address that may hold a token."""

    def __init__(self, opener: Callable[[], Any], url: str) -> None:
        super().__init__()
        self._url = url
        self._file: Any = None
        self._file = self._scrubbed(opener)

    def _scrubbed(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            if shown(self._url) == self._url:
                raise
            kind = next((kind for kind in (FileNotFoundError, PermissionError) if isinstance(error, kind)), OSError)
            reason = scrubbed(str(error)) or type(error).__name__
        # Outside the handler, so that the new error does not drag the old one along.
        raise kind(f"'{shown(self._url)}': {reason}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        # A file that is streamed, because its server tells no size, says that it can and cannot.
        return bool(self._file.seekable()) and getattr(self._file, "size", None) is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._scrubbed(lambda: self._file.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        data = self._scrubbed(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and self._file is not None:
            self._file.close()
        super().close()
