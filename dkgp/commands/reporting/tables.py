"""Documents as tables: the figures of each command and of each kind of store, in words and with units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.layout import (
    EVALUATED,
    NOT_INFORMATIVE,
    PEAK,
    SECONDS,
    SIZES,
    Detail,
    Figure,
    Rows,
    Sheet,
    assumed,
    bounds_of,
    cost,
    counted,
    detail,
    figure,
    gaps,
    grid,
    informative,
    least_informative,
    may,
    names,
    number,
    phases,
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
from dkgp.commands.reporting.progress import duration, typed
from dkgp.registry import LaterModule, byte_text

Tables = list[RenderableType]

# Tables of documents without kernels and models, such as those of `dkgp ingest`, need none of these.
kernels: Any = LaterModule("dkgp.kernels")
model_tables: Any = LaterModule("dkgp.commands.reporting.model_tables")
verdicts: Any = LaterModule("dkgp.models.verdict")

# Maximum number of lines in a row: a classification may have a thousand classes.
_MOST_LINES = 20
# Maximum number of targets with their own rows.
MOST_TARGETS = 8
# Maximum numbers of named classes, of classes in a printed confusion matrix, and of letters of their names there.
MOST_CLASSES, MOST_CONFUSED, MOST_LETTERS = 8, 12, 16
GUIDE = "docs/guides/bad-model.md"


def tables(document: Document, *, verbose: bool = False, layout: Callable[[Document], Tables] | None = None) -> Tables:
    """Return the tables of a document, by its command unless `layout` makes them; `verbose` adds solver figures."""
    parts = (layout or _LAYOUTS[document["command"]])(document)
    return [replace(part, verbose=verbose) if isinstance(part, Sheet) else part for part in parts]


def _sheet(title: str, *figures: Figure | Callable[[Document], Rows]) -> Callable[[Document], Tables]:
    return lambda document: [sheet_of(title, figures, document)]


# -------------------------------------------------------------------------------------------- data, exact models, demo


def _counted_classes(document: Document) -> str | None:
    if document["classes"] is None:
        return None
    counted = zip(document["classes"], document["class_counts"], strict=True)
    return names([f"{name} ({count:,})" for name, count in counted])


_ingest = _sheet(
    "Ingested",
    Figure("dataset store", "{train}: {n_train:,} samples"),
    Figure("test store", lambda of: None if of["test"] is None else f"{of['test']}: {of['n_test']:,} samples"),
    Figure("features", "{d}: {features:names}"),
    may("covariates of the mean", "{covariates:names}"),
    Figure("targets", lambda of: names(of["targets"]) or "none: these samples can only be predicted"),
    Figure("classes", _counted_classes),
    may("known noise", "{noise}"),
    may("id columns", "{ids:names}"),
    SECONDS,
)
_warm_up = _sheet(
    "Compiled beforehand",
    Figure("compiled code", "{folder}"),
    Figure("for", "{processor}"),
    Figure("pieces", "{pieces:,}, {bytes:size}"),
    Figure("seconds", "{seconds:.1f}"),
)
_export = _sheet(
    "Exported",
    Figure("table", "{out}"),
    Figure("samples", "{n:,}"),
    Figure("columns", lambda of: names(of["columns"], 20)),
)


def _certified(document: Document) -> str | None:
    """Return the bound on the distance of any predicted mean from the exact model's, for the worst target."""
    certificate = document.get("certificate")
    if not certificate:
        return None
    variance, where = document.get("prior_variance"), ""
    if variance is None:
        variance, where = 1.0, " for a prior variance of 1"
    # A bound with `rounding` has a part that does not shrink with the variance.
    scale = math.sqrt(variance if certificate.get("rounding") is None else max(1.0, variance))
    bound = scale * max(certificate["mean_error_bound_at_unit_variance"][: document["p"]])
    beside = ", without the contribution of the mean's coefficients" if "mean" in document else ""
    return proven(f"worst case {plain_number(bound, 3)} standard deviations of the target{where}{beside}", bound)


def _mean(document: Document) -> Rows:
    """Return the mean's coefficients with their standard errors, by target."""
    of_targets = list(document["mean"]["coefficients"].items()) if "mean" in document else []
    rows: Rows = []
    for target, values in of_targets[:MOST_TARGETS]:
        of = f" of {target}" if len(of_targets) > 1 else ""
        texts = [f"{name} {item['value']:.4g} ± {item['standard_error']:.2g}" for name, item in values.items()]
        rows.append((f"coefficients of the mean{of}", names(texts)))
    return rows


