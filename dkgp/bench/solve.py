"""`dkgp bench solve`: GBCD against LAPACK's Cholesky and one plain NumPy pass: same data, same run, own processes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.contenders import cholesky_bytes, fits_cholesky, run_contender
from dkgp.bench.problem import BenchProblem, PreparedProblem, prepare_problem
from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import (
    ENTRIES,
    Column,
    check_record_file,
    median,
    median_ratio,
    report,
    write_record,
)
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions

__all__ = ["BenchSolveJob", "run_bench_solve"]

Runs = dict[str, list[dict[str, Any]]]

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
class BenchSolveJob:
    """A comparison of GBCD with Cholesky and a plain pass over the kernel matrix, on one problem.

    Attributes
    ----------
    problem, solver, cluster
        The data, and how GBCD solves it.
    repeats
        Turns that every contender takes; medians are reported.
    with_cholesky, with_plain_pass
        Whether these contenders take part.
    """

    problem: BenchProblem = field(default_factory=BenchProblem)
    solver: SolverOptions = field(default_factory=SolverOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    repeats: int = 3
    with_cholesky: bool = True
    with_plain_pass: bool = True
    out: str | None = None


def run_bench_solve(job: BenchSolveJob, reporter: Reporter) -> Document:
    """Measure; return seconds, passes, peak memory and RMSE of each contender, and the ratios."""
    check_record_file(job.out)
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
        prepared = prepare_problem(job.problem, Path(name), reporter)
        fits = fits_cholesky(prepared.n)
        if job.with_cholesky and not fits:
            reporter.warn(
                f"Cholesky is left out: its matrix takes {cholesky_bytes(prepared.n):,} bytes, "
                f"{available_bytes():,} are available"
            )
        contenders = ["gbcd"]
        contenders += ["cholesky"] if job.with_cholesky and fits else []
        contenders += ["plain_pass"] if job.with_plain_pass else []
        runs = _run_all(job, contenders, prepared, Path(name), reporter)
        figures = _figures(runs, Path(name))
    rows = [_row(contender, runs[contender], prepared.n) for contender in contenders]
    title = f"Solve: {job.problem.data}, n = {prepared.n:,}, d = {prepared.d}, median of {job.repeats}"
    settings = {"problem": asdict(job.problem), "solver": job.solver.to_json(), "repeats": job.repeats, "runs": runs}
    document = report("solve", title, COLUMNS, rows, figures, n=prepared.n, d=prepared.d, **settings)
    document["warnings"] = list(reporter.warnings)
    write_record(document, job.out)
    return document


def _run_all(
    job: BenchSolveJob, contenders: list[str], prepared: PreparedProblem, folder: Path, reporter: Reporter
) -> Runs:
    runs: Runs = {name: [] for name in contenders}
    total = job.repeats * len(contenders)
    with reporter.work("bench solve") as show:
        for repeat in range(job.repeats):
            for name in contenders:
                show(WorkProgress(name, sum(map(len, runs.values())), total, "runs"))
                description = {
                    "contender": name,
                    **prepared.to_json(),
                    "alpha": str(folder / f"{name}-{repeat}.npy"),
                    "solver": job.solver.to_json(),
                    "cluster": asdict(job.cluster),
                }
                runs[name].append(run_contender(description, warn=reporter.warn))
        show(WorkProgress("done", total, total, "runs"))
    return runs


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
    def ratio(name: str, figure: str) -> float:
        return median_ratio([run[figure] for run in runs["gbcd"]], [run[figure] for run in runs[name]])

    figures: dict[str, Any] = {}
    if "cholesky" in runs:
        figures["seconds_gbcd_to_cholesky"] = ratio("cholesky", "seconds")
        factor_seconds = [run["factor_seconds"] for run in runs["cholesky"]]
        figures["seconds_gbcd_to_cholesky_factor_alone"] = median_ratio(
            [run["seconds"] for run in runs["gbcd"]], factor_seconds
        )
        figures["memory_gbcd_to_cholesky"] = ratio("cholesky", "peak_memory_bytes")
        ours, exact = (np.load(folder / f"{name}-0.npy", allow_pickle=False) for name in ("gbcd", "cholesky"))
        figures["largest_alpha_difference"] = float(np.max(np.abs(ours - exact)))
        figures["alpha_difference_allowed_by_certificate"] = runs["gbcd"][0]["alpha_error_bound"]
        if runs["gbcd"][0].get("rmse") is not None:
            figures["rmse_difference"] = abs(runs["gbcd"][0]["rmse"] - runs["cholesky"][0]["rmse"])
    if "plain_pass" in runs:
        figures["seconds_gbcd_to_plain_pass"] = ratio("plain_pass", "seconds")
    return figures
