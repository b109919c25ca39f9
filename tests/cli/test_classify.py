"""`dkgp classify` from the command line: from labels to an evaluation, refusals before any work, finished runs.

`dkgp classify --method logistic|gp`: trained, told, interrupted and resumed to the same bits; refusals in words.

`dkgp classify --method gp --basis-size M --neighbours K`, and what other commands make of its model.

A Gaussian process classifier from the command line: tuned, trained, predicted in proven intervals, evaluated.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import expit

from dkgp.cli import main
from dkgp.cli.job_commands import JOB_COMMANDS
from dkgp.cli.running import OUTPUT_NAMES
from dkgp.data import dataset_from_arrays, open_classifier, open_dataset, open_prediction
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from tests.cli.conftest import labelled_csv
from tests.cli.invoke import document_of, refused, run, run_json

Labelled = Callable[[int], dict[str, Any]]

SMALL = ("--pool", 40, "--folds", 4, "--cluster", "none")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "model.zarr"


def classify(ingested: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--json", *SMALL, *more]


def exact(ingested: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--json", "--cluster", "none", "--method", "exact", *more]


@pytest.mark.covering
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", ["fixed-size", "exact"])
def test_from_text_labels_to_an_evaluation(labelled: Labelled, out: Path, n_classes: int, method: str) -> None:
    ingested = labelled(n_classes)
    command = classify(ingested, out) if method == "fixed-size" else exact(ingested, out)
    trained = run_json(*command)
    assert trained["converged"]
    assert trained["classes"] == (["run", "sit"] if n_classes == 2 else ["run", "sit", "walk"])
    assert sum(trained["counts"]) == trained["n"] == ingested["n_train"]
    assert trained["probabilities"]
    assert trained["warnings"] == []
    pred = out.parent / "pred.zarr"
    predicted = run_json("predict", out, ingested["test"], "--out", pred, "--cluster", "none")
    assert sum(predicted["classes"]["counts"].values()) == predicted["n_samples"] == ingested["n_test"]
    found = run_json("evaluate", pred, ingested["test"])
    assert found["error_rate"] < 0.08 * n_classes

    # The store as anybody may read it.
    stored = xr.open_zarr(pred, consolidated=False)
    n, t = ingested["n_test"], 1 if n_classes == 2 else n_classes
    assert stored["probability"].dims == ("sample", "class_name")
    assert list(stored["class_name"].values) == trained["classes"]
    assert stored["class"].shape == (n,)
    np.testing.assert_allclose(stored["probability"].sum("class_name"), 1.0, rtol=1e-12)
    decisions = stored["decision"].values.reshape(n, t)
    codes = (decisions[:, 0] >= 0).astype(int) if t == 1 else decisions.argmax(axis=1)
    np.testing.assert_array_equal(stored["class"].values, codes)
    truth = open_dataset(ingested["test"]).all_labels()
    assert np.mean(codes != truth) == pytest.approx(found["error_rate"])
    assert ("certified" in stored) == ("decision_error_bound" in stored) == (method == "exact")
    if method == "exact":
        assert predicted["classes"]["certified"] == int(stored["certified"].sum()) == n


def test_the_defaults_of_a_fixed_size_one_say_what_they_found(labelled: Labelled, out: Path) -> None:
    plot, log = out.parent / "path.png", out.parent / "log.jsonl"
    result = run(*classify(labelled(2), out, "--plot", plot, "--log-json", log))
    found = document_of(result)
    record = open_classifier(out)
    assert record.form == "fixed-size"
    assert record.n_support == found["cardinality"] <= found["pool"] == 40
    assert [each["cardinality"] for each in found["path"]] == list(range(len(found["path"])))
    assert found["path"] == record.path
    # The prototypes are samples, by their numbers.
    assert record.indices is not None
    rows = open_dataset(labelled(2)["train"]).input_rows(record.indices)
    np.testing.assert_array_equal(record.prototypes, rows)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert max(each["iteration"] for each in records) == found["passes"] <= 20
    # Of noise variances with as good as the same score the largest is taken.
    best = records[-1]
    assert found["score"] in best["scores"]
    assert found["score"] == pytest.approx(best["score"], rel=0.01)
    assert found["memory_plan"]["pool"] == 40
    assert found["memory_plan"]["coordinator_bytes"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    stages = [line for line in result.stderr.splitlines() if line.startswith("pass ")]
    assert re.match(
        r"pass 1 of 4 at most: width 1, penalty \S+: error \d+\.\d\d% with 40 prototypes; \d+ s left", stages[0]
    )
    assert re.search(rf"error {100 * best['error']:.2f}% with \d+ prototypes", stages[-1])
    assert re.search(r"foreseen: 4 passes over [\d,]+ samples at most, about \d+ s of idle cores", result.stderr)
    assert "scale" not in result.stderr
    assert not Path(f"{out}.checkpoint").exists()
    shown = " ".join(run("info", out).stdout.split())
    assert f"fixed-size: {record.n_support} prototypes of 40 (k-centre)" in shown
    assert "run" in shown
    run_json("info", out)


def test_classes_that_weigh_more_are_found_more_often(labelled: Labelled, out: Path) -> None:
    ingested, counts = labelled(2), {}
    for weight in ("run=0.02", "run=50"):
        command = classify(
            ingested, out, "--class-weight", weight, "--search", "none", "--overwrite", "--no-probability"
        )
        run_json(*command)
        pred = out.parent / "pred.zarr"
        made = run("predict", out, ingested["test"], "--out", pred, "--cluster", "none", "--json", "--overwrite")
        assert "without calibration: no probabilities" in made.stderr
        counts[weight] = document_of(made)["classes"]["counts"]["run"]
        assert open_prediction(str(pred)).variables == ("decision", "class")
        assert re.search(r"error in cross-validation +\d+\.\d\d%, weighted", run("info", out).stdout)
        weights = open_classifier(out).class_weights
        assert weights is not None
        assert weights["run"] / weights["sit"] == pytest.approx(float(weight[4:]))
    assert counts["run=50"] > 1.2 * counts["run=0.02"]


def test_targets_that_are_no_labels_are_refused(rng: np.random.Generator, out: Path) -> None:
    X = rng.standard_normal((60, 2))
    for y, words in (
        (rng.standard_normal(60), "is a number such as"),
        (rng.standard_normal((60, 2)), "has 2 targets"),
        (None, "has no target; classification needs one column of labels"),
    ):
        train = out.parent / "train.zarr"
        dataset_from_arrays(train, X, y, overwrite=True)
        refused(run("classify", train, "--out", out, *SMALL), words)
        assert [path.name for path in out.parent.iterdir()] == ["train.zarr"]


def test_whole_numbers_are_labels_as_they_are(rng: np.random.Generator, out: Path) -> None:
    X = rng.standard_normal((200, 2))
    y = np.where(X[:, 0] + 0.1 * rng.standard_normal(200) > 0, 1.0, -1.0)
    train, pred = out.parent / "train.zarr", out.parent / "pred.zarr"
    dataset_from_arrays(train, X, y)
    found = run_json("classify", train, "--out", out, *SMALL)
    assert found["classes"] == ["-1", "1"]
    run_json("predict", out, train, "--out", pred, "--cluster", "none")
    assert run_json("evaluate", pred, train)["error_rate"] < 0.1


def test_a_rare_class_is_warned_of_unless_it_is_weighted(rng: np.random.Generator, out: Path) -> None:
    X = rng.standard_normal((300, 2))
    y = (X[:, 0] > 1.6).astype(float)
    dataset_from_arrays(out.parent / "train.zarr", X, y, classes=["common", "rare"])
    command = ("classify", out.parent / "train.zarr", "--out", out, "--json", "--overwrite", *SMALL)
    (warning,) = run_json(*command)["warnings"]
    assert f"the class 'rare' has {int(y.sum())} of 300 samples" in warning
    assert run_json(*command, "--class-weight", "balanced")["warnings"] == []


def test_a_label_that_the_model_does_not_know_is_named(labelled: Labelled, out: Path) -> None:
    run_json(*classify(labelled(2), out))
    other, pred = out.parent / "other.zarr", out.parent / "pred.zarr"
    run_json("ingest", labelled_csv(out.parent / "o.csv", ("sit", "fly"), 60, 0), other, "--labels", "species")
    run_json("predict", out, other, "--out", pred, "--cluster", "none")
    refused(run("evaluate", pred, other), "'fly'")


def test_a_kernel_that_is_given_is_kept(labelled: Labelled, out: Path) -> None:
    ingested, hyper = labelled(2), out.parent / "hyper.json"
    run_json("tune", ingested["train"], "--out", hyper, "--subset", 200)
    tuned = json.loads(hyper.read_text())
    found = run_json(*classify(ingested, out, "--hyper", hyper, "--given-noise", "--search", "none"))
    assert found["kernel"] == tuned["kernel"]
    assert found["noise_variance"] == tuned["noise_variance"]
    assert found["passes"] == 1
    free = run_json(*classify(ingested, out, "--hyper", hyper, "--search", "none", "--overwrite"))
    assert free["kernel"] == tuned["kernel"]
    assert free["score"] <= found["score"]


@pytest.mark.long
def test_an_exact_one_stops_short_and_goes_on(labelled: Labelled, out: Path) -> None:
    options = ("--solver", "cg", "--tol", 1e-6)
    short = run_json(*exact(labelled(2), out, *options, "--max-passes", 3), exit_code=4)
    assert not short["converged"]
    assert short["checkpoint"] == f"{out}.checkpoint"
    assert "not converged" in short["warnings"][0]
    result = run(*exact(labelled(2), out, *options, "--resume", "--by-reference"))
    done = document_of(result)
    assert "resuming after round 3" in result.stderr
    assert done["converged"]
    assert max(done["decision_error"]) < 1e-5
    record = open_classifier(out)
    assert record.by_reference
    assert record.reference == labelled(2)["train"]
    whole = out.parent / "whole.zarr"
    run_json(*exact(labelled(2), whole, *options))
    expected = open_classifier(whole)
    for name in ("alpha", "ones", "intercept"):
        assert getattr(record, name).tobytes() == getattr(expected, name).tobytes()


@pytest.mark.long
@pytest.mark.parametrize("solver", ["gbcd", "bcdc", "pcg", "kcg", "smo", "cholesky", "tiled-cholesky"])
def test_any_solver_takes_the_columns_of_labels_and_of_ones(labelled: Labelled, out: Path, solver: str) -> None:
    found = run_json(*exact(labelled(2), out, "--solver", solver, "--tol", 1e-2, "--no-probability"))
    assert found["converged"]
    assert found["solver"] == solver
    assert max(found["decision_error"]) < 1e-2


def test_a_refusal_leaves_an_earlier_runs_checkpoint_alone(labelled: Labelled, out: Path) -> None:
    options = ("--solver", "cg", "--tol", 1e-6, "--no-probability")
    run_json(*exact(labelled(2), out, *options, "--max-passes", 3), exit_code=4)
    before = {path: path.read_bytes() for path in Path(f"{out}.checkpoint").rglob("*") if path.is_file()}
    assert before
    for command in (exact(labelled(2), out, *options), classify(labelled(2), out)):
        refused(run(*command, "--overwrite", "--memory-limit", "1MiB"), "is projected to need")
        assert {path: path.read_bytes() for path in Path(f"{out}.checkpoint").rglob("*") if path.is_file()} == before


def test_a_batch_script_gives_every_option_again(labelled: Labelled, out: Path) -> None:
    options = ("--stop", "none", "--noise-variances", "0.1,1", "--no-probability", "--class-weight", "run=2")
    options += ("--class-weight", "sit=3", "--max-basis", "7", "--by-reference", "--overwrite")
    script = out.parent / "job.sh"
    train = labelled(2)["train"]
    run("submit", "--slurm", "--write-only", script, "classify", train, "--out", out, *options)
    (line,) = re.findall(r"-m dkgp classify (.*)\)$", script.read_text(), flags=re.MULTILINE)
    with main.commands["classify"].make_context("classify", shlex.split(line)) as context:
        found = dict(context.params)
    for name in OUTPUT_NAMES:
        found.pop(name)
    job = JOB_COMMANDS["classify"].job(found)
    assert job.settings == FixedSizeSettings(stop=None, noise_variances=(0.1, 1.0), probability=False, max_basis=7)
    assert job.weights_by_class == {"run": 2.0, "sit": 3.0}
    assert job.by_reference
    assert job.overwrite


BASIS = ("--basis-size", 40)
FORMS = {
    "logistic-basis": ("--method", "logistic", *BASIS),
    "gp-basis": ("--method", "gp", *BASIS),
    "logistic": ("--method", "logistic"),
    "gp": ("--method", "gp"),
}


def classify_by(ingested: dict[str, Any], out: Path, *more: object) -> list[object]:
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
    found = run_json(*classify_by(labelled(3), out, *FORMS[form], *options, "--hyper", wide))
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
    result = run(*classify_by(labelled(2), out, *FORMS["logistic-basis"]))
    assert "by the evidence of a subset's labels (logit)" in result.stderr
    assert document_of(result)["warnings"] == []
    hyper = out.parent / "signs.json"
    run_json("tune", labelled(2)["train"], "--out", hyper, "--subset", 150)
    given = classify_by(labelled(2), out, *FORMS["logistic-basis"], "--hyper", hyper, "--overwrite")
    (warning,) = run_json(*given)["warnings"]
    assert "were found for a regression on signs" in warning


@pytest.mark.slow
def test_lambda_weighs_the_penalty(labelled: Labelled, wide: Path, out: Path) -> None:
    sizes = []
    for penalty in (0.1, 10.0):
        command = classify_by(labelled(2), out, *FORMS["logistic-basis"], "--hyper", wide, "--overwrite")
        assert run_json(*command, "--regularisation", penalty)["regularisation"] == penalty
        sizes.append(np.abs(open_classifier(out).coefficients).sum())
    assert sizes[0] > 2.0 * sizes[1]


NEAR = ("--method", "gp", "--basis-size", 8, "--neighbours", 60)


def classify_near(ingested: dict[str, Any], out: Path, wide: Path, *more: object) -> list[object]:
    return ["classify", ingested["train"], "--out", out, "--cluster", "none", "--hyper", wide, *more]


def test_a_model_predicts_is_evaluated_and_told_of(labelled: Labelled, wide: Path, tmp_path: Path) -> None:
    train, test, model = labelled(2)["train"], labelled(2)["test"], tmp_path / "near"
    found = run_json(*classify_near(labelled(2), model, wide, *NEAR, "--search-samples", 5000))
    assert (found["method"], found["neighbours"], found["basis_size"]) == ("gp", 60, 8)
    assert found["converged"]
    assert found["neighbours_unproven"] == 0.0
    assert np.isfinite(found["evidence"])
    assert found["certificate"] == {}
    record = open_classifier(model)
    assert (record.neighbours, record.search_samples) == (60, 5000)
    shown = " ".join(run(*classify_near(labelled(2), model, wide, *NEAR, "--overwrite")).stdout.split())
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
        run_json(*classify_near(labelled(2), tmp_path / name, wide, *options))
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
    command = (*classify_near(labelled(2), tmp_path / "model", wide, *NEAR), "--search-samples", 65)
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
    first = run_json(*classify_near(labelled(3), model, wide, *NEAR))
    assert run_json(*classify_near(labelled(3), model, wide, *NEAR, "--resume"))["evidence"] == first["evidence"]
    for option, value, words in (
        ("--neighbours", 30, "neighbours (its neighbours: 60; this run's: 30)"),
        ("--search-samples", 99, "search samples (its search samples: None; this run's: 99)"),
    ):
        refused(run(*classify_near(labelled(3), model, wide, *NEAR, option, value, "--resume")), words)


def test_tuned_trained_predicted_and_evaluated(labelled: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    stores, hyper, model, out = labelled(3), tmp_path / "h.json", tmp_path / "m.zarr", tmp_path / "p.zarr"
    here = ("--cluster", "none")
    run_json(
        "tune",
        stores["train"],
        "--out",
        hyper,
        "--likelihood",
        "logit",
        "--subset",
        40,
        "--kernel",
        "rbf(isotropic=True)",
        *here,
    )
    trained = run(
        "classify",
        stores["train"],
        "--out",
        model,
        "--method",
        "gp",
        "--solver",
        "newton",
        "--hyper",
        hyper,
        "--json",
        *here,
    )
    assert document_of(trained)["warnings"] == []
    narrow = ("--variance", "--variance-gap", 1e-14, "--max-passes", 0, "--variance-rank", 5)
    told = run("predict", model, stores["test"], "--out", out, *narrow, *here)
    assert "latent variances have wider intervals than the relative gap" in " ".join(told.stderr.split())
    assert "latent variances" in told.stdout
    figures = run_json("predict", model, stores["test"], "--out", out, "--overwrite", *here)
    assert figures["warnings"] == []
    assert figures["classes"]["latent_variance"]["unmet"] == 0
    stored = open_prediction(str(out))
    lower, probability, upper = (stored.read(f"probability{end}") for end in ("_lower", "", "_upper"))
    assert ((lower <= probability) & (probability <= upper)).all()
    np.testing.assert_array_equal(stored.labels(), probability.argmax(axis=1))
    scores = run_json("evaluate", out, stores["test"])
    assert scores["log_loss"] < np.log(3.0)
