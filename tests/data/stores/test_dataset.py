from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.data import Dataset, DatasetWriter, Standardisation, dataset_from_arrays, open_dataset
from dkgp.data.stores.arrays import default_chunk_rows, sample_chunk_rows
from dkgp.data.types import block_rows
from dkgp.errors import InputError, OutputExistsError, StoreError

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]


def test_round_trip(place: Place, arrays: Arrays) -> None:
    X, y = arrays
    dataset_from_arrays(place("d.zarr"), X, y, chunk_rows=300)
    dataset = open_dataset(place("d.zarr"))
    assert (dataset.n_samples, dataset.n_features, dataset.n_targets, dataset.chunk_rows) == (1000, 3, 1, 300)
    assert dataset.row_chunks() == [(0, 300), (300, 600), (600, 900), (900, 1000)]
    np.testing.assert_array_equal(dataset.inputs(250, 650, standardised=False), X[250:650])
    np.testing.assert_array_equal(dataset.targets(0, 1000, standardised=False), y[:, None])
    np.testing.assert_allclose(dataset.inputs(0, 1000), (X - X.mean(axis=0)) / X.std(axis=0), rtol=1e-6, atol=1e-9)
    standardised = dataset.targets(0, 1000)
    np.testing.assert_allclose([standardised.mean(), standardised.std()], [0.0, 1.0], atol=1e-12)
    assert dataset.inputs(7, 7).shape == (0, 3)


def test_rows_in_any_order_are_the_same_bits(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("d.zarr"), *arrays, chunk_rows=64)
    indices = np.random.default_rng(1).integers(0, 1000, size=77)
    np.testing.assert_array_equal(dataset.input_rows(indices), dataset.inputs(0, 1000)[indices])
    assert dataset.input_rows(np.array([], dtype=np.int64)).shape == (0, 3)


@pytest.mark.parametrize("indices", [[-1], [1000], [[1, 2]], [0.5]])
def test_rows_that_are_not_there(tmp_path: Path, arrays: Arrays, indices: list[object]) -> None:
    dataset = dataset_from_arrays(tmp_path / "d.zarr", *arrays)
    with pytest.raises(InputError, match=r"rows|integers"):
        dataset.input_rows(np.array(indices))
    with pytest.raises(InputError, match="has 1000 rows"):
        dataset.inputs(990, 1001)


def test_handle_pickles_small_and_reads_elsewhere(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "d.zarr", *arrays, chunk_rows=10)
    before = dataset.inputs(0, 1000)
    packed = pickle.dumps(dataset)
    assert len(packed) < 10_000
    np.testing.assert_array_equal(pickle.loads(packed).inputs(0, 1000), before)


def test_several_targets_and_names(place: Place, arrays: Arrays) -> None:
    X, y = arrays
    Y = np.stack([y, -2 * y + X[:, 0]], axis=1)
    dataset = dataset_from_arrays(place("d.zarr"), X, Y, feature_names=["a", "b", "c"], target_names=["u", "v"])
    assert dataset.feature_names == ("a", "b", "c")
    assert dataset.target_names == ("u", "v")
    np.testing.assert_array_equal(dataset.targets(10, 20, standardised=False), Y[10:20])
    np.testing.assert_allclose(dataset.targets(0, 1000).std(axis=0), 1.0)


def test_inputs_without_targets(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("d.zarr"), arrays[0], None)
    assert dataset.n_targets == 0
    assert dataset.targets(0, 5).shape == (5, 0)
    np.testing.assert_array_equal(dataset.inputs(0, 5), arrays[0][:5])


def test_constant_features_are_dropped_and_remembered(tmp_path: Path, arrays: Arrays) -> None:
    X, y = arrays
    X = np.insert(X, 1, 0.1, axis=1)
    with pytest.warns(UserWarning, match="'x1' is constant"):
        dataset = dataset_from_arrays(tmp_path / "d.zarr", X, y)
    assert dataset.standardisation.kept == (True, False, True, True)
    assert dataset.feature_names == ("x0", "x2", "x3")
    np.testing.assert_array_equal(dataset.inputs(0, 9, standardised=False), X[:9, [0, 2, 3]])
    np.testing.assert_array_equal(dataset.raw_inputs(0, 9), X[:9])


