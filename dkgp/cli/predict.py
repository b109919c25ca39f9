"""`dkgp predict`, `dkgp evaluate`, `dkgp info`: what is done with a model once it is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand, click_type
from dkgp.cli.options import (
    cluster_from,
    cluster_options,
    examples,
    overwrite_option,
    seed_option,
)
from dkgp.cli.running import runs
from dkgp.registry import byte_count

if TYPE_CHECKING:
    from dkgp.commands.evaluate import EvaluateJob
    from dkgp.commands.predict import PredictJob
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["evaluate", "evaluate_job", "info", "predict", "predict_job"]


# The option of each setting of the variances.
VARIANCE_OPTIONS = {
    "gap": "--variance-gap",
    "max_passes": "--max-passes",
    "latent": "--latent",
    "rank": "--variance-rank",
    "halo": "--variance-halo",
    "batch_size": "--variance-batch",
    "memory_bytes": "--variance-memory",
    "keep_factor": "--keep-factor",
}


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
@click.option("--variance", is_flag=True, help="Predict variances too, each with a proven interval.")
@click.option(
    "--variance-gap",
    "gap",
    type=float,
    metavar="GAP",
    help="How narrow a variance's interval is to be, relative to its upper end.  [default: 0.02]",
)
@click.option(
    "--latent",
    is_flag=True,
    help="Variances of the function itself. Without it, those of a new observation, which include the noise.",
)
@click.option(
    "--max-passes",
    type=float,
    help="Products with the whole kernel matrix that a batch may take; variances that are wider then are kept, and "
    "reported. 0: the factor alone.  [default: 20]",
)
@click.option(
    "--variance-rank",
    "rank",
    type=int,
    metavar="R",
    help="Training samples that the partial Cholesky factor is built on.  [default: by the problem and memory]",
)
@click.option(
    "--variance-halo",
    "halo",
    type=int,
    metavar="S",
    help="Training samples that each leaf of the block-Vecchia factor is conditioned on; 0 for no such factor.  "
    "[default: by the problem and memory]",
)
@click.option(
    "--variance-batch",
    "batch_size",
    type=int,
    metavar="SAMPLES",
    help="Test samples solved together.  [default: by memory]",
)
@click.option(
    "--variance-memory",
    "memory_bytes",
    type=click_type(byte_count),
    metavar="SIZE",
    help="Working memory of a worker process, such as 2GiB.  [default: 704MiB, more for more than 45,000 samples]",
)
@click.option("--keep-factor", is_flag=True, help="Keep the factor with the model, for the next prediction.")
@click.option(
    "--chunk-rows", type=int, help="Rows of a chunk.  [default: about 8192; with variances a batch or several]"
)
@click.option("--resume", is_flag=True, help="Go on with predictions that were interrupted.")
@cluster_options
@seed_option
@overwrite_option
@runs()
def predict(reporter: Reporter, **options: Any) -> Document:
    """Predict at the samples of the store DATASET: means with a proven bound on their error, and variances.

    With --variance, the exact variance lies between variance_lower and variance_upper, and the upper end is what is
    reported. Samples whose interval stays wider than --variance-gap are counted, with a warning; the exit code is 0.
    The proofs are of the Gaussian process with the model's hyperparameters; of a user() function in its kernel they
    take for granted that it is positive definite.
    """
    from dkgp.commands.predict import run_predict

    cluster = cluster_from(options)
    return run_predict(replace(predict_job(options), cluster=cluster), reporter)


def predict_job(options: dict[str, Any]) -> PredictJob:
    """Return the job that the options of `dkgp predict` describe, but for the cluster's."""
    from dkgp.commands.predict import PredictJob, variance_settings

    given = {name: (option, options[name]) for name, option in VARIANCE_OPTIONS.items()}
    variance = variance_settings(options["variance"], options["seed"], given)
    others = {name: value for name, value in options.items() if name not in (*VARIANCE_OPTIONS, "variance", "seed")}
    return PredictJob(variance=variance, **others)


@click.command(epilog=examples("dkgp evaluate pred.zarr test.zarr", "dkgp evaluate pred.zarr test.zarr --plot fit.png"))
@click.argument("prediction")
@click.argument("dataset")
@click.option(
    "--noise-free",
    is_flag=True,
    help="The targets are values of the function itself: compare them with variances without the noise.",
)
@click.option(
    "--plot",
    metavar="FILE",
    help="Draw predictions against the truth, and how well variances are calibrated, into a .png, .pdf or .svg.",
)
@overwrite_option
@runs()
def evaluate(reporter: Reporter, **options: Any) -> Document:
    """Compare the predictions in PREDICTION with the targets of the store DATASET that they were made for.

    With variances also the negative log predictive density, the coverage of 95 % intervals, and the certified gaps.
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
