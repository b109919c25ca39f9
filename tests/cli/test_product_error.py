"""`dkgp train --product-error`: the same model within the error asked for, told in the certificate; what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import CheckpointStore, ModelRecord, open_dataset, open_model, open_prediction
from dkgp.errors import ClusterError, InputError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.operators import cross_sums
from dkgp.operators.cells.operator import Forecast
from dkgp.service.specification import job_from_options, options_from_job
from tests.cli.invoke import refused, run, run_json

NOISE, KERNEL = 0.05, SquaredExponential((80.0, 80.0))


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Heights over a square, and hyperparameters with length scales far below its side."""
    folder, rng = tmp_path_factory.mktemp("terrain"), np.random.default_rng(2)
    X = rng.uniform(size=(700, 2))
    table = np.column_stack([X, np.sin(X @ [21.0, -9.0]) + 0.2 * rng.standard_normal(700)])
    np.savetxt(folder / "t.csv", table, delimiter=",", header="east,north,height", comments="")
    run_json("ingest", folder / "t.csv", folder / "t.zarr", "--target", "height")
    hyper = folder / "hyper.json"
    hyper.write_text(json.dumps({"kernel": KERNEL.to_json(), "noise_variance": NOISE}))
    return {"store": folder / "t.zarr", "hyper": hyper, "folder": folder}


def train(terrain: dict[str, Any], out: Path, *options: object) -> tuple[object, ...]:
    return ("train", terrain["store"], "--hyper", terrain["hyper"], "--out", out, *options, "--json", "--quiet")


@pytest.mark.parametrize("solver", ["gbcd", "cg"])
def test_the_model_and_what_its_certificate_says(terrain: dict[str, Any], tmp_path: Path, solver: str) -> None:
    options = ("--solver", solver, "--tol", 1e-3, "--product-error", 1e-4)
    found = run_json(*train(terrain, tmp_path / "m", *options))
    assert found["converged"] is True
    assert found["product_error"] == 1e-4
    certificate = found["certificate"]
    assert 0.0 < certificate["product_error"] <= 1.01e-4
    dataset = open_dataset(terrain["store"])
    Z, y = dataset.inputs(0, 700), dataset.targets(0, 700)
    Kbar = KERNEL(Z, Z) + NOISE * np.eye(700)
    alpha = open_model(tmp_path / "m").alpha
    error = np.linalg.norm(alpha - np.linalg.solve(Kbar, y))
    assert error <= certificate["alpha_error_bound"][0]
    true = Kbar @ alpha - y
    assert np.abs(true).max() <= found["gradient_inf_norm"] + certificate["product_error"]
    # What products hold is in the plan.
    plain = run_json(*train(terrain, tmp_path / "n", *options[:4], "--cluster", "none"))
    assert plain["certificate"]["product_error"] == 0.0
    more = found["memory_plan"]["worker_bytes"] - plain["memory_plan"]["worker_bytes"]
    assert more >= 700 * (8 * 2 + 16)


def test_too_many_features_are_refused_before_any_cluster_starts(tmp_path: Path) -> None:
    table = np.random.default_rng(1).normal(size=(50, 8))
    np.savetxt(tmp_path / "t.csv", table, delimiter=",", header="a,b,c,d,e,f,g,y", comments="")
    run_json("ingest", tmp_path / "t.csv", tmp_path / "t.zarr", "--target", "y")
    hyper = tmp_path / "hyper.json"
    hyper.write_text(json.dumps({"kernel": SquaredExponential((1.0,) * 7).to_json(), "noise_variance": 0.1}))
    options = ("--hyper", hyper, "--out", tmp_path / "m", "--product-error", 1e-5, "--scheduler", "tcp://127.0.0.1:1")
    refused(
        run("train", tmp_path / "t.zarr", *options),
        "at most 3 features in each term of a kernel",
        "has 7",
        "Take --product-error auto or none",
    )
    assert not (tmp_path / "m").exists()