@pytest.mark.filterwarnings("ignore")  # zarr remarks on the manifest beside the arrays
def test_xarray_shows_it_without_consolidated_metadata(tmp_path: Path, arrays: Arrays) -> None:
    dataset_from_arrays(tmp_path / "d.zarr", *arrays, chunk_rows=300)
    shown = xr.open_zarr(tmp_path / "d.zarr", consolidated=False)
    np.testing.assert_array_equal(shown["X"].values, arrays[0])
    assert shown.attrs["feature_names"] == ["x0", "x1", "x2"]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 15), st.booleans())
@settings(deadline=None, max_examples=12)
def test_any_appends_and_chunks_give_the_same_store(sizes: list[int], chunk_rows: int, known: bool) -> None:
    n = sum(sizes) + 2
    X = np.random.default_rng(n).normal(size=(n, 2))
    y = X.sum(axis=1)
    with DatasetWriter.create(
        "memory://appends.zarr", ["a", "b"], ["y"], chunk_rows, overwrite=True, n_samples=n if known else None
    ) as writer:
        start = 0
        for size in [*sizes, 2]:
            writer.append(X[start : start + size], y[start : start + size])
            start += size
        dataset = writer.finish()
    np.testing.assert_array_equal(dataset.inputs(0, n, standardised=False), X)
    np.testing.assert_array_equal(dataset.targets(0, n, standardised=False)[:, 0], y)
    whole = dataset_from_arrays("memory://whole.zarr", X, y, feature_names=["a", "b"], overwrite=True)
    assert dataset.fingerprint == whole.fingerprint
    np.testing.assert_allclose(dataset.standardisation.input_std, X.std(axis=0), rtol=1e-12)
    assert dataset.row_chunks()[-1][1] == n


def test_fingerprint_follows_the_content(tmp_path: Path, arrays: Arrays) -> None:
    X, y = arrays
    reference = dataset_from_arrays(tmp_path / "a", X, y).fingerprint
    changed = X.copy()
    changed[500, 2] = np.nextafter(changed[500, 2], 1)
    assert dataset_from_arrays(tmp_path / "b", X, y, chunk_rows=17).fingerprint == reference
    assert dataset_from_arrays(tmp_path / "c", changed, y).fingerprint != reference
    assert dataset_from_arrays(tmp_path / "d", X, y, feature_names=["x0", "x1", "z"]).fingerprint != reference
    assert dataset_from_arrays(tmp_path / "e", X[:-1], y[:-1]).fingerprint != reference


def test_all_zero_chunks_are_written(tmp_path: Path) -> None:
    X = np.zeros((100, 2))
    X[90:] = np.random.default_rng(0).normal(size=(10, 2))
    dataset = dataset_from_arrays(tmp_path / "d.zarr", X, X[:, 0], chunk_rows=10)
    assert len(list((tmp_path / "d.zarr" / "X" / "c").rglob("0"))) >= 10
    np.testing.assert_array_equal(dataset.inputs(0, 100, standardised=False), X)


