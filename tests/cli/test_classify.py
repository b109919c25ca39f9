"""`dkgp classify` by every method, from labels to predictions in proven intervals, and to an evaluation."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.special import expit
from sklearn.metrics import confusion_matrix

from dkgp.cli import main
from dkgp.cli.job_commands import JOB_COMMANDS
from dkgp.cli.running import OUTPUT_NAMES
from dkgp.data import PredictionWriter, dataset_from_arrays, open_classifier, open_dataset, open_prediction
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.metrics import area_under_curve
from tests.cli.conftest import labelled_csv
from tests.cli.invoke import Places, Shell, document_of, refused, run, run_json
from tests.problem import write_hyper

KERNEL = SquaredExponential((0.3, 0.1, 0.01), 20.0)
FIXED = "--pool 40 --folds 4 --cluster none --out @m"
EXACT = "--method exact --cluster none --out @m"
ON_A_BASIS = "--method logistic --basis-size 40 --cluster none --out @m"
NEAR = "--method gp --basis-size 8 --neighbours 60 --hyper @wide --cluster none"


def numbers(shell: Shell, X: np.ndarray, y: np.ndarray | None, **more: object) -> None:
    dataset_from_arrays(shell["d"], X, y, overwrite=True, **more)


# ------------------------------------------------------------------------------------------------------- least squares


@pytest.mark.covering
@pytest.mark.parametrize(
    ("data", "test", "classes"), [("two", "labels", "run sit"), ("three", "labels_of_three", "run sit walk")]
)
@pytest.mark.parametrize("method", ["fixed-size", "exact"])
def test_from_text_labels_to_an_evaluation(shell: Shell, data: str, test: str, classes: str, method: str) -> None:
    trained = shell.json(f"classify @{data} {FIXED if method == 'fixed-size' else EXACT}")
    assert trained["converged"]
    assert trained["classes"] == classes.split()
    assert sum(trained["counts"]) == trained["n"] == open_dataset(shell[data]).n_samples
    assert trained["probabilities"]
    assert trained["warnings"] == []
    predicted = shell.json(f"predict @m @{test} --out @p --cluster none")
    n, t = predicted["n_samples"], 1 if data == "two" else 3
    assert sum(predicted["classes"]["counts"].values()) == n == open_dataset(shell[test]).n_samples
    found = shell.json(f"evaluate @p @{test}")
    assert found["error_rate"] < 0.08 * len(trained["classes"])
    # The store as anybody may read it.
    stored = xr.open_zarr(shell["p"], consolidated=False)
    assert stored["probability"].dims == ("sample", "class_name")
    assert list(stored["class_name"].values) == trained["classes"]
    assert stored["class"].shape == (n,)
    np.testing.assert_allclose(stored["probability"].sum("class_name"), 1.0, rtol=1e-12)
    decisions = stored["decision"].values.reshape(n, t)
    codes = (decisions[:, 0] >= 0).astype(int) if t == 1 else decisions.argmax(axis=1)
    np.testing.assert_array_equal(stored["class"].values, codes)
    truth = open_dataset(shell[test]).all_labels()
    assert np.mean(codes != truth) == pytest.approx(found["error_rate"])
    assert ("certified" in stored) == ("decision_error_bound" in stored) == (method == "exact")
    if method == "exact":
        assert predicted["classes"]["certified"] == int(stored["certified"].sum()) == n


def test_the_defaults_of_a_fixed_size_one_say_what_they_found(shell: Shell) -> None:
    result = shell.run(f"classify @two {FIXED} --plot @path.png --log-json @log.jsonl --json")
    found, record = document_of(result), open_classifier(shell["m"])
    assert record.form == "fixed-size"
    assert record.n_support == found["cardinality"] <= found["pool"] == 40
    assert [each["cardinality"] for each in found["path"]] == list(range(len(found["path"])))
    assert found["path"] == record.path
    # The prototypes are samples, by their numbers.
    assert record.indices is not None
    np.testing.assert_array_equal(record.prototypes, open_dataset(shell["two"]).input_rows(record.indices))
    records = [json.loads(line) for line in shell["log.jsonl"].read_text().splitlines()]
    assert max(each["iteration"] for each in records) == found["passes"] <= 20
    # Of noise variances with as good as the same score the largest is taken.
    best = records[-1]
    assert found["score"] in best["scores"]
    assert found["score"] == pytest.approx(best["score"], rel=0.01)
    assert found["memory_plan"]["pool"] == 40
    assert found["memory_plan"]["coordinator_bytes"] > 0
    assert shell["path.png"].read_bytes().startswith(b"\x89PNG")
    stages = [line for line in result.stderr.splitlines() if line.startswith("pass ")]
    first = (
        r"pass 1 of at most 4: error \d+\.\d\d%, balanced error \d+\.\d\d% with 40 prototypes, "
        r"length scales 1 times the initial ones and noise variance \S+; "
    )
    assert re.match(first + r"at most \d+ s left", stages[0])
    assert re.search(rf"error {100 * best['error']:.2f}%, balanced error \S+% with \d+ prototypes", stages[-1])
    assert re.search(r"forecast: about \d+ s on idle cores, at most 4 passes over [\d,]+ samples", result.stderr)
    assert shell.names == {"m", "path.png", "log.jsonl"}
    shown = shell.told("info @m")
    assert f"fixed-size: {record.n_support} prototypes of 40 (k-centre)" in shown
    assert "run" in shown
    shell.json("info @m")


def test_classes_that_weigh_more_are_found_more_often(shell: Shell) -> None:
    counts = {}
    for weight in (0.02, 50.0):
        line = f"classify @two {FIXED} --class-weight run={weight:g} --search none --overwrite --no-probability"
        shell.json(line)
        made = shell.run("predict @m @labels --out @p --cluster none --json --overwrite")
        assert "without calibration: no probabilities" in made.stderr
        counts[weight] = document_of(made)["classes"]["counts"]["run"]
        assert open_prediction(shell["p"]).variables == ("decision", "class")
        assert re.search(r"error in cross-validation +\d+\.\d\d%, weighted", shell.run("info @m").stdout)
        weights = open_classifier(shell["m"]).class_weights
        assert weights["run"] / weights["sit"] == pytest.approx(weight)
    assert counts[50.0] > 1.2 * counts[0.02]


def test_numbers_are_labels_where_they_are_whole(rng: np.random.Generator, shell: Shell) -> None:
    X = rng.standard_normal((200, 2))
    for y, words in (
        (rng.standard_normal(200), "is a number such as"),
        (rng.standard_normal((200, 2)), "has 2 targets"),
        (None, "has no target; classification needs one column of labels"),
    ):
        numbers(shell, X, y)
        shell.refuses(f"classify @d {FIXED}", words)
        assert shell.names == {"d"}
    numbers(shell, X, np.where(X[:, 0] + 0.1 * rng.standard_normal(200) > 0, 1.0, -1.0))
    assert shell.json(f"classify @d {FIXED}")["classes"] == ["-1", "1"]
    shell.json("predict @m @d --out @p --cluster none")
    assert shell.json("evaluate @p @d")["error_rate"] < 0.1


def test_a_rare_class_is_warned_of_unless_it_is_weighted(rng: np.random.Generator, shell: Shell) -> None:
    X = rng.standard_normal((300, 2))
    y = (X[:, 0] > 1.6).astype(float)
    numbers(shell, X, y, classes=["common", "rare"])
    (warning,) = shell.json(f"classify @d {FIXED}")["warnings"]
    assert f"the class 'rare' has {int(y.sum())} of 300 samples" in warning
    assert shell.json(f"classify @d {FIXED} --overwrite --class-weight balanced")["warnings"] == []


def test_a_label_that_the_model_does_not_know_is_named(shell: Shell) -> None:
    labelled_csv(shell["o.csv"], ("sit", "fly"), 60, 0)
    shell.json("ingest @o.csv @o --labels species")
    shell.json("predict @few @o --out @p --cluster none")
    shell.refuses("evaluate @p @o", "'fly'")


def test_a_kernel_that_is_given_is_kept(shell: Shell) -> None:
    shell.json("tune @two --out @h.json --subset 200")
    tuned = json.loads(shell["h.json"].read_text())
    found = shell.json(f"classify @two {FIXED} --hyper @h.json --given-noise --search none")
    assert (found["kernel"], found["noise_variance"], found["passes"]) == (tuned["kernel"], tuned["noise_variance"], 1)
    free = shell.json(f"classify @two {FIXED} --hyper @h.json --search none --overwrite")
    assert free["kernel"] == tuned["kernel"]
    assert free["score"] <= found["score"]


@pytest.mark.long
def test_an_exact_one_stops_short_and_goes_on(shell: Shell) -> None:
    line = f"classify @two {EXACT} --solver cg --tol 1e-6"
    short = shell.json(f"{line} --max-passes 3", code=4)
    assert not short["converged"]
    assert short["checkpoint"] == f"{shell['m']}.checkpoint"
    assert "not converged" in short["warnings"][0]
    result = shell.run(f"{line} --resume --by-reference --json")
    done = document_of(result)
    assert "resuming after round 3" in result.stderr
    assert done["converged"]
    assert max(done["decision_error"]) < 1e-5
    shell.json(line.replace("@m", "@whole"))
    record, expected = open_classifier(shell["m"]), open_classifier(shell["whole"])
    assert record.by_reference
    assert record.reference == str(shell["two"])
    for name in ("alpha", "ones", "intercept"):
        assert getattr(record, name).tobytes() == getattr(expected, name).tobytes()


@pytest.mark.long
@pytest.mark.parametrize("solver", ["gbcd", "bcdc", "pcg", "kcg", "smo", "cholesky", "tiled-cholesky"])
def test_any_solver_takes_the_columns_of_labels_and_of_ones(shell: Shell, solver: str) -> None:
    found = shell.json(f"classify @two {EXACT} --solver {solver} --tol 1e-2 --no-probability")
    assert (found["converged"], found["solver"]) == (True, solver)
    assert max(found["decision_error"]) < 1e-2


def test_a_refusal_leaves_an_earlier_runs_checkpoint_alone(shell: Shell) -> None:
    line = f"classify @two {EXACT} --solver cg --tol 1e-6 --no-probability"
    shell.json(f"{line} --max-passes 3", code=4)

    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in shell["m.checkpoint"].rglob("*") if path.is_file()}

    before = kept()
    assert before
    for command in (line, f"classify @two {FIXED}"):
        shell.refuses(f"{command} --overwrite --memory-limit 1MiB", "is projected to need")
        assert kept() == before


def test_a_batch_script_gives_every_option_again(shell: Shell) -> None:
    options = "--stop none --noise-variances 0.1,1 --no-probability --class-weight run=2 --class-weight sit=3"
    options += " --max-basis 7 --by-reference --overwrite"
    shell.run(f"submit --slurm --write-only @job.sh classify @two --out @m {options}")
    (line,) = re.findall(r"-m dkgp classify (.*)\)$", shell["job.sh"].read_text(), flags=re.MULTILINE)
    with main.commands["classify"].make_context("classify", shlex.split(line)) as context:
        found = {name: value for name, value in context.params.items() if name not in OUTPUT_NAMES}
    job = JOB_COMMANDS["classify"].job(found)
    assert job.settings == FixedSizeSettings(stop=None, noise_variances=(0.1, 1.0), probability=False, max_basis=7)
    assert job.weights_by_class == {"run": 2.0, "sit": 3.0}
    assert job.by_reference
    assert job.overwrite


# --------------------------------------------------------------------------------------------------------- likelihoods


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ON_A_BASIS, "softmax"),
        (ON_A_BASIS.replace("logistic", "gp"), "logit"),
        (f"{ON_A_BASIS} --multi-class ovr --link probit", "probit"),
        (f"{ON_A_BASIS} --link probit", "probit"),
    ],
)
def test_the_likelihood_is_the_one_that_was_asked_for(shell: Shell, options: str, name: str) -> None:
    found = shell.json(f"classify @three {options} --hyper @wide")
    assert found["likelihood"] == open_classifier(shell["m"]).likelihood == {"name": name, "n_classes": 3}
    assert found["converged"]
    assert found["probabilities"]
    shown = shell.told("info @m")
    several = "" if name == "softmax" else ", each class against the rest"
    assert f"probabilities {name}{several}" in shown
    assert "noise variance" not in shown


@pytest.mark.slow
def test_without_hyperparameters_they_come_from_the_labels_evidence(shell: Shell) -> None:
    result = shell.run(f"classify @two {ON_A_BASIS} --json")
    assert "labels (logit link, Laplace's approximation)" in result.stderr
    assert document_of(result)["warnings"] == []
    shell.json("tune @two --out @signs.json --subset 150")
    (warning,) = shell.json(f"classify @two {ON_A_BASIS} --hyper @signs.json --overwrite")["warnings"]
    assert "were found for a regression on signs" in warning


@pytest.mark.slow
def test_lambda_weighs_the_penalty(shell: Shell) -> None:
    sizes = []
    for penalty in (0.1, 10.0):
        line = f"classify @two {ON_A_BASIS} --hyper @wide --overwrite --regularisation {penalty}"
        assert shell.json(line)["regularisation"] == penalty
        sizes.append(np.abs(open_classifier(shell["m"]).coefficients).sum())
    assert sizes[0] > 2.0 * sizes[1]


def test_with_neighbours_a_model_predicts_is_evaluated_and_told_of(shell: Shell) -> None:
    found = shell.json(f"classify @two {NEAR} --search-samples 5000 --out @near.m")
    assert (found["method"], found["neighbours"], found["basis_size"]) == ("gp", 60, 8)
    assert found["converged"]
    assert found["neighbours_unproven"] == 0.0
    assert np.isfinite(found["evidence"])
    assert found["certificate"] == {}
    record = open_classifier(shell["near.m"])
    assert (record.neighbours, record.search_samples) == (60, 5000)
    shown = shell.told(f"classify @two {NEAR} --overwrite --out @near.m")
    assert "a basis of 8 samples (pivoted) and 60 nearest samples" in shown
    assert "nats, in Laplace's approximation" in shown
    told = shell.json("info @near.m")
    assert (told["method"], told["basis_size"], told["neighbours"]) == ("gp", 8, 60)
    info = shell.told("info @near.m")
    assert "8 samples (pivoted) and 60 nearest samples" in info
    assert "probabilities logit" in info
    # Nearer to the model of all samples than the basis alone is.
    shell.json("classify @two --method gp --hyper @wide --cluster none --out @gp.m")
    shell.json("classify @two --method gp --basis-size 8 --hyper @wide --cluster none --out @alone.m")
    for name in ("near", "gp", "alone"):
        shell.json(f"predict @{name}.m @labels --out @{name}.p --cluster none")
    near, gp, alone = (open_prediction(shell[f"{name}.p"]).read("decision")[:, 0] for name in ("near", "gp", "alone"))
    assert np.sqrt(np.mean((near - gp) ** 2)) < 0.5 * np.sqrt(np.mean((alone - gp) ** 2))
    stored = open_prediction(shell["near.p"])
    assert "decision_error_bound" not in stored.variables
    assert (stored.read("latent_variance_upper") > 0.0).all()
    shell.json("predict @near.m @labels --out @plugged --cluster none --plug-in")
    plugged = open_prediction(shell["plugged"])
    np.testing.assert_array_equal(plugged.read("decision")[:, 0], near)
    np.testing.assert_allclose(plugged.read("probability")[:, 1], expit(near), rtol=1e-12)
    assert (np.abs(stored.read("probability") - 0.5) <= np.abs(plugged.read("probability") - 0.5)).all()
    assert 0.0 < shell.json("evaluate @near.p @labels")["log_loss"] < 0.6


def test_a_search_for_neighbours_that_was_limited_is_told_of(shell: Shell) -> None:
    found = shell.json(f"classify @two {NEAR} --search-samples 65 --out @m")
    assert 0.02 < found["neighbours_unproven"] <= 1.0
    assert 0.0 < found["left"] < 0.9
    share, shown = 100.0 * found["neighbours_unproven"], shell.told("info @m")
    assert f"samples whose neighbours may not be the nearest {share:.3g} % (each search looked at 65 samples)" in shown
    assert f"residual share of k(x, x) {found['left']:.2g} on average" in shown
    predicted = shell.told("predict @m @labels --out @p --cluster none")
    assert "each search looked at 65 samples at most, and is exact with more" in predicted


def test_what_is_finished_is_known_and_other_neighbours_are_another_run(shell: Shell) -> None:
    line = f"classify @three {NEAR} --out @m"
    first = shell.json(line)
    assert shell.json(f"{line} --resume")["evidence"] == first["evidence"]
    for option, words in (
        ("--neighbours 30", "neighbours (its neighbours: 60; this run's: 30)"),
        ("--search-samples 99", "search samples (its search samples: None; this run's: 99)"),
    ):
        shell.refuses(f"{line} {option} --resume", words)


def test_tuned_trained_predicted_and_evaluated(shell: Shell) -> None:
    shell.json("tune @three --out @h --likelihood logit --subset 40 --kernel 'rbf(isotropic=True)' --cluster none")
    trained = shell.json("classify @three --out @m --method gp --solver newton --hyper @h --cluster none")
    assert trained["warnings"] == []
    line = "predict @m @labels_of_three --out @p --cluster none"
    told = shell.told(f"{line} --variance --variance-gap 1e-14 --max-passes 0 --variance-rank 5")
    assert "latent variances are wider than the requested relative gap" in told
    figures = shell.json(f"{line} --overwrite")
    assert figures["warnings"] == []
    assert figures["classes"]["latent_variance"]["unmet"] == 0
    stored = open_prediction(shell["p"])
    lower, probability, upper = (stored.read(f"probability{end}") for end in ("_lower", "", "_upper"))
    assert ((lower <= probability) & (probability <= upper)).all()
    np.testing.assert_array_equal(stored.labels(), probability.argmax(axis=1))
    assert shell.json("evaluate @p @labels_of_three")["log_loss"] < np.log(3.0)


# ------------------------------------------------------------------------------------------------------- probabilities


@pytest.fixture(scope="module")
def exact_decisions(stores: Places) -> np.ndarray:
    """Decisions of the exact_decisions minimiser at the test samples, by Newton's method on dense matrices."""
    train, test = (open_dataset(stores[name]) for name in ("two", "labels"))
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


