"""`dkgp bench solve`: GBCD against LAPACK's Cholesky and one plain NumPy pass: same data, same run, own processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.contenders import Runs, room_for_cholesky, take_turns
from dkgp.bench.problem import ProblemJob
from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import ENTRIES, Column, median, median_ratio, report, write_record
from dkgp.commands.reporting.progress import Reporter

__all__ = ["BenchSolveJob", "run_bench_solve"]

COLUMNS = (
    Column("contender", "contender", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("column_passes", "passes", ".2f"),
    ENTRIES,
    Column("peak_memory_bytes", "peak memory", "bytes"),
    Column("rmse", "RMSE", ".6f"),
    Column("gradient_inf_norm", "max |g|", ".2e"),
    Column("note", "", text=True),
)


@dataclass(frozen=True)
class BenchSolveJob(ProblemJob):
    """A comparison of GBCD with Cholesky and a plain pass over the kernel matrix, on one problem.

    Attributes
    ----------
    cluster
        Where GBCD runs.
    repeats
        Turns that every contender takes; medians are reported.
    with_cholesky, with_plain_pass
        Whether these contenders take part.
    """

    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    repeats: int = 3
    with_cholesky: bool = True
    with_plain_pass: bool = True


def run_bench_solve(job: BenchSolveJob, reporter: Reporter) -> Document:
    """Measure; return seconds, passes, peak memory and RMSE of each contender, and the ratios."""
    with job.prepared(reporter) as (prepared, folder):
        contenders = ["gbcd"]
        contenders += ["cholesky"] if job.with_cholesky and room_for_cholesky(prepared.n, reporter.warn) else []
        contenders += ["plain_pass"] if job.with_plain_pass else []

        def describe(name: str, repeat: int) -> dict[str, Any]:
            return {
                "contender": name,
                **prepared.to_json(),
                "alpha": str(folder / f"{name}-{repeat}.npy"),
                "solver": job.solver.to_json(),
                "cluster": asdict(job.cluster),
            }

        runs = take_turns("bench solve", contenders, job.repeats, describe, reporter)
        figures = _figures(runs, folder)
    rows = [_row(contender, runs[contender], prepared.n) for contender in contenders]
    title = job.title("Solve", prepared, f"median of {job.repeats}")
    settings = {**job.settings(prepared), "repeats": job.repeats, "runs": runs}
    document = report("solve", title, COLUMNS, rows, figures, **settings)
    document["warnings"] = list(reporter.warnings)
    return write_record(document, job.out)


def _row(name: str, runs: list[dict[str, Any]], n: int) -> dict[str, Any]:
    last = runs[-1]
    notes = {
        "gbcd": f"m = {last.get('block_size')}",
        "cholesky": f"assembly {last.get('assembly_seconds', 0):.2f} s, factor {last.get('factor_seconds', 0):.2f} s",
        "plain_pass": "float64, tiles of 4,096",
    }
    return {
        "contender": name,
        "seconds": median([run["seconds"] for run in runs]),
        "peak_memory_bytes": median([run["peak_memory_bytes"] for run in runs]),
        "column_passes": 1.0 if name == "plain_pass" else last.get("column_passes"),
        "entries": last["kernel_evaluations"] / n**2 if "kernel_evaluations" in last else None,
        "rmse": last.get("rmse"),
        "gradient_inf_norm": last.get("gradient_inf_norm"),
        "note": notes[name],
    }


def _figures(runs: Runs, folder: Path) -> dict[str, Any]:
    def ratio(name: str, figure: str, other: str | None = None) -> float:
        return median_ratio([run[figure] for run in runs["gbcd"]], [run[other or figure] for run in runs[name]])

    figures: dict[str, Any] = {}
    if "cholesky" in runs:
        figures["seconds_gbcd_to_cholesky"] = ratio("cholesky", "seconds")
        figures["seconds_gbcd_to_cholesky_factor_alone"] = ratio("cholesky", "seconds", "factor_seconds")
        figures["memory_gbcd_to_cholesky"] = ratio("cholesky", "peak_memory_bytes")
        ours, exact = (np.load(folder / f"{name}-0.npy", allow_pickle=False) for name in ("gbcd", "cholesky"))
        figures["largest_alpha_difference"] = float(np.max(np.abs(ours - exact)))
        figures["alpha_difference_allowed_by_certificate"] = runs["gbcd"][0]["alpha_error_bound"]
        if runs["gbcd"][0].get("rmse") is not None:
            figures["rmse_difference"] = abs(runs["gbcd"][0]["rmse"] - runs["cholesky"][0]["rmse"])
    if "plain_pass" in runs:
        figures["seconds_gbcd_to_plain_pass"] = ratio("plain_pass", "seconds")
    return figures
