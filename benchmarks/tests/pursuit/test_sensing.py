"""Figures 5 and 6 on a small signal: recovered where noise is little, and not where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp_benchmarks.pursuit import sensing
from dkgp_benchmarks.pursuit.job import BenchPursuitJob


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensing, "SHAPE", sensing.Shape(120, 300, 12))


def test_spikes_come_back() -> None:
    found = sensing.figure_5(BenchPursuitJob(), SilentReporter())
    assert found.figures["SCDP finds all spikes"] == found.figures["LASSO finds all spikes"] == "yes"
    assert found.figures["least squares finds all spikes"] == "no"
    signal, w = np.asarray(found.curves["signal"]), np.asarray(found.curves["SCDP"])
    assert set(np.flatnonzero(signal)) == set(np.argsort(-np.abs(w))[:12])
    # The LASSO's weights are biased towards zero, until they are de-biased.
    lasso, mended = (np.asarray(found.curves[name]) for name in ("LASSO", "LASSO, de-biased"))
    inside = signal != 0.0
    assert np.abs(lasso[inside]).mean() < np.abs(mended[inside]).mean() - 0.05
    assert np.linalg.norm(w - signal) < np.linalg.norm(lasso - signal)
    errors = {row["method"]: row["value"] for row in found.rows}
    assert errors["least squares"] == pytest.approx(np.mean((np.asarray(found.curves["least squares"]) - signal) ** 2))


@pytest.mark.evidence
def test_recovery_ends_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensing, "VARIANCES", (1e-8, 1e-4, 1.0))
    found = sensing.figure_6(BenchPursuitJob(draws=4), SilentReporter())
    for name in ("SCDP", "LASSO"):
        shares = found.curves[name]
        assert shares[0] == 1.0
        assert shares[-1] == 0.0
    assert len(found.rows) == 6


def test_a_signal_is_what_the_paper_says(rng: np.random.Generator) -> None:
    signal = sensing._signal(sensing.Shape(20, 50, 5), 0.0, [1, 2])
    np.testing.assert_allclose(signal.X @ signal.X.T, np.eye(20), atol=1e-12)
    assert np.count_nonzero(signal.w) == 5
    assert set(np.abs(signal.w)) == {0.0, 1.0}
    np.testing.assert_allclose(signal.y, signal.X @ signal.w)
    assert sensing._recovered(signal, signal.w * 0.3, 5)
    assert not sensing._recovered(signal, np.roll(signal.w, 1), 5)
