"""`dkgp predict`, `dkgp evaluate`, `dkgp info`: what is done with a model once it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.options import cluster_from, cluster_options, examples, output_options, overwrite_option
from dkgp.cli.running import execute

if TYPE_CHECKING:
    from dkgp.jobs.documents import Document
    from dkgp.jobs.progress import Reporter

__all__ = ["evaluate", "info", "predict"]


@click.command(epilog=examples("dkgp predict model.zarr test.zarr --out pred.zarr"))
@click.argument("model")
@click.argument("dataset")
@click.option("--out", required=True, metavar="STORE", help="Where the predictions go.")
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: about 8192]")
@click.option("--resume", is_flag=True, help="Go on with predictions that were interrupted.")
@cluster_options
@overwrite_option
@output_options
def predict(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Predict the mean at the samples of the store DATASET, with a proven bound on its error."""

    def job(reporter: Reporter) -> Document:
        from dkgp.jobs.predict import PredictJob, run_predict

        cluster = cluster_from(options)
        return run_predict(PredictJob(cluster=cluster, **options), reporter)

    execute("predict", job, as_json=as_json, quiet=quiet, debug=debug)


@click.command(epilog=examples("dkgp evaluate pred.zarr test.zarr", "dkgp evaluate pred.zarr test.zarr --plot fit.png"))
@click.argument("prediction")
@click.argument("dataset")
@click.option("--plot", metavar="FILE", help="Draw predictions against the truth into a .png, .pdf or .svg.")
@overwrite_option
@output_options
def evaluate(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Compare the predictions in PREDICTION with the targets of the store DATASET that they were made for."""

    def job(reporter: Reporter) -> Document:
        from dkgp.jobs.evaluate import EvaluateJob, run_evaluate

        return run_evaluate(EvaluateJob(**options), reporter)

    execute("evaluate", job, as_json=as_json, quiet=quiet, debug=debug)


@click.command(epilog=examples("dkgp info model.zarr --json", "dkgp info"))
@click.argument("location", required=False)
@output_options
def info(as_json: bool, quiet: bool, debug: bool, location: str | None) -> None:
    """Describe a store, checkpoint folder or hyperparameter file at LOCATION; without one, this installation."""

    def job(reporter: Reporter) -> Document:
        from dkgp.jobs.info import InfoJob, run_info

        return run_info(InfoJob(location), reporter)

    execute("info", job, as_json=as_json, quiet=quiet, debug=debug)
