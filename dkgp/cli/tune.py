"""`dkgp tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.options import examples, output_options, overwrite_option, seed_option
from dkgp.cli.running import execute

if TYPE_CHECKING:
    from dkgp.jobs.documents import Document
    from dkgp.jobs.progress import Reporter
    from dkgp.jobs.tune import TuneJob

__all__ = ["tune", "tune_job"]


@click.command(epilog=examples("dkgp tune train.zarr --out hyper.json --kernel rbf --subset 2000"))
@click.argument("dataset")
@click.option("--out", required=True, metavar="FILE", help="Where the hyperparameters go, as JSON.")
@click.option("--kernel", type=click.Choice(["rbf"]), default="rbf", show_default=True, help="Kernel.")
@click.option("--subset", type=int, default=2000, show_default=True, help="Samples to tune on, drawn at random.")
@click.option("--restarts", type=int, default=1, show_default=True, help="Starting points; the best result is kept.")
@click.option("--learn-variance", is_flag=True, help="Tune the kernel's amplitude too, instead of fixing it at 1.")
@click.option("--tol", "tolerance", type=float, default=1e-4, show_default=True, help="Of the search.")
@seed_option
@overwrite_option
@output_options
def tune(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Find length scales and noise for the store DATASET by maximum marginal likelihood on a random subset."""

    def job(reporter: Reporter) -> Document:
        from dkgp.jobs.tune import run_tune

        return run_tune(tune_job(options), reporter)

    execute("tune", job, as_json=as_json, quiet=quiet, debug=debug)


def tune_job(options: dict[str, Any]) -> TuneJob:
    """Return the job that the command's options describe."""
    from dkgp.jobs.tune import TuneJob

    return TuneJob(**options)
