"""Commands whose options are written here: `dkgp ingest` and `dkgp fit`, which read tables, `info` and `warm-up`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.parameters import DeclaredCommand, Headed, click_option, click_type, declared_options, examples
from dkgp.cli.running import Output, print_parts, runs
from dkgp.commands.recipe import RECIPES
from dkgp.errors import UsageError
from dkgp.options import Declared
from dkgp.registry import FURTHER, Group, Option, byte_count

if TYPE_CHECKING:
    from dkgp.commands.ingest import IngestJob
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.fit import FitJob

F = TypeVar("F", bound=Callable[..., Any])

# Conversion of columns into features.
COLUMNS = Group("Treatment of columns")


def headed(group: Group, *names: str, **settings: Any) -> Callable[[F], F]:
    """Return a decorator that adds an option under a group's heading."""
    return click.option(*names, cls=Headed, group=group, **settings)


_COLUMNS = (
    click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="NAME",
        help="Target column by name, or by index from 0 (negative from the end); an array's name, or NAME:COLUMN, for "
        "sources of named arrays. May be given several times. Without one: inputs to be predicted at.",
    ),
    click.option(
        "--labels",
        metavar="NAME",
        help="Instead of a target, the column of labels to classify by: text or numbers, two classes or more.",
    ),
    headed(
        FURTHER,
        "--weights",
        metavar="NAME",
        help="With --labels, the column of the samples' weights, positive numbers.",
    ),
    click.option(
        "--noise-column",
        metavar="NAME",
        help="Column of the known noise of each sample's target, as a variance in its units squared.",
    ),
    click.option("--noise-std-column", metavar="NAME", help="The same, as a standard deviation."),
    click.option(
        "--features",
        multiple=True,
        metavar="NAMES",
        help="Feature columns, separated by commas; a name with a comma in double quotes.  [default: all others]",
    ),
    headed(
        COLUMNS,
        "--id",
        "ids",
        multiple=True,
        metavar="NAMES",
        help="Columns that identify samples: no features, kept as text, and put into tables of predictions.",
    ),
    headed(
        COLUMNS,
        "--categorical",
        multiple=True,
        metavar="NAMES",
        help="Columns of categories, each a column of 0 and 1 a level.",
    ),
    headed(
        COLUMNS,
        "--ordinal",
        multiple=True,
        metavar="NAME=LEVELS",
        help="A column whose levels have an order, least first, as in size=small,medium,large: becomes 0, 1, 2.",
    ),
    headed(
        COLUMNS,
        "--date",
        "dates",
        multiple=True,
        metavar="NAMES",
        help="Columns of dates, as seconds since 1970. The format is found, or named, as in sold:%d.%m.%Y.",
    ),
    headed(
        COLUMNS,
        "--cyclic",
        multiple=True,
        metavar="NAME=CYCLES",
        help="Of a date also the position in the year, week or day, as sine and cosine, as in sold=year,week.",
    ),
    headed(
        COLUMNS, "--drop", multiple=True, metavar="NAMES", help="Columns that are no features, such as row numbers."
    ),
    headed(
        COLUMNS,
        "--number",
        "numbers",
        multiple=True,
        metavar="NAMES",
        help="Columns of numbers with a unit, a currency or a per cent sign, which is left off: '3.5 kg', '$1.20', "
        "'12 %'; (1.5) is -1.5.",
    ),
    headed(
        COLUMNS,
        "--decimal",
        metavar="MARK",
        help="The decimal mark of all numbers, a point or a comma.  [default: a point]",
    ),
    headed(
        COLUMNS,
        "--thousands",
        metavar="MARK",
        help="The mark between the thousands of all numbers: ',', '.', ' ' or an apostrophe.  [default: none]",
    ),
    headed(
        COLUMNS, "--missing", multiple=True, metavar="TEXTS", help="Texts that stand for a missing value, such as '?'."
    ),
    headed(
        COLUMNS,
        "--not-missing",
        multiple=True,
        metavar="TEXTS",
        help="Texts that are values of labels and categories although they read like a missing one, such as NA.",
    ),
    headed(COLUMNS, "--drop-missing", is_flag=True, help="Leave out rows with a missing value."),
    headed(
        COLUMNS,
        "--impute",
        type=click.Choice(["median"]),
        help="Fill missing values of features in; a category gets a level more.",
    ),
)
_TRANSFORM = (
    "Model the logarithm of the target, or its power transform after Yeo and Johnson, whose lambda is found. "
    "Evaluations come back in the target's own units."
)
_SPLIT = (
    click.option("--test-fraction", type=float, help="Share of the samples, drawn at random, for the test store."),
    headed(
        FURTHER, "--test-mask", metavar="NAME[:COLUMN]", help="Column of zeros and ones that marks the test samples."
    ),
    headed(
        FURTHER,
        "--stratify/--no-stratify",
        default=None,
        help="Whether --test-fraction takes the same share of every class.  [default: with --labels]",
    ),
)


def column_options(command: F) -> F:
    """Return a command with the options of columns: targets, labels, features, and uses of text, dates and gaps."""
    return _with(command, _COLUMNS)


def transform_option(*further: str, default: str | None = None, help: str = "") -> Callable[[F], F]:
    """Return a decorator that adds the option of the target's transform, with `further` choices and their `help`."""
    return headed(
        COLUMNS,
        "--transform",
        type=click.Choice([*further, "log", "yeo-johnson"]),
        default=default,
        show_default=default is not None,
        help=f"{_TRANSFORM} {help}".rstrip(),
    )


