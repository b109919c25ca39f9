"""`dkgp bench sparse --tuned`: the rows of two searches, their scores by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.bench.problem import BenchProblem
from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import UsageError
from dkgp_benchmarks.sparse.job import BenchSparseJob
from dkgp_benchmarks.sparse.tuned import run_bench_sparse_tuned

HERE = ClusterOptions(kind="none")


@pytest.mark.long
def test_both_searches_are_scored_by_one_model(tmp_path: Path) -> None:
    """The function is rough: 60 samples describe it less well than 600."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (700, 1))
    np.savez(tmp_path / "airfoil.npz", X=X, y=np.sin(9.0 * X[:, 0]) + 0.1 * rng.standard_normal(700))
    problem = BenchProblem(data=str(tmp_path / "airfoil.npz"), n=100_000, n_test=100, subset=60)
    job = BenchSparseJob(problem=problem, sizes=(10,), cluster=HERE, out=str(tmp_path / "tuned.json"))
    document = run_bench_sparse_tuned(job, SilentReporter())
    subset, neighbours = document["rows"]
    assert [(row["tuned_by"], row["n"], row["d"]) for row in (subset, neighbours)] == [
        ("subset", 600, 1),
        ("neighbours", 600, 1),
    ]
    # The noise is a hundredth, of a variance of a half.
    assert neighbours["noise_variance"] == pytest.approx(0.02, rel=0.25)
    assert neighbours["rmse"] == pytest.approx(np.sqrt(0.02), rel=0.25)
    assert neighbours["nlpd"] < subset["nlpd"]
    assert document["figures"]["lower_nlpd_by_neighbours"] == "1 of 1"
    difference = document["figures"]["nlpd_difference_mean"]
    assert difference == pytest.approx(neighbours["nlpd"] - subset["nlpd"], abs=1e-12)
    assert 0.8 < neighbours["coverage"] <= 1.0
    assert min(subset["processor_seconds"], neighbours["processor_seconds"]) > 0.0


def test_what_the_benchmark_decides_itself_is_refused(tmp_path: Path) -> None:
    job = BenchSparseJob(problem=BenchProblem(data=str(tmp_path)))
    for other in (replace(job, methods=("vfe",)), replace(job, sizes=(10, 20))):
        with pytest.raises(UsageError, match="`tuned` finds its own hyperparameters"):
            run_bench_sparse_tuned(other, SilentReporter())