def _kept(document: Document) -> str | None:
    kept = document.get("kept_tiles") or {}
    if not kept.get("reason"):  # the solver has no such products, or the user disabled kept tiles
        return None
    share = f"{document['kept_share']:.0%}, {byte_text(kept['bytes'])}" if kept["bytes"] else "nothing"
    return f"{share}: {kept['reason']}"


def _entries(document: Document) -> str:
    count = document["kernel_evaluations"]
    share = count / document["n"] ** 2
    return f"{plain_number(count)}, {share:.2f} times the whole matrix (selection and dense solves included)"


TRAINED = (
    Figure("model", "{out}"),
    SIZES,
    Figure("converged", lambda of: "yes" if of["converged"] else f"no: {of['reason']}"),
    Figure("largest residual", "{gradient_inf_norm:.3g}, tolerance {tolerance:g}"),
    detail("ended because", "{reason}", optional=True),
    Figure("mean certified within", _certified),
    _mean,
    detail("relative residual", "{relative_residual:.3g}"),
    detail("objective", "{objective:.8g}"),
    assumed,
    detail("rounds, column passes", "{iterations}, {column_passes:.2f}"),
    Figure("kernel entries evaluated", _entries, detail=True),
    detail("products by", "{products[kind]}: {products[reason]}", optional=True),
    detail(
        "gradient certified within",
        "{products[proven][largest]:.2g} in an entry, {products[proven][root_mean_square]:.2g} by root mean square",
        optional=True,
    ),
    Figure("share of the kernel matrix kept in memory", _kept, detail=True),
    cost,
)


def _train(document: Document) -> Tables:
    tuned = model_tables.tune_tables(document["tuned"]) if "tuned" in document else []
    return [*tuned, sheet_of("Trained" if document["converged"] else "Stopped before convergence", TRAINED, document)]


DEMO = (
    Figure("training samples, features", "{n:,}, {d}"),
    Figure("RMSE, noise-free test targets", "{rmse:.5f} (units of the target) on {n_test:,} samples"),
    Figure("NLPD, coverage of 95 % intervals", "{nlpd:score} nats per sample, {coverage_95:score}"),
    Figure("variances certified within", lambda of: gaps(of["variance_gap_mean"], of["variance_gap_max"])),
    Figure("converged", "{converged:yes}"),
    Figure("largest residual", "{gradient_inf_norm:.3g}, tolerance {tolerance:g}"),
    detail("column passes", "{column_passes:.2f} in {iterations} rounds"),
    Figure("running time", phases),
    PEAK,
    Figure("size of the kernel matrix, which is never stored", "{kernel_matrix_bytes:size}"),
    may("plot", "{plot}"),
)


def _demo(document: Document) -> Tables:
    return [sheet_of(f"Exact GP on Friedman1 in {duration(document['seconds'])}", DEMO, document)]


_fitted = _sheet(
    "Fitted",
    Figure("model", "{train[out]}: {choice[way][words]}"),
    Figure("why", "{choice[reason]}"),
    Figure("training converged", "{converged:yes}"),
    Figure("running time", phases),
    PEAK,
    Figure("report", "{report}"),
)


def _fit(document: Document) -> Tables:
    return [*_evaluate(document["evaluation"]), *_fitted(document)]


# ------------------------------------------------------------------------------------------------------- predictions


def _predicted_means(document: Document) -> Rows:
    if document.get("classes") is not None:
        return predicted_class_rows(document["classes"], document["n_samples"])
    if document["largest_mean_error_bound"] is None:
        return [("means by", f"a linear regression on {document['n_support']:,} features")]
    units = "(scale of the transformed targets)" if document.get("transformed") else "(units of the targets)"
    scale = max(document.get("target_std", (math.inf,)))
    bounds = document["largest_mean_error_bound"], document.get("mean_error_bound_rms")
    return [("mean certified within", bounds_of(*bounds, units, scale))]


EXACT_INTERVALS = "relative width of the certified intervals"
APPROXIMATE = "approximate, from neighbours (VIF)"


def _proven_wrong(share: float) -> str:
    """Return the share of a sparse model's variances that lie outside the intervals of the exact ones."""
    where = f"{share:.2%} outside" if share else "all within"
    return f"{where} the certified intervals of the exact variances"


