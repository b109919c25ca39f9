"""`dkgp pursue`, and what `predict`, `evaluate` and `info` make of its models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_linear_model, open_prediction
from dkgp.estimators.pursuit import ConjugateDirectionsPursuit
from tests.cli.invoke import Shell

N, TESTS = 600, 150
NAMES = tuple("abcdefgh")


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((N + TESTS, 8)) * np.exp(rng.standard_normal(8)) + 10.0 * rng.standard_normal(8)
    X[:, 3] = 7.0  # constant: left out when it is ingested
    y = np.column_stack([5.0 * X[:, 1] - X[:, 6] + 0.3 * X[:, 0], X[:, 2] - 2.0 * X[:, 5]]) + 100.0
    return {"X": X, "y": y + 0.2 * rng.standard_normal((N + TESTS, 2))}


@pytest.fixture(scope="module")
def places(data: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, X, y = tmp_path_factory.mktemp("pursue"), data["X"], data["y"]
    names: dict[str, Any] = {"feature_names": NAMES, "target_names": ("up", "down")}
    dataset_from_arrays(folder / "train", X[:N], y[:N], chunk_rows=50, **names)
    dataset_from_arrays(folder / "one", X[:N], y[:N, 0], chunk_rows=70, feature_names=NAMES, target_names=("up",))
    # Another order of the features: they are found by name.
    names["feature_names"] = NAMES[::-1]
    dataset_from_arrays(folder / "test", X[N:, ::-1], y[N:], chunk_rows=40, **names)
    return {name: folder / name for name in ("train", "one", "test")}


@pytest.fixture
def shell(places: dict[str, Path], tmp_path: Path) -> Shell:
    return Shell(tmp_path, places)


def test_it_is_the_estimator_in_memory(shell: Shell, data: dict[str, np.ndarray]) -> None:
    found = shell.json("pursue @train --out @w --cardinality 2 --cluster none")
    assert (found["command"], found["passes"], found["d"], found["p"], found["warnings"]) == ("pursue", 1, 7, 2, [])
    X, y = data["X"][:N], data["y"][:N]
    scale = np.where(X.std(axis=0) > 0.0, X.std(axis=0), 1.0)
    estimator = ConjugateDirectionsPursuit(2).fit(X / scale, y)
    for target, told in enumerate(found["targets"]):
        coefficients = estimator.coef_[target] / scale
        assert set(told["weights"]) == {NAMES[index] for index in np.flatnonzero(coefficients)}
        for name, weight in told["weights"].items():
            assert weight == pytest.approx(coefficients[NAMES.index(name)], rel=1e-9)
        assert told["intercept"] == pytest.approx(estimator.intercept_[target], rel=1e-9)
        assert [record["cardinality"] for record in told["path"]] == [0, 1, 2]
        assert told["path"][0]["error"] == pytest.approx(y[:, target].var(), rel=1e-9)
        left = y[:, target] - X @ coefficients - estimator.intercept_[target]
        assert told["error"] == pytest.approx(np.mean(left**2), rel=1e-9)
        (first,) = told["path"][1]["joined"]
        assert list(told["weights"]) == [first, *told["path"][2]["joined"]]


@pytest.mark.long
@pytest.mark.parametrize("method", ["scdp", "mp", "lars", "lasso"])
def test_predict_and_evaluate_take_the_model(method: str, shell: Shell, data: dict[str, np.ndarray]) -> None:
    plot = "--plot @path.png" if method == "lars" else ""  # takes longer than all else
    found = shell.json(f"pursue @train --out @w --method {method} --cluster none {plot}")
    assert not plot or shell["path.png"].stat().st_size > 10_000
    told = shell.json("predict @w @test --out @p --cluster none")
    assert (told["n_samples"], told["largest_mean_error_bound"], told["warnings"]) == (TESTS, None, [])
    X, y = data["X"][N:], data["y"][N:]
    stored = open_prediction(shell["p"])
    assert stored.variables == ("mean",)
    mean = stored.read("mean")
    for target, some in enumerate(found["targets"]):
        expected = some["intercept"] + sum(weight * X[:, NAMES.index(name)] for name, weight in some["weights"].items())
        np.testing.assert_allclose(mean[:, target], expected, rtol=1e-9)
        assert some["score"] == pytest.approx(some["error"], rel=0.3)
    judged = shell.json("evaluate @p @test")
    assert judged["rmse_raw"] == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)), rel=1e-12)
    assert judged["mean_error_bound"] is None
    assert method != "scdp" or judged["rmse_raw"] < 0.3
    shown = shell.run("evaluate @p @test").stdout
    (row,) = [line.split() for line in shown.splitlines() if line.split()[:1] == ["up"]]
    assert row[1] == f"{judged['per_target']['up']['rmse_raw']:.6g}"
    assert "certified" not in shown


def test_tables_name_the_features(shell: Shell) -> None:
    result = shell.run("pursue @one --out @w --held-out 0.25 --cluster none")
    assert result.exit_code == 0, result.stderr
    for words in ("Path of up", "least error on a held-out 25% of the samples", "RMSE, held out", "intercept", "b  "):
        assert words in result.stdout
    assert "Path of up" in shell.told("info @w")
    described = shell.json("info @w")
    assert (described["kind"], described["n"], described["d"]) == ("linear model", N, 7)
    assert open_linear_model(shell["w"]).feature_names == tuple(name for name in NAMES if name != "d")


def test_what_a_linear_regression_does_not_have_is_refused(shell: Shell) -> None:
    dataset_from_arrays(shell["inputs"], np.random.default_rng(0).standard_normal((9, 2)), None)
    shell.told("pursue @train --out @w --cluster none -q")
    predict = "predict @w @test --out @p --cluster none"
    for line, *words in (
        (f"{predict} --variance", "predicts means alone"),
        (f"{predict} --product-error 0.1", "is a linear regression, which has none"),
        (f"{predict} --plug-in", "a Gaussian process classifier"),
        ("pursue @train --out @w", "already exists", "--overwrite"),
        ("pursue @test --out @train --overwrite", "holds a dkgp dataset"),
        ("pursue @inputs --out @v", "no targets to train on"),
    ):
        shell.refuses(line, *words)
    assert shell.names == {"w", "inputs"}
    shell.told("pursue @train --out @w --overwrite --cluster none -q")


def test_a_path_that_ends_early_and_noise_are_told(shell: Shell) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    dataset_from_arrays(shell["twins"], np.column_stack([X, X[:, 0]]), X[:, 0] + X[:, 1] + X[:, 2])
    found = shell.json("pursue @twins --out @w --cardinality 4 --cluster none")
    assert "ends at 3 of 4 weights" in found["warnings"][0]
    dataset_from_arrays(shell["noise"], X, rng.standard_normal(40))
    found = shell.json("pursue @noise --out @w --overwrite --cluster none --cardinality one-standard-error")
    assert found["targets"][0]["weights"] == {}
    assert "no feature lowers the error" in found["warnings"][0]
