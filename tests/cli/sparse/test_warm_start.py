"""`dkgp train --warm-start` with a sparse model: taken where it pays, and said where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoke import document_of, refused, run, run_json


def train(pipeline: dict[str, Any], out: Path, *more: object, hyper: object = None) -> tuple[object, ...]:
    solver = ("--solver", "gbcd", "--block-size", 60, "--tol", 1e-6)
    return (
        *("train", pipeline["ingest"]["train"], "--hyper", hyper or pipeline["tune"]["out"], "--out", out),
        *("--json", *solver, *more),
    )


def sparse(pipeline: dict[str, Any], out: Path, m: int, hyper: object = None) -> Path:
    found = hyper or pipeline["tune"]["out"]
    run_json("sparse", pipeline["ingest"]["train"], "--hyper", found, "--out", out, "--basis-size", m)
    return out


def test_a_good_fit_saves_passes(pipeline: dict[str, Any], tmp_path: Path) -> None:
    basis = sparse(pipeline, tmp_path / "sparse.zarr", 400)
    cold = run_json(*train(pipeline, tmp_path / "cold.zarr"))
    result = run(*train(pipeline, tmp_path / "warm.zarr", "--warm-start", basis))
    warm = document_of(result)
    assert "starts from the sparse model" in " ".join(result.stderr.split())
    assert cold["converged"]
    assert warm["converged"]
    assert warm["column_passes"] < 0.8 * cold["column_passes"]
    assert warm["objective"] == pytest.approx(cold["objective"], rel=1e-9)


def test_a_start_that_is_farther_off_than_zero_is_not_taken(pipeline: dict[str, Any], tmp_path: Path) -> None:
    """Of a large kernel with little noise, and a basis that cannot follow it."""
    hyper = tmp_path / "hyper.json"
    known = json.loads(Path(pipeline["tune"]["out"]).read_text())
    hyper.write_text(json.dumps({**known, "noise_variance": 1e-3}))
    basis = sparse(pipeline, tmp_path / "sparse.zarr", 5, hyper)
    cold = run_json(*train(pipeline, tmp_path / "cold.zarr", "--max-passes", 2, hyper=hyper), exit_code=4)
    result = run(*train(pipeline, tmp_path / "warm.zarr", "--max-passes", 2, "--warm-start", basis, hyper=hyper))
    warm = document_of(result, 4)
    assert "is no start" in " ".join(result.stderr.split())
    assert {name: warm[name] for name in ("objective", "column_passes")} == {
        name: cold[name] for name in ("objective", "column_passes")
    }


def test_a_sparse_model_of_other_hyperparameters_or_data_is_no_start(pipeline: dict[str, Any], tmp_path: Path) -> None:
    basis = sparse(pipeline, tmp_path / "sparse.zarr", 50)
    other = json.loads(Path(pipeline["tune"]["out"]).read_text())
    hyper = tmp_path / "hyper.json"
    hyper.write_text(json.dumps({**other, "noise_variance": 1.5 * other["noise_variance"]}))
    options = ("--max-passes", 1, "--warm-start", basis)
    found = run_json(*train(pipeline, tmp_path / "model.zarr", *options, hyper=hyper), exit_code=4)
    assert any("other hyperparameters" in warning for warning in found["warnings"])
    result = run(
        *("train", pipeline["ingest"]["test"], "--hyper", pipeline["tune"]["out"], "--out", tmp_path / "no.zarr"),
        *("--warm-start", basis),
    )
    refused(result, "was trained on other data", "--warm-start")
    assert not (tmp_path / "no.zarr").exists()
