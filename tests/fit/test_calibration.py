"""Fits end calibrated: a bad verdict leads to another model, and the report lists the models that were tried."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.predict.job import PredictJob
from dkgp.data import open_prediction
from dkgp.fit import attempts
from dkgp.fit.fallbacks import Fallbacks
from dkgp.fit.run import _Fit
from tests.cli.invoke import run_json

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose noise depends on an input: its deviation grows by e^3 from one end to the other."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (600, 2))
    y = 100.0 + 10.0 * (np.sin(3.0 * X[:, 0]) + X[:, 1]) + 2.0 * np.exp(1.5 * X[:, 0]) * rng.standard_normal(600)
    path = tmp_path_factory.mktemp("growing") / "table.csv"
    np.savetxt(path, np.c_[X, y], delimiter=",", header="u,v,yield", comments="")
    return path


def fitted(table: Path, out: Path, *more: Any) -> dict[str, Any]:
    options = ("--target", "yield", "--kernel", "rbf", "--transform", "none", "--test-fraction", 0.3)
    return run_json("fit", table, *options, "--out", out, *more)


def test_noise_that_depends_on_an_input_leads_to_a_noise_model(
    growing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = fitted(growing, tmp_path / "fit", "--time", "1h")
    first, second = document["attempts"]["tried"]
    assert first["findings"]
    assert second["model"].endswith("tuned with --noise-model auto")
    assert second["nlpd_raw"] < first["nlpd_raw"] - 0.1
    assert document["attempts"]["taken"] == 1
    assert document["evaluation"]["nlpd_raw"] == second["nlpd_raw"]
    assert document["evaluation"]["verdict"] == []
    assert 0.9 < document["evaluation"]["coverage_95"] < 0.99
    page = Path(document["report"]).read_text(encoding="utf-8")
    assert "<h3>Models</h3>" in page
    assert "tuned with --noise-model auto (chosen)" in page
    assert "--noise-model auto" in document["commands"][1]
    folder = sorted(path.name for path in (tmp_path / "fit").iterdir())
    assert not [name for name in folder if name.startswith("before")]
    # Without time for it, the first model stays, and the table says why: the forecast is that tuning takes days.
    original = _Fit._remedy

    def after_days(fit: _Fit, *arguments: Any) -> Any:
        seconds = dict(fit.steps.seconds)
        fit.steps.seconds["tune"] = 1e6
        try:
            return original(fit, *arguments)
        finally:
            fit.steps.seconds.update(seconds)

    monkeypatch.setattr(_Fit, "_remedy", after_days)
    short = fitted(growing, tmp_path / "short", "--time", "1h")
    assert len(short["attempts"]["tried"]) == 1
    (left_out,) = short["attempts"]["not_tried"]
    assert left_out["model"] == "noise that depends on the inputs, rbf"
    assert left_out["reason"].startswith("its forecast is ")
    page = Path(short["report"]).read_text(encoding="utf-8")
    assert "not tried: its forecast is" in page


@pytest.mark.parametrize("wins", [True, False])
def test_intervals_that_say_little_lead_to_approximate_variances(
    wins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals of a partial factor of two samples, without passes: most of them are as wide as the prior."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (500, 2))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.05 * rng.standard_normal(500)
    np.savetxt(tmp_path / "table.csv", np.c_[X, y], delimiter=",", header="u,v,yield", comments="")

    run = Fallbacks._run

    def few(steps: Fallbacks, job: Any) -> Any:
        if isinstance(job, PredictJob) and job.variance is not None and job.variance.way == "auto":
            job = replace(job, variance=replace(job.variance, rank=2, halo=0, max_passes=0.0))
        return run(steps, job)

    monkeypatch.setattr(Fallbacks, "_run", few)
    if not wins:
        monkeypatch.setattr("dkgp.fit.attempts.Attempt.beats", lambda *_: False)
        monkeypatch.setattr("dkgp.fit.run.remedies", lambda *given, **named: attempts.remedies(*given, **named)[:1])
    document = fitted(tmp_path / "table.csv", tmp_path / "fit", "--time", "1h")
    first, second = document["attempts"]["tried"][:2]
    assert first["findings"] == ["loose intervals"]
    assert second["model"] == "exact model (variances approximate, from neighbours (VIF))"
    assert document["attempts"]["taken"] == int(wins)
    assert document["choice"]["way"]["approximate"] == wins
    assert document["evaluation"]["nlpd_raw"] == (second if wins else first)["nlpd_raw"]
    # One model was trained, and it and the predictions of the taken variances are in their places.
    assert not [name for name in document["seconds_by_phase"] if name.startswith("train ")]
    stored = open_prediction(document["predict"]["out"])
    assert ("variance_lower" in stored.variables) != wins
    assert (tmp_path / "fit" / "model.zarr").exists()
    assert not list((tmp_path / "fit").glob("before*"))
    assert [line for line in document["commands"] if "--variance-way vif" in line] == document["commands"][3:4] * wins
    page = Path(document["report"]).read_text(encoding="utf-8")
    assert "The evaluation found a problem with the first model" in page
    assert ("exact model (variances approximate, from neighbours (VIF)) (chosen)" in page) == wins
    if wins:
        assert second["nlpd_raw"] < first["nlpd_raw"] - 0.1
        assert 0.88 < second["coverage_95"] < 0.99


def test_tuning_that_nothing_judged_goes_on_if_error_bars_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the time limit had ended the first search far from the optimum: a hundredth of the variances."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-2.0, 2.0, (500, 2))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(500)
    np.savetxt(tmp_path / "table.csv", np.c_[X, y], delimiter=",", header="u,v,yield", comments="")
    tune = Fallbacks.tune

    def cut_short(steps: Fallbacks, job: Any) -> Any:
        document = tune(steps, job)
        written = json.loads(Path(job.out).read_text())
        written["kernel"]["variance"] *= 0.01
        written["noise_variance"] *= 0.01
        Path(job.out).write_text(json.dumps(written))
        none = {"taken": "a subset", "held_out": 0, "samples": 0, "candidates": [], "not_tried": []}
        return {**document, "candidates": none}

    monkeypatch.setattr(Fallbacks, "tune", cut_short)
    document = fitted(tmp_path / "table.csv", tmp_path / "fit", "--time", "1h")
    first, second = document["attempts"]["tried"]
    assert "overconfident" in first["findings"]
    assert first["coverage_95"] < 0.5
    assert "tuned with --all-samples-seconds" in second["model"]
    assert document["attempts"]["taken"] == 1
    assert document["evaluation"]["verdict"] == []
    assert 0.9 < document["evaluation"]["coverage_95"] < 0.99
    # Printed commands take the second hyperparameters from the fit's own file, and predict the same.
    lines = [shlex.split(line)[1:] for line in document["commands"]]
    assert [line[0] for line in lines] == ["ingest", "train", "predict", "evaluate"]
    assert lines[1][lines[1].index("--hyper") + 1] == str(tmp_path / "fit" / "hyper-1.json")
    for line in lines:
        run_json(*line)
    made = [open_prediction(str(tmp_path / f"fit{end}" / "pred.zarr")) for end in ("", "-again")]
    for name in ("mean", "variance_lower", "variance_upper"):
        np.testing.assert_array_equal(*(prediction.read(name) for prediction in made))
