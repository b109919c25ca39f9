"""`dkgp train`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["train"]

train = JobCommand(
    "train",
    """Train an exact Gaussian process on the store DATASET.

    Solves (K + s2 I) alpha = y without ever holding the kernel matrix. A run that stops short of its tolerance saves
    its model all the same, says so, and ends with exit code 4; --resume goes on from its checkpoint.
    """,
    (
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --tol 1e-4",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --resume",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot run.png",
    ),
    must_converge=True,
)
