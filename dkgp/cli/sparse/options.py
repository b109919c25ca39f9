"""Options of a sparse model, as decorators by group, and the settings that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from dkgp.cli.declared import click_option, click_type, declared_options
from dkgp.cli.options import together
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.models.sparse.train import SparseSettings

__all__ = ["basis_options", "certificate_options", "greedy_options", "method_options", "sparse_settings"]

F = TypeVar("F", bound=Callable[..., Any])

AUTO: Literal["auto"] = "auto"


def size_or_auto(text: str) -> int | Literal["auto"]:
    """Read a basis size, or "auto"."""
    if text.strip().lower() == AUTO:
        return AUTO
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"{text!r} is no number of basis samples, and not auto.") from None


def _method_option() -> list[click.Option]:
    from dkgp.models.sparse.methods import METHODS

    told = "; ".join(f"{name}: {method.help}" for name, method in METHODS.items())
    return [click_option(Option("method", f"{told}.", default="vfe", choices=tuple(METHODS)))]


def _basis_option() -> list[click.Option]:
    from dkgp.models.sparse.bases import BLIND_BASES
    from dkgp.models.sparse.methods import METHODS

    own: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        own.setdefault(method.basis, []).append(name)
    told = ", ".join(f"{basis} for {', '.join(names)}" for basis, names in own.items())
    text = f"How basis samples are chosen; greedy alone looks at the targets.  [default: {told}]"
    return [click_option(Option("basis", text, choices=(*BLIND_BASES, "greedy")))]


def method_options(function: F) -> F:
    """`--method`."""
    return declared_options(_method_option)(function)


def basis_options(function: F) -> F:
    """The basis: its size, and its samples."""
    return together(
        click.option(
            "--basis-size",
            type=click_type(size_or_auto),
            metavar="M|auto",
            help="Basis samples. auto: as many as --target-distance or --gap takes.  [default: 1000, or all of fewer]",
        ),
        click.option(
            "--largest-basis",
            type=int,
            metavar="M",
            help="Of --basis-size auto: grow up to M samples, whatever the exact model costs.  [default: while it is "
            "cheaper than the exact model]",
        ),
        declared_options(_basis_option),
        click.option(
            "--given-basis",
            metavar="FILE",
            help="Take this basis: a table of inputs in the features' own units, or of sample numbers from 0, in any "
            "format that `dkgp ingest` reads; a dataset store; the basis of another sparse model; or that of --hyper's "
            "file, where `dkgp tune --objective bound` wrote it: the bound is this basis'.",
        ),
    )(function)


def greedy_options(function: F) -> F:
    """A greedy choice: when it ends, and what it spends."""
    return together(
        click.option(
            "--gap",
            type=float,
            help="Smola and Bartlett's duality gap that a greedy basis, or --basis-size auto, is to reach; exit code 4 "
            "where it does not.",
        ),
        click.option(
            "--candidates", type=int, default=59, show_default=True, help="Drawn at random for each greedy choice."
        ),
        click.option(
            "--per-round",
            type=int,
            help="Choices by the same weights, before they are fitted again; 1 is the papers'.  "
            "[default: a fiftieth of the basis]",
        ),
        click.option("--exhaustive", is_flag=True, help="Score every sample at every choice; for small data."),
        click.option(
            "--screen",
            type=int,
            metavar="K",
            help="Score no more than K of each draw in full, the best by a cheaper score; 0: all.  "
            "[default: 2, all of sggp with one choice a round]",
        ),
        click.option(
            "--score-rows",
            type=int,
            metavar="ROWS",
            help="Screen on a fresh random sample of so many rows.  [default: all]",
        ),
    )(function)


def certificate_options(function: F) -> F:
    """The distance to the exact mean that is to be proven."""
    return together(
        click.option(
            "--certify-passes",
            type=float,
            default=0.0,
            show_default=True,
            metavar="PASSES",
            help="Spend passes of block coordinate descent over the kernel's columns on a tighter certificate; of "
            "--basis-size auto, products on it at most.",
        ),
        click.option(
            "--target-distance",
            type=float,
            metavar="SHARE",
            help="Root-mean-square distance to the exact mean over the training samples that is to be proven, in "
            "standard deviations of the targets; exit code 4 where it is not.",
        ),
    )(function)


def sparse_settings(options: dict[str, Any]) -> SparseSettings:
    """Take the settings of method and basis out of a command's options, but for size and gap."""
    from dkgp.models.sparse.train import SparseSettings

    names = SparseSettings.__dataclass_fields__.keys() - {"basis_size", "gap"}
    return SparseSettings(**{name: options.pop(name) for name in names})
