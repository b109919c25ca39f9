"""`dkgp classify --method logistic|gp`: trained, told, interrupted and resumed to the same bits; refusals in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_classifier
from tests.cli.invoke import document_of, run, run_json

Labelled = Callable[[int], dict[str, Any]]
BASIS = ("--basis-size", 40)
FORMS = {
    "logistic-basis": ("--method", "logistic", *BASIS),
    "gp-basis": ("--method", "gp", *BASIS),
    "logistic": ("--method", "logistic"),
    "gp": ("--method", "gp"),
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "model.zarr"


def classify(ingested: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--json", "--cluster", "none", *more]


@pytest.mark.parametrize(
    ("form", "options", "name"),
    [
        ("logistic-basis", (), "softmax"),
        ("gp-basis", (), "logit"),
        ("logistic-basis", ("--multi-class", "ovr", "--link", "probit"), "probit"),
        ("logistic-basis", ("--link", "probit"), "probit"),
    ],
)
def test_the_likelihood_is_the_one_that_was_asked_for(
    labelled: Labelled, wide: Path, out: Path, form: str, options: tuple[object, ...], name: str
) -> None:
    found = run_json(*classify(labelled(3), out, *FORMS[form], *options, "--hyper", wide))
    record = open_classifier(out)
    assert found["likelihood"] == record.likelihood == {"name": name, "n_classes": 3}
    assert found["converged"]
    assert found["probabilities"]
    shown = " ".join(run("info", out).stdout.split())
    several = "" if name == "softmax" else ", each class against the rest"
    assert f"probabilities {name}{several}" in shown
    assert "noise variance" not in shown


@pytest.mark.slow
def test_without_hyperparameters_they_come_from_the_labels_evidence(labelled: Labelled, out: Path) -> None:
    result = run(*classify(labelled(2), out, *FORMS["logistic-basis"]))
    assert "by the evidence of a subset's labels (logit)" in result.stderr
    assert document_of(result)["warnings"] == []
    hyper = out.parent / "signs.json"
    run_json("tune", labelled(2)["train"], "--out", hyper, "--subset", 150)
    given = classify(labelled(2), out, *FORMS["logistic-basis"], "--hyper", hyper, "--overwrite")
    (warning,) = run_json(*given)["warnings"]
    assert "were found for a regression on signs" in warning


@pytest.mark.slow
def test_lambda_weighs_the_penalty(labelled: Labelled, wide: Path, out: Path) -> None:
    sizes = []
    for penalty in (0.1, 10.0):
        command = classify(labelled(2), out, *FORMS["logistic-basis"], "--hyper", wide, "--overwrite")
        assert run_json(*command, "--regularisation", penalty)["regularisation"] == penalty
        sizes.append(np.abs(open_classifier(out).coefficients).sum())
    assert sizes[0] > 2.0 * sizes[1]
