"""`dkgp classify`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["classify"]

classify = JobCommand(
    "classify",
    """Train a classifier on the labels of the store DATASET.

    A fixed-size least-squares support vector machine finds kernel, noise and prototypes by cross-validation, in a few
    passes over the data, and predicts without them. An exact one is solved for on all samples, so that its labels can
    be certified. Either gives probabilities calibrated on samples that it was not fitted to.

    Kernel logistic regression and Gaussian process classification have probabilities by themselves, on all samples each
    within a proven interval, or on a basis of some of them. Without --hyper their kernel is found by the evidence of a
    subset's labels.

    A run that stops short of its tolerance saves its model all the same, says so, and ends with exit code 4. --resume
    goes on with what a run that was interrupted or killed has saved, to the same bits.
    """,
    (
        "dkgp classify train.zarr --out model.zarr",
        "dkgp classify train.zarr --out model.zarr --class-weight balanced --plot path.png",
        "dkgp classify train.zarr --out model.zarr --as-in-the-paper",
        "dkgp classify train.zarr --out model.zarr --pool 3000 --prototypes entropy --search annealing --isotropic",
        "dkgp classify train.zarr --out model.zarr --method exact --hyper hyper.json --resume",
        "dkgp classify train.zarr --out model.zarr --method logistic --plot gap.png",
        "dkgp classify train.zarr --out model.zarr --method gp --basis-size 1000 --link probit",
    ),
    must_converge=True,
)
