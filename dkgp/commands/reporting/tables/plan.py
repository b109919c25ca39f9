"""The tables that show a plan."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import duration
from dkgp.commands.reporting.tables.layout import Rows, grid, size, table_of


def plan_tables(document: Document) -> list[RenderableType]:
    """Return the tables of a plan: the problem, the workers, what they keep, variances, and what a validation found."""
    return [
        _summary(document),
        _workers(document),
        Text(_sentence(document)),
        *_product(document),
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
    headings = ("workers", "time", "between", *phases, "memory of each", "worker-hours", "limit")
    rows = (
        (
            *_times(row, row["workers"], phases),
            size(row["worker_memory_bytes"]),
            f"{row['worker_hours']:.3g}",
            row["limit"],
        )
        for row in document["workers"]
    )
    return grid(headings, rows, left=("limit",))


def _times(costs: Document, workers: int, phases: list[str]) -> list[str]:
    """Cells that begin a row: workers, time, between what it lies where that is known, and that of each phase."""
    between = []
    if "seconds_low" in costs:
        between = [f"{duration(costs['seconds_low'])} and {duration(costs['seconds_high'])}"]
    parts = (duration(costs["phases"].get(name, 0.0)) for name in phases)
    return [f"{workers:,}", duration(costs["seconds"]), *between, *parts]


def _phases(document: Document) -> list[str]:
    """Names in their order; with fewer workers there may be fewer."""
    return max((list(row["phases"]) for row in document["workers"]), key=len)


def _product(document: Document) -> list[RenderableType]:
    """Seconds of a product with the matrix, and its messages; no table for a solver that takes few."""
    if not any("product" in name for name in _phases(document)) or document["solver"] == "gbcd":
        return []
    parts = ("computing", "scheduling", "moving", "ends", "adding")
    rows = []
    for row in document["workers"]:
        product = row["product"]
        seconds = (f"{product[name]:.3g} s" for name in ("seconds", *(f"{part}_seconds" for part in parts)))
        messages = f"{product['tasks']:,}", size(product["moved_bytes"])
        rows.append((f"{row['workers']:,}", *seconds, *messages, product["limit"]))
    headings = ("workers", "a product", "computing", "scheduler", "link", "ends", "adding", "tasks", "moved", "limit")
    words = (
        "Workers compute while tasks pass the scheduler and bytes the coordinator's link: the longer one counts. "
        "At the ends the first tasks go out and the last results come back, and the coordinator adds up."
    )
    return [Text("A product with the matrix", style="bold"), grid(headings, rows, left=("limit",)), Text(words)]


def _kept(document: Document) -> list[RenderableType]:
    """Tiles that workers keep, and the time that they save; no table where there are none."""
    if not any(row["tiles"]["share"] for row in document["workers"]):
        return []
    rows = []
    for row in document["workers"]:
        tiles = row["tiles"]
        seconds = (f"{tiles[name]:.3g} s" for name in ("product_seconds", "saved_seconds"))
        memory = (size(tiles[name]) for name in ("bytes", "most_bytes"))
        rows.append((f"{row['workers']:,}", f"{tiles['share']:.0%}", *memory, *seconds))
    table = grid(("workers", "K kept", "memory of each", "at most", "a product", "saved"), rows)
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
    # Phases differ where all workers share a batch.
    phases = list(dict.fromkeys(name for row in document["workers"] for name in row["variance"]["phases"]))
    headings = (
        "workers",
        "time",
        "between",
        *phases,
        "a batch on",
        "or Cholesky",
        "or neighbours",
        "samples a batch",
        "memory of each",
    )
    costs_by_workers = {row["workers"]: row["variance"] for row in document["workers"]}
    table = grid(
        headings,
        (
            (
                *_times(costs, workers, phases),
                "all" if costs["shared"] else "one",
                duration(costs["whole_factor_seconds"]),
                "-" if costs["neighbours_seconds"] is None else duration(costs["neighbours_seconds"]),
                f"{costs['batch_size']:,}",
                size(costs["worker_memory_bytes"]),
            )
            for workers, costs in costs_by_workers.items()
        ),
    )
    return [table_of("Variances", rows), table]


def _sparse(document: Document) -> list[RenderableType]:
    figures = document["sparse"]
    if figures is None:
        return []
    basis = f"{figures['method']}, {figures['basis_size']:,} samples ({figures['basis']})"
    return _beside(document, "sparse", "Sparse model", [("method, basis", basis)])


def _classifier(document: Document) -> list[RenderableType]:
    figures = document["classify"]
    if figures is None:
        return []
    if "likelihood" in figures:
        return _beside(document, "classify", "Classifier", _likelihood(figures))
    search = f"about {figures['kernels']} kernels in {figures['passes']} passes over the data"
    rows = [
        ("prototypes", f"{figures['pool']:,} to choose among ({figures['prototypes']})"),
        ("search", f"{figures['search']}: {search}"),
    ]
    return _beside(document, "classify", "Classifier", rows)


def _likelihood(figures: Document) -> Rows:
    """Rows on a classifier with a likelihood: products or a basis."""
    products = figures["products"]
    samples = "all samples" if products else f"a basis of {figures['basis_size']:,} samples ({figures['basis']})"
    near = f", {figures['neighbours']:,} neighbours" if figures.get("neighbours") else ""
    rows: Rows = [("method", f"{figures['method']} ({figures['likelihood']}): {samples}{near}")]
    if products:
        between = f"between {products['low']:.0f} and {products['high']:.0f}"
        rows.append(("products", f"{products['expected']:.0f}, {between}"))
    return rows


def _beside(document: Document, name: str, title: str, rows: Rows) -> list[RenderableType]:
    """A model beside the exact one: what it is, what it takes, and a row for each number of workers."""
    figures, costs_by_workers = document[name], {row["workers"]: row[name] for row in document["workers"]}
    first = next(iter(costs_by_workers.values()))
    about: Rows = [
        *rows,
        ("kernel entries", f"{figures['kernel_evaluations']:.3g}"),
        ("coordinator's memory", size(first["coordinator_memory_bytes"])),
        ("the model's store", size(figures["model_bytes"])),
    ]
    phases = list(first["phases"])
    table = grid(
        ("workers", "time", *phases, "memory of each", "limit"),
        (
            (*_times(costs, workers, phases), size(costs["worker_memory_bytes"]), costs["limit"])
            for workers, costs in costs_by_workers.items()
        ),
        left=("limit",),
    )
    return [table_of(title, about), table]


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
    compared = ("model", "ratio")
    table = grid(
        ("workers here", "product, s", *compared, "whole, s", *compared, "a worker's peak", *compared),
        (
            (
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
            for row in figures["rows"]
        ),
    )
    inside = "inside" if figures["within_interval"] else "outside"
    taken = (
        f"{figures['unit']} taken: {figures['taken']:.2f}; expected {figures['expected']:.2f}, {inside} the interval."
    )
    words = taken[0].upper() + taken[1:]
    return [Text("Measured against the model (measured / model)", style="bold"), table, Text(words)]
