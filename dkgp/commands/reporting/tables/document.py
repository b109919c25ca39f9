"""Documents as tables for people: the few figures that matter, in words, with units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import duration
from dkgp.commands.reporting.tables.classify import (
    classifier_info_tables,
    classify_tables,
    predicted_class_rows,
)
from dkgp.commands.reporting.tables.evaluated import evaluated_tables
from dkgp.commands.reporting.tables.layout import (
    Detail,
    Rows,
    Sheet,
    assumed_rows,
    bounds_of,
    cost_rows,
    details,
    figure,
    gaps,
    number,
    size,
    table_of,
    titled,
)
from dkgp.commands.reporting.tables.models import (
    linear_info_tables,
    pursue_tables,
    sparse_info_tables,
    sparse_tables,
    tune_tables,
)
from dkgp.commands.reporting.tables.plan import plan_tables
from dkgp.kernels import kernel_text


def tables(document: Document, *, verbose: bool = False) -> list[RenderableType]:
    """Return the tables that show a document; with `verbose` solvers' figures, too."""
    layout: dict[str, Callable[[Document], list[RenderableType]]] = {
        "ingest": _ingest,
        "warm-up": _warm_up,
        "tune": tune_tables,
        "plan": plan_tables,
        "train": _train,
        "sparse": sparse_tables,
        "classify": classify_tables,
        "pursue": pursue_tables,
        "predict": _predict,
        "evaluate": evaluated_tables,
        "export": _export,
        "info": _info,
        "demo": _demo,
        "fit": _fit,
        "bench": _bench,
    }
    parts = layout[document["command"]](document)
    return [replace(part, verbose=verbose) if isinstance(part, Sheet) else part for part in parts]


# Lines of one row: of a classification, there may be a thousand classes.
_MOST_LINES = 20
# Targets with a row of their own.
_MOST_TARGETS = 8