@given(st.integers(1, 10**7), st.integers(1, 3000))
def test_default_chunks_are_even_and_bounded(n_samples: int, n_columns: int) -> None:
    rows = default_chunk_rows(n_samples, n_columns)
    n_chunks = -(-n_samples // rows)
    assert 1 <= rows <= n_samples
    assert rows * n_columns * 8 <= 8 * 2**20
    last = n_samples - (n_chunks - 1) * rows
    assert 0 < last <= rows
    assert rows - last < n_chunks  # no chunk is shorter than the rounding makes it


@given(st.integers(1, 10**8), st.integers(0, 100_000))
def test_blocks_of_a_training_set_are_made_of_whole_chunks(n_samples: int, n_columns: int) -> None:
    chunk, block = sample_chunk_rows(n_samples, n_columns), block_rows(n_samples)
    assert chunk >= n_samples or block % chunk == 0
    assert chunk == 1 or chunk * n_columns * 8 <= 8 * 2**20
    # Without need a block is not cut.
    assert chunk >= min(n_samples, block) or block * n_columns > 2**20


# --- another training set's map -------------------------------------------------------------------------------------


def test_test_data_under_the_training_map(tmp_path: Path, arrays: Arrays) -> None:
    X, y = arrays
    train = dataset_from_arrays(tmp_path / "train", X[:800], y[:800])
    test = dataset_from_arrays(tmp_path / "test", X[800:], y[800:]).with_standardisation(train.standardisation)
    np.testing.assert_array_equal(test.inputs(0, 200), train.standardisation.inputs(X[800:]))
    np.testing.assert_array_equal(test.targets(0, 200), train.standardisation.targets(y[800:, None]))
    with pytest.raises(InputError, match="has 3 features"):
        test.with_standardisation(Standardisation.identity(4, 1))


def test_features_are_matched_by_name(tmp_path: Path, arrays: Arrays) -> None:
    X, y = arrays
    train = dataset_from_arrays(tmp_path / "train", X, y, feature_names=["a", "b", "c"])
    shuffled = dataset_from_arrays(
        tmp_path / "test", np.insert(X[:, [2, 0, 1]], 0, y, axis=1), y, feature_names=["more", "c", "a", "b"]
    )
    seen = shuffled.as_seen_by(train.feature_names, train.target_names, train.standardisation)
    np.testing.assert_array_equal(seen.inputs(0, 50), train.inputs(0, 50))
    np.testing.assert_array_equal(seen.input_rows(np.array([3, 1])), train.input_rows(np.array([3, 1])))
    np.testing.assert_array_equal(seen.targets(0, 50), train.targets(0, 50))
    assert seen.feature_names == ("a", "b", "c")
    with pytest.raises(InputError, match="lacks the feature 'a'"):
        dataset_from_arrays(tmp_path / "other", X, y, feature_names=["A", "b", "c"]).as_seen_by(
            train.feature_names, train.target_names, train.standardisation
        )


# --- stores that cannot be trusted ----------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, arrays: Arrays) -> Dataset:
    return dataset_from_arrays(tmp_path / "d.zarr", *arrays, chunk_rows=300)


def test_missing_chunk_is_found_by_a_reader_that_was_open(stored: Dataset) -> None:
    stored.inputs(0, 10)
    (Path(stored.url) / "X" / "c" / "1" / "0").unlink()
    with pytest.raises(StoreError, match=r"Chunk X/c/1/0 \(rows 300 to 599\).*is missing"):
        stored.inputs(0, 1000)
    with pytest.raises(StoreError, match="Chunk X/c/1/0"):
        stored.input_rows(np.array([2, 450]))
    assert stored.inputs(600, 900).shape == (300, 3)


@pytest.mark.parametrize("position", [0, 3, 40, -1])
def test_flipped_bit_is_found_when_read(stored: Dataset, position: int) -> None:
    chunk = Path(stored.url) / "X" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[position] ^= 4
    chunk.write_bytes(bytes(content))
    dataset = open_dataset(stored.url)
    np.testing.assert_array_equal(dataset.inputs(300, 1000), stored.inputs(300, 1000))
    with pytest.raises(StoreError, match=r"Chunk X/c/0/0 \(rows 0 to 299\).*damaged"):
        dataset.inputs(0, 1000)


def test_garbage_of_the_right_length_is_found_when_read(stored: Dataset) -> None:
    chunk = Path(stored.url) / "X" / "c" / "3" / "0"
    chunk.write_bytes(np.random.default_rng(0).bytes(chunk.stat().st_size))
    with pytest.raises(StoreError, match="Chunk X/c/3/0"):
        open_dataset(stored.url).inputs(0, 1000)


def test_damaged_array_metadata(stored: Dataset) -> None:
    (Path(stored.url) / "X" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match="array 'X'"):
        open_dataset(stored.url).inputs(0, 10)
    (Path(stored.url) / "X" / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"array 'X' of .* is missing"):
        open_dataset(stored.url)


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_names_column_and_row_and_leaves_nothing(place: Place, arrays: Arrays, value: float) -> None:
    X, y = arrays
    X[437, 1] = value
    with pytest.raises(InputError, match=rf"'x1' holds {value} in row 438"):
        dataset_from_arrays(place("d.zarr"), X, y, chunk_rows=100)
    file_system, path = fsspec.core.url_to_fs(place("d.zarr"))
    assert not file_system.exists(path)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((5, 2)), np.arange(5), r"No feature \(2 in all\) varies"),
        (np.arange(10).reshape(5, 2), np.ones(5), "target 'y' is constant"),
        (np.arange(2).reshape(1, 2), np.ones(1), "There is 1 sample"),
        (np.empty((0, 2)), np.empty(0), "no samples"),
        (np.arange(10).reshape(5, 2), np.arange(4), r"y has shape"),
        (np.arange(5), np.arange(5), r"X has shape \(5,\)"),
        (np.empty((5, 0)), np.arange(5), "There is no feature"),
        (np.array([["1", "a"]] * 5), np.arange(5), "inputs holds text where a number belongs, such as 'a'"),
        (np.array([[1e200], [-1e200], [0]]), np.arange(3), "'x0' are too large"),
    ],
)
def test_unusable_arrays(tmp_path: Path, X: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataset_from_arrays(tmp_path / "d.zarr", X, y)
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.parametrize(
    ("features", "targets", "message"),
    [(["a", "a"], ["y"], "'a' occurs 2 times"), (["a", "b"], ["b"], "'b' is among the features")],
)
def test_unusable_names(tmp_path: Path, features: list[str], targets: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DatasetWriter.create(tmp_path / "d.zarr", features, targets)
    assert not (tmp_path / "d.zarr").exists()


def test_writer_left_without_finish_leaves_nothing(place: Place, arrays: Arrays) -> None:
    with DatasetWriter.create(place("d.zarr"), ["a", "b", "c"], ["y"], 100) as writer:
        writer.append(*arrays)
        with pytest.raises(StoreError, match="incomplete"):
            open_dataset(place("d.zarr"))
    file_system, path = fsspec.core.url_to_fs(place("d.zarr"))
    assert not file_system.exists(path)


def test_announced_samples_must_come(tmp_path: Path, arrays: Arrays) -> None:
    with DatasetWriter.create(tmp_path / "d.zarr", ["a", "b", "c"], ["y"], n_samples=1001) as writer:
        writer.append(*arrays)
        with pytest.raises(InputError, match="1001 were announced"):
            writer.finish()
    assert not (tmp_path / "d.zarr").exists()


KILLED = """
import os, signal, sys
import numpy as np
from dkgp.data import DatasetWriter
writer = DatasetWriter.create(sys.argv[1], ["a"], ["y"], chunk_rows=10, n_samples=100)
writer.append(np.arange(55.0)[:, None], np.arange(55.0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_that_opens(tmp_path: Path, arrays: Arrays, importable: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "d.zarr")], env=importable, timeout=240, check=False)
    assert (tmp_path / "d.zarr" / "X" / "c" / "4" / "0").exists()
    with pytest.raises(StoreError, match="incomplete"):
        open_dataset(tmp_path / "d.zarr")
    with pytest.raises(OutputExistsError, match="unfinished"):
        dataset_from_arrays(tmp_path / "d.zarr", *arrays)
    assert dataset_from_arrays(tmp_path / "d.zarr", *arrays, overwrite=True).n_samples == 1000
