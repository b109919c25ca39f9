"""`dkgp evaluate`: a prediction store against the true targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.outputs import check_side_files
from dkgp.commands.reporting.plots import plot_predictions
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset, Prediction, open_dataset, open_prediction
from dkgp.models.metrics import CoverageCurve, coverage_curve, evaluate
from dkgp.models.sparse.methods import METHODS

__all__ = ["EvaluateJob", "read_coverage", "read_pairs", "run_evaluate"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class EvaluateJob:
    """A prediction store to compare with the truth.

    Attributes
    ----------
    prediction, dataset
        Stores of the same samples, in the same order.
    noise_free
        Whether the targets are values of the function itself, without noise.
    plot
        An image of predictions against the truth, and of the variances' calibration, where asked for.
    overwrite
        Whether the image may be replaced.
    """

    prediction: str
    dataset: str
    noise_free: bool = False
    plot: str | None = None
    overwrite: bool = False


def run_evaluate(job: EvaluateJob, reporter: Reporter) -> Document:
    """Evaluate; return rmse (GBCD paper, equation 16) and what else the prediction store allows.

    Raises
    ------
    InputError
        The stores do not belong together, or the dataset has no targets.
    """
    check_side_files(job.plot, None, replace=job.overwrite)
    prediction = open_prediction(job.prediction)
    dataset = open_dataset(job.dataset)
    method = METHODS.get(str(prediction.attributes.get("method")))
    if method is not None and method.caution is not None and "variance" in prediction.variables:
        reporter.warn(method.caution)
    document: Document = {
        "command": "evaluate",
        "prediction": prediction.url,
        "dataset": dataset.url,
        **plain(evaluate(prediction, dataset, noise_free=job.noise_free)),
    }
    if job.plot is not None:
        title = f"{dataset.n_samples:,} samples, RMSE {document['rmse']:.4g}"
        if document["nlpd"] is not None:
            title += f", NLPD {document['nlpd']:.4g}"
        coverage = read_coverage(prediction, dataset, noise_free=job.noise_free)
        plot_predictions(job.plot, *read_pairs(prediction, dataset), coverage=coverage, title=title)
        document["plot"] = job.plot
    document["warnings"] = list(reporter.warnings)
    return document


def read_pairs(prediction: Prediction, dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    """True targets and predicted means in the units of the targets, (n, p) each."""
    return dataset.all_targets(standardised=False), prediction.read("mean")


def read_coverage(prediction: Prediction, dataset: Dataset, *, noise_free: bool) -> CoverageCurve | None:
    """Measure how often the truth lies in the predictive intervals; None where there are no variances."""
    if "variance" not in prediction.variables:
        return None
    return coverage_curve(prediction, dataset, noise_free=noise_free)