@pytest.mark.spread(1)
@pytest.mark.parametrize("options", ["", "--product-error 1e-2"], ids=["every entry", "within a bound"])
def test_the_exact_probability_lies_in_its_interval(shell: Shell, exact_decisions: np.ndarray, options: str) -> None:
    found = shell.json(f"predict @logistic @labels --out @p --cluster none {options}")
    stored = open_prediction(shell["p"])
    away = np.abs(stored.read("decision")[:, 0] - exact_decisions)
    assert (away <= stored.read("decision_error_bound")[:, 0]).all()
    assert away.max() > 1e-9
    p = np.column_stack([expit(-exact_decisions), expit(exact_decisions)])
    lower, given, upper = (stored.read(f"probability{end}") for end in ("_lower", "", "_upper"))
    assert ((lower <= p) & (p <= upper)).all()
    assert ((lower <= given) & (given <= upper)).all()
    # What is certified is the exact minimiser's label.
    certified, labels = stored.certified(0, stored.n_samples), stored.labels(0, stored.n_samples)
    assert (labels[certified] == (exact_decisions > 0)[certified]).all()
    assert found["classes"]["certified"] == certified.sum()
    width = (upper - lower)[np.arange(len(labels)), labels]
    assert found["classes"]["interval_width_mean"] == pytest.approx(width.mean())
    assert found["classes"]["interval_width_max"] == pytest.approx(width.max())
    assert shell.json("evaluate @p @labels")["interval_width_mean"] == pytest.approx(width.mean())
    assert "probabilities certified within intervals" in shell.told("evaluate @p @labels")


