"""`dkgp predict` and `dkgp evaluate`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["evaluate", "predict"]

predict = JobCommand(
    "predict",
    """Predict at the samples of the store DATASET: means with a proven bound on their error, and variances.

    Of a classifier decisions, classes and probabilities; where the model is certified each decision with a proven bound
    and each probability in a proven interval, probability_lower to probability_upper.

    With --variance, the exact variance lies between variance_lower and variance_upper, and the upper end is what is
    reported; of a sparse model its method's own is, beside the exact model's interval. Samples whose interval stays
    wider than --variance-gap are counted, with a warning; the exit code is 0. The proofs are of the Gaussian process
    with the model's hyperparameters; of a user() function in its kernel they take for granted that it is positive
    definite.
    """,
    (
        "dkgp predict model.zarr test.zarr --out pred.zarr",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --variance-gap 0.02",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --resume",
    ),
)

evaluate = JobCommand(
    "evaluate",
    """Compare the predictions in PREDICTION with the targets of the store DATASET that they were made for.

    With variances also the negative log predictive density, the coverage of 95 % intervals, and the certified gaps; of
    a sparse model's predictions how far from the exact model's they are at most, and which share of variances is proven
    wrong.

    Of classes: error, balanced error, area under the curve, log loss, Brier score and calibration error, the confusion
    matrix, and the share of labels that are certified. Labels are matched by the classes' names.
    """,
    (
        "dkgp evaluate pred.zarr test.zarr",
        "dkgp evaluate pred.zarr test.zarr --plot fit.png",
        "dkgp evaluate classes.zarr test.zarr --abstain --plot classes.png",
    ),
)
