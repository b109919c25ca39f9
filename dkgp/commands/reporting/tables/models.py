"""Sparse and linear models, and hyperparameters, as tables: what was found, what is proven, what it took."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.codec import from_json
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.tables.layout import (
    Detail,
    Rows,
    assumed_rows,
    cost_rows,
    details,
    grid,
    size,
    stored_rows,
    table_of,
    titled,
    unproven_rows,
)
from dkgp.kernels import kernel_text
from dkgp.models import TunedParameter
from dkgp.models.hyperparameters import stopped
from dkgp.models.sparse.model import method_named
from dkgp.models.sparse.search import EVIDENCES

# Targets with rows or tables of their own; rows of a path, and weights that are named in one.
MOST_TARGETS, MOST_ROWS, MOST_WEIGHTS = 8, 16, 5
# Bounds from below on the least risk, by what they are made of.
_BOUNDS = {
    "none": "nothing but zero",
    "subset": "the exact model of a subset",
    "residual": "the residual's direction",
    "trace": "fits with more noise",
    "descent": "passes over the kernel matrix",
}


def sparse_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the record of `dkgp sparse`."""
    rows: Rows = [
        ("model", document["out"]),
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("method, basis", f"{document['method']}, {document['basis_size']:,} samples ({document['basis']})"),
        ("done", document["reason"]),
        *unproven_rows(document),
        *_distances(document),
        *details(_gaps(document)),
        *details(_evidence(document)),
        *_rungs(document),
        *assumed_rows(document),
        Detail(("kernel entries evaluated", f"{document['kernel_evaluations']:.3g}")),
        *cost_rows(document),
    ]
    return [table_of("Trained, sparse" if document["converged"] else "Not as near as was asked for", rows)]


def sparse_info_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show what `dkgp info` tells of a sparse model."""
    noise = f"{document['noise_variance']:.4g} (standardised)" + (
        " of new observations; each sample has its own" if document["noise_by_sample"] else ""
    )
    rows: Rows = [
        ("sparse model", document["location"]),
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("method, basis", f"{document['method']}, {document['basis_size']:,} samples ({document['basis']})"),
        ("kernel", kernel_text(document["kernel"], document["features"])),
        ("noise variance", noise),
        *_distances({**document, "target_names": document["targets"]}),
        *_gaps({**document, "target_names": document["targets"]}),
        *_evidence(document),
        *assumed_rows(document["certificate"]),
        ("rounds of the choice", f"{document['rounds']:,}"),
        *stored_rows(document),
    ]
    return [table_of("", rows)]


def _distances(document: Document) -> Rows:
    """Proofs of the mean, target by target."""
    names = document["target_names"][:MOST_TARGETS]
    rows: Rows = []
    # Of a model with neighbours the basis' own mean is proven, and its own where it predicts.
    what = (
        "distance of the basis' mean from the exact one" if _has_neighbours(document) else "distance to the exact mean"
    )
    for target, name in enumerate(names):
        of = f" of {name}" if len(names) > 1 else ""
        bound = document["best"][target]
        raw, relative = document["rms_bound_raw"][target], document["rms_bound"][target]
        distance = f"root mean square {raw:.4g}, {relative:.3g} of the targets' spread"
        rows.append((f"{what}{of}", f"{distance} (proven by {_BOUNDS.get(bound, bound)})"))
    return rows


def _has_neighbours(document: Document) -> bool:
    return method_named(document["method"]).neighbours


def _gaps(document: Document) -> Rows:
    """The risk's distance to the least there is, target by target."""
    names = document["target_names"][:MOST_TARGETS]
    of = [f" of {name}" if len(names) > 1 else "" for name in names]
    gaps = document["gap"][:MOST_TARGETS]
    return [
        (f"duality gap{of}", "the bounds say nothing" if gap is None else f"{gap:.3g}")
        for of, gap in zip(of, gaps, strict=True)
    ]


def _rungs(document: Document) -> Rows:
    """The sizes that a basis grew through, and what the exact model would cost and gain."""
    if "ladder" not in document:
        return []
    sizes = ", ".join(f"{rung['size']:,}: {rung['distance']:.3g}" for rung in document["ladder"]["rungs"])
    return [("basis samples: proven distance", sizes), ("beside that", document["ladder"]["exact"]["words"])]


def _evidence(document: Document) -> Rows:
    """Bounds on log p(y), where the method has them."""
    if document["elbo"] is None:
        return []
    bounds = f"{document['elbo']:.8g} to {document['evidence_upper']:.8g} nats"
    return [
        ("log evidence of the exact model", bounds),
        ("KL from the exact posterior", f"at most {document['divergence']:.4g} nats"),
    ]


