"""`predict --variance` and what `evaluate` makes of it: against a dense Gaussian process, and when things go wrong."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.stats import norm

from dkgp.data import open_dataset, open_prediction
from dkgp.data.stores.manifest import MANIFEST_NAME, checksum
from dkgp.models import read_hyperparameters
from tests.cli.invoke import document_of, refused, run, run_json

# Too few landmarks and no passes: gaps stay wide.
WIDE = ("--variance-rank", 40, "--max-passes", 0)


@dataclass(frozen=True)
class Dense:
    """The exact predictive variances of the functions and the truth, in the units of the targets."""

    latent: np.ndarray
    noise: float
    mean: np.ndarray
    truth: np.ndarray
    std: float


@pytest.fixture(scope="module")
def dense(pipeline: dict[str, Any]) -> Dense:
    found = read_hyperparameters(pipeline["tune"]["out"])
    train, test = open_dataset(pipeline["ingest"]["train"]), open_dataset(pipeline["ingest"]["test"])
    X, X_test = train.inputs(0, 600), test.inputs(0, 200)
    K = found.kernel(X, X) + found.noise_variance * np.eye(600)
    k = found.kernel(X, X_test)
    latent = found.kernel.diagonal(X_test) - np.sum(k * np.linalg.solve(K, k), axis=0)
    std = float(train.standardisation.target_std[0])
    mean = train.standardisation.targets_back(k.T @ np.linalg.solve(K, train.targets(0, 600)))
    truth = test.targets(0, 200, standardised=False)
    return Dense(latent * std**2, found.noise_variance * std**2, mean[:, 0], truth[:, 0], std)


def command(pipeline: dict[str, Any], out: Path, *options: object, test: object = None) -> list[object]:
    return ["predict", pipeline["train"]["out"], test or pipeline["ingest"]["test"], "--out", out, *options]


# ---------------------------------------------------------------------------------------------------- right predictions


@pytest.mark.parametrize("latent", [False, True])
def test_intervals_hold_the_exact_variances(
    pipeline: dict[str, Any], dense: Dense, tmp_path: Path, latent: bool
) -> None:
    out = tmp_path / "p.zarr"
    options = ("--variance", "--variance-gap", 0.01, *(["--latent"] if latent else []), "--json")
    predicted = run_json(*command(pipeline, out, *options))
    exact = dense.latent + (0.0 if latent else dense.noise)
    prediction = open_prediction(str(out))
    lower, upper = (prediction.read(f"variance_{end}")[:, 0] for end in ("lower", "upper"))
    assert (lower <= exact * (1 + 1e-12)).all()
    assert (exact <= upper * (1 + 1e-12)).all()
    assert (prediction.read("variance")[:, 0] == lower + 0.5 * (upper - lower)).all()
    assert prediction.attributes["noise_variance"] == pytest.approx([dense.noise])
    gap = (upper - lower) / upper
    figures = predicted["variance"]
    assert (figures["gap"], figures["latent"], figures["met"], figures["unmet"]) == (0.01, latent, 200, 0)
    assert figures["gap_max"] == pytest.approx(gap.max())
    assert figures["gap_max"] <= 0.01
    assert figures["gap_mean"] == pytest.approx(gap.mean())
    assert predicted["warnings"] == []


def test_evaluate_judges_the_variances(pipeline: dict[str, Any], dense: Dense, tmp_path: Path) -> None:
    out, test = tmp_path / "p.zarr", pipeline["ingest"]["test"]
    run_json(*command(pipeline, out, "--variance", "--variance-gap", 1e-4, "--json"))
    evaluated = run_json("evaluate", out, test, "--plot", tmp_path / "fit.png")
    spread = np.sqrt(dense.latent + dense.noise)
    # Compared on the standardised scale, where a change of units makes no difference.
    density = norm.logpdf(dense.truth / dense.std, dense.mean / dense.std, spread / dense.std)
    assert evaluated["nlpd"] == pytest.approx(-np.mean(density), abs=1e-3)
    inside = np.mean(np.abs(dense.truth - dense.mean) <= norm.ppf(0.975) * spread)
    assert evaluated["coverage_95"] == pytest.approx(inside, abs=0.006)
    assert 0.85 < evaluated["coverage_95"] < 1.0
    assert 0.0 < evaluated["variance_gap_mean"] <= evaluated["variance_gap_max"] <= 1e-4
    assert (evaluated["variance_gap_wanted"], evaluated["variance_unmet"]) == (1e-4, 0)
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    without = run_json("evaluate", out, test, "--noise-free")
    assert without["coverage_95"] < evaluated["coverage_95"]
    assert without["rmse"] == evaluated["rmse"]
    table = run("evaluate", out, test, "--noise-free").stdout
    assert "the function" in table
    assert "coverage of 95 %" in table


def test_what_was_not_reached_is_said_and_not_hidden(pipeline: dict[str, Any], dense: Dense, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    result = run(*command(pipeline, out, "--variance", "--variance-gap", 1e-3, *WIDE, "--json"))
    predicted = document_of(result)
    unmet = predicted["variance"]["unmet"]
    assert unmet > 100
    assert predicted["variance"]["met"] + unmet == 200
    assert len(predicted["warnings"]) == 1
    for word in (
        f"{unmet} of 200",
        "0.001",
        f"{predicted['variance']['gap_max']:.3g}",
        "--max-passes",
        "--variance-rank",
    ):
        assert word in predicted["warnings"][0]
    assert f"{unmet} of 200" in result.stderr
    prediction = open_prediction(str(out))
    exact = dense.latent + dense.noise
    assert (prediction.read("variance_lower")[:, 0] <= exact).all()
    assert (exact <= prediction.read("variance_upper")[:, 0]).all()
    evaluated = run_json("evaluate", out, pipeline["ingest"]["test"])
    assert evaluated["variance_unmet"] == unmet


def test_resuming_tells_of_the_whole_store(
    pipeline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--variance", "--variance-gap", 1e-3, *WIDE, "--chunk-rows", 50, "--cluster", "none", "--json")
    with monkeypatch.context() as patch:
        # What a run has computed itself it does not read back.
        patch.delattr(sys.modules["dkgp.models.prediction.predict"], "open_prediction")
        whole = run_json(*command(pipeline, tmp_path / "whole.zarr", *more))
    assert whole["variance"]["computed"] == 200
    asked = iter([False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr("dkgp.commands.predict.run.interruptible", lambda announce: nullcontext(lambda: next(asked)))
        refused(run(*command(pipeline, tmp_path / "p.zarr", *more)), "--resume", exit_code=130)
    resumed = run_json(*command(pipeline, tmp_path / "p.zarr", *more, "--resume"))
    assert 0 < resumed["variance"]["computed"] < 200
    again = run_json(*command(pipeline, tmp_path / "p.zarr", *more, "--resume"))
    assert again["variance"]["computed"] == 0
    assert again["variance"]["seconds_per_sample"] is None
    for later in (resumed, again):
        assert later["warnings"] == whole["warnings"] != []
        for name in ("met", "unmet", "gap_mean", "gap_max"):
            assert later["variance"][name] == whole["variance"][name]
    expected = open_prediction(str(tmp_path / "whole.zarr")).read("variance")
    np.testing.assert_array_equal(open_prediction(str(tmp_path / "p.zarr")).read("variance"), expected)
    assert "200" in run(*command(pipeline, tmp_path / "p.zarr", *more[:-1], "--resume")).stdout


def test_training_with_variances_keeps_what_they_take(pipeline: dict[str, Any], dense: Dense, tmp_path: Path) -> None:
    model, out = tmp_path / "model.zarr", tmp_path / "p.zarr"
    train = ("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", model)
    run_json(*train, "--with-variances", "--json")
    assert (model / "variance_tiles" / "tiles.json").exists()
    result = run("predict", model, pipeline["ingest"]["test"], "--out", out, "--variance", "--latent")
    assert result.exit_code == 0
    assert "loaded in" in result.stderr
    assert "a Cholesky factor of all samples" in result.stdout
    np.testing.assert_allclose(open_prediction(str(out)).read("variance")[:, 0], dense.latent, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------------- refusals


def broken_copy(source: str, target: Path, value: float) -> Path:
    """A dataset store with one bad input in its last row, whole in every other respect."""
    shutil.copytree(source, target)
    array = zarr.open_array(target / "X", mode="r+")
    array[-1, 2] = value
    manifest = json.loads((target / MANIFEST_NAME).read_text())
    manifest.pop("checksum")
    entry = manifest["arrays"]["X"]
    entry["chunk_bytes"] = [
        (target / "X" / f"c/{index}/0").stat().st_size for index in range(len(entry["chunk_bytes"]))
    ]
    manifest["checksum"] = checksum(manifest)
    (target / MANIFEST_NAME).write_text(json.dumps(manifest))
    return target


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("options", [(), ("--variance",)], ids=["means", "variances"])
def test_a_test_store_with_what_is_no_number(
    pipeline: dict[str, Any], tmp_path: Path, value: float, options: tuple[str, ...]
) -> None:
    test, out = broken_copy(pipeline["ingest"]["test"], tmp_path / "test.zarr", value), tmp_path / "p.zarr"
    more = (*options, "--chunk-rows", 50)
    refused(run(*command(pipeline, out, *more, test=test)), "test.zarr")
    assert not out.exists()


def test_overwriting_is_not_begun_with_bad_input(pipeline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    assert run(*command(pipeline, out)).exit_code == 0
    before = open_prediction(str(out)).read("mean")
    test = broken_copy(pipeline["ingest"]["test"], tmp_path / "test.zarr", np.nan)
    refused(run(*command(pipeline, out, "--variance", "--overwrite", test=test)))
    refused(run(*command(pipeline, out, "--variance", "--variance-gap", 0, "--overwrite")))
    np.testing.assert_array_equal(open_prediction(str(out)).read("mean"), before)


def test_a_model_whose_support_inputs_are_gone(pipeline: dict[str, Any], tmp_path: Path) -> None:
    train, model, out = tmp_path / "train.zarr", tmp_path / "model.zarr", tmp_path / "p.zarr"
    shutil.copytree(pipeline["ingest"]["train"], train)
    fit = ("train", train, "--hyper", pipeline["tune"]["out"], "--out", model, "--block-size", 300)
    run_json(*fit, "--by-reference")
    predict = ("predict", model, pipeline["ingest"]["test"], "--out", out, "--variance")
    shutil.move(train, tmp_path / "elsewhere.zarr")
    refused(run(*predict), "refers to its training set", "train.zarr")
    assert not out.exists()
    shutil.move(tmp_path / "elsewhere.zarr", train)
    assert run(*predict).exit_code == 0


def test_noise_cannot_be_taken_off_means_alone(pipeline: dict[str, Any], tmp_path: Path) -> None:
    store = pipeline["predict"]["out"]
    plain, free = (
        run_json("evaluate", store, pipeline["ingest"]["test"], *option) for option in ((), ("--noise-free",))
    )
    assert plain == free
    assert plain["nlpd"] is None


# --------------------------------------------------------------------------------------------------------- neighbours


def test_a_map_by_neighbours_from_the_command_line(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(6), tmp_path
    X = rng.uniform(0.0, 10.0, (300, 2))
    table = np.column_stack([X, np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(300)])
    np.savetxt(folder / "train.csv", table, delimiter=",", header="a,b,price", comments="")
    cells = np.stack(np.meshgrid(np.arange(10.0), np.arange(12.0)), -1).reshape(-1, 2)
    np.savetxt(folder / "map.csv", cells, delimiter=",", header="a,b", comments="")
    run_json("ingest", folder / "train.csv", folder / "train.zarr", "--target", "price")
    run_json("ingest", folder / "map.csv", folder / "map.zarr")
    kernel = ("--kernel", "matern32")
    run_json("tune", folder / "train.zarr", "--out", folder / "hyper.json", "--subset", 100, *kernel)
    run_json("train", folder / "train.zarr", "--out", folder / "model.zarr", "--hyper", folder / "hyper.json")
    options = ("--variance", "--variance-gap", 0.05, "--variance-way", "neighbours", "--latent")
    predicted = run_json("predict", folder / "model.zarr", folder / "map.zarr", "--out", folder / "p.zarr", *options)
    figures = predicted["variance"]
    assert (figures["way"], figures["met"] + figures["unmet"]) == ("neighbours", 120)
    found, train = read_hyperparameters(folder / "hyper.json"), open_dataset(folder / "train.zarr")
    seen = open_dataset(folder / "map.zarr").as_seen_by(train.feature_names, (), train.standardisation)
    x, t = train.inputs(0, 300), seen.inputs(0, 120)
    k = found.kernel(x, t)
    inverse = np.linalg.inv(found.kernel(x, x) + found.noise_variance * np.eye(300))
    exact = found.kernel.diagonal(t) - np.einsum("ij,ij->j", k, inverse @ k)
    exact = exact * float(train.standardisation.target_std[0]) ** 2
    stored = open_prediction(str(folder / "p.zarr"))
    assert (stored.read("variance_lower")[:, 0] <= exact * (1.0 + 1e-9)).all()
    assert (exact * (1.0 - 1e-9) <= stored.read("variance_upper")[:, 0]).all()
    again = ("predict", folder / "model.zarr", folder / "map.zarr", "--out", folder / "q.zarr", *options)
    refused(run(*again, "--variance-rank", 20), "'neighbours' is asked for")