def _names(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _ingest(document: Document) -> list[RenderableType]:
    rows = [
        ("training store", f"{document['train']}: {document['n_train']:,} samples"),
        ("features", f"{document['d']}: {_names(document['features'])}"),
        ("targets", _names(document["targets"]) or "none"),
        ("seconds", f"{document['seconds']:.2f}"),
    ]
    if document["classes"] is not None:
        counted = zip(document["classes"], document["class_counts"], strict=True)
        rows.insert(3, ("classes", _names([f"{name} ({count:,})" for name, count in counted])))
    if document.get("noise") is not None:
        rows.insert(-1, ("known noise", document["noise"]))
    if document["ids"]:
        rows.insert(-1, ("kept beside them", _names(document["ids"])))
    if document["test"] is not None:
        rows.insert(1, ("test store", f"{document['test']}: {document['n_test']:,} samples"))
    return [table_of("Ingested", rows)]


def _warm_up(document: Document) -> list[RenderableType]:
    rows: Rows = [
        ("compiled code", document["folder"]),
        ("for", document["processor"]),
        ("pieces", f"{document['pieces']:,}, {size(document['bytes'])}"),
        ("seconds", f"{document['seconds']:.1f}"),
    ]
    return [table_of("Compiled beforehand", rows)]


def _training_rows(document: Document) -> Rows:
    return [
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        *_converged(document),
        *_certified(document),
        *_mean(document),
        Detail(("relative residual", f"{document['relative_residual']:.3g}")),
        Detail(("objective", f"{document['objective']:.8g}")),
        *assumed_rows(document),
        Detail(("rounds, column passes", f"{document['iterations']}, {document['column_passes']:.2f}")),
        Detail(("kernel entries evaluated", _entries(document["kernel_evaluations"], document["n"]))),
        *details(_products(document)),
        *details(_kept(document)),
        *cost_rows(document),
    ]


def _converged(document: Document) -> Rows:
    """The outcome of the solve, and its error; why it ended is a matter of those who know solvers.

    Where it stopped short, the reason says what did.
    """
    reason = "" if document["converged"] else f": {document['reason']}"
    return [
        ("converged", _yes(document["converged"]) + reason),
        ("largest error", f"{document['gradient_inf_norm']:.3g}, tolerance {document['tolerance']:g}"),
        *([Detail(("ended because", document["reason"]))] if document.get("reason") else []),
    ]


def _certified(document: Document) -> Rows:
    """The bound on the distance of any predicted mean from the exact model's, of the worst target."""
    certificate = document.get("certificate")
    if not certificate:
        return []
    bound = max(certificate["mean_error_bound_at_unit_variance"][: document["p"]])
    beside = ", beside what the mean's coefficients add" if "mean" in document else ""
    words = f"worst case {bound:.3g} standard deviations of the target (at amplitude 1){beside}"
    return [("mean certified within", words)]


def _mean(document: Document) -> Rows:
    """Coefficients of the mean, with their standard errors, target by target."""
    if "mean" not in document:
        return []
    of_targets = list(document["mean"]["coefficients"].items())
    rows: Rows = []
    for target, values in of_targets[:_MOST_TARGETS]:
        of = f" of {target}" if len(of_targets) > 1 else ""
        texts = [f"{name} {item['value']:.4g} ± {item['standard_error']:.2g}" for name, item in values.items()]
        rows.append((f"coefficients of the mean{of}", _names(texts)))
    return rows


def _products(document: Document) -> Rows:
    """The kind of products that were taken, and why; and the proven errors of the gradient by them."""
    products = document.get("products")
    if not products:
        return []
    rows: Rows = [("products by", f"{products['kind']}: {products['reason']}")]
    if proven := products.get("proven"):
        words = f"{proven['largest']:.2g} in an entry, {proven['root_mean_square']:.2g} by root mean square"
        rows.append(("gradient proven within", words))
    return rows


def _kept(document: Document) -> Rows:
    kept = document.get("kept_tiles") or {}
    if not kept.get("reason"):  # a solver that takes no such products, or was to keep nothing
        return []
    what = f"{document['kept_share']:.0%}, {size(kept['bytes'])}" if kept["bytes"] else "nothing"
    return [("kept of the kernel matrix", f"{what}: {kept['reason']}")]


def _entries(count: int, n: int) -> str:
    return f"{count / n**2:.2f} n² = {count:.3g}, those of selection and dense solves included"


def _train(document: Document) -> list[RenderableType]:
    rows = [("model", document["out"]), *_training_rows(document)]
    tuned = tune_tables(document["tuned"]) if "tuned" in document else []
    return [*tuned, table_of("Trained" if document["converged"] else "Stopped before convergence", rows)]


def _predict(document: Document) -> list[RenderableType]:
    rows = [
        ("predictions", document["out"]),
        ("samples", f"{document['n_samples']:,}"),
        *_predicted_means(document),
        *assumed_rows(document),
    ]
    if document.get("variance") is not None:
        rows += _predicted_variance_rows(document["variance"])
    rows.append(("seconds", f"{document['seconds']:.2f}"))
    return [table_of("Predicted", rows)]


def _export(document: Document) -> list[RenderableType]:
    rows: Rows = [
        ("table", document["out"]),
        ("samples", f"{document['n']:,}"),
        ("columns", _names(document["columns"], 20)),
    ]
    return [table_of("Exported", rows)]


def _predicted_means(document: Document) -> Rows:
    if document.get("classes") is not None:
        return predicted_class_rows(document["classes"], document["n_samples"])
    if document["largest_mean_error_bound"] is None:
        return [("means of", f"a linear regression on {document['n_support']:,} features")]
    units = "scale of the transformed targets" if document.get("transformed") else "units of the targets"
    return [("mean certified within", bounds_of(document, "largest_mean_error_bound") + f" ({units})")]


def _predicted_variance_rows(variance: Document) -> Rows:
    of = ("variances of", "the function" if variance["latent"] else "new observations, noise included")
    widths = gaps(variance["gap_mean"], variance["gap_max"])
    if "method" in variance:
        return [
            of,
            ("variances by", f"{variance['method']}; {variance['outside']:.2%} of them proven wrong"),
            ("exact variances known within", widths),
            *_bases(variance),
        ]
    if "basis" in variance:
        return [of, ("variances certified within", widths), *_bases(variance)]
    met, total = variance["met"], variance["met"] + variance["unmet"]
    rows = [
        of,
        ("variances certified within", widths),
        ("as narrow as wanted", f"{met:,} of {total:,} (relative gap {variance['gap']:g})"),
    ]
    if variance["seconds_per_sample"] is None:  # resumed, and there was nothing left to do
        return rows
    passes = variance["column_passes"]
    by = f"a factor of rank {variance['rank']:,} {'and conjugate gradients' if passes else 'alone'}"
    ways = {
        "cholesky": "a Cholesky factor of all samples",
        "neighbours": f"{variance['rank']:,} samples around each tile of test samples",
    }
    return [
        *rows,
        ("by", ways.get(variance.get("way", ""), by)),
        *([Detail(("column passes", f"{passes:.2f} a sample"))] if passes else []),
        ("milliseconds a variance", f"{1000 * variance['seconds_per_sample']:.2f}"),
    ]


def _bases(variance: Document) -> Rows:
    """Rows on bases for each sample, where there are some and this run found them."""
    if variance.get("kernels_mean") is None:
        return []
    mean, std, most = (variance[f"kernels_{name}"] for name in ("mean", "std", "max"))
    total = variance["met"] + variance["unmet"]
    rows = [
        ("by a basis for each", f"{mean:.1f} +- {std:.1f} samples, {most:,} at most"),
        (f"bounds within {variance['basis_gap']:g}", f"of {variance['met']:,} of {total:,}"),
    ]
    if variance["seconds_per_sample"] is not None:
        rows.append(("milliseconds a variance", f"{1000 * variance['seconds_per_sample']:.1f}"))
    return rows


def _demo(document: Document) -> list[RenderableType]:
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in document["seconds_by_phase"].items())
    rows = [
        ("training samples, features", f"{document['n']:,}, {document['d']}"),
        ("RMSE, noise-free test targets", f"{document['rmse']:.5f} on {document['n_test']:,} samples"),
        ("NLPD, coverage of 95 % intervals", f"{number(document['nlpd'])}, {number(document['coverage_95'])}"),
        ("variances certified within", gaps(document["variance_gap_mean"], document["variance_gap_max"])),
        ("converged", _yes(document["converged"])),
        ("largest error", f"{document['gradient_inf_norm']:.3g}, tolerance {document['tolerance']:g}"),
        Detail(("column passes", f"{document['column_passes']:.2f} in {document['iterations']} rounds")),
        ("seconds", f"{document['seconds']:.1f}: {phases}"),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
        ("kernel matrix that never existed", size(document["kernel_matrix_bytes"])),
        *([] if document["plot"] is None else [("plot", document["plot"])]),
    ]
    return [table_of(f"Exact GP on Friedman1 in {duration(document['seconds'])}", rows)]