def test_those_of_a_gaussian_process_are_averaged_unless_they_are_plugged_in(shell: Shell) -> None:
    shell.json("predict @basis @labels --out @averaged --cluster none")
    shell.json("predict @basis @labels --out @plugged --cluster none --plug-in")
    stores = [open_prediction(shell[name]) for name in ("averaged", "plugged")]
    assert ["latent_variance_upper" in store.variables for store in stores] == [True, False]
    averaged, plugged = (store.read("probability")[:, 1] for store in stores)
    np.testing.assert_allclose(plugged, expit(stores[1].read("decision")[:, 0]), rtol=1e-12)
    # Averaging draws towards one half, and turns no label round.
    assert (np.abs(averaged - 0.5) <= np.abs(plugged - 0.5) + 1e-12).all()
    assert np.abs(averaged - plugged).max() > 0.01
    shell.refuses("predict @basis @labels --out @averaged --cluster none --plug-in --resume")


@pytest.mark.slow
def test_softmax_ranks_by_probabilities(shell: Shell) -> None:
    shell.json("classify @three --out @m --method logistic --basis-size 30 --cluster none")
    shell.json("predict @m @labels_of_three --out @p --cluster none")
    truth = open_dataset(shell["labels_of_three"]).all_labels()
    probability = open_prediction(shell["p"]).read("probability")
    areas = [area_under_curve(probability[:, each], truth == each) for each in range(3)]
    assert shell.json("evaluate @p @labels_of_three")["auc"] == pytest.approx(np.mean(areas))


