"""Data sets whose target is a label: class names in the store, codes as targets, classes matched by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from dkgp.data import append_rows, dataset_from_arrays, memory_dataset, open_dataset
from dkgp.errors import InputError, StoreError
from tests.data.stores.kinds import rewrite_manifest

Place = Callable[[str], str]
CLASSES = ("<=50K", ">50K", "größer, „viel“")


@pytest.fixture
def labelled(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(90, 3)), rng.integers(0, 3, 90)


def test_round_trip(place: Place, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    X, codes = labelled
    dataset_from_arrays(place("l.zarr"), X, codes, classes=CLASSES, chunk_rows=40)
    dataset = open_dataset(place("l.zarr"))
    assert dataset.classes == CLASSES
    assert dataset.class_counts == tuple(np.bincount(codes).tolist())
    np.testing.assert_array_equal(dataset.labels(35, 45), codes[35:45])
    assert dataset.labels(0, 5).dtype == np.int64
    np.testing.assert_array_equal(dataset.all_labels(), codes)
    np.testing.assert_array_equal(dataset.targets(0, 90)[:, 0], codes)  # not standardised
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset)).all_labels(), codes)
    with xr.open_zarr(place("l.zarr")) as shown:
        assert shown.attrs["classes"] == list(CLASSES)


def test_memory_is_what_a_store_is(tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    X, codes = labelled
    stored = dataset_from_arrays(tmp_path / "l.zarr", X, codes, classes=CLASSES)
    held = memory_dataset(X, codes, classes=CLASSES)
    assert held.fingerprint == stored.fingerprint
    assert held.standardisation == stored.standardisation
    np.testing.assert_array_equal(held.all_labels(), stored.all_labels())
    longer = append_rows(held, X[:4], [2, 2, 0, 1])
    assert longer.classes == CLASSES
    assert longer.labels(90, 94).tolist() == [2, 2, 0, 1]
    with pytest.raises(InputError, match="row 1 of the rows added is 3"):
        append_rows(held, X[:2], [2, 3])


def test_names_are_part_of_the_fingerprint(tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    prints = [
        memory_dataset(*labelled, classes=names).fingerprint for names in (None, ("a", "b", "c"), ("a", "b", "d"))
    ]
    assert len(set(prints)) == 3


def test_numbers_are_labels_by_their_names(tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    X, codes = labelled
    numbers = dataset_from_arrays(tmp_path / "d.zarr", X, codes * 2.0 - 2.0)
    with pytest.raises(InputError, match="has no labels: its target is a number.*`labels`"):
        numbers.labels(0, 5)
    seen = numbers.as_seen_by(numbers.feature_names, ("y",), numbers.standardisation, classes=("0", "2", "-2"))
    np.testing.assert_array_equal(seen.all_labels(), np.array([2, 0, 1])[codes])


def test_a_manifest_that_contradicts_itself(tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    dataset_from_arrays(tmp_path / "d.zarr", *labelled, classes=CLASSES)
    rewrite_manifest(tmp_path / "d.zarr", lambda manifest: manifest["metadata"]["classes"].append("another"))
    with pytest.raises(StoreError, match="4 classes, which do not fit"):
        open_dataset(tmp_path / "d.zarr")


def test_classes_are_matched_by_name(tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    X, codes = labelled
    train = memory_dataset(X, codes, classes=("c", "a", "b"))
    test = dataset_from_arrays(tmp_path / "t.zarr", X, codes, classes=("a", "b", "c"))
    seen = test.as_seen_by(train.feature_names, ("y",), train.standardisation, classes=train.classes)
    names = np.array(["a", "b", "c"])[codes]
    assert seen.classes == ("c", "a", "b")
    np.testing.assert_array_equal(np.array(seen.classes)[seen.all_labels()], names)
    np.testing.assert_array_equal(seen.targets(0, 90)[:, 0], seen.all_labels())
    without = test.as_seen_by(train.feature_names, (), train.standardisation, classes=train.classes)
    assert without.n_targets == 0
    with pytest.raises(InputError, match="it has no target"):
        without.labels(0, 1)


def test_a_class_that_training_has_not(tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray]) -> None:
    X, codes = labelled
    train = memory_dataset(X, codes % 2, classes=("a", "b"))
    test = dataset_from_arrays(tmp_path / "t.zarr", X, codes, classes=("a", "b", "new one"))
    with pytest.raises(InputError, match="holds the class 'new one', which the training set has not.* 'a', 'b'"):
        test.as_seen_by(train.feature_names, ("y",), train.standardisation, classes=train.classes)
    # One that is named but has no sample does no harm.
    none = dataset_from_arrays(tmp_path / "n.zarr", X, codes % 2, classes=("b", "a", "new one"))
    seen = none.as_seen_by(train.feature_names, ("y",), train.standardisation, classes=train.classes)
    np.testing.assert_array_equal(seen.all_labels(), 1 - codes % 2)
    numbers = dataset_from_arrays(tmp_path / "m.zarr", X, codes * 1.0)
    seen = numbers.as_seen_by(train.feature_names, ("y",), train.standardisation, classes=("0", "1"))
    with pytest.raises(InputError, match="holds the class '2'"):
        seen.all_labels()


@pytest.mark.parametrize(
    ("codes", "classes", "message"),
    [
        ([0, 1, 2], ("a", "b"), "is 2; expected a class's number, 0 to 1"),
        ([0, 1, 0.5], ("a", "b"), "is 0.5"),
        ([0, 1, -1], ("a", "b"), "is -1"),
        ([0, 1, 0], ("a",), "one class only, 'a'"),
        ([0, 1, 0], ("a", "a"), "'a' occurs 2 times"),
        ([0, 1, 0], tuple(map(str, range(1001))), "1001 classes; expected at most 1000"),
        ([[0, 1], [1, 0], [1, 1]], ("a", "b"), "one column; got 2 targets"),
    ],
)
def test_what_is_refused(tmp_path: Path, codes: list[float], classes: tuple[str, ...], message: str) -> None:
    X = np.arange(6.0).reshape(3, 2)
    with pytest.raises(InputError, match=message):
        dataset_from_arrays(tmp_path / "r.zarr", X, codes, classes=classes)
    assert not (tmp_path / "r.zarr").exists()
    with pytest.raises(InputError, match=message):
        memory_dataset(X, codes, classes=classes)


def test_one_class_among_the_samples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one class only, 'b', in all 3 training samples"):
        dataset_from_arrays(tmp_path / "r.zarr", np.arange(6.0).reshape(3, 2), [1, 1, 1], classes=("a", "b"))
    assert not (tmp_path / "r.zarr").exists()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("stored", [False, True])
def test_signs_are_centred_columns(
    tmp_path: Path, labelled: tuple[np.ndarray, np.ndarray], n_classes: int, stored: bool
) -> None:
    X, codes = labelled[0], labelled[1] % n_classes
    names = CLASSES[:n_classes]
    if stored:
        dataset = dataset_from_arrays(tmp_path / "l.zarr", X, codes, classes=names, chunk_rows=40)
    else:
        dataset = memory_dataset(X, codes, classes=names)
    signs = dataset.as_signs()
    columns = [1] if n_classes == 2 else list(range(n_classes))
    expected = np.array([[1.0 if code == column else -1.0 for column in columns] for code in codes])
    assert signs.classes is None
    assert signs.target_names == (dataset.target_names if n_classes == 2 else names)
    np.testing.assert_array_equal(signs.all_targets(standardised=False), expected)
    np.testing.assert_allclose(signs.targets(30, 60), expected[30:60] - expected.mean(axis=0), atol=1e-15)
    np.testing.assert_array_equal(signs.inputs(0, 90), dataset.inputs(0, 90))
    assert dataset.classes == names  # itself is as it was
    with pytest.raises(InputError, match="has no labels"):
        signs.as_signs()


def test_signs_of_one_class(labelled: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InputError, match="one class only, 'b'"):
        memory_dataset(labelled[0], np.ones(90), classes=("a", "b")).as_signs()
