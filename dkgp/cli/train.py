"""`dkgp train`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand, click_option, declared_options
from dkgp.cli.options import (
    as_in_the_paper_option,
    checkpoint_options,
    cluster_from,
    cluster_options,
    examples,
    left_to_the_paper,
    limit_options,
    memory_limit_option,
    model_options,
    overwrite_option,
    paper_tables,
    record_options,
    seed_option,
    solver_and_its_options,
)
from dkgp.cli.running import runs
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.train import TrainJob

__all__ = ["train", "train_job"]


def every_solver_option() -> list[click.Option]:
    """Return `--solver`, the options that solvers declare, and the folder of those that need one."""
    from dkgp.solvers.registry import Need, solvers_that_need

    place = (
        f"Where {' or '.join(solvers_that_need(Need.FOLDER))} keeps its factor, to go on with after an interruption.  "
        "[default: OUT.tiles]"
    )
    return [*solver_and_its_options(), click_option(Option("tiles", place, metavar="FOLDER"))]


@click.command(
    cls=DeclaredCommand,
    tables=paper_tables("train"),
    epilog=examples(
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --tol 1e-4",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --resume",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot run.png",
    ),
)
@model_options
@as_in_the_paper_option
@declared_options(every_solver_option)
@click.option(
    "--precision",
    type=click.Choice(["mixed", "double"]),
    default="mixed",
    show_default=True,
    help="mixed: float32 kernel tiles under float64 vectors, finished in float64.",
)
@click.option(
    "--duality-gap",
    type=float,
    metavar="SHARE",
    help="Converged, too, when the regularised risk is proven to be within this share of the least.",
)
@click.option(
    "--tree-error",
    type=float,
    metavar="E",
    help="Take kernel products by a tree that prunes what hardly contributes, each entry good to E, a tenth of --tol "
    "or less. Pays for 2 or 3 features (at most 6) with short length scales; the certificate allows for it.",
)
@limit_options
@click.option("--warm-start", metavar="MODEL", help="Start from a model of the same data, exact or sparse.")
@click.option("--by-reference", is_flag=True, help="Let the model refer to DATASET instead of copying its inputs.")
@memory_limit_option
@checkpoint_options
@record_options
@cluster_options
@seed_option
@overwrite_option
@runs(must_converge=True)
def train(reporter: Reporter, **options: Any) -> Document:
    """Train an exact Gaussian process on the store DATASET.

    Solves (K + s2 I) alpha = y without ever holding the kernel matrix. A run that stops short of its tolerance saves
    its model all the same, says so, and ends with exit code 4; --resume goes on from its checkpoint.
    """
    from dkgp.commands.train import run_train

    cluster = cluster_from(options)
    return run_train(replace(train_job(options), cluster=cluster), reporter)


def train_job(options: dict[str, Any]) -> TrainJob:
    """Return the job that the command's options describe, but for the cluster's."""
    from dkgp.commands.solver_options import SolverOptions
    from dkgp.commands.train import TrainJob

    names = SolverOptions.option_types()
    solver = SolverOptions(**{name: options[name] for name in names})
    rest = {name: value for name, value in options.items() if name not in names}
    return TrainJob(solver=solver, **{**rest, "as_in_the_paper": left_to_the_paper("train", options)})
