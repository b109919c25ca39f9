"""`dkgp bench papers` on problems too small to mean anything: complete, and true where time plays no part."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.spatial

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.errors import InputError, NumericalError, OutputExistsError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.solvers import GradientInfNorm, KernelConjugateGradient, MaxIterations, Progress
from dkgp.solvers.base import SolverState
from dkgp_benchmarks.library import PAPER_DATA, Library, PreparedData, data_rows, prepare_data
from dkgp_benchmarks.papers.figures import correlation_figure, gradient_correlations, growth_figure
from dkgp_benchmarks.papers.kernel_cg.figure import RiskDistance, kernel_cg_figure, risks
from dkgp_benchmarks.papers.papers import BenchPapersJob, run_bench_papers
from dkgp_benchmarks.papers.runs import Contender, Recorded, Workbench, paper_contenders
from dkgp_benchmarks.papers.tables import table_2
from dkgp_benchmarks.papers.trials import trial

QUICK: dict[str, Any] = {"block_size": 30, "max_passes": 6.0, "draws": 1}
FEW = SolverOptions(block_size=30, max_passes=50.0)
NOISE, NARROW = 0.01, 3.5


def rough(generator: np.random.Generator, n: int, d: int = 2) -> tuple[Any, Any]:
    """A problem with little noise and short length scales."""
    X = generator.random((n, d))
    return X, np.sin(9.0 * X[:, 0]) * np.cos(7.0 * X[:, 1]) + 0.02 * generator.standard_normal(n)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files laid out as benchmark data are: a split of its own, none, and several targets."""
    path = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(5)
    X, y = rough(generator, 320)
    mask = np.zeros((320, 3), dtype=bool)
    mask[:60, 0] = True
    mask[60:120, 1] = True
    np.savez(path / "kin40k.npz", X=X, y=y, test_mask=mask)
    X, y = rough(generator, 260, 3)
    np.savez(path / "abalone.npz", X=X, y=y, feature_names=np.array(["a", "b", "c"]))
    Y = np.column_stack([y, np.cos(5.0 * X[:, 2]), X[:, 0] - y])
    np.savez(path / "sarcos_test4449.npz", X=X, y=y, Y7=Y)
    return path


def workbench(n: int = 300) -> Workbench:
    """A rough problem on which methods differ, with hyperparameters at hand."""
    generator = np.random.default_rng(0)
    X, y = rough(generator, n + 60)
    y = y + 0.1 * generator.standard_normal(n + 60)
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), ((y - y.mean()) / y.std())[:, None]
    found = Hyperparameters(SquaredExponential(gamma=(NARROW, NARROW)), NOISE)
    nowhere: Any = None
    data = PreparedData("rough", nowhere, nowhere, X[:n], y[:n], X[n:], y[n:], found)
    return Workbench(data, LocalExecutor(1), SilentReporter())


@pytest.fixture(scope="module")
def bench() -> Workbench:
    """One for all: what has been run is not run again."""
    return workbench()


def finite(rows: list[dict[str, Any]], *names: str) -> bool:
    return all(math.isfinite(row[name]) for row in rows for name in names)


