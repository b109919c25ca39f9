"""Evaluations as tables: errors in the targets' units, what variances were worth, and the verdict in sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import typed
from dkgp.commands.reporting.tables.classify import evaluated_class_tables
from dkgp.commands.reporting.tables.layout import Rows, bounds_of, gaps, grid, number, table_of
from dkgp.models.verdict import COVERAGE_MATTERS, FEWEST_SAMPLES

GUIDE = "docs/guides/bad-model.md"


def evaluated_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the document of `dkgp evaluate`."""
    if "confusion" in document:
        return [*evaluated_class_tables(document), verdict(document)]
    rows = [
        ("samples", f"{document['n']:,}"),
        ("root mean square error", _digits(document["rmse_raw"])),
        ("mean absolute error", _digits(document["mae_raw"])),
        ("R²", _digits(document["r_squared"])),
        *_certified(document),
    ]
    if "transform" in document:
        rows.insert(1, ("modelled", ", ".join(transform_text(of) for of in document["transform"])))
    if document.get("nlpd") is not None:
        rows += _variance_rows(document)
    shown: list[RenderableType] = [table_of("Evaluated, in the units of the targets", rows)]
    if document.get("per_target"):
        shown.append(_targets(document["per_target"]))
    if "compare" in document:
        shown.append(_rivals(document))
    return [*shown, verdict(document)]


def verdict(document: Document) -> RenderableType:
    """Return the verdict: what is wrong and what to do next, in sentences."""
    findings = document["verdict"]
    if not findings:
        return Text(nothing_wrong(document))
    parts = [Text("Verdict", style="bold")]
    for finding in findings:
        of = f"{finding['target']}: " if "target" in finding else ""
        parts.append(Text(f"- {of}{typed(finding['text'])}."))
        parts.append(Text(f"  {typed(finding['advice'])}."))
    parts.append(Text(f"More in {GUIDE}.", style="dim"))
    return Group(*parts)


def nothing_wrong(document: Document) -> str:
    """Return the sentence of a verdict without a finding; it contradicts no figure that is shown above it."""
    n, effective = document["n"], document.get("effective_samples")
    if n < FEWEST_SAMPLES:
        return f"{n:,} test samples are too few to tell whether anything is wrong (at least {FEWEST_SAMPLES})."
    samples = f"{n:,} test samples"
    if effective is not None and effective < 0.9 * n:
        samples += f", whose errors are alike and count as {effective:,.0f} independent ones,"
    if (seen := _outside(document)) is not None:
        return f"{seen}. These {samples} are too few to tell a fault from chance: evaluate on more of them."
    if effective is not None and effective < FEWEST_SAMPLES:
        return f"No sign of anything wrong with the means. These {samples} are too few to judge the error bars."
    return f"No sign of anything wrong in these {n:,} test samples."


def _outside(document: Document) -> str | None:
    """Return the figure that a good model would not show, in words; None if there is none."""
    if "confusion" in document:
        common = max(sum(row) for row in document["confusion"])
        if document["error_rate"] * document["n"] < document["n"] - common:
            return None
        return (
            f"The error of {document['error_rate']:.1%} is no smaller than that of naming the commonest class for all"
        )
    if document.get("coverage_95_band") is None:
        return None
    low, high = document["coverage_95_band"]
    for figures in (document.get("per_target") or {"": document}).values():
        coverage = figures.get("coverage_95")
        if coverage is not None and not low <= coverage <= high and abs(coverage - 0.95) > COVERAGE_MATTERS:
            return f"A coverage of {coverage:.1%} is outside of {low:.1%} to {high:.1%}"
    return None


def transform_text(transform: Document) -> str:
    """Return what a target's transform is called."""
    if transform["name"] == "log":
        return "the target's logarithm"
    return f"the target's Yeo-Johnson transform (lambda {transform['parameter']:.3g})"


def _certified(document: Document) -> Rows:
    """The bounds on means: the largest, and of a sparse model how far it is from the exact one on these samples."""
    if document["mean_error_bound"] is None:
        return []
    bounds, training = bounds_of(document, "mean_error_bound"), ""
    if "rms_bound" in document:
        training = f" (at the training samples root mean square {document['rms_bound']:.3g})"
    return [("mean certified within", f"{bounds} standard deviations of the target{training}")]


def _student(document: Document) -> Rows:
    """The distribution of the noise, where it is not normal."""
    t = document.get("student_t")
    return [] if t is None else [("Student's t", f"the noise's, of {t['degrees']:.3g} degrees of freedom")]


def _variance_rows(document: Document) -> Rows:
    def moved(name: str, shown: Callable[[Any], str] = number) -> str:
        """Ends between which the exact variances leave a figure, where they differ as shown."""
        least, most = (shown(end) for end in document.get(f"{name}_range", (None, None)))
        return "" if least == most else f" (exact variances: {least} to {most})"

    low, high = document["coverage_95_band"]
    rows = [
        ("variances of", "the function" if document["noise_free"] else "new observations, noise included"),
        *_student(document),
        ("negative log predictive density", number(document["nlpd_raw"]) + moved("nlpd_raw")),
        (
            "coverage of 95 % intervals",
            f"{number(document['coverage_95'])}, of a calibrated model {low:.3f} to {high:.3f}{moved('coverage_95')}",
        ),
        (
            "squared error / variance",
            number(document["mean_standardised_squared_error"]) + moved("mean_standardised_squared_error"),
        ),
    ]
    if "variance_gap_mean" in document:
        widths = gaps(document["variance_gap_mean"], document["variance_gap_max"])
        rows.append(("exact variances known within" if "method" in document else "variances certified within", widths))
    if "method" in document:
        outside = document.get("variance_outside", 0.0)
        rows.append(("variances by", f"{document['method']}; {outside:.2%} of them proven wrong"))
    if document.get("variance_unmet"):
        count = f"{document['variance_unmet']:,} of {document['n']:,}"
        rows.append(("wider than wanted", f"{count} (relative gap {document['variance_gap_wanted']:g})"))
    return rows


def _targets(figures: Document) -> RenderableType:
    names = {"rmse_raw": "RMSE", "mae_raw": "MAE", "r_squared": "R²", "nlpd_raw": "density", "coverage_95": "coverage"}
    present = [name for name in names if any(name in of for of in figures.values())]
    rows = [[Text(target), *(Text(_digits(of.get(name))) for name in present)] for target, of in figures.items()]
    return grid(["target", *(names[name] for name in present)], rows, left=("target",), lines=False)


def _rivals(document: Document) -> RenderableType:
    compared = document["compare"]
    errors: Document = compared["rmse_raw"]
    rivals = list(next(iter(errors.values())))
    models = {target: document.get("per_target", {}).get(target, document)["rmse_raw"] for target in errors}
    rows = [[Text("this model"), *(Text(_digits(models[target])) for target in errors)]]
    rows += [[Text(rival), *(Text(_digits(errors[target][rival])) for target in errors)] for rival in rivals]
    return grid(["root mean square error of", *errors], rows, left=("root mean square error of",), lines=False)


def _digits(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