def pursue_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the record of `dkgp pursue`."""
    rows: Rows = [
        ("model", document["out"]),
        *_linear(document),
        ("passes over the samples, seconds", f"{document['passes']:,}, {document['seconds']:.2f}"),
        ("peak memory, all processes", size(document["peak_memory_bytes"])),
    ]
    return [table_of("Linear regression", rows), *_targets(document)]


def linear_info_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show what `dkgp info` tells of a linear regression."""
    rows: Rows = [
        ("linear model", document["location"]),
        *_linear(document),
        *stored_rows(document),
    ]
    return [table_of("", rows), *_targets(document)]


def _linear(document: Document) -> Rows:
    return [
        ("samples, features, targets", f"{document['n']:,}, {document['d']:,}, {document['p']}"),
        ("method", document["method"]),
        ("cardinality by", document["choice"]),
    ]


def _targets(document: Document) -> list[RenderableType]:
    return [part for target in document["targets"][:MOST_TARGETS] for part in (_path(target), _weights(target))]


def _path(target: Document) -> RenderableType:
    scored = target["score"] is not None
    rows = []
    for record in _shown(target):
        k = record["cardinality"]
        joined = ", ".join([*record["joined"], *(f"without {name}" for name in record["left"])])
        cells = [f"{k} *" if k == target["cardinality"] else str(k), joined, _root(record["error"])]
        named = list(record["weights"].items())[:MOST_WEIGHTS]
        more = [f"{len(record['weights']) - len(named)} more"] if len(record["weights"]) > len(named) else []
        weights = ", ".join([*(f"{name} {weight:.4g}" for name, weight in named), *more])
        rows.append([Text(cell) for cell in [*cells, *([_root(record["score"])] if scored else []), weights]])
    headings = ["features", "joined", "RMSE, training", *(["RMSE, left out"] if scored else []), "weights"]
    table = grid(headings, rows, left=("joined", "weights"))
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


