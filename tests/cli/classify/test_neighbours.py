"""`dkgp classify --method gp --basis-size M --neighbours K`, and what other commands make of its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from dkgp.data import open_classifier, open_prediction
from tests.cli.invoke import refused, run, run_json

Labelled = Callable[[int], dict[str, Any]]
NEAR = ("--method", "gp", "--basis-size", 8, "--neighbours", 60)


def classify(ingested: dict[str, Any], out: Path, wide: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--cluster", "none", "--hyper", wide, *more]


def test_a_model_predicts_is_evaluated_and_told_of(labelled: Labelled, wide: Path, tmp_path: Path) -> None:
    train, test, model = labelled(2)["train"], labelled(2)["test"], tmp_path / "near"
    found = run_json(*classify(labelled(2), model, wide, *NEAR, "--search-samples", 5000))
    assert (found["method"], found["neighbours"], found["basis_size"]) == ("gp", 60, 8)
    assert found["converged"]
    assert found["neighbours_unproven"] == 0.0
    assert np.isfinite(found["evidence"])
    assert found["certificate"] == {}
    record = open_classifier(model)
    assert (record.neighbours, record.search_samples) == (60, 5000)
    shown = " ".join(run(*classify(labelled(2), model, wide, *NEAR, "--overwrite")).stdout.split())
    assert "a basis of 8 samples (pivoted) and 60 nearest samples" in shown
    assert "nats, in Laplace's approximation" in shown
    told = run_json("info", model)
    assert (told["method"], told["basis_size"], told["neighbours"]) == ("gp", 8, 60)
    info = " ".join(run("info", model).stdout.split())
    assert "8 samples (pivoted) and 60 nearest samples" in info
    assert "probabilities logit" in info
    # Nearer to the model of all samples than the basis alone is.
    decisions = {}
    for name, options in (("gp", ("--method", "gp")), ("alone", NEAR[:4])):
        run_json(*classify(labelled(2), tmp_path / name, wide, *options))
    for name in ("near", "gp", "alone"):
        run_json("predict", tmp_path / name, test, "--out", tmp_path / f"{name}.pred", "--cluster", "none")
        decisions[name] = open_prediction(tmp_path / f"{name}.pred").read("decision")[:, 0]
    apart = {name: np.sqrt(np.mean((decisions[name] - decisions["gp"]) ** 2)) for name in ("near", "alone")}
    assert apart["near"] < 0.5 * apart["alone"]
    stored = open_prediction(tmp_path / "near.pred")
    assert "decision_error_bound" not in stored.variables
    assert (stored.read("latent_variance_upper") > 0.0).all()
    run_json("predict", model, test, "--out", tmp_path / "plugged", "--cluster", "none", "--plug-in")
    plugged = open_prediction(tmp_path / "plugged")
    np.testing.assert_array_equal(plugged.read("decision")[:, 0], decisions["near"])
    np.testing.assert_allclose(plugged.read("probability")[:, 1], expit(decisions["near"]), rtol=1e-12)
    assert (np.abs(stored.read("probability") - 0.5) <= np.abs(plugged.read("probability") - 0.5)).all()
    evaluated = run_json("evaluate", tmp_path / "near.pred", test)
    assert 0.0 < evaluated["log_loss"] < 0.6
    assert train != test


def test_a_search_that_was_limited_is_told_of(labelled: Labelled, wide: Path, tmp_path: Path) -> None:
    command = (*classify(labelled(2), tmp_path / "model", wide, *NEAR), "--search-samples", 65)
    found = run_json(*command)
    assert 0.02 < found["neighbours_unproven"] <= 1.0
    assert 0.0 < found["left"] < 0.9
    share = 100.0 * found["neighbours_unproven"]
    shown = " ".join(run("info", tmp_path / "model").stdout.split())
    assert f"neighbours not proven nearest {share:.3g} % of the samples (of 65 looked at)" in shown
    assert f"left of k(x, x) {found['left']:.2g} of it" in shown
    predicted = run("predict", tmp_path / "model", labelled(2)["test"], "--out", tmp_path / "pred", "--cluster", "none")
    assert "each search looked at 65 samples at most, and is exact with more" in " ".join(predicted.output.split())


def test_what_is_finished_is_known_and_other_neighbours_are_another_run(
    labelled: Labelled, wide: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    first = run_json(*classify(labelled(3), model, wide, *NEAR))
    assert run_json(*classify(labelled(3), model, wide, *NEAR, "--resume"))["evidence"] == first["evidence"]
    for option, value, words in (
        ("--neighbours", 30, "neighbours (its neighbours: 60; this run's: 30)"),
        ("--search-samples", 99, "search samples (its search samples: None; this run's: 99)"),
    ):
        refused(run(*classify(labelled(3), model, wide, *NEAR, option, value, "--resume")), words)
