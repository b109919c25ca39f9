"""Sparse and linear models, hyperparameters and plans as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.codec import from_json
from dkgp.commands.reporting.layout import (
    EVALUATED,
    PEAK,
    SIZES,
    Figure,
    Rows,
    assumed,
    cost,
    detail,
    details,
    grid,
    may,
    plain_number,
    proven,
    rows_of,
    sheet_of,
    stored,
    table_of,
    titled,
    unproven,
)
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import STANDARDISED, duration, scored_by
from dkgp.kernels import kernel_text
from dkgp.models import TunedParameter
from dkgp.models.hyperparameters import stopped
from dkgp.models.sparse.model import method_named
from dkgp.models.sparse.search import EVIDENCES
from dkgp.registry import byte_text

Tables = list[RenderableType]
# Maximum numbers of targets with their own rows or tables, of rows of a path, and of weights named in a row.
MOST_TARGETS, MOST_ROWS, MOST_WEIGHTS = 8, 16, 5


def kernel_of(document: Document) -> str:
    """Return a document's kernel in its written form."""
    return kernel_text(document["kernel"], document["features"])


# ----------------------------------------------------------------------------------------- sparse and linear models

# Names of the lower bounds on the least risk, by their origin.
_BOUNDS = {
    "none": "the risk is not negative",
    "subset": "the exact model of a subset",
    "residual": "a step along the residual",
    "trace": "a fit with larger noise",
    "descent": "passes over the kernel matrix",
}
METHOD_AND_BASIS = Figure("method, basis", "{method}, {basis_size:,} samples ({basis})")


def _of_target(document: Document) -> list[tuple[int, str]]:
    """Return the numbers of the displayed targets, each with " of NAME" if there are several."""
    targets = document.get("target_names") or document["targets"]
    return [(number, f" of {name}" if len(targets) > 1 else "") for number, name in enumerate(targets[:MOST_TARGETS])]


def _distances(document: Document) -> Rows:
    """Return the proven bounds of the mean, by target."""
    # With neighbours, the certificate covers the mean of the basis; predictions certify the model's own mean.
    near = method_named(document["method"]).neighbours
    title = "mean of the basis certified within" if near else "mean certified within"
    rows: Rows = []
    for target, of in _of_target(document):
        bound = document["best"][target]
        raw, relative = document["rms_bound_raw"][target], document["rms_bound"][target]
        distance = f"root mean square {plain_number(raw, 3)} (units of the targets) at the training samples"
        by = f"{plain_number(relative, 3)} standard deviations of the target; proven by {_BOUNDS.get(bound, bound)}"
        rows.append((f"{title}{of}", proven(f"{distance}, or {by}", relative)))
    return rows


def _gaps(document: Document) -> Rows:
    """Return the distance of the risk from its minimum, by target."""
    found = ((of, document["gap"][target]) for target, of in _of_target(document))
    return [(f"duality gap{of}", proven("" if gap is None else f"{gap:.3g}", gap)) for of, gap in found]


def _rungs(document: Document) -> Rows:
    """Return the sizes of a growing basis with their proven distances, and the exact model's cost and gain."""
    if "ladder" not in document:
        return []
    rungs = document["ladder"]["rungs"]
    distances = ((rung["size"], rung["distance"]) for rung in rungs)
    sizes = ", ".join(f"{size:,}: {proven(f'{distance:.3g}', distance)}" for size, distance in distances)
    words = document["ladder"]["exact"]["words"]
    return [("proven distance by number of basis samples", sizes), ("alternative", words)]


def _evidence(document: Document) -> Rows:
    """Return bounds on log p(y) if the method has them."""
    figures = (
        may("log marginal likelihood of the exact model", "{elbo:.8g} to {evidence_upper:.8g} nats"),
        may("KL divergence from the exact posterior", "at most {divergence:.4g} nats"),
    )
    return [] if document["elbo"] is None else rows_of(figures, document)


def _sparse_noise(document: Document) -> str:
    by_sample = " of new observations; each sample has its own" if document["noise_by_sample"] else ""
    return f"{document['noise_variance']:.4g} (standardised){by_sample}"