# -------------------------------------------------------------------------------------------------------------- labels


@pytest.fixture
def table(shell: Shell, rng: np.random.Generator) -> Path:
    """Labels with commas and quotation marks, in `@t.csv`, ingested as `@t`."""
    X = rng.normal(size=(120, 2))
    kind = np.where(X[:, 0] > 0.3, "rot, „dunkel“", np.where(X[:, 1] > 0, "blau", "grün"))
    lines = ["a,b,kind", *(f'{a!r},{b!r},"{name}"' for (a, b), name in zip(X.tolist(), kind, strict=True))]
    shell["t.csv"].write_text("\n".join(lines), encoding="utf-8")
    shell.json("ingest @t.csv @t --labels kind")
    return shell["t.csv"]


@pytest.mark.usefixtures("table")
def test_ingested_and_described(shell: Shell) -> None:
    line = "ingest @t.csv @d --labels kind --test-fraction 0.25 --test-out @rest"
    ingested = shell.json(line)
    assert ingested["classes"] == ["blau", "grün", "rot, „dunkel“"]
    assert ingested["class_counts"] == list(open_dataset(shell["d"]).class_counts or ())
    assert f"rot, „dunkel“ ({ingested['class_counts'][2]})" in shell.run(f"{line} --overwrite").stdout
    described = shell.json("info @rest")
    assert list(described["classes"]) == ingested["classes"]
    assert sum(described["classes"].values()) == 30
    assert "grün: " in shell.run("info @rest").stdout
    plain = shell.json("ingest @t.csv @d --features a,b --overwrite")
    assert (plain["classes"], plain["class_counts"]) == (None, None)
    assert "classes" not in shell.json("info @d")


