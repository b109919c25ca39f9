"""Commands whose options are written here and not declared by a job: `dkgp ingest`, `dkgp info`, `dkgp warm-up`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand, click_option, declared_options
from dkgp.cli.options import examples
from dkgp.cli.running import runs
from dkgp.errors import UsageError

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter


def _format_options() -> list[click.Option]:
    from dkgp.data.sources.formats import format_options

    return [click_option(option) for option, _ in format_options().values()]


def _formats() -> dict[str, str]:
    from dkgp.data.sources.formats import formats

    *most, last = (format.name for format in formats())
    return {"formats": f"{', '.join(most)} and {last}"}


@click.command(
    cls=DeclaredCommand,
    described=_formats,
    epilog=examples(
        "dkgp ingest DATA.csv train.zarr --target price --test-fraction 0.1 --test-out test.zarr",
        "dkgp ingest 'part-*.parquet' train.zarr --target 0 --features age,height,weight",
        "dkgp ingest DATA.csv train.zarr --labels species --test-fraction 0.2 --test-out test.zarr",
        "dkgp ingest DATA.npz train.zarr --target y --test-mask test_mask:0 --test-out test.zarr",
        "dkgp ingest DATA.csv train.zarr --target price --categorical cut,color --date sold --drop id --impute median",
        "dkgp ingest NEW.csv new.zarr --like train.zarr",
    ),
)
@click.argument("sources", nargs=-1, required=True)
@click.argument("out")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="Target column by name, or by index from 0 (negative from the end); an array's name, or NAME:COLUMN, for "
    "sources of named arrays. May be given several times. Without one: inputs to be predicted at.",
)
@click.option(
    "--labels",
    metavar="NAME",
    help="Instead of a target, the column of labels to classify by: text or numbers, two classes or more.",
)
@click.option("--weights", metavar="NAME", help="With --labels, the column of the samples' weights, positive numbers.")
@click.option(
    "--features", multiple=True, metavar="NAMES", help="Feature columns, separated by commas.  [default: all others]"
)
@click.option(
    "--categorical", multiple=True, metavar="NAMES", help="Columns of categories, each a column of 0 and 1 a level."
)
@click.option(
    "--ordinal",
    multiple=True,
    metavar="NAME=LEVELS",
    help="A column whose levels have an order, least first, as in size=small,medium,large: becomes 0, 1, 2.",
)
@click.option(
    "--date",
    "dates",
    multiple=True,
    metavar="NAMES",
    help="Columns of dates, as seconds since 1970. The format is found, or named, as in sold:%d.%m.%Y.",
)
@click.option(
    "--cyclic",
    multiple=True,
    metavar="NAME=CYCLES",
    help="Of a date also the position in the year, week or day, as sine and cosine, as in sold=year,week.",
)
@click.option("--drop", multiple=True, metavar="NAMES", help="Columns that are no features, such as row numbers.")
@click.option("--missing", multiple=True, metavar="TEXTS", help="Texts that stand for a missing value, such as '?'.")
@click.option("--drop-missing", is_flag=True, help="Leave out rows with a missing value.")
@click.option(
    "--impute", type=click.Choice(["median"]), help="Fill missing values of features in; a category gets a level more."
)
@click.option(
    "--like", metavar="STORE", help="Encode columns as those of this dataset or model store were, for new data."
)
@click.option(
    "--unseen",
    type=click.Choice(["refuse", "zeros"]),
    default="refuse",
    show_default=True,
    help="With --like: what to do with a level that the store has not seen.",
)
@click.option(
    "--transform",
    type=click.Choice(["log", "yeo-johnson"]),
    help="Model the logarithm of the target, or its power transform after Yeo and Johnson, whose lambda is found. "
    "Evaluations come back in the target's own units.",
)
@click.option("--test-fraction", type=float, help="Share of the samples, drawn at random, for the test store.")
@click.option("--test-mask", metavar="NAME[:COLUMN]", help="Column of zeros and ones that marks the test samples.")
@click.option(
    "--stratify/--no-stratify",
    default=None,
    help="Whether --test-fraction takes the same share of every class.  [default: with --labels]",
)
@click.option("--test-out", metavar="STORE", help="Where the test samples go.")
@declared_options(_format_options)
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: about 8192]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random draws.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@runs()
def ingest(reporter: Reporter, **options: Any) -> Document:
    """Read SOURCES (files, globs, folders, URLs) into the dataset store OUT.

    {formats} are recognised by content and read in bounded memory. All samples are checked before anything is written.
    """
    from dkgp.commands.ingest import IngestJob, run_ingest
    from dkgp.data import TableOptions
    from dkgp.data.sources.formats import format_options

    of_format = {name: options.pop(name) for name in format_options()}
    table = TableOptions(
        categorical=_listed(options.pop("categorical")),
        ordinal=_by_name(options.pop("ordinal"), "ordinal"),
        dates=_listed(options.pop("dates")),
        cyclic=_by_name(options.pop("cyclic"), "cyclic"),
        drop=_listed(options.pop("drop")),
        gap_texts=_listed(options.pop("missing")),
        drop_gaps=options.pop("drop_missing"),
        impute=options.pop("impute"),
    )
    features = _listed(options.pop("features")) or None
    return run_ingest(IngestJob(features=features, table=table, options=of_format, **options), reporter)


def _listed(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for group in groups for name in group.split(",") if name.strip())


def _by_name(pairs: Sequence[str], option: str) -> dict[str, tuple[str, ...]]:
    """Values by the name before the equals sign; `UsageError` where there is none."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--{option} is '{pair}'; expected a column's name and values, as in NAME=A,B,C.")
    return {name: _listed([values]) for name, _, values in (pair.partition("=") for pair in pairs)}


@click.command(epilog=examples("dkgp info model.zarr --json", "dkgp info"))
@click.argument("location", required=False)
@runs()
def info(reporter: Reporter, location: str | None) -> Document:
    """Describe a store, checkpoint folder or hyperparameter file at LOCATION; without one, this installation."""
    from dkgp.commands.info import InfoJob, run_info

    return run_info(InfoJob(location), reporter)


@click.command(
    "warm-up",
    epilog=examples(
        "dkgp warm-up",
        "dkgp warm-up --into /opt/dkgp/compiled --target x86-64-v3",
    ),
)
@click.option(
    "--into",
    metavar="FOLDER",
    help="A folder to be read only, by processes in whose environment DKGP_COMPILED=FOLDER.  [default: the cache that "
    "runs of this user use: NUMBA_CACHE_DIR, or beside dkgp's files]",
)
@click.option(
    "--target",
    type=click.Choice(["host", "x86-64-v3"]),
    default="host",
    show_default=True,
    help="Processor to compile for: this machine's own, or any with AVX2 and fused multiply-add. With --into.",
)
@click.option("--processes", type=click.IntRange(1), help="How many compile at the same time.  [default: one a core]")
@runs()
def warm_up(reporter: Reporter, **options: Any) -> Document:
    """Compile beforehand all that runs would compile first, and say where it is and how long it took.

    For administrators: of images, of shared environments, of machines that are about to be timed. A run compiles what
    it needs by itself, once, in the background as far as it can. Users' kernel functions are compiled in each process.
    """
    from dkgp.commands.warm_up import WarmUpJob, run_warm_up

    return run_warm_up(WarmUpJob(**options), reporter)