SPARSE = (
    Figure("model", "{out}"),
    SIZES,
    METHOD_AND_BASIS,
    Figure("ended because", "{reason}"),
    unproven,
    _distances,
    lambda of: details(_gaps(of)),
    lambda of: details(_evidence(of)),
    _rungs,
    assumed,
    EVALUATED,
    cost,
)
SPARSE_INFO = (
    Figure("sparse model", "{location}"),
    SIZES,
    METHOD_AND_BASIS,
    Figure("kernel", kernel_of),
    Figure("noise variance", _sparse_noise),
    _distances,
    lambda of: details(_gaps(of)),
    _evidence,
    lambda of: assumed(of["certificate"]),
    detail("rounds of choosing the basis", "{rounds:,}"),
    stored,
)
LINEAR = (
    Figure("samples, features, targets", "{n:,}, {d:,}, {p}"),
    Figure("method", "{method}"),
    Figure("cardinality by", "{choice}"),
)
PURSUED = (
    Figure("model", "{out}"),
    *LINEAR,
    Figure("passes over the samples, seconds", "{passes:,}, {seconds:.2f}"),
    PEAK,
)


def sparse_tables(document: Document) -> Tables:
    """Return the tables of `dkgp sparse`."""
    title = "Trained a sparse model"
    title += "" if document["converged"] else "; the requested distance is not proven"
    return [sheet_of(title, SPARSE, document)]


def pursue_tables(document: Document) -> Tables:
    """Return the tables of `dkgp pursue`."""
    return [sheet_of("Linear regression", PURSUED, document), *_paths(document)]


def linear_info_tables(document: Document) -> Tables:
    """Return the tables of a linear model's store."""
    return [sheet_of("", (Figure("linear model", "{location}"), *LINEAR, stored), document), *_paths(document)]


def _paths(document: Document) -> Tables:
    return [part for target in document["targets"][:MOST_TARGETS] for part in (_path(target), _weights(target))]


def _path(target: Document) -> RenderableType:
    scored = target["score"] is not None
    rows = []
    for record in _shown_steps(target):
        k = record["cardinality"]
        joined = ", ".join([*record["joined"], *(f"without {name}" for name in record["left"])])
        cells = [f"{k} *" if k == target["cardinality"] else str(k), joined, _root(record["error"])]
        named = list(record["weights"].items())[:MOST_WEIGHTS]
        more = [f"{len(record['weights']) - len(named)} more"] if len(record["weights"]) > len(named) else []
        weights = ", ".join([*(f"{name} {weight:.4g}" for name, weight in named), *more])
        rows.append([Text(cell) for cell in [*cells, *([_root(record["score"])] if scored else []), weights]])
    headings = ["features", "joined", "RMSE, training", *(["RMSE, held out"] if scored else []), "weights"]
    table = grid(headings, rows, left=("joined", "weights"))
    return titled(f"Path of {target['name']} (* chosen; it ends with: {target['reason']})", table)


def _weights(target: Document) -> RenderableType:
    rows = [(name, f"{weight:.6g}") for name, weight in target["weights"].items()]
    return table_of(f"{target['name']}, by feature", [("intercept", f"{target['intercept']:.6g}"), *rows])


