"""Objects on remote storage: every call is retried, every write is conditional on the object that is there.

A write fails where the object already exists (`If-None-Match: *`). A replacement fails where the object has changed
since it was looked at (`If-Match` and its ETag; on Azure the same). Ceph compares the text of the header with the bare
ETag, so a refused S3 write is sent again without the quotation marks if the object is unchanged. Google's fsspec
package supports the first condition only, so a replacement there looks first and writes then. So does one in fsspec's
memory file system. (obstore has conditional writes and retries, but users' addresses and credentials are fsspec's, of
any protocol.)

All of dkgp's remote reads and writes, of objects and of Zarr chunks, go through `retried`: exponential backoff with
jitter, bounded in attempts and in seconds. The libraries' own retries are switched off where possible (s3fs, botocore),
so that they do not multiply. Two environment variables set the limits: DKGP_STORAGE_TIMEOUT_SECONDS (for an answer to
one attempt, 30) and DKGP_STORAGE_DEADLINE_SECONDS (for all attempts of one operation, 120).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import io
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import fsspec
import fsspec.asyn
import fsspec.core
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.spec import AbstractBufferedFile

from dkgp.data.remote.addresses import protocol_of, scrubbed, shown
from dkgp.errors import DkgpError, InputError, MissingExtraError, OutputExistsError, StorageError

T = TypeVar("T")

_BYTES_PER_SECOND = 2**20
_UNREACHABLE_ATTEMPTS = 4

_TRANSIENT_CODES = frozenset(
    {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown", "InternalError"}
)
_TRANSIENT_ERRNO = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "ECONNABORTED", "ECONNRESET", "EINTR", "EPIPE", "EREMOTEIO", "ETIMEDOUT")
    if hasattr(errno, name)
)
# By name, because the packages they come from (botocore, aiohttp, google, azure) are extras.
_TRANSIENT_NAMES = frozenset(
    {
        "ClientOSError",
        "ConnectionClosedError",
        "HTTPClientError",
        "ReadTimeoutError",
        "ResponseParserError",
        "ServerDisconnectedError",
        "ServiceRequestError",
        "ServiceResponseError",
    }
)
_TORN_NAMES = frozenset({"ChecksumError", "ClientPayloadError", "IncompleteRead", "IncompleteReadError"})
_UNREACHABLE_NAMES = frozenset({"ClientConnectorError", "ConnectTimeoutError", "EndpointConnectionError"})
_NO_CREDENTIALS_NAMES = frozenset(
    {
        "ClientAuthenticationError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "TokenRetrievalError",
    }
)


class ConflictError(StorageError):
    """A conditional write found the object in another state than expected."""


@dataclass(frozen=True)
class RetryPolicy:
    """Limits to going on: attempts, pauses and seconds."""

    attempts: int = 8
    # After the first attempt; doubled after each further one up to the longest, less a random half.
    first_delay_seconds: float = 0.25
    longest_delay_seconds: float = 10.0
    # Longest duration of one attempt, besides a second for each MiB it sends.
    answer_seconds: float = 30.0
    # After this much time no further attempt is made.
    deadline_seconds: float = 120.0

    @classmethod
    def from_environment(cls) -> RetryPolicy:
        """The limits that the environment sets. `InputError` where one is no positive number."""
        return cls(
            answer_seconds=_seconds("DKGP_STORAGE_TIMEOUT_SECONDS", cls.answer_seconds),
            deadline_seconds=_seconds("DKGP_STORAGE_DEADLINE_SECONDS", cls.deadline_seconds),
        )


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"The environment variable {variable} is '{text}'; expected a positive number of seconds.")
    return seconds


@dataclass
class Attempts:
    """The attempts of one operation; each sends `n_bytes`. `action` is a verb for messages ("read", "write", ...)."""

    action: str
    address: str
    n_bytes: int = 0
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy.from_environment())
    made: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def attempt_seconds(self) -> float:
        """Seconds that the attempt to come may take."""
        if self.action == "read":
            # How much there is to read is not known. A connection that falls silent ends by its own time-out first.
            return 5 * self.policy.deadline_seconds
        return self.policy.answer_seconds + self.n_bytes / _BYTES_PER_SECOND

    def delay_after(self, error: Exception) -> float:
        """Seconds to wait before the next attempt.

        Raises the error itself where it says that an object is or is not there; `ConflictError` or `StorageError`
        where another attempt would be of no use, or there were enough.
        """
        self.made += 1
        if isinstance(error, DkgpError):
            raise error
        verdict = _verdict(error)
        if verdict is None:
            if isinstance(error, OSError) and shown(self.address) == self.address:
                raise error
            raise _unknown(error, self.address)
        kind, advice = verdict
        if kind == "conflict":
            raise ConflictError(f"'{shown(self.address)}' was changed by another process meanwhile.")
        elapsed = time.monotonic() - self.began
        most = _UNREACHABLE_ATTEMPTS if kind == "unreachable" else self.policy.attempts
        delay: float = min(self.policy.first_delay_seconds * 2 ** (self.made - 1), self.policy.longest_delay_seconds)
        # Spread out, so that workers that failed together do not come back together. No result depends on it.
        delay *= random.uniform(0.5, 1.0)
        if kind != "permanent" and self.made < most and elapsed + delay < self.policy.deadline_seconds:
            return delay
        tried = "" if kind == "permanent" else f" (tried {self.made} times in {elapsed:.0f} s)"
        cause = error if shown(self.address) == self.address else None
        raise StorageError(f"Cannot {self.action} '{shown(self.address)}'{tried}: {_text(error)}. {advice}") from cause


async def retried(operation: Callable[[], Awaitable[T]], attempts: Attempts) -> T:
    """The result of `operation`, tried again as long as it may help. Errors as of `Attempts.delay_after`."""
    # Not by tenacity: it would do these seven lines and the four of the delay, of all that is in this file, but end
    # with its own error or with the last one as it was, and keep that one, secret address included, as the cause.
    while True:
        try:
            return await asyncio.wait_for(operation(), attempts.attempt_seconds)
        except Exception as error:
            failure = error
        # Outside the handler: the new error must not drag along one that holds a secret address.
        delay = attempts.delay_after(failure)
        await asyncio.sleep(delay)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}


def _answer(error: BaseException) -> tuple[int, str]:
    """The status and the error code that the server gave; (0, "") where it gave none."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, Mapping):
            code = str(response.get("Error", {}).get("Code", ""))
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)), code
        for name in ("status_code", "status", "code"):
            value = getattr(link, name, None)
            if isinstance(value, int | str) and str(value).isdigit():
                return int(value), str(getattr(link, "error_code", "") or "")
    return 0, ""


