"""A classifier as tables: its record, what it predicted, and how predicted classes compare with the true ones."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.tables.layout import (
    Detail,
    Rows,
    assumed_rows,
    cost_rows,
    stored_rows,
    table_of,
    titled,
    unproven_rows,
)
from dkgp.kernels import kernel_text

MOST_CLASSES = 8
# A confusion matrix of more classes than that is in the JSON, and in the plot.
MOST_CONFUSED = 12
MOST_LETTERS = 16
# Methods with a likelihood, in words, and the models that certified labels are those of.
PROBABILISTIC = {"logistic": "kernel logistic regression", "gp": "Gaussian process classification"}
EXACT_OF = {
    "exact": "the exact LS-SVM's",
    "logistic": "those of the exact minimiser of the risk",
    "gp": "those of the exact Laplace approximation",
}


def classify_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the record of `dkgp classify`."""
    rows: Rows = [
        ("model", document["out"]),
        *_about(document),
        *_how(document, document["class_weights"] is not None),
        *_noise(document),
        *assumed_rows(document),
        ("probabilities", _probabilities(document)),
        Detail(("kernel entries evaluated", f"{document['kernel_evaluations']:.3g}")),
        *cost_rows(document),
    ]
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
        *_noise(document),
        ("weights of classes", "all the same" if weights is None else _by_name(weights)),
        ("probabilities", _probabilities(document)),
        *assumed_rows(summary),
    ]
    if document["by_reference"]:
        rows.append(("inputs", "in the training set's store, by reference"))
    return [table_of("", rows + stored_rows(document))]


def predicted_class_rows(classes: Document, n: int) -> Rows:
    """Rows that tell what a classifier predicted at n samples."""
    rows: Rows = [("classes", _by_name(classes["counts"]))]
    margins = "" if classes["method"] in PROBABILISTIC else " (margins at -1 and 1)"
    if classes["certified"] is not None:
        certified = f"{classes['certified']:,} of {n:,} ({classes['certified'] / n:.2%})"
        # A Gaussian process on a basis certifies the exact mode's classes, and no averaged probabilities.
        of_mode = classes["method"] == "gp" and classes.get("interval_width_mean") is None
        exact = "those of the exact mode" if of_mode else EXACT_OF[classes["method"]]
        rows.append(("certified", f"{certified}: proven to be {exact}"))
    if classes["largest_decision_error_bound"] is not None:
        rows.append(("decisions certified within", f"{classes['largest_decision_error_bound']:.3g}{margins}"))
    widths = classes.get("interval_width_mean")
    if widths is not None:
        widest = classes["interval_width_max"]
        rows.append(("probabilities certified within", f"intervals {widths:.3g} wide on average, {widest:.3g} at most"))
    latent = classes.get("latent_variance")
    if latent is not None:
        rows.append(("latent variances", f"to {latent['gap_mean']:.2g} on average, {latent['gap_max']:.2g} at most"))
    return rows


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
    if len(document["classes"]) <= MOST_CONFUSED:
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
    names = [
        Text(name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "…") for name in document["classes"]
    ]
    table = Table(box=None, pad_edge=False)
    table.add_column("true", style="dim")
    for name in names:
        table.add_column(name, justify="right")
    for name, row in zip(names, document["confusion"], strict=True):
        table.add_row(name, *(f"{count:,}" for count in row))
    return titled("True labels (rows) by given labels (columns)", table)


def _about(document: Document) -> Rows:
    counts = dict(zip(document["classes"], document["counts"], strict=True))
    return [
        ("samples, features", f"{document['n']:,}, {document['d']}"),
        ("classes", _by_name(counts)),
    ]


def _how(document: Document, weighted: bool) -> Rows:
    """Tell what decisions are sums over, and how good that is."""
    method = document["method"]
    if method in PROBABILISTIC:
        return _on_basis(document) if document.get("basis_size") else _of_samples(document)
    return _exact(document) if method == "exact" else _fixed_size(document, weighted)


def _exact(document: Document) -> Rows:
    errors = max(document["decision_error"])
    return [
        ("method", "exact: all samples"),
        *_ended("solved by", document["solver"], document),
        ("decisions within about", f"{errors:.3g} of the exact ones (margins at -1 and 1)"),
        *_beyond(document),
        Detail(("rounds, column passes", f"{document['iterations']}, {document['column_passes']:.2f}")),
    ]


