"""Fits end calibrated: a bad verdict leads to another model, and the report lists the models that were tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
