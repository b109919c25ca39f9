"""`dkgp fit`: from a table to an evaluated model and a page that tells of it, in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.columns import column_options, format_options_here, ingest_job, split_options, transform_option
from dkgp.cli.declared import DeclaredCommand, click_type, declared_options
from dkgp.cli.options import examples
from dkgp.cli.running import runs
from dkgp.options import Declared
from dkgp.registry import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.fit import FitJob

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Read a duration, such as 90, 90s, 5min or 2h, in seconds."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :] or "s"
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no duration; expected one such as 90s, 5min or 2h.") from None


def _bytes(text: str) -> int:
    from dkgp.registry import byte_count

    return byte_count(text)


class FitCommand(DeclaredCommand):
    """`dkgp fit`, whose options make a job that may be run elsewhere."""

    def declared(self) -> dict[str, Declared]:
        """Return the options that name places, by name."""
        return {
            "sources": Declared(Option("sources", place="read", multiple=True), ()),
            "out": Declared(Option("out", place="write"), ()),
        }

    def job(self, options: Mapping[str, Any]) -> FitJob:
        """Return the job that options of a command line make."""
        from dkgp.cluster import configured_options
        from dkgp.fit import FitJob

        names = ("out", "seconds", "memory_bytes", "kernel", "auto_columns", "resume", "overwrite")
        transform = options["transform"]
        ingestion = ingest_job(
            transform=None if transform in ("auto", "none") else transform,
            **{name: value for name, value in options.items() if name not in (*names, "transform")},
        )
        of_fit = {name: options[name] for name in names}
        return FitJob(ingestion, auto_transform=transform == "auto", cluster=configured_options({}), **of_fit)


@click.command(
    cls=FitCommand,
    epilog=examples(
        "dkgp fit DATA.csv --target price",
        "dkgp fit DATA.csv --target price --time 5min --memory 8GiB --out prices",
        "dkgp fit DATA.csv --labels species",
        "dkgp fit DATA.csv --target price --categorical cut,color --date sold --drop id --impute median",
        "dkgp fit DATA.csv --target price --resume",
    ),
)
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--out",
    default="fit",
    show_default=True,
    metavar="DIR",
    help="Folder for everything: train.zarr, test.zarr, hyper.json, model.zarr, pred.zarr, report.html.",
)
@click.option(
    "--time",
    "seconds",
    type=click_type(duration),
    default="10min",
    show_default=True,
    metavar="TIME",
    help="What all of it is to take, such as 90s, 5min or 2h: forecasts decide between the exact model and smaller "
    "ones. A run is not broken off where they err.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=click_type(_bytes),
    metavar="SIZE",
    help="What it may hold, such as 8GiB.  [default: what is available]",
)
@click.option(
    "--kernel",
    default="auto",
    show_default=True,
    metavar="TEXT",
    help="Of a target, as for `dkgp tune`; auto compares a few on held-out samples.",
)
@click.option(
    "--auto-columns/--no-auto-columns",
    default=True,
    show_default=True,
    help="Where text, dates or gaps are in the way, take what a look at all columns suggests, and say it.",
)
@column_options
@transform_option(
    "auto",
    "none",
    default="auto",
    help="auto tries both where predictions of training samples show noise that grows with the mean, or skew, and "
    "takes one only where it predicts clearly better.",
)
@split_options
@declared_options(format_options_here)
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random draws.")
@click.option("--resume", is_flag=True, help="Go on with a fit that was stopped or killed; steps that are done stay.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier fit in the folder.")
@runs(must_converge=True)
def fit(reporter: Reporter, **options: Any) -> Document:
    """Fit a Gaussian process to the table SOURCES (files, globs, folders, URLs), or a classifier with --labels.

    Reads the table with a tenth held out, tunes, chooses a model that time and memory allow and says why, trains,
    predicts what was held out with variances, evaluates, and writes a page that tells of it all: report.html, which
    ends with the commands that it stands for.
    """
    from dkgp.fit import run_fit

    command = click.get_current_context().command
    assert isinstance(command, FitCommand)
    return run_fit(command.job(options), reporter)
