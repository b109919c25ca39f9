"""`dkgp tune --likelihood`: from outliers to evaluated predictions under Student's t, against dense algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import ingest, open_dataset, open_model, open_prediction
from dkgp.models import read_hyperparameters
from dkgp.models.noise import StudentT
from tests.cli.invoke import refused, run, run_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of which one in sixteen is an outlier, and the values of the function at the test samples."""
    rng = np.random.default_rng(11)
    place = tmp_path_factory.mktemp("outliers")
    x = rng.uniform(-2.0, 2.0, (420, 2))
    function = 7.0 * (np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2)
    noise = np.where(rng.random(420) < 0.06, rng.normal(0.0, 14.0, 420), rng.normal(0.0, 0.7, 420))
    table = np.column_stack([x, 40.0 + function + noise, 40.0 + function])
    for name, rows in (("train", slice(0, 300)), ("test", slice(300, None))):
        np.savetxt(place / f"{name}.csv", table[rows, :3], delimiter=",", header="a,b,y", comments="")
        ingest(str(place / f"{name}.csv"), str(place / f"{name}.zarr"), target="y")
    np.save(place / "function.npy", table[300:, 3])
    return place


@pytest.fixture(scope="module")
def tuned(folder: Path) -> dict[str, Any]:
    return run_json("tune", folder / "train.zarr", "--out", folder / "student.json", "--likelihood", "auto")


@pytest.fixture(scope="module")
def figures(folder: Path, tuned: dict[str, Any]) -> dict[str, Any]:
    """Of both likelihoods: the record of training, the evaluation, and the distance of the mean from the function."""
    run_json("tune", folder / "train.zarr", "--out", folder / "gaussian.json", "--likelihood", "gaussian")
    told = {}
    for name in ("gaussian", "student"):
        model, prediction = folder / f"{name}.zarr", folder / f"{name}-pred.zarr"
        trained = run_json("train", folder / "train.zarr", "--hyper", folder / f"{name}.json", "--out", model)
        run_json("predict", model, folder / "test.zarr", "--out", prediction, "--variance")
        mean = open_prediction(prediction).read("mean", 0, 120)[:, 0]
        off = float(np.sqrt(np.mean((mean - np.load(folder / "function.npy")) ** 2)))
        told[name] = {"trained": trained, "off": off, **run_json("evaluate", prediction, folder / "test.zarr")}
    return told


def test_tuning_tells_what_it_chose(tuned: dict[str, Any]) -> None:
    comparison = tuned["noise_comparison"]
    assert comparison["kind"] == "student-t"
    assert [row["kind"] for row in comparison["kinds"]] == ["gaussian", "student-t"]
    assert comparison["kinds"][1]["gain"] > 2.0 * comparison["kinds"][1]["standard_error"]
    t = StudentT.held(tuned["student_t"])
    assert t is not None
    assert t.degrees < 6.0
    assert tuned["noise_variance"] == t.variance
    assert read_hyperparameters(tuned["out"]).student_t == t


def test_outliers_pull_the_mean_less_and_densities_are_better(figures: dict[str, Any]) -> None:
    student, gaussian = figures["student"], figures["gaussian"]
    assert student["off"] < 0.7 * gaussian["off"]
    assert student["nlpd"] < gaussian["nlpd"] - 0.3
    kinds = [{finding["kind"] for finding in of["verdict"]} for of in (gaussian, student)]
    assert "heavy tails" in kinds[0]
    assert "heavy tails" not in kinds[1]
    (advice,) = (finding["advice"] for finding in gaussian["verdict"] if finding["kind"] == "heavy tails")
    assert "likelihood" in advice
    assert student["student_t"]["degrees"] < 6.0
    low, high = student["coverage_95_band"]
    assert low - 0.02 <= student["coverage_95"] <= high + 0.02
    assert student["trained"]["weights"]["turns"] > 2


