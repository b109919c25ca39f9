"""Stores as each version of dkgp wrote them, kept in `tests/data/formats`: read for ever, to the bit.

`tests/data/formats/write.py` wrote them, with the dkgp of their time; what is expected is what Zarr read of them then,
and what that dkgp predicted.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import (
    CheckpointStore,
    dataset_from_arrays,
    open_any_model,
    open_dataset,
    open_linear_model,
    open_prediction,
    recognise,
)
from dkgp.data.stores.manifest import FORMAT_VERSIONS
from tests.cli.invoke import run_json

FOLDER = Path(__file__).parents[1] / "formats"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.zip"))}


def unpacked(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    with zipfile.ZipFile(FILES[name]) as archive:
        archive.extractall(folder)
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return folder / "store", expected


def of_kind(words: str) -> Any:
    return pytest.mark.parametrize("name", [name for name in FILES if re.match(words, name)])


def test_every_format_is_there(tmp_path: Path) -> None:
    """A format that is new needs a store of its own, written by the script and committed with it."""
    seen = {("variance factor", 1)} if any("factor" in name for name in FILES) else set()
    for name in FILES:
        if not name.startswith("checkpoint"):
            store, expected = unpacked(name, tmp_path / name)
            seen.add((str(recognise(str(store))), expected["version"]))
    wanted = {(kind, version) for kind, newest in FORMAT_VERSIONS.items() for version in range(1, newest + 1)}
    assert seen >= wanted | {("variance factor", 1)}
    assert "checkpoint-1" in FILES


@of_kind("dataset|labels")
def test_data_sets(name: str, tmp_path: Path) -> None:
    store, expected = unpacked(name, tmp_path)
    dataset, arrays = open_dataset(store), expected["arrays"]
    n = dataset.n_samples
    assert list(dataset.raw_feature_names) == expected["names"]
    np.testing.assert_array_equal(dataset.raw_inputs(0, n), arrays["X"])
    np.testing.assert_array_equal(dataset.targets(0, n, standardised=False)[:, 0], arrays["y"])
    noise = dataset.all_sample_noise(standardised=False)
    assert (noise is None) == ("noise" not in arrays)
    if noise is not None:
        np.testing.assert_array_equal(noise, arrays["noise"])
    assert (dataset.classes is None) == name.startswith("dataset")


@of_kind("prediction")
def test_predictions(name: str, tmp_path: Path) -> None:
    store, expected = unpacked(name, tmp_path)
    prediction = open_prediction(store)
    assert set(prediction.variables) == set(expected["arrays"]) - {"class_name"}
    for variable in prediction.variables:
        values = np.array(expected["arrays"][variable])
        np.testing.assert_array_equal(prediction.read(variable), values.reshape(len(values), -1))


@pytest.mark.long
@of_kind(r"(?!prediction|dataset|labels|checkpoint)")
def test_models(name: str, tmp_path: Path) -> None:
    """What they hold to the bit, and what they predict as they did, but for roundings of a newer arithmetic."""
    store, expected = unpacked(name, tmp_path)
    opens = open_linear_model if "linear" in name else open_any_model
    model, arrays = opens(str(store)), expected["arrays"]
    for field in {"alpha", "weights", "coefficients", "intercept", "prototypes", "lower", "normal"} & arrays.keys():
        values = np.array(arrays[field])
        np.testing.assert_array_equal(np.reshape(getattr(model, field), values.shape), values, err_msg=field)
    names = list(model.feature_names)
    dataset_from_arrays(tmp_path / "at.zarr", np.array(expected["inputs"]), None, feature_names=names)
    out, predicted = tmp_path / "prediction.zarr", expected["predicted"]
    # Variances of known noise need the noise at the samples, which `variance_lower` and the like hold.
    variance = ("--variance",) if "variance" in predicted and "noise" not in predicted else ()
    run_json("predict", store, tmp_path / "at.zarr", "--out", out, *variance, "--cluster", "none")
    found = open_prediction(out)
    compared = set(found.variables) & predicted.keys() & {"mean", "variance", "decision", "probability", "class"}
    assert compared & {"mean", "decision"}
    for variable in compared:
        values = np.array(predicted[variable])
        # Bounds on means are proven; the interval of a variance may be another, its middle within it.
        close = {"rtol": 2e-2} if variable == "variance" else {"rtol": 1e-6, "atol": 1e-9}
        np.testing.assert_allclose(found.read(variable), values.reshape(len(values), -1), **close, err_msg=variable)


@of_kind("checkpoint")
def test_checkpoints(name: str, tmp_path: Path) -> None:
    """Gone on with to the solution."""
    store, expected = unpacked(name, tmp_path)
    checkpoint = CheckpointStore(str(store)).load_latest()
    assert checkpoint is not None
    assert not checkpoint.skipped
    X, y = open_dataset(tmp_path / "data").inputs(0, 14), open_dataset(tmp_path / "data").all_targets()[:, 0]
    distances = ((X[:, None] - X[None]) ** 2 * expected["kernel"]["gamma"]).sum(axis=2)
    solution = np.linalg.solve(np.exp(-distances) + 0.1 * np.eye(len(X)), y)
    np.testing.assert_allclose(np.array(expected["alpha"]).ravel(), solution, atol=1e-7)
    alpha = checkpoint.arrays["alpha"]
    # It is on the way: nearer than the start, in the norm that the solve descends in.
    gram = np.exp(-distances) + 0.1 * np.eye(len(X))
    step = np.reshape(alpha, -1) - solution
    assert step @ gram @ step < solution @ gram @ solution
