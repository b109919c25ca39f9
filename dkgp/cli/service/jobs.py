"""`dkgp jobs`, `status`, `logs`, `cancel`, `resume`, `wait`: what is done with jobs once they are submitted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.options import examples
from dkgp.cli.running import Output, execute, output_options, print_parts, runs, until_unread
from dkgp.cli.service.options import client_from, service_options

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.service.client import ServiceClient

# As in `dkgp.service.queue.records`, which is not imported before a command runs.
STATES = ("queued", "running", "done", "not_converged", "failed", "cancelled")

id_argument = click.argument("job_id", metavar="ID")


def exit_code(record: Document) -> int:
    """Return what the command itself would have ended with."""
    from dkgp.service.client import exit_code_of

    return exit_code_of(record)


def show_job(record: Document, output: Output) -> None:
    """Print a job in full."""
    from dkgp.commands.reporting.tables.jobs import job_tables

    print_parts(job_tables(record, verbose=output.verbose))


def _show_jobs(document: Document, output: Output) -> None:
    from dkgp.commands.reporting.tables.jobs import jobs_tables

    print_parts(jobs_tables(document, verbose=output.verbose))


def _show_states(document: Document, output: Output) -> None:
    for record in document["jobs"]:
        _show_state(record, output)


def _show_state(record: Document, _: Output) -> None:
    is_ending = record["cancel_requested"] and record["state"] == "running"
    click.echo(f"{record['id']} {'being cancelled' if is_ending else record['state']}")


@click.command(epilog=examples("dkgp jobs", "dkgp jobs --state running --state queued", "dkgp jobs --limit 5 --json"))
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Those in this state; repeatable.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@service_options
@runs(show=_show_jobs)
def jobs(reporter: Reporter, states: tuple[str, ...], limit: int, **options: Any) -> Document:
    """List the service's jobs, the newest first, and how many there are in each state."""
    with client_from(options, reporter) as client:
        return client.jobs(states=states, limit=limit)


@click.command(epilog=examples("dkgp status 3f2a90c1d4e5", "dkgp status 3f2a --json"))
@id_argument
@service_options
@runs(show=show_job)
def status(reporter: Reporter, job_id: str, **options: Any) -> Document:
    """Show the job ID: its state, progress and options, and its result or error. The first digits of ID are enough."""
    with client_from(options, reporter) as client:
        return client.job(client.find(job_id))


@click.command(epilog=examples("dkgp logs 3f2a", "dkgp logs -f 3f2a", "dkgp logs --json 3f2a > events.jsonl"))
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, over restarts of the service.")
@id_argument
@service_options
@output_options
def logs(follow: bool, job_id: str, **options: Any) -> None:
    """Print what the job ID has said: states, notes, warnings, progress, its log.

    With --json one JSON document a line for each event, just as the service keeps them; with --quiet no progress.
    """
    output = Output.taken(options)

    def job(reporter: Reporter) -> None:
        with client_from(options, reporter, patient=follow) as client:
            print_events(client, client.find(job_id), output, follow=follow)

    execute("logs", job, output)


@click.command(epilog=examples("dkgp cancel 3f2a"))
@id_argument
@service_options
@runs(show=_show_state)
def cancel(reporter: Reporter, job_id: str, **options: Any) -> Document:
    """End the job ID: at once where it is queued; where it runs, it saves a checkpoint first and can be resumed."""
    with client_from(options, reporter) as client:
        return client.cancel(client.find(job_id))


@click.command(epilog=examples("dkgp resume 3f2a"))
@id_argument
@service_options
@runs(show=_show_state)
def resume(reporter: Reporter, job_id: str, **options: Any) -> Document:
    """Put the job ID, which failed, was cancelled or stopped short, back into the queue; it goes on where it was."""
    with client_from(options, reporter) as client:
        return client.resume(client.find(job_id))


@click.command(epilog=examples("dkgp wait 3f2a", "dkgp wait 3f2a 77c0 --timeout 3600", "dkgp wait $(dkgp submit ...)"))
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up after so long, with exit code 124; the jobs go on.",
)
@service_options
@runs(show=_show_states, exit_code=lambda document: int(document["exit_code"]))
def wait(reporter: Reporter, job_ids: tuple[str, ...], timeout: float | None, **options: Any) -> Document:
    """Wait until the jobs ID... have ended; leave with the job's exit code, of several the first that is not 0.

    A cancelled job's exit code is 130.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with client_from(options, reporter, patient=True) as client:
        records = [client.wait(full_id, until=until) for full_id in [client.find(job_id) for job_id in job_ids]]
    codes = [exit_code(record) for record in records]
    return {"command": "wait", "exit_code": next((code for code in codes if code), 0), "jobs": records}


def print_events(client: ServiceClient, job_id: str, output: Output, *, follow: bool, err: bool = False) -> None:
    """Print a job's events, so far or until it ends, each as a line of text or as a JSON document.

    Ctrl-C is an `InterruptedRunError`: the job goes on.
    """
    from dkgp.commands.reporting.documents import dump
    from dkgp.commands.reporting.tables.jobs import event_line
    from dkgp.errors import InterruptedRunError

    try:
        with until_unread():
            for event in client.follow(job_id) if follow else client.events(job_id):
                if output.quiet and event["kind"] == "progress":
                    continue
                line = dump(event, indent=None) if output.as_json else event_line(event, verbose=output.verbose)
                if line is not None:
                    click.echo(line, err=err)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"no longer following; the job {job_id} goes on. `dkgp logs -f {job_id}` follows it again, "
            f"`dkgp cancel {job_id}` ends it"
        ) from None
