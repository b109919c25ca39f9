"""Stores of models of every kind: absent arrays, references to training sets, models in memory, and refusals."""

from __future__ import annotations

import gc
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dkgp.data import (
    ClassifierRecord,
    Dataset,
    ModelRecord,
    SparseRecord,
    dataset_from_arrays,
    find_any_model,
    is_resident,
    memory_classifier,
    memory_model,
    memory_sparse_model,
    open_any_model,
    open_classifier,
    open_model,
    open_sparse_model,
    save_classifier,
    save_model,
    save_sparse_model,
)
from dkgp.data.stores.models.classifier import FORMS
from dkgp.data.stores.models.model import ModelAddress
from dkgp.errors import InputError, NumericalError, StoreError
from tests.data.stores.kinds import (
    FACTS,
    LIKELIHOOD,
    M,
    fixed_size,
    of_basis,
    of_samples,
    rewrite_manifest,
    sparse_record,
)

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def dataset(tmp_path: Path, arrays: Arrays) -> Dataset:
    """The training set, in a store."""
    return dataset_from_arrays(tmp_path / "train.zarr", *arrays, chunk_rows=300)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the path of a new model."""
    return tmp_path / "model.zarr"


def save_exact(place: Path, dataset: Dataset, **changes: Any) -> np.ndarray:
    alpha = np.random.default_rng(3).normal(size=(dataset.n_samples, dataset.n_targets))
    save_model(place, **{**FACTS, "alpha": alpha, "dataset": dataset, **changes})
    return alpha


def save_of_samples(form: str, known: bool = True) -> Callable[..., None]:
    def save(place: Path, dataset: Dataset, by_reference: bool = False, **changes: Any) -> None:
        training = {"dataset": dataset} if known else {}
        save_classifier(place, of_samples(dataset, form, **changes), by_reference=by_reference, **training)  # type: ignore[arg-type]

    return save


def save_of_basis(form: str) -> Callable[..., None]:
    def save(place: Path, dataset: Dataset, by_reference: bool = False, **changes: Any) -> None:
        record = fixed_size(dataset, **changes) if form == "fixed-size" else of_basis(dataset, form, **changes)
        save_classifier(place, record, dataset=dataset if by_reference else None, by_reference=by_reference)

    return save


SAVE: dict[str, Callable[..., Any]] = {
    "exact": save_exact,
    "sparse": lambda place, dataset, **changes: save_sparse_model(place, sparse_record(dataset, **changes)),
    "fixed-size": save_of_basis("fixed-size"),
    "gp of a basis": save_of_basis("gp"),
    "logistic of a basis": save_of_basis("logistic"),
    "exact classifier": save_of_samples("exact"),
    "exact classifier without its training set": save_of_samples("exact", known=False),
    "logistic": save_of_samples("logistic"),
    "gp": save_of_samples("gp"),
}
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("exact", {"alpha": np.zeros(999)}, InputError, r"alpha has shape \(999,\)"),
    ("exact", {"alpha": np.full(1000, np.nan)}, NumericalError, "row 0"),
    ("exact", {"noise_variance": 0.0}, InputError, "must be positive"),
    ("exact", {"summary": {"a": object()}}, TypeError, "JSON"),
    ("sparse", {"weights": np.zeros((M, 2))}, InputError, r"'weights' .* has shape \(12, 2\); expected \(12, 1\)"),
    ("sparse", {"weights": None}, InputError, "A sparse model needs 'weights'; got none"),
    ("sparse", {"lower": np.zeros((M, 3))}, InputError, r"'lower' .* expected \(12, 12\)"),
    ("sparse", {"normal": np.full((M, M), np.nan)}, NumericalError, "'normal' .* is not finite; the model is not sav"),
    ("sparse", {"indices": np.arange(3)}, InputError, r"'indices' .* expected \(12,\)"),
    ("sparse", {"basis_noise": np.full(M, np.inf)}, NumericalError, "'basis_noise' .* is not finite"),
    ("sparse", {"noise_variance": 0.0}, InputError, "noise variance must be positive; got 0.0"),
    ("fixed-size", {"weights": np.zeros((M, 2))}, InputError, r"'weights' .* has shape \(12, 2\); expected \(12, 1\)"),
    ("fixed-size", {"weights": None}, InputError, "A fixed-size classifier needs 'weights'; got none"),
    ("fixed-size", {"intercept": np.zeros(2)}, InputError, r"'intercept' .* expected \(1,\)"),
    ("fixed-size", {"prototypes": np.full((M, 3), np.nan)}, NumericalError, "'prototypes' .* is not finite; .* not sa"),
    ("fixed-size", {"classes": ("one",)}, InputError, r"needs two classes of different names at least; got \['one'\]"),
    ("fixed-size", {"classes": ("one", "one")}, InputError, "two classes of different names"),
    ("fixed-size", {"noise_variance": 0.0}, InputError, "noise variance must be positive; got 0.0"),
    ("fixed-size", {"by_reference": True}, InputError, "`by_reference` needs a classifier of all samples"),
    ("gp of a basis", {"posterior_lower": None}, InputError, "A gp classifier needs 'posterior_lower'"),
    (
        "gp of a basis",
        {"posterior_lower": np.ones((3, M, M))},
        InputError,
        r"'posterior_lower' .* expected \(1, 36, 36\)",
    ),
    ("gp of a basis", {"by_reference": True}, InputError, "`by_reference` needs a classifier of all samples"),
    ("logistic of a basis", {"by_reference": True}, InputError, "`by_reference` needs a classifier of all"),
    ("exact classifier without its training set", {}, InputError, "An exact classifier needs its training set"),
    ("exact classifier", {"ones": np.zeros(3)}, InputError, r"'ones' .* has shape \(3,\)"),
    ("logistic", {"likelihood": None}, InputError, "A logistic .* needs 'likelihood'; got none"),
    ("logistic", {"alpha": None}, InputError, "A logistic classifier of all samples needs 'alpha'"),
    ("gp", {"regularisation": 0.0}, InputError, "regularisation must be finite and positive; got 0.0"),
    ("gp", {"curvature": None}, InputError, "A gp classifier of all samples needs 'curvature'"),
    ("gp", {"curvature": np.full((40, 3), -1.0)}, NumericalError, "'curvature' .* below zero"),
    ("gp", {"alpha": np.zeros((3, 3))}, InputError, r"'alpha' .* has shape \(3, 3\)"),
]


@pytest.mark.parametrize(("kind", "changes", "error", "words"), REFUSED)
def test_a_model_that_cannot_be_saved_leaves_nothing(
    dataset: Dataset, place: Path, kind: str, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        SAVE[kind](place, dataset, **changes)
    assert not place.exists()


# ----------------------------------------------------------------------------------------------- inputs and references


@pytest.mark.parametrize("by_reference", [False, True])
def test_rows_in_any_order_touch_only_their_chunks(
    tmp_path: Path, dataset: Dataset, place: Path, by_reference: bool
) -> None:
    save_exact(place, dataset, by_reference=by_reference)
    model = open_model(place)
    indices = np.array([950, 3, 299, 900, 3])
    expected = model.inputs(0, 1000)[indices]
    folder = tmp_path / "train.zarr" / "X" if by_reference else place / "inputs"
    for gone in (1, 2):
        (folder / "c" / str(gone) / "0").unlink()
    np.testing.assert_array_equal(model.input_rows(indices), expected)
    assert model.input_rows(np.array([], dtype=np.int64)).shape == (0, 3)
    with pytest.raises(StoreError, match=r"c/2/0 \(rows 600 to 899\).*is missing"):
        model.input_rows(np.array([950, 601]))
    with pytest.raises(InputError, match="has 1000 rows"):
        model.input_rows(np.array([0, 1000]))


def test_xarray_shows_several_targets(tmp_path: Path, arrays: Arrays, place: Path) -> None:
    two = dataset_from_arrays(tmp_path / "two.zarr", arrays[0], np.stack([arrays[1], -arrays[1]], axis=1))
    alpha = save_exact(place, two)
    shown = xr.open_zarr(place)
    assert shown["alpha"].dims == ("sample", "target")
    assert shown["inputs"].dims == ("sample", "feature")
    np.testing.assert_array_equal(shown["alpha"].values, alpha)


def test_a_copy_outlives_its_training_set_and_a_reference_does_not(tmp_path: Path, arrays: Arrays) -> None:
    X, y = arrays
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, y)
    save_exact(tmp_path / "copy.zarr", dataset)
    save_exact(tmp_path / "reference.zarr", dataset, by_reference=True)
    expected = dataset.inputs(0, 10)
    dataset_from_arrays(tmp_path / "train.zarr", X + 1, y, overwrite=True)
    with pytest.raises(StoreError, match="whose content has changed"):
        open_model(tmp_path / "reference.zarr")
    shutil.rmtree(tmp_path / "train.zarr")
    with pytest.raises(StoreError, match="refers to its training set"):
        open_model(tmp_path / "reference.zarr")
    np.testing.assert_array_equal(open_model(tmp_path / "copy.zarr").inputs(0, 10), expected)


def test_a_classifier_by_reference_tells_where_its_training_set_went(
    tmp_path: Path, dataset: Dataset, place: Path
) -> None:
    SAVE["exact classifier"](place, dataset, by_reference=True)
    with pytest.raises(StoreError, match="names another training set than before"):
        open_classifier(place, reference="")
    shutil.rmtree(tmp_path / "train.zarr")
    with pytest.raises(StoreError, match="refers to its training set at"):
        open_classifier(place)


@pytest.mark.parametrize("form", ["exact", "logistic", "gp"])
@pytest.mark.parametrize("by_reference", [False, True])
def test_a_classifier_of_all_samples_says_where_its_inputs_are(
    dataset: Dataset, place: Path, form: str, by_reference: bool
) -> None:
    save_of_samples(form)(place, dataset, by_reference=by_reference)
    found = open_classifier(place)
    assert (found.form, found.n_outputs, found.n_support, found.is_sparse) == (form, 3, dataset.n_samples, False)
    assert (found.by_reference, found.reference) == (by_reference, dataset.url if by_reference else "")
    likelihood = (None, None) if form == "exact" else (LIKELIHOOD, 0.25)
    assert (found.likelihood, found.regularisation) == likelihood


# ------------------------------------------------------------------------------------------ models without training set


@pytest.mark.parametrize("absent", [(), ("indices",), ("class_weights", "calibration")])
def test_a_fixed_size_classifier_needs_no_training_set(
    tmp_path: Path, dataset: Dataset, place: Path, absent: tuple[str, ...]
) -> None:
    written = fixed_size(dataset, **dict.fromkeys(absent))
    save_classifier(place, written)
    shutil.rmtree(tmp_path / "train.zarr")
    found = open_classifier(place)
    for name in ("form", "classes", "class_weights", "calibration", "path"):
        assert getattr(found, name) == getattr(written, name)
    assert (found.indices is None) == ("indices" in absent)
    assert (found.n_outputs, found.n_support, found.reference) == (1, M, "")
    np.testing.assert_array_equal(found.inputs(2, 5), written.inputs(2, 5))
    assert not {"alpha", "ones", "curvature", "posterior_lower"} & vars(found).keys()


@pytest.mark.parametrize(("form", "support"), [key for key in FORMS if key[1] != "neighbours"])
def test_a_store_opens_as_the_class_of_its_form(dataset: Dataset, place: Path, form: str, support: str) -> None:
    save = save_of_samples(form) if support == "samples" else save_of_basis(form)
    save(place, dataset)
    opened: Any = open_classifier(place)
    assert type(opened) is FORMS[form, support]  # type: ignore[index]
    assert type(replace(opened, summary={})) is type(opened)
    assert pickle.loads(pickle.dumps(opened)).form == form


@pytest.mark.parametrize(
    ("kind", "form", "words"),
    [
        ("gp of a basis", "new", "the form 'new' and the arrays .*prototypes"),
        ("gp of a basis", "exact", "the form 'exact' and the arrays"),
        ("logistic", "gp", "lacks the array 'curvature'"),
        ("gp", "logistic", "array 'curvature' .* no such array"),
        ("exact classifier", "fixed-size", "the form 'fixed-size' and the arrays"),
    ],
)
def test_a_form_without_its_arrays_is_refused(dataset: Dataset, place: Path, kind: str, form: str, words: str) -> None:
    SAVE[kind](place, dataset)
    rewrite_manifest(place, lambda manifest: manifest["metadata"].update(form=form))
    with pytest.raises(StoreError, match=words):
        open_classifier(place)


@pytest.mark.parametrize("absent", ["normal", "indices", "basis_noise"])
def test_arrays_that_a_sparse_model_may_lack(dataset: Dataset, place: Path, absent: str) -> None:
    written = sparse_record(dataset, **{absent: None})
    save_sparse_model(place, written)
    found = open_sparse_model(place)
    assert getattr(found, absent) is None
    np.testing.assert_array_equal(found.lower, written.lower)
    assert found.lower.flags.f_contiguous
    assert (found.method, found.basis_size, found.n_features, found.n_targets) == ("vfe", M, 3, 1)


def test_a_sparse_model_takes_its_own_bytes_alone(tmp_path: Path, place: Path) -> None:
    rng = np.random.default_rng(0)
    dataset = dataset_from_arrays(tmp_path / "train.zarr", rng.standard_normal((20_000, 3)), np.arange(20_000.0))
    save_sparse_model(place, sparse_record(dataset))
    shutil.rmtree(tmp_path / "train.zarr")
    assert open_sparse_model(place).basis_size == M
    written = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    assert written < 8 * (2 * M**2 + M * 5) + 20_000


# ------------------------------------------------------------------------------------------------------------ addresses


def test_either_kind_opens_and_says_the_same_of_itself(place: Path, dataset: Dataset) -> None:
    save_exact(place, dataset)
    save_sparse_model(place.parent / "sparse.zarr", sparse_record(dataset))
    whole, few = open_any_model(place), open_any_model(place.parent / "sparse.zarr")
    assert isinstance(whole, ModelRecord)
    assert isinstance(few, SparseRecord)
    for name in ("kernel", "noise_variance", "feature_names", "target_names", "fingerprint", "standardisation"):
        assert getattr(whole, name) == getattr(few, name)
    assert whole.training_url == few.training_url == dataset.url


def test_a_store_that_is_no_model_is_refused(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(StoreError, match="holds a dkgp dataset store; expected a model store"):
        open_any_model(dataset.url)
    with pytest.raises(StoreError, match="There is no model store at"):
        find_any_model(ModelAddress(str(tmp_path / "nothing.zarr")))


def test_models_in_memory_are_found_for_as_long_as_they_are_held(dataset: Dataset) -> None:
    whole = memory_model(dataset, alpha=np.ones((1000, 1)), **FACTS)
    few = memory_sparse_model(sparse_record(dataset))
    classifier = memory_classifier(of_samples(dataset, "exact"), dataset)
    assert find_any_model(whole.address) is ModelRecord.find(whole.address) is whole
    assert find_any_model(few.address) is few
    assert find_any_model(classifier.address) is ClassifierRecord.find(classifier.address) is classifier
    assert few.summary == {"converged": True}
    np.testing.assert_array_equal(classifier.inputs(0, 4), dataset.inputs(0, 4))
    with pytest.raises(StoreError, match="A sparse model is in memory there; expected an exact one"):
        ModelRecord.find(few.address)
    with pytest.raises(StoreError, match="A classifier is in memory there; expected an exact one"):
        ModelRecord.find(classifier.address)
    with pytest.raises(StoreError, match="An exact model is in memory there"):
        SparseRecord.find(whole.address)
    assert is_resident(whole.url)
    assert not is_resident(dataset.url)
    address = few.address
    del few
    gc.collect()
    with pytest.raises(StoreError):
        find_any_model(address)
