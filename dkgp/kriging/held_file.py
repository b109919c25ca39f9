"""A file for HDF5, which may end the process where a write fails: failed writes stay in memory, to be raised later."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class HeldFile(io.RawIOBase):
    """A new file whose writes never fail. `check`, and the end of the block, raise the first error.

    From the error on, all writes stay in memory, where reads find them: call `check` after each piece.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._place, self._size = 0, 0
        self._error: OSError | None = None
        self._held: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the error of a write."""
        if self._error is not None:
            raise self._error

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next read or write."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read bytes to a buffer; return their number."""
        into, start = memoryview(buffer).cast("B"), self._place
        count = max(0, min(len(into), self._size - start))
        content = bytearray(os.pread(self._handle, count, start).ljust(count, b"\0"))
        for first, held in self._held:
            low, high = max(first, start), min(first + len(held), start + count)
            if low < high:
                content[low - start : high - start] = held[low - first : high - first]
        into[:count] = content
        self._place += count
        return count

    def write(self, content: Any) -> int:
        """Write bytes, or keep them after an error; return their number."""
        whole = memoryview(content).cast("B")
        done = 0
        try:
            while self._error is None and done < len(whole):
                done += os.pwrite(self._handle, whole[done:], self._place + done)
        except OSError as error:
            self._error = error
        if done < len(whole):
            self._held.append((self._place + done, bytes(whole[done:])))
        self._place += len(whole)
        self._size = max(self._size, self._place)
        return len(whole)

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file."""
        self._size = self._place if size is None else size
        try:
            if self._error is None:
                os.ftruncate(self._handle, self._size)
        except OSError as error:
            self._error = error
        return self._size

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            super().close()
            os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            self.check()
