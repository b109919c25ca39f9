"""`dkgp bench overhead`: the same solve without Dask, on a Dask cluster in one process, and on worker processes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.contenders import run_contender
from dkgp.bench.problem import BenchProblem, prepare_problem
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import Column, check_record_file, median, median_ratio, report, write_record
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions

__all__ = ["BenchOverheadJob", "run_bench_overhead"]

KINDS = ("none", "local", "processes")

COLUMNS = (
    Column("cluster", "cluster", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("start_seconds", "start, s", ".2f"),
    Column("ratio", "ratio to none", ".3f"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
    Column("iterations", "rounds", "d"),
    Column("bit_identical", "alpha bit-identical to none", text=True),
)


@dataclass(frozen=True)
class BenchOverheadJob:
    """A comparison of the same solve without Dask and with it; medians of interleaved repeats."""

    problem: BenchProblem = field(default_factory=BenchProblem)
    solver: SolverOptions = field(default_factory=SolverOptions)
    workers: int | None = None
    kinds: tuple[str, ...] = KINDS
    repeats: int = 3
    out: str | None = None


def run_bench_overhead(job: BenchOverheadJob, reporter: Reporter) -> Document:
    """Measure; return seconds and ratios, and whether alpha is the same to the last bit."""
    check_record_file(job.out)
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in job.kinds}
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
        prepared = prepare_problem(job.problem, Path(name), reporter)
        with reporter.work("bench overhead") as show:
            for repeat in range(job.repeats):
                for kind in job.kinds:
                    show(WorkProgress(kind, sum(map(len, runs.values())), job.repeats * len(job.kinds), "runs"))
                    workers = None if kind == "none" else job.workers
                    description = {
                        "contender": "gbcd",
                        **prepared.to_json(),
                        "test": None,
                        "alpha": str(Path(name) / f"{kind}-{repeat}.npy"),
                        "solver": job.solver.to_json(),
                        "cluster": {"kind": kind, "workers": workers},
                    }
                    runs[kind].append(run_contender(description))
            show(WorkProgress("done", job.repeats * len(job.kinds), job.repeats * len(job.kinds), "runs"))
        alphas = {
            kind: [np.load(Path(name) / f"{kind}-{repeat}.npy", allow_pickle=False) for repeat in range(job.repeats)]
            for kind in job.kinds
        }
    first = job.kinds[0]
    reference = alphas[first][0]
    seconds = {kind: [run["seconds"] for run in found] for kind, found in runs.items()}
    rows = [
        {
            "cluster": kind,
            "seconds": median(seconds[kind]),
            "start_seconds": median([run["start_seconds"] for run in runs[kind]]),
            "ratio": median_ratio(seconds[kind], seconds[first]),
            "peak_memory_bytes": median([run["peak_memory_bytes"] for run in runs[kind]]),
            "iterations": runs[kind][-1]["iterations"],
            "bit_identical": all(alpha.tobytes() == reference.tobytes() for alpha in alphas[kind]),
        }
        for kind in job.kinds
    ]
    figures = {f"seconds_{row['cluster']}_to_{first}": row["ratio"] for row in rows[1:]}
    figures["bit_identical"] = all(row["bit_identical"] for row in rows)
    title = f"Overhead of Dask: {job.problem.data}, n = {prepared.n:,}, d = {prepared.d}, median of {job.repeats}"
    settings = {"problem": asdict(job.problem), "solver": job.solver.to_json(), "repeats": job.repeats, "runs": runs}
    document = report("overhead", title, COLUMNS, rows, figures, n=prepared.n, d=prepared.d, **settings)
    write_record(document, job.out)
    return document
