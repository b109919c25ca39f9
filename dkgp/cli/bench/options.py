"""Options that benchmarks have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.options import block_size, seed_option

if TYPE_CHECKING:
    from dkgp.bench.problem import BenchProblem

__all__ = [
    "block_option",
    "out_option",
    "problem_from",
    "problem_options",
    "repeats_option",
    "tolerance_option",
    "variables_option",
]

F = TypeVar("F", bound=Callable[..., Any])

PROBLEM_NAMES = ("data", "n", "n_test", "target", "hyper", "subset", "seed")


def problem_options(test_samples: int = 5000) -> Callable[[F], F]:
    """Return the options of the problem that a benchmark solves; `problem_from` takes their values."""
    decorators: list[Callable[[Any], Any]] = [
        click.option(
            "--data",
            default="friedman1",
            show_default=True,
            help="friedman1, a dataset store, or a file that `dkgp ingest` reads, such as an .npz.",
        ),
        click.option("--samples", "--n", "n", type=int, help="Training samples, drawn at random."),
        click.option(
            "--test-samples", "--n-test", "n_test", type=int, default=test_samples, show_default=True, help="At most."
        ),
        click.option("--target", default="y", show_default=True, help="Target of a file."),
        click.option("--hyper", metavar="FILE", help="Hyperparameters.  [default: tuned first]"),
        click.option("--subset", type=int, default=2000, show_default=True, help="Samples to tune on."),
        seed_option,
    ]

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def problem_from(options: dict[str, Any]) -> BenchProblem:
    """Take the problem out of a command's options."""
    from dkgp.bench.problem import BenchProblem

    return BenchProblem(**{name: options.pop(name) for name in PROBLEM_NAMES})


block_option = click.option(
    "--block-size", type=block_size, metavar="M|auto", default="auto", show_default=True, help="Variables in a round."
)
variables_option = click.option(
    "--variables-per-step",
    type=click.IntRange(min=1),
    metavar="V",
    help="Variables that gbcd chooses between two solutions of the block.  [default: a 20th of the block]",
)
tolerance_option = click.option("--tol", "tolerance", type=float, default=1e-4, show_default=True, help="On max |g|.")
repeats_option = click.option(
    "--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds of turns; medians are reported."
)
out_option = click.option("--out", metavar="FILE", help="Write all figures as JSON; replaces an earlier record.")
