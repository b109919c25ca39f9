"""`dkgp classify --product-error`: labels certified as without, and what is refused in words with nothing on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_classifier, open_dataset, open_prediction
from dkgp.kernels import Linear, SquaredExponential
from tests.cli.invoke import refused, run, run_json

KERNEL, NOISE, N = SquaredExponential((60.0, 60.0)), 0.3, 500


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Kinds of ground over a square, with length scales far below its side."""
    folder, rng = tmp_path_factory.mktemp("ground"), np.random.default_rng(3)
    X = rng.uniform(size=(N + 120, 2))
    names = np.where(np.sin(X @ [21.0, -9.0]) + 0.2 * rng.standard_normal(len(X)) > 0, "rock", "sand")
    rows = [f"{a:.17g},{b:.17g},{name}" for (a, b), name in zip(X, names, strict=True)]
    (folder / "g.csv").write_text("\n".join(["east,north,kind", *rows]) + "\n")
    command = ("ingest", folder / "g.csv", folder / "g.zarr", "--labels", "kind", "--test-fraction", 0.2)
    run_json(*command, "--test-out", folder / "test.zarr")
    hyper = folder / "hyper.json"
    hyper.write_text(json.dumps({"kernel": KERNEL.to_json(), "noise_variance": NOISE}))
    return {"store": folder / "g.zarr", "test": folder / "test.zarr", "hyper": hyper}


def classify(ground: dict[str, Any], out: Path, *options: object) -> tuple[object, ...]:
    base = ("classify", ground["store"], "--hyper", ground["hyper"], "--out", out, "--json", "--quiet")
    return (*base, "--cluster", "none", "--no-probability", *options)


def exact_decisions(ground: dict[str, Any]) -> np.ndarray:
    """By dense algebra in float64, (equations 21 to 23 of the pursuit paper)."""
    train, test = open_dataset(ground["store"]), open_dataset(ground["test"])
    Z = train.inputs(0, train.n_samples)
    T = test.as_seen_by(train.feature_names, (), train.standardisation).inputs(0, test.n_samples)
    y = np.where(train.all_labels() == 1, 1.0, -1.0)
    E = np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(len(Z)), np.column_stack([y, np.ones(len(Z))]))
    b = E[:, 0].sum() / E[:, 1].sum()
    return np.asarray(KERNEL(T, Z) @ (E[:, 0] - b * E[:, 1]) + b)


def test_decisions_keep_their_bounds(ground: dict[str, Any], tmp_path: Path) -> None:
    out, pred = tmp_path / "m", tmp_path / "p"
    found = run_json(*classify(ground, out, "--method", "exact", "--solver", "cg", "--product-error", 1e-7))
    assert found["converged"]
    assert found["product_error"] == 1e-7
    run_json("predict", out, ground["test"], "--out", pred, "--cluster", "none")
    stored, exact = open_prediction(str(pred)), exact_decisions(ground)
    error = np.abs(stored.read("decision")[:, 0] - exact)
    bound = stored.read("decision_error_bound")[:, 0]
    assert (error <= bound).all()
    assert bound.max() < 0.01
    # What pruning may cost is in the bound, however small the residual seems.
    plain = tmp_path / "plain"
    run_json(*classify(ground, plain, "--method", "exact", "--solver", "cg"))
    assert open_classifier(plain).summary.get("product_error") is None


def test_kernels_and_features_that_no_bound_is_known_for_are_refused(ground: dict[str, Any], tmp_path: Path) -> None:
    kernel = {"kernel": Linear((1.0, 1.0)).to_json(), "noise_variance": 0.1}
    hyper = tmp_path / "hyper.json"
    hyper.write_text(json.dumps(kernel))
    command = classify(ground, tmp_path / "m", "--method", "exact", "--product-error", 1e-7, "--hyper", hyper)
    refused(run(*command), "a part of dot products. Take --product-error auto or none")
    assert [path.name for path in tmp_path.iterdir()] == ["hyper.json"]
