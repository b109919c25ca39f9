"""Options of the commands that read tables, `dkgp ingest` and `dkgp fit`: columns, the part held out, formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import click_option
from dkgp.errors import UsageError

if TYPE_CHECKING:
    from dkgp.commands.ingest import IngestJob

F = TypeVar("F", bound=Callable[..., Any])

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
    click.option(
        "--weights", metavar="NAME", help="With --labels, the column of the samples' weights, positive numbers."
    ),
    click.option(
        "--features",
        multiple=True,
        metavar="NAMES",
        help="Feature columns, separated by commas.  [default: all others]",
    ),
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="NAMES",
        help="Columns that identify samples: no features, kept as text, and put into tables of predictions.",
    ),
    click.option(
        "--categorical", multiple=True, metavar="NAMES", help="Columns of categories, each a column of 0 and 1 a level."
    ),
    click.option(
        "--ordinal",
        multiple=True,
        metavar="NAME=LEVELS",
        help="A column whose levels have an order, least first, as in size=small,medium,large: becomes 0, 1, 2.",
    ),
    click.option(
        "--date",
        "dates",
        multiple=True,
        metavar="NAMES",
        help="Columns of dates, as seconds since 1970. The format is found, or named, as in sold:%d.%m.%Y.",
    ),
    click.option(
        "--cyclic",
        multiple=True,
        metavar="NAME=CYCLES",
        help="Of a date also the position in the year, week or day, as sine and cosine, as in sold=year,week.",
    ),
    click.option("--drop", multiple=True, metavar="NAMES", help="Columns that are no features, such as row numbers."),
    click.option(
        "--missing", multiple=True, metavar="TEXTS", help="Texts that stand for a missing value, such as '?'."
    ),
    click.option("--drop-missing", is_flag=True, help="Leave out rows with a missing value."),
    click.option(
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
    click.option("--test-mask", metavar="NAME[:COLUMN]", help="Column of zeros and ones that marks the test samples."),
    click.option(
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
    return click.option(
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

    return [click_option(option) for option, _ in format_options().values()]


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
        drop_gaps=options.pop("drop_missing"),
        impute=options.pop("impute"),
    )
    features, ids = _listed(options.pop("features")) or None, _listed(options.pop("ids"))
    return IngestJob(features=features, ids=ids, table=table, options=of_format, **options)


def _listed(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for group in groups for name in group.split(",") if name.strip())


def _by_name(pairs: Sequence[str], option: str) -> dict[str, tuple[str, ...]]:
    """Values by the name before the equals sign; `UsageError` where there is none."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--{option} is '{pair}'; expected a column's name and values, as in NAME=A,B,C.")
    return {name: _listed([values]) for name, _, values in (pair.partition("=") for pair in pairs)}
