"""Methods of classifiers, compared on held-out training samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkgp.estimators
from dkgp.codec import from_json, to_json
from dkgp.commands.classifiers import run_classify
from dkgp.commands.classify import ClassifyJob
from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, NumericalError
from dkgp.fit.classifiers import ComparedMethod, Comparison, basis_size, compare_methods
from dkgp.fit.job import TRAIN, FitJob
from dkgp.fit.run import _Fit
from dkgp.fit.ways import Way, command_lines
from tests.cli.invoke import run_json


class Guess:
    """A classifier that gives the true class a fixed probability, and takes some seconds of a fake clock."""

    clock = 0.0

    def __init__(self, probability: float, seconds: float = 1.0) -> None:
        self.probability, self.seconds = probability, seconds

    def fit(self, X: Any, y: Any) -> Guess:
        if self.probability <= 0.0:
            raise NumericalError("not positive definite")
        Guess.clock += self.seconds
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> Any:
        second = np.where(X[:, 0] > 0.0, self.probability, 1.0 - self.probability)
        return np.stack([1.0 - second, second], axis=1)


@pytest.fixture
def compare(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Any:
    X = rng.standard_normal((400, 2))
    dataset = memory_dataset(X, (X[:, 0] > 0.0).astype(float))
    monkeypatch.setattr("dkgp.fit.classifiers.time.perf_counter", lambda: Guess.clock)

    def compared(fixed: Guess, logistic: Guess, gp: Guess, seconds: float = 100.0) -> Comparison:
        for name, guess in (("FixedSizeLSSVC", fixed), ("KernelLogisticClassifier", logistic), ("GPClassifier", gp)):
            monkeypatch.setattr(dkgp.estimators, name, lambda guess=guess, **settings: guess)
        return compare_methods(dataset, seconds=seconds)

    return compared


def test_the_method_with_the_smallest_log_loss_is_first(compare: Any) -> None:
    found = compare(Guess(0.7), Guess(0.8), Guess(0.9))
    assert found.ranked == ("gp", "logistic", "fixed-size")
    assert [row.log_loss for row in found.methods] == pytest.approx(-np.log([0.7, 0.8, 0.9]), abs=0.02)
    assert found.samples == 200
    assert found.held_out == 200
    assert from_json(Comparison, to_json(found)) == found
    assert compare(Guess(0.9), Guess(0.8), Guess(0.7)).ranked == ("fixed-size",)


def test_methods_beyond_the_time_and_failed_ones_are_left_out(compare: Any) -> None:
    found = compare(Guess(0.7), Guess(0.8, seconds=50.0), Guess(0.9), seconds=60.0)
    assert found.ranked == ("logistic", "fixed-size")
    assert found.left_out == {"gp": "too little time"}
    failed = compare(Guess(0.7), Guess(0.0), Guess(0.9))
    assert failed.ranked == ("gp", "fixed-size")
    assert failed.left_out == {"logistic": "not positive definite"}


def test_forecasts_grow_with_the_samples() -> None:
    rows = tuple(ComparedMethod(name, 0.1, 0.1, 0.1, 2.0) for name in ("logistic", "gp"))
    found = Comparison(1000, 1000, rows, ("gp", "logistic", "fixed-size"))
    assert found.train_seconds("logistic", 1000) == pytest.approx(4.0)
    assert found.train_seconds("logistic", 4000) == pytest.approx(2.0 * (8.0 + 16.0))
    assert found.train_seconds("gp", 4000) == pytest.approx(2.0 * (8.0 + 4.0))
    assert [basis_size("logistic", n) for n in (5000, 5001)] == [None, 1000]
    assert [basis_size("gp", n) for n in (2000, 2001)] == [None, 1000]


@pytest.mark.long
def test_probabilities_of_all_methods_are_compared(rng: np.random.Generator) -> None:
    X = rng.standard_normal((240, 2))
    rare = rng.uniform(size=240) < 0.8 / (1.0 + np.exp(3.0 - 3.0 * X[:, 0]))
    found = compare_methods(memory_dataset(X, rare.astype(float)), seconds=1e3)
    assert [row.method for row in found.methods] == ["fixed-size", "logistic", "gp"]
    shares = rare.mean()
    chance = -(shares * np.log(shares) + (1.0 - shares) * np.log(1.0 - shares))
    assert all(0.0 < row.log_loss < chance for row in found.methods)
    assert all(row.balanced_error > row.error for row in found.methods)


@pytest.mark.long
@pytest.mark.parametrize("method", ["logistic", "gp"])
def test_a_fit_trains_the_best_method(
    method: str, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = rng.standard_normal((150, 2))
    lines = [f"{a},{b},{'yes' if a + b > 0 else 'no'}" for a, b in X]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,kind", *lines]))
    rows = (ComparedMethod("fixed-size", 0.3, 0.1, 0.1, 0.5), ComparedMethod(method, 0.1, 0.05, 0.05, 0.5))
    compared = Comparison(60, 60, rows, (method, "fixed-size"))
    monkeypatch.setattr("dkgp.fit.run.compare_methods", lambda *arguments, **settings: compared)
    document = run_json("fit", tmp_path / "t.csv", "--labels", "kind", "--out", tmp_path / "f", "--no-stratify")
    assert document["choice"]["way"]["name"] == document["train"]["method"] == method
    assert document["classifiers"] == to_json(compared)
    assert f"--method {method}" in document["commands"][1]
    assert document["evaluation"]["error_rate"] <= 0.2
    assert f"{method} (taken)" in Path(document["report"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(("rare", "refused"), [(1, True), (2, False)])
def test_folds_adapt_to_a_rare_class_and_one_sample_is_refused_at_once(
    rare: int, refused: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    X = rng.standard_normal((60, 2))
    labels = np.where(X[:, 0] > 0.0, "yes", "no").astype(object)
    labels[:rare] = "odd"
    rows = "\n".join(f"{a},{b},{label}" for (a, b), label in zip(X, labels, strict=True))
    (tmp_path / "rows.csv").write_text(f"a,b,label\n{rows}\n")
    train = FitJob(IngestJob((str(tmp_path / "rows.csv"),), labels="label"), out=str(tmp_path / "fit"))
    fit = _Fit(train, SilentReporter())
    Path(train.out).mkdir()
    if refused:
        with pytest.raises(InputError, match="the class 'odd' has only one training sample; a fit needs at least 2"):
            fit._ingest()
        assert not Path(train.place(TRAIN)).exists()
        return
    # Both samples of the rare class are for training.
    fit._ingest()
    way = Way("fixed-size", 20, None, 1.0, 1.0, 1)
    job = way.training(train, "")
    assert isinstance(job, ClassifyJob)
    assert job.settings.folds == 2
    assert "--folds 2" in command_lines(train, train.ingestion.table, (), {"way": to_json(way)})[1]
    assert run_classify(job, SilentReporter())["command"] == "classify"
