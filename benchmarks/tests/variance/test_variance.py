"""`bench variance` on problems too small to mean anything: complete, and true where truth does not depend on time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench import contenders as bench_references
from dkgp.bench.problem import BenchProblem
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.data import open_dataset, save_model, write_friedman1
from dkgp.errors import InputError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.variance.settings import VarianceSettings
from dkgp_benchmarks.variance.measure import Intervals, MeasuredVariances, VarianceTrial, measure_variances
from dkgp_benchmarks.variance.paper_tables import PUBLISHED, BenchPaperTableJob, run_bench_paper_table
from dkgp_benchmarks.variance.report import BenchVarianceJob, run_bench_variance

NOISE_VARIANCE = 0.04
KERNEL = SquaredExponential(gamma=(0.05,) * 10)
TINY = BenchProblem(n=150, n_test=20, subset=60)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> BenchProblem:
    """Friedman1 with hyperparameters at hand."""
    path = tmp_path_factory.mktemp("bench") / "hyper.json"
    path.write_text(json.dumps({"kernel": KERNEL.to_json(), "noise_variance": NOISE_VARIANCE}))
    return BenchProblem(n=500, n_test=60, hyper=str(path))


def of_gaps(*gaps: float) -> tuple[VarianceSettings, ...]:
    return tuple(VarianceSettings(gap=gap) for gap in gaps)


def test_references_compute_what_they_claim(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks that do not divide the matrix.
    monkeypatch.setattr(bench_references, "TILE", 48)
    monkeypatch.setattr(bench_references, "FACTOR_BLOCK", 64)
    found = Hyperparameters(SquaredExponential(gamma=(0.3, 0.1, 1.0), variance=1.7), 0.05)
    inputs, others, right = rng.standard_normal((150, 3)), rng.standard_normal((70, 3)), rng.standard_normal((150, 9))
    dense = found.kernel(inputs, inputs) + 0.05 * np.eye(150)
    np.testing.assert_allclose(bench_references.kernel_columns(inputs, others, found), found.kernel(inputs, others))
    product = bench_references.kernel_product(others, inputs, right, found)
    np.testing.assert_allclose(product, found.kernel(others, inputs) @ right, rtol=1e-9, atol=1e-12)
    matrix = bench_references.assemble(inputs, found)
    np.testing.assert_allclose(np.tril(matrix), np.tril(dense), atol=1e-13)
    bench_references.factor_in_place(matrix)
    np.testing.assert_allclose(np.tril(matrix), np.linalg.cholesky(dense), atol=1e-10)
    solved = right.copy()
    bench_references.forward_substitute(matrix, solved)
    np.testing.assert_allclose(np.tril(matrix) @ solved, right, atol=1e-10)


@pytest.mark.usefixtures("contenders_in_process")
@pytest.mark.parametrize("latent", [False, True], ids=["observation", "function"])
def test_exact_variances_lie_in_their_intervals(problem: BenchProblem, tmp_path: Path, latent: bool) -> None:
    settings = VarianceSettings(gap=0.02, latent=latent)
    trial = VarianceTrial(problem=problem, settings=(settings,), repeats=1, with_plain_pass=False)
    measured = measure_variances(trial, tmp_path, SilentReporter())
    assert (measured.n, measured.d, measured.n_test) == (500, 10, 60)
    train, test = (open_dataset(tmp_path / f"{name}.zarr") for name in ("train", "test"))
    X, x = train.inputs(0, 500), test.inputs(0, 60)
    columns = KERNEL(X, x)
    solved = np.linalg.solve(KERNEL(X, X) + NOISE_VARIANCE * np.eye(500), columns)
    expected = 1.0 + (0.0 if latent else NOISE_VARIANCE) - np.sum(columns * solved, axis=0)
    (found,) = measured.intervals
    assert found.exact is not None
    np.testing.assert_allclose(found.exact, expected, rtol=1e-8)
    assert np.all((found.lower <= expected) & (expected <= found.upper))
    figures = measured.figures(found)
    assert figures["samples_outside_interval"] == 0
    assert figures["largest_excess"] == 0.0
    middles = 0.5 * (found.lower + found.upper)
    naive = np.mean([((v - u) / v) ** 2 for v, u in zip(expected, middles, strict=True)]) ** 0.5
    assert figures["relative_rmse"] == pytest.approx(naive, rel=1e-6)
    assert 0.0 < figures["relative_rmse"] <= 0.02 / (1.0 - 0.02)


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_document(problem: BenchProblem, tmp_path: Path) -> None:
    # A factor this small has to be helped by passes; left to itself it would take all 500 samples and need none.
    settings = tuple(replace(chosen, rank=100) for chosen in of_gaps(0.02, 1e-4))
    trial = VarianceTrial(problem=problem, settings=settings, repeats=1)
    record, plot = tmp_path / "v.json", tmp_path / "v.png"
    document = run_bench_variance(BenchVarianceJob(trial, plot=str(plot), out=str(record)), SilentReporter())
    wide, narrow, cholesky, plain = document["rows"]
    names = [row["contender"] for row in document["rows"]]
    assert names == ["dkgp, gap 0.02", "dkgp, gap 0.0001", "Cholesky", "NumPy pass"]
    for row, gap in ((wide, 0.02), (narrow, 1e-4)):
        assert row["met"] == 60
        assert row["met_share"] == 1.0
        assert 0.0 < row["gap_median"] <= row["gap_95"] <= row["gap_max"] <= gap
        assert row["samples_outside_interval"] == 0
        assert 0.0 < row["shared_seconds"] < row["seconds"]
        assert row["rank"] == 100
        assert row["memory_to_cholesky_matrix"] == pytest.approx(row["peak_memory_bytes"] / (8 * 500**2))
    assert wide["relative_rmse"] <= 0.02
    assert narrow["relative_rmse"] <= min(1e-4, wide["relative_rmse"])
    assert narrow["column_passes"] > wide["column_passes"]
    assert cholesky["milliseconds_per_sample_after_factor"] < cholesky["milliseconds_per_sample"]
    assert plain["seconds"] > 0.0
    figures = document["figures"]
    assert figures["relative_rmse_at_gap_0.02"] == wide["relative_rmse"]
    ratio = wide["seconds"] / cholesky["seconds"]
    assert figures["seconds_to_cholesky_at_gap_0.02"] == pytest.approx(ratio)
    assert json.loads(record.read_text()) == json.loads(json.dumps(document))
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(tables(document)) == 2


def test_variances_outside_their_interval_are_counted() -> None:
    exact = np.array([1.0, 1.0, 2.0, 4.0])
    found = Intervals(0.1, np.array([0.9, 1.01, 1.9, 3.9]), np.array([1.1, 1.2, 1.98, 4.0]), exact)
    figures = found.figures()
    assert figures["samples_outside_interval"] == 2
    assert figures["largest_excess"] == pytest.approx(0.01)
    assert figures["relative_rmse"] == pytest.approx(np.sqrt((0.105**2 + 0.03**2 + 0.0125**2) / 4.0))
    assert figures["gap_max"] == pytest.approx(0.2 / 1.1)


def test_medians_and_ratios_within_repeats() -> None:
    def run(seconds: float, memory: float, **others: float) -> dict[str, Any]:
        return {"seconds": seconds, "peak_memory_bytes": memory, **others}

    fixed = {"rank": 70, "halo": 0, "smooth": True, "batch_size": 2, "column_passes": 0.0, "met": 1, "unmet": 1}
    fixed |= {"products_float32": 0.0, "products_float64": 0.0, "product_seconds": 0.5}
    ours = [run(seconds, 4e6, **fixed) for seconds in (1.0, 8.0, 3.0)]
    exact = [run(seconds, 8e6, factor_seconds=seconds / 2.0) for seconds in (2.0, 4.0, 6.0)]
    runs = {"dkgp, gap 0.1": ours, "cholesky": exact, "plain_pass": [run(10.0, 1e6)] * 3}
    intervals = Intervals(0.1, np.array([1.0, 1.0]), np.array([1.05, 2.0]), None)
    figures = MeasuredVariances(1000, 3, 2, {}, 0.1, runs, (intervals,)).figures(intervals)
    assert figures["seconds"] == 3.0
    assert figures["met_share"] == 0.5
    assert figures["product_share"] == pytest.approx(0.5 / 3.0)
    assert figures["memory_to_cholesky_matrix"] == 0.5
    assert figures["memory_to_cholesky"] == 0.5
    assert figures["seconds_to_cholesky"] == 0.5  # of 0.5, 2 and 0.5
    assert figures["seconds_to_cholesky_factor_alone"] == 1.0
    assert figures["seconds_to_plain_pass"] == pytest.approx(0.3)


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_cholesky_is_left_out_where_it_does_not_fit(
    problem: BenchProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.bench.contenders.available_bytes", lambda: 2**20)
    reporter = SilentReporter()
    measured = measure_variances(VarianceTrial(problem=problem, repeats=1), tmp_path, reporter)
    assert set(measured.runs) == {"dkgp, gap 0.02", "plain_pass"}
    assert "2,000,000 bytes" in reporter.warnings[0]
    figures = measured.figures(measured.intervals[0])
    assert "relative_rmse" not in figures
    assert figures["seconds_to_plain_pass"] > 0.0


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_a_model_that_is_there(tmp_path: Path, rng: np.random.Generator) -> None:
    train, test = write_friedman1(tmp_path / "train.zarr", tmp_path / "test.zarr", 300, 50)
    assert test is not None
    url, folder = str(tmp_path / "model.zarr"), tmp_path / "work"
    folder.mkdir()
    alpha = rng.standard_normal(300)
    certificate = {"noise_variance": 0.1, "n": 300, "residual_norm": [1.0], "rounding": [0.0]}
    save_model(url, kernel=KERNEL.to_json(), noise_variance=0.1, alpha=alpha, dataset=train, certificate=certificate)
    before = sorted(path.name for path in Path(url).rglob("*"))
    chosen = BenchProblem(data=test.url, n_test=30)
    measured = measure_variances(VarianceTrial(chosen, model=url, repeats=1), folder, SilentReporter())
    assert (measured.n, measured.n_test, measured.noise_variance) == (300, 30, 0.1)
    assert measured.figures(measured.intervals[0])["samples_outside_interval"] == 0
    assert sorted(path.name for path in Path(url).rglob("*")) == before
    np.savez(tmp_path / "other.npz", X=rng.random((40, 3)), y=rng.random(40))
    other = BenchProblem(data=str(tmp_path / "other.npz"), n_test=10)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(InputError, match="lacks the features"):
        measure_variances(VarianceTrial(other, model=url), elsewhere, SilentReporter())


def test_bad_trials(problem: BenchProblem, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="differ from each other"):
        VarianceTrial(settings=of_gaps(0.02, 0.02))
    with pytest.raises(UsageError, match="leave out --samples"):
        VarianceTrial(problem=problem, model="model.zarr")
    X = np.random.default_rng(0).random((30, 2))
    np.savez(tmp_path / "d.npz", X=X, y=X[:, 0])
    whole = BenchProblem(data=str(tmp_path / "d.npz"), n=30, hyper=problem.hyper)
    with pytest.raises(InputError):
        measure_variances(VarianceTrial(problem=whole), tmp_path, SilentReporter())


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_table_3_beside_the_paper(tmp_path: Path, rng: np.random.Generator) -> None:
    X = rng.standard_normal((160, 21))
    np.savez(tmp_path / "sarcos_test4449.npz", X=X, y=np.sin(X[:, 0]) + 0.1 * rng.standard_normal(160))
    trial = VarianceTrial(problem=TINY, settings=of_gaps(0.005), repeats=1, with_plain_pass=False)
    reporter = SilentReporter()
    document = run_bench_paper_table(BenchPaperTableJob(3, str(tmp_path), trial), reporter)
    rows = {row["data"]: row for row in document["rows"]}
    assert list(rows) == ["Calhouse", "Outaouais", "Kin40k", "Sarcos", "Friedman1"]
    assert [rows[name]["paper_rmse"] for name in PUBLISHED] == [0.00004, 0.001, 0.02, 0.002, 0.001]
    for name in ("Calhouse", "Outaouais", "Kin40k"):
        assert rows[name]["note"] == "not available"
        assert "relative_rmse" not in rows[name]
        assert any(name in warning and str(tmp_path) in warning for warning in reporter.warnings)
    assert rows["Sarcos"]["note"] == "test file alone"
    assert rows["Sarcos"]["n"] == 140  # what the test samples leave of 160
    assert rows["Friedman1"]["n"] == 150
    for name in ("Sarcos", "Friedman1"):
        assert rows[name]["samples_outside_interval"] == 0
        assert rows[name]["relative_rmse"] <= 0.005 / 0.995
        assert rows[name]["ratio"] == pytest.approx(rows[name]["paper_seconds"] / rows[name]["seconds_per_sample"])
        assert rows[name]["cholesky_seconds_per_sample"] > 0.0
    assert "no comparison of methods" in document["figures"]["caution"]
    assert len(tables(document)) == 2


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_table_4_beside_the_paper(tmp_path: Path) -> None:
    trial = VarianceTrial(problem=TINY, repeats=1, with_cholesky=False)
    record = tmp_path / "table4.json"
    document = run_bench_paper_table(BenchPaperTableJob(4, str(tmp_path), trial, out=str(record)), SilentReporter())
    assert [row["paper_seconds"] for row in document["rows"]] == [19.0, 12.0, 48.0, 31.0, 75.0]
    assert [row["n_paper"] for row in document["rows"]] == [18_000, 20_000, 30_000, 44_484, 100_000]
    friedman1 = document["rows"][-1]
    assert (friedman1["n"], friedman1["n_test"]) == (150, 20)
    assert friedman1["seconds_to_plain_pass"] > 0.0
    assert "relative_rmse" not in friedman1
    assert json.loads(record.read_text())["benchmark"] == "variance_table_4"


def test_a_table_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        run_bench_paper_table(BenchPaperTableJob(3, str(tmp_path / "nowhere")), SilentReporter())
