"""`dkgp demo`."""

from __future__ import annotations

from dkgp.cli.command import JobCommand

__all__ = ["demo"]

demo = JobCommand(
    "demo",
    """Train an exact Gaussian process on Friedman's first problem, from nothing.

    Generates noisy training data and noise-free test data straight into stores, tunes, trains, predicts (variances
    included) and evaluates, each step as its own command would; ends with a table and a plot. Run again, it replaces
    its own results; with --resume it goes on from them, also in the middle of its training. A million samples take most
    of an hour on two cores.
    """,
    (
        "dkgp demo --out demo-output",
        "dkgp demo --out demo-output --quick",
        "dkgp demo --out million --samples 1000000 --resume",
    ),
    must_converge=True,
)
