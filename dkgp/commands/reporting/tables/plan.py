"""The tables that show a plan."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import size, table_of
from dkgp.commands.reporting.terminal import duration

__all__ = ["plan_tables"]


def plan_tables(document: Document) -> list[RenderableType]:
    """Return the tables of a plan: the problem, the workers, and what a validation found."""
    return [_summary(document), _workers(document), Text(_sentence(document)), *_validation(document)]


def _summary(document: Document) -> RenderableType:
    passes, network = document["passes"], document["network"]
    how = "the whole problem was solved to find out" if passes["exact"] else _interval(passes)
    rows = [
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("column passes", f"{passes['passes']:.1f}" + (f", {how}" if how else "")),
        ("rounds, block size", f"{document['rounds']:,}, {document['block_size']:,}"),
        ("coordinator's memory", size(document["workers"][0]["coordinator_memory_bytes"])),
        ("round trip, further task", _milliseconds(network["round_trip_seconds"], network["task_seconds"])),
        ("payload", f"{size(network['bytes_per_second'])} a second"),
    ]
    return table_of("Plan", rows)


def _interval(passes: Document) -> str:
    return f"between {passes['low']:.1f} and {passes['high']:.1f}" if passes["trials"] else ""


def _milliseconds(*seconds: float) -> str:
    return ", ".join(f"{1000 * value:.2f} ms" for value in seconds)


def _workers(document: Document) -> RenderableType:
    table = Table()
    for heading in ("workers", "time", "between", "a round", "tasks", "memory of each", "worker-hours", "limit"):
        table.add_column(heading, justify="left" if heading == "limit" else "right")
    for row in document["workers"]:
        table.add_row(
            f"{row['workers']:,}",
            duration(row["seconds"]),
            f"{duration(row['seconds_low'])} and {duration(row['seconds_high'])}",
            f"{1000 * row['round_seconds']:.0f} ms",
            f"{row['tasks']:,}",
            size(row["worker_memory_bytes"]),
            f"{row['worker_hours']:.3g}",
            row["limit"],
        )
    return table


def _sentence(document: Document) -> str:
    text: str = document["limit"]
    return text[0].upper() + text[1:] + "."


def _validation(document: Document) -> list[RenderableType]:
    found = document["validation"]
    if found is None:
        return []
    table = Table()
    for heading in (
        "workers here",
        "update, s",
        "model",
        "ratio",
        "whole, s",
        "model",
        "ratio",
        "a worker's peak",
        "model",
        "ratio",
    ):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        table.add_row(
            str(row["workers"]),
            f"{row['update_seconds']:.4f}",
            f"{row['update_seconds_model']:.4f}",
            f"{row['update_to_model']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['seconds_model']:.2f}",
            f"{row['seconds_to_model']:.2f}",
            size(row["worker_peak_bytes"]),
            size(row["worker_memory_bytes"]),
            f"{row['worker_memory_to_model']:.2f}",
        )
    inside = "inside" if found["passes_within_interval"] else "outside"
    passes = f"Passes taken: {found['passes']:.2f}; expected {found['passes_expected']:.2f}, {inside} the interval."
    return [Text("Measured against the model (measured / model)", style="bold"), table, Text(passes)]
