"""`dkgp plan --validate`: trains with 1 and 2 worker processes on this machine and sets that beside the plan."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.plan.figures import MachineFigures
from dkgp.plan.foreseen import Foreseen
from dkgp.plan.network import measure_cluster
from dkgp.plan.validation.processes import write_warm_up
from dkgp.plan.validation.scaling import compare_with_model, measure_scaling

WORKERS = (1, 2)


def validate(
    dataset: Dataset, hyperparameters: Hyperparameters, foreseen: Foreseen, machine: MachineFigures, reporter: Reporter
) -> dict[str, Any]:
    """Train for each number of workers once; return rows as `dkgp bench scaling` has them, and the passes taken.

    Each worker has one thread and shares this machine with the coordinator, whatever the plan is for. The model is
    given the products or passes that were taken: how well those were foreseen is said apart.
    """
    with tempfile.TemporaryDirectory(prefix="dkgp-plan-") as folder:
        warm, hyper = str(Path(folder) / "warm.zarr"), str(Path(folder) / "hyper.json")
        write_warm_up(dataset, warm)
        write_hyperparameters(hyper, hyperparameters)
        problem = {"train": dataset.url, "warm": warm, "hyper": hyper}
        scaling = measure_scaling(problem, foreseen.options, WORKERS, 1, reporter)
    # The plan may be for another cluster; these runs were on worker processes here.
    with open_executor(ClusterOptions(kind="processes", workers=1, threads_per_worker=1), 0, reporter) as executor:
        cluster = measure_cluster(executor)
    taken, counts = scaling.runs[WORKERS[0]][0]["column_passes"], foreseen.counts
    return {
        "rows": compare_with_model(scaling, foreseen, machine, cluster),
        "unit": counts.unit,
        "taken": taken,
        "expected": counts.expected,
        "within_interval": counts.low <= taken <= counts.high,
    }
