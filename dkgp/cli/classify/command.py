"""`dkgp classify`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.classify.options import (
    GROUPS,
    basis_options,
    fixed_size_options,
    fixed_size_settings,
    label_options,
    likelihood_options,
    machine_options,
    solve_options,
)
from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import (
    as_in_the_paper_option,
    checkpoint_options,
    cluster_from,
    cluster_options,
    examples,
    left_to_the_paper,
    memory_limit_option,
    overwrite_option,
    paper_tables,
    record_options,
    seed_option,
)
from dkgp.cli.running import runs

if TYPE_CHECKING:
    from dkgp.commands.classify import ClassifyJob
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["classify", "classify_job"]


@click.command(
    cls=DeclaredCommand,
    groups=GROUPS,
    tables=paper_tables("classify"),
    epilog=examples(
        "dkgp classify train.zarr --out model.zarr",
        "dkgp classify train.zarr --out model.zarr --class-weight balanced --plot path.png",
        "dkgp classify train.zarr --out model.zarr --as-in-the-paper",
        "dkgp classify train.zarr --out model.zarr --pool 3000 --prototypes entropy --search annealing --isotropic",
        "dkgp classify train.zarr --out model.zarr --method exact --hyper hyper.json --resume",
        "dkgp classify train.zarr --out model.zarr --method logistic --plot gap.png",
        "dkgp classify train.zarr --out model.zarr --method gp --basis-size 1000 --link probit",
    ),
)
@click.argument("dataset")
@click.option("--out", required=True, metavar="STORE", help="Where the model goes.")
@label_options
@as_in_the_paper_option
@fixed_size_options
@machine_options
@likelihood_options
@solve_options
@basis_options
@memory_limit_option
@checkpoint_options
@record_options
@cluster_options
@seed_option
@overwrite_option
@runs(must_converge=True)
def classify(reporter: Reporter, **options: Any) -> Document:
    """Train a classifier on the labels of the store DATASET.

    A fixed-size least-squares support vector machine finds kernel, noise and prototypes by cross-validation, in a few
    passes over the data, and predicts without them. An exact one is solved for on all samples, so that its labels can
    be certified. Either gives probabilities calibrated on samples that it was not fitted to.

    Kernel logistic regression and Gaussian process classification have probabilities by themselves, on all samples each
    within a proven interval, or on a basis of some of them. Without --hyper their kernel is found by the evidence of a
    subset's labels.

    A run that stops short of its tolerance saves its model all the same, says so, and ends with exit code 4. --resume
    goes on with what a run that was interrupted or killed has saved, to the same bits.
    """
    from dkgp.commands.classify import run_classify

    cluster = cluster_from(options)
    return run_classify(replace(classify_job(options), cluster=cluster), reporter)


def classify_job(options: dict[str, Any]) -> ClassifyJob:
    """Return the job that the command's options describe, but for the cluster's."""
    from dkgp.commands.classify import ClassifyJob

    rest = {**options, "as_in_the_paper": left_to_the_paper("classify", options)}
    settings = fixed_size_settings(rest)
    return ClassifyJob(settings=settings, **rest)