def _shown_steps(target: Document) -> list[Document]:
    """Return the first steps, the steps around the selected one, and the last step."""
    path, chosen = target["path"], target["cardinality"]
    if len(path) <= MOST_ROWS:
        return list(path)
    some = {*range(MOST_ROWS // 2), *range(chosen - 3, chosen + 4), len(path) - 1}
    return [record for record in path if record["cardinality"] in some]


def _root(squared: float | None) -> str:
    return "unknown" if squared is None else f"{math.sqrt(squared):.5g}"


# --------------------------------------------------------------------------------------------------- hyperparameters


def _tuned_values(document: Document) -> Rows:
    of_labels, labels = document.get("likelihood") is not None, "log evidence (Laplace)"
    likelihood = labels if of_labels else "log marginal likelihood"
    evidence = (
        labels
        if of_labels
        else next((words for name, words in EVIDENCES.items() if name == document.get("objective")), "evidence")
    )
    figures: Iterable[Figure] = (
        Figure("hyperparameters", "{out}"),
        may("likelihood", "{likelihood}")
        if of_labels
        else Figure("noise variance", "{noise_variance:.4g} (standardised)"),
        may(
            "noise model",
            "{noise_model[kind]}, {noise_model[lowest]:.4g} to {noise_model[highest]:.4g} on the subset; "
            "{noise_variance:.4g} is the mean",
        ),
        may(
            "Student's t",
            "{student_t[degrees]:.3g} degrees of freedom, squared scale {student_t[scale]:.4g}, "
            "variance {noise_variance:.4g}",
        ),
        may("amplitude", "{kernel[variance]:.4g}" + ("" if of_labels else " (standardised)")),
        Figure(
            "subsets",
            lambda of: f"{of['subsets']} of {of['subset_size']:,} samples" if of.get("subsets", 1) > 1 else None,
        ),
        may(likelihood, "{log_marginal_likelihood:.2f}"),
        may("leave-one-out log likelihood", "{leave_one_out_log_likelihood:.2f}"),
        may("log density of the priors", "{log_prior:.2f}"),
        may(evidence, "{sparse[value]:.2f}"),
        may("basis samples", "{sparse[basis_size]:,}"),
    )
    return rows_of(figures, document)


def tune_tables(document: Document) -> Tables:
    """Return the tables of `dkgp tune`."""
    rows = _tuned_values(document)
    parameters = from_json(list[TunedParameter], document.get("parameters") or [])
    if "converged" in document:  # missing if the user gave the values to refine
        ended = stopped(parameters)
        outcome = f"{'yes' if document['converged'] else 'no'}, after {document['evaluations']} evaluations"
        rows += [
            ("converged", outcome + (f": {ended}" if ended and not document["converged"] else "")),
            ("seconds", f"{document['seconds']:.1f}"),
        ]
    rows += rows_of([may("plot", "{plot}")], document)
    return searched(document, [table_of("Tuned", rows)])


def searched(document: Document, about: Tables) -> Tables:
    """Return the tables of a search for hyperparameters around those `about` its result."""
    parameters = from_json(list[TunedParameter], document.get("parameters") or [])
    return [
        *([_compared_kernels(document["comparison"])] if document.get("comparison") else []),
        *([_compared_candidates(document["candidates"])] if document.get("candidates") else []),
        *about,
        *([_compared_noise(document["noise_comparison"])] if document.get("noise_comparison") else []),
        *([_parameters(parameters, document.get("likelihood") is not None)] if parameters else []),
        *([_scores(document)] if document.get("scores") else []),
        *(_refined(document["refinement"]) if document.get("refinement") else []),
    ]


# Fields of hyperparameters that `searched` shows.
SEARCHED = ("candidates", "comparison", "noise_comparison", "parameters", "refinement", "scores")


def _parameters(parameters: list[TunedParameter], of_labels: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold", style="dim")
    for title in ("value", "length scale", ""):
        table.add_column(title, justify="right")
    for parameter in parameters:
        scale = parameter.length_scale
        # As text, because rich would interpret brackets as markup.
        cells = Text(parameter.name), f"{parameter.value:.4g}", "" if scale is None else f"{scale:.4g}"
        table.add_row(*cells, parameter.words)
    standardised = "features" if of_labels else "features and targets"
    return titled(f"Hyperparameters ({standardised} standardised; gamma = 1 / (2 length scale²))", table)


def _compared_kernels(comparison: Document) -> RenderableType:
    rows = [
        [
            row["kernel"]
            + (" *" if row["kernel"] == comparison["kernel"] else "")
            + (" (search cut off)" if row.get("cut_off") else ""),
            *("-" if row[name] is None else f"{row[name]:.4f}" for name in ("nlpd", "rmse", "coverage_95")),
            f"{row['seconds']:.1f}",
        ]
        for row in comparison["kernels"]
    ]
    title = (
        f"Kernels, tuned on {comparison['samples']:,} samples and scored {scored_by(comparison)} "
        f"({STANDARDISED}; *: chosen, the smallest negative log predictive density, NLPD)"
    )
    return titled(title, grid(("kernel", "NLPD", "RMSE", "coverage of 95 %", "seconds"), rows, left={"kernel"}))


def _compared_candidates(compared: Document) -> RenderableType:
    rows = [
        [
            f"{row['from']} *" if row["from"] == compared["taken"] else row["from"],
            row["kernel"],
            *("-" if row[name] is None else f"{row[name]:.4f}" for name in ("nlpd", "rmse", "coverage_95")),
            f"{row['seconds']:.1f}",
        ]
        for row in compared["candidates"]
    ]
    rows += [[row["from"], f"not tried: {row['reason']}", "-", "-", "-", ""] for row in compared["not_tried"]]
    judged = f"{compared['held_out']:,} held-out samples, predicted from {compared['samples']:,}"
    if not compared["held_out"]:
        judged = f"{compared['samples']:,} samples by leave-one-out predictions"
    columns = ("source of the hyperparameters", "kernel", "NLPD", "RMSE", "coverage of 95 %", "seconds to predict")
    title = (
        f"Candidates on {judged} ({STANDARDISED}; *: chosen; a later one is chosen if its NLPD is smaller by more than "
        "one standard error of the difference)"
    )
    return titled(title, grid(columns, rows, left={"source of the hyperparameters", "kernel"}))


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
        f"Noise on {comparison['held_out']:,} held-out samples, tuned on {comparison['samples']:,} "
        f"({STANDARDISED}; a sample's gain counts for at most 3 nats; *: chosen, it gains at least two standard errors)"
    )
    return titled(
        title, grid(("noise", "NLPD", "RMSE", "coverage of 95 %", "gain (standard error)"), rows, left={"noise"})
    )


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
    return titled("Scores (averaged probabilities)" if of_labels else f"Scores ({STANDARDISED})", table)


def _refined(refinement: Document) -> Tables:
    """Return the tables of a refinement: its steps, and the held-out scores before and after."""
    history = refinement["history"]
    last = next((step for step in reversed(history) if step["accepted"]), None)
    figures = (
        Figure("kept values", "refined" if refinement["kept"] == "refined" else "the initial values"),
        Figure("ended because", "{reason}"),
        Figure("steps", f"{sum(step['step'] > 0 for step in history)}"),
        may("gain of log likelihood", "{last[gain]:+.1f}, standard error {last[gain_error]:.2g}"),
        detail("gradient", "{last[gradient_norm]:.3g}, standard error {last[error_norm]:.2g}", optional=True),
        detail("column passes", "{column_passes:.0f}, and {contractions} of derivatives"),
        Figure("seconds", "{seconds:.1f}"),
        may("log marginal likelihood", "{evidence[value]:,.1f}, standard error {evidence[standard_error]:.2g}"),
    )
    shown: Tables = [sheet_of("Refined on all samples", figures, {**refinement, "last": last})]
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
    return titled(f"{held_out:,} held-out samples ({STANDARDISED})", table)


# ------------------------------------------------------------------------------------------------------------- plans


def plan_tables(document: Document) -> Tables:
    """Return the tables of a plan: problem, workers, kept tiles, variances and validation."""
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
    between = "" if known else f", probably {counts['low']:.1f} to {counts['high']:.1f}"
    rows = [
        ("samples, features, targets", f"{document['n']:,}, {document['d']}, {document['p']}"),
        ("solver", document["solver"] + (f": {document['auto']['reason']}" if document["auto"] else "")),
        *([] if counts["unit"] == "factor" else [(counts["unit"], f"{counts['expected']:.1f}{between}")]),
        ("coordinator's memory", byte_text(document["workers"][0]["coordinator_memory_bytes"])),
        ("time of a message to a worker and back", f"{1000 * network['round_trip_seconds']:.2f} ms"),
        ("time of each further message", f"{1000 * network['task_seconds']:.2f} ms"),
        ("data rate to workers", f"{byte_text(network['bytes_per_second'])} per second"),
    ]
    return table_of("Plan of the training", rows)


def _workers(document: Document) -> RenderableType:
    phases = _phases(document)
    headings = ("workers", "time", "probable range", *_named(phases), "memory per worker", "worker hours", "limited by")
    rows = (
        (
            *_times(row, row["workers"], phases),
            byte_text(row["worker_memory_bytes"]),
            plain_number(row["worker_hours"], 3),
            _LIMITS.get(row["limit"], row["limit"]),
        )
        for row in document["workers"]
    )
    return grid(headings, rows, left=("limited by",))


def _times(costs: Document, workers: int, phases: list[str]) -> list[str]:
    """Return the first cells of a row: workers, time with its limits if known, and the time of each phase."""
    between = []
    if "seconds_low" in costs:
        between = [f"{_time(costs['seconds_low'])} to {_time(costs['seconds_high'])}"]
    parts = (_time(costs["phases"].get(name, 0.0)) for name in phases)
    return [f"{workers:,}", _time(costs["seconds"]), *between, *parts]


# Forecasts below these seconds are shown as 0 s.
SHORTEST = 0.005
# Names of the limits and phases of a forecast in words.
_LIMITS = {"workers": "computing", "tasks": "number of tasks", "messages": "messages"}
_PHASES = {"order": "ordering", "application": "applying factor", "check": "float64 check"}


def _time(seconds: float) -> str:
    """Format a forecast; of short ones, two significant digits."""
    return duration(seconds) if seconds >= 9.95 or seconds < SHORTEST else f"{plain_number(seconds, 2)} s"


def _brief(seconds: float) -> str:
    """Format the time of a part of a product."""
    return f"{1000.0 * seconds:,.2f} ms" if seconds < 1.0 else f"{seconds:,.3g} s"


def _named(phases: list[str]) -> list[str]:
    return [_PHASES.get(name, name) for name in phases]


def _phases(document: Document) -> list[str]:
    """Return the phases that take time, in order; with fewer workers, some may be missing."""
    phases = max((list(row["phases"]) for row in document["workers"]), key=len)
    longest = {name: max(row["phases"].get(name, 0.0) for row in document["workers"]) for name in phases}
    return [name for name in phases if longest[name] >= SHORTEST]


def _product(document: Document) -> Tables:
    """Return a table of the seconds and messages of a product with the matrix; none for a solver with few products."""
    phases = {name for row in document["workers"] for name in row["phases"]}
    if not any("product" in name for name in phases) or document["solver"] == "gbcd":
        return []
    parts = ("computing", "scheduling", "moving", "ends", "adding")
    rows = []
    for row in document["workers"]:
        product = row["product"]
        seconds = (_brief(product[name]) for name in ("seconds", *(f"{part}_seconds" for part in parts)))
        messages = f"{product['tasks']:,}", byte_text(product["moved_bytes"])
        rows.append((f"{row['workers']:,}", *seconds, *messages, _LIMITS.get(product["limit"], product["limit"])))
    headings = (
        "workers",
        "product",
        "computing",
        "sending tasks",
        "receiving results",
        "first and last",
        "adding up",
        "tasks",
        "moved data",
        "limited by",
    )
    words = (
        "Computing, sending tasks and receiving results overlap, so the longest of the three counts. The time of the "
        "first task, of the last result and of adding the results up is added to it."
    )
    return [
        Text("A product with the kernel matrix", style="bold"),
        grid(headings, rows, left=("limited by",)),
        Text(words),
    ]


def _kept(document: Document) -> Tables:
    """Return a table of the tiles that workers keep and the time saved; none if no tiles are kept."""
    if not any(row["tiles"]["share"] for row in document["workers"]):
        return []
    rows = []
    for row in document["workers"]:
        tiles = row["tiles"]
        seconds = (_brief(tiles[name]) for name in ("product_seconds", "saved_seconds"))
        memory = (byte_text(tiles[name]) for name in ("bytes", "most_bytes"))
        rows.append((f"{row['workers']:,}", f"{tiles['share']:.0%}", *memory, *seconds))
    headings = (
        "workers",
        "share of the kernel matrix",
        "memory per worker",
        "at most",
        "product",
        "time saved by each",
    )
    return [Text("Kept in memory between products", style="bold"), grid(headings, rows)]


def _variances(document: Document) -> Tables:
    figures = document["variance"]
    if figures is None:
        return []
    rows = [
        ("variances of", "the function" if figures["latent"] else "new observations, noise included"),
        ("samples", f"{figures['tests']:,}, each variance within {100 * figures['gap']:g} %"),
        ("rank, halo", f"{figures['rank']:,}, {figures['halo']:,}"),
        ("products in float32", _products(figures["products_float32"])),
        ("products in float64", _products(figures["products_float64"])),
        ("factors", byte_text(figures["factor_bytes"])),
        ("memory per sample in a batch", byte_text(figures["sample_bytes"])),
    ]
    # Phases differ if all workers share a batch.
    phases = list(dict.fromkeys(name for row in document["workers"] for name in row["variance"]["phases"]))
    headings = (
        "workers",
        "time",
        "probable range",
        *_named(phases),
        "workers on a batch",
        "time by Cholesky",
        "time by neighbours",
        "samples per batch",
        "memory per worker",
    )
    costs_by_workers = {row["workers"]: row["variance"] for row in document["workers"]}
    table = grid(
        headings,
        (
            (
                *_times(costs, workers, phases),
                "all" if costs["shared"] else "one",
                _time(costs["whole_factor_seconds"]),
                "-" if costs["neighbours_seconds"] is None else _time(costs["neighbours_seconds"]),
                f"{costs['batch_size']:,}",
                byte_text(costs["worker_memory_bytes"]),
            )
            for workers, costs in costs_by_workers.items()
        ),
    )
    return [table_of("Variances", rows), table]


def _sparse(document: Document) -> Tables:
    figures = document["sparse"]
    if figures is None:
        return []
    basis = f"{figures['method']}, {figures['basis_size']:,} samples ({figures['basis']})"
    return _beside(document, "sparse", "Sparse model", [("method, basis", basis)])


def _classifier(document: Document) -> Tables:
    figures = document["classify"]
    if figures is None:
        return []
    if "likelihood" in figures:
        return _beside(document, "classify", "Classifier", _likelihood(figures))
    search = f"about {figures['kernels']} kernels in {figures['passes']} passes over the data"
    rows = [
        ("prototypes", f"{figures['pool']:,} candidates ({figures['prototypes']})"),
        ("search", f"{figures['search']}: {search}"),
    ]
    return _beside(document, "classify", "Classifier", rows)


def _likelihood(figures: Document) -> Rows:
    """Return rows on a classifier with a likelihood, about its products or its basis."""
    products = figures["products"]
    samples = "all samples" if products else f"a basis of {figures['basis_size']:,} samples ({figures['basis']})"
    near = f", {figures['neighbours']:,} neighbours" if figures.get("neighbours") else ""
    rows: Rows = [("method", f"{figures['method']} ({figures['likelihood']}): {samples}{near}")]
    if products:
        between = f"probably {products['low']:.0f} to {products['high']:.0f}"
        rows.append(("products", f"{products['expected']:.0f}, {between}"))
    return rows


def _beside(document: Document, name: str, title: str, rows: Rows) -> Tables:
    """Return the tables of another model than the exact one: its rows, its cost, and a row per number of workers."""
    figures, costs_by_workers = document[name], {row["workers"]: row[name] for row in document["workers"]}
    first = next(iter(costs_by_workers.values()))
    about: Rows = [
        *rows,
        ("kernel entries", plain_number(figures["kernel_evaluations"], 3)),
        ("coordinator's memory", byte_text(first["coordinator_memory_bytes"])),
        ("the model's store", byte_text(figures["model_bytes"])),
    ]
    phases = list(first["phases"])
    table = grid(
        ("workers", "time", *_named(phases), "memory per worker", "limited by"),
        (
            (
                *_times(costs, workers, phases),
                byte_text(costs["worker_memory_bytes"]),
                _LIMITS.get(costs["limit"], costs["limit"]),
            )
            for workers, costs in costs_by_workers.items()
        ),
        left=("limited by",),
    )
    return [table_of(title, about), table]


def _products(counts: Document) -> str:
    if not counts["high"]:
        return "none: the factor is enough"
    return f"{counts['count']:.1f}, probably {counts['low']:.1f} to {counts['high']:.1f}"


def _sentence(document: Document) -> str:
    text: str = document["limit"]
    return text[0].upper() + text[1:] + "."


def _validation(document: Document) -> Tables:
    figures = document["validation"]
    if figures is None:
        return []
    compared = ("forecast", "ratio")
    table = grid(
        ("workers here", "product, s", *compared, "training, s", *compared, "memory per worker", *compared),
        (
            (
                str(row["workers"]),
                f"{row['product_seconds']:.4f}",
                f"{row['product_seconds_model']:.4f}",
                f"{row['product_to_model']:.2f}",
                f"{row['seconds']:.2f}",
                f"{row['seconds_model']:.2f}",
                f"{row['seconds_to_model']:.2f}",
                byte_text(row["worker_peak_bytes"]),
                byte_text(row["worker_memory_bytes"]),
                f"{row['worker_memory_to_model']:.2f}",
            )
            for row in figures["rows"]
        ),
    )
    inside = "inside" if figures["within_interval"] else "outside"
    taken = (
        f"{figures['unit']} measured: {figures['taken']:.2f}; forecast {figures['expected']:.2f}, {inside} the "
        f"interval."
    )
    words = taken[0].upper() + taken[1:]
    return [Text("Measured values, forecasts, and their ratios", style="bold"), table, Text(words)]
