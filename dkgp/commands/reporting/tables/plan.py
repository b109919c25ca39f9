"""The tables that show a plan."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, size, table_of
from dkgp.commands.reporting.terminal import duration

__all__ = ["plan_tables"]


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
    found = document["variance"]
    if found is None:
        return []
    rows = [
        ("samples", f"{found['tests']:,}, to a gap of {found['gap']:g}{', latent' if found['latent'] else ''}"),
        ("rank, halo", f"{found['rank']:,}, {found['halo']:,}"),
        ("products in float32", _products(found["products_float32"])),
        ("products in float64", _products(found["products_float64"])),
        ("factors", size(found["factor_bytes"])),
        ("a sample that is solved for", size(found["sample_bytes"])),
    ]
    table = Table()
    phases = list(document["workers"][0]["variance"]["phases"])
    for heading in ("workers", "time", "between", *phases, "samples a batch", "memory of each"):
        table.add_column(heading, justify="right")
    for row in document["workers"]:
        own = row["variance"]
        table.add_row(
            f"{row['workers']:,}",
            duration(own["seconds"]),
            f"{duration(own['seconds_low'])} and {duration(own['seconds_high'])}",
            *(duration(own["phases"][name]) for name in phases),
            f"{own['batch_size']:,}",
            size(own["worker_memory_bytes"]),
        )
    return [table_of("Variances", rows), table]


def _sparse(document: Document) -> list[RenderableType]:
    found = document["sparse"]
    if found is None:
        return []
    rows = [
        ("method, basis", f"{found['method']}, {found['basis_size']:,} samples ({found['basis']})"),
        ("kernel entries", f"{found['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(document["workers"][0]["sparse"]["coordinator_memory_bytes"])),
        ("the model's store", size(found["model_bytes"])),
    ]
    return [table_of("Sparse model", rows), _smaller_workers(document, "sparse")]


def _classifier(document: Document) -> list[RenderableType]:
    found = document["classify"]
    if found is None:
        return []
    if "likelihood" in found:
        return [table_of("Classifier", _likelihood(document)), _smaller_workers(document, "classify")]
    rows = [
        ("prototypes", f"{found['pool']:,} to choose among ({found['prototypes']})"),
        ("search", f"{found['search']}: about {found['kernels']} kernels in {found['passes']} passes over the data"),
        ("kernel entries", f"{found['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(document["workers"][0]["classify"]["coordinator_memory_bytes"])),
        ("the model's store", size(found["model_bytes"])),
    ]
    return [table_of("Classifier", rows), _smaller_workers(document, "classify")]


def _likelihood(document: Document) -> Rows:
    """Rows on a classifier with a likelihood: products or a basis, and what they take."""
    found = document["classify"]
    products = found["products"]
    samples = "all samples" if products else f"a basis of {found['basis_size']:,} samples ({found['basis']})"
    rows: Rows = [("method", f"{found['method']} ({found['likelihood']}): {samples}")]
    if products:
        between = f"between {products['low']:.0f} and {products['high']:.0f}"
        rows.append(("products", f"{products['expected']:.0f}, {between}"))
    return [
        *rows,
        ("kernel entries", f"{found['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(document["workers"][0]["classify"]["coordinator_memory_bytes"])),
        ("the model's store", size(found["model_bytes"])),
    ]


def _smaller_workers(document: Document, name: str) -> RenderableType:
    """A row for each number of workers, with what a model beside the exact one takes."""
    table = Table()
    phases = list(document["workers"][0][name]["phases"])
    for heading in ("workers", "time", *phases, "memory of each", "limit"):
        table.add_column(heading, justify="left" if heading == "limit" else "right")
    for row in document["workers"]:
        own = row[name]
        table.add_row(
            f"{row['workers']:,}",
            duration(own["seconds"]),
            *(duration(own["phases"][phase]) for phase in phases),
            size(own["worker_memory_bytes"]),
            own["limit"],
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
    found = document["validation"]
    if found is None:
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
    for row in found["rows"]:
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
    inside = "inside" if found["within_interval"] else "outside"
    taken = f"{found['unit']} taken: {found['taken']:.2f}; expected {found['expected']:.2f}, {inside} the interval."
    words = taken[0].upper() + taken[1:]
    return [Text("Measured against the model (measured / model)", style="bold"), table, Text(words)]
