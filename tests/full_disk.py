"""A disk that is full for what has a certain name: at the moment at which a run writes what it came to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
