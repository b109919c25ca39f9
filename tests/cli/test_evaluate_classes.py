"""`dkgp evaluate` on predictions of classes: table, JSON, plot, and abstaining."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from dkgp.data import PredictionWriter, dataset_from_arrays
from tests.cli.invoke import refused, run, run_json

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
    assert "tune again with --subset larger" in shown


def test_rivals_are_for_numbers(files: Files) -> None:
    refused(run("evaluate", files.prediction, files.test, "--compare"), "--compare is about targets that are numbers")


def test_table_names_the_figures_and_the_classes_as_they_are(files: Files) -> None:
    result = run("evaluate", files.prediction, files.test, "--abstain")
    assert result.exit_code == 0
    words = ("balanced error", "area under the curve", "Brier score", "certified labels", "abstained from", *NAMES)
    for word in words:
        assert word in result.stdout, word


def test_options_of_the_other_kind_are_refused(files: Files, tmp_path: Path) -> None:
    refused(run("evaluate", files.prediction, files.test, "--noise-free"), "--noise-free is about targets that are")
    writer = PredictionWriter.create(tmp_path / "numbers.zarr", 80, ["kind"], ("mean",))
    writer.write(0, mean=np.zeros(80))
    writer.commit()
    refused(run("evaluate", tmp_path / "numbers.zarr", files.test, "--abstain"), "--abstain is about labels")


def test_an_unseen_label_is_named_and_no_plot_is_left(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    dataset_from_arrays(other, files.X, files.codes, target_names=["kind"], classes=["maybe", "yes"])
    plot = tmp_path / "classes.png"
    refused(run("evaluate", files.prediction, other, "--plot", plot), "'maybe'", "'[no]', 'yes'")
    assert not plot.exists()
