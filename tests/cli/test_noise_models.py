"""`dkgp tune --noise-model`: from there to evaluated predictions, against dense algebra with noise by sample."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dkgp.codec import from_json
from dkgp.data import ingest, open_dataset, open_model, open_prediction
from dkgp.models import read_hyperparameters, write_hyperparameters
from dkgp.models.noise import NoiseModel
from tests.cli.invoke import refused, run, run_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples whose noise grows with their first feature, by a factor of 25 in deviation, tuned with `auto`."""
    rng = np.random.default_rng(3)
    place = tmp_path_factory.mktemp("noise")
    x = rng.uniform(-2.0, 2.0, (420, 2))
    y = 40.0 + 7.0 * (np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + np.exp(-1.5 + 0.8 * x[:, 0]) * rng.normal(size=420))
    np.savetxt(place / "data.csv", np.column_stack([x, y]), delimiter=",", header="a,b,y", comments="")
    table, train = str(place / "data.csv"), str(place / "train.zarr")
    ingest(table, train, target="y", test_fraction=0.3, test_out=str(place / "test.zarr"))
    return place


@pytest.fixture(scope="module")
def tuned(folder: Path) -> dict[str, Any]:
    return run_json("tune", folder / "train.zarr", "--out", folder / "hyper.json", "--noise-model", "auto")


@pytest.fixture(scope="module")
def predicted(folder: Path, tuned: dict[str, Any]) -> dict[str, Any]:
    """The record of the training, its model's predictions beside it."""
    trained = run_json("train", folder / "train.zarr", "--hyper", tuned["out"], "--out", folder / "model.zarr")
    for out, more in (("pred", ()), ("latent", ("--latent",))):
        run_json(
            "predict", folder / "model.zarr", folder / "test.zarr", "--out", folder / f"{out}.zarr", "--variance", *more
        )
    return trained


