"""The noise of the ratios: the baseline raced against its own copy, said beside each ratio and recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dkgp.bench.contenders import copy_of
from dkgp.bench.problem import BenchProblem
from dkgp.commands.reporting.progress import SilentReporter
from dkgp_benchmarks.solvers import BenchSolversJob, run_bench_solvers
from dkgp_benchmarks.variance.measure import VarianceTrial
from dkgp_benchmarks.variance.report import BenchVarianceJob, run_bench_variance


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_variances_race_cholesky_against_itself(tmp_path: Path) -> None:
    hyper = tmp_path / "hyper.json"
    hyper.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    problem = BenchProblem(n=300, n_test=30, hyper=str(hyper))
    trial = VarianceTrial(problem=problem, repeats=1, null=True, with_plain_pass=False)
    document = run_bench_variance(BenchVarianceJob(trial), SilentReporter())
    runs = document["settings"]["runs"]
    expected = runs[copy_of("cholesky")][0]["seconds"] / runs["cholesky"][0]["seconds"]
    assert document["null"]["seconds_to_cholesky"] == pytest.approx([expected, expected])
    assert len(document["rows"]) == 2


def test_solvers_run_the_best_of_each_repeat_again() -> None:
    job = BenchSolversJob(sizes=(150,), solvers=("cholesky",), repeats=2, null=True, subset=100)
    document = run_bench_solvers(job, SilentReporter())
    assert all(row["null"]["to_best"] == document["rows"][0]["null"]["to_best"] for row in document["rows"])
    assert 0.0 < document["rows"][0]["null"]["to_best"][0] <= document["rows"][0]["null"]["to_best"][1]
    assert document["null"]["auto_over_best_largest"] == document["rows"][0]["null"]["to_best"]