def _beyond(document: Document) -> Rows:
    """Tell why a bound exceeds the tolerance, where it does."""
    words = document.get("beyond_tolerance")
    return [] if words is None else [("beyond the tolerance", words)]


def _fixed_size(document: Document, weighted: bool) -> Rows:
    chosen = f"{document['cardinality']:,} prototypes of {document['pool']:,} ({document['prototypes']})"
    return [
        ("method", f"fixed-size: {chosen}"),
        (
            "error in cross-validation",
            f"{document['misclassification']:.2%}" + (", weighted" if weighted else ""),
        ),
        *_balanced(document),
        ("passes over the data", f"{document['passes']:,} in the search"),
    ]


def _balanced(document: Document) -> Rows:
    """The balanced error, which models of earlier versions do not tell."""
    error = document.get("balanced_error")
    return [] if error is None else [("balanced error in cross-validation", f"{error:.2%}")]


def _of_samples(document: Document) -> Rows:
    """A logistic one or a Gaussian process of all samples: the risk, what is proven of it, and who found it."""
    errors = [error for error in document["decision_error"] if error is not None]
    chosen = document.get("chosen") or {}
    why = f" ({chosen['reason']})" if "reason" in chosen else ""
    rows: Rows = [
        ("method", f"{PROBABILISTIC[document['method']]}: all samples"),
        *_ended("minimised by", f"{document['solver']}{why}", document),
        *_risk(document),
    ]
    if errors:
        rows.append(("decisions within about", f"{max(errors):.3g} of the exact minimiser's"))
    rows += _beyond(document)
    rows.append(Detail(("rounds, products", f"{document['iterations']}, {document['column_passes']:.2f}")))
    return rows


def _on_basis(document: Document) -> Rows:
    """A logistic one or a Gaussian process of some samples."""
    basis = f"{document['basis_size']:,} samples ({document['basis']})"
    if document.get("neighbours") is not None:
        basis += f" and {document['neighbours']:,} nearest samples"
    rows: Rows = [
        ("method", f"{PROBABILISTIC[document['method']]}: a basis of {basis}"),
        *_ended("minimised by", f"Newton's method, {document['iterations']} steps", document),
        *_risk(document),
    ]
    distance = document.get("distance")
    if distance is not None:
        rows.append(("decisions within", f"{_largest(distance):.3g} of the minimiser's over all functions, proven"))
    if document.get("evidence") is not None:
        of_basis = "" if document.get("neighbours") is not None else "of the basis "
        rows.append(("log evidence", f"{document['evidence']:.8g} nats, {of_basis}in Laplace's approximation"))
    if "left" in document:
        rows.append(("left of k(x, x)", f"{max(document['left'], 0.0):.2g} of it, on average"))
    if "passes" in document:
        rows.append(("passes over the data", f"{document['passes']}, of which {document['hessians']} sum a Hessian"))
    return [*rows, *unproven_rows(document)]


def _ended(name: str, solver: str, document: Document) -> Rows:
    """The solver, and why it ended: to all where it stopped short, else to those who know solvers."""
    if not document.get("converged", True):
        return [(name, f"{solver}: {document['reason']}")]
    return [(name, solver), Detail(("ended because", document["reason"]))]


def _risk(document: Document) -> Rows:
    gap = document.get("risk_gap")
    proven = "" if gap is None else f", proven to be within {gap:.3g} of the least, relatively"
    return [
        ("lambda", f"{document['regularisation']:g}"),
        ("risk", f"{document['risk']:.8g}{proven}"),
    ]


def _largest(values: float | list[float]) -> float:
    return max(values) if isinstance(values, list) else values


def _noise(document: Document) -> Rows:
    """The noise variance of an LS-SVM; likelihoods of labels have none."""
    return (
        []
        if document["method"] in PROBABILISTIC
        else [("penalty (noise variance)", f"{document['noise_variance']:.4g}")]
    )


def _probabilities(document: Document) -> str:
    likelihood = document["likelihood"]
    if likelihood is None:
        return "calibrated" if document["probabilities"] else "none"
    name = likelihood["name"]
    several = ", each class against the rest" if likelihood["n_classes"] > 2 and name != "softmax" else ""
    return f"{name}{several}" + (", averaged over the latent functions" if document["method"] == "gp" else "")


def _by_name(values: Document) -> str:
    shown = [
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}" for name, value in values.items()
    ]
    more = f" and {len(shown) - MOST_CLASSES} more" if len(shown) > MOST_CLASSES else ""
    return ", ".join(shown[:MOST_CLASSES]) + more