def test_predictions_are_those_of_the_same_turns_in_dense_algebra(folder: Path, figures: dict[str, Any]) -> None:
    hyper, data = read_hyperparameters(folder / "student.json"), open_dataset(folder / "train.zarr")
    t = hyper.student_t
    assert t is not None
    test = open_dataset(folder / "test.zarr").as_seen_by(data.feature_names, data.target_names, data.standardisation)
    X, T, y = data.inputs(0, 300), test.inputs(0, 120), data.all_targets()[:, 0]
    K, w = hyper.kernel(X, X), np.ones(300)
    while True:
        alpha = np.linalg.solve(K + np.diag(t.scale / w), y)
        found = (t.degrees + 1.0) / (t.degrees + (y - K @ alpha) ** 2 / t.scale)
        if np.abs(found - w).max() <= 0.01:
            break
        w = found
    cross, scale = hyper.kernel(T, X), float(data.standardisation.target_std[0])
    mean = cross @ alpha * scale + data.standardisation.target_mean[0]
    latent = 1.0 - np.einsum("ij,ji->i", cross, np.linalg.solve(K + np.diag(t.scale / w), cross.T))
    variance = (latent + t.scale * t.degrees / (t.degrees - 2.0)) * scale**2
    store = open_prediction(folder / "student-pred.zarr")
    np.testing.assert_allclose(store.read("mean", 0, 120)[:, 0], mean, atol=1e-2)
    lower, upper = (store.read(f"variance_{end}", 0, 120)[:, 0] for end in ("lower", "upper"))
    assert (lower <= variance * (1.0 + 1e-4)).all()
    assert (variance <= upper * (1.0 + 1e-4)).all()
    # Densities are those of t around the function's normal distribution.
    truth = open_dataset(folder / "test.zarr").targets(0, 120, standardised=False)[:, 0]
    density = t.log_density((truth - mean) / scale, latent)
    assert figures["student"]["nlpd"] == pytest.approx(-density.mean(), abs=0.02)


def test_a_table_has_intervals_of_t(folder: Path, figures: dict[str, Any], tmp_path: Path) -> None:
    run_json("export", folder / "student-pred.zarr", tmp_path / "out.csv")
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
    half = 0.5 * (table["upper_95"] - table["lower_95"])
    assert (half < 1.9 * table["std"]).all()
    truth = open_dataset(folder / "test.zarr").targets(0, 120, standardised=False)[:, 0]
    inside = np.mean((table["lower_95"] <= truth) & (truth <= table["upper_95"]))
    assert inside == pytest.approx(figures["student"]["coverage_95"], abs=1e-12)


def test_a_solver_with_one_factor_on_disk_is_refused(folder: Path, tuned: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("train", folder / "train.zarr", "--hyper", tuned["out"], "--out", tmp_path / "m.zarr")
    refused(run(*arguments, "--solver", "tiled-cholesky"), "solves under other weights time and again", exit_code=2)
    assert list(tmp_path.iterdir()) == []


def test_other_commands_say_that_they_do_not_know_it(folder: Path, tuned: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("sparse", folder / "train.zarr", "--hyper", tuned["out"], "--out", tmp_path / "s.zarr")
    result = run_json(*arguments, "--basis-size", 20)
    assert any("Student's t in" in warning for warning in result["warnings"])


def test_labels_have_no_such_noise(labelled: Any, tmp_path: Path) -> None:
    result = run("tune", labelled(2)["train"], "--out", tmp_path / "h.json", "--likelihood", "student-t")
    refused(result, "is a label", "--likelihood student-t out")


def test_the_model_keeps_weights_as_noise(folder: Path, figures: dict[str, Any]) -> None:
    model = open_model(folder / "student.zarr")
    t = StudentT.held(model.summary["student_t"])
    assert t is not None
    assert model.sample_noise is not None
    assert model.noise_variance == t.least
    assert float(t.weights(model.sample_noise).min()) == pytest.approx(model.summary["weights"]["least"])
