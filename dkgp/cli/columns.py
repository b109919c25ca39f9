"""Options of the commands that read tables, `dkgp ingest` and `dkgp fit`: columns, the part held out, formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import Headed, click_option
from dkgp.errors import UsageError
from dkgp.registry import FURTHER, Group

if TYPE_CHECKING:
    from dkgp.commands.ingest import IngestJob

F = TypeVar("F", bound=Callable[..., Any])

# What columns become before they are features.
COLUMNS = Group("What columns become")


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
    """Add the options of columns: targets, labels, features, and what text, dates and gaps become; a decorator."""
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
    """Add the options of the part that is held out; a decorator."""
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
    """Return the ingestion that options of a command line stand for."""
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
    """Values by the name before the equals sign; `UsageError` where there is none."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--{option} is '{pair}'; expected a column's name and values, as in NAME=A,B,C.")
    return {name: _listed([values]) for name, _, values in (pair.partition("=") for pair in pairs)}
