"""Labels on the command line: ingested, described, tuned on, and warned of where a regression would take them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import PredictionWriter, dataset_from_arrays, open_dataset, open_prediction
from tests.cli.invoke import document_of, refused, run, run_json

KERNEL = {"type": "rbf", "variance": 1.0, "gamma": [0.5, 0.3]}


@pytest.fixture
def table(tmp_path: Path, rng: np.random.Generator) -> Path:
    X = rng.normal(size=(120, 2))
    kind = np.where(X[:, 0] > 0.3, "rot, „dunkel“", np.where(X[:, 1] > 0, "blau", "grün"))
    lines = ["a,b,kind", *(f'{a!r},{b!r},"{name}"' for (a, b), name in zip(X.tolist(), kind, strict=True))]
    (tmp_path / "data.csv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "data.csv"


def test_ingested_and_described(table: Path, tmp_path: Path) -> None:
    train, test = tmp_path / "train.zarr", tmp_path / "test.zarr"
    command = ("ingest", table, train, "--labels", "kind", "--test-fraction", 0.25, "--test-out", test)
    ingested = run_json(*command)
    assert ingested["classes"] == ["blau", "grün", "rot, „dunkel“"]
    dataset = open_dataset(train)
    assert ingested["class_counts"] == list(dataset.class_counts or ())
    shown = run(*command, "--overwrite").stdout
    assert f"rot, „dunkel“ ({ingested['class_counts'][2]})" in shown
    described = run_json("info", test)
    assert list(described["classes"]) == ingested["classes"]
    assert sum(described["classes"].values()) == 30
    assert "grün: " in run("info", test).stdout
    plain = run_json("ingest", table, train, "--features", "a,b", "--overwrite")
    assert (plain["classes"], plain["class_counts"]) == (None, None)
    assert "classes" not in run_json("info", train)


def test_tuned_by_the_evidence_of_labels(table: Path, tmp_path: Path) -> None:
    train, hyper = tmp_path / "train.zarr", tmp_path / "hyper.json"
    run("ingest", table, train, "--labels", "kind")
    command = ("tune", train, "--out", hyper, "--likelihood", "logit", "--kernel", "rbf(isotropic=True)", "--folds", 3)
    found = run_json(*command, "--plot", tmp_path / "scales.png")
    assert (found["likelihood"], found["noise_variance"], found["objective"]) == ("logit", 1.0, "likelihood")
    assert found["scores"]["folds"]["error_rate"] < 0.3
    assert json.loads(hyper.read_text())["likelihood"] == "logit"
    assert "are done" in run(*command, "--resume").stderr
    shown = run(*command, "--overwrite").stdout
    for words in ("likelihood", "logit", "log evidence (Laplace)", "error rate", "log loss"):
        assert words in shown
    assert "found for the labels' likelihood 'logit'" in " ".join(
        run("train", train, "--hyper", hyper, "--out", tmp_path / "model.zarr").stderr.split()
    )
    for options, words in (
        (("--objective", "loo"), "is of regressions"),
        (("--refine",), "is of regressions"),
        (("--fix", "noise_variance=1"), "no hyperparameter is called 'noise_variance'"),
    ):
        refusal = run(*command, "--overwrite", *options)
        assert refusal.exit_code in (2, 3)
        assert words in " ".join(refusal.stderr.split())
    assert json.loads(hyper.read_text())["likelihood"] == "logit"


def test_regressions_say_that_a_label_is_one(table: Path, tmp_path: Path) -> None:
    train, hyper = tmp_path / "train.zarr", tmp_path / "hyper.json"
    run_json("ingest", table, train, "--labels", "kind")
    tuned = run("tune", train, "--out", hyper, "--subset", 60, "--json")
    assert document_of(tuned)["warnings"] == []
    assert "signs of its classes" in " ".join(tuned.stderr.split())
    trained = run_json("train", train, "--hyper", hyper, "--out", tmp_path / "model.zarr")
    (warning,) = [message for message in trained["warnings"] if "label" in message]
    assert "3 classes 'blau', 'grün', 'rot, „dunkel“'" in warning
    assert "dkgp classify" in warning
    sparse = ("sparse", train, "--hyper", hyper, "--out", tmp_path / "sparse.zarr", "--basis-size", 10, "--json")
    assert any("dkgp classify" in message for message in run_json(*sparse)["warnings"])


def test_weights_are_those_of_the_fit(tmp_path: Path, rng: np.random.Generator) -> None:
    """Against a dense solve of the LS-SVM's system with noise s2 / w of each sample, w of mean one."""
    X, w = rng.normal(size=(50, 2)), rng.uniform(0.2, 4.0, 50)
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=50) > 0, 1.0, -1.0)
    rows = zip(*X.T.tolist(), w.tolist(), y.tolist(), strict=True)
    (tmp_path / "d.csv").write_text("\n".join(["a,b,w,y", *(",".join(map(repr, row)) for row in rows)]))
    (tmp_path / "h.json").write_text(json.dumps({"kernel": KERNEL, "noise_variance": 0.3}))
    train, model, out = (tmp_path / name for name in ("train.zarr", "model.zarr", "pred.zarr"))
    described = run_json("ingest", tmp_path / "d.csv", train, "--labels", "y", "--weights", "w")
    assert described["features"] == ["a", "b"]
    assert run_json("info", train)["weights"] == "w"
    command = ("classify", train, "--out", model, "--method", "exact", "--hyper", tmp_path / "h.json", "--json")
    run_json(*command)
    run_json("predict", model, train, "--out", out)

    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    K = np.exp(-0.5 * (Z[:, :1] - Z[:, 0]) ** 2 - 0.3 * (Z[:, 1:] - Z[:, 1]) ** 2)
    system = np.block([[K + np.diag(0.3 * w.mean() / w), np.ones((50, 1))], [np.ones((1, 50)), np.zeros((1, 1))]])
    solution = np.linalg.solve(system, [*y, 0.0])
    expected = K @ solution[:50] + solution[50]
    np.testing.assert_allclose(open_prediction(out).read("decision")[:, 0], expected, atol=2e-3)
    plain = np.linalg.solve(system - np.diag([*(0.3 * w.mean() / w - 0.3), 0.0]), [*y, 0.0])
    assert np.abs(K @ plain[:50] + plain[50] - expected).max() > 0.05  # weights make a difference here


