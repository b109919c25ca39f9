"""One writer a place: claims on object stores, locks on local disks.

**Claims.** A small object in the store names its writer. It is put there under the condition that none is there, or
that it is still the object that was read. A process that takes the place over, to overwrite or to resume, replaces it.
From then on every earlier writer notices, because

- a chunk is put under the condition that none is there; a writer that meets another chunk replaces exactly the one it
  looked at (by its ETag), and only after it has seen *afterwards* that the claim is still its own;
- the manifest is put likewise, after a look at the claim;
- only the holder of the claim removes anything.

So a writer that was taken over, even one that was suspended meanwhile, can neither change a chunk of its successor nor
commit; it ends with an error. A removal is the exception, since no store makes it conditional: a writer that stalls
between its look at the claim and the request to remove, until its successor has written, removes chunks of its
successor. That is never silent: the successor's commit, or the next reader, notices that they are missing.

**Locks.** Of several processes that would write one local place, one does, and the others are refused. A lock is the
system's (`flock`), on a small file beside the place. It ends with its process, even one that is killed, and the next
writer takes over the file that a kill leaves. Linux passes such locks on to NFS servers, so that they hold between
hosts. A file system without locks, and a folder in which no file can be made, leave a place unlocked: the writer's own
checks report a place that cannot be written to.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dkgp.data.remote.addresses import LONGEST_NAME_BYTES, is_local, join, normalise_url
from dkgp.data.remote.limits import in_open_folder
from dkgp.data.remote.object_store import Attempts, ConflictError, call, put, retried, tag_of
from dkgp.data.types import Location
from dkgp.errors import OutputExistsError, StorageError

CLAIM_NAME = "dkgp-claim.json"


@dataclass(frozen=True)
class Claim:
    """The right to write a store; picklable, so that workers may write with copies."""

    url: str  # of the store
    writer: str  # random; empty on a local file system

    @classmethod
    def take(cls, url: str, kind: str, *, over: bool) -> Claim:
        """Claim a place. Check before that it may be written to: of two processes that checked at once, one fails here.

        `kind` is the store's, for readers that meet the claim alone; `over` takes the place from its present holder.

        Raises `OutputExistsError`: another process has the place, or takes it at the same time. `StorageError`: the
        place cannot be written to.
        """
        address = normalise_url(url)
        if is_local(address):
            return cls(address, "")
        claim = cls(address, secrets.token_hex(16))
        content = json.dumps(
            {
                "kind": kind,
                "writer": claim.writer,
                "host": socket.gethostname(),
                "process": os.getpid(),
                "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
        ).encode()
        target = join(address, CLAIM_NAME)
        before = tag_of(target)
        try:
            if before is None or not over:
                put(target, content, replace=False)
            else:
                put(target, content, exactly=before)
        except (ConflictError, OutputExistsError):
            raise OutputExistsError(
                f"Another process has just begun to write '{address}'. Wait for it, or choose another path."
            ) from None
        return claim

    def require(self) -> None:
        """Make sure that nobody has taken the place over; `StorageError` where somebody has."""
        if self.writer:
            try:
                content = call(join(self.url, CLAIM_NAME), "cat_file", "read")
            except FileNotFoundError:
                content = b""
            self._compare(content)

    async def require_on(self, file_system: Any, root: str) -> None:
        """`require`, within an event loop: with its file system, and the store's path within that."""
        if self.writer:
            name = f"{root.rstrip('/')}/{CLAIM_NAME}"
            try:
                content = await retried(
                    lambda: file_system._cat_file(name), Attempts("read", join(self.url, CLAIM_NAME))
                )
            except FileNotFoundError:
                content = b""
            self._compare(content)

    def is_mine(self) -> bool:
        """True if nobody has taken the place over."""
        try:
            self.require()
        except TakenOverError:
            return False
        return True

    def _compare(self, content: bytes) -> None:
        try:
            writer = str(json.loads(content)["writer"])
        except (ValueError, KeyError, TypeError):
            writer = ""
        if writer != self.writer:
            raise TakenOverError(
                f"Another process has taken over '{self.url}' (it was started to overwrite it or to resume, or the "
                "store was removed). This one stops, and leaves the store to it."
            )


class TakenOverError(StorageError):
    """Another writer holds the place."""


