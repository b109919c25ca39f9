"""Table 2 of the GBCD paper: seconds and test errors of the iterative methods, with passes and iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.measurements import ENTRIES, Column, median
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.kernels import SquaredExponential, kernel_text
from dkgp.models import Hyperparameters

# Table 2: Chol, CG, SMO, BCDC, BCDG, GBCD; none where the paper gave up after ten hours.
PAPER_SECONDS: dict[str, dict[str, float | None]] = {
    "california": {"cholesky": 128, "cg": 1958, "smo": 231, "bcdc": 331, "bcdg": 25563, "gbcd": 92},
    "outaouais": {"cholesky": 136, "cg": 24408, "smo": 10320, "bcdc": 5366, "bcdg": None, "gbcd": 1154},
    "kin40k": {"cholesky": 130, "cg": 14956, "smo": 5910, "bcdc": 3677, "bcdg": None, "gbcd": 975},
    "sarcos": {"cholesky": 132, "cg": 12880, "smo": 4295, "bcdc": 2172, "bcdg": None, "gbcd": 217},
    "friedman1": {"cholesky": 126, "cg": 4732, "smo": 32899, "bcdc": 122, "bcdg": None, "gbcd": 106},
}
PAPER_RMSE = {"california": 0.477, "outaouais": 0.216, "kin40k": 0.098, "sarcos": 0.128, "friedman1": 0.017}
PAPER_SAMPLES, TEN_HOURS = 10_000, 36_000.0
# What stands in for a data set has the paper's figures beside it, named as those of another.
STANDS_IN = {"sarcos_test4449": "sarcos"}

TABLE_2_COLUMNS = (
    Column("solver", "solver", text=True),
    Column("converged_shown", "converged", text=True),
    Column("gradient_inf_norm", "max |g|", ".1e"),
    Column("iteration", "iterations", ",.0f"),
    Column("column_passes", "passes", ",.2f"),
    Column("column_passes_spread", "+-", ",.2f"),
    ENTRIES,
    Column("passes_shown", "passes / GBCD's", text=True),
    Column("seconds", "seconds", ",.2f"),
    Column("seconds_spread", "+-", ",.2f"),
    Column("paper_seconds", "paper, s", text=True),
    Column("seconds_shown", "seconds / GBCD's", text=True),
    Column("paper_ratio", "in the paper", text=True),
    Column("rmse", "RMSE", ".5f"),
    Column("rmse_spread", "+-", ".5f"),
    Column("paper_rmse", "paper", ".3f"),
    Column("mean_difference", "from Cholesky's mean", ".1e"),
    Column("phases_shown", "seconds by phase", text=True),
)
_MEANS = ("iteration", "column_passes", "kernel_evaluations", "entries", "seconds", "rmse")
_WORST = ("gradient_inf_norm", "relative_residual", "mean_difference")


def section(name: str, title: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], **figures: Any) -> Document:
    """One table of the document, in plain JSON types; spreads that no row has, as of one draw, have no column."""
    columns = tuple(
        column
        for column in columns
        if not column.name.endswith("spread") or any(row.get(column.name) is not None for row in rows)
    )
    return {
        "section": name,
        "title": title,
        "columns": [dict(vars(column)) for column in columns],
        "rows": plain(rows),
        "figures": plain(figures),
    }


def table_2(trials: Sequence[Document]) -> Document:
    """Make the table of some draws (`dkgp_benchmarks.papers.trials.trial`).

    Figures are means over the draws, with their standard deviations; max |g| and the distance from Cholesky's mean are
    the largest. Ratios are medians of those to GBCD with the paper's settings within each draw.
    """
    first = trials[0]
    problem = first["problem"]
    name = STANDS_IN.get(problem["name"], problem["name"])
    paper = PAPER_SECONDS.get(name, {})
    rows: list[dict[str, Any]] = []
    exact = [trial["exact"] for trial in trials if trial["exact"] is not None]
    if len(exact) == len(trials):
        row: dict[str, Any] = {"solver": "Cholesky in memory", "key": "cholesky", "converged": True}
        row |= _averaged(exact, ("seconds", "rmse"))
        row |= _ratio(trials, lambda trial: trial["exact"]["seconds"], "seconds", finished=True)
        rows.append(row)
    for index, run in enumerate(first["runs"]):
        runs = [trial["runs"][index] for trial in trials]
        row = {name: run[name] for name in ("solver", "key", "settings")}
        row |= _averaged(runs, _MEANS) | {name: _largest(runs, name) for name in _WORST}
        row["converged"] = all(each["converged"] for each in runs)
        for figure, short in (("column_passes", "passes"), ("seconds", "seconds")):
            row |= _ratio(trials, _figure(index, figure), figure, finished=row["converged"], short=short)
        arrived = sum(each["converged"] for each in runs)
        row["phases_shown"] = _phases(runs)
        row["converged_shown"] = f"{arrived} of {len(runs)}" if len(runs) > 1 else ("yes" if arrived else "no")
        rows.append(row)
    for row in rows:
        row["paper_seconds"] = _paper_seconds(paper, row["key"])
        row["paper_ratio"] = _paper_ratio(paper, row["key"])
        row["paper_rmse"] = PAPER_RMSE[name] if paper.get(row["key"]) is not None else None
    p = problem["targets"]
    title = (
        f"Table 2: {problem['name']}, n = {problem['n']:,}, d = {problem['d']}, {p} target{'s' if p > 1 else ''}, "
        f"{problem['n_test']:,} test samples, tolerance {first['tolerance']:g}{draws_said(trials)}"
    )
    return section(f"table_2:{problem['name']}", title, TABLE_2_COLUMNS, rows, **_figures(trials, name, paper))


def draws_said(trials: Sequence[Document]) -> str:
    """Say in a title of how many draws it is."""
    return f", mean of {len(trials)} draws" if len(trials) > 1 else ""


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where one is missing."""
    return None if not values or any(value is None for value in values) else float(np.mean(np.asarray(values, float)))