def tune_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the document of `dkgp tune`."""
    rows = [("hyperparameters", document["out"])]
    likelihood = document.get("likelihood")
    noise = f"{document['noise_variance']:.4g}"
    rows.append(("noise variance", noise) if likelihood is None else ("likelihood", likelihood))
    if (model := document.get("noise_model")) is not None:
        ends = f"{model['lowest']:.4g} to {model['highest']:.4g}"
        rows.append(("noise model", f"{model['kind']}, {ends} on the subset; {noise} is the mean"))
    if (student := document.get("student_t")) is not None:
        told = f"{student['degrees']:.3g} degrees of freedom, squared scale {student['scale']:.4g}, variance {noise}"
        rows.append(("Student's t", told))
    if "variance" in document["kernel"]:
        rows.append(("amplitude", f"{document['kernel']['variance']:.4g}"))
    subsets = document.get("subsets", 1)
    if subsets > 1:
        rows.append(("subsets", f"{subsets} of {document['subset_size']:,} samples"))
    for name, title in (
        ("log_marginal_likelihood", "log marginal likelihood" if likelihood is None else "log evidence (Laplace)"),
        ("leave_one_out_log_likelihood", "leave-one-out log likelihood"),
        ("log_prior", "log density of the priors"),
    ):
        if document.get(name) is not None:
            rows.append((title, f"{document[name]:.2f}"))
    if (sparse := document.get("sparse")) is not None:
        of_labels = "log evidence (Laplace)"
        title = EVIDENCES.get(document["objective"], "evidence") if likelihood is None else of_labels
        rows += [(title, f"{sparse['value']:.2f}"), ("basis samples", f"{sparse['basis_size']:,}")]
    parameters = from_json(list[TunedParameter], document.get("parameters") or [])
    if "converged" in document:  # values to refine may have been given by hand
        ended = stopped(parameters)
        verdict = "yes" if document["converged"] else f"no: {ended}" if ended else "no"
        rows += [
            ("converged", f"{verdict}, {document['evaluations']} evaluations"),
            ("seconds", f"{document['seconds']:.1f}"),
        ]
    if document.get("plot") is not None:
        rows.append(("plot", document["plot"]))
    shown: list[RenderableType] = [table_of("Tuned", rows)]
    if document.get("comparison"):
        shown.insert(0, _compared_kernels(document["comparison"]))
    if document.get("noise_comparison"):
        shown.append(_compared_noise(document["noise_comparison"]))
    if parameters:
        shown.append(_parameters(parameters))
    if document.get("scores"):
        shown.append(_scores(document))
    if document.get("refinement"):
        shown += _refined(document["refinement"])
    return shown


def _parameters(parameters: list[TunedParameter]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold", style="dim")
    for title in ("value", "length scale", ""):
        table.add_column(title, justify="right")
    for parameter in parameters:
        scale = parameter.length_scale
        table.add_row(
            # As it is: rich would take what stands in brackets for markup.
            Text(parameter.name),
            f"{parameter.value:.4g}",
            "" if scale is None else f"{scale:.4g}",
            parameter.words,
        )
    return titled("Hyperparameters (gamma = 1 / (2 length scale^2), standardised)", table)


def _compared_kernels(comparison: Document) -> RenderableType:
    rows = [
        [
            f"{row['kernel']} *" if row["kernel"] == comparison["kernel"] else row["kernel"],
            *("-" if row[name] is None else f"{row[name]:.4f}" for name in ("nlpd", "rmse", "coverage_95")),
            f"{row['seconds']:.1f}",
        ]
        for row in comparison["kernels"]
    ]
    title = (
        f"Kernels on {comparison['held_out']:,} held-out samples, tuned on {comparison['samples']:,} "
        "(standardised; * taken, by NLPD)"
    )
    return titled(title, grid(("kernel", "NLPD", "RMSE", "coverage of 95 %", "seconds"), rows, left={"kernel"}))


def _compared_noise(comparison: Document) -> RenderableType:
    rows = [
        [
            f"{row['kind']} *" if row["kind"] == comparison["kind"] else row["kind"],
            *(f"{row[name]:.4f}" for name in ("nlpd", "rmse", "coverage_95")),
            "" if row["gain"] is None else f"{row['gain']:+.4f} ({row['standard_error']:.4f}) over {row['against']}",
        ]
        for row in comparison["kinds"]
    ]
    title = (
        f"Noise on {comparison['held_out']:,} held-out samples, found from {comparison['samples']:,} "
        "(standardised; * taken: it gains twice the standard error)"
    )
    return titled(title, grid(("noise", "NLPD", "RMSE", "coverage of 95 %", "gain (error)"), rows, left={"noise"}))


def _scores(document: Document) -> RenderableType:
    of_labels = document.get("likelihood") is not None
    figures = {"rmse": "RMSE", "nlpd": "NLPD", "coverage_95": "coverage of 95 %"}
    if of_labels:
        figures = {"error_rate": "error rate", "log_loss": "log loss"}
    rows = [
        (
            f"{scores['folds']} folds" if group == "folds" else f"{scores['rows']:,} rows held out",
            *(f"{scores[name]:.4f}" for name in figures),
        )
        for group, scores in document["scores"].items()
    ]
    table = grid(("scores of", *figures.values()), rows, left=("scores of",), lines=False)
    return titled("Scores (averaged probabilities)" if of_labels else "Scores (standardised targets)", table)


def _refined(refinement: Document) -> list[RenderableType]:
    """Tables of a refinement: its steps, and how held-out samples were predicted before and after."""
    history = refinement["history"]
    rows: Rows = [
        ("values kept", "refined" if refinement["kept"] == "refined" else "those to start from"),
        ("ended because", refinement["reason"]),
        ("steps", f"{sum(step['step'] > 0 for step in history)}"),
        Detail(
            ("column passes", f"{refinement['column_passes']:.0f}, and {refinement['contractions']} of derivatives")
        ),
        ("seconds", f"{refinement['seconds']:.1f}"),
    ]
    if history:
        last = next(step for step in reversed(history) if step["accepted"])
        rows.insert(3, ("log likelihood", f"{last['gain']:+.1f}, error {last['gain_error']:.2g}"))
        rows.insert(4, Detail(("gradient", f"{last['gradient_norm']:.3g}, error {last['error_norm']:.2g}")))
    evidence = refinement.get("evidence")
    if evidence is not None:
        rows.append(
            ("log marginal likelihood", f"{evidence['value']:,.1f}, standard error {evidence['standard_error']:.2g}")
        )
    shown: list[RenderableType] = [table_of("Refined on all samples", rows)]
    before, after = refinement["before"], refinement["after"]
    if before is not None and after is not None:
        shown.append(_compared(refinement["n_held_out"], before, after))
    return shown


def _compared(held_out: int, before: Document, after: Document) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="dim")
    for title in ("NLPD", "RMSE", "95 % coverage"):
        table.add_column(title, justify="right")
    for name, score in (("before", before), ("after", after)):
        table.add_row(name, f"{score['nlpd']:.4f}", f"{score['rmse']:.4f}", f"{score['coverage_95']:.3f}")
    return titled(f"{held_out:,} held-out samples (standardised)", table)
