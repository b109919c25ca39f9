"""`dkgp tune`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["tune"]

tune = JobCommand(
    "tune",
    """Find length scales and noise for the store DATASET by maximum likelihood on random subsets.

    Or by a sparse model's evidence on all samples (--objective bound). The work is done by this process's threads
    unless a cluster is asked for; the result has the same bits wherever it runs. Values are those of the standardised
    data.
    """,
    (
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