def split_options(command: F) -> F:
    """Return a command with the options of the held-out part."""
    return _with(command, _SPLIT)


def _with(command: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def format_options_here() -> list[click.Option]:
    """Return the options of the sources' formats."""
    from dkgp.data.sources.formats import format_options

    return [click_option(replace(option, group=FURTHER)) for option, _ in format_options().values()]


def ingest_job(**options: Any) -> IngestJob:
    """Return the ingestion job for the options of a command line."""
    from dkgp.commands.ingest import IngestJob
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
        not_missing=_listed(options.pop("not_missing")),
        drop_gaps=options.pop("drop_missing"),
        impute=options.pop("impute"),
        numbers=_listed(options.pop("numbers")),
        decimal=options.pop("decimal"),
        thousands=options.pop("thousands"),
    )
    features, ids = _listed(options.pop("features")) or None, _listed(options.pop("ids"))
    return IngestJob(features=features, ids=ids, table=table, options=of_format, **options)


def _listed(groups: Sequence[str]) -> tuple[str, ...]:
    from dkgp.data.types import split_names

    return tuple(name for group in groups for name in split_names(group))


def _by_name(pairs: Sequence[str], option: str) -> dict[str, tuple[str, ...]]:
    """Return values by the name before the equals sign; raise `UsageError` if a value has no equals sign."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--{option} is '{pair}'; expected a column's name and values, as in NAME=A,B,C.")
    return {name: _listed([values]) for name, _, values in (pair.partition("=") for pair in pairs)}


# ------------------------------------------------------------------------------------------------- dkgp fit

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Read a duration, such as 90, 90s, 5min or 2h; return seconds."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :] or "s"
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no duration; expected one such as 90s, 5min or 2h.") from None


class FitCommand(DeclaredCommand):
    """`dkgp fit`; its options make a job, which may run elsewhere."""

    def declared(self) -> dict[str, Declared]:
        """Return the options that name files or stores, by name."""
        return {
            "sources": Declared(Option("sources", place="read", multiple=True), ()),
            "out": Declared(Option("out", place="write"), ()),
        }

    def job(self, options: Mapping[str, Any]) -> FitJob:
        """Return the job for the options of a command line."""
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


@click.command(cls=FitCommand, help=RECIPES["fit"].help, epilog=examples(*RECIPES["fit"].examples))
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
    help="Time limit for all steps, such as 90s, 5min or 2h: forecasts decide between the exact model and smaller "
    "ones. A run is not broken off where they err.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=click_type(byte_count),
    metavar="SIZE",
    help="Memory limit, such as 8GiB.  [default: available memory]",
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
    help="If the table has text, dates or gaps, use the options that a survey of all columns suggests, and print them.",
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
    """Run `dkgp fit`."""
    command = click.get_current_context().command
    assert isinstance(command, FitCommand)
    return RECIPES["fit"].run(command.job(options), reporter)


# ----------------------------------------------------------------------- dkgp ingest, dkgp info, dkgp warm-up


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
@column_options
@transform_option()
@headed(
    FURTHER,
    "--scale",
    type=click.Choice(["each", "common"]),
    default="each",
    show_default=True,
    help="Divide every feature by its own standard deviation (each), or all by the largest of these (common), which "
    "keeps distances between samples: for coordinates in one unit and a kernel with one length scale.",
)
@headed(
    FURTHER,
    "--like",
    metavar="STORE",
    help="Encode columns as those of this dataset or model store were, for new data to predict at or to evaluate on.",
)
@headed(
    FURTHER,
    "--unseen",
    type=click.Choice(["refuse", "zeros"]),
    default="refuse",
    show_default=True,
    help="With --like: treatment of a level that the store does not have.",
)
@split_options
@click.option("--test-out", metavar="STORE", help="Where the test samples go.")
@declared_options(format_options_here)
@headed(FURTHER, "--chunk-rows", type=int, help="Rows of a chunk.  [default: about 8192]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random draws.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@runs()
def ingest(reporter: Reporter, **options: Any) -> Document:
    """Read SOURCES (files, globs, folders, URLs) into the dataset store OUT.

    {formats} are recognised by content and read in bounded memory. All samples are checked before anything is written.
    """
    from dkgp.commands.ingest import run_ingest

    return run_ingest(ingest_job(**options), reporter)


def _show_info(document: Document, output: Output) -> None:
    """Print the tables; raise `StoreError` if a store's own description does not fit into any table."""
    from dkgp.commands.reporting.tables import tables
    from dkgp.data.stores.manifest import described_whole

    with described_whole(str(document.get("location")), "--json shows what it tells as it is"):
        print_parts(tables(document, verbose=output.verbose))


@click.command(epilog=examples("dkgp info model.zarr --json", "dkgp info"))
@click.argument("location", required=False)
@runs(show=_show_info)
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
    """Compile all code that runs would otherwise compile first; report the location and the duration.

    This is for administrators of images, of shared environments, and of machines before timing. Without it, a run
    compiles the code it needs once, as far as possible in the background. Users' kernel functions are compiled in each
    process.
    """
    from dkgp.commands.warm_up import WarmUpJob, run_warm_up

    return run_warm_up(WarmUpJob(**options), reporter)