@pytest.mark.usefixtures("table")
def test_tuned_by_the_evidence_of_labels(shell: Shell) -> None:
    line = "tune @t --out @h.json --likelihood logit --kernel 'rbf(isotropic=True)' --folds 3"
    found = shell.json(f"{line} --plot @scales.png")
    assert (found["likelihood"], found["noise_variance"], found["objective"]) == ("logit", 1.0, "likelihood")
    assert found["scores"]["folds"]["error_rate"] < 0.3
    assert "are already complete" in shell.run(f"{line} --resume").stderr
    shown = shell.run(f"{line} --overwrite").stdout
    for words in ("likelihood", "logit", "log evidence (Laplace)", "error rate", "log loss"):
        assert words in shown
    assert "found for the labels' likelihood 'logit'" in shell.told("train @t --hyper @h.json --out @m")
    for options, words, code in (
        ("--objective loo", "is for regressions", 2),
        ("--refine", "is for regressions", 2),
        ("--fix noise_variance=1", "there is no hyperparameter 'noise_variance'", 3),
    ):
        shell.refuses(f"{line} --overwrite {options}", words, code=code)
    assert json.loads(shell["h.json"].read_text())["likelihood"] == "logit"


@pytest.mark.usefixtures("table")
def test_regressions_say_that_a_label_is_one(shell: Shell) -> None:
    tuned = shell.run("tune @t --out @h.json --subset 60 --json")
    assert document_of(tuned)["warnings"] == []
    assert "signs of its classes" in " ".join(tuned.stderr.split())
    trained = shell.json("train @t --hyper @h.json --out @m")
    (warning,) = [message for message in trained["warnings"] if "label" in message]
    assert "3 classes 'blau', 'grün', 'rot, „dunkel“'" in warning
    assert "dkgp classify" in warning
    warnings = shell.json("sparse @t --hyper @h.json --out @s --basis-size 10")["warnings"]
    assert any("dkgp classify" in message for message in warnings)


