"""`dkgp pursue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand, click_option, click_type, declared_options
from dkgp.cli.options import (
    cluster_from,
    cluster_options,
    examples,
    memory_limit_option,
    overwrite_option,
    seed_option,
    stop_rule,
)
from dkgp.cli.running import runs
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

__all__ = ["pursue"]

RULES = ("tenth", "best", "one-standard-error")


def _method_option() -> list[click.Option]:
    from dkgp.models.linear.paths import METHODS

    told = "; ".join(f"{name}: {text}" for name, text in METHODS.items())
    return [click_option(Option("method", f"{told}.", default="scdp", choices=tuple(METHODS)))]


def number_or_rule(text: str) -> int | str:
    """Read a number of weights, or a rule that chooses it."""
    if text in RULES:
        return text
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"{text!r} is no number of weights, and not {', '.join(RULES)}.") from None


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp pursue train.zarr --out weights.zarr",
        "dkgp pursue train.zarr --out weights.zarr --cardinality 5 --plot path.png",
        "dkgp pursue train.zarr --out weights.zarr --method lasso --cardinality one-standard-error --json",
    ),
)
@click.argument("dataset")
@click.option("--out", required=True, metavar="STORE", help="Where the model goes.")
@declared_options(_method_option)
@click.option(
    "--cardinality",
    type=click_type(number_or_rule),
    default="tenth",
    show_default=True,
    metavar="K|" + "|".join(RULES),
    help="Nonzero weights of each target. best: those of the least error on samples that were left out; tenth: the "
    "fewest within a tenth of the folds' standard deviation of it; one-standard-error: the fewest within that.",
)
@click.option("--folds", type=int, default=10, show_default=True, help="Of cross-validation.")
@click.option(
    "--held-out",
    type=float,
    metavar="SHARE",
    help="Leave out this share of the samples once, instead, and take the least error.",
)
@click.option("--longest", type=int, metavar="K", help="Features of a path at most.  [default: all, or 100 of more]")
@click.option(
    "--stop",
    type=click_type(stop_rule),
    default="10,0.001",
    show_default=True,
    metavar="STEPS,SHARE|none",
    help="A path ends where so many steps improved the error on samples that were left out by less than this share.",
)
@click.option(
    "--candidates",
    type=int,
    metavar="RHO",
    help="Of scdp: look at so many features, drawn at random, in each step; 59 in the paper.  [default: all]",
)
@memory_limit_option
@click.option("--plot", metavar="FILE", help="Draw weights and errors against their number into a .png, .pdf or .svg.")
@cluster_options
@seed_option
@overwrite_option
@runs()
def pursue(reporter: Reporter, **options: Any) -> Document:
    """Find a linear regression with few nonzero weights on the store DATASET, and the whole path to it.

    Features and targets are standardised; weights are told in their own units. One pass over the samples brings all
    sums that paths and cross-validation take: of d features and F folds some F d² numbers. Where these do not fit, a
    --cardinality that is a number takes a pass over the samples a feature. `dkgp predict` and `dkgp evaluate` take the
    model as any other; its means have no bounds.
    """
    from dkgp.commands.pursue import PursueJob, run_pursue
    from dkgp.models.linear.train import LinearSettings

    cluster = cluster_from(options)
    settings = LinearSettings(**{name: options.pop(name) for name in LinearSettings.__dataclass_fields__})
    return run_pursue(PursueJob(settings=settings, cluster=cluster, **options), reporter)
