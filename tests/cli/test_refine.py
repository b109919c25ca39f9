"""`dkgp tune --refine`: from a store to a better hyperparameter file, interrupted, and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands import tune as tune_command
from dkgp.commands.tune import TuneJob
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.models import read_hyperparameters
from dkgp.models.refinement.record import RefineSettings
from dkgp.service.specification import job_from_options, options_from_job
from tests.cli.invoke import document_of, refused, run, run_json

QUICK = ("--refine-probes", 4, "--refine-rank", 30, "--refine-steps", 4)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2)) * [3.0, 10.0]
    y = np.sin(X[:, :1]) + 0.05 * X[:, 1:] + 0.2 * rng.normal(size=(400, 1))
    path = tmp_path_factory.mktemp("refine") / "train.zarr"
    dataset_from_arrays(path, X, y, feature_names=("lat", "lon"), chunk_rows=150)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.3, 3.0]}, "noise_variance": 0.6}))
    return path


def test_the_subsets_result_is_refined(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "hyper.json"
    result = run("tune", store, "--out", out, "--subset", 60, "--refine", *QUICK, "--json")
    document = document_of(result)
    record = document["refinement"]
    assert record["kept"] in ("refined", "start")
    assert record["before"]["nlpd"] > record["after"]["nlpd"] or record["kept"] == "start"
    assert record["settings"]["probes"] == 4
    assert record["n_held_out"] == 40
    assert record["memory_plan"]["coordinator_bytes"] > 0
    found = read_hyperparameters(out, feature_names=("lat", "lon"))
    assert found.noise_variance == document["noise_variance"]
    assert found.refinement == record
    # A line for every step, and what came of it.
    assert result.stderr.count("refine step ") == len(record["history"])
    assert record["verdict"] in " ".join(result.stderr.split()) or record["kept"] == "start"


def test_values_of_a_file_are_refined_without_a_search(store: Path, bad: Path, tmp_path: Path) -> None:
    out = tmp_path / "hyper.json"
    options = ("--start", bad, "--refine-only", *QUICK, "--fix", "gamma.lon=0.5", "--plot", tmp_path / "scales.png")
    options += ("--refine-evidence",)
    result = run("tune", store, "--out", out, *options)
    assert result.exit_code == 0, result.stderr
    assert "Refined on all samples" in result.stdout
    assert "40 held-out samples" in result.stdout
    assert "log marginal likelihood" in result.stdout
    assert "evaluation" not in result.stderr
    found = read_hyperparameters(out)
    assert found.refinement is not None
    assert found.refinement["kept"] == "refined"
    assert found.refinement["after"]["nlpd"] < found.refinement["before"]["nlpd"] - 0.1
    assert found.gamma[1] == pytest.approx(0.5)
    assert found.noise_variance < 0.3


def test_an_interruption_leaves_the_best_so_far_and_says_how_to_go_on(
    store: Path, bad: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    steps: list[object] = []
    refine = tune_command.refine

    @contextmanager
    def interrupted_soon(announce: Any) -> Iterator[Any]:
        yield lambda: len(steps) > 2

    def counted(dataset: Any, space: Any, context: Any, *arguments: Any, **options: Any) -> Any:
        watched = replace(context, callback=lambda step: (steps.append(step), context.callback(step)))
        return refine(dataset, space, watched, *arguments, **options)

    monkeypatch.setattr(tune_command, "interruptible", interrupted_soon)
    monkeypatch.setattr(tune_command, "refine", counted)
    out = tmp_path / "hyper.json"
    command = ("tune", store, "--refine-only", *QUICK, "--json")
    document = run_json(*command, "--start", bad, "--out", out, exit_code=130)
    message = document["error"]["message"]
    assert "not validated" in message
    assert f"--start '{out}' --refine-only" in message
    so_far = read_hyperparameters(out)
    assert so_far.refinement is not None
    assert so_far.refinement["interrupted"]
    assert so_far.noise_variance == so_far.refinement["history"][-1]["noise_variance"] < 0.6
    monkeypatch.undo()
    again = run_json(*command, "--start", out, "--out", tmp_path / "again.json")
    assert again["refinement"]["history"][0]["noise_variance"] == so_far.noise_variance
    assert not again["refinement"]["interrupted"]


def test_solves_that_end_early_are_told_of(store: Path, bad: Path, tmp_path: Path) -> None:
    options = ("--refine-max-passes", 1, "--refine-tol", 1e-9, "--refine-steps", 1, "--refine-holdout", 0)
    out = tmp_path / "hyper.json"
    document = run_json("tune", store, "--out", out, "--start", bad, "--refine-only", "--refine-rank", 5, *options)
    assert any("1 passes did not solve to the relative residual" in warning for warning in document["warnings"])
    history = document["refinement"]["history"]
    assert all(step["relative_residual"] > 1e-9 and step["solver_share"] > 0.0 for step in history)


def test_memory_that_is_not_there_is_refused_with_numbers(store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tune_command, "memory_budget", lambda: (0, 1000))
    monkeypatch.setattr(tune_command, "available_bytes", lambda: 2**40)
    out = tmp_path / "hyper.json"
    refused(run("tune", store, "--out", out, "--refine"), "refining is projected to need")
    assert not out.exists()


def test_a_service_can_be_given_it() -> None:
    pytest.importorskip("pydantic")
    options = {
        "dataset": "/data/train.zarr",
        "out": "/data/hyper.json",
        "start": "/data/start.json",
        "refine": {"steps": 5, "held_out": 100},
        "refine_only": True,
    }
    job = job_from_options("tune", options)
    assert isinstance(job, TuneJob)
    assert job.refine == RefineSettings(steps=5, held_out=100)
    assert options_from_job(job) == options