def test_weights_are_those_of_the_fit(shell: Shell, rng: np.random.Generator) -> None:
    """Against a dense solve of the LS-SVM's system with noise s2 / w of each sample, w of mean one."""
    X, w = rng.normal(size=(50, 2)), rng.uniform(0.2, 4.0, 50)
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=50) > 0, 1.0, -1.0)
    rows = zip(*X.T.tolist(), w.tolist(), y.tolist(), strict=True)
    shell["d.csv"].write_text("\n".join(["a,b,w,y", *(",".join(map(repr, row)) for row in rows)]))
    write_hyper(shell["h.json"], [0.5, 0.3], 0.3)
    assert shell.json("ingest @d.csv @d --labels y --weights w")["features"] == ["a", "b"]
    assert shell.json("info @d")["weights"] == "w"
    shell.json("classify @d --out @m --method exact --hyper @h.json")
    shell.json("predict @m @d --out @p")
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    K = np.exp(-0.5 * (Z[:, :1] - Z[:, 0]) ** 2 - 0.3 * (Z[:, 1:] - Z[:, 1]) ** 2)
    system = np.block([[K + np.diag(0.3 * w.mean() / w), np.ones((50, 1))], [np.ones((1, 50)), np.zeros((1, 1))]])
    solution = np.linalg.solve(system, [*y, 0.0])
    expected = K @ solution[:50] + solution[50]
    np.testing.assert_allclose(open_prediction(shell["p"]).read("decision")[:, 0], expected, atol=2e-3)
    plain = np.linalg.solve(system - np.diag([*(0.3 * w.mean() / w - 0.3), 0.0]), [*y, 0.0])
    assert np.abs(K @ plain[:50] + plain[50] - expected).max() > 0.05  # weights make a difference here


