"""`dkgp classify` killed, interrupted and on other workers: the model's bits are the same."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import ClassifierRecord, open_classifier, open_prediction
from tests.cli.test_finished import killed_at

Command = Callable[..., Any]
Labelled = Callable[[int], dict[str, Any]]
Process = tuple[list[str], dict[str, str]]

SMALL = ("--pool", 40, "--folds", 4)
# A search of many passes.
LONG = ("--pool", 30, "--folds", 3, "--search", "annealing")
EXACT = ("--method", "exact", "--solver", "cg", "--tol", 1e-7)
LOGISTIC = ("--method", "logistic", "--solver", "kcg")
PROCESS = ("--method", "gp", "--solver", "newton")
BASIS = ("--method", "gp", "--basis-size", 40)
METHODS = {"fixed-size": LONG, "exact": EXACT, "logistic": LOGISTIC, "gp": PROCESS, "gp on a basis": BASIS}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "model.zarr"


def classify(ingested: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--json", *more]


def same_model(found: ClassifierRecord, expected: ClassifierRecord) -> None:
    """To the last bit, with the same path to it."""
    names = ("prototypes", "weights", "indices", "alpha", "ones", "intercept", "curvature", "posterior_lower")
    for name in names:
        assert np.asarray(getattr(found, name)).tobytes() == np.asarray(getattr(expected, name)).tobytes(), name
    for name in ("kernel", "noise_variance", "calibration", "certificate", "path"):
        assert getattr(found, name) == getattr(expected, name), name
    # And what is evaluated anew where less was kept.
    timed = {"seconds": 0, "timings": {}, "kernel_evaluations": 0}
    assert [{**record, **timed} for record in found.history] == [{**record, **timed} for record in expected.history]


def killed_in_pass(process: Process, number: int, command: list[object]) -> None:
    """Run a command in a process of its own that is killed (kill -9) when it begins a pass over the data."""
    killed_after(process, "dkgp.models.classification.fixed_size.train:fold_systems", number, command, before=True)


def killed_after(process: Process, place: str, number: int, command: list[object], *, before: bool = False) -> None:
    """Run a command that is killed (kill -9) after so many calls of MODULE:NAME, or before the last of them."""
    module, name = place.split(":")
    *holders, function = name.split(".")
    code = f"""
import functools, os, signal, sys
import {module}
holder = functools.reduce(getattr, {holders!r}, sys.modules[{module!r}])
real, calls = getattr(holder, {function!r}), []
def dying(*given, **named):
    calls.append(None)
    found = None if {before} and len(calls) == {number} else real(*given, **named)
    if len(calls) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