@pytest.mark.slow
def test_every_part_at_once(folder: Path, tmp_path: Path) -> None:
    job = BenchPapersJob(
        data=str(folder),
        problems=("kin40k",),
        tables=("1", "2"),
        figures=("1", "2", "3", "4", "kcg"),
        n=200,
        n_test=40,
        subset=80,
        sizes=(100, 200),
        **QUICK,
        plots=str(tmp_path / "plots"),
        out=str(tmp_path / "papers.json"),
    )
    document = run_bench_papers(job, SilentReporter())
    assert json.loads((tmp_path / "papers.json").read_text()) == json.loads(json.dumps(document))
    sections: dict[str, Document] = {section["section"]: section for section in document["sections"]}
    figures = ["figure_1:kin40k", "figure_2:kin40k", "figure_3:kin40k", "figure_4", "figure_kcg:kin40k"]
    assert set(sections) == {"table_2:kin40k", *figures}
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == sorted(name.replace(":", "_") + ".png" for name in sections)
    assert all((tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in drawn)
    assert document["complete"]
    for section in sections.values():
        assert tables({"command": "bench", **section})

    rows = sections["table_2:kin40k"]["rows"]
    assert finite(rows, "seconds", "rmse")
    assert finite(rows[1:], "column_passes", "gradient_inf_norm", "mean_difference", "iteration", "kernel_evaluations")
    assert all(row["converged"] == (row["gradient_inf_norm"] <= 1e-4) for row in rows[1:])
    correlations = sections["figure_1:kin40k"]
    assert finite(correlations["rows"], "mean", "distance", "share")
    assert all(-1.0 <= row["mean"] <= row["magnitude"] <= 1.0 for row in correlations["rows"])
    assert sum(correlations["curves"]["histograms"]["y"]) == 100 * 50
    for number in (2, 3):
        rows = sections[f"figure_{number}:kin40k"]["rows"]
        assert finite(rows[1:2], "gradient_0.1", "gradient_0.01", "objective")
        assert rows[1]["gradient_0.1"] <= rows[1]["gradient_0.01"]
    assert {row["n"] for row in sections["figure_4"]["rows"]} == {100, 200}
    assert finite(sections["figure_4"]["rows"], "seconds", "column_passes", "rmse")
    problem = document["problems"]["kin40k"]
    assert (problem["n"], problem["n_test"], problem["d"]) == (200, 40, 2)
    assert problem["hyperparameters"]["noise_variance"] > 0.0
    assert {"machine", "hyperparameters", "GBCD", "SMO"} <= set(document["cautions"])


@pytest.mark.long
def test_without_data_only_friedman1_is_there() -> None:
    job = BenchPapersJob(tables=("2",), n=120, n_test=30, subset=60, **QUICK)
    document = run_bench_papers(job, SilentReporter())
    assert [section["section"] for section in document["sections"]] == ["table_2:friedman1"]
    absent = set(document["figures"]["absent"].split(", "))
    assert absent == {paper.name for paper in PAPER_DATA} - {"Friedman1"}


@pytest.mark.long
def test_greedy_selection_needs_fewest_passes(bench: Workbench) -> None:
    """The paper's Table 2 in passes, on a problem where blocks matter; and who was cut off is said to be."""
    table = table_2([trial(bench, FEW)])
    rows = {row["key"]: row for row in table["rows"]}
    passes = {key: rows[key]["column_passes"] for key in ("gbcd", "bcdc", "bcdg", "smo", "cg")}
    assert rows["gbcd"]["converged"]
    assert passes["gbcd"] < 0.7 * min(passes[key] for key in passes if key != "gbcd")
    assert table["figures"]["fewest_passes_of_the_papers_methods"] == "GBCD, as in the paper"
    assert rows["smo_default"]["kernel_evaluations"] < rows["smo"]["kernel_evaluations"]
    for key in passes:
        n = bench.data.n
        assert rows[key]["entries"] == rows[key]["kernel_evaluations"] / n**2
    # What passes hide: candidates and dense subproblems.
    assert rows["gbcd"]["entries"] > 1.5 * passes["gbcd"]
    assert rows["cg"]["entries"] < passes["cg"]  # of blocks off the diagonal one half
    assert rows["gbcd"]["settings"]["variables_per_step"] == 1
    assert rows["gbcd_default"]["settings"]["variables_per_step"] is None
    assert {rows[key]["settings"]["memory"] for key in ("gbcd", "bcdc", "bcdg")} == {0}
    assert rows["gbcd_default"]["settings"]["memory"] == 5
    assert "entries / n^2" in [column["title"] for column in table["columns"]]
    for key in rows:
        ended = rows[key]
        if key == "cholesky" or not ended["converged"]:
            continue
        assert ended["gradient_inf_norm"] <= 1e-4
        assert ended["mean_difference"] < 0.1  # sqrt(n) max |g| / NOISE, roughly
        assert ended["rmse"] == pytest.approx(rows["cholesky"]["rmse"], abs=1e-3)
    assert not rows["bcdg"]["converged"]
    assert rows["bcdg"]["column_passes"] >= 50.0
    assert rows["bcdg"]["passes_ratio"] == pytest.approx(passes["bcdg"] / passes["gbcd"])
    assert rows["bcdg"]["passes_shown"].startswith("> ")
    assert table["figures"]["BCDG_stopped"] == "the limit of 50 passes over the kernel matrix was reached"


def test_smo_is_cut_off_though_its_columns_are_kept(bench: Workbench) -> None:
    smo = next(each for each in paper_contenders(replace(FEW, tolerance=1e-12), 300) if each.key == "smo_default")
    run = bench.solve(replace(smo, options=replace(smo.options, max_passes=2.0)))
    assert run.last is not None
    assert (run.converged, run.last.iteration) == (False, 20)  # 20 rounds of n / 20 steps wanted 2 n columns


def test_what_breaks_down_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, watch: Any = None, **options: Any) -> None:
        if watch is not None:
            watch.callback(Progress(3, 1.5, 10, 0.1, 2.0, 2.0, 2.0, -1.0, 1.0))
        raise NumericalError("the solve broke down in float64")

    monkeypatch.setattr("dkgp_benchmarks.papers.runs.solve", broken)
    table = table_2([trial(workbench(60), FEW)])
    row = table["rows"][1]
    assert (row["converged"], row["iteration"], row["column_passes"], row["rmse"]) == (False, 3, 1.5, None)
    assert "broke down" in table["figures"]["GBCD, as in the paper_stopped"]
    assert tables({"command": "bench", **table})


