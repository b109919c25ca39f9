"""`dkgp sparse`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import (
    as_in_the_paper_option,
    checkpoint_options,
    cluster_from,
    cluster_options,
    examples,
    left_to_the_paper,
    memory_limit_option,
    model_options,
    overwrite_option,
    paper_tables,
    record_options,
    seed_option,
)
from dkgp.cli.running import runs
from dkgp.cli.sparse.options import (
    basis_options,
    certificate_options,
    greedy_options,
    method_options,
    sparse_settings,
)

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.sparse import SparseJob

__all__ = ["sparse", "sparse_job"]


@click.command(
    cls=DeclaredCommand,
    tables=paper_tables("sparse"),
    epilog=examples(
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --gap 0.025 --plot basis.png",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis k-means --certify-passes 3",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis-size auto --target-distance 0.01",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --resume",
    ),
)
@model_options
@as_in_the_paper_option
@method_options
@basis_options
@greedy_options
@certificate_options
@memory_limit_option
@checkpoint_options
@record_options
@cluster_options
@seed_option
@overwrite_option
@runs(must_converge=True)
def sparse(reporter: Reporter, **options: Any) -> Document:
    """Train a sparse Gaussian process on the store DATASET, with a proven distance to the exact one.

    The model predicts without the training set. Time is in proportion to n m², memory to m². Where a gap or a distance
    was asked for and is not met, the model is saved all the same, says so, and the command ends with exit code 4.
    """
    from dkgp.commands.sparse import run_sparse

    cluster = cluster_from(options)
    return run_sparse(replace(sparse_job(options), cluster=cluster), reporter)


def sparse_job(options: dict[str, Any]) -> SparseJob:
    """Return the job that the command's options describe, but for the cluster's."""
    from dkgp.commands.sparse import SparseJob

    rest = {**options, "as_in_the_paper": left_to_the_paper("sparse", options)}
    settings = sparse_settings(rest)
    return SparseJob(settings=settings, **rest)
