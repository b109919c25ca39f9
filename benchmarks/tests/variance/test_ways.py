"""`dkgp bench variance --ways`: each way is timed, the default beside them, on problems that are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import UsageError
from dkgp_benchmarks.variance.ways import PROBLEMS, BenchWaysJob, run_bench_ways

HERE = ClusterOptions(kind="none")


def test_every_way_is_timed_beside_the_default(tmp_path: Path) -> None:
    np.savez(tmp_path / "kin40k.npz", X=np.random.default_rng(0).normal(size=(90, 3)))
    only = ("one-hot table", "kin40k", "california")  # of which the last is not there
    document = run_bench_ways(BenchWaysJob(HERE, 80, str(tmp_path), only), SilentReporter())
    rows = document["rows"]
    assert [row["problem"] for row in rows] == ["one-hot table", "kin40k"]
    assert [row["d"] for row in rows] == [29, 3]
    for row in rows:
        assert row["n"] + row["tests"] <= 90
        assert row["taken"] == "cholesky"
        assert row["unmet"] == 0
        ways = (row[f"{way}_cpu"] for way in ("cholesky", "iterative", "neighbours"))
        best = min(seconds for seconds in ways if seconds is not None)
        assert row["to_best"] == pytest.approx(row["auto_cpu"] / best)
        assert row["auto_seconds"] > 0.0
    assert document["figures"]["worst_to_best"] == max(row["to_best"] for row in rows)


def test_a_problem_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no problem 'dense'; choose among one-hot table, smooth"):
        run_bench_ways(BenchWaysJob(HERE, only=("dense",)), SilentReporter())


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_inputs_are_standardised(problem: object) -> None:
    X = problem.inputs(200, None, np.random.default_rng(0))  # type: ignore[attr-defined]
    if X is None:
        assert problem.file  # type: ignore[attr-defined]
        return
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(X.std(axis=0), 1.0)
