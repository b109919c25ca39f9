"""The tables that show a plan."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, size, table_of
from dkgp.commands.reporting.terminal import duration


def plan_tables(document: Document) -> list[RenderableType]:
    """Return the tables of a plan: the problem, the workers, what they keep, variances, and what a validation found."""
    tables = [_summary(document), _workers(document), Text(_sentence(document))]
    return [
        *tables,
        *_kept(document),
        *_sparse(document),
        *_classifier(document),
        *_variances(document),
        *_validation(document),
    ]


def _summary(document: Document) -> RenderableType:
    counts, network = document["counts"], document["network"]
    known = counts["low"] == counts["high"]
    between = "" if known else f", between {counts['low']:.1f} and {counts['high']:.1f}"
    rows = [
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("solver", document["solver"] + (f": {document['auto']['reason']}" if document["auto"] else "")),
        (counts["unit"], f"{counts['expected']:.1f}{between}"),
        ("coordinator's memory", size(document["workers"][0]["coordinator_memory_bytes"])),
        ("round trip, further task", _milliseconds(network["round_trip_seconds"], network["task_seconds"])),
        ("payload", f"{size(network['bytes_per_second'])} a second"),
    ]
    return table_of("Plan", rows)


def _milliseconds(*seconds: float) -> str:
    return ", ".join(f"{1000 * value:.2f} ms" for value in seconds)


def _workers(document: Document) -> RenderableType:
    phases = _phases(document)
    table = Table()
    for heading in ("workers", "time", "between", *phases, "memory of each", "worker-hours", "limit"):
        table.add_column(heading, justify="left" if heading == "limit" else "right")
    for row in document["workers"]:
        table.add_row(
            f"{row['workers']:,}",
            duration(row["seconds"]),
            f"{duration(row['seconds_low'])} and {duration(row['seconds_high'])}",
            *(duration(row["phases"].get(name, 0.0)) for name in phases),
            size(row["worker_memory_bytes"]),
            f"{row['worker_hours']:.3g}",
            row["limit"],
        )
    return table


def _phases(document: Document) -> list[str]:
    """Names in their order; with fewer workers there may be fewer."""
    return max((list(row["phases"]) for row in document["workers"]), key=len)


def _kept(document: Document) -> list[RenderableType]:
    """Tiles that workers keep, and the time that they save; no table where there are none."""
    if not any(row["tiles"]["share"] for row in document["workers"]):
        return []
    table = Table()
    for heading in ("workers", "K kept", "memory of each", "at most", "a product", "saved"):
        table.add_column(heading, justify="right")
    for row in document["workers"]:
        tiles = row["tiles"]
        seconds = (f"{tiles[name]:.3g} s" for name in ("product_seconds", "saved_seconds"))
        memory = (size(tiles[name]) for name in ("bytes", "most_bytes"))
        table.add_row(f"{row['workers']:,}", f"{tiles['share']:.0%}", *memory, *seconds)
    return [Text("Kept between products", style="bold"), table]


def _variances(document: Document) -> list[RenderableType]:
    figures = document["variance"]
    if figures is None:
        return []
    rows = [
        ("samples", f"{figures['tests']:,}, to a gap of {figures['gap']:g}{', latent' if figures['latent'] else ''}"),
        ("rank, halo", f"{figures['rank']:,}, {figures['halo']:,}"),
        ("products in float32", _products(figures["products_float32"])),
        ("products in float64", _products(figures["products_float64"])),
        ("factors", size(figures["factor_bytes"])),
        ("a sample that is solved for", size(figures["sample_bytes"])),
    ]
    table = Table()
    phases = list(document["workers"][0]["variance"]["phases"])
    for heading in ("workers", "time", "between", *phases, "samples a batch", "memory of each"):
        table.add_column(heading, justify="right")
    for row in document["workers"]:
        costs = row["variance"]
        table.add_row(
            f"{row['workers']:,}",
            duration(costs["seconds"]),
            f"{duration(costs['seconds_low'])} and {duration(costs['seconds_high'])}",
            *(duration(costs["phases"][name]) for name in phases),
            f"{costs['batch_size']:,}",
            size(costs["worker_memory_bytes"]),
        )
    return [table_of("Variances", rows), table]


def _sparse(document: Document) -> list[RenderableType]:
    figures = document["sparse"]
    if figures is None:
        return []
    rows = [
        ("method, basis", f"{figures['method']}, {figures['basis_size']:,} samples ({figures['basis']})"),
        ("kernel entries", f"{figures['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(document["workers"][0]["sparse"]["coordinator_memory_bytes"])),
        ("the model's store", size(figures["model_bytes"])),
    ]
    return [table_of("Sparse model", rows), _smaller_workers(document, "sparse")]


def _classifier(document: Document) -> list[RenderableType]:
    figures = document["classify"]
    if figures is None:
        return []
    if "likelihood" in figures:
        return [table_of("Classifier", _likelihood(document)), _smaller_workers(document, "classify")]
    rows = [
        ("prototypes", f"{figures['pool']:,} to choose among ({figures['prototypes']})"),
        (
            "search",
            f"{figures['search']}: about {figures['kernels']} kernels in {figures['passes']} passes over the data",
        ),
        ("kernel entries", f"{figures['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(document["workers"][0]["classify"]["coordinator_memory_bytes"])),
        ("the model's store", size(figures["model_bytes"])),
    ]
    return [table_of("Classifier", rows), _smaller_workers(document, "classify")]


def _likelihood(document: Document) -> Rows:
    """Rows on a classifier with a likelihood: products or a basis, and what they take."""
    figures = document["classify"]
    products = figures["products"]
    samples = "all samples" if products else f"a basis of {figures['basis_size']:,} samples ({figures['basis']})"
    rows: Rows = [("method", f"{figures['method']} ({figures['likelihood']}): {samples}")]
    if products:
        between = f"between {products['low']:.0f} and {products['high']:.0f}"
        rows.append(("products", f"{products['expected']:.0f}, {between}"))
    return [
        *rows,
        ("kernel entries", f"{figures['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(document["workers"][0]["classify"]["coordinator_memory_bytes"])),
        ("the model's store", size(figures["model_bytes"])),
    ]


def _smaller_workers(document: Document, name: str) -> RenderableType:
    """A row for each number of workers, with what a model beside the exact one takes."""
    table = Table()
    phases = list(document["workers"][0][name]["phases"])
    for heading in ("workers", "time", *phases, "memory of each", "limit"):
        table.add_column(heading, justify="left" if heading == "limit" else "right")
    for row in document["workers"]:
        costs = row[name]
        table.add_row(
            f"{row['workers']:,}",
            duration(costs["seconds"]),
            *(duration(costs["phases"][phase]) for phase in phases),
            size(costs["worker_memory_bytes"]),
            costs["limit"],
        )
    return table


def _products(counts: Document) -> str:
    if not counts["high"]:
        return "none: the factor suffices"
    return f"{counts['count']:.1f}, between {counts['low']:.1f} and {counts['high']:.1f}"


def _sentence(document: Document) -> str:
    text: str = document["limit"]
    return text[0].upper() + text[1:] + "."


def _validation(document: Document) -> list[RenderableType]:
    figures = document["validation"]
    if figures is None:
        return []
    table = Table()
    for heading in (
        "workers here",
        "product, s",
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
    for row in figures["rows"]:
        table.add_row(
            str(row["workers"]),
            f"{row['product_seconds']:.4f}",
            f"{row['product_seconds_model']:.4f}",
            f"{row['product_to_model']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['seconds_model']:.2f}",
            f"{row['seconds_to_model']:.2f}",
            size(row["worker_peak_bytes"]),
            size(row["worker_memory_bytes"]),
            f"{row['worker_memory_to_model']:.2f}",
        )
    inside = "inside" if figures["within_interval"] else "outside"
    taken = (
        f"{figures['unit']} taken: {figures['taken']:.2f}; expected {figures['expected']:.2f}, {inside} the interval."
    )
    words = taken[0].upper() + taken[1:]
    return [Text("Measured against the model (measured / model)", style="bold"), table, Text(words)]
