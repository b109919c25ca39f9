"""Record of a linear regression as tables: what was chosen, its weights, and the path that it is a part of."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, size, table_of, titled

# Rows of a path, weights that are named in one, targets with tables of their own.
MOST_ROWS, MOST_WEIGHTS, MOST_TARGETS = 16, 5, 8


def pursue_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the record of `dkgp pursue`."""
    rows: Rows = [
        ("model", document["out"]),
        *_about(document),
        ("passes over the samples, seconds", f"{document['passes']:,}, {document['seconds']:.2f}"),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
    ]
    return [table_of("Linear regression", rows), *_targets(document)]


def linear_info_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show what `dkgp info` tells of a linear regression."""
    rows: Rows = [
        ("linear model", document["location"]),
        *_about(document),
        ("training set", document["fingerprint"]),
        ("dkgp", document["versions"].get("dkgp", "unknown")),
        ("stored", size(document["stored_bytes"])),
    ]
    return [table_of("", rows), *_targets(document)]


def _about(document: Document) -> Rows:
    return [
        ("samples, features, targets", f"{document['n']:,}, {document['d']:,}, {document['p']}"),
        ("method", document["method"]),
        ("cardinality by", document["choice"]),
    ]


def _targets(document: Document) -> list[RenderableType]:
    return [part for target in document["targets"][:MOST_TARGETS] for part in (_path(target), _weights(target))]


def _path(target: Document) -> RenderableType:
    table = Table()
    columns = ["features", "joined", "RMSE, training"]
    scored = target["score"] is not None
    for name in [*columns, *(["RMSE, left out"] if scored else []), "weights"]:
        table.add_column(name, justify="left" if name in ("joined", "weights") else "right")
    for record in _shown(target):
        k = record["cardinality"]
        joined = ", ".join([*record["joined"], *(f"without {name}" for name in record["left"])])
        cells = [f"{k} *" if k == target["cardinality"] else str(k), joined, _root(record["error"])]
        named = list(record["weights"].items())[:MOST_WEIGHTS]
        more = [f"{len(record['weights']) - len(named)} more"] if len(record["weights"]) > len(named) else []
        weights = ", ".join([*(f"{name} {weight:.4g}" for name, weight in named), *more])
        table.add_row(*(Text(cell) for cell in [*cells, *([_root(record["score"])] if scored else []), weights]))
    return titled(f"Path of {target['name']} (* chosen; it ends with: {target['reason']})", table)


def _weights(target: Document) -> RenderableType:
    rows = [(name, f"{weight:.6g}") for name, weight in target["weights"].items()]
    return table_of(f"{target['name']}, by feature", [("intercept", f"{target['intercept']:.6g}"), *rows])


def _shown(target: Document) -> list[Document]:
    """The first steps, those about the one that was chosen, and the last."""
    path, chosen = target["path"], target["cardinality"]
    if len(path) <= MOST_ROWS:
        return list(path)
    some = {*range(MOST_ROWS // 2), *range(chosen - 3, chosen + 4), len(path) - 1}
    return [record for record in path if record["cardinality"] in some]


def _root(squared: float | None) -> str:
    return "unknown" if squared is None else f"{math.sqrt(squared):.5g}"
