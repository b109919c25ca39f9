"""Table 3 of the GBCD paper: variances against Cholesky's, over several draws of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document
from dkgp_benchmarks.papers.tables import draws_said, mean_of, section, spread_of

COLUMNS = (
    Column("data", "data set", text=True),
    Column("n_paper", "paper's n", ",d"),
    Column("n", "n here", ",d"),
    Column("n_test", "variances", ",d"),
    Column("paper_seconds", "paper: s a sample", "g"),
    Column("seconds_per_sample", "here", ".4f"),
    Column("seconds_per_sample_spread", "+-", ".4f"),
    Column("cholesky_seconds_per_sample", "Cholesky here", ".4f"),
    Column("paper_rmse", "paper: RMSE (17)", "g"),
    Column("relative_rmse", "here", ".1e"),
    Column("relative_rmse_spread", "+-", ".1e"),
    Column("rmse_ratio", "here / paper", ".3g"),
    Column("gap_max", "largest gap", ".2%"),
    Column("samples_outside_interval", "outside", "d"),
    Column("note", "", text=True),
)
_MEANS = ("seconds_per_sample", "relative_rmse", "cholesky_seconds_per_sample")


def table_3(draws: Sequence[Document], name: str) -> Document:
    """Make the table of a data set from the documents of `run_bench_paper_table`, one a draw."""
    rows: list[dict[str, Any]] = []
    for index, first in enumerate(draws[0]["rows"]):
        draw_rows = [draw["rows"][index] for draw in draws]
        row = dict(first)
        for figure in _MEANS:
            values = [each.get(figure) for each in draw_rows]
            row[figure], row[f"{figure}_spread"] = mean_of(values), spread_of(values)
        if row.get("relative_rmse") is not None:
            row["rmse_ratio"] = row["relative_rmse"] / row["paper_rmse"]
            row["gap_max"] = max(each["gap_max"] for each in draw_rows)
            row["samples_outside_interval"] = sum(each["samples_outside_interval"] for each in draw_rows)
        rows.append(row)
    title = f"Table 3: {name}, variances and their distance from Cholesky's{draws_said(draws)}"
    return section(f"table_3:{name}", title, COLUMNS, rows, **draws[0]["figures"])
