"""The table of `dkgp tune --refine`: what it did, and how held-out samples were predicted before and after."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import table_of, titled


def refine_tables(refinement: Document) -> list[RenderableType]:
    """Return the tables that show the document's `refinement`."""
    history = refinement["history"]
    rows = [
        ("values kept", "refined" if refinement["kept"] == "refined" else "those to start from"),
        ("ended because", refinement["reason"]),
        ("steps", f"{max(0, len(history) - 1)}"),
        ("column passes", f"{refinement['column_passes']:.0f}, and {refinement['contractions']} of derivatives"),
        ("seconds", f"{refinement['seconds']:.1f}"),
    ]
    if history:
        last = next(step for step in reversed(history) if step["accepted"])
        rows.insert(3, ("log likelihood", f"{last['gain']:+.1f}, error {last['gain_error']:.2g}"))
        rows.insert(4, ("gradient", f"{last['gradient_norm']:.3g}, error {last['error_norm']:.2g}"))
    shown = [table_of("Refined on all samples", rows)]
    before, after = refinement["before"], refinement["after"]
    if before is not None and after is not None:
        shown.append(_scores(refinement["n_held_out"], before, after))
    return shown


def _scores(held_out: int, before: Document, after: Document) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="dim")
    for title in ("NLPD", "RMSE", "95 % coverage"):
        table.add_column(title, justify="right")
    for name, score in (("before", before), ("after", after)):
        table.add_row(name, f"{score['nlpd']:.4f}", f"{score['rmse']:.4f}", f"{score['coverage_95']:.3f}")
    return titled(f"{held_out:,} held-out samples (standardised)", table)
