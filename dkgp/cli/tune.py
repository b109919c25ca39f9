"""`dkgp tune`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import (
    cluster_from,
    cluster_options,
    examples,
    overwrite_option,
    seed_option,
)
from dkgp.cli.refine_options import refine_options, refine_settings
from dkgp.cli.running import runs

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.tune import TuneJob

__all__ = ["tune", "tune_job"]


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp tune train.zarr --out hyper.json --kernel rbf --subset 2000",
        "dkgp tune train.zarr --out hyper.json --subsets 4 --plot scales.png --folds 10",
        "dkgp tune train.zarr --out hyper.json --kernel 'matern32 + linear' --objective loo",
        "dkgp tune train.zarr --out hyper.json --bounds 'gamma*=0.001:10' --fix noise_variance=0.01",
        "dkgp tune train.zarr --out better.json --start hyper.json --prior 'gamma*=lognormal(0.1, 1)'",
        "dkgp tune train.zarr --out hyper.json --refine --refine-steps 10",
        "dkgp tune train.zarr --out hyper.json --objective bound --basis-size 500",
        "dkgp tune labelled.zarr --out hyper.json --likelihood logit --folds 10",
    ),
)
@click.argument("dataset")
@click.option("--out", required=True, metavar="FILE", help="Where the hyperparameters go, as JSON.")
@click.option(
    "--kernel",
    metavar="TEXT",
    help="Kernel, such as rbf, \"matern32 + linear\" or \"rbf['lat', 'lon'] * periodic['day'] + 0.5 * constant\".  "
    "[default: that of --start, else rbf]",
)
@click.option("--subset", type=int, default=2000, show_default=True, help="Samples of a subset, drawn at random.")
@click.option(
    "--subsets",
    type=int,
    default=1,
    show_default=True,
    help="How many subsets; disjoint where the data suffice. Their log likelihoods are added, each computed by a task "
    "of its own.",
)
@click.option(
    "--objective",
    type=click.Choice(["likelihood", "loo", "bound", "fitc"]),
    default="likelihood",
    show_default=True,
    help="likelihood: the marginal likelihood; loo: the predictive likelihood of each sample given the subset's "
    "others, at twice the cost, where the kernel may not fit the data well. For a sparse model, on all samples: bound, "
    "the variational bound on the marginal likelihood; fitc, FITC's likelihood.",
)
@click.option(
    "--likelihood",
    type=click.Choice(["logit", "probit", "softmax"]),
    help="Of labels: maximise their evidence by a Gaussian process classifier, in Laplace's approximation; several "
    "classes each against the rest, or coupled by softmax, which takes smaller subsets. Without it labels are tuned as "
    "a regression on signs, for an LS-SVM.",
)
@click.option(
    "--basis-size",
    type=int,
    metavar="M",
    help="Basis samples of the objectives bound and fitc; they are chosen again as the hyperparameters move.  "
    "[default: 1000, or all]",
)
@click.option("--restarts", type=int, default=1, show_default=True, help="Starting points; the best result is kept.")
@click.option(
    "--learn-variance", is_flag=True, help="Tune the amplitude of a plain kernel too, instead of fixing it at 1."
)
@click.option(
    "--bounds",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="Keep a hyperparameter between LOW and HIGH. NAME may be a pattern: gamma.lat is the gamma of the feature "
    "lat, 'gamma*' those of all; noise_variance is the noise. May be repeated, as --fix and --prior may.",
)
@click.option("--fix", "fixed", multiple=True, metavar="NAME=VALUE", help="Hold a hyperparameter at VALUE.")
@click.option(
    "--prior",
    "priors",
    multiple=True,
    metavar="NAME=lognormal(MEDIAN, SIGMA)",
    help="Add the log density of log(NAME), normal around log(MEDIAN) with deviation SIGMA, to the objective.",
)
@click.option("--start", metavar="FILE", help="Start from these hyperparameters, as `dkgp tune` writes them.")
@click.option("--tol", "tolerance", type=float, default=1e-4, show_default=True, help="Of the search.")
@click.option(
    "--folds",
    type=int,
    metavar="F",
    help="Score the result by F folds of each subset, each predicted from its others, without tuning again.",
)
@click.option(
    "--holdout",
    type=float,
    metavar="FRACTION",
    help="Score the result on rows that no subset holds, as many as this fraction of a subset.",
)
@click.option("--plot", metavar="FILE", help="Draw the length scales by feature into a .png, .pdf or .svg.")
@click.option(
    "--resume",
    is_flag=True,
    help="Take the file at --out for done where this same command wrote it; otherwise a search on all samples goes on "
    "from OUT.checkpoint, to the bit-same result, and one on subsets starts from the beginning. For batch systems that "
    "run a command again.",
)
@refine_options
@cluster_options
@seed_option
@overwrite_option
@runs()
def tune(reporter: Reporter, **options: Any) -> Document:
    """Find length scales and noise for the store DATASET by maximum likelihood on random subsets.

    Or by a sparse model's evidence on all samples (--objective bound). The work is done by this process's threads
    unless a cluster is asked for; the result has the same bits wherever it runs. Values are those of the standardised
    data.
    """
    from dkgp.commands.tune import run_tune

    cluster = cluster_from(options)
    return run_tune(replace(tune_job(options), cluster=cluster), reporter)


def tune_job(options: dict[str, Any]) -> TuneJob:
    """Return the job that the command's options describe, but for the cluster's."""
    from dkgp.commands.tune import TuneJob

    refine = refine_settings(options)
    return TuneJob(refine=refine, **options)
