"""Table 2 of the GBCD paper: seconds and test errors of the iterative methods, with passes and iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.papers.runs import SolverRun, Workbench, paper_contenders
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.measurements import ENTRIES, Column
from dkgp.commands.solver_options import SolverOptions
from dkgp.kernels import SquaredExponential, kernel_text
from dkgp.models import Hyperparameters

__all__ = ["PAPER_SECONDS", "TABLE_2_COLUMNS", "said", "section", "table_2", "thinned"]

# Table 2: Chol, CG, SMO, BCDC, BCDG, GBCD; none where the paper gave up after ten hours.
PAPER_SECONDS: dict[str, dict[str, float | None]] = {
    "california": {"cholesky": 128, "cg": 1958, "smo": 231, "bcdc": 331, "bcdg": 25563, "gbcd": 92},
    "outaouais": {"cholesky": 136, "cg": 24408, "smo": 10320, "bcdc": 5366, "bcdg": None, "gbcd": 1154},
    "kin40k": {"cholesky": 130, "cg": 14956, "smo": 5910, "bcdc": 3677, "bcdg": None, "gbcd": 975},
    "sarcos": {"cholesky": 132, "cg": 12880, "smo": 4295, "bcdc": 2172, "bcdg": None, "gbcd": 217},
    "friedman1": {"cholesky": 126, "cg": 4732, "smo": 32899, "bcdc": 122, "bcdg": None, "gbcd": 106},
}
PAPER_RMSE = {"california": 0.477, "outaouais": 0.216, "kin40k": 0.098, "sarcos": 0.128, "friedman1": 0.017}

TABLE_2_COLUMNS = (
    Column("solver", "solver", text=True),
    Column("converged", "converged", text=True),
    Column("gradient_inf_norm", "max |g|", ".1e"),
    Column("iteration", "iterations", ",d"),
    Column("column_passes", "passes", ",.2f"),
    ENTRIES,
    Column("passes_shown", "passes / GBCD's", text=True),
    Column("seconds", "seconds", ",.2f"),
    Column("seconds_shown", "seconds / GBCD's", text=True),
    Column("paper_ratio", "in the paper", text=True),
    Column("rmse", "RMSE", ".5f"),
    Column("mean_difference", "from Cholesky's mean", ".1e"),
)


def section(name: str, title: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], **figures: Any) -> Document:
    """One table of the document, in plain JSON types."""
    return {
        "section": name,
        "title": title,
        "columns": [dict(vars(column)) for column in columns],
        "rows": plain(rows),
        "figures": plain(figures),
    }


def table_2(bench: Workbench, options: SolverOptions) -> Document:
    """Run every method of Table 2; the ratios are to GBCD with the paper's settings."""
    data, exact = bench.data, bench.exact()
    runs = [bench.run(contender) for contender in paper_contenders(options, data.n)]
    paper = PAPER_SECONDS.get(data.name, {})
    rows: list[dict[str, Any]] = []
    if exact is not None:
        rows.append(
            {
                "solver": "Cholesky in memory",
                "key": "cholesky",
                "converged": True,
                "seconds": exact.seconds,
                "rmse": exact.rmse,
                "paper_ratio": _paper_ratio(paper, "cholesky"),
                "seconds_shown": _shown(exact.seconds, runs[0], "seconds", finished=True)[1],
            }
        )
    for run in runs:
        row = run.to_json()
        for name, figure in (("passes", "column_passes"), ("seconds", "seconds")):
            row[f"{name}_ratio"], row[f"{name}_shown"] = _shown(row[figure], runs[0], figure, finished=run.converged)
        row["paper_ratio"] = _paper_ratio(paper, run.contender.key)
        rows.append(row)
    figures: dict[str, Any] = {
        "gaussian_process": said(data.found),
        "paper_rmse": PAPER_RMSE.get(data.name, "not in its Table 2"),
        "reached_the_tolerance": f"{sum(run.converged for run in runs)} of {len(runs)}",
    }
    rivals = [
        (run.last.column_passes, run)
        for run in runs
        if run.converged and run.contender.key in PAPER_SECONDS["friedman1"] and run.last
    ]
    if rivals:
        figures["fewest_passes_of_the_papers_methods"] = min(rivals, key=lambda each: each[0])[1].contender.label
    for run in runs:
        if not run.converged:
            figures[f"{run.contender.label}_stopped"] = run.reason
    p = data.targets.shape[1]
    title = (
        f"Table 2: {data.name}, n = {data.n:,}, d = {data.inputs.shape[1]}, {p} target{'s' if p > 1 else ''}, "
        f"{len(data.test_inputs):,} test samples, tolerance {options.tolerance:g}"
    )
    return section(f"table_2:{data.name}", title, TABLE_2_COLUMNS, rows, **figures)


def said(found: Hyperparameters) -> str:
    """Hyperparameters in a line."""
    if isinstance(found.kernel, SquaredExponential):
        shown = f"gamma {', '.join(f'{value:.3g}' for value in found.kernel.gamma)}"
    else:
        shown = "; ".join(kernel_text(found.kernel.to_json(), found.feature_names or ()).splitlines())
    return f"noise variance {found.noise_variance:.4g}, {shown}"


def thinned(count: int, most: int) -> NDArray[np.int64]:
    """Indices of the points that a curve shows: all, or `most` evenly on a logarithmic scale, the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, most).round().astype(np.int64)) - 1


def _shown(value: float | None, reference: SolverRun, name: str, *, finished: bool) -> tuple[float | None, str]:
    """A ratio to GBCD's figure and how it is said: a bound from below where only GBCD finished."""
    if value is None or reference.last is None or not reference.converged:
        return None, "-"
    ratio = value / getattr(reference.last, name)
    return ratio, f"{ratio:,.2f}" if finished else f"> {ratio:,.1f}"


def _paper_ratio(seconds: dict[str, float | None], key: str) -> str:
    if key not in seconds:
        return "-"
    value, gbcd = seconds[key], seconds["gbcd"]
    assert gbcd is not None
    return f"> {36_000.0 / gbcd:,.0f}" if value is None else f"{value / gbcd:,.2f}"
