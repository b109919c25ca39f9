"""Commands whose options are written here and not declared by a job: `dkgp ingest`, `dkgp info`, `dkgp warm-up`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.columns import (
    column_options,
    format_options_here,
    headed,
    ingest_job,
    split_options,
    transform_option,
)
from dkgp.cli.declared import DeclaredCommand, declared_options
from dkgp.cli.options import examples
from dkgp.cli.running import Output, print_parts, runs
from dkgp.registry import FURTHER

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter


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
    help="With --like: what to do with a level that the store has not seen.",
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
    """Print the tables; `StoreError` where a store tells of itself what no table has a place for."""
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
    """Compile beforehand all that runs would compile first, and say where it is and how long it took.

    For administrators: of images, of shared environments, of machines that are about to be timed. A run compiles what
    it needs by itself, once, in the background as far as it can. Users' kernel functions are compiled in each process.
    """
    from dkgp.commands.warm_up import WarmUpJob, run_warm_up

    return run_warm_up(WarmUpJob(**options), reporter)