def dense(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, variances of the function and of the noise at the test samples, in the target's units."""
    hyper, data = read_hyperparameters(folder / "hyper.json"), open_dataset(folder / "train.zarr")
    assert hyper.noise_model is not None
    test = open_dataset(folder / "test.zarr").as_seen_by(data.feature_names, data.target_names, data.standardisation)
    X, T = data.inputs(0, data.n_samples), test.inputs(0, test.n_samples)
    weights, model = np.array(hyper.noise_model.weights), hyper.noise_model

    def noise(rows: np.ndarray) -> np.ndarray:
        columns = rows if model.kernel is None else model.kernel(rows, np.array(model.basis))
        return np.asarray(np.clip(np.exp(model.offset + columns @ weights), model.lowest, model.highest))

    matrix, cross = hyper.kernel(X, X) + np.diag(noise(X)), hyper.kernel(T, X)
    mean = cross @ np.linalg.solve(matrix, data.all_targets()[:, 0])
    latent = 1.0 - np.einsum("ij,ji->i", cross, np.linalg.solve(matrix, cross.T))
    scale, offset = data.standardisation.target_std[0], data.standardisation.target_mean[0]
    return mean * scale + offset, latent * scale**2, noise(T) * scale**2


def test_tuning_tells_what_it_chose(folder: Path, tuned: dict[str, Any]) -> None:
    comparison = tuned["noise_comparison"]
    assert comparison["kind"] == tuned["noise_model"]["kind"] == "linear"
    scores = {row["kind"]: row for row in comparison["kinds"]}
    assert list(scores) == ["none", "linear", "gp"]
    assert scores["linear"]["gain"] > 2.0 * scores["linear"]["standard_error"] > 0.0
    stored = read_hyperparameters(tuned["out"])
    assert stored.noise_model == from_json(NoiseModel, tuned["noise_model"])
    result = run("tune", folder / "train.zarr", "--out", folder / "hyper.json", "--noise-model", "auto", "--resume")
    printed = " ".join(result.stdout.split())
    assert "noise model linear" in printed
    assert "Noise on" in printed
    assert "linear *" in printed


def test_predictions_are_those_of_dense_algebra(folder: Path, predicted: dict[str, Any]) -> None:
    mean, latent, noise = dense(folder)
    store, of_function = open_prediction(folder / "pred.zarr"), open_prediction(folder / "latent.zarr")
    rows = (0, store.n_samples)
    off = np.abs(store.read("mean", *rows)[:, 0] - mean)
    assert (off <= store.read("mean_error_bound", *rows)[:, 0] + 1e-9).all()
    common = store.attributes["noise_variance"][0]
    np.testing.assert_allclose(common + store.read("noise", *rows)[:, 0], noise, rtol=1e-9)
    assert noise.max() > 100.0 * noise.min()
    for found, expected in ((store, latent + noise), (of_function, latent)):
        lower, upper = (found.read(f"variance_{end}", *rows)[:, 0] for end in ("lower", "upper"))
        assert (lower <= expected * (1.0 + 1e-6)).all()
        assert (expected <= upper * (1.0 + 1e-6)).all()
    gap = store.read("variance_upper", *rows) / np.maximum(store.read("variance_lower", *rows), 1e-12) - 1.0
    assert gap.max() < 0.2


def test_evaluations_are_by_the_noise_at_each_sample(folder: Path, predicted: dict[str, Any]) -> None:
    mean, latent, noise = dense(folder)
    truth = open_dataset(folder / "test.zarr").targets(0, len(mean), standardised=False)[:, 0]
    figures = run_json("evaluate", folder / "pred.zarr", folder / "test.zarr")
    expected = -stats.norm(mean, np.sqrt(latent + noise)).logpdf(truth).mean()
    assert figures["nlpd_raw"] == pytest.approx(expected, abs=0.02)
    # Of the function's own variances the noise is added, of the observations' it is left out, sample by sample.
    others = run_json("evaluate", folder / "latent.zarr", folder / "test.zarr")
    assert others["nlpd_raw"] == pytest.approx(figures["nlpd_raw"], abs=0.02)
    noise_free = run_json("evaluate", folder / "pred.zarr", folder / "test.zarr", "--noise-free")
    of_function = run_json("evaluate", folder / "latent.zarr", folder / "test.zarr", "--noise-free")
    assert noise_free["coverage_95"] == pytest.approx(of_function["coverage_95"], abs=0.05)
    assert noise_free["coverage_95"] < figures["coverage_95"]
    assert not {finding["kind"] for finding in figures["verdict"]} & {"noise and input", "noise and mean"}


def test_the_model_carries_its_noise_model(folder: Path, tuned: dict[str, Any], predicted: dict[str, Any]) -> None:
    model, data = open_model(folder / "model.zarr"), open_dataset(folder / "train.zarr")
    noise = from_json(NoiseModel, tuned["noise_model"])
    assert model.noise_model == tuned["noise_model"]
    assert model.noise_variance == noise.lowest
    np.testing.assert_array_equal(model.sample_noise, noise.beyond_least(data.inputs(0, data.n_samples)))


def test_a_run_of_another_noise_model_is_not_this_one(folder: Path, tuned: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("train", folder / "train.zarr", "--out", tmp_path / "model.zarr")
    first = run_json(*arguments, "--hyper", tuned["out"])
    again = run("train", *arguments[1:], "--hyper", tuned["out"], "--resume")
    assert "is done" in " ".join(again.stderr.split())
    hyper = read_hyperparameters(tuned["out"])
    assert hyper.noise_model is not None
    weights = (hyper.noise_model.weights[0] + 0.01, hyper.noise_model.weights[1])
    other = replace(hyper, noise_model=replace(hyper.noise_model, weights=weights))
    write_hyperparameters(tmp_path / "other.json", other)
    refused(run(*arguments, "--hyper", tmp_path / "other.json", "--resume"), "exists")
    plain = run_json(*arguments, "--hyper", tmp_path / "other.json", "--overwrite")
    assert plain["objective"] != first["objective"]


def test_what_knows_no_noise_model_says_so(folder: Path, tuned: dict[str, Any], tmp_path: Path) -> None:
    result = run_json(
        "sparse", folder / "train.zarr", "--hyper", tuned["out"], "--out", tmp_path / "s.zarr", "--basis-size", 20
    )
    assert any("takes the noise for normal and the same everywhere" in warning for warning in result["warnings"])


def test_noise_that_is_the_same_everywhere_changes_nothing(folder: Path, tmp_path: Path) -> None:
    documents = []
    for model in ("none", "auto"):
        rng = np.random.default_rng(8)
        x = rng.uniform(-2.0, 2.0, (150, 2))
        y = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=150)
        np.savetxt(tmp_path / "even.csv", np.column_stack([x, y]), delimiter=",", header="a,b,y", comments="")
        store = ingest(str(tmp_path / "even.csv"), str(tmp_path / f"{model}.zarr"), target="y").train.url
        documents.append(run_json("tune", store, "--out", tmp_path / f"{model}.json", "--noise-model", model))
    plain, compared = documents
    assert compared["noise_comparison"]["kind"] == "none"
    assert "noise_model" not in compared
    assert "noise_comparison" not in plain
    assert (compared["kernel"], compared["noise_variance"]) == (plain["kernel"], plain["noise_variance"])


def test_a_file_with_a_broken_noise_model_is_refused(folder: Path, tuned: dict[str, Any], tmp_path: Path) -> None:
    document = json.loads(Path(tuned["out"]).read_text())
    document["noise_model"]["lowest"] = -1.0
    (tmp_path / "broken.json").write_text(json.dumps(document))
    result = run("train", folder / "train.zarr", "--hyper", tmp_path / "broken.json", "--out", tmp_path / "m.zarr")
    refused(result, "broken.json", "least variance must be positive")
    assert not (tmp_path / "m.zarr").exists()
