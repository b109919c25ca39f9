"""Predictions of classes: decisions, probabilities, classes and certificates, by regions, resumed, shown by xarray."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr

from dkgp.data import PredictionWriter, open_prediction
from dkgp.data.stores.prediction_store import CLASS_VARIABLES
from dkgp.errors import InputError, NumericalError, StoreError
from tests.data.stores.kinds import CLASSES, class_values

Place = Callable[[str], str]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_round_trip_in_any_order(place: Place, n_classes: int) -> None:
    values, classes = class_values(45, n_classes), CLASSES[:n_classes]
    writer = PredictionWriter.create(place("c.zarr"), 45, ["income"], CLASS_VARIABLES, 10, classes=classes)
    for start, stop in [(40, 45), (10, 30), (0, 10), (30, 40)]:
        copy = pickle.loads(pickle.dumps(writer))
        copy.write(start, **{name: block[start:stop] for name, block in values.items()})
    found = writer.commit()
    assert found.classes == classes
    for name, block in values.items():
        np.testing.assert_array_equal(found.read(name), block.reshape(45, -1))
    np.testing.assert_array_equal(found.labels(7, 33), values["class"][7:33])
    np.testing.assert_array_equal(found.certified(), values["certified"])
    assert (found.labels().dtype, found.certified().dtype) == (np.int64, np.bool_)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_xarray_names_the_dimension(place: Place, n_classes: int) -> None:
    values, classes = class_values(30, n_classes), CLASSES[:n_classes]
    writer = PredictionWriter.create(place("c.zarr"), 30, ["income"], CLASS_VARIABLES, 10, classes=classes)
    writer.write(0, **values)
    writer.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = xr.open_zarr(place("c.zarr"))
    assert shown["certified"].dims == ("sample",)
    assert shown["class"].dtype.kind == "i"
    assert shown["class_name"].values.tolist() == list(classes) == shown["class"].attrs["classes"]
    np.testing.assert_array_equal(shown["probability"].sel(class_name=classes[1]).values, values["probability"][:, 1])
    named = shown["class_name"].isel(class_name=shown["class"].compute())
    assert named.values.tolist() == [classes[code] for code in values["class"]]


def test_who_resumes_knows_the_classes_and_a_lost_name_is_told(place: Place) -> None:
    writer = PredictionWriter.create(place("c.zarr"), 50, ["y"], CLASS_VARIABLES, 10, classes=CLASSES)
    writer.write(10, **{name: block[10:] for name, block in class_values(50, 3).items()})
    resumed = PredictionWriter.open_to_resume(place("c.zarr"))
    assert (resumed.classes, resumed.pending_regions()) == (CLASSES, [(0, 10)])
    resumed.write(0, **{name: block[:10] for name, block in class_values(50, 3).items()})
    resumed.commit()
    file_system, path = fsspec.core.url_to_fs(place("c.zarr"))
    file_system.rm_file(f"{path}/class_name/c/0")
    with pytest.raises(StoreError, match="class_name/c/0.*missing"):
        open_prediction(place("c.zarr"))


@pytest.mark.parametrize(
    ("variables", "targets", "classes", "message"),
    [
        (["class"], ["y"], None, "0 classes; expected one target and the names"),
        (["mean", "decision"], ["y", "z"], CLASSES, "of 2 targets"),
        (["class"], ["y"], ["only"], "one class only, 'only'"),
        (["class", "label"], ["y"], CLASSES, "expected some of mean, .*certified"),
    ],
)
def test_plans_that_are_refused(
    tmp_path: Path, variables: list[str], targets: list[str], classes: list[str] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        PredictionWriter.create(tmp_path / "c.zarr", 30, targets, variables, classes=classes)
    assert not (tmp_path / "c.zarr").exists()


@pytest.mark.parametrize(
    ("name", "block", "error", "message"),
    [
        ("class", np.full(5, 3), InputError, "is 3; expected a class's number, 0 to 2"),
        ("class", np.full(5, -1), InputError, "is -1"),
        ("certified", np.full(5, 2), InputError, "0 to 1"),
        ("probability", np.full((5, 3), 1.5), NumericalError, r"1\.5.* in row 0; expected 0 to 1"),
        ("probability", np.full((5, 2), 0.5), InputError, r"expected \(rows, 3\)"),
        ("probability_lower", np.full((5, 3), -0.5), NumericalError, r"'probability_lower' holds .*-0\.5"),
        ("latent_variance_upper", np.full((5, 3), np.nan), NumericalError, "NaN in row 0"),
        ("decision", np.full((5, 3), np.nan), NumericalError, "NaN in row 0"),
    ],
)
def test_values_that_are_refused(
    tmp_path: Path, name: str, block: np.ndarray, error: type[Exception], message: str
) -> None:
    writer = PredictionWriter.create(tmp_path / "c.zarr", 5, ["y"], CLASS_VARIABLES, classes=CLASSES)
    with pytest.raises(error, match=message):
        writer.write(0, **{name: block})
    assert writer.done_regions([name]) == []
