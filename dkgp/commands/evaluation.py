"""The run of `dkgp evaluate`: compare predictions with true targets, classes included."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dkgp.codec import to_json
from dkgp.commands.evaluate import EvaluateJob
from dkgp.commands.reporting.outputs import Document, check_side_files, plain
from dkgp.commands.reporting.plots import plot_classes, plot_predictions
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, Prediction, open_dataset, open_prediction
from dkgp.errors import InputError
from dkgp.models.classification.metrics import evaluate_classes, holds_classes
from dkgp.models.metrics import CoverageCurve, coverage_band, coverage_curve, evaluate
from dkgp.models.sparse.model import METHODS
from dkgp.models.target_units import TargetUnits
from dkgp.models.verdict import Rivals, findings, fit_rivals, label_findings, read_residuals

FloatArray = NDArray[np.float64]


def run_evaluate(job: EvaluateJob, reporter: Reporter) -> Document:
    """Evaluate a prediction; return the rmse (GBCD paper, equation 16) or the error rate, and a verdict.

    The document also contains the other measures that the store allows.
    The `verdict` is a list of findings, each with `kind`, `text` and `advice`, and with `target` if there are several
    targets. The list is empty if there is no problem.

    Raises `InputError`: the stores do not match, the dataset has no targets, or the model does not know a label.
    Raises `StoreError`: the training set for the comparison is missing, has changed or may not be named.
    """
    check_side_files(job.plot, None, replace=job.overwrite)
    prediction, dataset = open_prediction(job.prediction), open_dataset(job.dataset)
    evaluated = _evaluate_classes if holds_classes(prediction) else _evaluate_numbers
    return {
        "command": "evaluate",
        "prediction": prediction.url,
        "dataset": dataset.url,
        **evaluated(job, prediction, dataset, reporter),
        **({} if job.plot is None else {"plot": job.plot}),
        "warnings": list(reporter.warnings),
    }


def _evaluate_numbers(job: EvaluateJob, prediction: Prediction, dataset: Dataset, reporter: Reporter) -> Document:
    if job.abstain:
        raise InputError(
            f"`abstain` is for labels, and '{prediction.url}' contains predictions of numbers; leave it out"
        )
    method = METHODS.get(str(prediction.attributes.get("method")))
    if method is not None and method.caution is not None and "variance" in prediction.variables:
        reporter.warn(method.caution)
    document: Document = plain(evaluate(prediction, dataset, noise_free=job.noise_free))
    rivals = fit_rivals(prediction, dataset, reporter.note) if job.compare else None
    if rivals is not None:
        document["compare"] = plain(rivals)
    document |= _verdict(prediction, dataset, rivals, noise_free=job.noise_free)
    if job.plot is not None:
        title = f"{dataset.n_samples:,} samples, RMSE {document['rmse_raw']:.4g}"
        if document["nlpd_raw"] is not None:
            title += f", NLPD {document['nlpd_raw']:.4g}"
        coverage = read_coverage(prediction, dataset, noise_free=job.noise_free)
        plot_predictions(job.plot, *read_pairs(prediction, dataset), coverage=coverage, title=title)
    return document


def _verdict(prediction: Prediction, dataset: Dataset, rivals: Rivals | None, *, noise_free: bool) -> Document:
    """Return the findings of all targets, with the target's name if there are several, and the effective sample size.

    The effective sample size is the number of independent errors with as much information on the noise as the test
    set. It is the smallest number over all targets.
    """
    several = prediction.n_targets > 1
    read = read_residuals(prediction, dataset, noise_free=noise_free)
    verdict = [
        {**({"target": name} if several else {}), **to_json(finding)}
        for name, residuals in read.items()
        for finding in findings(residuals, None if rivals is None else rivals.rmse_raw[name])
    ]
    # Errors of noise-free targets contain no information on the noise, and a large test set is thinned before the test.
    shares = [of.effective / len(of.truth) for of in read.values() if of.deviations is not None and not noise_free]
    share = min(shares, default=None)
    if share is None:
        return {"verdict": verdict, "effective_samples": None}
    effective = share * dataset.n_samples
    # Coverage differs from sample to sample as that of so many independent errors.
    return {
        "verdict": verdict,
        "effective_samples": effective,
        "coverage_95_band": list(coverage_band(max(1, round(effective)))),
    }


def _evaluate_classes(job: EvaluateJob, prediction: Prediction, dataset: Dataset, reporter: Reporter) -> Document:
    for name in ("noise_free", "compare"):
        if getattr(job, name):
            raise InputError(
                f"`{name}` is for targets that are numbers, and '{prediction.url}' contains predictions of classes; "
                f"leave it out"
            )
    figures = evaluate_classes(prediction, dataset, abstain=job.abstain, curves=job.plot is not None)
    if job.plot is not None:
        title = f"{figures.metrics.n:,} samples, error {figures.metrics.error_rate:.2%}"
        if figures.metrics.abstained is not None:
            title += (
                f" of certified labels; {figures.metrics.abstained:.2%} of all samples samples without a "
                f"certified label"
            )
        plot_classes(job.plot, figures.metrics, figures.curves, title=title)
    verdict = [to_json(finding) for finding in label_findings(figures.metrics)]
    return {**plain(figures.metrics), "verdict": verdict}


def read_pairs(prediction: Prediction, dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    """Return true targets and point predictions in the units of the targets, (n, p) each."""
    return dataset.all_targets(standardised=False), TargetUnits(prediction).read().point


def read_coverage(prediction: Prediction, dataset: Dataset, *, noise_free: bool) -> CoverageCurve | None:
    """Return the coverage of the predictive intervals; None if the store has no variances."""
    if "variance" not in prediction.variables:
        return None
    return coverage_curve(prediction, dataset, noise_free=noise_free)
