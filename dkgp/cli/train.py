"""`dkgp train`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import (
    block_size,
    byte_count,
    checkpoint_options,
    cluster_from,
    cluster_options,
    examples,
    limit_options,
    output_options,
    overwrite_option,
    record_options,
    seed_option,
)
from dkgp.cli.running import execute

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.train import TrainJob

__all__ = ["train", "train_job"]

SOLVER_NAMES = (
    "solver",
    "block_size",
    "largest_block_size",
    "candidates",
    "variables_per_step",
    "memory",
    "precision",
    "exhaustive",
    "prefitting",
    "seed",
    "tolerance",
    "max_passes",
    "max_seconds",
    "rank",
    "landmarks",
    "duality_gap",
)


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --solver gbcd --tol 1e-4",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --resume",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot run.png",
    ),
)
@click.argument("dataset")
@click.option("--out", required=True, metavar="STORE", help="Where the model goes.")
@click.option("--hyper", required=True, metavar="FILE", help="Hyperparameters, as `dkgp tune` writes them.")
@click.option(
    "--solver",
    type=click.Choice(
        ["auto", "gbcd", "bcdc", "bcdg", "smo", "cg", "pcg", "kcg", "paramcg", "cholesky", "tiled-cholesky"]
    ),
    default="gbcd",
    show_default=True,
    help="auto: the one that a probe of the problem says is quickest; gbcd: greedy block coordinate descent; bcdc, "
    "bcdg: the same with cyclic or gradient selection; smo: pairs; cg: conjugate gradients; pcg: preconditioned by a "
    "partial Cholesky factor; kcg: kernel conjugate gradient; paramcg: on the risk's parameters, its rival; cholesky: "
    "in memory; tiled-cholesky: on disk.",
)
@click.option(
    "--block-size",
    type=block_size,
    metavar="M|auto",
    default="auto",
    show_default=True,
    help="Variables moved in a round.",
)
@click.option(
    "--largest-block-size",
    type=block_size,
    metavar="M|auto",
    default="auto",
    show_default=True,
    help="What gbcd's blocks grow to where it gets on slowly; auto leaves a --block-size that is given as it is.",
)
@click.option("--candidates", type=int, default=60, show_default=True, help="Each variable is the best of so many.")
@click.option(
    "--variables-per-step",
    type=int,
    metavar="V",
    help="Variables that gbcd chooses between two solutions of the block; 1 is the paper's.  [default: a 20th of the "
    "block; 1 with --exhaustive or --prefitting]",
)
@click.option(
    "--memory",
    type=int,
    metavar="STEPS",
    help="Past steps that a new one is conjugate to.  [default: 5; 0 for bcdc and bcdg, as in the paper]",
)
@click.option(
    "--precision",
    type=click.Choice(["mixed", "double"]),
    default="mixed",
    show_default=True,
    help="mixed: float32 kernel tiles under float64 vectors, finished in float64.",
)
@click.option("--exhaustive", is_flag=True, help="Score all samples at every step instead of random candidates.")
@click.option("--prefitting", is_flag=True, help="Score by the decrease after refitting the block; for small problems.")
@click.option(
    "--rank", type=block_size, metavar="R|auto", default="auto", show_default=True, help="Of pcg's preconditioner."
)
@click.option(
    "--landmarks",
    type=click.Choice(["pivoted", "uniform"]),
    default="pivoted",
    show_default=True,
    help="How pcg draws the factor's samples: randomly pivoted Cholesky, or at random (Nystrom).",
)
@click.option(
    "--tiles",
    metavar="FOLDER",
    help="Where tiled-cholesky keeps its factor, to go on with after an interruption.  [default: OUT.tiles]",
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
@click.option("--warm-start", metavar="MODEL", help="Start from the coefficients of a model of the same data.")
@click.option("--by-reference", is_flag=True, help="Let the model refer to DATASET instead of copying its inputs.")
@click.option(
    "--memory-limit",
    "memory_limit_bytes",
    type=byte_count,
    metavar="SIZE",
    help="Refuse to start where more is projected, such as 4GiB.  [default: what is available]",
)
@checkpoint_options
@record_options
@cluster_options
@seed_option
@overwrite_option
@output_options
def train(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
    """Train an exact Gaussian process on the store DATASET.

    Solves (K + s2 I) alpha = y without ever holding the kernel matrix. A run that stops short of its tolerance saves
    its model all the same, says so, and ends with exit code 4; --resume goes on from its checkpoint.
    """

    def job(reporter: Reporter) -> Document:
        from dkgp.commands.train import run_train

        cluster = cluster_from(options)
        return run_train(replace(train_job(options), cluster=cluster), reporter)

    execute("train", job, as_json=as_json, quiet=quiet, debug=debug, must_converge=True)


def train_job(options: dict[str, Any]) -> TrainJob:
    """Return the job that the command's options describe, but for the cluster's."""
    from dkgp.commands.solver_options import SolverOptions
    from dkgp.commands.train import TrainJob

    solver = SolverOptions(**{name: options[name] for name in SOLVER_NAMES})
    return TrainJob(solver=solver, **{name: value for name, value in options.items() if name not in SOLVER_NAMES})