def _fit(document: Document) -> list[RenderableType]:
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in document["seconds_by_phase"].items())
    rows = [
        ("model", f"{document['train']['out']}: {document['choice']['way']['words']}"),
        ("why", document["choice"]["reason"]),
        ("converged", _yes(document["converged"])),
        ("seconds", f"{document['seconds']:.1f}: {phases}"),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
        ("page", document["report"]),
    ]
    return [*evaluated_tables(document["evaluation"]), table_of("Fitted", rows)]


def _info(document: Document) -> list[RenderableType]:
    if document["kind"] == "sparse model":
        return sparse_info_tables(document)
    if document["kind"] == "classifier":
        return classifier_info_tables(document)
    if document["kind"] == "linear model":
        return linear_info_tables(document)
    rows = [(name, _shown(name, value)) for name, value in document.items() if name not in ("command", "kernel")]
    if "kernel" in document:
        names = document.get("feature_names") or document.get("features") or ()
        rows.insert(list(document).index("kernel") - 1, ("kernel", kernel_text(document["kernel"], names)))
    return [table_of("", rows)]


def _bench(document: Document) -> list[RenderableType]:
    table = Table()
    for column in document["columns"]:
        table.add_column(column["title"], justify="left" if column.get("text") else "right")
    for row in document["rows"]:
        table.add_row(*(cell(row, column) for column in document["columns"]))
    extra = [
        (name.replace("_", " "), figure(value) + _noise(document, name)) for name, value in document["figures"].items()
    ]
    if document.get("benchmark") == "tiles":
        machine = document["machine"]
        compiled, blas = machine["compiled_for"], ", ".join(machine["blas"])
        extra.append(("on", f"{machine['processor']}, compiled for {compiled}; {blas}"))
    parts = [titled(document["title"], table), *([table_of("", extra)] if extra else [])]
    parts += [part for section in document.get("sections", ()) for part in _bench(section)]
    if "cautions" in document:
        parts.append(table_of("What differs from the papers", list(document["cautions"].items())))
    return parts


def cell(row: Document, column: Document) -> str:
    """Return the text of a row's column in a benchmark's table."""
    name, form = column["name"], column.get("format", "")
    value = row.get(name)
    if value is None:
        return "-"
    if form == "bytes":
        return size(value)
    return (format(value, form) if isinstance(value, int | float) else str(value)) + _noise(row, name)


def _noise(figures: Document, name: str) -> str:
    """The range that the baseline's own copy came to, where a ratio's noise was measured."""
    least, most = figures.get("null", {}).get(name, (None, None))
    return "" if least is None else f" (null {least:.2f}-{most:.2f})"


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return size(value)
    if isinstance(value, list):
        return _names([str(item) for item in value])
    if isinstance(value, dict):
        lines = [f"{key}: {figure(item)}" for key, item in value.items()]
        return "\n".join(
            [*lines[:_MOST_LINES], *([f"and {len(lines) - _MOST_LINES} more"] * (len(lines) > _MOST_LINES))]
        )
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
