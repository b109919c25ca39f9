"""`dkgp classify --method logistic|gp`: trained, told, interrupted and resumed to the same bits; refusals in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import ClassifierRecord, open_classifier
from tests.cli.conftest import refused

Command = Callable[..., Any]
Labelled = Callable[[int], dict[str, Any]]
BASIS = ("--basis-size", 40)
FORMS = {
    "logistic-basis": ("--method", "logistic", *BASIS),
    "gp-basis": ("--method", "gp", *BASIS),
    "logistic": ("--method", "logistic"),
    "gp": ("--method", "gp"),
}


@pytest.fixture(scope="module")
def hyper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Given by hand, so that nobody warns of what they were found for."""
    path = tmp_path_factory.mktemp("hyper") / "hyper.json"
    kernel = {"type": "rbf", "variance": 20.0, "gamma": [0.3, 0.1, 0.01]}
    path.write_text(json.dumps({"kernel": kernel, "noise_variance": 1.0}))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "model.zarr"


def classify(ingested: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--json", "--cluster", "none", *more]


def same_model(found: ClassifierRecord, expected: ClassifierRecord) -> None:
    names = ("prototypes", "weights", "indices", "alpha", "curvature", "kernel_lower", "posterior_lower", "intercept")
    for name in names:
        assert np.asarray(getattr(found, name)).tobytes() == np.asarray(getattr(expected, name)).tobytes(), name
    for name in ("kernel", "likelihood", "regularisation", "certificate"):
        assert getattr(found, name) == getattr(expected, name), name
    timed = {"seconds": 0, "timings": {}, "kernel_evaluations": 0}
    assert [{**record, **timed} for record in found.history] == [{**record, **timed} for record in expected.history]


@contextmanager
def interrupted_after(monkeypatch: pytest.MonkeyPatch, rounds: int, log: Path) -> Iterator[None]:
    """A signal comes once so many rounds are on record."""

    @contextmanager
    def interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
        yield lambda: log.exists() and log.read_text().count("\n") >= rounds

    with monkeypatch.context() as patch:
        patch.setattr("dkgp.commands.solving.interruptible", interruptible)
        yield


@pytest.mark.parametrize(
    "form", ["logistic", "gp-basis", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gp", "logistic-basis"))]
)
def test_a_run_that_is_interrupted_goes_on_to_the_same_bits(
    labelled: Labelled,
    hyper: Path,
    run: Command,
    document: Command,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    command = classify(labelled(3), out, *FORMS[form], "--hyper", hyper)
    log, plot = out.parent / "log.jsonl", out.parent / "run.png"
    with interrupted_after(monkeypatch, 3, log):
        result = run(*command, "--log-json", log)
    assert result.exit_code == 130, result.stderr
    assert f"{out}.checkpoint. Go on with the same command and --resume" in result.stderr
    assert not out.exists()
    refused(run(*command, "--class-weight", "balanced", "--resume"), "belongs to another class weight")
    resumed = run(*command, "--resume", "--log-json", log, "--plot", plot)
    found = document(resumed)
    assert "resuming after round" in resumed.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert not Path(f"{out}.checkpoint").exists()
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(3), whole, *FORMS[form], "--hyper", hyper)))
    same_model(open_classifier(out), open_classifier(whole))
    rounds = [json.loads(line)["iteration"] for line in log.read_text().splitlines()]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == found["iterations"]
    # What is done is told again, and not done again.
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = run(*command, "--resume")
    assert "was complete when an earlier run ended" in again.stderr
    told = document(again)
    assert all(told[name] == found[name] for name in ("risk", "likelihood", "decision_error", "certificate"))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


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
    labelled: Labelled,
    hyper: Path,
    run: Command,
    document: Command,
    out: Path,
    form: str,
    options: tuple[object, ...],
    name: str,
) -> None:
    found = document(run(*classify(labelled(3), out, *FORMS[form], *options, "--hyper", hyper)))
    record = open_classifier(out)
    assert found["likelihood"] == record.likelihood == {"name": name, "n_classes": 3}
    assert found["converged"]
    assert found["probabilities"]
    shown = " ".join(run("info", out).stdout.split())
    several = "" if name == "softmax" else ", each class against the rest"
    assert f"probabilities {name}{several}" in shown
    assert "noise variance" not in shown


@pytest.mark.slow
def test_without_hyperparameters_they_come_from_the_labels_evidence(
    labelled: Labelled, run: Command, document: Command, out: Path
) -> None:
    result = run(*classify(labelled(2), out, *FORMS["logistic-basis"]))
    assert "by the evidence of a subset's labels (logit)" in result.stderr
    assert document(result)["warnings"] == []
    hyper = out.parent / "signs.json"
    document(run("tune", labelled(2)["train"], "--out", hyper, "--subset", 150, "--json"))
    given = classify(labelled(2), out, *FORMS["logistic-basis"], "--hyper", hyper, "--overwrite")
    (warning,) = document(run(*given))["warnings"]
    assert "were found for a regression on signs" in warning


@pytest.mark.slow
def test_lambda_weighs_the_penalty(labelled: Labelled, hyper: Path, run: Command, document: Command, out: Path) -> None:
    sizes = []
    for penalty in (0.1, 10.0):
        command = classify(labelled(2), out, *FORMS["logistic-basis"], "--hyper", hyper, "--overwrite")
        assert document(run(*command, "--regularisation", penalty))["regularisation"] == penalty
        sizes.append(np.abs(open_classifier(out).coefficients).sum())
    assert sizes[0] > 2.0 * sizes[1]


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (("--method", "logistic", "--multi-class", "softmax", "--link", "probit"), "softmax goes with --link logit", 2),
        (("--method", "logistic", "--regularisation", 0), "--regularisation must be positive and finite; got 0", 3),
        (("--method", "gp", "--regularisation", 2), "--regularisation belongs to --method logistic", 2),
        (("--method", "exact", *BASIS), "--basis-size belongs to --method logistic or gp", 2),
        (("--basis", "uniform"), "--basis belongs to --method logistic or gp", 2),
        (("--method", "logistic", "--basis-size", 0), "--basis-size must be at least 1; got 0", 3),
        (("--method", "gp", "--basis", "uniform"), "say how many samples that has with --basis-size", 2),
        (("--method", "gp", "--certify"), "--certify is of a model on a basis", 2),
        (("--method", "logistic", *BASIS, "--solver", "kcg"), "--solver is of a model of all samples", 2),
        (("--method", "logistic", *BASIS, "--tree-error", 1e-4), "--tree-error is of a model of all samples", 2),
        (("--method", "logistic", *BASIS, "--gap", 1e-4), "--gap is of a model of all samples", 2),
        (("--method", "logistic", *BASIS, "--pool", 3), "--pool belongs to --method fixed-size", 2),
        (("--method", "gp", *BASIS, "--no-probability"), "--no-probability belongs to --method fixed-size or exact", 2),
        (("--method", "gp", *BASIS, "--intercept", "none"), "--intercept belongs to --method fixed-size or exact", 2),
        (("--link", "probit"), "--link belongs to --method logistic or gp", 2),
        (("--method", "gp", *BASIS, "--memory-limit", "1MiB"), "a classifier of 40 basis samples is projected to", 3),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    labelled: Labelled, hyper: Path, run: Command, out: Path, options: tuple[object, ...], words: str, code: int
) -> None:
    refused(run(*classify(labelled(3), out, *options, "--hyper", hyper)), words, exit_code=code)
    assert not list(out.parent.iterdir())
