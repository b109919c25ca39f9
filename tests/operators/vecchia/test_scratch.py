"""Leaves in a scratch file: read as they were written, and nothing left of one that did not fit."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest

from dkgp.operators.vecchia.leaves import Leaf, ScratchFile, values_held


def leaf(rng: np.random.Generator, halo: int, rows: int, rank: int) -> Leaf:
    values = rng.standard_normal(values_held(halo, rows)).astype(np.float32)
    return Leaf(halo, rows, rank, values, rng.standard_normal((-(-rows // 4) * 4, rank)).astype(np.float32))


def test_leaves_are_read_as_they_were_written(rng: np.random.Generator) -> None:
    leaves = [leaf(rng, 30, 20, 0), leaf(rng, 0, 7, 16), leaf(rng, 100, 64, 32)]
    file = ScratchFile()
    spilled = [file.append(each) for each in leaves]
    for each, there in reversed(list(zip(leaves, spilled, strict=True))):
        found = there.read()
        assert found.spilled
        assert (found.halo, found.rows, found.rank) == (each.halo, each.rows, each.rank)
        np.testing.assert_array_equal(found.values, each.values)
        np.testing.assert_array_equal(found.projected, each.projected)


def test_a_disk_that_gets_full_leaves_the_file_as_it_was(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, first, second = ScratchFile(), leaf(rng, 30, 20, 16), leaf(rng, 50, 40, 16)
    spilled = file.append(first)
    write, room = os.pwrite, 1000

    def little(descriptor: int, content: Any, place: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(descriptor, content[:room], place)
        room -= count
        return count

    monkeypatch.setattr(os, "pwrite", little)
    size = os.fstat(file._file.fileno()).st_size
    with pytest.raises(OSError, match="No space left"):
        file.append(second)
    assert os.fstat(file._file.fileno()).st_size == size
    room = 10**9
    np.testing.assert_array_equal(file.append(second).read().values, second.values)
    np.testing.assert_array_equal(spilled.read().values, first.values)


def test_a_file_that_is_cut_short_is_an_error(rng: np.random.Generator) -> None:
    file = ScratchFile()
    spilled = file.append(leaf(rng, 30, 20, 16))
    os.ftruncate(file._file.fileno(), 100)
    with pytest.raises(OSError, match="ends at byte 100"):
        spilled.read()