@pytest.mark.long
def test_an_interrupted_run_leaves_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dkgp_benchmarks.papers.figures.growth_rows", interrupt)
    job = BenchPapersJob(tables=("2",), figures=("4",), sizes=(50, 60), n=60, n_test=20, subset=40, **QUICK)
    with pytest.raises(KeyboardInterrupt):
        run_bench_papers(replace(job, out=str(tmp_path / "p.json")), SilentReporter())
    kept = json.loads((tmp_path / "p.json").read_text())
    assert kept["complete"] is False
    assert [section["section"] for section in kept["sections"]] == ["table_2:friedman1"]


def test_nothing_runs_twice(bench: Workbench) -> None:
    contender = paper_contenders(FEW, bench.data.n)[0]
    first = bench.run(contender)
    assert bench.run(contender) is first
    assert bench.exact() is bench.exact()


def test_test_errors_on_the_way_are_true(bench: Workbench) -> None:
    run = bench.run(paper_contenders(FEW, bench.data.n)[0])
    exact = bench.exact()
    assert exact is not None
    iterations = [point["iteration"] for point in run.curve]
    assert iterations == sorted(set(iterations))
    assert iterations[0] == 1
    assert run.curve[-1]["rmse"] == pytest.approx(exact.rmse, rel=0.2)
    matrix = bench.data.found.kernel(bench.data.inputs, bench.data.inputs) + NOISE * np.eye(bench.data.n)
    truth = np.linalg.solve(matrix, bench.data.targets)
    np.testing.assert_allclose(exact.alpha, truth, rtol=1e-6, atol=1e-6 * np.abs(truth).max())
    objective = 0.5 * np.sum(truth * (matrix @ truth)) - np.sum(truth * bench.data.targets)
    assert exact.objective == pytest.approx(float(objective))


def test_watching_a_solver_changes_nothing(bench: Workbench) -> None:
    contender = paper_contenders(FEW, bench.data.n)[1]
    seen: list[int] = []

    def watch(state: SolverState) -> None:
        seen.append(state.iteration)

    watched = bench.solve(contender, watch=watch)
    plain = bench.solve(contender)
    assert watched.alpha is not None
    assert plain.alpha is not None
    np.testing.assert_array_equal(watched.alpha, plain.alpha)
    assert seen == list(range(1, len(seen) + 1))
    wrapped = Recorded(KernelConjugateGradient(), watch)
    assert (wrapped.name, wrapped.settings()) == ("kcg", KernelConjugateGradient().settings())


@pytest.mark.long
def test_cholesky_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = workbench(60)
    monkeypatch.setattr("dkgp.bench.contenders.available_bytes", lambda: 2**10)
    table = table_2([trial(bench, FEW)])
    assert "cholesky" not in {row["key"] for row in table["rows"]}
    assert "Cholesky is left out" in bench.reporter.warnings[0]
    with pytest.raises(InputError, match="Give fewer --samples"):
        kernel_cg_figure(bench, FEW)


@pytest.mark.long
def test_kernel_cg_against_parameter_cg(bench: Workbench) -> None:
    """The theorem at small n, and the risk as the driver's figures give it against the formula."""
    options = SolverOptions(max_passes=4000.0)
    document = kernel_cg_figure(bench, options)
    rows = {row["goal"]: row for row in document["rows"]}
    for row in document["rows"]:
        if row["paramcg"] is not None:
            assert row["factor"] == pytest.approx(row["kcg"] / math.sqrt(row["paramcg"]))
    reached = [row for goal, row in rows.items() if goal.startswith("risk") and row["paramcg"] is not None]
    assert len(reached) >= 2
    assert all(row["kcg"] < row["paramcg"] for row in reached)
    assert all(row["factor"] <= 2.0 for row in reached)
    curve = document["curves"]["kcg"]
    assert all(value >= -1e-10 for bound in ("upper", "lower") for value in curve[bound])

    data = bench.data
    run = bench.solve(Contender("kcg", "KCG", replace(options, solver="kcg", precision="double", max_passes=7.0)))
    assert run.alpha is not None
    assert run.last is not None
    kernel = data.found.kernel(data.inputs, data.inputs)
    alpha, y = run.alpha[:, 0], data.targets[:, 0]
    risk = 0.5 * np.sum((y - kernel @ alpha) ** 2) + 0.5 * NOISE * alpha @ kernel @ alpha
    upper, lower = risks(run.last, NOISE)
    exact = bench.exact()
    assert exact is not None
    assert upper == pytest.approx(risk, rel=1e-9)
    assert lower <= -NOISE * exact.objective <= upper


