"""Bytes that files take: of a job's own folder, and of all of them, looked at anew now and then."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

# A folder of ten thousand jobs takes a fifth of a second to look at.
FRESH_SECONDS = 10.0


def tree_bytes(folder: Path) -> int:
    """Return the bytes of a folder's files, links not followed; files that go meanwhile count as nothing."""
    total, remaining = 0, [str(folder)]
    while remaining:
        try:
            with os.scandir(remaining.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        remaining.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


class FolderSizes:
    """Bytes in a folder, remembered for some seconds. Safe between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Lock()
        self._bytes, self._looked_at = 0, float("-inf")

    def total(self, *, newest: bool = False) -> int:
        """Return the bytes, as of `FRESH_SECONDS` ago at most; of now for the `newest`."""
        with self._turn:
            if newest or time.monotonic() - self._looked_at > FRESH_SECONDS:
                self._bytes, self._looked_at = tree_bytes(self._folder), time.monotonic()
            return self._bytes
