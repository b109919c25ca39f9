"""A column of known noise through all commands, from a table to an evaluation, against dense algebra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.data import open_dataset, open_model, open_prediction
from dkgp.data.stores.manifest import read_manifest
from dkgp.kernels import kernel_from_json
from tests.cli.invoke import run_json
from tests.cli.measuring import measure_little

N = 400


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Half of the samples measured badly; everything's place, and every command's document."""
    folder = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(6)
    X = rng.uniform(-2.0, 2.0, (N, 2))
    std = np.where(rng.random(N) < 0.5, 20.0, 0.0)
    y = 100.0 + 10.0 * np.sin(2.0 * X[:, 0]) + 5.0 * X[:, 1] + np.hypot(1.0, std) * rng.normal(size=N)
    table = np.column_stack([X, y, std])
    np.savetxt(folder / "d.csv", table, delimiter=",", header="a,b,y,s", comments="", fmt="%.17g")
    train, test, hyper = folder / "train.zarr", folder / "test.zarr", folder / "hyper.json"
    split, rest = ("--test-fraction", 0.3, "--test-out", test), ("--test-out", folder / "ut.zarr")
    untold = folder / "untold.zarr"
    commands: dict[str, tuple[Any, ...]] = {
        "ingest": ("ingest", folder / "d.csv", train, "--target", "y", "--noise-std-column", "s", *split),
        "tune": ("tune", train, "--out", hyper, "--subset", 200),
        "train": ("train", train, "--out", folder / "model.zarr", "--hyper", hyper, "--tol", 1e-6),
        "predict": ("predict", folder / "model.zarr", test, "--out", folder / "p.zarr", "--variance"),
        "latent": ("predict", folder / "model.zarr", test, "--out", folder / "l.zarr", "--variance", "--latent"),
        "evaluate": ("evaluate", folder / "p.zarr", test),
        "evaluate latent": ("evaluate", folder / "l.zarr", test),
        "sparse": ("sparse", train, "--out", folder / "s.zarr", "--hyper", hyper, "--basis-size", 100),
        "predict sparse": ("predict", folder / "s.zarr", test, "--out", folder / "sp.zarr", "--variance"),
        "evaluate sparse": ("evaluate", folder / "sp.zarr", test),
        "info": ("info", train),
        "info of the model": ("info", folder / "model.zarr"),
        "ingest untold": ("ingest", folder / "d.csv", untold, "--target", "y", "--drop", "s", *split[:2], *rest),
        "tune untold": ("tune", untold, "--out", folder / "uh.json", "--subset", 200),
        "train untold": ("train", untold, "--out", folder / "um.zarr", "--hyper", folder / "uh.json"),
        "predict untold": (
            "predict",
            folder / "um.zarr",
            folder / "ut.zarr",
            "--out",
            folder / "up.zarr",
            "--variance",
        ),
        "evaluate untold": ("evaluate", folder / "up.zarr", folder / "ut.zarr"),
        "plan": ("plan", train, "--hyper", hyper, "--variance", "--test-samples", 100),
    }
    with pytest.MonkeyPatch.context() as patch:
        measure_little(patch)
        return {"folder": folder, **{name: run_json(*command) for name, command in commands.items()}}