def _predicted_variances(document: Document) -> Rows:
    variance = document.get("variance")
    if variance is None:
        return []
    of = ("variances of", "the function" if variance["latent"] else "new observations, noise included")
    if variance.get("approximate"):
        near = f"{variance['neighbours']:,} samples near each and a basis of {variance['basis_size']:,}"
        return [of, ("variances", f"{APPROXIMATE}: {near}"), *_milliseconds(variance)]
    widths = gaps(variance["gap_mean"], variance["gap_max"])
    if "method" in variance:
        return [
            of,
            ("variances by", f"{variance['method']} (sparse model); {_proven_wrong(variance['outside'])}"),
            (EXACT_INTERVALS, widths),
            *_bases(variance),
        ]
    if "basis" in variance:
        return [of, ("variances certified within", widths), *_bases(variance)]
    met, total = variance["met"], variance["met"] + variance["unmet"]
    rows = [
        of,
        ("variances certified within", widths),
        ("intervals as narrow as requested", f"{met:,} of {total:,} (requested: within {100 * variance['gap']:g} %)"),
    ]
    if variance["seconds_per_sample"] is None:  # a resumed run without remaining work
        return rows
    passes = variance["column_passes"]
    by = f"a factor of rank {variance['rank']:,} {'and conjugate gradients' if passes else 'alone'}"
    ways = {
        "cholesky": "a Cholesky factor of all samples",
        "neighbours": f"{variance['rank']:,} samples around each tile of test samples",
    }
    return [
        *rows,
        ("variances by", ways.get(variance.get("way", ""), by)),
        *([Detail(("column passes", f"{passes:.2f} per sample"))] if passes else []),
        *_milliseconds(variance),
    ]


def _milliseconds(variance: Document) -> Rows:
    seconds = variance["seconds_per_sample"]
    return [] if seconds is None else [("milliseconds per variance", f"{1000 * seconds:.2f}")]


def _bases(variance: Document) -> Rows:
    """Return rows about the bases of single samples, if this run computed any."""
    if variance.get("kernels_mean") is None:
        return []
    mean, std, most = (variance[f"kernels_{name}"] for name in ("mean", "std", "max"))
    total = variance["met"] + variance["unmet"]
    rows = [
        ("basis of each variance", f"{mean:.1f} ± {std:.1f} samples, at most {most:,}"),
        (
            "intervals as narrow as requested",
            f"{variance['met']:,} of {total:,} (requested: within {100 * variance['basis_gap']:g} %)",
        ),
    ]
    if variance["seconds_per_sample"] is not None:
        rows.append(("milliseconds per variance", f"{1000 * variance['seconds_per_sample']:.1f}"))
    return rows


_predict = _sheet(
    "Predicted",
    Figure("predictions", "{out}"),
    Figure("samples", "{n_samples:,}"),
    _predicted_means,
    assumed,
    _predicted_variances,
    SECONDS,
)


# ------------------------------------------------------------------------------------------------------- evaluations


def _evaluate(document: Document) -> Tables:
    if "confusion" in document:
        return [*evaluated_class_tables(document), verdict(document)]
    several = document.get("per_target")
    of = ", all targets together" if several else ""
    shown: Tables = [sheet_of(f"Evaluated{of}, errors in the units of the targets", SCORES, document)]
    shown += [_scores_by_target(several)] if several else []
    if "compare" in document:
        shown.append(_rivals(document))
    return [*shown, verdict(document)]


def certified_means(document: Document) -> str | None:
    """Return the largest bound on means, and for a sparse model its distance from the exact one on these samples."""
    if document["mean_error_bound"] is None:
        return None
    training = ""
    if "rms_bound" in document:
        bound, scales = document["rms_bound"], list(document.get("target_std") or [])
        single = len(set(scales)) == 1
        distance = f"{plain_number(bound * scales[0], 3)}" if single else f"{bound:.3g} standard deviations"
        if informative(bound / least_informative(document)):
            training = f"; root mean square at the training samples {distance}"
    return _target_bounds(document) + training


def _target_bounds(document: Document) -> str:
    """Return the bounds of means in the targets' units; in standard deviations if targets have several scales."""
    worst, rms, scales = (document.get(name) for name in ("mean_error_bound", "mean_error_bound_rms", "target_std"))
    if scales is None or len(set(scales)) > 1:
        return bounds_of(worst, rms, "standard deviations of the target", least_informative(document))
    scale = float(scales[0])
    worst, rms = (None if bound is None else scale * bound for bound in (worst, rms))
    units = "scale of the transformed targets" if "transform" in document else "units of the targets"
    return bounds_of(worst, rms, f"({units})", scale * least_informative(document))


def _score(document: Document, name: str, words: str) -> str:
    """Return a figure, `words`, and the limits that the exact variances set for it, if these differ as displayed."""
    least, most = (number(end) for end in document.get(f"{name}_range", (None, None)))
    limits = "" if least == most else f" (exact variances: {least} to {most})"
    return f"{number(document[name])}{words}{limits}"