setattr(holder, {function!r}, dying)
from dkgp.cli import main
main(sys.argv[1:])
"""
    program, environment = process
    ended = subprocess.run(
        [program[0], "-c", code, *map(str, command)], env=environment, capture_output=True, timeout=120, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(SMALL, id="fixed-size"),
        pytest.param(("--method", "exact"), id="exact"),
        *(pytest.param(METHODS[name], id=name, marks=pytest.mark.slow) for name in ("logistic", "gp", "gp on a basis")),
    ],
)
@pytest.mark.parametrize(
    "other",
    [
        ("local", "--workers", 3),
        pytest.param(("processes", "--workers", 2), marks=pytest.mark.slow),
        pytest.param(("local", "--workers", 5), marks=pytest.mark.slow),
    ],
)
def test_any_workers_come_to_the_same_bits(
    labelled: Labelled,
    run: Command,
    document: Command,
    out: Path,
    method: tuple[object, ...],
    other: tuple[object, ...],
) -> None:
    ingested, predictions = labelled(3), []
    clusters: tuple[tuple[object, ...], ...] = (("none",), other)
    models = [out.parent / f"{cluster[0]}.zarr" for cluster in clusters]
    # Averages take latent variances, whose bits are those of one plan: what workers share would make the batches.
    plan = ("--variance", "--variance-batch", 40) if method == METHODS["gp"] else ()
    for model, cluster in zip(models, clusters, strict=True):
        document(run(*classify(ingested, model, *method, "--cluster", *cluster)))
        pred = Path(f"{model}.pred")
        document(run("predict", model, ingested["test"], "--out", pred, *plan, "--json", "--cluster", *cluster))
        predictions.append(open_prediction(str(pred)))
    same_model(open_classifier(models[1]), open_classifier(models[0]))
    first, second = predictions
    assert first.variables == second.variables
    for name in first.variables:
        assert first.read(name).tobytes() == second.read(name).tobytes(), name


@pytest.mark.faults
@pytest.mark.parametrize("number", [1, 3, 9])
def test_killed_within_a_pass_it_resumes_to_the_same_bits(
    labelled: Labelled, process: Process, run: Command, document: Command, out: Path, number: int
) -> None:
    whole, log = out.parent / "whole.zarr", out.parent / "log.jsonl"
    expected = document(run(*classify(labelled(3), whole, *LONG)))
    assert expected["passes"] >= 9
    command = classify(labelled(3), out, *LONG, "--log-json", log)
    killed_in_pass(process, number, command)
    assert not out.exists()
    result = run(*command, "--resume")
    found = document(result)
    said = "there is no checkpoint" if number == 1 else "resuming after round"
    assert said in result.stderr
    assert found["passes"] == expected["passes"]
    same_model(open_classifier(out), open_classifier(whole))
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["score"] for record in records] == [record["score"] for record in open_classifier(whole).history]
    assert not Path(f"{out}.checkpoint").exists()


@pytest.mark.faults
@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_killed_when_a_checkpoint_was_saved_it_resumes_to_the_same_bits(
    labelled: Labelled,
    process: Process,
    run: Command,
    document: Command,
    out: Path,
    method: tuple[object, ...],
    number: int,
) -> None:
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(3), whole, *method)))
    command = classify(labelled(3), out, *method, "--checkpoint-every", 0)
    killed_after(process, "dkgp.data.stores.checkpoint:CheckpointStore.save", number, command)
    result = run(*command, "--resume")
    document(result)
    assert "resuming after round" in result.stderr
    same_model(open_classifier(out), open_classifier(whole))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("place", "method"),
    [
        ("dkgp.models.classification.fixed_size.train:fit_fixed_size", SMALL),
        ("dkgp.data.stores.classifier.classifier_store:create_array", SMALL),
        ("dkgp.data.stores.classifier.classifier_store:commit", SMALL),
        ("dkgp.commands.classify.run:_conclude", SMALL),
        ("dkgp.data.stores.classifier.classifier_store:commit", EXACT),
        ("dkgp.commands.classify.run:_conclude", EXACT),
        ("dkgp.data.stores.classifier.classifier_store:commit", LOGISTIC),
        ("dkgp.commands.classify.run:_conclude", PROCESS),
        ("dkgp.models.classification.basis.train:minimise_on_basis", BASIS),
        ("dkgp.data.stores.classifier.classifier_store:create_array", BASIS),
        ("dkgp.commands.classify.run:_conclude", BASIS),
    ],
)
def test_killed_after_the_search_it_resumes_to_the_same_bits(
    labelled: Labelled,
    process: Process,
    run: Command,
    document: Command,
    out: Path,
    place: str,
    method: tuple[object, ...],
) -> None:
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(2), whole, *method)))
    killed_at(process, place, classify(labelled(2), out, *method, "--checkpoint-every", 0))
    result = run(*classify(labelled(2), out, *method, "--resume"))
    document(result)
    assert ("was complete" in result.stderr) == place.endswith("_conclude")
    assert not Path(f"{out}.checkpoint").exists()
    same_model(open_classifier(out), open_classifier(whole))


@pytest.mark.faults
def test_ctrl_c_names_the_checkpoint_and_resumes_to_the_same_bits(
    labelled: Labelled, process: Process, run: Command, document: Command, out: Path
) -> None:
    log = out.parent / "log.jsonl"
    program, environment = process
    command = [*program, *map(str, classify(labelled(2), out, *LONG, "--log-json", log))]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60.0
    while time.monotonic() < until and not (log.exists() and log.read_bytes().count(b"\n") >= 8):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert f"{out}.checkpoint. Go on with the same command and --resume" in stderr
    assert json.loads(stdout)["error"]["checkpoint"] == f"{out}.checkpoint"
    assert not out.exists()
    document(run(*classify(labelled(2), out, *LONG, "--resume")))
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(2), whole, *LONG)))
    same_model(open_classifier(out), open_classifier(whole))


@pytest.mark.faults
def test_a_checkpoint_of_another_run_is_refused_in_words(
    labelled: Labelled, process: Process, run: Command, out: Path
) -> None:
    killed_in_pass(process, 2, classify(labelled(2), out, *SMALL))
    result = run(*classify(labelled(2), out, *SMALL, "--class-weight", "balanced", "--resume"))
    assert result.exit_code == 3
    assert "belongs to another class weight" in " ".join(result.stderr.split())
    assert not out.exists()
