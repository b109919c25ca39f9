"""`dkgp pursue`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["pursue"]

pursue = JobCommand(
    "pursue",
    """Find a linear regression with few nonzero weights on the store DATASET, and the whole path to it.

    Features and targets are standardised; weights are told in their own units. One pass over the samples brings all
    sums that paths and cross-validation take: of d features and F folds some F d² numbers. Where these do not fit, a
    --cardinality that is a number takes a pass over the samples a feature. `dkgp predict` and `dkgp evaluate` take the
    model as any other; its means have no bounds.
    """,
    (
        "dkgp pursue train.zarr --out weights.zarr",
        "dkgp pursue train.zarr --out weights.zarr --cardinality 5 --plot path.png",
        "dkgp pursue train.zarr --out weights.zarr --method lasso --cardinality one-standard-error --json",
    ),
)