def coverage_text(document: Document) -> str:
    """Return the coverage of 95 % intervals beside the range for a calibrated model."""
    low, high = document["coverage_95_band"]
    band = NOT_INFORMATIVE if high - low > 0.5 else f"expected for a calibrated model {low:.3f} to {high:.3f}"
    return _score(document, "coverage_95", f", {band}")


def _scored_variances(document: Document) -> Rows:
    return [] if document.get("nlpd") is None else rows_of(SCORED_VARIANCES, document)


def _evaluated_gaps(document: Document) -> Rows:
    if "variance_gap_mean" not in document:
        return []
    title = EXACT_INTERVALS if "method" in document else "variances certified within"
    return [(title, gaps(document["variance_gap_mean"], document["variance_gap_max"]))]


def _by_method(document: Document) -> str | None:
    if "method" not in document:
        return None
    return f"{document['method']} (sparse model); {_proven_wrong(document.get('variance_outside', 0.0))}"


def _unmet(document: Document) -> str | None:
    if not document.get("variance_unmet"):
        return None
    wanted = f"(requested: within {100 * document['variance_gap_wanted']:g} %)"
    return f"{document['variance_unmet']:,} of {document['n']:,} {wanted}"


def _squared_error(of: Document) -> str:
    return _score(of, "mean_standardised_squared_error", " on average, 1 for a calibrated model")


def _point(document: Document) -> str | None:
    """Return the kind of point prediction if it is not the mean."""
    if document.get("point", "mean") == "mean":
        return None
    return "predicted medians (the mean of a transformed target needs variances: predict with --variance)"


SCORED_VARIANCES = (
    Figure("variances of", lambda of: "the function" if of["noise_free"] else "new observations, noise included"),
    may("Student's t", "the noise's, of {student_t[degrees]:.3g} degrees of freedom"),
    Figure("variances", lambda of: APPROXIMATE if of.get("variance_approximate") else None),
    Figure("negative log predictive density", lambda of: _score(of, "nlpd_raw", " nats per sample")),
    Figure("coverage of 95 % intervals", coverage_text),
    Figure("squared error / variance", _squared_error),
    _evaluated_gaps,
    Figure("variances by", _by_method),
    Figure("wider than requested", _unmet),
)
SCORES = (
    Figure("test samples", "{n:,}"),
    Figure(
        "modelled",
        lambda of: ", ".join(transform_text(each) for each in of["transform"]) if "transform" in of else None,
    ),
    may("errors of", _point),
    Figure("root mean square error", lambda of: _digits(of["rmse_raw"])),
    Figure("mean absolute error", lambda of: _digits(of["mae_raw"])),
    Figure("R²", lambda of: NOT_INFORMATIVE if of["r_squared"] is None else _digits(of["r_squared"])),
    Figure("mean certified within", certified_means),
    _scored_variances,
)


def verdict(document: Document) -> RenderableType:
    """Return the verdict: each problem with the next step, in sentences."""
    if not document["verdict"]:
        return Text(nothing_wrong(document))
    parts = [Text("Verdict", style="bold")]
    for finding in document["verdict"]:
        of = f"{finding['target']}: " if "target" in finding else ""
        parts.append(Text(f"- {of}{typed(finding['text'])}."))
        parts.append(Text(f"  {typed(finding['advice'])}."))
    kinds = {finding["kind"] for finding in document["verdict"]}
    if "confusion" not in document and kinds.isdisjoint(verdicts.SIZES) and (seen := _outside(document)):
        parts.append(Text(f"- {seen}. These samples are too few to tell a fault from chance."))
    parts.append(Text(f"More in {GUIDE}.", style="dim"))
    return Group(*parts)


def nothing_wrong(document: Document) -> str:
    """Return the sentence of a verdict without findings; it never contradicts a figure above it."""
    n, effective = document["n"], document.get("effective_samples")
    if document.get("noise_free"):
        text = f"No problem found with the means on these {n:,} noise-free test samples."
        return text if document.get("nlpd") is None else f"{text} Error bars are judged only on targets with noise."
    if n < verdicts.FEWEST_SAMPLES:
        return f"{counted(n, 'test sample')}: too few for a verdict (at least {verdicts.FEWEST_SAMPLES} are needed)."
    samples = f"{n:,} test samples"
    if effective is not None and effective < 0.9 * n:
        samples += f" (their errors are correlated and count as {effective:,.0f} independent ones)"
    if (seen := _outside(document)) is not None:
        return f"{seen}. These {samples} are too few to tell a fault from chance. Evaluate on more samples."
    if effective is not None and effective < verdicts.FEWEST_SAMPLES:
        return f"No problem found with the means. These {samples} are too few to judge the error bars."
    return f"No problem found on these {n:,} test samples."