_PREFIX = ".dkgp-lock-"
_TRIES = 100
# Places that a caller of this code has locked.
_locked: ContextVar[frozenset[str]] = ContextVar("locked_places", default=frozenset())
_handles: set[int] = set()


class PlaceLock:
    """The lock of a place; it ends when it is released, when nothing refers to it, or with the process."""

    def __init__(self, handle: int | None = None, file: Path | None = None, made: tuple[Path, ...] = ()) -> None:
        self._end = weakref.finalize(self, _release, handle, file, made, os.getpid())

    @classmethod
    def take(cls, location: Location) -> PlaceLock:
        """Lock a local place, unless a caller has; `OutputExistsError` where another process, or thread, has it.

        Folders on the way are made, and removed again if they are empty at the end.
        """
        url = normalise_url(location)
        if not is_local(url) or _key(url) in _locked.get():
            return cls()
        file = beside(Path(url), _PREFIX)
        made = tuple(folder for folder in file.parents if not folder.exists())
        for _ in range(_TRIES):
            try:
                handle = _open(file)
            except OSError:
                _remove_empty(made)
                return cls()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                writer = _writer(handle)
                os.close(handle)
                raise OutputExistsError(
                    f"Another process{writer} is writing '{url}'. Wait for it, or choose another path."
                ) from None
            except OSError as error:  # no locks here, or none for another user's file
                os.close(handle)
                if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
                    with suppress(OSError), in_open_folder(file) as place:
                        place.unlink()
                _remove_empty(made)
                return cls()
            # The writer before may have removed the file between the opening and the lock.
            if _is_at(handle, file):
                _handles.add(handle)
                with suppress(OSError):
                    os.truncate(handle, 0)
                    os.pwrite(handle, _description(), 0)
                return cls(handle, file, made)
            os.close(handle)
        return cls()

    def release(self) -> None:
        """Let the next writer in."""
        self._end()


@contextmanager
def locked(*locations: Location) -> Iterator[None]:
    """Lock places while the context is open; code within it that locks one of them has it already.

    Errors as of `PlaceLock.take`.
    """
    places = {_key(url): url for url in map(normalise_url, locations) if is_local(url)}
    with ExitStack() as stack:
        for url in places.values():
            stack.callback(PlaceLock.take(url).release)
        token = _locked.set(_locked.get() | places.keys())
        stack.callback(_locked.reset, token)
        yield


def beside(place: Path, prefix: str) -> Path:
    """Return a hidden name beside a place: the prefix and the place's name, or its hash where that is too long."""
    name = f"{prefix}{place.name}"
    if len(os.fsencode(name)) > LONGEST_NAME_BYTES:
        name = prefix + hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]
    return place.with_name(name)


def _key(url: str) -> str:
    return os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(url))), os.path.basename(url))


def _open(file: Path) -> int:
    with in_open_folder(file, make=True) as place:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(place, os.O_RDWR | os.O_CREAT | flags, 0o666)
        except PermissionError:
            # Another user's file, which serves as well on a local disk.
            return os.open(place, os.O_RDONLY | flags)


def _is_at(handle: int, file: Path) -> bool:
    try:
        with in_open_folder(file) as place:
            return os.path.samestat(os.fstat(handle), os.stat(place, follow_symlinks=False))
    except OSError:
        return False


def _description() -> bytes:
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return json.dumps({"process": os.getpid(), "host": socket.gethostname(), "began": began}).encode()


def _writer(handle: int) -> str:
    """Describe the process that has the lock, for messages."""
    try:
        about = json.loads(os.pread(handle, 1000, 0))
        return f" ({int(about['process'])} on {about['host']}, since {about['began']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _release(handle: int | None, file: Path | None, made: tuple[Path, ...], process: int) -> None:
    if handle is None or file is None or os.getpid() != process:
        return
    # The file goes while it is locked: the next writer finds none, or waits for this one.
    with suppress(OSError), in_open_folder(file) as place:
        place.unlink()
    _handles.discard(handle)
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child has the same open file
    os.close(handle)
    _remove_empty(made)


def _remove_empty(folders: tuple[Path, ...]) -> None:
    for folder in folders:
        with suppress(OSError), in_open_folder(folder) as place:
            place.rmdir()


def _close_in_child() -> None:
    """In a forked child close the parent's locks, which go on while any process has them open."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
