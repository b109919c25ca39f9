"""The `dkgp` command and its subcommands."""

from __future__ import annotations

import click

from dkgp import __version__
from dkgp.cli.bench import bench
from dkgp.cli.job_commands import JOB_COMMANDS, add_commands
from dkgp.cli.parameters import examples
from dkgp.cli.running import Commands
from dkgp.cli.service import cancel, jobs, logs, resume, serve, status, submit, token, wait


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        "dkgp demo",
        "dkgp fit DATA.csv --target price",
        "dkgp ingest DATA.csv train.zarr --target price --test-fraction 0.1 --test-out test.zarr",
        "dkgp tune train.zarr --out hyper.json",
        "dkgp train train.zarr --out model.zarr --hyper hyper.json",
        "dkgp predict model.zarr test.zarr --out pred.zarr",
        "dkgp evaluate pred.zarr test.zarr",
        "dkgp submit train train.zarr --out model.zarr --hyper hyper.json",
    )
    + "\n\n\b\nExit codes: 0 done, 2 wrong usage, 3 invalid input, 4 not converged or target missed,\n"
    "5 cluster or jobs service lost, 130 interrupted (a checkpoint is saved).",
)
@click.version_option(__version__, prog_name="dkgp")
def main() -> None:
    """Gaussian process regression, classification and kriging for tables that are too large for memory.

    Start with `dkgp fit`, which turns a table into a model and a report. Commands run on this machine or on a Dask
    cluster.
    """


add_commands(main, JOB_COMMANDS)
for command in (bench, serve, submit, jobs, status, logs, cancel, resume, wait, token):
    main.add_command(command)
