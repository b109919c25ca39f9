"""Documents as text: the figures of a document as rows, sheets and tables.

A `Figure` declares a row: its title, and a text with the document's figures in braces, such as
`Figure("samples", "{n:,} of {d:names}")`. The text may use Python's format specifications and those of `FORMATS`.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import duration, printable
from dkgp.registry import byte_text

Rows = list[tuple[str, str]]


class Detail(tuple[str, str]):
    """A row for readers who know solvers, shown only with `verbose`."""


@dataclass(frozen=True)
class Figure:
    """A row: its title, and its text, a template for the document's figures or a function of the document."""

    title: str
    text: str | Callable[[Document], str | None]
    optional: bool = False  # omit the row if a figure is missing or None, or if the text is empty
    detail: bool = False  # only for readers who know solvers

    def row(self, document: Document) -> tuple[str, str] | None:
        """Return the row of a document; None if the row is omitted."""
        if callable(self.text):
            text = self.text(document)
        else:
            try:
                text = (_Optional() if self.optional else _Words()).vformat(self.text, (), document)
            except _AbsentError:
                text = None
        if text is None or (self.optional and not text):
            return None
        return Detail((self.title, text)) if self.detail else (self.title, text)


# A function among the figures returns rows that depend on the document.
Figures: TypeAlias = Iterable[Figure | Callable[[Document], Rows]]


def may(title: str, text: str | Callable[[Document], str | None]) -> Figure:
    """Return a figure that may be missing from a document."""
    return Figure(title, text, optional=True)


def detail(title: str, text: str | Callable[[Document], str | None], *, optional: bool = False) -> Figure:
    """Return a figure for readers who know solvers."""
    return Figure(title, text, optional=optional, detail=True)


def rows_of(figures: Figures, document: Document) -> Rows:
    """Return the rows of a document."""
    rows: Rows = []
    for each in figures:
        if isinstance(each, Figure):
            row = each.row(document)
            rows += [] if row is None else [row]
        else:
            rows += each(document)
    return rows


def sheet_of(title: str, figures: Figures, document: Document) -> RenderableType:
    """Return a document's figures under a title."""
    return Sheet(title, rows_of(figures, document))


class _AbsentError(LookupError):
    """A figure is missing from the document."""


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        shown = FORMATS.get(format_spec)
        return str(super().format_field(value, format_spec)) if shown is None else shown(value)


class _Optional(_Words):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            found = super().get_field(field_name, args, kwargs)
        except (LookupError, TypeError):
            raise _AbsentError from None
        if found[0] is None:
            raise _AbsentError
        return found


@dataclass(frozen=True)
class Sheet:
    """Names and values under a title; rows that are a `Detail` are shown only with `verbose`."""

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
                # As text, because rich would interpret brackets as markup.
                table.add_row(printable(row[0]), Text(printable(row[1])))
        yield titled(self.title, table)


def table_of(title: str, rows: Rows) -> RenderableType:
    """Return a table of names and values under a title."""
    return Sheet(title, rows)


def titled(title: str, table: Table) -> RenderableType:
    """Return a table under a title."""
    # rich wraps a table's own title at the table's width.
    return Group(Text(title, style="bold"), table) if title else table


