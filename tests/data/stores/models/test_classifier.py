"""Stores of classifiers: what may be absent, references, models in memory, and what is refused in every form."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import (
    dataset_from_arrays,
    find_any_model,
    find_classifier,
    find_model,
    memory_classifier,
    open_classifier,
    save_classifier,
)
from dkgp.errors import InputError, NumericalError, StoreError
from tests.data.stores.kinds import LIKELIHOOD, M, of_basis, of_samples
from tests.data.stores.kinds import fixed_size as fixed

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.mark.parametrize("absent", [(), ("indices",), ("class_weights", "calibration")])
def test_a_fixed_size_one_needs_no_training_set(tmp_path: Path, arrays: Arrays, absent: tuple[str, ...]) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    written = fixed(dataset, **dict.fromkeys(absent))
    save_classifier(tmp_path / "model.zarr", written)
    shutil.rmtree(tmp_path / "train.zarr")
    found = open_classifier(tmp_path / "model.zarr")
    for name in ("form", "classes", "class_weights", "calibration", "path"):
        assert getattr(found, name) == getattr(written, name)
    assert (found.indices is None) == ("indices" in absent)
    assert (found.n_outputs, found.n_support, found.reference) == (1, M, "")
    np.testing.assert_array_equal(found.inputs(2, 5), written.inputs(2, 5))
    assert found.alpha is found.ones is found.curvature is found.posterior_lower is None


@pytest.mark.parametrize("form", ["exact", "logistic", "gp"])
@pytest.mark.parametrize("by_reference", [False, True])
def test_one_of_all_samples_says_where_its_inputs_are(
    tmp_path: Path, arrays: Arrays, form: str, by_reference: bool
) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_classifier(tmp_path / "model.zarr", of_samples(dataset, form), dataset=dataset, by_reference=by_reference)
    found = open_classifier(tmp_path / "model.zarr")
    assert (found.form, found.n_outputs, found.n_support, found.is_sparse) == (form, 3, dataset.n_samples, False)
    assert (found.by_reference, found.reference) == (by_reference, dataset.url if by_reference else "")
    likelihood = (None, None) if form == "exact" else (LIKELIHOOD, 0.25)
    assert (found.likelihood, found.regularisation) == likelihood


@pytest.mark.parametrize(
    ("form", "changes", "error", "words"),
    [
        ("logistic", {"likelihood": None}, InputError, "needs 'likelihood' and 'regularisation'"),
        ("gp", {"regularisation": 0.0}, InputError, "regularisation must be finite and positive; got 0.0"),
        (
            "logistic",
            {"alpha": None},
            InputError,
            "A logistic classifier of all samples needs 'alpha' and its training",
        ),
        ("gp", {"curvature": None}, InputError, "A gp classifier of all samples needs 'alpha', 'curvature' and its"),
        ("gp", {"curvature": np.full((40, 3), -1.0)}, NumericalError, "'curvature' .* below zero"),
        ("gp", {"alpha": np.zeros((3, 3))}, InputError, r"'alpha' .* has shape \(3, 3\)"),
    ],
)
def test_one_with_a_likelihood_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: Arrays, form: str, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    with pytest.raises(error, match=words):
        save_classifier(tmp_path / "model.zarr", of_samples(dataset, form, **changes), dataset=dataset)
    with pytest.raises(InputError, match="A gp classifier needs .* 'kernel_lower' and 'posterior_lower'"):
        save_classifier(tmp_path / "model.zarr", of_basis(dataset, "gp", posterior_lower=None))
    with pytest.raises(InputError, match="`by_reference` is of use with a classifier of all samples"):
        save_classifier(tmp_path / "model.zarr", of_basis(dataset, form), dataset=dataset, by_reference=True)
    assert not (tmp_path / "model.zarr").exists()


def test_one_by_reference_tells_where_its_training_set_went(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_classifier(tmp_path / "model.zarr", of_samples(dataset, "exact"), dataset=dataset, by_reference=True)
    with pytest.raises(StoreError, match="names another training set than before"):
        open_classifier(tmp_path / "model.zarr", reference="")
    shutil.rmtree(tmp_path / "train.zarr")
    with pytest.raises(StoreError, match="refers to its training set at"):
        open_classifier(tmp_path / "model.zarr")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weights": np.zeros((M, 2))}, InputError, r"'weights' .* has shape \(12, 2\); expected \(12, 1\)"),
        ({"weights": None}, InputError, "needs 'prototypes' and 'weights'"),
        ({"intercept": np.zeros(2)}, InputError, r"'intercept' .* expected \(1,\)"),
        ({"prototypes": np.full((M, 3), np.nan)}, NumericalError, "'prototypes' .* is not finite; .* not saved"),
        ({"classes": ("one",)}, InputError, r"needs two classes of different names at least; got \['one'\]"),
        ({"classes": ("one", "one")}, InputError, "two classes of different names"),
        ({"noise_variance": 0.0}, InputError, "noise variance must be positive; got 0.0"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, arrays: Arrays, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    with pytest.raises(error, match=words):
        save_classifier(tmp_path / "model.zarr", fixed(dataset, **changes))
    assert not (tmp_path / "model.zarr").exists()


def test_an_exact_one_without_what_it_needs_is_refused(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    with pytest.raises(InputError, match="needs 'alpha', 'ones' and its training set"):
        save_classifier(tmp_path / "model.zarr", of_samples(dataset, "exact"))
    with pytest.raises(InputError, match=r"'ones' .* has shape \(3,\)"):
        save_classifier(tmp_path / "model.zarr", of_samples(dataset, "exact", ones=np.zeros(3)), dataset=dataset)
    with pytest.raises(InputError, match="`by_reference` is of use with a classifier of all samples"):
        save_classifier(tmp_path / "model.zarr", fixed(dataset), dataset=dataset, by_reference=True)
    assert not (tmp_path / "model.zarr").exists()


def test_one_in_memory_is_found_by_its_address_alone(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    held = memory_classifier(of_samples(dataset, "exact"), dataset)
    assert find_classifier(held.url) is held
    assert find_any_model(held.url) is held
    np.testing.assert_array_equal(held.inputs(0, 4), dataset.inputs(0, 4))
    with pytest.raises(StoreError, match="A classifier is in memory there; expected an exact one"):
        find_model(held.url)
