"""`dkgp warm-up`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.options import examples
from dkgp.cli.running import runs

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter


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
