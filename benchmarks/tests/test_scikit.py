"""`dkgp bench scikit`, on a problem too small to mean anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp_benchmarks.scikit import TASKS, kernels, run_bench_scikit


@pytest.mark.long
def test_every_task_of_every_kernel_is_raced(tmp_path: Path) -> None:
    out = tmp_path / "scikit.json"
    document = run_bench_scikit(SilentReporter(), sizes=[20], repeats=1, seed=0, null=True, out=str(out))
    assert [row["kernel"] for row in document["rows"]] == list(kernels())
    for row in document["rows"]:
        assert all(0.0 < row[task] < 100.0 for task in TASKS)
        assert row["null"].keys() == TASKS.keys()
    assert document["figures"]["worst_20"] == max(row[task] for row in document["rows"] for task in TASKS)
    assert json.loads(out.read_text())["rows"] == document["rows"]
