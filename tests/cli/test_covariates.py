"""`--covariates`: columns that enter the mean alone, from ingestion to evaluated predictions, and their refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.data import open_dataset, open_model, open_prediction
from dkgp.models import read_hyperparameters
from tests.cli.invoke import run, run_json
from tests.cli.test_predict import answered, lines_of


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Places with an elevation, in which the target is steep and which no kernel would extrapolate."""
    rng, place = np.random.default_rng(6), tmp_path_factory.mktemp("drifting")
    for name, n, highest in (("train", 300, 5.0), ("test", 60, 20.0)):
        X, height = rng.uniform(0.0, 10.0, (n, 2)), rng.uniform(0.0, highest, n)
        y = 4.0 + 7.0 * height + np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.05 * rng.standard_normal(n)
        columns = np.column_stack([height, X, y])
        np.savetxt(place / f"{name}.csv", columns, delimiter=",", header="height,a,b,price", comments="")
    options = ("--target", "price", "--covariates", "height", "--features", "a,b", "--scale", "common")
    made = run_json("ingest", place / "train.csv", place / "train.zarr", *options)
    assert (made["features"], made["covariates"]) == (["a", "b"], ["height"])
    run_json("ingest", place / "test.csv", place / "test.zarr", "--target", "price")
    run_json("tune", place / "train.zarr", "--out", place / "hyper.json", "--mean", "constant", "--subset", "150")
    command = ("train", place / "train.zarr", "--hyper", place / "hyper.json", "--tol", "1e-8")
    run_json(*command, "--out", place / "model.zarr", "--mean", "constant")
    run_json("predict", place / "model.zarr", place / "test.zarr", "--out", place / "pred.zarr", "--variance")
    return place


def test_a_covariate_extrapolates_the_target(drifting: Path) -> None:
    scores = run_json("evaluate", drifting / "pred.zarr", drifting / "test.zarr")
    assert scores["rmse_raw"] < 1.0
    assert scores["coverage_95"] > 0.75
    data, model = open_dataset(drifting / "train.zarr"), open_model(drifting / "model.zarr")
    assert data.feature_names == model.feature_names == ("a", "b")
    assert data.covariate_names == model.standardisation.covariate_names == ("height",)
    assert len(set(data.standardisation.input_std)) == 1
    assert run_json("info", drifting / "train.zarr")["covariates"] == ["height"]
    # Against dense algebra.
    hyper = read_hyperparameters(drifting / "hyper.json")
    test = open_dataset(drifting / "test.zarr").as_seen_by(model.feature_names, ("price",), model.standardisation)
    x, t, y = data.inputs(0, 300), test.inputs(0, 60), data.all_targets()
    H, h = (np.column_stack([np.ones(len(rows)), rows[:, 2]]) for rows in (data.rows(0, 300), test.rows(0, 60)))
    inverse = np.linalg.inv(hyper.kernel(x, x) + hyper.noise_variance * np.eye(300))
    beta = np.linalg.solve(H.T @ inverse @ H, H.T @ inverse @ y)
    mean = h @ beta + hyper.kernel(t, x) @ inverse @ (y - H @ beta)
    expected = mean[:, 0] * float(data.standardisation.target_std[0]) + float(data.standardisation.target_mean[0])
    prediction = open_prediction(drifting / "pred.zarr")
    error = np.abs(prediction.read("mean", 0, 60)[:, 0] - expected)
    assert (error <= prediction.read("mean_error_bound", 0, 60)[:, 0] + 1e-9).all()


def test_a_covariate_is_needed_wherever_the_model_predicts(drifting: Path) -> None:
    table = np.loadtxt(drifting / "test.csv", delimiter=",", skiprows=1)
    np.savetxt(drifting / "lacks.csv", table[:, 1:], delimiter=",", header="a,b,price", comments="")
    run_json("ingest", drifting / "lacks.csv", drifting / "lacks.zarr", "--target", "price")
    out = ("--out", drifting / "none.zarr")
    refused = run("predict", drifting / "model.zarr", drifting / "lacks.zarr", *out)
    assert refused.exit_code == 3
    assert "lacks the column 'height'; it has 'a', 'b'" in refused.stderr
    # Lines of a pipe: by a header in any order, or in the order of the training set.
    expected = open_prediction(drifting / "pred.zarr").read("mean", 0, 3)[:, 0]
    for names, columns in ((("b", "height", "a"), [2, 0, 1]), ((), [1, 2, 0])):
        answer = answered(lines_of(table[:3, columns], names), drifting / "model.zarr")
        assert answer.exit_code == 0, answer.stderr
        got = [float(line.split(",")[0]) for line in answer.stdout.splitlines()[-3:]]
        np.testing.assert_allclose(got, expected, rtol=1e-9)
    lacking = answered(lines_of(table[:3, [1, 2]], ("a", "b")), drifting / "model.zarr")
    assert "the header in line 1 has no column 'height'" in lacking.stderr
    for like in ("train.zarr", "model.zarr"):
        again = run_json(
            "ingest", drifting / "test.csv", drifting / f"like-{like}", "--like", drifting / like, "--target", "price"
        )
        assert again["n"] == 60
        same = drifting / f"pred-{like}"
        run_json("predict", drifting / "model.zarr", drifting / f"like-{like}", "--out", same)
        np.testing.assert_array_equal(
            open_prediction(same).read("mean", 0, 60), open_prediction(drifting / "pred.zarr").read("mean", 0, 60)
        )


def test_covariates_are_resumed_and_refused_elsewhere(drifting: Path) -> None:
    command = ["train", drifting / "train.zarr", "--hyper", drifting / "hyper.json", "--tol", "1e-8"]
    assert run_json(*command, "--out", drifting / "model.zarr", "--mean", "constant", "--resume")["resumed"]
    other = run(*command, "--out", drifting / "model.zarr", "--mean", "linear", "--resume")
    assert "another mean" in other.stderr
    for words, expected in (
        (command, "enter a mean with coefficients"),
        (["tune", drifting / "train.zarr"], "enter a mean with coefficients"),
        (["sparse", *command[1:4], "--basis-size", "20"], "For dkgp sparse, ingest without"),
        (["pursue", drifting / "train.zarr"], "For dkgp pursue, ingest without"),
    ):
        refused = run(*words, "--out", drifting / "other.zarr")
        assert refused.exit_code == 3, refused.stderr
        assert expected in refused.stderr
    refused = run("ingest", drifting / "train.csv", drifting / "x.zarr", "--target", "price", "--covariates", "hight")
    assert "no column 'hight'" in refused.stderr
    assert "--covariates" in refused.stderr
