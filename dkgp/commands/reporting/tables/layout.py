"""The parts that tables are laid out with: names beside values, titles, sizes in bytes as people say them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.progress import printable

Rows = list[tuple[str, str]]


class Detail(tuple[str, str]):
    """A row for those who know solvers: it is shown with `verbose` alone."""


@dataclass(frozen=True)
class Sheet:
    """Names and values under a title; with `verbose` rows that are a `Detail`, too."""

    title: str
    rows: Rows
    verbose: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table."""
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for row in self.rows:
            if self.verbose or not isinstance(row, Detail):
                # As it is: rich would take what stands in brackets for markup.
                table.add_row(printable(row[0]), Text(printable(row[1])))
        yield titled(self.title, table)


def table_of(title: str, rows: Rows) -> RenderableType:
    """Return a table of names and values under a title."""
    return Sheet(title, rows)


def details(rows: Rows) -> Rows:
    """Return the rows, each for those who know solvers."""
    return [Detail(row) for row in rows]


def titled(title: str, table: Table) -> RenderableType:
    """Return a table under a title."""
    # A table's own title is broken to the table's width.
    return Group(Text(title, style="bold"), table) if title else table


def grid(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: Collection[str] = (), lines: bool = True
) -> Table:
    """Return a table of figures under headings, to the right but for those to the left; with lines, or bare."""
    table = Table() if lines else Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def figure(value: object) -> str:
    """A value in a few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def number(value: float | None) -> str:
    """A score to four digits."""
    return "unknown" if value is None else f"{value:.4f}"


def gaps(mean: float | None, largest: float | None) -> str:
    """Relative widths of proven intervals."""
    if mean is None or largest is None:
        return "unknown"
    return f"{100 * mean:.3g} % on average, {100 * largest:.3g} % at most"


def bounds_of(document: Mapping[str, Any], worst: str) -> str:
    """Bounds on errors of means: of the worst, and of their root mean square where the record has it."""
    rms = document.get("mean_error_bound_rms")
    return f"worst case {document[worst]:.3g}" + ("" if rms is None else f", root mean square {rms:.3g}")


def size(count: float | None) -> str:
    """Bytes as people say them."""
    if count is None:
        return "unknown"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def seconds_of(document: Mapping[str, Any]) -> str:
    """Seconds of a run, and of its parts that took a twentieth of it at least; older models do not tell."""
    total = document["seconds"]
    parts = [
        f"{name} {seconds:.1f}"
        for name, seconds in document.get("seconds_by_part", {}).items()
        if seconds >= 0.05 * total
    ]
    return f"{total:.1f}" + (f" ({', '.join(parts)})" if parts else "")


def unproven_rows(document: Mapping[str, Any]) -> Rows:
    """The share of samples for which the search for neighbours may have missed nearer ones, if there are any."""
    if not document.get("neighbours_unproven"):
        return []
    share = 100.0 * document["neighbours_unproven"]
    searched = document.get("search_samples") or document["settings"]["search_samples"]
    return [("neighbours not proven nearest", f"{share:.3g} % of the samples (of {searched:,} looked at)")]


def assumed_rows(document: Mapping[str, Any]) -> Rows:
    """A row for what bounds take on trust, where they do."""
    return [("bounds assume", document["assumes"])] if document.get("assumes") else []


def cost_rows(document: Mapping[str, Any]) -> Rows:
    """Rows that end a trained model's table: seconds, memory, and the checkpoint to go on from."""
    rows = [("seconds", seconds_of(document)), ("peak memory, all processes", size(document["peak_memory_bytes"]))]
    if document["checkpoint"] is not None:
        rows.append(("checkpoint", f"{document['checkpoint']} (go on with --resume)"))
    return rows


def stored_rows(document: Mapping[str, Any]) -> Rows:
    """Rows that end a stored model's table: what it was trained on and by, and its size."""
    return [
        ("training set", document["fingerprint"]),
        ("dkgp", document["versions"].get("dkgp", "unknown")),
        ("stored", size(document["stored_bytes"])),
    ]