def test_products_beyond_a_workers_cache_are_refused(terrain: dict[str, Any], tmp_path: Path) -> None:
    options = ("--product-error", 1e-5, "--worker-memory", "40MiB", "--cluster", "none")
    expected = "bytes in each process; half of a worker's memory is 20,971,520"
    refused(run(*train(terrain, tmp_path / "m", *options)), expected)
    assert not (tmp_path / "m").exists()
    # With auto every entry is evaluated instead.
    found = run_json(*train(terrain, tmp_path / "m", "--worker-memory", "40MiB", "--cluster", "none"))
    assert found["converged"]


@pytest.mark.parametrize("limit", ["a worker's cache", "the budget"])
def test_auto_without_memory_evaluates_every_entry(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    bytes_needed = 2**50 if limit == "a worker's cache" else 2**30
    monkeypatch.setattr("dkgp.operators.product_error.choose", lambda kernel, n: Forecast(True, "as the test says"))
    monkeypatch.setattr("dkgp.operators.product_error.estimated_bytes", lambda *_: (bytes_needed, 2**50))
    result = run(*train(terrain, tmp_path / "m", "--solver", "cg", "--cluster", "none")[:-1])
    assert result.exit_code == 0
    assert "products evaluate every kernel entry: there is no memory for others" in result.stderr
    assert json.loads(result.stdout)["certificate"]["product_error"] == 0.0


def test_auto_says_why_and_enters_the_identity(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.operators.product_error.choose", lambda kernel, n: Forecast(True, "as the test says"))
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper", lambda cost, n: True)
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper_in_double", lambda cost, n: True)
    monkeypatch.setattr("dkgp.operators.cells.operator.reaches_sooner", lambda terms, n, tolerance, loose: True)
    command = train(terrain, tmp_path / "m", "--solver", "cg", "--cluster", "none")
    result = run(*command[:-1], "--tol", 1e-3)
    assert result.exit_code == 0, result.stderr
    assert "as the test says" in result.stderr
    found = json.loads(result.stdout)
    assert found["product_error"] == "auto"
    assert found["products"]["reason"] == "as the test says"
    assert 0.0 < found["certificate"]["product_error"] <= 1e-4
    # A finished run is taken for done, and another one for another run's.
    assert run_json(*command, "--tol", 1e-3, "--resume")["resumed"]
    result = run(*command[:-1], "--tol", 1e-3, "--resume", "--product-error", "none", "--overwrite")
    assert "is of a run with another product error" in result.stderr


def test_auto_goes_on_with_every_entry_where_a_run_began_so(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = train(terrain, tmp_path / "m", "--solver", "cg", "--cluster", "none", "--tol", 1e-3)[:-1]
    run(*command, "--max-passes", 3)
    # As by a later version, whose forecast takes other products.
    monkeypatch.setattr("dkgp.operators.product_error.choose", lambda kernel, n: Forecast(True, "as the test says"))
    for _ in range(2):  # the second finds a finished model
        result = run(*command, "--resume")
        assert result.exit_code == 0, result.stderr
        assert "evaluate every kernel entry, as they did when the run began" in result.stderr
        found = json.loads(result.stdout)
        assert found["converged"]
        assert "product_error" not in found
    other = run(*command, "--resume", "--product-error", 1e-4, "--overwrite")
    assert "is of a run with another product error (its product error: None; this run's: 0.0001)" in other.stderr


def test_auto_goes_on_within_a_bound_where_a_run_began_so(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = train(terrain, tmp_path / "m", "--solver", "cg", "--cluster", "none", "--tol", 1e-3)[:-1]
    with monkeypatch.context() as patched:
        patched.setattr("dkgp.operators.product_error.choose", lambda *_: Forecast(True, "as the test says"))
        run(*command, "--max-passes", 3)
    # As by a later version, whose forecast evaluates every entry of so few samples.
    for _ in range(2):  # the second finds a finished model
        result = run(*command, "--resume")
        assert result.exit_code == 0, result.stderr
        assert "products are within a bound, as they were when the run began" in result.stderr
        found = json.loads(result.stdout)
        assert found["converged"]
        assert found["product_error"] == "auto"
    other = run(*command, "--resume", "--product-error", "none", "--overwrite")
    assert "is of a run with another product error (its product error: 'auto'; this run's: None)" in other.stderr


def test_the_option_of_earlier_versions_names_its_successor(terrain: dict[str, Any], tmp_path: Path) -> None:
    refused(
        run(*train(terrain, tmp_path / "m", "--tree-error", 1e-5)),
        "--tree-error no longer exists",
        "--product-error E",
        exit_code=2,
    )
    refused(run("info", terrain["store"], "--tree-error", 1e-5), "No such option", exit_code=2)


def test_a_checkpoint_of_products_that_are_gone_is_refused(terrain: dict[str, Any], tmp_path: Path) -> None:
    command = train(terrain, tmp_path / "m", "--solver", "cg", "--tol", 1e-3, "--cluster", "none")
    run(*command, "--max-passes", 3)
    store = CheckpointStore(tmp_path / "m.checkpoint")
    latest = store.load_latest()
    assert latest is not None
    identity = {**latest.metadata["identity"], "tree_error": 1e-5}
    store.save(latest.sequence_number, latest.arrays, {**latest.metadata, "identity": identity})
    words = "cannot go on to the same result. Start afresh without --resume, with --product-error 1e-05"
    refused(run(*command, "--resume"), "with `tree_error` 1e-05", words)


def test_a_finished_model_of_an_earlier_version_is_known(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = train(terrain, tmp_path / "m", "--solver", "cg", "--cluster", "none")[:-1]
    run_json(*command, "--product-error", 1e-5)

    read = ModelRecord.open

    def opened(url: str) -> ModelRecord:
        model = read(url)
        summary = dict(model.summary)
        return replace(model, summary={**summary, "tree_error": summary.pop("product_error")})

    with monkeypatch.context() as patched:
        patched.setattr(ModelRecord, "open", staticmethod(opened))
        assert "is done" in run(*command, "--product-error", 1e-5, "--resume").stderr
        other = run(*command, "--product-error", 2e-5, "--resume", "--overwrite").stderr
    assert "is of a run with another product error (its product error: 1e-05; this run's: 2e-05)" in other


def test_the_service_takes_and_checks_it() -> None:
    options = {"dataset": "/d", "hyper": "/h", "out": "/m", "product_error": 1e-5}
    job = job_from_options("train", options)
    assert options_from_job(job) == options
    words = {**options, "product_error": "none"}
    assert options_from_job(job_from_options("train", words)) == words
    # As an earlier version stored it.
    old = {**{name: value for name, value in options.items() if name != "product_error"}, "tree_error": 1e-5}
    assert job_from_options("train", old) == job
    with pytest.raises(UsageError, match="product_error: `product_error` must be below `tolerance`"):
        job_from_options("train", {**options, "solver": {"tolerance": 1e-6}})
    with pytest.raises(UsageError, match="product_error: .*; smo evaluates"):
        job_from_options("train", {**options, "solver": {"solver": "smo"}})
    with pytest.raises(InputError, match="`product_error` must be a positive finite number, auto or none"):
        job_from_options("train", {**options, "product_error": -1.0})
    with pytest.raises(UsageError, match="product_error: expected a positive finite number, auto or none; got .small."):
        job_from_options("train", {**options, "product_error": "small"})


def test_predictions_with_auto_evaluate_every_entry_where_workers_differ(
    terrain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_json(*train(terrain, tmp_path / "m", "--cluster", "none"))
    command = ("predict", tmp_path / "m", terrain["store"], "--json", "--cluster", "none", "--out")

    def unlike(executor: object) -> None:
        raise ClusterError("the workers' libraries differ")

    monkeypatch.setattr("dkgp.models.sums.forecast_sums", lambda *_: cross_sums.Forecast(True))
    monkeypatch.setattr(LocalExecutor, "require_one_arithmetic", unlike)
    result = run(*command, tmp_path / "p")
    assert result.exit_code == 0, result.stderr
    assert "sums evaluate every kernel entry" in result.stderr
    assert "product_error" not in open_prediction(str(tmp_path / "p")).attributes
    refused(run(*command, tmp_path / "q", "--product-error", 1e-4), "the workers' libraries differ", exit_code=5)