def test_predicted_classes_are_described(tmp_path: Path) -> None:
    variables = ("decision", "decision_error_bound", "probability", "class", "certified")
    writer = PredictionWriter.create(tmp_path / "p.zarr", 25, ["y"], variables, 10, classes=["no", "yes"])
    codes = np.arange(25) % 5 == 0
    half = np.full(25, 0.5)
    writer.write(
        0,
        decision=np.where(codes, 1.0, -1.0),
        decision_error_bound=half,
        probability=np.column_stack([half, half]),
        certified=codes,
        **{"class": codes},
    )
    writer.commit()
    described = run_json("info", tmp_path / "p.zarr")
    assert described["classes"] == {"no": 20, "yes": 5}
    assert described["certified_share"] == 0.2
    assert described["variables"] == list(variables)


KILLED = """
import os, signal, sys
from dkgp.data import ingest

def kill(progress):
    if progress.phase == "write":
        os.kill(os.getpid(), signal.SIGKILL)

ingest(sys.argv[1], sys.argv[2], labels="kind", test_fraction=0.2, test_out=sys.argv[3], progress=kill)
"""


@pytest.mark.faults
def test_killed_while_it_writes(table: Path, tmp_path: Path) -> None:
    stores = tmp_path / "train.zarr", tmp_path / "test.zarr"
    done = subprocess.run([sys.executable, "-c", KILLED, table, *stores], env={**os.environ, "DKGP_NO_WARM_UP": "1"})
    assert done.returncode == -signal.SIGKILL
    for store in stores:
        refused(run("info", store), "incomplete", "Write it again")
    command: tuple[Any, ...] = ("ingest", table, stores[0], "--labels", "kind", "--test-fraction", 0.2)
    again = run_json(*command, "--test-out", stores[1], "--overwrite")
    assert again["n_train"] + again["n_test"] == 120
    assert open_dataset(stores[1]).classes == open_dataset(stores[0]).classes


def test_a_store_that_is_there_survives_bad_labels(table: Path, tmp_path: Path) -> None:
    kept = dataset_from_arrays(tmp_path / "train.zarr", np.eye(3), np.arange(3.0))
    table.write_text(table.read_text(encoding="utf-8") + '\n0.5,0.5,""\n', encoding="utf-8")
    refused(
        run("ingest", table, tmp_path / "train.zarr", "--labels", "kind", "--overwrite"), "missing value", "line 122"
    )
    assert open_dataset(tmp_path / "train.zarr").fingerprint == kept.fingerprint
