"""Record of a classifier as tables: its classes, prototypes or certificate, what was searched, and what it took."""

from __future__ import annotations

from rich.console import RenderableType

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import Rows, assumed_rows, seconds_of, size, table_of
from dkgp.kernels import kernel_text

__all__ = ["classifier_info_tables", "classify_tables", "predicted_class_rows"]

MOST_CLASSES = 8


def classify_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the record of `dkgp classify`."""
    rows: Rows = [
        ("model", document["out"]),
        *_about(document),
        *_how(document, document["class_weights"] is not None),
        ("noise variance", f"{document['noise_variance']:.4g}"),
        *assumed_rows(document),
        ("probabilities", "calibrated" if document["probabilities"] else "none"),
        ("kernel entries evaluated", f"{document['kernel_evaluations']:.3g}"),
        ("seconds", seconds_of(document)),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
    ]
    if document["checkpoint"] is not None:
        rows.append(("checkpoint", f"{document['checkpoint']} (go on with --resume)"))
    return [table_of("Trained" if document["converged"] else "Stopped before convergence", rows)]


def classifier_info_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show what `dkgp info` tells of a classifier."""
    summary = document["summary"]
    weights = document["class_weights"]
    rows: Rows = [
        ("classifier", document["location"]),
        *_about(summary),
        *_how(summary, weights is not None),
        ("kernel", kernel_text(document["kernel"], document["features"])),
        ("noise variance", f"{document['noise_variance']:.4g}"),
        ("weights of classes", "all the same" if weights is None else _by_name(weights)),
        ("probabilities", "calibrated" if document["probabilities"] else "none"),
        *assumed_rows(summary),
        ("training set", document["fingerprint"]),
        ("dkgp", document["versions"].get("dkgp", "unknown")),
        ("stored", size(document["stored_bytes"])),
    ]
    if document["by_reference"]:
        rows.insert(-3, ("inputs", "in the training set's store, by reference"))
    return [table_of("", rows)]


def predicted_class_rows(classes: Document, n: int) -> Rows:
    """Rows that tell what a classifier predicted at n samples."""
    rows: Rows = [("classes", _by_name(classes["counts"]))]
    if classes["certified"] is not None:
        certified = f"{classes['certified']:,} of {n:,} ({classes['certified'] / n:.2%})"
        rows += [
            ("certified", f"{certified}: proven to be the exact LS-SVM's"),
            ("decisions certified within", f"{classes['largest_decision_error_bound']:.3g} (margins at -1 and 1)"),
        ]
    return rows


def _about(document: Document) -> Rows:
    counts = dict(zip(document["classes"], document["counts"], strict=True))
    return [
        ("samples, features", f"{document['n']:,}, {document['d']}"),
        ("classes", _by_name(counts)),
    ]


def _how(document: Document, weighted: bool) -> Rows:
    """Either form: what decisions are sums over, and how good that is."""
    if document["method"] == "exact":
        errors = max(document["decision_error"])
        return [
            ("method", "exact: all samples"),
            ("solved by", f"{document['solver']}: {document['reason']}"),
            ("decisions within about", f"{errors:.3g} of the exact ones (margins at -1 and 1)"),
            ("rounds, column passes", f"{document['iterations']}, {document['column_passes']:.2f}"),
        ]
    chosen = f"{document['cardinality']:,} prototypes of {document['pool']:,} ({document['prototypes']})"
    return [
        ("method", f"fixed-size: {chosen}"),
        (
            "error in cross-validation",
            f"{document['misclassification']:.2%}" + (", weighted" if weighted else ""),
        ),
        ("passes over the data", f"{document['passes']:,} in the search"),
    ]


def _by_name(values: Document) -> str:
    shown = [
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}" for name, value in values.items()
    ]
    more = f" and {len(shown) - MOST_CLASSES} more" if len(shown) > MOST_CLASSES else ""
    return ", ".join(shown[:MOST_CLASSES]) + more