def dense(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and the function's variance at the test samples, and the noise of each, in the target's units."""
    train, test = open_dataset(str(folder / "train.zarr")), open_dataset(str(folder / "test.zarr"))
    hyper = json.loads((folder / "hyper.json").read_text())
    kernel, scale = kernel_from_json(hyper["kernel"]), train.standardisation.target_std[0]
    Z, T = train.inputs(0, train.n_samples), test.inputs(0, test.n_samples)
    known = train.all_sample_noise(standardised=False)
    noise = hyper["noise_variance"] + known / scale**2  # type: ignore[operator]
    factor = scipy.linalg.cho_factor(kernel(Z, Z) + np.diag(noise))
    cross = kernel(T, Z)
    mean = cross @ scipy.linalg.cho_solve(factor, train.all_targets()[:, 0])
    variance = kernel.diagonal(T) - np.einsum("ij,ji->i", cross, scipy.linalg.cho_solve(factor, cross.T))
    own = test.all_sample_noise(standardised=False)
    assert own is not None
    shift = train.standardisation.target_mean[0]
    return mean * scale + shift, variance * scale**2, hyper["noise_variance"] * scale**2 + own


@pytest.mark.long
def test_the_noise_is_told(ran: dict[str, Any]) -> None:
    assert ran["ingest"]["noise"] == ran["info"]["noise"] == "s"
    assert ran["info of the model"]["sample_noise"]["least"] == 0.0
    scale = open_dataset(str(ran["folder"] / "train.zarr")).standardisation.target_std[0]
    assert ran["info of the model"]["sample_noise"]["most"] == pytest.approx(400.0 / scale**2)
    # What is tuned is the common part, of variance one in the target's units.
    assert 0.5 < ran["tune"]["noise_variance"] * scale**2 < 2.0


def test_predictions_are_those_of_the_dense_process(ran: dict[str, Any]) -> None:
    mean, variance, noise = dense(ran["folder"])
    for name, expected in (("p.zarr", variance + noise), ("l.zarr", variance)):
        stored = open_prediction(str(ran["folder"] / name))
        assert (np.abs(stored.read("mean")[:, 0] - mean) <= stored.read("mean_error_bound")[:, 0]).all()
        lower, upper = stored.read("variance_lower")[:, 0], stored.read("variance")[:, 0]
        assert (lower <= expected * (1 + 1e-9)).all()
        assert (expected <= upper * (1 + 1e-9)).all()
        assert (upper - lower <= 0.03 * upper).all()
        assert set(np.round(stored.read("noise")[:, 0], 9)) == {0.0, 400.0}
        assert read_manifest(stored.url, "prediction")["version"] == 5
    assert read_manifest(str(ran["folder"] / "model.zarr"), "model")["version"] == 3


def test_an_evaluation_is_of_observations_with_their_own_noise(ran: dict[str, Any]) -> None:
    mean, variance, noise = dense(ran["folder"])
    y = open_dataset(str(ran["folder"] / "test.zarr")).all_targets(standardised=False)[:, 0]
    total = variance + noise
    density = np.mean(0.5 * (np.log(2.0 * np.pi * total) + (y - mean) ** 2 / total))
    for name in ("evaluate", "evaluate latent", "evaluate sparse"):
        assert ran[name]["nlpd_raw"] == pytest.approx(density, abs=0.02)
        assert 0.88 < ran[name]["coverage_95"] <= 1.0
        assert ran[name]["rmse_raw"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=0.01)


def test_the_verdict_finds_nothing_wrong_with_the_noise(ran: dict[str, Any]) -> None:
    """Errors are as large as each sample's own variance says; untold, they have heavy tails."""
    assert ran["evaluate"]["verdict"] == []
    assert ran["evaluate untold"]["verdict"][0]["kind"] == "heavy tails"
    assert ran["evaluate"]["nlpd_raw"] < ran["evaluate untold"]["nlpd_raw"] - 1.0


def test_a_warm_start_and_a_finished_run_know_their_noise(ran: dict[str, Any], tmp_path: Path) -> None:
    folder = ran["folder"]
    command = ("train", folder / "train.zarr", "--hyper", folder / "hyper.json", "--tol", 1e-6, "--solver", "gbcd")
    warm = run_json(*command, "--out", tmp_path / "a.zarr", "--warm-start", folder / "model.zarr")
    assert warm["column_passes"] < 1.5
    started = run_json(*command, "--out", tmp_path / "b.zarr", "--warm-start", folder / "s.zarr")
    first, second = open_model(str(tmp_path / "a.zarr")), open_model(str(tmp_path / "b.zarr"))
    np.testing.assert_allclose(first.alpha, second.alpha, atol=1e-3 * np.abs(first.alpha).max())
    assert started["converged"]


def test_what_takes_one_noise_for_all_says_so(ran: dict[str, Any], tmp_path: Path) -> None:
    train = ran["folder"] / "train.zarr"
    pursued = run_json("pursue", train, "--out", tmp_path / "w.zarr")
    assert any("known noise 's' plays no part" in warning for warning in pursued["warnings"])
    for options in (("--objective", "bound"), ("--objective", "fitc")):
        refused = run_json("tune", train, "--out", tmp_path / "h.json", *options, exit_code=3)
        assert "one noise variance for all" in refused["error"]["message"]
        assert "'s'" in refused["error"]["message"]
    assert not (tmp_path / "h.json").exists()


def test_bases_for_each_sample_refuse_a_sparse_model_of_known_noise(ran: dict[str, Any], tmp_path: Path) -> None:
    """Also one whose basis is none of the samples, so that its store has no noise of theirs."""
    folder, model = ran["folder"], tmp_path / "means.zarr"
    options = ("--hyper", folder / "hyper.json", "--basis-size", 20, "--basis", "k-means")
    run_json("sparse", folder / "train.zarr", "--out", model, *options)
    assert run_json("info", model)["noise_by_sample"]
    asked = ("predict", model, folder / "test.zarr", "--out", tmp_path / "p.zarr", "--variance", "--variance-basis", 9)
    assert "a noise of its own for each sample" in run_json(*asked, exit_code=3)["error"]["message"]
    assert not (tmp_path / "p.zarr").exists()


def test_a_fit_from_the_table_takes_the_column(ran: dict[str, Any], tmp_path: Path) -> None:
    options = (
        "--target",
        "y",
        "--noise-std-column",
        "s",
        "--kernel",
        "rbf",
        "--time",
        "20s",
        "--out",
        tmp_path / "fit",
    )
    fitted = run_json("fit", ran["folder"] / "d.csv", *options)
    assert open_dataset(str(tmp_path / "fit" / "train.zarr")).noise_name == "s"
    assert fitted["evaluation"]["coverage_95"] > 0.85
    assert any("--noise-std-column s" in line for line in fitted["commands"])