def test_predicted_classes_are_described(shell: Shell) -> None:
    variables = ("decision", "decision_error_bound", "probability", "class", "certified")
    writer = PredictionWriter.create(shell["p"], 25, ["y"], variables, 10, classes=["no", "yes"])
    codes, half = np.arange(25) % 5 == 0, np.full(25, 0.5)
    values = (np.where(codes, 1.0, -1.0), half, np.column_stack([half, half]), codes, codes)
    writer.write(0, **dict(zip(variables, values, strict=True)))
    writer.commit()
    described = shell.json("info @p")
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
def test_killed_while_it_writes(table: Path, shell: Shell) -> None:
    stores = shell["d"], shell["rest"]
    done = subprocess.run([sys.executable, "-c", KILLED, table, *stores], env={**os.environ, "DKGP_NO_WARM_UP": "1"})
    assert done.returncode == -signal.SIGKILL
    for store in stores:
        shell.refuses(f"info {store}", "incomplete", "Write it again")
    again = shell.json("ingest @t.csv @d --labels kind --test-fraction 0.2 --test-out @rest --overwrite")
    assert again["n_train"] + again["n_test"] == 120
    assert open_dataset(stores[1]).classes == open_dataset(stores[0]).classes


def test_a_store_that_is_there_survives_bad_labels(table: Path, shell: Shell) -> None:
    kept = dataset_from_arrays(shell["d"], np.eye(3), np.arange(3.0))
    table.write_text(table.read_text(encoding="utf-8") + '\n0.5,0.5,""\n', encoding="utf-8")
    shell.refuses("ingest @t.csv @d --labels kind --overwrite", "missing value", "line 122")
    assert open_dataset(shell["d"]).fingerprint == kept.fingerprint


# --------------------------------------------------------------------------------------------------------- evaluations


NAMES = ("[no]", "yes")


