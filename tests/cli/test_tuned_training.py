"""`dkgp train --tune`: as `dkgp tune` and then `dkgp train`, to the same bits, and to be gone on with in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dkgp.errors import InterruptedRunError
from dkgp.service.specification import job_from_options, job_paths
from tests.cli.invoke import refused, run, run_json
from tests.cli.runs import bits


@pytest.fixture(scope="module")
def tuned(pipeline: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained after tuning."""
    out = tmp_path_factory.mktemp("tuned") / "model.zarr"
    run_json("train", pipeline["ingest"]["train"], "--out", out, "--tune")
    return out


def test_it_is_both_commands(tuned: Path, pipeline: dict[str, Any], tmp_path: Path) -> None:
    data, hyper, model = pipeline["ingest"]["train"], tmp_path / "hyper.json", tmp_path / "model.zarr"
    run_json("tune", data, "--out", hyper)
    run_json("train", data, "--hyper", hyper, "--out", model)
    beside = json.loads(Path(f"{tuned}.hyper.json").read_text())
    one_by_one = json.loads(hyper.read_text())
    assert [beside[name] for name in ("kernel", "noise_variance")] == [
        one_by_one[name] for name in ("kernel", "noise_variance")
    ]
    assert bits(tuned) == bits(model)


def test_it_goes_on_between_the_two(
    tuned: Path, pipeline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model, hyper = pipeline["ingest"]["train"], tmp_path / "model.zarr", tmp_path / "hyper.json"
    command = ("train", data, "--out", model, "--hyper", hyper, "--tune")
    with monkeypatch.context() as patch:

        def killed(*_: Any) -> None:
            raise InterruptedRunError("interrupted")

        patch.setattr("dkgp.commands.tuned.run_training", killed)
        assert run(*command).exit_code == 130
    written = hyper.read_bytes()
    assert not model.exists()
    refused(run(*command), "hyper.json", "exists already")
    resumed = run_json(*command, "--resume")
    assert hyper.read_bytes() == written
    assert resumed["tuned"]["out"] == str(hyper)
    assert bits(model) == bits(tuned)


def test_the_model_s_place_is_refused_before_the_search(tuned: Path, pipeline: dict[str, Any]) -> None:
    hyper = Path(f"{tuned}.hyper.json")
    before = hyper.stat().st_mtime_ns
    refused(run("train", pipeline["ingest"]["train"], "--out", tuned, "--tune"), "model.zarr' exists already")
    assert hyper.stat().st_mtime_ns == before


def test_without_hyperparameters_both_ways_are_named(pipeline: dict[str, Any], tmp_path: Path) -> None:
    result = run("train", pipeline["ingest"]["train"], "--out", tmp_path / "model.zarr")
    assert result.exit_code == 2
    assert "Find hyperparameters first: dkgp tune DATASET --out hyper.json" in result.stderr
    assert "give --tune" in result.stderr


def test_a_job_of_the_service_writes_the_hyperparameters() -> None:
    options = {"dataset": "/d/train.zarr", "hyper": "/d/h.json", "out": "/d/m.zarr", "tune": True}
    accesses = {(path.field, path.access) for path in job_paths("train", options)}
    assert ("hyper", "write") in accesses
    assert ("hyper", "write") not in {
        (path.field, path.access) for path in job_paths("train", {**options, "tune": False})
    }
    assert job_from_options("train", options).tune  # type: ignore[union-attr]
