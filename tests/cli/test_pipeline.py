"""A file to predictions by the commands alone, each with its document."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.commands import chained as demo
from dkgp.commands.chained import DemoJob
from dkgp.data import open_dataset, open_model, open_prediction
from dkgp.models import read_hyperparameters
from tests.cli.invoke import files_below, refused, run, run_json

ROOT = Path(__file__).parents[2]


def test_ingest_splits(pipeline: dict[str, Any]) -> None:
    document = pipeline["ingest"]
    assert (document["n_train"], document["n_test"], document["d"], document["p"]) == (600, 200, 6, 1)
    assert open_dataset(document["train"]).fingerprint == document["fingerprint"]
    assert document["targets"] == ["price"]


def test_tune_writes_what_it_prints(pipeline: dict[str, Any]) -> None:
    document = pipeline["tune"]
    found = read_hyperparameters(document["out"], n_features=6)
    assert found.noise_variance == document["noise_variance"]
    assert found.subset_size == 200
    # The sixth feature plays no part.
    assert document["kernel"]["gamma"][5] < 0.1 * min(document["kernel"]["gamma"][:3])


def test_train_document_is_complete_and_true(pipeline: dict[str, Any]) -> None:
    document = pipeline["train"]
    expected = {"n", "d", "solver", "converged", "iterations", "column_passes", "kernel_evaluations", "seconds"}
    expected |= {"gradient_inf_norm", "relative_residual", "objective", "peak_memory_bytes"}
    assert expected <= document.keys()
    assert document["converged"] is True
    assert document["solver"] == "gbcd"
    assert document["peak_memory_bytes"] > 50e6
    # The gradient by an independent dense computation.
    model, found = open_model(document["out"]), read_hyperparameters(pipeline["tune"]["out"])
    dataset = open_dataset(pipeline["ingest"]["train"])
    X, y = dataset.inputs(0, 600), dataset.targets(0, 600)
    K = found.kernel(X, X) + found.noise_variance * np.eye(600)
    gradient = K @ model.alpha - y
    assert document["gradient_inf_norm"] == pytest.approx(np.abs(gradient).max(), rel=1e-6)
    assert document["gradient_inf_norm"] <= 1e-4
    exact = scipy.linalg.cho_solve(scipy.linalg.cho_factor(K), y)
    assert np.linalg.norm(model.alpha - exact) <= document["certificate"]["alpha_error_bound"][0]


def test_train_logs_every_round(pipeline: dict[str, Any]) -> None:
    document = pipeline["train"]
    records = [json.loads(line) for line in Path(document["log_json"]).read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, document["iterations"] + 1))
    assert records[-1]["gradient_inf_norm"] < records[0]["gradient_inf_norm"]


def test_train_leaves_no_checkpoint_behind(pipeline: dict[str, Any]) -> None:
    assert pipeline["train"]["checkpoint"] is None
    assert not list(pipeline["folder"].glob("*.checkpoint"))


def test_plots_are_images(pipeline: dict[str, Any]) -> None:
    for document in (pipeline["train"], pipeline["evaluate"]):
        assert Path(document["plot"]).read_bytes().startswith(b"\x89PNG")


def test_predictions_are_the_exact_ones_within_the_bound(pipeline: dict[str, Any]) -> None:
    found = read_hyperparameters(pipeline["tune"]["out"])
    train, test = open_dataset(pipeline["ingest"]["train"]), open_dataset(pipeline["ingest"]["test"])
    X = train.inputs(0, 600)
    K = found.kernel(X, X) + found.noise_variance * np.eye(600)
    mean = found.kernel(test.inputs(0, 200), X) @ np.linalg.solve(K, train.targets(0, 600))
    prediction = open_prediction(pipeline["predict"]["out"])
    error = np.abs(prediction.read("mean") - train.standardisation.targets_back(mean))
    assert (error <= prediction.read("mean_error_bound")).all()
    assert pipeline["predict"]["n_samples"] == 200


def test_evaluate_agrees_with_the_definition(pipeline: dict[str, Any]) -> None:
    test = open_dataset(pipeline["ingest"]["test"])
    prediction = open_prediction(pipeline["predict"]["out"])
    error = prediction.read("mean") - test.targets(0, 200, standardised=False)
    rmse = np.sqrt(np.mean(error**2)) / test.standardisation.target_std[0]
    assert pipeline["evaluate"]["rmse"] == pytest.approx(rmse)
    assert pipeline["evaluate"]["rmse"] < 0.4


def test_tables_go_to_standard_output_and_progress_does_not(pipeline: dict[str, Any], tmp_path: Path) -> None:
    result = run(
        *("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"]),
        *("--out", tmp_path / "model.zarr", "--block-size", 100),
    )
    assert result.exit_code == 0
    assert "largest error" in result.stdout
    assert "relative residual" not in result.stdout
    assert "running without Dask" not in result.stdout
    assert "running without Dask" in result.stderr


# Exhaustive selection is that of tests/solvers, and takes as long as all others.
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--exhaustive",), marks=pytest.mark.slow),
        ("--prefitting", "--memory", 0),
        ("--precision", "double"),
    ],
)
def test_other_settings_reach_the_same_solution(
    pipeline: dict[str, Any], tmp_path: Path, options: tuple[object, ...]
) -> None:
    trained = run_json(
        *("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--json"),
        *("--out", tmp_path / "model.zarr", "--block-size", 60, *options),
    )
    assert trained["converged"] is True
    assert trained["objective"] == pytest.approx(pipeline["train"]["objective"], rel=1e-6)


@pytest.mark.slow
def test_several_targets_and_separate_test_data(tmp_path: Path, rng: np.random.Generator) -> None:
    for name, n in (("train", 300), ("test", 80)):
        X = rng.random((n, 3))
        Y = np.column_stack([np.sin(4 * X[:, 0]), 10 * X[:, 1] * X[:, 2]]) + 0.05 * rng.standard_normal((n, 2))
        table = np.column_stack([X, Y])
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", header="a,b,c,u,v", comments="")
        targets = ("--target", "u", "--target", "v")
        run_json("ingest", tmp_path / f"{name}.csv", tmp_path / f"{name}.zarr", *targets)
    hyper, model, out = tmp_path / "hyper.json", tmp_path / "model.zarr", tmp_path / "prediction.zarr"
    run_json("tune", tmp_path / "train.zarr", "--out", hyper)
    trained = run_json("train", tmp_path / "train.zarr", "--out", model, "--hyper", hyper)
    assert trained["p"] == 2
    run_json("predict", model, tmp_path / "test.zarr", "--out", out, "--variance")
    evaluated = run_json("evaluate", out, tmp_path / "test.zarr", "--plot", tmp_path / "fit.png")
    assert set(evaluated["per_target"]) == {"u", "v"}
    assert all(errors["rmse"] < 0.3 for errors in evaluated["per_target"].values())
    assert all(errors["coverage_95"] > 0.8 for errors in evaluated["per_target"].values())
    shown = run("evaluate", out, tmp_path / "test.zarr")
    assert shown.exit_code == 0
    assert re.search(r"^target +RMSE +MAE +R² +density +coverage", shown.stdout, re.MULTILINE)


@pytest.mark.parametrize("solver", ["bcdc", "bcdg"])
def test_other_selections_reach_the_same_solution(pipeline: dict[str, Any], tmp_path: Path, solver: str) -> None:
    trained = run_json(
        *("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--json"),
        *("--out", tmp_path / "model.zarr", "--solver", solver, "--block-size", 300, "--memory", 5),
    )
    assert trained["solver"] == solver
    assert trained["objective"] == pytest.approx(pipeline["train"]["objective"], rel=1e-6)


def test_warm_start_from_the_solution_needs_no_round(pipeline: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("train", pipeline["ingest"]["train"], "--warm-start", pipeline["train"]["out"], "--json")
    trained = run_json(
        *arguments, "--hyper", pipeline["tune"]["out"], "--out", tmp_path / "model.zarr", "--by-reference"
    )
    # The gradient that the model knows is taken at its word to go on from, and confirmed where that is the end.
    assert (trained["iterations"], trained["refreshes"]) == (0, 1)
    assert trained["kernel_evaluations"] < 600 * 600
    assert trained["gradient_inf_norm"] == pytest.approx(pipeline["train"]["gradient_inf_norm"], rel=1e-6)
    # That of another kernel it does not know.
    other = json.loads(Path(pipeline["tune"]["out"]).read_text())
    (tmp_path / "hyper.json").write_text(json.dumps({**other, "noise_variance": 1.001 * other["noise_variance"]}))
    moved = run_json(*arguments, "--hyper", tmp_path / "hyper.json", "--out", tmp_path / "other.zarr")
    assert moved["iterations"] > 0
    assert moved["kernel_evaluations"] > 600 * 600
    model = open_model(tmp_path / "model.zarr")
    assert model.by_reference
    np.testing.assert_array_equal(model.alpha, open_model(pipeline["train"]["out"]).alpha)


@pytest.mark.parametrize(
    ("step", "field", "kind"),
    [("ingest", "train", "dataset"), ("train", "out", "model"), ("predict", "out", "prediction")],
)
def test_info_tells_what_a_store_is(pipeline: dict[str, Any], step: str, field: str, kind: str) -> None:
    described = run_json("info", pipeline[step][field])
    assert described["kind"] == kind
    assert described["n"] == {"dataset": 600, "model": 600, "prediction": 200}[kind]
    assert run("info", pipeline[step][field]).exit_code == 0


def test_info_of_a_hyperparameter_file_and_of_the_installation(pipeline: dict[str, Any]) -> None:
    assert run_json("info", pipeline["tune"]["out"])["kind"] == "hyperparameters"
    installation = run_json("info")
    assert installation["kind"] == "installation"
    assert installation["packages"]["numpy"] == np.__version__
    assert run("info").exit_code == 0


def test_demo_from_nothing_and_again(tmp_path: Path) -> None:
    arguments = ("demo", "--out", tmp_path / "demo", "--samples", 300, "--test-samples", 100, "--json")
    first = run_json(*arguments)
    assert first["converged"] is True
    assert first["rmse"] < 0.3
    assert first["kernel_matrix_bytes"] == 8 * 300 * 300
    # The test targets are noise-free: what has to cover them is the function's own variance.
    assert first["evaluation"]["noise_free"] is True
    assert open_prediction(str(tmp_path / "demo" / "prediction.zarr")).attributes["variance"]["latent"] is True
    assert 0.8 < first["coverage_95"] <= 1.0
    assert first["nlpd"] < 0.0
    assert 0.0 <= first["variance_gap_mean"] <= first["variance_gap_max"] < 1.0
    assert first["variance_unmet"] == first["predict"]["variance"]["unmet"]
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["nlpd"] == first["nlpd"]
    assert Path(first["plot"]).read_bytes().startswith(b"\x89PNG")
    assert set(first["seconds_by_phase"]) == {"generate", "tune", "train", "predict", "evaluate", "plot"}
    second = run_json(*arguments)
    assert (second["rmse"], second["nlpd"]) == (first["rmse"], first["nlpd"])


def test_a_demo_without_matplotlib_has_all_but_its_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dkgp.commands.reporting.plots.importlib.util.find_spec", lambda name: None)
    result = run("demo", "--out", tmp_path / "demo", "--samples", 200, "--test-samples", 50)
    assert result.exit_code == 0, result.stderr
    assert "pip install 'dkgp[plot]'. The demo goes on without its picture" in " ".join(result.stderr.split())
    assert "RMSE" in result.stdout
    assert not (tmp_path / "demo" / "demo.png").exists()
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["plot"] is None


@pytest.mark.slow
def test_a_demo_that_was_killed_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ("demo", "--samples", 400, "--test-samples", 100, "--solver", "cg", "--json", "--out")
    whole = run_json(*arguments, tmp_path / "whole")
    out = tmp_path / "demo"
    with monkeypatch.context() as patch:
        patch.setattr(
            "dkgp.commands.predict.run_predict", lambda job, reporter: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert run(*arguments, out).exit_code == 130
    begun = json.loads((out / "demo.json").read_text())
    assert begun["finished"] is False
    assert set(begun["phases"]) == {"generate", "tune", "train"}
    # As if it had been killed in the middle of training: the model is not there, and its checkpoint is.
    del begun["phases"]["train"]
    (out / "demo.json").write_text(json.dumps(begun))
    written = (out / "train.zarr" / "zarr.json").stat().st_mtime_ns
    refused(run(*arguments, out, "--seed", 1, "--resume"), "has another seed (its seed: 0; this run's: 1)")
    found = run_json(*arguments, out, "--resume")
    assert (out / "train.zarr" / "zarr.json").stat().st_mtime_ns == written
    assert (found["rmse"], found["nlpd"], found["iterations"]) == (whole["rmse"], whole["nlpd"], whole["iterations"])
    assert found["seconds_by_phase"]["generate"] == begun["seconds_by_phase"]["generate"]
    assert found["seconds_by_phase"]["predict"] > begun["seconds_by_phase"]["predict"] > 0.0
    # Once more, there is nothing left to do; and nothing to go on with elsewhere.
    assert run_json(*arguments, out, "--resume") == found
    assert "there is no demo in" in run(*arguments, tmp_path / "new", "--resume").stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_passes_its_arguments_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[DemoJob] = []
    monkeypatch.setattr(
        demo, "run_demo", lambda job, reporter: jobs.append(job) or {"command": "demo", "converged": True}
    )
    wanted = "--solver gbcd --samples 400 --test-samples 50 --json"
    variables = [f"DEMO_OUTPUT={tmp_path / 'made'}", f"DEMO_ARGS={wanted}"]
    printed = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "--directory", ROOT, "demo", *variables],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    program, *arguments = shlex.split(printed.strip().splitlines()[-1])
    assert program.endswith("/bin/dkgp")
    assert " ".join(arguments).endswith(wanted)
    run_json(*arguments)
    (job,) = jobs
    assert (job.solver.solver, job.n, job.n_test, job.out) == ("gbcd", 400, 50, str(tmp_path / "made"))


def test_demo_leaves_the_stores_of_others_alone(pipeline: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.zarr").mkdir()
    for path in Path(pipeline["ingest"]["train"]).rglob("*"):
        target = tmp_path / "train.zarr" / path.relative_to(pipeline["ingest"]["train"])
        target.mkdir(parents=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    before = files_below(tmp_path)
    refused(run("demo", "--out", tmp_path, "--samples", 400), "exists already")
    assert files_below(tmp_path) == before
