"""Locks between processes, which the kernel releases when their holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Self

from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import StorageError


class FileLock:
    """An exclusive `flock` on a file; held until released, or until every process that shares it has ended.

    It belongs to the open file, so a child process that inherits `handle` holds it too.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self.handle, self.path = handle, path

    @classmethod
    def acquire(cls, path: Path, *, seconds: float = 0.0) -> Self | None:
        """Take the lock within so many seconds; None if another process keeps it. Creates a missing file."""
        until = time.monotonic() + seconds
        while (lock := cls._try(path)) is None and time.monotonic() < until:
            time.sleep(0.05)
        return lock

    @classmethod
    def _try(cls, path: Path) -> Self | None:
        with translate_write_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        return cls(handle, path)

    @classmethod
    def inherited(cls, handle: int, path: Path) -> Self | None:
        """The lock that a parent passed on, or None where the handle is of another file, or nobody holds the lock."""
        try:
            is_same_file = os.path.samestat(os.fstat(handle), os.stat(path))
            if not is_same_file:
                return None
            # No effect where this very open file holds the lock already.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(handle, False)
        except OSError:
            return None
        return cls(handle, path)

    @classmethod
    def is_free(cls, path: Path) -> bool:
        """True if no process holds it now, as with a missing file, or a link, which is no lock."""
        try:
            with translate_write_errors(path):
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except StorageError as error:
            if getattr(error.__cause__, "errno", None) in (errno.ENOENT, errno.ELOOP):
                return True
            raise
        try:
            # Shared, so that two processes that test the lock at once do not take each other for its holder.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def release(self) -> None:
        """Let go in this process; a child that inherited the lock keeps it."""
        os.close(self.handle)
