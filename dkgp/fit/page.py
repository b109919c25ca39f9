"""The page of a fit: one file of plain HTML with its pictures that loads nothing else, in light and dark."""

from __future__ import annotations

import importlib.util
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np

from dkgp.codec import from_json
from dkgp.commands.evaluation import read_coverage, read_pairs
from dkgp.commands.reporting.layout import phases, plain_number
from dkgp.commands.reporting.outputs import Document, write_text
from dkgp.commands.reporting.plots import plot_classes, plot_predictions, plot_residuals
from dkgp.commands.reporting.progress import STANDARDISED, scored_by, typed
from dkgp.commands.reporting.tables import certified_means, coverage_text, nothing_wrong, rival_text, transform_text
from dkgp.data import Dataset, Prediction, open_dataset, open_prediction
from dkgp.fit.job import MODEL, PAGE, PREDICTIONS, FitJob
from dkgp.fit.ways import spoken
from dkgp.kernels import kernel_from_json, kernel_text
from dkgp.models.classification.metrics import evaluate_classes
from dkgp.models.hyperparameters import TunedParameter, stopped
from dkgp.models.verdict import read_residuals
from dkgp.registry import byte_text

MOST_FEATURES, MOST_CLASSES = 60, 20
UNITS = f"{STANDARDISED[0].upper()}{STANDARDISED[1:]}."
STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --paper: #fff; --soft: #5b6575; --line: #d9dee6; --bar: #3b76c4;
  --card: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --paper: #14181f; --soft: #9aa5b5; --line: #323a47;
  --bar: #6ea3e8; --card: #1c222c; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 60rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
p, li { overflow-wrap: anywhere; }
.lead { color: var(--soft); margin: 0; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top; overflow-wrap: anywhere;
  white-space: pre-line; }
