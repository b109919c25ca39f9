"""`--mean linear`: from tuning to evaluated predictions beyond the data, and what a model file is taken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_dataset, open_model, open_prediction
from dkgp.models import read_hyperparameters
from tests.cli.invoke import run, run_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with a steep trend in two features, tests beyond them, and a model of each mean."""
    rng = np.random.default_rng(4)
    place = tmp_path_factory.mktemp("means")
    for name, n, low, high in (("train", 400, 0.0, 10.0), ("test", 90, 5.0, 20.0)):
        X = rng.uniform(low, high, (n, 2))
        y = 5.0 + 3.0 * X[:, 0] - 6.0 * X[:, 1] + 2.0 * np.sin(2.0 * X[:, 0]) * np.cos(2.0 * X[:, 1])
        y += 0.1 * rng.standard_normal(n)
        table = place / f"{name}.csv"
        np.savetxt(table, np.column_stack([X, y]), delimiter=",", header="a,b,price", comments="")
        run_json("ingest", table, place / f"{name}.zarr", "--target", "price")
    for mean in ("centred", "linear"):
        made = place / f"{mean}.zarr"
        run_json("train", place / "train.zarr", "--tune", "--out", made, "--mean", mean, "--tol", "1e-8")
        run_json("predict", made, place / "test.zarr", "--out", place / f"{mean}-pred.zarr", "--variance")
    return place


def scores(folder: Path, mean: str) -> dict[str, Any]:
    return run_json("evaluate", folder / f"{mean}-pred.zarr", folder / "test.zarr")


@pytest.mark.long
def test_predictions_beyond_the_data_follow_the_trend(folder: Path) -> None:
    linear, centred = scores(folder, "linear"), scores(folder, "centred")
    assert linear["rmse_raw"] < 2.0
    assert centred["rmse_raw"] > 10.0
    assert linear["coverage_95"] > 0.9


def test_means_and_variances_are_those_of_dense_algebra(folder: Path) -> None:
    hyper, data = read_hyperparameters(folder / "linear.zarr.hyper.json"), open_dataset(folder / "train.zarr")
    test = open_dataset(folder / "test.zarr").as_seen_by(data.feature_names, data.target_names, data.standardisation)
    x, t, y = data.inputs(0, 400), test.inputs(0, 90), data.all_targets()
    H, h = np.column_stack([np.ones(400), x]), np.column_stack([np.ones(90), t])
    inverse = np.linalg.inv(hyper.kernel(x, x) + hyper.noise_variance * np.eye(400))
    k, G = hyper.kernel(x, t), H.T @ inverse @ H
    beta = np.linalg.solve(G, H.T @ inverse @ y)
    R = h - k.T @ inverse @ H
    mean = h @ beta + k.T @ inverse @ (y - H @ beta)
    variance = hyper.kernel.diagonal(t) - np.einsum("ij,ij->j", k, inverse @ k) + hyper.noise_variance
    variance += np.einsum("ij,ij->i", R, np.linalg.solve(G, R.T).T)
    to, prediction = data.standardisation, open_prediction(folder / "linear-pred.zarr")
    scale = float(to.target_std[0])
    expected = mean[:, 0] * scale + to.target_mean[0]
    error = np.abs(prediction.read("mean", 0, 90)[:, 0] - expected)
    assert (error <= prediction.read("mean_error_bound", 0, 90)[:, 0] + 1e-9).all()
    assert prediction.read("mean_error_bound", 0, 90).max() < 0.01
    exact = variance * scale**2
    assert (prediction.read("variance_lower", 0, 90)[:, 0] <= exact * (1 + 1e-9)).all()
    assert (exact * (1 - 1e-9) <= prediction.read("variance_upper", 0, 90)[:, 0]).all()


def test_the_coefficients_are_shown(folder: Path) -> None:
    trained = run_json(
        "train",
        folder / "train.zarr",
        "--hyper",
        folder / "linear.zarr.hyper.json",
        "--out",
        folder / "again.zarr",
        "--mean",
        "linear",
    )
    slopes = trained["mean"]["coefficients"]["price"]
    for name, value in (("a", 3.0), ("b", -6.0)):
        assert abs(slopes[name]["value"] - value) < 4.0 * slopes[name]["standard_error"] < 1.0
    result = run(
        "train",
        folder / "train.zarr",
        "--hyper",
        folder / "linear.zarr.hyper.json",
        "--out",
        folder / "again.zarr",
        "--overwrite",
        "--mean",
        "linear",
    )
    assert "coefficients of the mean" in result.stdout
    assert "b -5.9" in result.stdout or "b -6" in result.stdout


def test_a_model_of_the_same_mean_is_a_warm_start(folder: Path) -> None:
    made = run_json(
        "train",
        folder / "train.zarr",
        "--hyper",
        folder / "linear.zarr.hyper.json",
        "--out",
        folder / "warm.zarr",
        "--mean",
        "linear",
        "--warm-start",
        folder / "linear.zarr",
        "--solver",
        "gbcd",
    )
    assert made["iterations"] == 0
    assert open_model(folder / "warm.zarr").trend is not None


@pytest.mark.parametrize("mean", ["quadratic", "-3.5"])
def test_other_means_are_tuned_trained_resumed_and_evaluated(folder: Path, mean: str) -> None:
    tuned, made, out = folder / f"{mean}.json", folder / f"{mean}.zarr", folder / f"{mean}-pred.zarr"
    run_json("tune", folder / "train.zarr", "--out", tuned, "--mean", mean, "--subset", "100")
    command = ["train", folder / "train.zarr", "--hyper", tuned, "--out", made, "--tol", "1e-6"]
    document = run_json(*command, "--mean", mean)
    run_json("predict", made, folder / "test.zarr", "--out", out, "--variance")
    assert run_json("evaluate", out, folder / "test.zarr")["coverage_95"] > 0.5
    assert run_json(*command, "--mean", mean, "--resume")["resumed"]
    for other in ("-3.4", "linear"):
        assert "another mean" in run(*command, "--mean", other, "--resume").stderr
    model = open_model(made)
    if mean == "quadratic":
        assert {"a^2", "a*b", "b^2"} < set(document["mean"]["coefficients"]["price"])
    else:
        assert document["given_mean"] == -3.5
        # Far from all samples a model of short length scales predicts its mean.
        assert model.standardisation.target_mean.tolist() == [-3.5]


def test_a_store_of_a_mean_resumes_as_itself_alone(folder: Path) -> None:
    command = ["train", folder / "train.zarr", "--hyper", folder / "linear.zarr.hyper.json", "--tol", "1e-8"]
    again = run_json(*command, "--out", folder / "linear.zarr", "--mean", "linear", "--resume")
    assert again["resumed"]
    result = run(*command, "--out", folder / "linear.zarr", "--mean", "constant", "--resume")
    assert result.exit_code != 0
    assert "another mean" in result.stderr
