"""The table of many classes: generated problems as they are described, contenders, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import UsageError
from dkgp_benchmarks.classify.job import BenchClassifyJob, run_bench_classify
from dkgp_benchmarks.classify.many import grid, race, tuned
from dkgp_benchmarks.classify.many.problems import LETTERS, MANY, ManyProblem, classes_of, htru2_like, letter_like
from dkgp_benchmarks.classify.many.race import CONTENDERS


def test_generated_problems_are_as_described() -> None:
    X, codes = letter_like(5000, np.random.default_rng(0))
    assert X.shape == (5000, 16)
    assert set(np.unique(codes)) == set(range(LETTERS))
    assert set(np.unique(X)) == set(range(16))
    # Classes have clusters: their means alone tell few of them apart.
    means = np.stack([X[codes == code].mean(axis=0) for code in range(LETTERS)])
    nearest = np.argmin(((X[:, None, :] - means) ** 2).sum(axis=2), axis=1)
    assert 0.2 < np.mean(nearest != codes) < 0.8
    X, codes = htru2_like(20_000, np.random.default_rng(0))
    assert X.shape == (20_000, 8)
    assert 0.08 < codes.mean() < 0.1
    assert (X[:, :4] > 0.0).all()


def test_a_problem_is_standardised_by_its_training_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mask = np.arange(60) % 3 == 0
    np.savez(tmp_path / "usps.npz", X=rng.uniform(2.0, 9.0, (60, 4)), y=np.arange(60) % 4 + 1, test_mask=mask)
    found = classes_of(MANY["usps"], tmp_path, 0)
    assert found.inputs.shape == (40, 4)
    np.testing.assert_allclose(found.inputs.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(found.inputs.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(found.test_codes, np.arange(60)[mask] % 4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["letter-like", "htru2-like", "covtype-like"])
def test_every_contender_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setitem(MANY, name, replace(MANY[name], n=700, n_test=400))
    monkeypatch.setattr(race, "COSTS", (10.0,))
    monkeypatch.setattr(race, "ROUNDS", 3)
    monkeypatch.setattr(race, "GAMMA_FACTORS", (1.0, 2.0))
    record = str(tmp_path / "record.jsonl")
    job = BenchClassifyJob(tables=("many",), problems=(name,), record=record)
    (section,) = run_bench_classify(job, SilentReporter())["sections"]
    rows = {row["method"]: row for row in section["rows"]}
    assert list(rows) == list(CONTENDERS)
    chance = 100.0 * (1.0 - 1.0 / rows["dkgp classify"]["classes"])
    for row in rows.values():
        # Three rounds of boosting may be worth nothing.
        assert 0.0 < row["balanced_error"] < (101.0 if row["method"] == "hist-boosting" else 0.8 * chance)
        assert row["seconds"] > 0.0
        assert row["cpu_seconds"] > 0.0
    assert "passes" in rows["dkgp classify"]["remark"]
    # What is on record is not measured again.
    monkeypatch.setattr(race, "CONTENDERS", dict.fromkeys(CONTENDERS))
    (again,) = run_bench_classify(job, SilentReporter())["sections"]
    assert again["rows"] == section["rows"]


def test_problems_of_other_tables_are_refused() -> None:
    with pytest.raises(
        UsageError, match="table many has the problems letter-like, htru2-like, covtype-like, covtype-large; got banana"
    ):
        run_bench_classify(BenchClassifyJob(tables=("many",), problems=("banana",)), SilentReporter())
    with pytest.raises(UsageError, match="unknown problem 'letters'"):
        run_bench_classify(BenchClassifyJob(tables=("many",), problems=("letters",)), SilentReporter())


@pytest.mark.parametrize("cut_off", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_grid_is_gone_over_by_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cut_off: bool) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setitem(MANY, "covtype-like", replace(MANY["covtype-like"], n=200, n_test=300))
    if cut_off:
        monkeypatch.setattr(grid, "PEER_SECONDS", 0.0)
        monkeypatch.setattr(grid, "available_cores", lambda: 10)
    job = BenchClassifyJob(tables=("grid",), record=str(tmp_path / "record.jsonl"))
    (section,) = run_bench_classify(job, SilentReporter())["sections"]
    rows = section["rows"]
    assert [row["method"] for row in rows] == [
        "dkgp, one length scale", "all samples", "dkgp, one a feature", "all samples", "SVC"
    ]  # fmt: skip
    for row in rows:
        assert row["error"] < 45.0
        assert (row["search_cpu_seconds"] or row["fit_seconds"]) > 0.0
    assert all(99.0 <= row["certified"] <= 100.0 for row in rows if row["method"] == "all samples")
    # Fits that were not made are told of.
    assert ("10 of 500 fits" in rows[-1]["remark"], "EXTRAPOLATED" in rows[-1]["remark"]) == (cut_off, cut_off)
    (again,) = run_bench_classify(job, SilentReporter())["sections"]
    assert again["rows"] == rows
    with pytest.raises(UsageError, match="table grid has the problems"):
        run_bench_classify(BenchClassifyJob(tables=("grid",), problems=("banana",)), SilentReporter())


@pytest.mark.long
def test_kernels_by_all_labels_and_by_a_subset_that_is_all_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both searches agree if the subset and the neighbours are all samples."""
    for name, value in (("SAMPLES", 120), ("TESTED", 80)):
        monkeypatch.setattr(tuned, name, value)
    job = BenchClassifyJob(tables=("tuned",), problems=("htru2-like",), record=str(tmp_path / "record.jsonl"))
    (section,) = run_bench_classify(job, SilentReporter())["sections"]
    subset, neighbours = section["rows"]
    assert (subset["tuned_by"], neighbours["tuned_by"], subset["n"], subset["d"]) == ("subset", "neighbours", 120, 8)
    assert neighbours["log_loss"] == pytest.approx(subset["log_loss"], rel=0.02)
    assert 0.0 < subset["log_loss"] < np.log(2.0)
    assert subset["error"] < 15.0
    lower = int(neighbours["log_loss"] < subset["log_loss"])
    assert section["figures"]["lower_log_loss_by_neighbours"] == f"{lower} of 1"
    with pytest.raises(UsageError, match="table tuned has the problems made-twonorm, made-ringnorm, htru2-like"):
        run_bench_classify(BenchClassifyJob(tables=("tuned",), problems=("letter-like",)), SilentReporter())


def test_the_peers_grid_is_that_of_the_search() -> None:
    places = grid._widths()
    np.testing.assert_allclose(places, np.log(2.0) * (np.arange(10) - 4.5))
    assert len(grid.GRID) == 10
    assert (grid.GRID[0], grid.GRID[-1]) == (-3.5, 1.0)


def test_a_large_problem_is_run_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def measured(problem: ManyProblem, method: str, *_: object) -> dict[str, object]:
        asked.append((problem.name, method))
        return {"problem": problem.name, "method": method}

    monkeypatch.setattr(race, "measure_many", measured)
    run_bench_classify(BenchClassifyJob(tables=("many",)), SilentReporter())
    assert {name for name, _ in asked} == {"letter-like", "htru2-like", "covtype-like"}
    asked.clear()
    run_bench_classify(BenchClassifyJob(tables=("many",), problems=("covtype-large",)), SilentReporter())
    assert asked == [("covtype-large", "dkgp classify"), ("covtype-large", "hist-boosting")]