tr + tr > * { border-top: 1px solid var(--line); }
th { font-weight: normal; color: var(--soft); }
th[scope=row] { width: 34%; }
.grid { overflow-x: auto; }
.grid th, .grid td { overflow-wrap: normal; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.track { width: 45%; vertical-align: middle; }
.bar { display: block; height: .7rem; background: var(--bar); border-radius: 2px; }
figure { margin: 1rem 0; }
figcaption { color: var(--soft); margin-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 4px; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 4px; padding: .8rem; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.verdict li { margin-bottom: .5rem; }
.advice { color: var(--soft); display: block; }
"""

Row = tuple[str, str]


def write_page(job: FitJob, document: Document, *, with_pictures: bool = True) -> Document:
    """Write the page of a fit whose other steps are done; return where it is, and whether it has pictures."""
    drawable = importlib.util.find_spec("matplotlib") is not None
    pictures: dict[str, str] = {}
    if drawable and with_pictures:
        prediction, test = open_prediction(job.place(PREDICTIONS)), open_dataset(document["predict"]["dataset"])
        draw = regression_pictures if job.ingestion.labels is None else class_pictures
        pictures = draw(prediction, test)
    write_text(job.place(PAGE), page(document, pictures, drawable=drawable))
    return {"page": job.place(PAGE), "pictures": len(pictures)}


def page(document: Document, pictures: dict[str, str], *, drawable: bool = True) -> str:
    """Return the page of a fit's document; every text in it is escaped, SVG stands as it is."""
    ingested = document["ingest"]
    targets = ", ".join(ingested["targets"])
    sources = ", ".join(document["settings"]["sources"])
    title = f"{targets} from {ingested['d']} features"
    sections = [
        _section("Verdict", _verdict(document["evaluation"])),
        _section("Left out because of the limits", _given_up(document)),
        _section("On the held-out samples", _rows(_figures(document))),
        _section("Data", _data(document)),
        _section("Model", _model(document)),
        _section("Importance of the features", _scales(document)),
        _section("Predictions", _drawn(pictures, drawable)),
        _section("Commands", _commands(document["commands"])),
    ]
    lead = (
        f"{sources}: {ingested['n_train']:,} samples to train on, {ingested['n_test']:,} held out; "
        f"fitted in {spoken(document['seconds'])}, without this report."
    )
    return whole_page(title, lead, sections)


def whole_page(title: str, lead: str, sections: Iterable[str]) -> str:
    """Return a page with a title, a sentence below it, and sections of HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n</header>\n'
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}</section>\n" if content else ""


def _rows(rows: Iterable[Row]) -> str:
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>\n' for name, value in rows)
    return f"<table>\n{lines}</table>\n" if lines else ""


def _grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of figures with headings; the first column holds text."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}>{escape(text)}</{tag}>" if place == 0 else f'<{tag} class="number">{escape(text)}</{tag}>'
            for place, text in enumerate(texts)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    head = f"<thead><tr>{cells('th', headings)}</tr></thead>"
    return f'<div class="grid">\n<table>\n{head}\n<tbody>\n{body}</tbody>\n</table>\n</div>\n'


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>\n" for text in texts)
    return f"<ul>\n{items}</ul>\n" if items else ""


def _verdict(evaluated: Document) -> str:
    if not evaluated.get("verdict"):
        return f"<p>{escape(nothing_wrong(evaluated))}</p>\n" if "verdict" in evaluated else ""
    items = []
    for finding in evaluated["verdict"]:
        advice = finding.get("advice")
        more = f'<span class="advice">{escape(typed(str(advice)))}</span>' if advice else ""
        of = f"{finding['target']}: " if "target" in finding else ""
        items.append(f"<li>{escape(of + str(finding['text']))}{more}</li>\n")
    return f'<ul class="verdict">\n{"".join(items)}</ul>\n'


def _given_up(document: Document) -> str:
    """List everything that was left out because of the limits, after the warning on a time limit that is too short."""
    given_up = document.get("given_up") or []
    if not given_up:
        return ""
    texts = [str(item["text"]) for item in given_up if item["step"] == "fit"]
    short = [f"<p>{escape(text[0].upper() + text[1:])}.</p>\n" for text in texts]
    lost = [f"{item['step']}: {item['text']}" for item in given_up if item["step"] != "fit"]
    candidates = ((document["tune"] or {}).get("candidates") or {}).get("not_tried", ())
    lost += [f"tune: '{row['from']}' was not tried: {row['reason']}" for row in candidates]
    limit = spoken(document["time_limit_seconds"])
    lead = (
        f"<p>These parts are missing or less exact, because of the time limit of {limit} or the memory limit. To get "
        "them, run <code>dkgp fit</code> again with a longer <code>--time</code> or more <code>--memory</code>.</p>\n"
    )
    return "".join(short) + (lead + _list(lost) if lost else "")


def _elsewhere(document: Document) -> set[str]:
    """Return the warnings that the page lists under the limits."""
    texts = [item["text"] for item in document.get("given_up") or []]
    return {*texts, *(f"time limit: {text}" for text in texts)}


def _number(value: float | None, form: str | None = None) -> str:
    """Format a value; without a form, with four significant digits and no exponent."""
    if value is None:
        return "unknown"
    return plain_number(value) if form is None else format(value, form)


def _figures(document: Document) -> list[Row]:
    """Rows on errors and calibration, with units."""
    evaluated = document["evaluation"]
    if "confusion" in evaluated:
        shares = ("error_rate", "balanced_error")
        return [
            *((name.replace("_", " "), _number(evaluated[name], ".2%")) for name in shares),
            ("area under the curve", _number(evaluated["auc"], ".4f")),
            ("log loss (nats per sample)", _number(evaluated["log_loss"], ".4f")),
            ("Brier score", _number(evaluated["brier"], ".4f")),
            ("calibration error of probabilities", _number(evaluated["ece"], ".2%")),
        ]
    by_target = evaluated.get("per_target") or {}
    of = "all targets" if by_target else document["ingest"]["targets"][0]
    units = "all targets together" if by_target else f"units of {of}"
    transforms = evaluated.get("transform")
    scale = "the target" if not transforms else transform_text(transforms[0])
    scale = "the targets" if by_target else scale
    rows = [
        (f"root mean square error ({units})", _number(evaluated["rmse_raw"])),
        (f"mean absolute error ({units})", _number(evaluated["mae_raw"])),
        (f"R² (share of the variance of {of} that is predicted)", _number(evaluated["r_squared"])),
        (
            f"root mean square error, in standard deviations of {scale} (training rows)",
            _number(evaluated["rmse"]),
        ),
    ]
    rows += [
        (f"root mean square error, {name} (units of {name})", _number(scores["rmse_raw"]))
        for name, scores in by_target.items()
    ]
    compared = evaluated.get("compare") or {"rmse_raw": {}}
    for target, errors in compared["rmse_raw"].items():
        beside = f", {target}" if by_target else ""
        rows += [
            (f"root mean square error of {rival_text(name, compared)}{beside}", _number(error))
            for name, error in errors.items()
        ]
    if evaluated.get("nlpd") is not None:
        rows += [
            ("coverage of 95 % intervals", coverage_text(evaluated)),
            (f"negative log predictive density (nats per sample, of {of})", _number(evaluated["nlpd_raw"])),
        ]
    if (certified := certified_means(evaluated)) is not None:
        rows.append(("mean certified within", certified))
    return rows


def _data(document: Document) -> str:
    ingested = document["ingest"]
    features = ingested["features"]
    shown = ", ".join(features[:MOST_FEATURES])
    more = f" and {len(features) - MOST_FEATURES} more" if len(features) > MOST_FEATURES else ""
    rows = [
        ("rows read", f"{ingested['n']:,}"),
        ("training samples, held-out samples", f"{ingested['n_train']:,}, {ingested['n_test']:,}"),
        ("target" if len(ingested["targets"]) == 1 else "targets", ", ".join(ingested["targets"])),
        (f"{len(features)} features", shown + more),
    ]
    if ingested["classes"] is not None:
        counted = list(zip(ingested["classes"], ingested["class_counts"], strict=True))
        words = [f"{name} ({count:,})" for name, count in counted[:MOST_CLASSES]]
        if len(counted) > MOST_CLASSES:
            words.append(f"{len(counted) - MOST_CLASSES} more")
        rows.insert(3, ("classes", ", ".join(words)))
    if (compared := document.get("transform")) is not None:
        rows.append(("transform of the target", f"{compared['transform'] or 'none'}: {compared['reason']}"))
    if ingested["suggested"]:
        rows.append(("column options", ingested["suggested"]))
    known = _elsewhere(document)
    return _rows(rows) + _list(
        map(typed, [*ingested["columns"], *(text for text in ingested["warnings"] if text not in known)])
    )


def _model(document: Document) -> str:
    trained, way, tuned = document["train"], document["choice"]["way"], document["tune"]
    names = document["ingest"]["features"]
    rows = [("model", way["words"]), ("why", document["choice"]["reason"])]
    kernel = (tuned or trained).get("kernel")
    if isinstance(kernel, dict) and len(names) <= MOST_FEATURES:
        rows.append(("kernel (features and targets standardised)", kernel_text(kernel, names)))
    elif isinstance(kernel, dict):
        rows.append(("kernel", str(kernel["type"])))
    if tuned is not None:
        if tuned.get("converged") is False:
            rows.append(("tuning has not converged", stopped(_tuned(document)) or "see below"))
        rows.append(("noise variance (share of the target's variance)", _number(tuned["noise_variance"])))
    if way["name"] == "exact":
        rows.append(("solver", f"{trained['solver']}, largest residual {trained['gradient_inf_norm']:.2g}"))
    if not document["converged"]:
        rows.append(("not converged", str(trained.get("reason", "training stopped before its tolerance"))))
    rows.append(("time, without this report", phases(document)))
    rows.append(("peak memory before this report, all processes", byte_text(document["peak_memory_bytes"])))
    rows.append(("stored in", document["train"].get("out", MODEL)))
    content = _rows(rows)
    comparison = (tuned or {}).get("comparison")
    if comparison:
        content += _compared(comparison)
    if candidates := (tuned or {}).get("candidates"):
        content += _candidates(candidates)
    attempts = document.get("attempts")
    if attempts and (len(attempts["tried"]) > 1 or attempts["not_tried"]):
        content += _attempts(attempts)
    methods = document["classifiers"] or {"methods": (), "left_out": ()}
    if methods["methods"] or methods["left_out"]:
        content += _methods(document["classifiers"], way["name"])
    warnings = [*(tuned or {}).get("warnings", []), *trained["warnings"], *document["predict"]["warnings"]]
    known = _elsewhere(document) | set(document["ingest"]["warnings"])
    # The table of kernels marks the searches that were cut off.
    texts = (text for text in dict.fromkeys(warnings) if text not in known and "--kernel-seconds" not in text)
    return content + _list(map(typed, texts))


def _methods(compared: Document, taken: str) -> str:
    """Table of the compared methods of classifiers."""
    rows = [
        [
            row["method"] + (" (taken)" if row["method"] == taken else ""),
            _number(row["log_loss"], ".4f"),
            *(f"{row[name]:.2%}" for name in ("error", "balanced_error")),
            _number(row["seconds"], ".1f"),
        ]
        for row in compared["methods"]
    ]
    lead = (
        f"Each method was trained on {compared['samples']:,} training samples and predicted {compared['held_out']:,} "
        "others. The method with the smallest log loss was chosen if it is clearly better than fixed-size "
        "and fits the limits."
    )
    left_out = _list(f"{name} was not compared: {reason}" for name, reason in compared["left_out"].items())
    table = _grid(("method", "log loss (nats per sample)", "error", "balanced error", "seconds"), rows)
    lead = f'<p class="lead">{escape(lead)}</p>\n' if rows else ""
    return f"<h3>Methods</h3>\n{lead}{table if rows else ''}{left_out}"


def _compared(comparison: Document) -> str:
    """Table of the compared kernels."""
    lead = (
        f"Each kernel was tuned on {comparison['samples']:,} training samples and scored {scored_by(comparison)}. The "
        f"kernel with the smallest negative log predictive density (NLPD) was chosen. {UNITS}"
    )
    rows = [
        [
            row["kernel"] + _marks(chosen=row["kernel"] == comparison["kernel"], cut_off=row.get("cut_off", False)),
            *(_number(row[name], ".4f") for name in ("nlpd", "rmse", "coverage_95")),
            _number(row["seconds"], ".1f"),
        ]
        for row in comparison["kernels"]
    ]
    table = _grid(("kernel", "NLPD", "RMSE", "coverage of 95 %", "seconds"), rows)
    return f'<h3>Kernels</h3>\n<p class="lead">{escape(lead)}</p>\n{table}'


def _marks(*, chosen: bool, cut_off: bool) -> str:
    marks = [*(["chosen"] if chosen else []), *(["search cut off"] if cut_off else [])]
    return f" ({', '.join(marks)})" if marks else ""


def _candidates(compared: Document) -> str:
    """Table of the candidates for the hyperparameters."""
    lead = (
        f"Each candidate predicted the same {compared['held_out']:,} held-out training samples from "
        f"{compared['samples']:,} others. A later candidate was chosen if its negative log predictive density (NLPD) "
        f"is smaller by more than one standard error of the difference. {UNITS}"
    )
    if not compared["held_out"]:
        lead = (
            f"Each candidate predicted each of {compared['samples']:,} training samples from the other ones "
            "(leave-one-out). A later candidate was chosen if its negative log predictive density (NLPD) is smaller by "
            f"more than one standard error of the difference. {UNITS}"
        )
    if not compared["samples"]:
        lead = "No candidate was compared with the tuned hyperparameters."
    rows = [
        [
            row["from"] + (" (chosen)" if row["from"] == compared["taken"] else ""),
            row["kernel"],
            *(_number(row[name], ".4f") for name in ("nlpd", "rmse", "coverage_95")),
            _number(row["seconds"], ".1f"),
        ]
        for row in compared["candidates"]
    ]
    rows += [[row["from"], f"not tried: {row['reason']}", "", "", "", ""] for row in compared["not_tried"]]
    table = _grid(
        ("source of the hyperparameters", "kernel", "NLPD", "RMSE", "coverage of 95 %", "seconds to predict"), rows
    )
    return f'<h3>Hyperparameters</h3>\n<p class="lead">{escape(lead)}</p>\n{table}'


def _attempts(attempts: Document) -> str:
    """Table of the models that were tried and of those that were not."""
    lead = (
        "The evaluation found a problem with the first model, so others were tried. "
        "Another model is chosen if the negative log predictive density (NLPD) of the held-out samples is smaller, and "
        "error and coverage are not worse. The figures of this report are of the same samples, so they can be slightly "
        "too good; other samples are needed for an independent figure. RMSE is in the target's units, NLPD in nats per "
        "sample."
    )
    rows = [
        [
            row["model"] + (" (chosen)" if number == attempts["taken"] else ""),
            _number(row["nlpd_raw"]),
            _number(row["rmse_raw"]),
            _number(row["coverage_95"], ".4f"),
            _number(row["seconds"], ".1f"),
        ]
        for number, row in enumerate(attempts["tried"])
    ]
    rows += [[f"{row['model']} (not tried: {row['reason']})", "", "", "", ""] for row in attempts["not_tried"]]
    table = _grid(("model", "NLPD", "RMSE", "coverage of 95 %", "seconds"), rows)
    return f'<h3>Models</h3>\n<p class="lead">{escape(lead)}</p>\n{table}'


def _tuned(document: Document) -> list[TunedParameter]:
    return from_json(list[TunedParameter], (document["tune"] or {}).get("parameters") or [])


def _scales(document: Document) -> str:
    """Length scales as bars, the shortest first, since they matter most."""
    scales = [(item, item.length_scale) for item in _tuned(document) if item.length_scale is not None]
    known = sorted(((item, scale) for item, scale in scales if scale is not None), key=lambda pair: pair[1])
    if not known:
        return ""
    # On a logarithmic axis: of a feature that is switched on or off any short one means the same.
    shortest, longest = known[0][1], 1.5 * max((scale for _, scale in known if scale < math.inf), default=1.0)
    ingested = document["ingest"]
    deviations = dict(zip(ingested["features"], ingested.get("feature_std", ()), strict=False))
    lines = [
        '<tr><th>column</th><th></th><th class="number">length scale, in the column\'s units</th>'
        '<th class="number">in its standard deviations</th></tr>\n'
    ]
    for item, scale in known[:MOST_FEATURES]:
        width = 100.0 * math.log(longest / scale) / math.log(longest / shortest) if scale < math.inf else 0.0
        name, shown = item.feature or item.name, "irrelevant" if item.idle else plain_number(scale, 3)
        deviation = deviations.get(name)
        own = "" if item.idle or deviation is None else plain_number(scale * deviation, 3)
        lines.append(
            f'<tr><th scope="row">{escape(name)}</th><td class="track"><span class="bar" '
            f'style="width:{width:.1f}%"></span></td><td class="number">{own}</td>'
            f'<td class="number">{shown}</td></tr>\n'
        )
    more = (
        f"<p>{len(known) - MOST_FEATURES:,} more features have longer length scales.</p>\n"
        if len(known) > MOST_FEATURES
        else ""
    )
    return (
        f'<p class="lead">The length scale of a column is a distance. {_correlations(document)} A shorter length scale '
        "has a longer bar (logarithmic): the column matters more.</p>\n"
        f"<table>\n{''.join(lines)}</table>\n{more}"
    )


def _correlations(document: Document) -> str:
    """Return the meaning of a length scale: the correlation of two samples that differ by one, in one column."""
    kernel = kernel_from_json(document["tune"]["kernel"])
    names, shares = document["ingest"]["features"], []
    for item in _tuned(document):
        scale = item.length_scale
        if item.feature in names and scale is not None and scale < math.inf:
            points = np.zeros((2, len(names)))
            points[1, names.index(item.feature)] = scale
            matrix = kernel.matrix(points, points)
            shares.append(float(matrix[0, 1] / math.sqrt(matrix[0, 0] * matrix[1, 1])))
    if not shares:
        return "Over it the target changes."
    low, high = f"{min(shares):.2f}", f"{max(shares):.2f}"
    between = low if low == high else f"{low} to {high}"
    return f"Two samples that differ by one length scale in this column alone have a correlation of {between}."


def _drawn(pictures: dict[str, str], drawable: bool) -> str:
    if not drawable:
        install = "<code>pip install 'dkgp[plot]'</code>"
        return f"<p>No pictures, because matplotlib is not installed. Install it with {install}.</p>\n"
    return "".join(
        f"<figure>\n<figcaption>{escape(title)}</figcaption>\n{svg}\n</figure>\n" for title, svg in pictures.items()
    )


def _commands(lines: Sequence[str]) -> str:
    lead = "The same steps as single commands, to copy and change. They write into a folder of their own."
    return f"<p>{lead}</p>\n<pre>{escape(chr(10).join(lines))}</pre>\n"


_IDENTIFIER = re.compile(r'(\bid="|url\(#|href="#)')


def regression_pictures(prediction: Prediction, dataset: Dataset) -> dict[str, str]:
    """Predicted against true with the calibration, and residuals; SVG by title."""
    truth, mean = read_pairs(prediction, dataset)
    coverage = read_coverage(prediction, dataset, noise_free=False)
    if coverage is not None:
        coverage = replace(coverage, target_names=tuple(map(_plain, coverage.target_names)))
    residuals = list(read_residuals(prediction, dataset).values())
    seen, predicted, scaled = (
        np.column_stack([getattr(of_target, name) for of_target in residuals])
        for name in ("truth", "means", "standardised")
    )
    of_prediction = "variance" in prediction.variables
    title = f"{len(truth):,} held-out samples"
    unit = ", ".join(map(_plain, prediction.target_names))
    return {
        "Predicted against true values, and the calibration of intervals": inlined(
            lambda path: plot_predictions(path, truth, mean, coverage=coverage, title=title, unit=unit), "predicted"
        ),
        "Residuals": inlined(
            lambda path: plot_residuals(
                path, seen, predicted, scaled, of_prediction=of_prediction, title=title, unit=unit
            ),
            "residuals",
        ),
    }


def class_pictures(prediction: Prediction, dataset: Dataset) -> dict[str, str]:
    """Confusion, operating curves and reliability; SVG by title."""
    figures = evaluate_classes(prediction, dataset, curves=True)
    metrics = replace(figures.metrics, classes=tuple(map(_plain, figures.metrics.classes)))
    curves = [replace(curve, name=_plain(curve.name)) for curve in figures.curves]
    title = f"{metrics.n:,} held-out samples"
    return {
        "Predicted against true labels, and the calibration of probabilities": inlined(
            lambda path: plot_classes(path, metrics, curves, title=title), "classes"
        )
    }


def inlined(draw: Callable[[Path], None], name: str) -> str:
    """Return the SVG element that `draw` writes; its identifiers begin with `name`, as a page has several."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        draw(path)
        text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    # A style in the SVG would apply to the page; the page's own style has its rule for joints.
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(?:xmlns(?::\w+)?="[^"]*"|version="[^"]*")', "", text.replace("xlink:href", "href"))
    return _IDENTIFIER.sub(lambda match: f"{match[1]}{name}-", text)


def _plain(name: str) -> str:
    """A name with dollar signs escaped, which matplotlib would read as a formula."""
    return name.replace("$", r"\$")