def _outside(document: Document) -> str | None:
    """Return a text about a figure that a good model would not have; None if there is none."""
    if "confusion" in document:
        if document["error_rate"] * document["n"] < document["n"] - max(map(sum, document["confusion"])):
            missed: str | None = verdicts.mostly_missed(document.get("classes", ()), document["confusion"])
            return missed
        rate = f"The error of {document['error_rate']:.1%}"
        return f"{rate} is not below the error of always predicting the most frequent class"
    if document.get("coverage_95_band") is None:
        return None
    low, high = document["coverage_95_band"]
    for figures in (document.get("per_target") or {"": document}).values():
        coverage = figures.get("coverage_95")
        if coverage is not None and not low <= coverage <= high and abs(coverage - 0.95) > verdicts.COVERAGE_MATTERS:
            return f"The coverage of {coverage:.1%} is outside {low:.1%} to {high:.1%}"
    return None


def transform_text(transform: Document) -> str:
    """Return the name of a target transform."""
    if transform["name"] == "log":
        return "the target's logarithm"
    return f"the target's Yeo-Johnson transform (lambda {transform['parameter']:.3g})"


def _scores_by_target(figures: Document) -> RenderableType:
    titles = {"rmse_raw": "RMSE", "mae_raw": "MAE", "r_squared": "R²", "nlpd_raw": "NLPD", "coverage_95": "coverage"}
    present = [name for name in titles if any(name in of for of in figures.values())]
    rows = [[Text(target), *(Text(_digits(of.get(name))) for name in present)] for target, of in figures.items()]
    table = grid(["target", *(titles[name] for name in present)], rows, left=("target",), lines=False)
    return titled("By target: RMSE and MAE in the target's units, NLPD in nats per sample", table)


def _rivals(document: Document) -> RenderableType:
    errors: Document = document["compare"]["rmse_raw"]
    models = {target: document.get("per_target", {}).get(target, document)["rmse_raw"] for target in errors}
    rows = [[Text("this model"), *(Text(_digits(models[target])) for target in errors)]]
    rows += [
        [Text(rival_text(rival, document["compare"])), *(Text(_digits(errors[target][rival])) for target in errors)]
        for rival in next(iter(errors.values()))
    ]
    table = grid(["model", *errors], rows, left=("model",), lines=False)
    return titled("Root mean square error of the test samples, in the target's units", table)


def rival_text(name: str, compared: Document) -> str:
    """Return the name of a simpler model, with the number of its training rows if it was not trained on all."""
    rows, whole = compared.get("boosting_rows"), compared.get("training_rows")
    return f"{name}, trained on {rows:,} of {whole:,} rows" if name == verdicts.BOOSTING and rows != whole else name


def _digits(value: float | None) -> str:
    return "unknown" if value is None else plain_number(value, 6)


# ------------------------------------------------------------------------------------------------------- classifiers

# Names of the methods with a likelihood, and of the exact models to which certified labels belong.
PROBABILISTIC = {"logistic": "kernel logistic regression", "gp": "Gaussian process classification"}
EXACT_OF = {
    "exact": "the exact LS-SVM's",
    "logistic": "those of the exact minimiser of the risk",
    "gp": "those of the exact Laplace approximation",
}
BEYOND = may("above the tolerance", "{beyond_tolerance}")
# Decisions of methods with a likelihood are about log odds: 10 is a probability of 0.99995.
LOG_ODDS = 10.0


def predicted_class_rows(classes: Document, n: int) -> Rows:
    """Return rows about the predictions of a classifier at n samples."""
    rows: Rows = [("classes", _by_name(classes["counts"]))]
    has_margins = classes["method"] not in PROBABILISTIC
    if classes["certified"] is not None:
        certified = f"{classes['certified']:,} of {n:,} ({classes['certified'] / n:.2%})"
        # A Gaussian process on a basis certifies the classes of the exact mode, but no averaged probabilities.
        of_mode = classes["method"] == "gp" and classes.get("interval_width_mean") is None
        exact = "those of the exact mode" if of_mode else EXACT_OF[classes["method"]]
        rows.append(("certified", f"{certified}: proven to be {exact}"))
    figures = (
        may("decisions certified within", lambda of: _decision_bound(of, has_margins)),
        may("probabilities certified within", _interval_widths),
        may("latent variances certified within", _latent_gaps),
    )
    return rows + rows_of(figures, classes)


