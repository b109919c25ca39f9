"""Disks that are full: for what has a certain name, just as a run writes it; or small ones, in earnest."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zarr.storage

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def full_for(part: str) -> Iterator[list[str]]:
    """No room for whatever has a part in its name: chunks, descriptions, and files that take others' places.

    A "$" at the part's end stands for the name's.
    """
    met: list[str] = []
    put, replaced = zarr.storage.LocalStore.set, os.replace

    async def full(self: Any, key: str, value: Any) -> None:
        if part in f"{self.root}/{key}$":
            met.append(key)
            raise FULL
        await put(self, key, value)

    def moved(source: Any, target: Any, **options: Any) -> None:
        if part in f"{target}$":
            met.append(str(target))
            raise FULL
        replaced(source, target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr.storage.LocalStore, "set", full)
        patch.setattr(os, "replace", moved)
        yield met


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes, "8m", at a new folder; the test is skipped where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    tried = subprocess.run(mount, check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, but: int) -> Path:
    """Fill its disk, except for so many bytes; the file that does."""
    free, ballast = os.statvfs(folder), folder / "ballast"
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - but))
    return ballast


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written to a mounted file system."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
