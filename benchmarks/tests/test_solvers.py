"""`dkgp bench solvers`: times of all, and how near auto comes to the best of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.commands.solver_options import SolverOptions
from dkgp.errors import InputError, UsageError
from dkgp_benchmarks.solvers import BenchSolversJob, run_bench_solvers


def test_a_row_for_each_size_and_solver(tmp_path: Path) -> None:
    out = tmp_path / "solvers.json"
    job = BenchSolversJob(sizes=(150, 300), solvers=("gbcd", "cholesky"), repeats=2, subset=100, out=str(out))
    document = run_bench_solvers(job, SilentReporter())
    assert json.loads(out.read_text()) == json.loads(json.dumps(document))
    rows = document["rows"]
    assert sorted((row["n"], row["solver"]) for row in rows) == sorted(
        (n, name) for n in (150, 300) for name in ("auto", "cholesky", "gbcd")
    )
    for n in (150, 300):
        of = {row["solver"]: row for row in rows if row["n"] == n}
        best = min(of[name]["seconds"] for name in ("cholesky", "gbcd"))
        assert all(row["to_best"] == pytest.approx(row["seconds"] / best) for row in of.values())
        assert of["auto"]["note"].startswith("cholesky: ")
        assert all(row["converged"] and row["seconds"] > 0.0 for row in of.values())
    ratios = [row["to_best"] for row in rows if row["solver"] == "auto"]
    assert document["figures"]["auto_over_best_largest"] == max(ratios)
    assert tables(document)


@pytest.mark.long
def test_problems_and_rivals_have_settings_of_their_own() -> None:
    job = BenchSolversJob(
        problems=("friedman1,n=400,noise=0.5,kernel=matern32", "friedman1,n=300"),
        solvers=("pcg,halo=0,rank=40", "cholesky"),
        cholesky_samples=350,
        subset=100,
    )
    rows = run_bench_solvers(job, SilentReporter())["rows"]
    of = {(row["data"], row["solver"]): row for row in rows}
    assert {(row["data"], row["n"]) for row in rows} == {("friedman1, s2 = 0.5, matern32", 400), ("friedman1", 300)}
    assert of["friedman1, s2 = 0.5, matern32", "cholesky"]["note"] == "left out beyond 350 samples"
    assert of["friedman1", "cholesky"]["converged"]
    assert all(of[data, "pcg,halo=0,rank=40"]["converged"] for data, _ in of)


def test_a_file_smaller_than_the_sizes_runs_once_with_all_it_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 2))
    np.savez(tmp_path / "small.npz", X=x, y=np.sin(x[:, 0]) + 0.1 * rng.standard_normal(200))
    job = BenchSolversJob(
        data=str(tmp_path), problems=("small",), sizes=(1000, 2000), solvers=("cholesky",), subset=100
    )
    assert {row["n"] for row in run_bench_solvers(job, SilentReporter())["rows"]} == {150}


def test_who_does_not_converge_is_cut_off_and_said_to_be() -> None:
    job = BenchSolversJob(
        sizes=(200,), solvers=("cholesky", "cg"), repeats=2, subset=100, solver=SolverOptions(max_passes=2.0)
    )
    rows = {row["solver"]: row for row in run_bench_solvers(job, SilentReporter())["rows"]}
    assert rows["cg"]["converged"] is False
    assert rows["cg"]["note"].startswith("cut off: ")
    assert math.isclose(rows["cholesky"]["to_best"], 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": (1,)}, "--sizes must be at least 2"),
        ({"repeats": 0}, "--repeats must be at least 1"),
        ({"solvers": ("auto",)}, "other than itself"),
        ({"solvers": ()}, "at least one solver"),
        ({"problems": ("nowhere",)}, "there is no data set 'nowhere'"),
        ({"problems": ("friedman1,size=3",)}, "of n, noise, kernel; got 'size=3'"),
        ({"problems": ("friedman1,noise=much",)}, "noise is a number; got 'much'"),
        ({"problems": ("friedman1,noise=0",)}, "noise is positive"),
        ({"solvers": ("pcg,halo=wide",)}, "neither a whole number nor 'auto'"),
        ({"solvers": ("gbcd,halo=3",)}, "`halo` belongs to the solver pcg; got `solver` gbcd"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, UsageError), match=message):
        run_bench_solvers(BenchSolversJob(**options), SilentReporter())
