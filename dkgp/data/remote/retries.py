"""Retries of remote storage: failures that pass by themselves, how long they are waited out, and what to do else.

All of dkgp's remote reads and writes, of objects and of Zarr chunks, go through `retried`: exponential backoff with
jitter, bounded in attempts and in seconds. The libraries' own retries are switched off where they can be (s3fs,
botocore), so that they do not multiply. Two environment variables set the limits: DKGP_STORAGE_TIMEOUT_SECONDS (for an
answer to one attempt, 30) and DKGP_STORAGE_DEADLINE_SECONDS (for all attempts of one operation, 120).
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dkgp.data.remote.addresses import scrubbed, shown
from dkgp.errors import DkgpError, InputError, StorageError

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
    # What one attempt may take, besides a second for each MiB it sends.
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
    """The attempts of one operation, a verb for messages ("read", "write", ...), each of which sends `n_bytes`."""

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
        # Outside the handler: what is raised must not drag along an error that holds a secret address.
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
    """("transient" | "unreachable" | "permanent" | "conflict", what to do); None for what is not judged here."""
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
        return "permanent", "Access is denied: check the credentials in the environment, and what they are allowed."
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
