"""Options of `dkgp tune --refine`, as a decorator, and the settings that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import click_type
from dkgp.cli.options import together
from dkgp.registry import byte_count

if TYPE_CHECKING:
    from dkgp.models.refinement.record import RefineSettings

__all__ = ["REFINE_OPTIONS", "refine_options", "refine_settings"]

F = TypeVar("F", bound=Callable[..., Any])

# The option of each setting of a refinement.
REFINE_OPTIONS = {
    "steps": "--refine-steps",
    "probes": "--refine-probes",
    "tolerance": "--refine-tol",
    "max_passes": "--refine-max-passes",
    "halo": "--refine-halo",
    "rank": "--refine-rank",
    "memory_bytes": "--refine-memory",
    "held_out": "--refine-holdout",
}


def refine_options(function: F) -> F:
    """`--refine` and what belongs to it; `refine_settings` takes the values."""
    return together(
        click.option(
            "--refine",
            is_flag=True,
            help="Go on from the subsets' result on all samples: a few steps on stochastic gradients of the full "
            "marginal likelihood. Samples held out of it decide which values are kept.",
        ),
        click.option("--refine-only", is_flag=True, help="Refine the values of --start; no search on subsets."),
        click.option("--refine-steps", type=int, metavar="N", help="Steps at most.  [default: 15]"),
        click.option(
            "--refine-probes",
            type=int,
            metavar="S",
            help="Random vectors behind each gradient: more, smaller errors.  [default: 8]",
        ),
        click.option(
            "--refine-tol",
            type=float,
            metavar="SHARE",
            help="Relative residual that a step's linear systems are solved to.  [default: 0.01]",
        ),
        click.option(
            "--refine-max-passes",
            type=float,
            metavar="PASSES",
            help="Products with the whole kernel matrix that a step may take.  [default: 100]",
        ),
        click.option(
            "--refine-halo",
            type=int,
            metavar="S",
            help="Samples that a leaf of the preconditioner is conditioned on; 0: a low-rank factor alone.  [default: "
            "chosen]",
        ),
        click.option(
            "--refine-rank",
            type=int,
            metavar="R",
            help="Of the preconditioner's low-rank factor.  [default: chosen]",
        ),
        click.option(
            "--refine-memory",
            type=click_type(byte_count),
            metavar="SIZE",
            help="Of the preconditioner.  [default: 1GiB]",
        ),
        click.option(
            "--refine-holdout",
            type=int,
            metavar="N",
            help="Samples held out at most, of a tenth of all; 0: keep the refined values unseen.  [default: 500]",
        ),
    )(function)


def refine_settings(options: dict[str, Any]) -> RefineSettings | None:
    """Take the options of a refinement out of a command's options; None where none was asked for.

    Raises
    ------
    UsageError
        Options that belong to --refine without it.
    InputError
        Values out of range.
    """
    from dkgp.errors import UsageError
    from dkgp.models.refinement.record import RefineSettings

    names = {name: option.removeprefix("--").replace("-", "_") for name, option in REFINE_OPTIONS.items()}
    given = {name: options.pop(key) for name, key in names.items()}
    given = {name: value for name, value in given.items() if value is not None}
    asked = options.pop("refine") or options["refine_only"]
    if not asked:
        if given:
            found = ", ".join(REFINE_OPTIONS[name] for name in given)
            raise UsageError(f"{found} belong{'s' if len(given) == 1 else ''} to --refine, which was not given; add it")
        return None
    return RefineSettings(seed=options["seed"], **given)
