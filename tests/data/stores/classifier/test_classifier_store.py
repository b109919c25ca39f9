"""Stores of classifiers: what comes back in every form, what is refused, and what damage is told of."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import (
    ClassifierRecord,
    Dataset,
    dataset_from_arrays,
    find_any_model,
    find_classifier,
    find_model,
    memory_classifier,
    open_any_model,
    open_classifier,
    open_model,
    recognise,
    save_classifier,
)
from dkgp.data.stores.manifest import MANIFEST_NAME, checksum
from dkgp.data.stores.model_store import about_model
from dkgp.errors import InputError, NumericalError, OutputExistsError, StoreError

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]
K = 7


def about(dataset: Dataset) -> dict[str, Any]:
    return about_model(
        dataset,
        kernel={"type": "rbf", "variance": 1.0, "gamma": [0.1, 0.2, 1 / 3]},
        noise_variance=0.01,
        history=[{"round": 1, "error": 0.5}],
        certificate={"residual": [1e-9]},
        summary={"converged": True},
    )


def fixed(dataset: Dataset, **changes: Any) -> ClassifierRecord:
    rng = np.random.default_rng(1)
    known = ClassifierRecord(
        **about(dataset),
        form="fixed-size",
        classes=("no", "yes"),
        prototypes=dataset.inputs(0, K),
        weights=rng.standard_normal((K, 1)),
        intercept=np.array([1 / 3]),
        indices=np.arange(K),
        class_weights={"no": 0.5, "yes": 1.5},
        calibration={"slope": [1.5], "offset": [0.1]},
        path=[{"cardinality": 3, "score": 0.2, "std": 0.01}],
    )
    return replace(known, **changes)


def exact(dataset: Dataset, **changes: Any) -> ClassifierRecord:
    rng = np.random.default_rng(2)
    known = ClassifierRecord(
        **about(dataset),
        form="exact",
        classes=("a", "b", "c"),
        alpha=rng.standard_normal((dataset.n_samples, 3)),
        ones=rng.standard_normal(dataset.n_samples),
        intercept=rng.standard_normal(3),
    )
    return replace(known, **changes)


LIKELIHOOD = {"name": "softmax", "n_classes": 3}


def of_samples(dataset: Dataset, form: Any, **changes: Any) -> ClassifierRecord:
    """Logistic, or a Gaussian process, of all samples."""
    rng = np.random.default_rng(3)
    n = dataset.n_samples
    known = ClassifierRecord(
        **about(dataset),
        form=form,
        classes=("a", "b", "c"),
        alpha=rng.standard_normal((n, 3)),
        intercept=np.zeros(3),
        curvature=rng.random((n, 3)) if form == "gp" else None,
        likelihood=LIKELIHOOD,
        regularisation=0.25,
    )
    return replace(known, **changes)


def of_basis(dataset: Dataset, form: Any, **changes: Any) -> ClassifierRecord:
    """Logistic, or a Gaussian process, of K prototypes."""
    rng = np.random.default_rng(4)
    # Of softmax one factor of all classes.
    lower = {"kernel_lower": rng.random((K, K)), "posterior_lower": rng.random((1, 3 * K, 3 * K))}
    factors = lower if form == "gp" else {}
    known = ClassifierRecord(
        **about(dataset),
        form=form,
        classes=("a", "b", "c"),
        prototypes=dataset.inputs(0, K),
        weights=rng.standard_normal((K, 3)),
        intercept=np.zeros(3),
        indices=np.arange(K),
        likelihood=LIKELIHOOD,
        regularisation=1.0,
        **factors,
    )
    return replace(known, **changes)


@pytest.mark.parametrize("absent", [(), ("indices",), ("class_weights", "calibration")])
def test_a_fixed_size_one_comes_back_without_its_training_set(
    place: Place, arrays: Arrays, absent: tuple[str, ...]
) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    written = fixed(dataset, **dict.fromkeys(absent))
    save_classifier(place("model.zarr"), written)
    found = pickle.loads(pickle.dumps(open_any_model(place("model.zarr"))))
    assert isinstance(found, ClassifierRecord)
    for name in ("prototypes", "weights", "intercept", "indices"):
        if getattr(written, name) is None:
            assert getattr(found, name) is None
        else:
            np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    for name in ("form", "classes", "class_weights", "calibration", "path", "kernel", "summary", "certificate"):
        assert getattr(found, name) == getattr(written, name)
    assert (found.n_outputs, found.n_support, found.reference) == (1, K, "")
    assert found.alpha is None
    assert found.ones is None
    np.testing.assert_array_equal(found.inputs(2, 5), dataset.inputs(2, 5))


@pytest.mark.parametrize("by_reference", [False, True])
def test_an_exact_one_comes_back_with_its_support_inputs(place: Place, arrays: Arrays, by_reference: bool) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    written = exact(dataset)
    save_classifier(place("model.zarr"), written, dataset=dataset, by_reference=by_reference)
    found = pickle.loads(pickle.dumps(open_classifier(place("model.zarr"))))
    for name in ("alpha", "ones", "intercept"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    assert (found.n_outputs, found.n_support) == (3, dataset.n_samples)
    assert (found.by_reference, found.reference) == (by_reference, dataset.url if by_reference else "")
    np.testing.assert_array_equal(found.inputs(1, 6), dataset.inputs(1, 6))
    assert found.prototypes is None
    assert found.weights is None


@pytest.mark.parametrize("form", ["logistic", "gp"])
@pytest.mark.parametrize("by_reference", [False, True])
def test_those_with_a_likelihood_come_back_of_all_samples(
    place: Place, arrays: Arrays, form: str, by_reference: bool
) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    written = of_samples(dataset, form)
    save_classifier(place("model.zarr"), written, dataset=dataset, by_reference=by_reference)
    found = pickle.loads(pickle.dumps(open_any_model(place("model.zarr"))))
    assert isinstance(found, ClassifierRecord)
    for name in ("alpha", "intercept", *(("curvature",) if form == "gp" else ())):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    assert (found.form, found.likelihood, found.regularisation) == (form, LIKELIHOOD, 0.25)
    assert (found.is_sparse, found.n_support, found.by_reference) == (False, dataset.n_samples, by_reference)
    np.testing.assert_array_equal(found.inputs(1, 6), dataset.inputs(1, 6))
    assert found.ones is None
    assert found.prototypes is None
    assert found.posterior_lower is None
    held = memory_classifier(written, dataset)
    np.testing.assert_array_equal(find_classifier(held.url).inputs(0, 4), dataset.inputs(0, 4))


@pytest.mark.parametrize("form", ["logistic", "gp"])
def test_those_with_a_likelihood_come_back_of_a_basis(place: Place, arrays: Arrays, form: str) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    written = of_basis(dataset, form)
    save_classifier(place("model.zarr"), written)
    found = open_classifier(place("model.zarr"))
    for name in ("prototypes", "weights", "indices", *(("kernel_lower", "posterior_lower") if form == "gp" else ())):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    assert (found.is_sparse, found.n_support, found.reference) == (True, K, "")
    assert found.alpha is None
    np.testing.assert_array_equal(found.inputs(2, 5), dataset.inputs(2, 5))


def test_stores_of_format_1_are_read(tmp_path: Path, arrays: Arrays) -> None:
    """As dkgp wrote them before there were likelihoods."""
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_classifier(tmp_path / "model.zarr", fixed(dataset))
    manifest = json.loads((tmp_path / "model.zarr" / MANIFEST_NAME).read_text())
    assert manifest["version"] == 2
    for name in ("likelihood", "regularisation"):
        assert manifest["metadata"].pop(name) is None
    del manifest["checksum"]
    manifest["version"] = 1
    manifest["checksum"] = checksum(manifest)
    (tmp_path / "model.zarr" / MANIFEST_NAME).write_text(json.dumps(manifest))
    found = open_classifier(tmp_path / "model.zarr")
    assert (found.form, found.likelihood, found.regularisation) == ("fixed-size", None, None)
    np.testing.assert_array_equal(found.coefficients, fixed(dataset).coefficients)


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
    save_classifier(tmp_path / "model.zarr", exact(dataset), dataset=dataset, by_reference=True)
    with pytest.raises(StoreError, match="names another training set than before"):
        open_classifier(tmp_path / "model.zarr", reference="")
    shutil.rmtree(tmp_path / "train.zarr")
    with pytest.raises(StoreError, match="refers to its training set at"):
        open_classifier(tmp_path / "model.zarr")


def test_it_is_a_kind_of_its_own(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_classifier(tmp_path / "model.zarr", fixed(dataset))
    assert recognise(str(tmp_path / "model.zarr")) == "classifier"
    with pytest.raises(StoreError, match="holds a dkgp classifier store; expected a model store"):
        open_model(tmp_path / "model.zarr")
    with pytest.raises(OutputExistsError):
        save_classifier(tmp_path / "model.zarr", fixed(dataset))
    save_classifier(tmp_path / "model.zarr", fixed(dataset, classes=("f", "t")), overwrite=True)
    assert open_classifier(tmp_path / "model.zarr").classes == ("f", "t")
    with pytest.raises(OutputExistsError):
        save_classifier(tmp_path / "train.zarr", fixed(dataset), overwrite=True)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weights": np.zeros((K, 2))}, InputError, r"'weights' .* has shape \(7, 2\); expected \(7, 1\)"),
        ({"weights": None}, InputError, "needs 'prototypes' and 'weights'"),
        ({"intercept": np.zeros(2)}, InputError, r"'intercept' .* expected \(1,\)"),
        ({"prototypes": np.full((K, 3), np.nan)}, NumericalError, "'prototypes' .* is not finite; .* not saved"),
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
        save_classifier(tmp_path / "model.zarr", exact(dataset))
    with pytest.raises(InputError, match=r"'ones' .* has shape \(3,\)"):
        save_classifier(tmp_path / "model.zarr", exact(dataset, ones=np.zeros(3)), dataset=dataset)
    with pytest.raises(InputError, match="`by_reference` is of use with a classifier of all samples"):
        save_classifier(tmp_path / "model.zarr", fixed(dataset), dataset=dataset, by_reference=True)
    assert not (tmp_path / "model.zarr").exists()


def test_damage_is_told(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_classifier(tmp_path / "model.zarr", fixed(dataset))
    chunk = tmp_path / "model.zarr" / "weights" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="weights/c/0/0 .* is damaged"):
        open_classifier(tmp_path / "model.zarr")


def test_one_in_memory_is_found_by_its_address_alone(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    held = memory_classifier(exact(dataset), dataset)
    assert find_classifier(held.url) is held
    assert find_any_model(held.url) is held
    np.testing.assert_array_equal(held.inputs(0, 4), dataset.inputs(0, 4))
    with pytest.raises(StoreError, match="A classifier is in memory there; expected an exact one"):
        find_model(held.url)
