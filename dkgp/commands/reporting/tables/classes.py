"""Figures of predicted classes as tables: errors, probabilities, certificates, and who is taken for whom."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, table_of, titled

# A confusion matrix of more classes than that is in the JSON, and in the plot.
MOST_CLASSES = 12
MOST_LETTERS = 16


def evaluated_class_tables(document: Document) -> list[RenderableType]:
    """Return the tables of an evaluation of classes."""
    rows: Rows = [("samples", f"{document['n']:,}")]
    if document["abstained"] is not None:
        rows.append(("abstained from", f"{document['abstained']:.2%} of all, whose labels are not certified"))
    rows += [
        ("error", f"{document['error_rate']:.2%}"),
        ("balanced error", f"{document['balanced_error']:.2%}"),
    ]
    several = len(document["classes"]) > 2
    for name, words in (
        ("auc", "area under the curve" + (", mean of each class against the rest" if several else "")),
        ("log_loss", "log loss"),
        ("brier", "Brier score"),
        ("ece", "expected calibration error"),
    ):
        if document[name] is not None:
            rows.append((words, f"{document[name]:.4f}"))
    if document["certified_share"] is not None:
        rows.append(("certified labels", _certified(document)))
    if document["interval_width_mean"] is not None:
        mean, most = document["interval_width_mean"], document["interval_width_max"]
        rows.append(("probabilities certified within", f"intervals {mean:.3g} wide on average, {most:.3g} at most"))
    tables: list[RenderableType] = [table_of("Evaluated", rows)]
    if len(document["classes"]) <= MOST_CLASSES:
        tables.append(_confusion(document))
    return tables


def _certified(document: Document) -> str:
    """Share of labels that are proven to be the exact model's, and how the others do; the exact model errs as well."""
    certified = f"{document['certified_share']:.2%}"
    if document["certified_error_rate"] is not None:
        certified += f", {document['certified_errors']:,} of them wrong ({document['certified_error_rate']:.2%})"
    if document["uncertified_error_rate"] is not None:
        certified += f"; of the others {document['uncertified_error_rate']:.2%} wrong"
    return certified


def _confusion(document: Document) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("true", style="dim")
    names = [name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "…" for name in document["classes"]]
    for name in names:
        table.add_column(Text(name), justify="right")
    for name, row in zip(names, document["confusion"], strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in row))
    return titled("True labels (rows) by given labels (columns)", table)
