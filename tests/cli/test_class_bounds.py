"""Probabilities by the command line: in intervals that hold the exact minimiser's, told by predict and evaluate.

`dkgp classify --product-error`: labels certified as without, and what is refused in words with nothing on disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from dkgp.data import open_classifier, open_dataset, open_prediction
from dkgp.kernels import Linear, SquaredExponential
from dkgp.models.classification.metrics import area_under_curve
from tests.cli.invoke import refused, run, run_json

Labelled = Callable[[int], dict[str, Any]]
KERNEL = SquaredExponential((0.3, 0.1, 0.01), 20.0)


@pytest.fixture(scope="module")
def exact(labelled: Labelled) -> np.ndarray:
    """Decisions of the exact minimiser at the test samples, by Newton's method on dense matrices."""
    train, test = (open_dataset(labelled(2)[name]) for name in ("train", "test"))
    X = train.inputs(0, train.n_samples)
    T = test.as_seen_by(train.feature_names, (), train.standardisation).inputs(0, test.n_samples)
    K, y = KERNEL(X, X), (train.all_labels() == 1).astype(float)
    alpha = np.zeros(len(X))
    for _ in range(60):
        p = expit(K @ alpha)
        # (K W + 1) alpha_new = y - p + W K alpha, from the gradient p - y + alpha.
        weight = p * (1.0 - p)
        alpha = np.linalg.solve(np.eye(len(X)) + weight[:, None] * K, y - p + weight * (K @ alpha))
    assert np.abs(expit(K @ alpha) - y + alpha).max() < 1e-12
    return np.asarray(KERNEL(T, X) @ alpha)


def predict(labelled: Labelled, model: Path, out: Path, *options: object) -> tuple[object, ...]:
    return ("predict", model, labelled(2)["test"], "--out", out, "--json", "--cluster", "none", *options)


@pytest.mark.parametrize("options", [(), ("--product-error", 1e-2)], ids=["every entry", "within a bound"])
def test_the_exact_probability_lies_in_its_interval(
    classifiers: dict[str, Path], exact: np.ndarray, labelled: Labelled, tmp_path: Path, options: tuple[object, ...]
) -> None:
    found = run_json(*predict(labelled, classifiers["logistic"], tmp_path / "p", *options))
    stored = open_prediction(str(tmp_path / "p"))
    away = np.abs(stored.read("decision")[:, 0] - exact)
    assert (away <= stored.read("decision_error_bound")[:, 0]).all()
    assert away.max() > 1e-9
    p = np.column_stack([expit(-exact), expit(exact)])
    lower, given, upper = (stored.read(name) for name in ("probability_lower", "probability", "probability_upper"))
    assert (lower <= p).all()
    assert (p <= upper).all()
    assert (lower <= given).all()
    assert (given <= upper).all()
    # What is certified is the exact minimiser's label.
    certified = stored.certified(0, stored.n_samples)
    labels = stored.labels(0, stored.n_samples)
    assert (labels[certified] == (exact > 0)[certified]).all()
    assert found["classes"]["certified"] == certified.sum()
    width = (upper - lower)[np.arange(len(labels)), labels]
    assert found["classes"]["interval_width_mean"] == pytest.approx(width.mean())
    assert found["classes"]["interval_width_max"] == pytest.approx(width.max())
    told = run_json("evaluate", tmp_path / "p", labelled(2)["test"])
    assert told["interval_width_mean"] == pytest.approx(width.mean())
    shown = " ".join(run("evaluate", tmp_path / "p", labelled(2)["test"]).stdout.split())
    assert "probabilities certified within intervals" in shown


def test_those_of_a_gaussian_process_are_averaged_unless_they_are_plugged_in(
    classifiers: dict[str, Path], labelled: Labelled, tmp_path: Path
) -> None:
    found = {}
    for name, options in (("averaged", ()), ("plugged", ("--plug-in",))):
        run_json(*predict(labelled, classifiers["basis"], tmp_path / name, *options))
        stored = open_prediction(str(tmp_path / name))
        found[name] = stored.read("probability")[:, 1]
        decision = stored.read("decision")[:, 0]
        assert ("latent_variance_upper" in stored.variables) == (name == "averaged")
    np.testing.assert_allclose(found["plugged"], expit(decision), rtol=1e-12)
    # Averaging draws towards one half, and turns no label round.
    inside = np.abs(found["averaged"] - 0.5) <= np.abs(found["plugged"] - 0.5) + 1e-12
    assert inside.all()
    assert np.abs(found["averaged"] - found["plugged"]).max() > 0.01
    resumed = (*predict(labelled, classifiers["basis"], tmp_path / "averaged", "--plug-in"), "--resume")
    refused(run(*resumed))


@pytest.mark.slow
def test_softmax_ranks_by_probabilities(labelled: Labelled, tmp_path: Path) -> None:
    out, pred = tmp_path / "m", tmp_path / "p"
    command = ("classify", labelled(3)["train"], "--out", out, "--method", "logistic", "--basis-size", 30, "--json")
    run_json(*command, "--cluster", "none")
    run_json("predict", out, labelled(3)["test"], "--out", pred, "--cluster", "none")
    told, stored = run_json("evaluate", pred, labelled(3)["test"]), open_prediction(str(pred))
    truth, probability = open_dataset(labelled(3)["test"]).all_labels(), stored.read("probability")
    areas = [area_under_curve(probability[:, each], truth == each) for each in range(3)]
    assert told["auc"] == pytest.approx(np.mean(areas))


GROUND_KERNEL, NOISE, GROUND_N = SquaredExponential((60.0, 60.0)), 0.3, 500


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Kinds of ground over a square, with length scales far below its side."""
    folder, rng = tmp_path_factory.mktemp("ground"), np.random.default_rng(3)
    X = rng.uniform(size=(GROUND_N + 120, 2))
    names = np.where(np.sin(X @ [21.0, -9.0]) + 0.2 * rng.standard_normal(len(X)) > 0, "rock", "sand")
    rows = [f"{a:.17g},{b:.17g},{name}" for (a, b), name in zip(X, names, strict=True)]
    (folder / "g.csv").write_text("\n".join(["east,north,kind", *rows]) + "\n")
    command = ("ingest", folder / "g.csv", folder / "g.zarr", "--labels", "kind", "--test-fraction", 0.2)
    run_json(*command, "--test-out", folder / "test.zarr")
    hyper = folder / "hyper.json"
    hyper.write_text(json.dumps({"kernel": GROUND_KERNEL.to_json(), "noise_variance": NOISE}))
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
    E = np.linalg.solve(GROUND_KERNEL(Z, Z) + NOISE * np.eye(len(Z)), np.column_stack([y, np.ones(len(Z))]))
    b = E[:, 0].sum() / E[:, 1].sum()
    return np.asarray(GROUND_KERNEL(T, Z) @ (E[:, 0] - b * E[:, 1]) + b)


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