def _decision_bound(document: Document, has_margins: bool) -> str | None:
    bound = document.get("largest_decision_error_bound")
    if bound is None:
        return None
    scale, margins = (1.0, " (labels are -1 and 1)") if has_margins else (LOG_ODDS, "")
    return proven(f"{bound:.3g}{margins}", bound / scale)


def _interval_widths(document: Document) -> str | None:
    mean, largest = document.get("interval_width_mean"), document.get("interval_width_max")
    return None if mean is None else proven(f"intervals {mean:.3g} wide on average, {largest:.3g} at most", mean)


def _latent_gaps(document: Document) -> str | None:
    of = document.get("latent_variance")
    return None if of is None else gaps(of["gap_mean"], of["gap_max"])


EVALUATED_CLASSES = (
    Figure("samples", "{n:,}"),
    may("samples without a certified label", "{abstained:.2%} of all samples, not counted here"),
    Figure("error", "{error_rate:.2%}"),
    Figure("balanced error", "{balanced_error:.2%}"),
    lambda of: _area(of),
    may("log loss", "{log_loss:.4f} nats per sample"),
    may("Brier score", "{brier:.4f}"),
    may("calibration error of probabilities", "{ece:.2%}"),
    Figure("certified labels", lambda of: None if of["certified_share"] is None else _certified_labels(of)),
    may("probabilities certified within", _interval_widths),
)


def evaluated_class_tables(document: Document) -> Tables:
    """Return the tables of an evaluation of classes."""
    shown: Tables = [sheet_of("Evaluated", EVALUATED_CLASSES, document)]
    return [*shown, *([_confusion(document)] if len(document["classes"]) <= MOST_CONFUSED else [])]


def _area(document: Document) -> Rows:
    several = ", mean of each class against the rest" if len(document["classes"]) > 2 else ""
    return [] if document["auc"] is None else [(f"area under the curve{several}", f"{document['auc']:.4f}")]


def _certified_labels(document: Document) -> str:
    """Return the share of labels proven to be the exact model's, and the error rates inside and outside that share."""
    certified = f"{document['certified_share']:.2%} are proven to be the exact model's"
    if document["certified_error_rate"] is not None:
        certified += f"; {document['certified_errors']:,} of these ({document['certified_error_rate']:.2%})"
        certified += " differ from the true labels"
    if document["uncertified_error_rate"] is not None:
        certified += f"; of the others {document['uncertified_error_rate']:.2%} differ"
    return certified


def _confusion(document: Document) -> RenderableType:
    titles = [
        Text(name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "…") for name in document["classes"]
    ]
    table = Table(box=None, pad_edge=False)
    table.add_column("true", style="dim")
    for name in titles:
        table.add_column(name, justify="right")
    for name, row in zip(titles, document["confusion"], strict=True):
        table.add_row(name, *(f"{count:,}" for count in row))
    return titled("True labels (rows) and predicted labels (columns)", table)


def _about(document: Document) -> Rows:
    counts = dict(zip(document["classes"], document["counts"], strict=True))
    return [("samples, features", f"{document['n']:,}, {document['d']}"), ("classes", _by_name(counts))]


def _how(document: Document, weighted: bool) -> Rows:
    """Return the method, and the accuracy of its solution."""
    if document["method"] in PROBABILISTIC:
        return _on_basis(document) if document.get("basis_size") else _of_samples(document)
    return _exact(document) if document["method"] == "exact" else _fixed_size(document, weighted)


def _exact(document: Document) -> Rows:
    errors = max(document["decision_error"])
    return [
        ("method", "exact: all samples"),
        *_ended("solved by", document["solver"], document),
        ("decisions within about", proven(f"{errors:.3g} of the exact ones (labels are -1 and 1)", errors)),
        *rows_of([BEYOND, detail("rounds, column passes", "{iterations}, {column_passes:.2f}")], document),
    ]


def _fixed_size(document: Document, weighted: bool) -> Rows:
    figures = (
        Figure("method", "fixed-size: {cardinality:,} prototypes of {pool:,} ({prototypes})"),
        Figure("error in cross-validation", "{misclassification:.2%}" + (", weighted" if weighted else "")),
        may("balanced error in cross-validation", "{balanced_error:.2%}"),  # missing in models of earlier versions
        Figure("passes over the data", "{passes:,} in the search"),
    )
    return rows_of(figures, document)