def spread_of(values: Sequence[float | None]) -> float | None:
    """Return the standard deviation over draws; None of fewer than two, or where one is missing."""
    if len(values) < 2 or any(value is None for value in values):
        return None
    return float(np.std(np.asarray(values, dtype=np.float64), ddof=1))


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


def _figures(trials: Sequence[Document], name: str, paper: dict[str, float | None]) -> dict[str, Any]:
    first = trials[0]
    runs = first["runs"]
    figures: dict[str, Any] = {
        "gaussian_process": said(Hyperparameters.from_json(first["problem"]["hyperparameters"])),
        "paper_rmse": PAPER_RMSE.get(name, "not in its Table 2"),
        "reached_the_tolerance": f"{sum(all(t['runs'][i]['converged'] for t in trials) for i in range(len(runs)))} of "
        f"{len(runs)}",
    }
    if paper:
        figures["the_papers_figures_are"] = f"of n = {PAPER_SAMPLES:,}" + (
            f", and of {name}: another data set" if name != first["problem"]["name"] else ""
        )
    rivals = [
        (mean_of([trial["runs"][index]["column_passes"] for trial in trials]), run["solver"])
        for index, run in enumerate(runs)
        if run["key"] in PAPER_SECONDS["friedman1"] and all(trial["runs"][index]["converged"] for trial in trials)
    ]
    if rivals:
        figures["fewest_passes_of_the_papers_methods"] = min(rivals)[1]
    for index, run in enumerate(runs):
        stopped = [trial["runs"][index]["reason"] for trial in trials if not trial["runs"][index]["converged"]]
        if stopped:
            figures[f"{run['solver']}_stopped"] = stopped[0]
    return figures


def _averaged(runs: Sequence[Document], names: Sequence[str]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for name in names:
        values = [each.get(name) for each in runs]
        means[name], means[f"{name}_spread"] = mean_of(values), spread_of(values)
    return means


def _largest(runs: Sequence[Document], name: str) -> float | None:
    values = [each[name] for each in runs]
    return None if any(value is None for value in values) else float(max(values))


def _figure(index: int, name: str) -> Callable[[Document], float | None]:
    return lambda trial: trial["runs"][index][name]


def _ratio(
    trials: Sequence[Document],
    value: Callable[[Document], float | None],
    name: str,
    *,
    finished: bool,
    short: str | None = None,
) -> dict[str, Any]:
    """The median ratio to GBCD's figure and how it is said: a bound from below where only GBCD finished."""
    short = short or name
    # GBCD as in the paper is the first of the runs.
    references = [trial["runs"][0] for trial in trials]
    values = [value(trial) for trial in trials]
    if not all(each["converged"] for each in references) or any(each is None for each in values):
        return {f"{short}_ratio": None, f"{short}_shown": "-"}
    ratio = median([each / reference[name] for each, reference in zip(values, references, strict=True) if each])
    return {f"{short}_ratio": ratio, f"{short}_shown": f"{ratio:,.2f}" if finished else f"> {ratio:,.1f}"}


def _phases(runs: Sequence[Document]) -> str:
    """Return each phase's share of the seconds of all draws, largest first; empty for records without phases."""
    total = sum(run["seconds"] or 0.0 for run in runs)
    names = dict.fromkeys(name for run in runs for name in run.get("phases", {}))
    shares = {name: sum(run["phases"].get(name, 0.0) for run in runs) / total for name in names if total}
    return ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))


def _paper_seconds(seconds: dict[str, float | None], key: str) -> str:
    if key not in seconds:
        return "-"
    value = seconds[key]
    return f"> {TEN_HOURS:,.0f}" if value is None else f"{value:,.0f}"


def _paper_ratio(seconds: dict[str, float | None], key: str) -> str:
    if key not in seconds:
        return "-"
    value, gbcd = seconds[key], seconds["gbcd"]
    assert gbcd is not None
    return f"> {TEN_HOURS / gbcd:,.0f}" if value is None else f"{value / gbcd:,.2f}"