def test_risk_distance() -> None:
    progress = Progress(1, 1.0, 1, 0.0, 1.0, 1.0, 1.0, objective=-10.0, objective_gap_bound=1.0)
    assert risks(progress, 0.5) == (5.5, 5.0)
    assert RiskDistance(5.4, 0.5, 0.01).check(progress) is None
    reason = RiskDistance(5.4, 0.5, 0.02).check(progress)
    assert reason is not None
    assert reason.converged


@pytest.mark.long
def test_gradient_correlations_against_scipy(bench: Workbench) -> None:
    document = correlation_figure([gradient_correlations(bench, FEW, seed=3)])
    rows = {(row["system"], row["pairs"]): row for row in document["rows"]}
    tracks: list[Any] = []

    def watch(state: SolverState) -> None:
        tracks.append(state.gradient[:, 0].copy())

    greedy = paper_contenders(FEW, bench.data.n)[0]
    bench.solve(greedy, stopping=GradientInfNorm(1e-9) | MaxIterations(50), watch=watch)
    assert document["figures"]["iterations"]["y"] == len(tracks)
    full = np.corrcoef(np.asarray(tracks), rowvar=False)
    samples = np.random.default_rng(3).choice(bench.data.n, 100, replace=False)
    distances, nearest = scipy.spatial.cKDTree(bench.data.inputs).query(bench.data.inputs[samples], k=6)
    expected = full[samples[:, None], nearest[:, 1:]]
    row = rows["y", "neighbours 1 to 5"]
    assert row["count"] == 500
    assert row["mean"] == pytest.approx(expected.mean(), abs=1e-9)
    assert row["share"] == pytest.approx(np.mean(np.abs(expected) > 0.5))
    assert row["distance"] == pytest.approx(np.median(distances[:, 1:]))
    # The paper's point: gradients of neighbours move together, those of other pairs do not.
    for system in ("y", "k_*"):
        assert rows[system, "neighbours 1 to 5"]["mean"] > 0.2 + rows[system, "any other"]["mean"]


def test_blocks_stay_small() -> None:
    sizes = {n: paper_contenders(SolverOptions(block_size=500), n)[0].options.block_size for n in (60, 2000, 10_000)}
    assert sizes == {60: 15, 2000: 500, 10_000: 500}


def test_growth_exponents() -> None:
    rows = [
        {"n": n, "solver": "GBCD", "converged": n < 800, "seconds": 1e-6 * n**1.5, "iteration": 1, "column_passes": 1.0}
        for n in (100, 200, 400, 800)
    ]
    found = Hyperparameters(SquaredExponential(gamma=(1.0, 2.0)), 0.5)
    assert growth_figure([rows], 1e-4, found)["figures"]["gaussian_process"] == "noise variance 0.5, gamma 1, 2"
    assert growth_figure([rows], 1e-4, found)["figures"]["seconds_grow_as_n_to_the"] == {"GBCD": 1.5}
    assert growth_figure([rows[:1]], 1e-4, found)["figures"]["seconds_grow_as_n_to_the"] == {}


@pytest.mark.long
def test_several_targets_stand_in_for_the_poses(folder: Path) -> None:
    job = BenchPapersJob(
        data=str(folder), tables=("2",), problems=("humanevapose",), n=120, n_test=30, subset=60, **QUICK
    )
    document = run_bench_papers(job, SilentReporter())
    assert document["problems"]["sarcos_test4449:Y7"]["targets"] == 3
    assert "3 targets" in document["sections"][0]["title"]


