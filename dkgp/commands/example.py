"""`dkgp example`: write a table of invented houses, of any size, to try the other commands on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.recipe import command
from dkgp.commands.reporting.layout import Figure, sheet_of
from dkgp.commands.reporting.outputs import Document, check_output_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.data.exports import TableBlock, require_table_format, write_table
from dkgp.data.sources.synthetic import house_prices
from dkgp.options import SEED, documented
from dkgp.progress import Progress
from dkgp.registry import Option

TABLE = Option(place="write", argument=True)
SAMPLES = Option(help="Number of rows.", spellings=("--samples", "--n"), least=1)


@command(
    """
    OUT ends in .csv, .csv.gz, .parquet or .nc. Its columns are area, age, lat, lon and price. The price depends on the
    other four, and has noise with a standard deviation of 15 that no column explains. A shorter table with the same
    seed has the first rows of a longer one.
    """,
    "dkgp example houses.csv",
    "dkgp example million.parquet --samples 1000000",
)
@documented
@dataclass(frozen=True)
class ExampleJob:
    """A table to write."""

    out: Annotated[str, TABLE]
    samples: Annotated[int, SAMPLES] = 4000
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0


def run_example(job: ExampleJob, reporter: Reporter) -> Document:
    """Write the table; return its location, size and columns.

    Raises `InputError`: a name that is not a table's. Raises `OutputExistsError`: the file already exists.
    """
    require_table_format(job.out)
    check_output_file(Path(job.out), replace=job.overwrite, option="`out`")
    columns: list[str] = []

    def blocks() -> Iterator[TableBlock]:
        rows = 0
        for block in house_prices(job.samples, seed=job.seed):
            yield block
            rows += len(block["price"])
            columns[:] = block
            progress(Progress("write", rows, job.samples, "rows"))

    with reporter.work("example") as progress:
        write_table(job.out, blocks())
    return {"command": "example", "out": job.out, "n": job.samples, "columns": columns, "target": "price"}


def tables_example(document: Document) -> list[Any]:
    """Return the document as a table."""
    figures = (Figure("table", "{out}"), Figure("samples", "{n:,}"), Figure("columns", "{columns:names}"))
    return [sheet_of("Written", figures, document)]
