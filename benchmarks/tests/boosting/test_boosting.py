"""`dkgp bench boosting`: generated tables are as they are described, figures are those of naive loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, UsageError
from dkgp_benchmarks.boosting import job, race
from dkgp_benchmarks.boosting.job import BenchBoostingJob, run_bench_boosting
from dkgp_benchmarks.boosting.problems import PROBLEMS, TableSamples, samples_of
from dkgp_benchmarks.library import Library


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_training_and_test_samples_are_of_one_function(name: str) -> None:
    samples = samples_of(name, Library.of(None), 2000, 2000, 0)
    again = samples_of(name, Library.of(None), 2000, 2000, 0)
    other = samples_of(name, Library.of(None), 2000, 2000, 1)
    np.testing.assert_array_equal(samples.targets, again.targets)
    assert not np.array_equal(samples.targets, other.targets)
    assert samples.inputs.shape == (2000, samples.test_inputs.shape[1])
    # The same function: the nearest training sample of the other seed tells more than the mean does, but where noise
    # has no variance, or sixty features hide what is near.
    if name in ("outliers", "many-features"):
        return
    scale = samples.inputs.std(axis=0)
    distance = np.stack([(((other.inputs - row) / scale) ** 2).sum(axis=1) for row in samples.test_inputs[:300]])
    nearest = np.argsort(distance, axis=1)[:, :10]
    error = other.targets[nearest].mean(axis=1) - samples.test_targets[:300]
    assert np.mean(error**2) < 0.9 * np.var(samples.test_targets)


def test_one_hot_columns_are_of_one_level_each() -> None:
    samples = samples_of("categories", Library.of(None), 500, 20, 0)
    one_hot = samples.inputs[:, 3:].reshape(500, 5, 12)
    assert set(np.unique(one_hot)) == {0.0, 1.0}
    np.testing.assert_array_equal(one_hot.sum(axis=2), 1.0)


def test_the_seed_chooses_among_several_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folds = np.arange(90)[:, None] % 3 == np.arange(3)
    np.savez(tmp_path / "folds.npz", X=rng.random((90, 2)), y=np.arange(90.0), test_mask=folds)
    for seed in (0, 1, 2, 5):
        samples = samples_of("folds", Library.of(str(tmp_path)), None, 2000, seed)
        assert set(samples.test_targets % 3) == {seed % 3}
        assert len(samples.targets) == 60


def test_a_file_is_split_by_its_mask_or_at_random(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y, mask = rng.random((90, 2)), np.arange(90.0), np.arange(90) % 3 == 0
    np.savez(tmp_path / "masked.npz", X=X, y=y[:, None], test_mask=mask)
    np.savez(tmp_path / "whole.npz", X=X, y=y)
    np.savez(tmp_path / "two.npz", X=X, y=np.stack([y, y], axis=1))
    library = Library.of(str(tmp_path))
    masked = samples_of("masked", library, None, 20, 0)
    assert set(masked.test_targets) <= set(y[mask])
    assert len(masked.test_targets) == 20
    assert set(masked.targets) == set(y[~mask])
    whole = samples_of("whole", library, 40, 2000, 0)
    assert len(whole.targets) == 40
    assert len(whole.test_targets) == 22
    assert not set(whole.targets) & set(whole.test_targets)
    arrays = whole.arrays()
    np.testing.assert_array_equal(arrays["y"][arrays["test_mask"]], whole.test_targets)
    with pytest.raises(InputError, match="needs one"):
        samples_of("two", library, None, 20, 0)


def test_scores_are_those_of_a_naive_loop() -> None:
    rng = np.random.default_rng(0)
    truth, mean = rng.standard_normal(50), rng.standard_normal(50)
    samples = TableSamples("", np.zeros((50, 1)), truth, np.zeros((50, 1)), truth)
    outcome = race._scored(samples, mean, 2.0, None, "")
    densities = [-0.5 * (y - m) ** 2 / 2.0 - 0.5 * np.log(2.0 * np.pi * 2.0) for y, m in zip(truth, mean, strict=True)]
    inside = [abs(y - m) <= 1.959963984540054 * np.sqrt(2.0) for y, m in zip(truth, mean, strict=True)]
    assert outcome.nlpd == pytest.approx(-np.mean(densities), rel=1e-12)
    assert outcome.rmse == pytest.approx(np.sqrt(np.mean((truth - mean) ** 2)), rel=1e-12)
    assert outcome.coverage == np.mean(inside)
    variances = rng.uniform(0.5, 2.0, 50)
    naive = [
        0.5 * (y - m) ** 2 / v + 0.5 * np.log(2.0 * np.pi * v) for y, m, v in zip(truth, mean, variances, strict=True)
    ]
    assert race._scored(samples, mean, variances, None, "").nlpd == pytest.approx(np.mean(naive), rel=1e-12)
    ends = (mean - 0.1, mean + 0.3)
    assert race._scored(samples, mean, 2.0, ends, "").width == pytest.approx(0.4)


def _row(method: str, losses: list[float], squares: list[float]) -> dict[str, Any]:
    return {"problem": "p", "method": method, "losses": losses, "squares": squares, "nlpd": float(np.mean(losses))}


def test_gains_are_paired_differences_to_the_best_setting_of_gpboost() -> None:
    rng = np.random.default_rng(0)
    losses, squares = rng.random((4, 40)), rng.random((4, 40))
    losses[1] -= 1.0
    methods = ("gpboost", "gpboost vecchia", "dkgp fit", "linear")
    measured = [_row(m, list(a), list(b)) for m, a, b in zip(methods, losses, squares, strict=True)]
    rows = race.compared([*measured, {"problem": "p", "method": "svgp", "remark": "ended"}])
    assert [row["method"] for row in rows] == [*methods, "svgp"]
    assert all("losses" not in row and "squares" not in row for row in rows)
    assert all("nlpd_gain" not in rows[index] for index in (1, 4))  # the reference, and a contender without figures
    for index in (0, 2, 3):
        gains = losses[1] - losses[index]
        assert rows[index]["nlpd_gain"] == pytest.approx(gains.sum() / 40.0)
        assert rows[index]["nlpd_gain_error"] == pytest.approx(np.sqrt(np.sum((gains - gains.mean()) ** 2) / 39 / 40))
        change = 1.0 - np.sqrt(squares[index].mean() / squares[1].mean())
        assert rows[index]["rmse_gain"] == pytest.approx(100.0 * change)
    # The error of the ratio agrees with that of samples drawn anew with replacement.
    draws = rng.integers(0, 40, (4000, 40))
    changes = 1.0 - np.sqrt(squares[2][draws].mean(axis=1) / squares[1][draws].mean(axis=1))
    assert rows[2]["rmse_gain_error"] == pytest.approx(100.0 * changes.std(), rel=0.1)


def test_a_record_is_continued_and_has_one_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(name: str, method: str, samples: TableSamples, *more: Any) -> dict[str, Any]:
        measured.append(method)
        if method == "boosting":
            raise KeyboardInterrupt
        return {"problem": name, "method": method, "rmse": 1.0}

    monkeypatch.setattr(job, "measure", measure)
    asked = BenchBoostingJob(problems=("few",), methods=("linear", "boosting"), n=60, record=str(tmp_path / "r.jsonl"))
    with pytest.raises(KeyboardInterrupt):
        run_bench_boosting(asked, SilentReporter())
    with pytest.raises(KeyboardInterrupt):
        run_bench_boosting(asked, SilentReporter())
    assert measured == ["linear", "boosting", "boosting"]
    with pytest.raises(InputError, match="was taken with another n"):
        run_bench_boosting(replace(asked, n=70), SilentReporter())


@pytest.mark.slow
def test_a_contender_that_exceeds_its_time_is_ended_and_shown() -> None:
    samples = samples_of("few", Library.of(None), 300, 60, 0)
    row = race.measure("few", "boosting", samples, 60.0, 0, 1)
    assert row["remark"] == "ended: more than 1 processor seconds, or no memory"
    assert "rmse" not in row
    assert "cpu_seconds" not in row


@pytest.mark.long
def test_every_contender_is_measured() -> None:
    pytest.importorskip("sklearn")
    reporter = SilentReporter()
    document = run_bench_boosting(BenchBoostingJob(problems=("few",), n=150, n_test=60), reporter)
    rows = {row["method"]: row for row in document["rows"]}
    missing = [name for name in race.CONTENDERS if name not in rows]
    assert [line.partition(" is left out")[0] for line in reporter.warnings] == missing
    assert set(missing) <= set(race.MODULES)
    spread = float(np.std(samples_of("few", Library.of(None), 150, 60, 0).test_targets))
    for row in rows.values():
        assert 0.0 < row["rmse"] < spread
        assert 0.5 < row["coverage"] <= 1.0
        assert row["cpu_seconds"] > 0.0
    # What the comparison is for: few samples of a smooth function.
    assert rows["dkgp fit"]["rmse"] < min(rows["boosting"]["rmse"], rows["linear"]["rmse"])


@pytest.mark.long
@pytest.mark.parametrize("power", [1.0, 3.0])
def test_figures_of_samples_have_the_means_of_the_evaluation(power: float) -> None:
    samples = samples_of("few", Library.of(None), 150, 60, 0)
    targets, test_targets = (np.exp(power * values / 10.0) for values in (samples.targets, samples.test_targets))
    outcome = race.gaussian_process(replace(samples, targets=targets, test_targets=test_targets), 60.0, 0)
    assert np.mean(outcome.losses) == pytest.approx(outcome.nlpd, rel=1e-9)
    assert np.sqrt(np.mean(outcome.squares)) == pytest.approx(outcome.rmse, rel=1e-9)
    assert outcome.choices["attempts"]["tried"]


def test_what_is_not_here_is_refused() -> None:
    with pytest.raises(UsageError, match="no problem 'steep'; --problem takes few, smooth"):
        run_bench_boosting(BenchBoostingJob(problems=("steep",)), SilentReporter())
    with pytest.raises(UsageError, match="no method 'forest'; --method takes dkgp fit, gpboost"):
        run_bench_boosting(BenchBoostingJob(methods=("forest",)), SilentReporter())


def test_a_method_without_its_library_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "MODULES", {"svgp": "no_such_library", "gpboost": "sklearn"})
    warnings: list[str] = []
    assert race.available(("dkgp fit", "gpboost", "svgp"), warnings.append) == ["dkgp fit", "gpboost"]
    assert len(warnings) == 1
    assert warnings[0].startswith("svgp is left out, because its library cannot be imported: No module named")
