"""`dkgp predict`, `dkgp evaluate`, `dkgp info`: what is done with a model once it is trained."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import (
    cluster_from,
    cluster_options,
    examples,
    overwrite_option,
    seed_option,
    variance_given,
    variance_options,
)
from dkgp.cli.running import runs

if TYPE_CHECKING:
    from dkgp.commands.evaluate import EvaluateJob
    from dkgp.commands.predict import PredictJob
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["evaluate", "evaluate_job", "info", "predict", "predict_job"]


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp predict model.zarr test.zarr --out pred.zarr",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --variance-gap 0.02",
        "dkgp predict model.zarr test.zarr --out pred.zarr --variance --resume",
    ),
)
@click.argument("model")
@click.argument("dataset")
@click.option("--out", required=True, metavar="STORE", help="Where the predictions go.")
@variance_options()
@click.option(
    "--variance-basis",
    "basis",
    type=int,
    metavar="M",
    help="Bound each variance by a basis of its own of up to M training samples, chosen greedily until the bounds on "
    "what is taken off k(x, x) differ by less than --variance-gap of their mean (Smola and Bartlett). Test samples "
    "share no work then: without it many take less.",
)
@click.option("--keep-factor", is_flag=True, help="Keep the factor with the model, for the next prediction.")
@click.option(
    "--chunk-rows", type=int, help="Rows of a chunk.  [default: about 8192; with variances a batch or several]"
)
@click.option(
    "--tree-error",
    type=float,
    metavar="E",
    help="Take sums over all training samples by a tree that prunes what hardly contributes, each mean (in standard "
    "deviations of the targets) or decision good to E; its bound allows for it. Pays for 2 or 3 features (at most 6) "
    "with short length scales, of many test samples.",
)
@click.option(
    "--plug-in",
    is_flag=True,
    help="Of a Gaussian process classifier: probabilities at its decisions, without averaging them over the variances "
    "of the latent functions, which take longer.",
)
@click.option("--resume", is_flag=True, help="Go on with predictions that were interrupted.")
@cluster_options
@seed_option
@overwrite_option
@runs()
def predict(reporter: Reporter, **options: Any) -> Document:
    """Predict at the samples of the store DATASET: means with a proven bound on their error, and variances.

    Of a classifier decisions, classes and probabilities; where the model is certified each decision with a proven bound
    and each probability in a proven interval, probability_lower to probability_upper.

    With --variance, the exact variance lies between variance_lower and variance_upper, and the upper end is what is
    reported; of a sparse model its method's own is, beside the exact model's interval. Samples whose interval stays
    wider than --variance-gap are counted, with a warning; the exit code is 0. The proofs are of the Gaussian process
    with the model's hyperparameters; of a user() function in its kernel they take for granted that it is positive
    definite.
    """
    from dkgp.commands.predict import run_predict

    cluster = cluster_from(options)
    return run_predict(replace(predict_job(options), cluster=cluster), reporter)


def predict_job(options: dict[str, Any]) -> PredictJob:
    """Return the job that the options of `dkgp predict` describe, but for the cluster's."""
    from dkgp.commands.predict import PredictJob

    own = {each.name for each in fields(PredictJob)} & options.keys() - {"variance"}
    return PredictJob(variance=variance_given(options), **{name: options[name] for name in own})


@click.command(
    epilog=examples(
        "dkgp evaluate pred.zarr test.zarr",
        "dkgp evaluate pred.zarr test.zarr --plot fit.png",
        "dkgp evaluate classes.zarr test.zarr --abstain --plot classes.png",
    )
)
@click.argument("prediction")
@click.argument("dataset")
@click.option(
    "--noise-free",
    is_flag=True,
    help="The targets are values of the function itself: compare them with variances without the noise.",
)
@click.option(
    "--abstain",
    is_flag=True,
    help="Of classes: leave out the samples whose labels are not certified, and say how many these are.",
)
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw predictions against the truth, and how well variances are calibrated, into a .png, .pdf or .svg; of "
    "classes the confusion, operating curves and how well probabilities are calibrated.",
)
@overwrite_option
@runs()
def evaluate(reporter: Reporter, **options: Any) -> Document:
    """Compare the predictions in PREDICTION with the targets of the store DATASET that they were made for.

    With variances also the negative log predictive density, the coverage of 95 % intervals, and the certified gaps; of
    a sparse model's predictions how far from the exact model's they are at most, and which share of variances is proven
    wrong.

    Of classes: error, balanced error, area under the curve, log loss, Brier score and calibration error, the confusion
    matrix, and the share of labels that are certified. Labels are matched by the classes' names.
    """
    from dkgp.commands.evaluate import run_evaluate

    return run_evaluate(evaluate_job(options), reporter)


def evaluate_job(options: dict[str, Any]) -> EvaluateJob:
    """Return the job that the options of `dkgp evaluate` describe."""
    from dkgp.commands.evaluate import EvaluateJob

    return EvaluateJob(**options)


@click.command(epilog=examples("dkgp info model.zarr --json", "dkgp info"))
@click.argument("location", required=False)
@runs()
def info(reporter: Reporter, location: str | None) -> Document:
    """Describe a store, checkpoint folder or hyperparameter file at LOCATION; without one, this installation."""
    from dkgp.commands.info import InfoJob, run_info

    return run_info(InfoJob(location), reporter)
