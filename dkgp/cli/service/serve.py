"""`dkgp serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand
from dkgp.cli.options import cluster_from, cluster_options, examples
from dkgp.cli.running import Output, execute, output_options
from dkgp.registry import byte_count

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

SECONDS_A_DAY = 86_400.0


@click.command(
    cls=DeclaredCommand,
    epilog=examples(
        "dkgp serve --folder ~/dkgp-jobs",
        "dkgp serve --folder /var/lib/dkgp --host 0.0.0.0 --https --root /data --root s3://bucket/runs",
        "dkgp serve --folder jobs --scheduler tcp://scheduler:8786 --concurrent-jobs 4 --keep-days 30",
    ),
)
@click.option(
    "--folder",
    required=True,
    metavar="DIR",
    help="Where the queue and the jobs' records lie; on a disk of this host, and yours alone to write to.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8780,
    show_default=True,
    help="0: any that is free; the address is printed.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File that holds the token.  [default: $DKGP_SERVICE_TOKEN, else one that is made in --folder, where your own "
    "commands find it by themselves]",
)
@click.option(
    "--metrics-token-file",
    metavar="FILE",
    help="File that holds a token for whoever collects metrics: it reads them and the states of jobs, and changes "
    "nothing. Others' tokens: `dkgp token`.",
)
@click.option("--no-token", is_flag=True, help="Let every user of this machine in; on a loopback address only.")
@click.option(
    "--https",
    is_flag=True,
    help="Speak TLS with a certificate that is made in --folder, which your own commands trust by themselves.",
)
@click.option("--https-cert", metavar="FILE", help="Speak TLS with this certificate (PEM).")
@click.option("--https-key", metavar="FILE", help="Its key (PEM).  [default: in the same file]")
@click.option(
    "--plain-http",
    is_flag=True,
    help="Speak HTTP beyond this machine too, where a proxy or a private network protects token and data.",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="PATH|URL",
    help="Jobs read and write nothing outside these; repeatable.  [default: the working directory]",
)
@click.option(
    "--concurrent-jobs",
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    show_default=True,
    help="Most jobs that run at once; fewer if their memory (--job-memory, `dkgp submit --memory`) would exceed 0.9 of "
    "the machine's. Tokens take turns.",
)
@click.option(
    "--concurrent-jobs-per-token",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of these, jobs that one token submitted.  [default: all]",
)
@click.option(
    "--job-deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=7 * SECONDS_A_DAY,
    metavar="SECONDS",
    help="End a job that has run so long; `dkgp resume` goes on with it.  [default: 604800, a week]",
)
@click.option(
    "--job-memory",
    type=byte_count,
    metavar="SIZE",
    help="End a job whose processes on this machine hold more.  [default: 0.9 of the machine's, or the container's, "
    "shared out among --concurrent-jobs]",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0, min_open=True),
    default=90.0,
    show_default=True,
    metavar="DAYS",
    help="Forget jobs that ended so long ago; what they wrote stays.",
)
@click.option(
    "--max-folder",
    type=byte_count,
    default="10GiB",
    show_default=True,
    metavar="SIZE",
    help="Of records and logs: beyond it the jobs that ended longest ago are forgotten, and where none is left no "
    "others are taken.",
)
@click.option("--max-queued", type=click.IntRange(min=1), default=10_000, show_default=True, help="Jobs that may wait.")
@click.option(
    "--max-queued-per-token",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Jobs that may wait of one token.",
)
@cluster_options
@output_options
def serve(**options: Any) -> None:
    """Take jobs over HTTP, keep them in --folder, and run each in a process of its own.

    What `dkgp submit` sends is checked as the command line is, and survives a restart: a job that ran goes on from its
    checkpoint. --json prints the address as a JSON document once the service listens. A description of the API is at
    /docs, a page to look at the jobs at /.
    """
    output = Output.taken(options)

    def job(reporter: Reporter) -> None:
        from dkgp.commands.reporting.documents import dump
        from dkgp.service.serve import run_serve
        from dkgp.service.settings import ServiceSettings, read_token

        cluster = cluster_from(options)
        metrics = options.pop("metrics_token_file")
        deadline, memory = options.pop("job_deadline"), options.pop("job_memory")
        settings = ServiceSettings(
            token=read_token(options.pop("token_file")),
            metrics_token=None if metrics is None else read_token(metrics),
            roots=tuple(options.pop("roots")),
            job_deadline_seconds=deadline,
            job_memory_bytes=memory,
            keep_seconds=options.pop("keep_days") * SECONDS_A_DAY,
            max_folder_bytes=options.pop("max_folder"),
            cluster=cluster,
            **options,
        )

        def on_listening(document: Document) -> None:
            # At once and alone: whoever started the service reads the address from it.
            if output.as_json:
                click.echo(dump(document, indent=None))

        run_serve(settings, reporter, on_listening=on_listening)

    execute("serve", job, output)
