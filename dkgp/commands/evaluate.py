"""The job of `dkgp evaluate`; its run is in `dkgp.commands.evaluation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dkgp.commands.job_options import DATASET, OVERWRITE
from dkgp.commands.recipe import command
from dkgp.registry import Option

PREDICTION = Option(place="read", reads="prediction", argument=True)
NOISE_FREE = Option(help="The targets are noise-free values. Compare them with the variances of the latent function.")
ABSTAIN = Option(help="For a classifier: leave out samples whose labels are not certified, and count them.")
COMPARE = Option(
    help="For a regression: also print the errors of the mean, a linear model and (if scikit-learn is installed) "
    "gradient boosting, fitted to the training set."
)
PLOT = Option(
    help="Plot predictions against targets, and the calibration of variances, into a .png, .pdf or .svg file. For a "
    "classifier: the confusion matrix, ROC curves and the calibration of probabilities.",
    metavar="FILE",
    place="write",
)


@command(
    """
    DATASET must contain the samples of PREDICTION in the same order. All figures are in the targets' units. If
    PREDICTION has variances, the command also prints the negative log predictive density and the coverage of 95 %
    intervals; for proven intervals, scores use the middle. For a sparse model, it also prints how far its means are
    from the exact ones, and the share of its variances that lie outside the certified intervals.

    The last lines are a verdict: one sentence per fault, with advice. --compare adds the errors of simpler models.

    For a classifier, the command prints error rate, balanced error rate, area under the curve, log loss, Brier score,
    calibration error, the confusion matrix, and the share of certified labels.
    """,
    "dkgp evaluate pred.zarr test.zarr",
    "dkgp evaluate pred.zarr test.zarr --compare --plot fit.png",
    "dkgp evaluate classes.zarr test.zarr --abstain --plot classes.png",
)
@dataclass(frozen=True)
class EvaluateJob:
    """A prediction store and the true targets; both stores hold the same samples in the same order."""

    prediction: Annotated[str, PREDICTION]
    dataset: Annotated[str, DATASET]
    noise_free: Annotated[bool, NOISE_FREE] = False
    abstain: Annotated[bool, ABSTAIN] = False
    compare: Annotated[bool, COMPARE] = False
    plot: Annotated[str | None, PLOT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
