"""Predictions of classes: decisions, probabilities, classes and certificates, by regions, resumed, shown by xarray."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from dkgp.data import PredictionWriter, open_prediction
from dkgp.data.stores.manifest import MANIFEST_NAME, checksum
from dkgp.data.stores.prediction_store import CLASS_VARIABLES
from dkgp.errors import InputError, NumericalError, StoreError

Place = Callable[[str], str]
CLASSES = ("<=50K", "größer, „viel“", "Élan vital")


def _values(rng: np.random.Generator, n: int, n_classes: int) -> dict[str, np.ndarray]:
    t = 1 if n_classes == 2 else n_classes
    probability = rng.dirichlet(np.ones(n_classes), n)
    return {
        "decision": rng.normal(size=(n, t)),
        "decision_error_bound": rng.uniform(size=(n, t)),
        "probability": probability,
        "probability_lower": 0.5 * probability,
        "probability_upper": 0.5 + 0.5 * probability,
        "class": probability.argmax(axis=1),
        "certified": rng.uniform(size=n) < 0.5,
        "latent_variance_lower": rng.uniform(size=(n, t)),
        "latent_variance_upper": 1.0 + rng.uniform(size=(n, t)),
    }


@pytest.mark.parametrize("n_classes", [2, 3])
def test_round_trip_in_any_order(place: Place, rng: np.random.Generator, n_classes: int) -> None:
    values, classes = _values(rng, 45, n_classes), CLASSES[:n_classes]
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
    assert pickle.loads(pickle.dumps(open_prediction(place("c.zarr")))).classes == classes


@pytest.mark.parametrize("n_classes", [2, 3])
def test_xarray_names_the_dimension(place: Place, rng: np.random.Generator, n_classes: int) -> None:
    values, classes = _values(rng, 30, n_classes), CLASSES[:n_classes]
    writer = PredictionWriter.create(place("c.zarr"), 30, ["income"], CLASS_VARIABLES, 10, classes=classes)
    writer.write(0, **values)
    writer.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = xr.open_zarr(place("c.zarr"))
    for name in ("probability", "probability_lower", "probability_upper"):
        assert shown[name].dims == ("sample", "class_name")
    for name in ("decision", "latent_variance_lower", "latent_variance_upper"):
        assert shown[name].dims == (("sample",) if n_classes == 2 else ("sample", "class_name"))
    assert shown["class"].dims == shown["certified"].dims == ("sample",)
    assert shown["class"].dtype.kind == "i"
    assert shown["class_name"].values.tolist() == list(classes) == shown["class"].attrs["classes"]
    np.testing.assert_array_equal(shown["probability"].sel(class_name=classes[1]).values, values["probability"][:, 1])
    named = shown["class_name"].isel(class_name=shown["class"].compute())
    assert named.values.tolist() == [classes[code] for code in values["class"]]


def test_resume(place: Place, rng: np.random.Generator) -> None:
    values = _values(rng, 50, 3)
    writer = PredictionWriter.create(place("c.zarr"), 50, ["y"], CLASS_VARIABLES, 10, classes=CLASSES)
    writer.write(10, **{name: block[10:30] for name, block in values.items()})
    writer.write(40, decision=values["decision"][40:])
    resumed = PredictionWriter.open_to_resume(place("c.zarr"))
    assert resumed.classes == CLASSES
    assert resumed.done_regions() == [(10, 30)]
    assert resumed.done_regions(["decision"]) == [(10, 30), (40, 50)]
    for start, stop in resumed.pending_regions():
        resumed.write(start, **{name: block[start:stop] for name, block in values.items()})
    np.testing.assert_array_equal(resumed.commit().read("probability"), values["probability"])


def test_a_lost_chunk_or_name_is_told(tmp_path: Path, rng: np.random.Generator) -> None:
    values = _values(rng, 30, 3)
    for lost in ("probability/c/1/0", "certified/c/0", "class_name/c/0"):
        url = tmp_path / "c.zarr"
        writer = PredictionWriter.create(url, 30, ["y"], CLASS_VARIABLES, 10, classes=CLASSES)
        writer.write(0, **values)
        writer.commit()
        (url / lost).unlink()
        with pytest.raises(StoreError, match=f"{lost}.*missing"):
            open_prediction(url)
        shutil.rmtree(url)


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


@pytest.mark.parametrize("version", [1, 2])
def test_stores_of_older_formats_are_read(tmp_path: Path, version: int) -> None:
    """As dkgp wrote them before there were classes, and before probabilities had intervals."""
    writer = PredictionWriter.create(tmp_path / "p.zarr", 5, ["y"], ["mean"])
    writer.write(0, mean=np.arange(5.0))
    writer.commit()
    manifest = json.loads((tmp_path / "p.zarr" / MANIFEST_NAME).read_text())
    assert "classes" not in manifest["metadata"]
    del manifest["checksum"]
    assert manifest["version"] == 3
    manifest["version"] = version
    manifest["checksum"] = checksum(manifest)
    (tmp_path / "p.zarr" / MANIFEST_NAME).write_text(json.dumps(manifest))
    found = open_prediction(tmp_path / "p.zarr")
    assert found.classes is None
    np.testing.assert_array_equal(found.read("mean")[:, 0], np.arange(5.0))
    with pytest.raises(InputError, match="has no variable 'class'; it has mean"):
        found.labels()