class Files:
    def __init__(self, folder: Path, rng: np.random.Generator) -> None:
        self.codes = rng.permutation(np.arange(80) % 2)
        decisions = 2.0 * self.codes - 1.0 + rng.normal(size=80)
        self.predicted = (decisions >= 0.0).astype(np.int64)
        self.certified = np.abs(decisions) > 0.5
        positive = 1.0 / (1.0 + np.exp(-2.0 * decisions))
        self.test, self.prediction = str(folder / "test.zarr"), str(folder / "pred.zarr")
        self.X = rng.normal(size=(80, 2))
        dataset_from_arrays(self.test, self.X, self.codes, target_names=["kind"], classes=NAMES)
        writer = PredictionWriter.create(
            self.prediction, 80, ["kind"], ("decision", "probability", "class", "certified"), classes=NAMES
        )
        values = {"decision": decisions, "probability": np.column_stack([1.0 - positive, positive])}
        writer.write(0, **values, **{"class": self.predicted, "certified": self.certified.astype(np.int64)})
        writer.commit()


@pytest.fixture
def files(tmp_path: Path, rng: np.random.Generator) -> Files:
    return Files(tmp_path, rng)


def test_document_has_every_figure_and_the_plot_is_an_image(files: Files, tmp_path: Path) -> None:
    plot = tmp_path / "classes.png"
    found = run_json("evaluate", files.prediction, files.test, "--plot", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    wrong = files.codes != files.predicted
    assert found["error_rate"] == pytest.approx(wrong.mean())
    assert found["confusion"] == confusion_matrix(files.codes, files.predicted).tolist()
    assert found["certified_share"] == pytest.approx(files.certified.mean())
    assert found["certified_errors"] == (wrong & files.certified).sum()
    assert found["abstained"] is None
    figures = {"accuracy", "balanced_error", "balanced_accuracy", "auc", "log_loss", "brier", "ece", "reliability"}
    assert {name for name in figures if found[name] is None} == set()


def test_abstaining_leaves_out_what_is_not_certified(files: Files) -> None:
    found = run_json("evaluate", files.prediction, files.test, "--abstain")
    kept = files.certified
    assert found["n"] == kept.sum()
    assert found["abstained"] == pytest.approx(1.0 - kept.mean())
    assert found["error_rate"] == pytest.approx(np.mean((files.codes != files.predicted)[kept]))


def test_verdict_of_classes(files: Files, tmp_path: Path) -> None:
    other = str(tmp_path / "other.zarr")
    dataset_from_arrays(other, files.X, 1 - files.predicted, target_names=["kind"], classes=NAMES)
    document = run_json("evaluate", files.prediction, other)
    assert document["verdict"][0]["kind"] == "explains little"
    assert "100.00% of the labels are wrong" in document["verdict"][0]["text"]
    shown = " ".join(run("evaluate", files.prediction, other).stdout.split())
    assert "Verdict - 100.00% of the labels are wrong" in shown
    assert "with a larger --subset if there are more training samples" in " ".join(shown.split())


def test_rivals_are_for_numbers(files: Files) -> None:
    refused(run("evaluate", files.prediction, files.test, "--compare"), "--compare is for targets that are numbers")


def test_table_names_the_figures_and_the_classes_as_they_are(files: Files) -> None:
    result = run("evaluate", files.prediction, files.test, "--abstain")
    assert result.exit_code == 0
    words = (
        "balanced error",
        "area under the curve",
        "Brier score",
        "certified labels",
        "samples without a certified label",
        *NAMES,
    )
    for word in words:
        assert word in result.stdout, word


def test_options_of_the_other_kind_are_refused(files: Files, tmp_path: Path) -> None:
    refused(run("evaluate", files.prediction, files.test, "--noise-free"), "--noise-free is for targets that are")
    writer = PredictionWriter.create(tmp_path / "numbers.zarr", 80, ["kind"], ("mean",))
    writer.write(0, mean=np.zeros(80))
    writer.commit()
    refused(run("evaluate", tmp_path / "numbers.zarr", files.test, "--abstain"), "--abstain is for labels")


def test_an_unseen_label_is_named_and_no_plot_is_left(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    dataset_from_arrays(other, files.X, files.codes, target_names=["kind"], classes=["maybe", "yes"])
    plot = tmp_path / "classes.png"
    refused(run("evaluate", files.prediction, other, "--plot", plot), "'maybe'", "'[no]', 'yes'")
    assert not plot.exists()
