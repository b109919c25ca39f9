"""Figures 5 and 6 on a small signal: recovered where noise is little, and not where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp_benchmarks.library import Library
from dkgp_benchmarks.papers.part import PARTS, Work
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


@pytest.mark.long
def test_recovery_ends_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensing, "VARIANCES", (1e-8, 1e-4, 1.0))
    found = sensing.figure_6(BenchPursuitJob(draws=4), SilentReporter())
    for name in ("SCDP", "LASSO"):
        shares = found.curves[name]
        assert shares[0] == 1.0
        assert shares[-1] == 0.0
    assert len(found.rows) == 6


@pytest.mark.long
def test_signals_that_are_kept_are_not_recovered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensing, "VARIANCES", (1e-8, 1.0))
    kept: dict[str, Any] = {}

    def keep(name: str, make: Callable[[], Any]) -> Any:
        return kept[name] if name in kept else kept.setdefault(name, make())

    first = sensing.figure_6(BenchPursuitJob(draws=2, keep=keep), SilentReporter())
    assert set(kept) == {"1e-08-0", "1e-08-1", "1-0", "1-1"}
    assert first.rows == sensing.figure_6(BenchPursuitJob(draws=2), SilentReporter()).rows
    made: list[list[int]] = []
    signal = sensing._signal

    def counted(shape: sensing.Shape, variance: float, seed: list[int]) -> sensing._Signal:
        made.append(seed)
        return signal(shape, variance, seed)

    monkeypatch.setattr(sensing, "_signal", counted)
    more = sensing.figure_6(BenchPursuitJob(draws=3, keep=keep), SilentReporter())
    assert made == [[0, 6, 2], [0, 6, 2]]
    assert more.curves["SCDP"] == [1.0, 0.0]


def test_a_signal_is_what_the_paper_says(rng: np.random.Generator) -> None:
    signal = sensing._signal(sensing.Shape(20, 50, 5), 0.0, [1, 2])
    np.testing.assert_allclose(signal.X @ signal.X.T, np.eye(20), atol=1e-12)
    assert np.count_nonzero(signal.w) == 5
    assert set(np.abs(signal.w)) == {0.0, 1.0}
    np.testing.assert_allclose(signal.y, signal.X @ signal.w)
    assert sensing._recovered(signal, signal.w * 0.3, 5)
    assert not sensing._recovered(signal, np.roll(signal.w, 1), 5)


def test_the_papers_part_keeps_its_signals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sensing, "VARIANCES", (1e-8, 1.0))
    kept: list[str] = []

    def keep(name: str, make: Callable[[], Any]) -> Any:
        kept.append(name)
        return make()

    settings = {"seed": 0, "full": True, "draws": 1}
    work = Work(settings, "", (), Library.of(None), tmp_path, SilentReporter(), keep)
    (shown,) = PARTS.find("scdp-figure-6").run(work)
    assert kept == ["1e-08-0", "1-0"]
    assert shown.section["figures"]["SCDP recovers at the smallest variance"] == 1.0
