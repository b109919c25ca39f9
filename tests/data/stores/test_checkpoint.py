from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dkgp.data import CheckpointStore
from dkgp.errors import CheckpointError, InputError

Place = Callable[[str], str]


def test_round_trip(place: Place) -> None:
    store = CheckpointStore(place("checkpoints"))
    assert store.load_latest() is None
    arrays = {
        "alpha": np.random.default_rng(0).normal(size=(50, 2)),
        "active": np.arange(7, dtype=np.int32)[::2],
        "flags": np.array([True, False]),
        "tiles": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "empty": np.empty((0, 4)),
        "scalar": np.array(2.5),
        "big_endian": np.array([1.5, -2.0], dtype=">f8"),
    }
    store.save(3, arrays, {"seed": 5, "generator": {"state": 2**127 - 1}, "gradient": np.float64(0.1)})
    found = CheckpointStore(place("checkpoints")).load_latest()
    assert found is not None
    assert found.sequence_number == 3
    assert found.metadata == {"seed": 5, "generator": {"state": 2**127 - 1}, "gradient": 0.1}
    assert found.skipped == ()
    assert set(found.arrays) == set(arrays)
    for name, values in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], values)
        assert found.arrays[name].shape == values.shape
        assert found.arrays[name].dtype == values.dtype.newbyteorder("=")
    found.arrays["alpha"][0] = 1.0  # writable


@given(
    st.dictionaries(
        st.text(max_size=5),
        hnp.arrays(
            st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.complex128]), hnp.array_shapes(max_dims=3)
        ),
        max_size=3,
    )
)
@settings(deadline=None, max_examples=30)
def test_any_arrays_come_back_bit_for_bit(arrays: dict[str, np.ndarray]) -> None:
    store = CheckpointStore("memory://checkpoint-property")
    store.save(0, arrays, {})
    found = store.load_latest()
    assert found is not None
    assert {name: values.tobytes() for name, values in found.arrays.items()} == {
        name: values.tobytes() for name, values in arrays.items()
    }


def test_the_last_two_are_kept(place: Place) -> None:
    store = CheckpointStore(place("checkpoints"))
    for number in range(5):
        store.save(number, {"a": np.full(3, number)}, {})
        found = store.load_latest()
        assert found is not None
        assert found.sequence_number == number
    assert sorted(number for number, _ in store._names()) == [3, 4]
    store.clear()
    assert store.load_latest() is None


def test_checkpoints_of_an_abandoned_future_go(place: Place) -> None:
    store = CheckpointStore(place("checkpoints"))
    for number in (7, 8):
        store.save(number, {}, {"run": "old"})
    store.save(2, {}, {"run": "new"})
    found = store.load_latest()
    assert found is not None
    assert found.metadata == {"run": "new"}


@pytest.fixture
def two(tmp_path: Path) -> tuple[CheckpointStore, Path, Path]:
    store = CheckpointStore(tmp_path)
    older, newer = (Path(store.save(number, {"a": np.arange(100.0) + number}, {"n": number})) for number in (1, 2))
    return store, older, newer


@pytest.mark.parametrize("kept_bytes", [0, 7, 20, 100, 700, -1])
def test_a_torn_checkpoint_is_skipped(two: tuple[CheckpointStore, Path, Path], kept_bytes: int) -> None:
    store, _, newer = two
    newer.write_bytes(newer.read_bytes()[:kept_bytes])
    found = store.load_latest()
    assert found is not None
    assert found.sequence_number == 1
    assert found.arrays["a"][0] == 1.0
    assert found.skipped == (newer.name,)


@pytest.mark.parametrize("position", [0, 9, 30, 200, -1])
def test_a_flipped_bit_is_skipped(two: tuple[CheckpointStore, Path, Path], position: int) -> None:
    store, _, newer = two
    content = bytearray(newer.read_bytes())
    content[position] ^= 1
    newer.write_bytes(bytes(content))
    found = store.load_latest()
    assert found is not None
    assert found.metadata == {"n": 1}


def test_a_renamed_checkpoint_is_not_believed(two: tuple[CheckpointStore, Path, Path]) -> None:
    store, older, _ = two
    older.rename(older.with_name("checkpoint-0000000009.dkgp"))
    found = store.load_latest()
    assert found is not None
    assert found.sequence_number == 2


def test_none_whole_is_an_error_that_says_why(two: tuple[CheckpointStore, Path, Path]) -> None:
    store, older, newer = two
    older.write_bytes(b"")
    newer.write_bytes(newer.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"No checkpoint .* is whole.*checksum does not match.*truncated"):
        store.load_latest()


def test_what_a_killed_writer_left_is_swept(two: tuple[CheckpointStore, Path, Path]) -> None:
    store, older, _ = two
    (older.parent / ".dkgp-temporary-abc").write_bytes(b"half")
    (older.parent / "notes.txt").write_text("mine")
    found = store.load_latest()
    assert found is not None
    assert found.sequence_number == 2
    store.save(3, {}, {})
    assert sorted(os.listdir(older.parent)) == ["checkpoint-0000000002.dkgp", "checkpoint-0000000003.dkgp", "notes.txt"]
    (older.parent / ".dkgp-temporary-def").write_bytes(b"half")
    store.clear()
    assert os.listdir(older.parent) == ["notes.txt"]


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(InputError, match="expected numbers"):
        store.save(0, {"a": np.array([object()])}, {})
    with pytest.raises(InputError, match="negative"):
        store.save(-1, {}, {})
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        store.save(0, {}, {"a": object()})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("header", [b"[1]", b"{}", b"not json", b""])
@pytest.mark.parametrize("length", [None, 2**63])
def test_metadata_of_a_damaged_header_are_those_of_the_one_before(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    store = CheckpointStore(str(tmp_path))
    assert store.latest_metadata() is None
    store.save(1, {"a": np.arange(3.0)}, {"identity": {"n": 3}})
    start = next(tmp_path.iterdir()).read_bytes()[:-1]
    magic = start[: start.index(b"{") - 8]
    count = len(header) if length is None else length
    (tmp_path / "checkpoint-0000000002.dkgp").write_bytes(magic + count.to_bytes(8, "little") + header)
    assert store.latest_metadata() == {"identity": {"n": 3}}
