"""`dkgp bench overhead`: the same solve without Dask, on a Dask cluster in one process, and on worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.bench.contenders import ratio, take_turns
from dkgp.bench.problem import ProblemJob
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import Column, median, report, write_record
from dkgp.commands.reporting.progress import Reporter

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
class BenchOverheadJob(ProblemJob):
    """A comparison of the same solve without Dask and with it; medians of interleaved repeats."""

    workers: int | None = None
    kinds: tuple[str, ...] = KINDS
    repeats: int = 3
    null: bool = False


def run_bench_overhead(job: BenchOverheadJob, reporter: Reporter) -> Document:
    """Measure; return seconds and ratios, and whether alpha is the same to the last bit."""
    with job.prepared(reporter) as (prepared, folder):

        def describe(kind: str, repeat: int) -> dict[str, Any]:
            return {
                "contender": "solve",
                **prepared.to_json(),
                "test": None,
                "alpha": str(folder / f"{kind}-{repeat}.npy"),
                "solver": job.solver.to_json(),
                "cluster": {"kind": kind, "workers": None if kind == "none" else job.workers},
            }

        runs = take_turns("bench overhead", job.kinds, job.repeats, describe, reporter, copied=job.kinds[:1] * job.null)
        alphas = {
            kind: [np.load(folder / f"{kind}-{repeat}.npy", allow_pickle=False) for repeat in range(job.repeats)]
            for kind in job.kinds
        }
    first = job.kinds[0]
    reference = alphas[first][0]
    rows = [
        {
            "cluster": kind,
            "seconds": median([run["seconds"] for run in runs[kind]]),
            "start_seconds": median([run["start_seconds"] for run in runs[kind]]),
            "ratio": 1.0 if kind == first else ratio(runs, kind, first, "seconds"),
            "peak_memory_bytes": median([run["peak_memory_bytes"] for run in runs[kind]]),
            "iterations": runs[kind][-1]["iterations"],
            "bit_identical": all(alpha.tobytes() == reference.tobytes() for alpha in alphas[kind]),
        }
        for kind in job.kinds
    ]
    figures = {f"seconds_{row['cluster']}_to_{first}": row["ratio"] for row in rows[1:]}
    figures["bit_identical"] = all(row["bit_identical"] for row in rows)
    title = job.title("Overhead of Dask", prepared, f"median of {job.repeats}")
    settings = {**job.settings(prepared), "repeats": job.repeats, "runs": runs}
    return write_record(report("overhead", title, COLUMNS, rows, figures, **settings), job.out)
