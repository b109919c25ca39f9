"""`dkgp demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand, declared_options
from dkgp.cli.options import (
    cluster_from,
    cluster_options,
    examples,
    limit_options,
    overwrite_option,
    seed_option,
    solver_and_its_options,
)
from dkgp.cli.running import runs

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["demo"]


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp demo --out demo-output",
        "dkgp demo --out demo-output --quick",
        "dkgp demo --out million --samples 1000000 --resume",
    ),
)
@click.option("--out", default="demo-output", show_default=True, metavar="DIR", help="Folder for everything.")
@click.option("--samples", "--n", "n", type=int, default=100_000, show_default=True, help="Training samples.")
@click.option("--test-samples", "--n-test", "n_test", type=int, default=5000, show_default=True, help="Test samples.")
@click.option("--quick", is_flag=True, help="5,000 training samples: seconds instead of minutes.")
@declared_options(solver_and_its_options)
@limit_options
@cluster_options
@seed_option
@overwrite_option
@click.option("--resume", is_flag=True, help="Go on with a demo that was stopped or killed.")
@runs(must_converge=True)
def demo(reporter: Reporter, **options: Any) -> Document:
    """Train an exact Gaussian process on Friedman's first problem, from nothing.

    Generates noisy training data and noise-free test data straight into stores, tunes, trains, predicts (variances
    included) and evaluates, each step as its own command would; ends with a table and a plot. Run again, it replaces
    its own results; with --resume it goes on from them, also in the middle of its training. A million samples take most
    of an hour on two cores.
    """
    from dkgp.commands.demo import DemoJob, run_demo
    from dkgp.commands.solver_options import SolverOptions

    cluster = cluster_from(options)
    names = SolverOptions.option_types().keys() & options.keys() - {"seed"}
    solver = SolverOptions(**{name: options.pop(name) for name in names})
    return run_demo(DemoJob(solver=solver, cluster=cluster, **options), reporter)