def _of_samples(document: Document) -> Rows:
    """Return rows on a logistic model or Gaussian process of all samples: risk, certificate and solver."""
    error = max((error for error in document["decision_error"] if error is not None), default=math.inf)
    reason = (document.get("chosen") or {}).get("reason")
    return [
        ("method", f"{PROBABILISTIC[document['method']]}: all samples"),
        *_ended("minimised by", f"{document['solver']} ({reason})" if reason else document["solver"], document),
        *_risk(document),
        ("decisions within about", proven(f"{error:.3g} of the exact ones", error / LOG_ODDS)),
        *rows_of([BEYOND, detail("rounds, products", "{iterations}, {column_passes:.2f}")], document),
    ]


def _on_basis(document: Document) -> Rows:
    """Return rows on a logistic model or a Gaussian process on a basis."""
    basis = f"{document['basis_size']:,} samples ({document['basis']})"
    has_neighbours = document.get("neighbours") is not None
    if has_neighbours:
        basis += f" and {document['neighbours']:,} nearest samples"
    rows: Rows = [
        ("method", f"{PROBABILISTIC[document['method']]}: a basis of {basis}"),
        *_ended("minimised by", f"Newton's method, {document['iterations']} steps", document),
        *_risk(document),
    ]
    distance = document.get("distance")
    if distance is not None:
        largest = max(distance) if isinstance(distance, list) else distance
        text = proven(f"{largest:.3g} of those of the exact model on all samples, proven", largest / LOG_ODDS)
        rows.append(("decisions within", text))
    of_basis = "" if has_neighbours else "of the basis "
    figures = (
        may("log evidence", "{evidence:.8g} nats, " + of_basis + "in Laplace's approximation"),
        Figure(
            "residual share of k(x, x)",
            lambda of: f"{max(of['left'], 0.0):.2g} on average" if "left" in of else None,
        ),
        may("passes over the data", "{passes} ({hessians} for Hessian matrices)"),
    )
    return [*rows, *rows_of(figures, document), *unproven(document)]


def _ended(name: str, solver: str, document: Document) -> Rows:
    """Return the solver and the reason of its end; the reason is a detail unless it stopped early."""
    if not document.get("converged", True):
        return [(name, f"{solver}: {document['reason']}")]
    return [(name, solver), Detail(("ended because", document["reason"]))]


def _risk(document: Document) -> Rows:
    gap: float | None = document.get("risk_gap")
    within = f", proven to be at most {100 * gap:.3g} % above the minimum" if gap is not None and gap < 0.995 else ""
    return [("regularisation (lambda)", f"{document['regularisation']:g}"), ("risk", f"{document['risk']:.8g}{within}")]


def _penalty(document: Document) -> str | None:
    """Return the noise variance of an LS-SVM; None for methods with a likelihood."""
    return None if document["method"] in PROBABILISTIC else f"{document['noise_variance']:.4g}"


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
    return names(shown, MOST_CLASSES)


CLASSIFIER = (
    Figure("model", "{out}"),
    _about,
    lambda of: _how(of, of["class_weights"] is not None),
    Figure("penalty (noise variance)", _penalty),
    assumed,
    Figure("probabilities", _probabilities),
    EVALUATED,
    cost,
)
CLASSIFIER_INFO = (
    Figure("classifier", "{location}"),
    lambda of: _about(of["summary"]),
    lambda of: _how(of["summary"], of["class_weights"] is not None),
    Figure("kernel", lambda of: model_tables.kernel_of(of)),
    Figure("penalty (noise variance)", _penalty),
    Figure(
        "class weights",
        lambda of: "equal" if of["class_weights"] is None else _by_name(of["class_weights"]),
    ),
    Figure("probabilities", _probabilities),
    lambda of: assumed(of["summary"]),
    Figure("inputs", lambda of: "by reference to the training set's store" if of["by_reference"] else None),
    stored,
)


def _classify(document: Document) -> Tables:
    title = "Trained" if document["converged"] else "Stopped before convergence"
    return [sheet_of(title, CLASSIFIER, document)]


# ------------------------------------------------------------------------------------------------ stores, benchmarks


