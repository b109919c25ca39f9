"""`dkgp train --tree-error`: the same model within the error asked for, told in the certificate; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.solving import add_tree_memory
from dkgp.data import open_dataset, open_model
from dkgp.errors import InputError, MemoryBudgetError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.operators.tree.forest import Forest
from dkgp.operators.tree.kd_tree import tree_bytes
from dkgp.service.specification import job_from_options, options_from_job
from dkgp.solvers.registry import SolverMemory
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
    options = ("--solver", solver, "--tol", 1e-3, "--tree-error", 1e-4)
    found = run_json(*train(terrain, tmp_path / "m", *options))
    assert found["converged"] is True
    assert found["tree_error"] == 1e-4
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
    # The tree is in the plan.
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
    options = ("--hyper", hyper, "--out", tmp_path / "m", "--tree-error", 1e-5, "--scheduler", "tcp://127.0.0.1:1")
    refused(run("train", tmp_path / "t.zarr", *options), "tree sums are for up to 6 features; got 7")
    assert not (tmp_path / "m").exists()


def test_a_tree_beyond_the_workers_cache_is_refused(terrain: dict[str, Any]) -> None:
    dataset, memory = open_dataset(terrain["store"]), SolverMemory(own_bytes=7)
    needed = tree_bytes(700, 2)
    assert Forest.of(dataset.inputs(0, 700)).nbytes <= needed <= 1.5 * Forest.of(dataset.inputs(0, 700)).nbytes
    with pytest.raises(MemoryBudgetError, match=f"takes {needed:,} bytes in each process; a worker's cache holds"):
        add_tree_memory(memory, 700, 2, True, needed - 1)
    shared, apart = (add_tree_memory(memory, 700, 2, shares, needed) for shares in (True, False))
    assert shared.own_bytes == 7
    assert apart.own_bytes == 7 + apart.factor_bytes > 7 + needed


def test_the_service_takes_and_checks_it() -> None:
    options = {"dataset": "/d", "hyper": "/h", "out": "/m", "tree_error": 1e-5}
    job = job_from_options("train", options)
    assert options_from_job(job) == options
    with pytest.raises(UsageError, match="tree_error: --tree-error must be below --tol"):
        job_from_options("train", {**options, "solver": {"tolerance": 1e-6}})
    with pytest.raises(UsageError, match="tree_error: .*; smo evaluates"):
        job_from_options("train", {**options, "solver": {"solver": "smo"}})
    with pytest.raises(InputError, match="`tree_error` must be positive and finite"):
        job_from_options("train", {**options, "tree_error": -1.0})
    with pytest.raises(UsageError, match="tree_error: expected .*number"):
        job_from_options("train", {**options, "tree_error": "small"})
