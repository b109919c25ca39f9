"""`dkgp evaluate` on a bad and on a good model, from CSV to the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invoke import refused, run, run_json


def predicted(folder: Path, price: np.ndarray, X: np.ndarray, *options: str) -> tuple[Path, Path]:
    """Prediction store and test store of a model of prices in a CSV file."""
    folder.mkdir(exist_ok=True)
    np.savetxt(folder / "data.csv", np.c_[X, price], delimiter=",", header="area,age,price", comments="")
    train, test, hyper, model, out = (folder / name for name in ("train", "test", "hyper.json", "model", "pred"))
    split = ("--test-fraction", 0.5, "--test-out", test)
    run_json("ingest", folder / "data.csv", train, "--target", "price", *split, *options)
    run_json("tune", train, "--out", hyper, "--subset", 250)
    run_json("train", train, "--hyper", hyper, "--out", model)
    document = run_json("predict", model, test, "--out", out, "--variance")
    assert document.get("transformed", False) == ("--transform" in options)
    return out, test


@pytest.fixture(scope="module")
def inputs() -> np.ndarray:
    return np.random.default_rng(5).uniform(-2.0, 2.0, (800, 2))


@pytest.fixture(scope="module")
def price(inputs: np.ndarray) -> np.ndarray:
    """Prices whose noise grows with them."""
    noise = np.random.default_rng(6).normal(size=len(inputs))
    return np.asarray(1e5 * np.exp(np.sin(2.0 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.3 * noise))


@pytest.fixture(scope="module")
def plain(price: np.ndarray, inputs: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Predictions of them as they are, and the test store."""
    return predicted(tmp_path_factory.mktemp("plain"), price, inputs)


def test_prices_whose_noise_grows_are_told_to_be_transformed(plain: tuple[Path, Path]) -> None:
    out, test = plain
    document = run_json("evaluate", out, test)
    growing = [finding for finding in document["verdict"] if finding["kind"] == "noise and mean"]
    assert "`transform` log" in growing[0]["advice"]
    shown = run("evaluate", out, test).stdout
    assert "run `dkgp ingest` again with --transform log" in " ".join(shown.split())
    assert "bad-model" in shown
    # All of the table is on one scale: the density of prices of 1e5 is no small number.
    assert document["nlpd_raw"] > 8.0
    assert f"{document['nlpd_raw']:.4f}" in shown


@pytest.mark.long
def test_a_good_model_and_its_rivals(inputs: np.ndarray, tmp_path: Path) -> None:
    price = np.sin(2.0 * inputs[:, 0]) + inputs[:, 1] + 0.2 * np.random.default_rng(7).normal(size=len(inputs))
    out, test = predicted(tmp_path, price, inputs)
    document = run_json("evaluate", out, test, "--compare")
    assert document["verdict"] == []
    errors: dict[str, Any] = document["compare"]["rmse_raw"]["price"]
    assert document["rmse_raw"] < errors["a linear model"] < errors["the mean of all targets"]
    assert document["rmse_raw"] < errors["gradient boosting (scikit-learn)"]
    least, most = document["nlpd_raw_range"]
    assert least <= document["nlpd_raw"] <= most
    shown = run("evaluate", out, test, "--compare")
    assert "No problem found on these 400 test samples." in shown.stdout
    assert "about 1 s" in shown.stderr


@pytest.mark.long
@pytest.mark.parametrize("transform", ["log", "yeo-johnson"])
def test_the_transform_mends_it(
    inputs: np.ndarray, price: np.ndarray, plain: tuple[Path, Path], tmp_path: Path, transform: str
) -> None:
    untransformed = run_json("evaluate", *plain)
    out, test = predicted(tmp_path / "better", price, inputs, "--transform", transform)
    more = ("--compare", "--plot", tmp_path / "fit.png") if transform == "log" else ()
    document = run_json("evaluate", out, test, *more)
    assert run_json("info", test)["transforms"] == document["transform"]
    assert document["transform"][0]["name"] == transform
    assert document["verdict"] == []
    # In the units of the price; the truth's own density, of noise that is known, is not far off.
    assert document["nlpd_raw"] < untransformed["nlpd_raw"] - 0.3
    best = float(np.log(0.3 * price).mean() + 0.5 * np.log(2.0 * np.pi) + 0.5)
    assert document["nlpd_raw"] == pytest.approx(best, abs=0.15)
    if transform == "log":
        assert document["rmse_raw"] < document["compare"]["rmse_raw"]["price"]["a linear model"]
    shown = run("evaluate", out, test).stdout
    assert ("the target's logarithm" if transform == "log" else "Yeo-Johnson transform (lambda 0") in shown


def test_what_a_logarithm_does_not_take_is_refused_by_name_and_line(inputs: np.ndarray, tmp_path: Path) -> None:
    price = np.abs(inputs[:, 0]) + 1.0
    price[10] = 0.0
    np.savetxt(tmp_path / "data.csv", np.c_[inputs, price], delimiter=",", header="area,age,price", comments="")
    command = ("ingest", tmp_path / "data.csv", tmp_path / "train", "--transform", "log")
    refused(run(*command, "--target", "price"), "'price' holds 0 in line 12", "Give --transform yeo-johnson")
    assert not (tmp_path / "train").exists()
    refused(run(*command), "--transform without --target", exit_code=2)