def grid(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: Collection[str] = (), lines: bool = True
) -> Table:
    """Return a table of figures, right-aligned except for the columns in `left`; with or without lines."""
    table = Table() if lines else Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        # As text, because rich would interpret brackets as markup.
        table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def figure(value: object) -> str:
    """Format a value with few digits; the parts of a list or a mapping in one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {figure(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(figure, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plain_number(value: float, digits: int = 4) -> str:
    """Format a value with some significant digits and without an exponent, unless it is very large or very small."""
    if value == 0.0 or not math.isfinite(value) or not 1e-4 <= abs(value) < 1e12:
        return f"{value:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    shown = f"{round(value, places):,.{max(0, places)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def number(value: float | None) -> str:
    """Format a score with four decimal digits."""
    return "unknown" if value is None else f"{value:.4f}"


# Words for the steps of `fit` and `demo`; others are printed by their own names.
STEPS = {
    "ingest": "reading the data",
    "ingest again": "reading with the transform",
    "transform": "comparing transforms",
    "compare": "comparing models",
    "choose": "choosing the model",
    "train": "training",
    "tune": "tuning",
    "predict": "predicting",
    "evaluate": "evaluating",
    "report": "writing the report",
    "generate": "generating samples",
    "plot": "drawing",
    "remedy": "choosing",
    "set aside": "moving files",
    "restore": "moving files back",
}


def phases(document: Document) -> str:
    """Format the time and its parts of a second or more; a number after a step counts the further models."""
    words, others = [], document["seconds"]
    for name, part in document["seconds_by_phase"].items():
        step, _, number = name.rpartition(" ")
        further = number.isdecimal()
        word = STEPS.get(step if further else name, name)
        if part >= 1.0:
            words.append(f"{word}{f' (model {int(number) + 1})' if further else ''} {part:.1f} s")
            others -= part
    if words and others >= 0.05:
        words.append(f"other {others:.1f} s")
    return f"{document['seconds']:.1f} s" + (f": {', '.join(words)}" if words else "")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


NOT_INFORMATIVE = "not informative"


def least_informative(document: Document) -> float:
    """Return the bound of means, in standard deviations, from which on it says little: half of their error."""
    return min(1.0, 0.5 * (document.get("rmse") or math.inf))


def informative(share: float | None) -> bool:
    """Return True if a proven bound limits more than is known without it.

    `share` is the bound over the scale of its quantity: the targets' standard deviation for a mean, the upper end for
    an interval, the margin for a decision. NaN and None, for a bound that could not be computed, are not informative.
    """
    return share is not None and share < 0.995


def proven(text: str, share: float | None) -> str:
    """Return the text of a bound, or "not informative" instead."""
    return text if informative(share) else NOT_INFORMATIVE


def gaps(mean: float | None, largest: float | None) -> str:
    """Format the relative widths of proven intervals."""
    if mean is None or largest is None:
        return "unknown"
    return proven(f"{_percent(mean)} on average, at most {_percent(largest)}", mean)


def _percent(share: float) -> str:
    """Format a share as a percentage; smaller ones than one in 100,000 prove no more to a reader."""
    return "0.001 %" if share < 1e-5 else f"{100 * share:.3g} %"


def bounds_of(worst: float | None, rms: float | None, units: str, scale: float = 1.0) -> str:
    """Format error bounds of means: the worst case, and the root mean square if the record has it.

    `scale` is the standard deviation of the targets in these units.
    """
    named = {"worst case": worst, "root mean square": rms}
    known = [
        f"{name} {plain_number(bound, 3)}"
        for name, bound in named.items()
        if bound is not None and informative(bound / scale)
    ]
    if len(known) == 2 and len({text.removeprefix(name) for text, name in zip(known, named, strict=True)}) == 1:
        known = known[:1]  # the root mean square bound adds nothing
    return f"{', '.join(known)} {units}" if known else NOT_INFORMATIVE


# Names of a solver's parts in words.
_PARTS = {"assemble": "kernel matrix", "update": "updates", "precondition": "preconditioner", "select": "selection"}


def seconds_of(document: Mapping[str, Any]) -> str:
    """Format a run's seconds, and those of parts that took 5 % of it and a displayed time; older models have none."""
    total = document["seconds"]
    parts = [
        f"{_PARTS.get(name, name)} {seconds:.1f}"
        for name, seconds in document.get("seconds_by_part", {}).items()
        if seconds >= max(0.05, 0.05 * total)
    ]
    return f"{total:.1f}" + (f" ({', '.join(parts)})" if parts else "")


def names(values: Collection[str], most: int = 8) -> str:
    """Return names separated by commas, at most the first few."""
    shown = [str(value) for value in values]
    most = len(shown) if len(shown) == most + 1 else most  # "and 1 more" is as long as the name
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


# Formats in addition to Python's.
FORMATS: Mapping[str, Callable[[Any], str]] = {
    "size": byte_text,
    "duration": duration,
    "names": names,
    "score": number,
    "yes": lambda value: "yes" if value else "no",
}


# ------------------------------------------------------------------------------------------ figures that commands share


def assumed(document: Document) -> Rows:
    """Return a row for the assumptions of the bounds, if there are any."""
    return rows_of([may("bounds assume", "{assumes}")], document)


def cost(document: Document) -> Rows:
    """Return the last rows of a trained model's table: seconds, memory, and the checkpoint to resume from."""
    return rows_of(
        [
            Figure("seconds", seconds_of),
            Figure("peak memory, all processes", "{peak_memory_bytes:size}"),
            may("checkpoint", "{checkpoint} (continue with --resume)"),
        ],
        document,
    )


def stored(document: Document) -> Rows:
    """Return the last rows of a stored model's table: training set, dkgp version and size."""
    return [
        ("training set", document["fingerprint"]),
        ("dkgp", document["versions"].get("dkgp", "unknown")),
        ("stored", byte_text(document["stored_bytes"])),
    ]


def unproven(document: Document) -> Rows:
    """Return the share of samples whose neighbour search may have missed nearer ones, if there are any."""
    if not document.get("neighbours_unproven"):
        return []
    share = 100.0 * document["neighbours_unproven"]
    searched = document.get("search_samples") or document["settings"]["search_samples"]
    return [
        (
            "samples whose neighbours may not be the nearest",
            f"{share:.3g} % (each search looked at {searched:,} samples)",
        )
    ]


def details(rows: Rows) -> Rows:
    """Mark the rows as details for readers who know solvers."""
    return [Detail(row) for row in rows]


SIZES = Figure("samples, features, targets", "{n:,}, {d}, {p}")
SECONDS = Figure("seconds", "{seconds:.2f}")
PEAK = Figure("peak memory, all processes", "{peak_memory_bytes:size}")
EVALUATED = detail("kernel entries evaluated", lambda of: plain_number(of["kernel_evaluations"]))