def _verdict(error: Exception) -> tuple[str, str] | None:
    """("transient" | "unreachable" | "permanent" | "conflict", advice); None for other errors."""
    status, code = _answer(error)
    if status == 412:
        return "conflict", ""
    if isinstance(error, FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError):
        return None
    names = _names(error)
    if names & _TORN_NAMES:
        # Before the status: aiohttp calls an answer that was cut short a 400.
        return "transient", "The store's answers are cut short; check the network, and try again later."
    if names & _NO_CREDENTIALS_NAMES:
        return "permanent", (
            "There are no credentials, or incomplete ones. Set them in the environment (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and _KEY), or name a "
            "profile (AWS_PROFILE)."
        )
    if status:
        return _verdict_of_answer(status, code)
    if names & _UNREACHABLE_NAMES or isinstance(error, ConnectionRefusedError | socket.gaierror):
        return "unreachable", "Check the endpoint (AWS_ENDPOINT_URL for s3://), the network, and that the store runs."
    if names & _TRANSIENT_NAMES or isinstance(error, TimeoutError | ConnectionError):
        return "transient", "The store does not answer as it should; try again later, and resume where that can be."
    if isinstance(error, OSError):
        if error.errno in _TRANSIENT_ERRNO:
            return "transient", "The store is overloaded or was cut off; try again later."
        if isinstance(error, PermissionError):
            return _verdict_of_answer(403, "")
    return None


def _verdict_of_answer(status: int, code: str) -> tuple[str, str]:
    if status in (408, 409, 425, 429) or code in _TRANSIENT_CODES or (status >= 500 and status not in (501, 505)):
        return "transient", "The store is overloaded or down; try again later, and resume where that can be."
    if code in ("RequestTimeTooSkewed",):
        return "permanent", "Set this machine's clock."
    if status in (401, 403) or code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"):
        return "permanent", "Access is denied: check the credentials in the environment and their permissions."
    if status in (301, 307, 308) or code == "AuthorizationHeaderMalformed":
        return "permanent", "The bucket lies in another region: set AWS_DEFAULT_REGION (or AWS_ENDPOINT_URL)."
    if status == 501:
        return "permanent", "This store lacks an operation that dkgp needs: writing where nothing is (If-None-Match)."
    if code == "NoSuchBucket" or status == 404:
        return "permanent", "There is no such bucket; create it, or check the address."
    return "permanent", "Check the address."


def _text(error: Exception) -> str:
    text = " ".join(scrubbed(str(error)).split()).rstrip(".")
    if isinstance(error, TimeoutError) and not text:
        return "no answer in time"
    return text or type(error).__name__


def _unknown(error: Exception, address: str) -> Exception:
    """The error without the address that it may hold, of a kind that callers tell apart."""
    if shown(address) == address:
        return error
    for kind in (FileNotFoundError, PermissionError, OSError, ValueError):
        if isinstance(error, kind):
            return kind(f"'{shown(address)}': {_text(error)}")
    return StorageError(f"Cannot work with '{shown(address)}': {type(error).__name__}.")


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

    A store may silently skip some objects; list them afterwards where that matters.
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
    """Write one object: where none is, or in place of exactly the object that was looked at.

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
            # An attempt whose answer was lost has written already; so has a resumed run with the same result.
            if not await _holds(file_system, path, url, info, data):
                if not replace:
                    raise OutputExistsError(f"'{shown(url)}' already exists.") from None
                if guard is not None:
                    await guard()
                try:
                    await _replace(file_system, path, url, data, info)
                except ConflictError:
                    continue
        if not verify or await _is_there(file_system, path, url, len(data)):
            return
    raise StorageError(
        f"Cannot write '{shown(url)}': the store accepted it {_ROUNDS} times and does not have it, or another process "
        "writes it at the same time. Check the store, and stop other processes that write there."
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
