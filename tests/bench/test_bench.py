"""The benchmarks on problems too small to mean anything: complete, and true where truth does not depend on time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench.problem import BenchProblem, prepare_problem
from dkgp.bench.products import BenchProductsJob, run_bench_products, share_of
from dkgp.bench.solve import BenchOverheadJob, BenchSolveJob, _note_of, run_bench_overhead, run_bench_solve
from dkgp.bench.tiles import BenchTilesJob, broadcast_product, gemm_product, run_bench_tiles
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import write_friedman1
from dkgp.errors import InputError, OutputExistsError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.operators.keeping import worker_tiles


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> BenchProblem:
    """Friedman1 with hyperparameters at hand."""
    path = tmp_path_factory.mktemp("bench") / "hyper.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    return BenchProblem(n=600, n_test=100, hyper=str(path))


def test_references_compute_what_they_claim(rng: np.random.Generator) -> None:
    A, B, w = rng.standard_normal((300, 3)), rng.standard_normal((700, 3)), rng.standard_normal(700)
    expected = SquaredExponential(gamma=(1.0, 1.0, 1.0))(A, B) @ w
    np.testing.assert_allclose(gemm_product(A, B, w), expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(broadcast_product(A, B, w), expected, rtol=1e-9, atol=1e-10)


def test_tiles(tmp_path: Path) -> None:
    job = BenchTilesJob(
        features=(2, 8), rows=256, columns=256, repeats=2, pass_seconds=0.001, out=str(tmp_path / "t.json")
    )
    document = run_bench_tiles(job, SilentReporter())
    assert [(row["d"], row["precision"]) for row in document["rows"]] == [
        (d, precision) for d in (2, 8) for precision in ("single", "double")
    ]
    assert all(0.01 < row["dkgp_ns"] < 1000.0 for row in document["rows"])
    assert json.loads((tmp_path / "t.json").read_text()) == json.loads(json.dumps(document))
    run_bench_tiles(job, SilentReporter())  # an earlier record is replaced
    assert len(tables(document)) == 2


def test_records_replace_nothing_but_records(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"command": "tune"}')
    with pytest.raises(OutputExistsError):
        run_bench_tiles(BenchTilesJob(out=str(tmp_path / "mine.json")), SilentReporter())


@pytest.mark.usefixtures("contenders_in_process")
def test_solve_agrees_with_cholesky(problem: BenchProblem, tmp_path: Path) -> None:
    job = BenchSolveJob(problem=problem, solvers=("gbcd",), repeats=1, out=str(tmp_path / "solve.json"))
    document = run_bench_solve(job, SilentReporter())
    rows = {row["contender"]: row for row in document["rows"]}
    assert set(rows) == {"gbcd", "cholesky", "plain_pass"}
    figures = document["figures"]
    allowed = figures["alpha_difference_of_gbcd_allowed_by_certificate"]
    assert figures["largest_alpha_difference_gbcd_to_cholesky"] <= allowed
    assert rows["gbcd"]["rmse"] == pytest.approx(rows["cholesky"]["rmse"], abs=1e-4)
    assert rows["gbcd"]["gradient_inf_norm"] <= 1e-4
    assert all(row["peak_memory_bytes"] > 50e6 for row in document["rows"])
    ratio = rows["gbcd"]["seconds"] / rows["cholesky"]["seconds"]
    assert figures["seconds_gbcd_to_cholesky"] == pytest.approx(ratio)


@pytest.mark.usefixtures("contenders_in_process")
def test_several_solvers_each_with_the_options_that_it_has(problem: BenchProblem) -> None:
    options = SolverOptions(block_size=70, rank=30, max_passes=2.0)
    job = BenchSolveJob(
        problem=problem, solver=options, solvers=("auto", "gbcd", "pcg"), repeats=1, with_plain_pass=False
    )
    document = run_bench_solve(job, SilentReporter())
    runs = document["settings"]["runs"]
    assert runs["gbcd"][0]["solver"]["block_size"] == 70
    assert runs["pcg"][0]["solver"]["preconditioner"]["rank"] == 30
    rows = {row["contender"]: row for row in document["rows"]}
    assert "block size 70" in rows["gbcd"]["note"]
    assert "rank 30" in rows["pcg"]["note"]
    # Two passes are too few for either, and enough for the factor that auto takes for so few samples.
    assert [rows[name]["note"].startswith("cut off: ") for name in ("auto", "gbcd", "pcg")] == [False, True, True]
    for name in ("auto", "gbcd", "pcg"):
        parts = runs[name][0]["seconds_by_part"]
        assert sum(parts.values()) == pytest.approx(runs[name][0]["seconds"])
        assert ("choose" in parts) == (name == "auto")
        ratio = runs[name][0]["seconds"] / runs["cholesky"][0]["seconds"]
        assert document["figures"][f"seconds_{name}_to_cholesky"] == pytest.approx(ratio)


def test_kept_tiles_are_said_with_the_speed_that_they_are_read_at() -> None:
    settings = {"solver": "pcg", "preconditioner": {"halo": 1500, "leaf": 750, "rank": 0, "seed": 3}}
    parts = {"factor": 2.0, "product": 1.5}
    run = {"solver": settings, "converged": True, "kept_share": 1.0, "iterations": 31, "seconds_by_part": parts}
    said = _note_of([run], 30_000)
    # 30 products of 4 * n^2 / 2 bytes each: 54 GB in 1.5 s.
    assert said == (
        "pcg (halo 1,500, leaf 750, rank 0): factor 2.00, product 1.50 s; 100% of K kept, read at 36.0 GB/s or more"
    )
    assert "kept" not in _note_of([{**run, "kept_share": 0.0}], 30_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solvers": ()}, "name different solvers"),
        ({"solvers": ("gbcd", "gbcd")}, "name different solvers"),
        ({"solvers": ("cholesky",)}, r"none as the references are \(cholesky, plain_pass\)"),
        (
            {"solvers": ("gbcd",), "solver": SolverOptions(rank=9)},
            "`rank` belongs to the solver pcg; got `solver` gbcd",
        ),
    ],
)
def test_solvers_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BenchSolveJob(**settings)


@pytest.mark.long
def test_cholesky_is_left_out_where_it_does_not_fit(problem: BenchProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.bench.contenders.available_bytes", lambda: 2**20)
    reporter = SilentReporter()
    job = BenchSolveJob(problem=problem, solvers=("gbcd",), repeats=1, with_plain_pass=False)
    document = run_bench_solve(job, reporter)
    assert [row["contender"] for row in document["rows"]] == ["gbcd"]
    assert document["rows"][0]["peak_memory_bytes"] > 50e6  # of a process of its own
    assert "2,880,000 bytes" in reporter.warnings[0]


@pytest.mark.usefixtures("contenders_in_process")
def test_overhead_finds_alpha_bit_identical(problem: BenchProblem) -> None:
    job = BenchOverheadJob(problem=problem, solver=SolverOptions(block_size=100), kinds=("none", "local"), repeats=1)
    document = run_bench_overhead(job, SilentReporter())
    assert document["figures"]["bit_identical"] is True
    assert [row["cluster"] for row in document["rows"]] == ["none", "local"]
    assert document["rows"][0]["ratio"] == 1.0


@pytest.mark.slow  # for its processes; tests/engine sees the bits
def test_products_are_the_same_bits_for_everybody(tmp_path: Path) -> None:
    job = BenchProductsJob(samples=700, features=3, vectors=(1, 2), workers=1, repeats=1, out=str(tmp_path / "p.json"))
    document = run_bench_products(job, SilentReporter())
    rows = [(row["cluster"], row["vectors"], row["entries"]) for row in document["rows"]]
    contenders = [("none", "evaluated"), ("none", "read"), ("local", "evaluated"), ("processes", "evaluated")]
    bare = ("bare", 1, "evaluated")
    raced = [(cluster, t, entries) for cluster, entries in contenders for t in (1, 2)]
    assert [row for row in rows if row != bare] == raced
    assert rows.count(bare) == 1
    # The lower half is read, and what lies across the diagonal whole.
    assert 2 * 700**2 <= document["settings"]["kept_bytes"] <= 4 * 700**2
    assert document["figures"]["read_to_evaluated"] > 0.0
    assert worker_tiles().nbytes == 0


def test_files_and_stores_are_problems_too(tmp_path: Path, rng: np.random.Generator) -> None:
    X = rng.random((300, 3))
    np.savez(tmp_path / "data.npz", X=X, y=X.sum(axis=1) + 0.1 * rng.standard_normal(300))
    write_friedman1(tmp_path / "f.zarr", None, 300)
    for data in ("data.npz", "f.zarr"):
        folder = tmp_path / f"of-{data}"
        folder.mkdir()
        chosen = BenchProblem(data=str(tmp_path / data), n=200, n_test=50, subset=100)
        prepared = prepare_problem(chosen, folder, SilentReporter())
        assert prepared.n == 200
        assert prepared.test is not None
    with pytest.raises(InputError, match="300 samples"):
        prepare_problem(BenchProblem(data=str(tmp_path / "data.npz"), n=301), tmp_path, SilentReporter())


# `dkgp bench products`: the ratios that count, by name and with their noise.


@pytest.mark.slow
def test_ratios_stand_beside_their_noise() -> None:
    found = run_bench_products(
        BenchProductsJob(samples=600, features=2, vectors=(1,), repeats=2, halo=40), SilentReporter()
    )
    named = {"read_to_evaluated", "in_process_dask_to_none", "speedup_of_2_workers", "factor_speedup_of_2_workers"}
    assert named <= set(found["figures"])
    for name in named:
        least, most = found["null"][name]
        assert 0.0 < least <= most
        assert found["figures"][name] > 0.0
    assert [(row["cluster"], row["workers"]) for row in found["rows"]] == [
        ("none", 2),
        ("none", 2),
        ("local", 2),
        ("processes", 1),
        ("processes", 2),
        ("bare", 1),
        ("bare", 2),
    ]
    assert found["figures"]["speedup_of_2_bare_processes"] > 0.0
    assert set(found["settings"]["factor_seconds"]) == {"1", "2"}


@pytest.mark.parametrize("of", [1, 2, 5])
def test_bare_processes_share_all_tasks_out(of: int) -> None:
    shares = [share_of(91, share, of) for share in range(of)]
    assert sorted(number for share in shares for number in share) == list(range(91))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