@pytest.mark.long
def test_table_5_has_its_form(folder: Path) -> None:
    job = BenchPapersJob(
        data=str(folder), tables=("5",), n=150, n_test=40, subset=60, basis_size=20, draws=2, tolerance=1e-2
    )
    (section,) = run_bench_papers(job, SilentReporter())["sections"]
    rows = {row["target"]: row for row in section["rows"]}
    assert list(rows)[3:] == ["target 1", "target 2", "target 3"]
    errors = rows["mean error over the targets"]
    assert errors["sparse_error"] == pytest.approx(np.mean([rows[f"target {i}"]["sparse_error"] for i in (1, 2, 3)]))
    assert errors["exact_error"] == pytest.approx(np.mean([rows[f"target {i}"]["exact_error"] for i in (1, 2, 3)]))
    assert errors["sparse_error"] > errors["exact_error"]
    assert (errors["paper_sparse"], errors["paper_exact"]) == (62.4, 59.6)
    assert rows["training, seconds"]["paper_ratio"] == pytest.approx(5237 / 3891)
    assert "another data set" in section["figures"]["the_papers_figures_are"]
    assert tables({"command": "bench", **section})


def test_absent_data_and_stand_ins_are_named(folder: Path) -> None:
    rows = {row["data"]: row for row in data_rows(Library.of(str(folder)))}
    assert rows["Outaouais"]["status"] == "absent"
    assert rows["Puget Sound"]["status"] == "absent"
    assert "dem_bigtujunga" in f"{rows['Puget Sound']['remark']}{[p.stand_in for p in PAPER_DATA]}"
    assert rows["Sarcos"]["status"] == "stand-in"
    assert rows["HumanEva pose"]["targets_here"] == 3
    assert (rows["Kin40k"]["n_here"], rows["Kin40k"]["d_here"]) == (320, 2)


def read(dataset: Dataset) -> set[tuple[float, ...]]:
    return {tuple(row) for row in np.round(dataset.inputs(0, dataset.n_samples, standardised=False), 9)}


def test_a_files_own_split_is_kept(folder: Path, tmp_path: Path) -> None:
    library = Library.of(str(folder))
    X = np.round(np.load(folder / "kin40k.npz")["X"], 9)
    data = prepare_data(library, "kin40k", 100, 1000, 50, 0, tmp_path, SilentReporter())
    assert read(data.test) == {tuple(row) for row in X[:60]}
    assert read(data.train) < {tuple(row) for row in X[60:]}
    assert data.n == 100
    np.testing.assert_allclose(data.inputs.mean(axis=0), 0.0, atol=1e-12)
    other = prepare_data(library, "abalone", 1000, 1000, 50, 0, tmp_path, SilentReporter())
    assert (other.n, len(other.test_inputs)) == (195, 65)
    assert not read(other.train) & read(other.test)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"problems": ("nonesuch",)}, UsageError, "friedman1, abalone, kin40k, sarcos_test4449"),
        ({"problems": ("friedman1:z",)}, UsageError, "no data set 'friedman1:z'"),
        ({"problems": ("kin40k:z",)}, InputError, "has no array 'z'"),
        ({"problems": ("outaouais",)}, UsageError, "Outaouais of the paper is absent"),
        ({"data": "nowhere"}, InputError, "nowhere"),
        ({"n": 1}, InputError, "--samples must be at least 2"),
        ({"sizes": ()}, InputError, "--sizes"),
        ({"max_seconds": -1.0}, InputError, "seconds"),
        ({"parts": ("gbcd-table-9",)}, UsageError, "did you mean gbcd-table"),
        ({"parts": ("gbcd-table-4:nonesuch",)}, UsageError, "there is no part 'gbcd-table-4:nonesuch' here"),
        ({"figures": ("4",), "basis_size": 3}, UsageError, "--basis-size is no setting of gbcd-figure-4"),
    ],
    ids=["name", "target", "array", "absent", "folder", "samples", "sizes", "limit", "part", "variant", "setting"],
)
def test_bad_settings_are_refused(folder: Path, change: dict[str, Any], error: type[Exception], words: str) -> None:
    job = replace(BenchPapersJob(data=str(folder)), **change)
    with pytest.raises(error, match=words):
        run_bench_papers(job, SilentReporter())


def test_files_that_are_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "abalone.npz").write_bytes(b"PK damaged")
    np.savez(tmp_path / "kin40k.npz", X=np.zeros((5, 2)))
    library = Library.of(str(tmp_path))
    with pytest.raises(InputError, match="abalone.npz' is not a whole NPZ file"):
        library.shape("abalone")
    with pytest.raises(InputError, match="has no array 'y'; it has X"):
        library.shape("kin40k")


def test_plots_replace_nothing_unasked(tmp_path: Path) -> None:
    (tmp_path / "figure_4.png").write_text("mine")
    job = BenchPapersJob(figures=("4",), plots=str(tmp_path))
    with pytest.raises(OutputExistsError, match="figure_4"):
        run_bench_papers(job, SilentReporter())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        run_bench_papers(replace(job, plots=str(tmp_path / "file")), SilentReporter())