def _info(document: Document) -> Tables:
    kind = document["kind"]
    if kind == "sparse model":
        return [sheet_of("", model_tables.SPARSE_INFO, document)]
    if kind == "classifier":
        return [sheet_of("", CLASSIFIER_INFO, document)]
    if kind == "linear model":
        return [*model_tables.linear_info_tables(document)]
    rows: Rows = []
    for name, value in document.items():
        if name == "kernel":
            features = document.get("feature_names") or document.get("features") or ()
            rows.append(("kernel", kernels.kernel_text(value, features)))
        elif kind == "hyperparameters" and name in model_tables.SEARCHED:
            continue  # tables of their own
        elif name != "command" and value not in (None, [], ()) and not (name in INFO_IF_SET and not value):
            row = (INFO_NAMES.get(name, name.replace("_", " ")), _shown(name, value))
            rows.append(Detail(row) if name in INFO_DETAILS else row)
    if kind == "model":
        rows += rows_of(
            [may("converged", "{summary[converged]:yes}"), may("mean certified within", _certified)], document
        )
    return (
        [*model_tables.searched(document, [table_of("", rows)])] if kind == "hyperparameters" else [table_of("", rows)]
    )


# Rows of stores that have no table of their own: names of fields where they differ from the field's own, and fields for
# readers who know solvers.
INFO_NAMES = {
    "n": "samples",
    "n_samples": "samples",
    "subset_size": "samples in a subset",
    "memory_bytes": "memory",
    "memory_available_bytes": "available memory",
    "d": "number of features",
    "p": "number of targets",
    "dropped_features": "constant features, left out",
    "covariates": "covariates of the mean",
    "transforms": "transform of the target",
    "chunk_rows": "rows per chunk",
    "stored_bytes": "stored",
    "by_reference": "inputs are read from the training set's store",
    "noise": "known noise",
    "ids": "id columns",
    "variance_factor_bytes": "size of the stored factor",
}
INFO_IF_SET = {"by_reference", "variance_factor_bytes"}
INFO_DETAILS = (
    "attributes",
    "chunk_rows",
    "prior_variance",
    "certificate",
    "feature_names",
    "fingerprint",
    "parameters",
    "projected_gradient",
    "rounds",
    "seed",
    "run",
    "summary",
    "versions",
)


def _shown(name: str, value: Any) -> str:
    if name == "transforms":
        return ", ".join(transform_text(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name == "noise_variance":
            return f"{plain_number(value)} (standardised)"
        return f"{value:.2f}" if "likelihood" in name else plain_number(value)
    if name.endswith("_bytes"):
        return byte_text(value)
    if isinstance(value, list):
        return names(value)
    if isinstance(value, dict):
        lines = [f"{key}: {figure(item)}" for key, item in value.items() if item is not None]
        more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
        return "\n".join([*lines[:_MOST_LINES], *more])
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _bench(document: Document) -> Tables:
    table = Table()
    for column in document["columns"]:
        table.add_column(column["title"], justify="left" if column.get("text") else "right")
    for row in document["rows"]:
        table.add_row(*(cell(row, column) for column in document["columns"]))
    extra = [
        (re.sub("(?<=^seconds_)(.*)_to_", r"\1 / ", name).replace("_", " "), figure(value) + _noise(document, name))
        for name, value in document["figures"].items()
    ]
    if document.get("benchmark") == "tiles":
        machine = document["machine"] | {"blas": ", ".join(document["machine"]["blas"])}
        extra.append(("on", "{processor}, compiled for {compiled_for}; {blas}".format(**machine)))
    parts = [titled(document["title"], table), *([table_of("", extra)] if extra else [])]
    parts += [part for section in document.get("sections", ()) for part in _bench(section)]
    if "cautions" in document:
        title = document.get("cautions_title", "Differences from the papers")
        parts.append(table_of(title, list(document["cautions"].items())))
    return parts


def cell(row: Document, column: Document) -> str:
    """Return the text of a cell in a benchmark's table."""
    name, form = column["name"], column.get("format", "")
    value = row.get(name)
    if value is None:
        return "-"
    if form == "bytes":
        return byte_text(value)
    return (figure(value) if isinstance(value, bool | str) else format(value, form)) + _noise(row, name)


def _noise(figures: Document, name: str) -> str:
    """Return the range of the ratios of the baseline to its own copy, if it was measured."""
    least, most = figures.get("null", {}).get(name, (None, None))
    return "" if least is None else f" (null {least:.2f}-{most:.2f})"


_LAYOUTS: dict[str, Callable[[Document], Tables]] = {
    "ingest": _ingest,
    "warm-up": _warm_up,
    "tune": lambda of: [*model_tables.tune_tables(of)],
    "plan": lambda of: [*model_tables.plan_tables(of)],
    "train": _train,
    "sparse": lambda of: [*model_tables.sparse_tables(of)],
    "classify": _classify,
    "pursue": lambda of: [*model_tables.pursue_tables(of)],
    "predict": _predict,
    "evaluate": _evaluate,
    "export": _export,
    "info": _info,
    "demo": _demo,
    "fit": _fit,
    "bench": _bench,
}
