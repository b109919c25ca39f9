"""`dkgp bench selection`: greedy against cyclic and gradient selection, on a problem too small to mean anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dkgp.bench.problem import BenchProblem
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp_benchmarks.selection import BenchSelectionJob, run_bench_selection


@pytest.mark.long
def test_selection_compares_all_three(tmp_path: Path) -> None:
    hyper = tmp_path / "hyper.json"
    hyper.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    problem = BenchProblem(n=600, n_test=100, hyper=str(hyper))
    options = SolverOptions(block_size=60, memory=0, max_passes=4.0)
    job = BenchSelectionJob(problem=problem, solver=options, plot=str(tmp_path / "s.png"))
    document = run_bench_selection(job, SilentReporter())
    gaps = {row["selection"][:4]: row["objective_gap"] for row in document["rows"]}
    # The paper's Figure 3: per iteration greedy selection is ahead of the other two.
    assert 0.0 <= gaps["GBCD"] < min(gaps["BCDC"], gaps["BCDG"])
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
