"""`dkgp sparse`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["sparse"]

sparse = JobCommand(
    "sparse",
    """Train a sparse Gaussian process on the store DATASET, with a proven distance to the exact one.

    The model predicts without the training set. Time is in proportion to n m², memory to m². Where a gap or a distance
    was asked for and is not met, the model is saved all the same, says so, and the command ends with exit code 4.
    """,
    (
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --gap 0.025 --plot basis.png",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --as-in-the-paper",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis k-means --certify-passes 3",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --basis-size auto --target-distance 0.01",
        "dkgp sparse train.zarr --out sparse.zarr --hyper hyper.json --method sggp --resume",
    ),
    must_converge=True,
)
