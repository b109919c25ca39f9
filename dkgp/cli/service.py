"""The commands of the jobs service: `dkgp serve`, `submit`, `token`, and the commands that show or control jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dkgp.cli.job_commands import JOB_COMMANDS, JobCommand, add_commands
from dkgp.cli.parameters import DeclaredCommand, cluster_from, cluster_options, declared_options, examples
from dkgp.cli.running import (
    Commands,
    Output,
    execute,
    output_options,
    print_parts,
    runs,
    until_unread,
)
from dkgp.registry import Group, byte_count

if TYPE_CHECKING:
    from dkgp.commands.recipe import Recipe
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.service.client import ServiceClient

F = TypeVar("F", bound=Callable[..., Any])

SERVICE_NAMES = ("service", "token_file", "retry")
DEFAULT_URL = "http://127.0.0.1:8780"

CALL_RETRY_SECONDS = 15.0
# A service may be unavailable for minutes, for example during an update of its machine, while a user waits for a job.
FOLLOW_RETRY_SECONDS = 600.0


def service_options(function: F) -> F:
    """Add the options for the service's address and access token; `client_from` takes the values."""
    options = (
        click.option(
            "--service",
            metavar="URL",
            envvar="DKGP_SERVICE_URL",
            show_envvar=True,
            help=f"URL of the jobs service.  [default: the one that you run on this machine, else {DEFAULT_URL}]",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            help="File that contains the service's token.  [default: $DKGP_SERVICE_TOKEN, else the token of your own "
            "service]",
        ),
        click.option(
            "--retry",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="How long to retry if the service does not answer.  [default: 15; 600 when waiting for a job]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def client_from(options: dict[str, Any], reporter: Reporter, *, patient: bool = False) -> ServiceClient:
    """Take the service's options out of a command's options; return a client.

    A `patient` client, for a command that waits for a job, retries longer while the service does not answer.
    """
    from dkgp.service.announcements import find_service
    from dkgp.service.client import ServiceClient
    from dkgp.service.settings import read_token

    values = {name: options.pop(name) for name in SERVICE_NAMES}
    retry = values["retry"]
    if retry is None:
        retry = FOLLOW_RETRY_SECONDS if patient else CALL_RETRY_SECONDS
    url, token = values["service"], read_token(values["token_file"])
    announced = None
    if token is None:
        announced = find_service(url or DEFAULT_URL) or (find_service(None) if url is None else None)
    return ServiceClient(
        url or DEFAULT_URL if announced is None else announced.url,
        token=token if announced is None else announced.token(),
        retry_seconds=retry,
        tell=reporter.warn,
        is_there=None if announced is None else announced.is_there,
        authority=None if announced is None else announced.authority,
    )


# --------------------------------------------------------------------------------------------------- jobs

# Copied from `dkgp.service.queue.records`, which is not imported before a command runs.
STATES = ("queued", "running", "done", "not_converged", "failed", "cancelled")

id_argument = click.argument("job_id", metavar="ID")


def exit_code(record: Document) -> int:
    """Return the exit code that the command itself would have had."""
    from dkgp.service.client import exit_code_of

    return exit_code_of(record)


def show_job(record: Document, output: Output) -> None:
    """Print a job in full."""
    from dkgp.commands.recipe import RECIPES
    from dkgp.commands.reporting.jobs import job_tables

    recipe = RECIPES[record["command"]]
    layout = recipe.layout if record.get("document") else None
    print_parts(job_tables(record, verbose=output.verbose, layout=layout, flags=recipe.flags))


def _show_jobs(document: Document, output: Output) -> None:
    from dkgp.commands.reporting.jobs import jobs_tables

    print_parts(jobs_tables(document, verbose=output.verbose))


def _show_states(document: Document, output: Output) -> None:
    for record in document["jobs"]:
        _show_state(record, output)


def _show_state(record: Document, _: Output) -> None:
    is_ending = record["cancel_requested"] and record["state"] == "running"
    click.echo(f"{record['id']} {'being cancelled' if is_ending else record['state']}")


@click.command(epilog=examples("dkgp jobs", "dkgp jobs --state running --state queued", "dkgp jobs --limit 5 --json"))
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="List only jobs in this state. May be repeated."
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Largest number of jobs to list."
)
@service_options
@runs(show=_show_jobs)
def jobs(reporter: Reporter, states: tuple[str, ...], limit: int, **options: Any) -> Document:
    """List the jobs of the service, the newest first."""
    with client_from(options, reporter) as client:
        return client.jobs(states=states, limit=limit)


@click.command(epilog=examples("dkgp status 3f2a90c1d4e5", "dkgp status 3f2a --json"))
@id_argument
@service_options
@runs(show=show_job)
def status(reporter: Reporter, job_id: str, **options: Any) -> Document:
    """Show state, progress, options and result of the job ID.

    The first digits of ID are enough.
    """
    with client_from(options, reporter) as client:
        return client.job(client.find(job_id))


@click.command(epilog=examples("dkgp logs 3f2a", "dkgp logs -f 3f2a", "dkgp logs --json 3f2a > events.jsonl"))
@click.option("-f", "--follow", is_flag=True, help="Continue until the job ends, even if the service restarts.")
@id_argument
@service_options
@output_options
def logs(follow: bool, job_id: str, **options: Any) -> None:
    """Print the messages of the job ID.

    These are its states, notes, warnings, progress and log. With --json, each message is one line of JSON. --quiet
    omits the progress.
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
    """Cancel the job ID.

    A running job first saves a checkpoint; `dkgp resume` continues it.
    """
    with client_from(options, reporter) as client:
        return client.cancel(client.find(job_id))


@click.command(epilog=examples("dkgp resume 3f2a"))
@id_argument
@service_options
@runs(show=_show_state)
def resume(reporter: Reporter, job_id: str, **options: Any) -> Document:
    """Resume the job ID, which failed, was cancelled or did not converge.

    It is queued again and continues from its last checkpoint.
    """
    with client_from(options, reporter) as client:
        return client.resume(client.find(job_id))


@click.command(epilog=examples("dkgp wait 3f2a", "dkgp wait 3f2a 77c0 --timeout 3600", "dkgp wait $(dkgp submit ...)"))
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop waiting after this time, with exit code 124. The jobs continue.",
)
@service_options
@runs(show=_show_states, exit_code=lambda document: int(document["exit_code"]))
def wait(reporter: Reporter, job_ids: tuple[str, ...], timeout: float | None, **options: Any) -> Document:
    """Wait until the jobs ID... have ended.

    The exit code is that of the job; for several jobs, it is the first exit code that is not 0. The exit code of a
    cancelled job is 130.
    """
    until = None if timeout is None else time.monotonic() + timeout
    with client_from(options, reporter, patient=True) as client:
        records = [client.wait(full_id, until=until) for full_id in [client.find(job_id) for job_id in job_ids]]
    codes = [exit_code(record) for record in records]
    return {"command": "wait", "exit_code": next((code for code in codes if code), 0), "jobs": records}


def print_events(client: ServiceClient, job_id: str, output: Output, *, follow: bool, err: bool = False) -> None:
    """Print a job's events as lines of text or as JSON documents: the events so far, or until the job ends.

    Ctrl-C raises `InterruptedRunError`; the job continues.
    """
    from dkgp.commands.reporting.jobs import event_line
    from dkgp.commands.reporting.outputs import dump
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
            f"stopped following; the job {job_id} continues. `dkgp logs -f {job_id}` follows it again, `dkgp cancel "
            f"{job_id}` cancels it"
        ) from None


# ------------------------------------------------------------------------------------------------- submit

OF_SUBMISSION = Group("The job", place=2)
# Commands that can run as a job.
SUBMITTABLE = {name: command for name, command in JOB_COMMANDS.items() if command.recipe.as_job}


@dataclass(frozen=True)
class Submission:
    """The options of `dkgp submit` itself."""

    name: str | None
    deadline: float | None
    memory: int | None
    follow: bool
    slurm: bool
    slurm_options: dict[str, str]
    write_only: str | None
    service: dict[str, Any]

    def check(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        from dkgp.errors import UsageError

        if not self.slurm and (self.slurm_options or self.write_only is not None):
            raise UsageError("--slurm-option and --write-only need --slurm; add it")
        if self.slurm and (self.follow or self.deadline is not None or self.memory is not None):
            raise UsageError(
                "--follow, --deadline and --memory are for the jobs service. With --slurm, `tail -f` the job's output "
                "file, and give --slurm-option time=HH:MM:SS and --slurm-option mem=8G"
            )


def slurm_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read KEY=VALUE; a KEY alone is an option of sbatch without a value."""
    settings: dict[str, str] = {}
    for text in values:
        key, _, value = text.partition("=")
        if not key or key in settings:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE, or its KEY was given before.", context, parameter)
        settings[key] = value
    return settings


def _submission_options(function: F) -> F:
    """Add the options of `dkgp submit` itself, except those of the output."""
    options = (
        click.option("--name", metavar="NAME", help="Name of the job, shown in lists."),
        click.option(
            "--deadline",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Stop the job after this time.  [default: the service's deadline]",
        ),
        click.option(
            "--memory",
            type=byte_count,
            metavar="SIZE",
            help="Stop the job if its processes use more memory, such as 8GiB.  [default: the service's limit]",
        ),
        click.option(
            "-f",
            "--follow",
            is_flag=True,
            help="Print the messages of the job until it ends, and exit with its exit code.",
        ),
        service_options,
        click.option(
            "--slurm", is_flag=True, help="Write a batch script and submit it to SLURM. This needs no service."
        ),
        click.option(
            "--slurm-option",
            "slurm_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=slurm_settings,
            help="A long option of sbatch without its dashes, such as partition=long. May be repeated.",
        ),
        click.option(
            "--write-only", metavar="FILE", help="With --slurm: write the script to this file and do not submit it."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group(
    cls=Commands,
    epilog=examples(
        "dkgp submit train train.zarr --out model.zarr --hyper hyper.json",
        "dkgp submit --name nightly --follow predict model.zarr test.zarr --out pred.zarr --variance",
        "dkgp wait $(dkgp submit tune train.zarr --out hyper.json)",
        "dkgp submit --slurm --slurm-option time=08:00:00 train train.zarr --out model.zarr --hyper hyper.json",
    ),
)
@_submission_options
@output_options
@click.pass_context
def submit(context: click.Context, /, **options: Any) -> None:
    """Submit a command as a job: print the job's id and return.

    A jobs service (`dkgp serve`) runs the job on the service's cluster, or SLURM runs it. Mistakes in the options and
    missing inputs are reported immediately. The options below may stand before or after the command. If the command
    has an option of the same name, as `dkgp fit` has --memory, write that of `dkgp submit` before the command. --json
    prints the job's record.
    """
    context.obj = options


def of_cluster(command: JobCommand) -> list[str]:
    """Return the names of a command's cluster options, which the service sets itself."""
    return [name for name, option in command.declared().items() if option.paths and option.paths[0][0] == "cluster"]


def as_job(command: JobCommand) -> click.Command:
    """Return the command that submits a command, with its parameters but not the service's cluster parameters."""
    name = command.recipe.name

    def parameters() -> list[Any]:
        left_out = [*of_cluster(command), *command.here_only]
        return [parameter for parameter in command.params if parameter.name not in left_out]

    def of_submission() -> list[click.Parameter]:
        """Return the options of `dkgp submit`, under a heading, except those that the command itself has."""
        taken = {text for parameter in command.params for text in (parameter.name, *parameter.opts)}
        options = [copy(option) for option in submit.params if not taken & {option.name, *option.opts}]
        for option in options:
            vars(option)["group"] = OF_SUBMISSION
        return options

    @click.command(
        command.name,
        cls=DeclaredCommand,
        help=lambda: f"Submit `dkgp {name}` as a job.\n\n{command.recipe.help}",
        short_help=f"Submit `dkgp {name}` as a job.",
        epilog=lambda: _examples_of(command.recipe),
        tables=command.tables,
    )
    @declared_options(lambda: [*parameters(), *of_submission()])
    @click.pass_context
    def callback(context: click.Context, /, **options: Any) -> None:
        # These options may stand before or after the command.
        before: dict[str, Any] = dict(context.obj)
        output = Output.taken(options) | Output.taken(before)
        after = {str(option.name): options.pop(str(option.name)) for option in of_submission()}
        set_after = {name: value for name, value in after.items() if _is_typed(context, name)}
        values = before | set_after
        submission = Submission(service={name: values.pop(name) for name in SERVICE_NAMES}, **values)

        def job(reporter: Reporter) -> Document:
            submission.check()
            absolute = _absolute(command, options)
            job_value = command.job(absolute)
            if submission.slurm:
                return _to_slurm(submission, command, _arguments(context, absolute), absolute)
            return _to_service(submission, name, job_value, reporter, output)

        show, code = (show_job, exit_code) if submission.follow else (_show_id, None)
        execute("submit", job, output, show=show, exit_code=code)

    return callback


def _is_typed(context: click.Context, name: str) -> bool:
    """Return True if the user typed the option, rather than the environment or a default setting it."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _examples_of(recipe: Recipe) -> str:
    """Return the command's own examples as jobs, except examples that name a cluster."""
    lines = [line for line in recipe.declaration.examples if line.startswith("dkgp ")]
    kept = [line for line in lines if "--scheduler" not in line.split() and "--cluster" not in line.split()]
    return examples(*(line.replace(f"dkgp {recipe.name}", f"dkgp submit {recipe.name}", 1) for line in kept))


def _absolute(command: JobCommand, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with absolute paths, because the service's working directory is not the user's.

    For options with several values, patterns are replaced by the files that match now.
    """
    from dkgp.data.remote.storage import normalise_url
    from dkgp.data.sources.formats import expand_locations

    absolute = dict(options)
    for name, declared in command.declared().items():
        value = options.get(name)
        if declared.option.place is None or value is None:
            continue
        absolute[name] = tuple(expand_locations(list(value))) if declared.option.multiple else normalise_url(value)
    return absolute


def _to_service(submission: Submission, name: str, job: Any, reporter: Reporter, output: Output) -> Document:
    """Submit a job; return its record immediately, or after the job has ended."""
    from dkgp.service.specification import options_from_job

    options = options_from_job(job)
    with client_from(dict(submission.service), reporter, patient=submission.follow) as client:
        record = client.submit(
            name,
            options,
            name=submission.name,
            deadline_seconds=submission.deadline,
            memory_bytes=submission.memory,
        )
        if submission.follow:
            click.echo(f"job {record['id']}", err=True)
            print_events(client, record["id"], replace(output, as_json=False), follow=True, err=True)
            record = client.wait(record["id"])
    return record


def _to_slurm(submission: Submission, command: JobCommand, arguments: list[str], options: dict[str, Any]) -> Document:
    """Write the batch script, and submit it unless the user only wants the script."""
    from dkgp.commands.batch import batch_script, submit_batch_script
    from dkgp.commands.reporting.outputs import check_output_file, write_text

    words = command.recipe.name.split()
    job_name = submission.name or "-".join(("dkgp", *words))
    script = batch_script(
        ["dkgp", *words, *arguments],
        name=job_name,
        settings=submission.slurm_options,
        resume=bool(options.get("resume")),
    )
    if submission.write_only is not None:
        path = submission.write_only
        check_output_file(path, replace=options["overwrite"], option="`write_only`")
        write_text(path, script)
        return {"command": "submit", "script": path, "slurm_job": None, "name": job_name}
    path = _beside(str(options.get("out") or options["prediction"]), "-".join(words))
    check_output_file(path, replace=True, option="the batch script")
    slurm_job = submit_batch_script(script, os.getcwd())
    write_text(path, script)
    return {"command": "submit", "script": path, "slurm_job": slurm_job, "name": job_name}


def _beside(output: str, command: str) -> str:
    """Return the script's path: beside the output, or in the working folder if the output is not in a local folder."""
    from dkgp.data.remote.storage import is_local

    if is_local(output):
        return f"{output}.{command}.sbatch"
    return f"{output.rstrip('/').rsplit('/', 1)[-1]}.{command}.sbatch"


def _arguments(context: click.Context, options: dict[str, Any]) -> list[str]:
    """Return the command line for the options that the user set, with absolute paths."""
    flags, positional = [], []
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in options:  # of the output, or of the submission
            continue
        if isinstance(parameter, click.Argument):
            value = options[name]
            positional += [str(each) for each in (value if isinstance(value, tuple) else (value,))]
        elif context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            if isinstance(parameter, click.Option) and parameter.is_flag:
                flags += (parameter.opts if options[name] else parameter.secondary_opts)[:1]
            elif parameter.multiple:
                flags += [part for value in options[name] for part in (parameter.opts[0], str(value))]
            else:
                flags += [parameter.opts[0], str(options[name])]
    return [*positional, *flags]


def _show_id(document: Document, _: Output) -> None:
    """Print only the id, for scripts."""
    click.echo(document.get("id") or document["slurm_job"] or document["script"])


add_commands(submit, {name: as_job(submitted) for name, submitted in SUBMITTABLE.items()})


# -------------------------------------------------------------------------------------------------- serve

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
    help="Folder of the queue and the jobs' records. It must be on a disk of this host, and only you may write to it.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8780,
    show_default=True,
    help="Port to listen on. 0: any free port; the address is printed.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File that contains the token.  [default: $DKGP_SERVICE_TOKEN, else a new token in --folder, where your "
    "commands find it]",
)
@click.option(
    "--metrics-token-file",
    metavar="FILE",
    help="File with a token for collecting metrics. This token can only read metrics and the states of jobs. `dkgp "
    "token` makes tokens for users.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Accept every user of this machine without a token. Only allowed on a loopback address.",
)
@click.option(
    "--https",
    is_flag=True,
    help="Use TLS with a new certificate in --folder, which your own commands trust.",
)
@click.option("--https-cert", metavar="FILE", help="Use TLS with this certificate (PEM).")
@click.option("--https-key", metavar="FILE", help="Key of --https-cert (PEM).  [default: in the same file]")
@click.option(
    "--plain-http",
    is_flag=True,
    help="Allow plain HTTP beyond this machine. Use this only if a proxy or a private network protects token and data.",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="PATH|URL",
    help="Folder or URL in which jobs may read and write; they may do so nowhere else. May be repeated.  [default: "
    "the working directory]",
)
@click.option(
    "--concurrent-jobs",
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    show_default=True,
    help="Largest number of jobs that run at once. Fewer run if their memory (--job-memory, `dkgp submit --memory`) "
    "would exceed 90 % of the machine's. Jobs of different tokens take turns.",
)
@click.option(
    "--concurrent-jobs-per-token",
    type=click.IntRange(min=1),
    metavar="N",
    help="Largest number of jobs of one token that run at once.  [default: all]",
)
@click.option(
    "--job-deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=7 * SECONDS_A_DAY,
    metavar="SECONDS",
    help="Stop a job after this time; `dkgp resume` continues it.  [default: 604800, one week]",
)
@click.option(
    "--job-memory",
    type=byte_count,
    metavar="SIZE",
    help="Stop a job whose processes on this machine use more memory.  [default: 90 % of the memory of the machine or "
    "container, divided by --concurrent-jobs]",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0, min_open=True),
    default=90.0,
    show_default=True,
    metavar="DAYS",
    help="Remove the records of jobs that ended this many days ago; their outputs stay.",
)
@click.option(
    "--max-folder",
    type=byte_count,
    default="10GiB",
    show_default=True,
    metavar="SIZE",
    help="Limit on the size of records and logs. Above it the service removes those of the jobs that ended longest "
    "ago. If no ended job remains, it refuses new jobs.",
)
@click.option(
    "--max-queued",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Largest number of waiting jobs.",
)
@click.option(
    "--max-queued-per-token",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Largest number of waiting jobs of one token.",
)
@cluster_options
@output_options
def serve(**options: Any) -> None:
    """Accept jobs over HTTP, store them in --folder, and run each in a separate process.

    The service checks the options of each submitted job as the command line does. Jobs survive a restart: a job that
    was running continues from its checkpoint. --json prints the address as a JSON document once the service listens.
    The API is described at /docs; a page at / shows the jobs.
    """
    output = Output.taken(options)

    def job(reporter: Reporter) -> None:
        from dkgp.commands.reporting.outputs import dump
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
            # Printed immediately and alone, because the process that started the service reads the address from it.
            if output.as_json:
                click.echo(dump(document, indent=None))

        run_serve(settings, reporter, on_listening=on_listening)

    execute("serve", job, output)


# -------------------------------------------------------------------------------------------------- token

# Copied from `dkgp.service.access`, which is not imported before a command runs.
SCOPES = ("read", "submit", "admin")

folder_option = click.option(
    "--folder", required=True, metavar="DIR", help="Folder of the service (`dkgp serve --folder`)."
)


@click.group(
    cls=Commands,
    epilog=examples(
        "dkgp token add alice --scope submit --folder ~/dkgp-jobs",
        "dkgp token list --folder ~/dkgp-jobs",
        "dkgp token revoke alice --folder ~/dkgp-jobs",
    ),
)
def token() -> None:
    """Manage the access tokens of users.

    You need write access to the service's folder. Changes take effect immediately, whether or not the service is
    running.
    """


@token.command(
    epilog=examples(
        "dkgp token add alice --scope submit --folder ~/dkgp-jobs",
        "dkgp token add prometheus --scope read --days 365 --folder /var/lib/dkgp > prometheus.token",
    )
)
@click.argument("name", metavar="NAME")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    required=True,
    help="read: metrics, and the states of all jobs; submit: also submits jobs, and sees and controls its own; admin: "
    "sees and controls every job.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="Number of days for which the token is valid.  [default: until it is revoked]",
)
@folder_option
@runs(show=lambda document, output: _show_token(document, output))
def add(reporter: Reporter, name: str, scope: Any, days: float | None, folder: str) -> Document:
    """Create a token for NAME and print it once; the folder stores only a hash. NAME owns jobs submitted with it."""
    from dkgp.service.access import add_token

    place = _folder(folder)
    secret, made = add_token(place, name, scope, days)
    _record(place, "token add", name, scope)
    reporter.note(f"the token of '{name}' ({scope}), which is shown only once:")
    return {"command": "token add", "name": name, "scope": scope, "expires": made.expires, "token": secret}


@token.command(name="list", epilog=examples("dkgp token list --folder ~/dkgp-jobs"))
@folder_option
@runs(show=lambda document, output: _show_tokens(document, output))
def list_tokens(reporter: Reporter, folder: str) -> Document:
    """List the names, scopes and dates of the users' tokens."""
    from dkgp.service.access import read_tokens

    tokens = [
        {"name": known.name, "scope": known.scope, "created": known.created, "expires": known.expires}
        for known in read_tokens(_folder(folder))
    ]
    return {"command": "token list", "tokens": tokens}


@token.command(epilog=examples("dkgp token revoke alice --folder ~/dkgp-jobs"))
@click.argument("name", metavar="NAME")
@folder_option
@runs(show=lambda document, output: click.echo(f"{document['name']} revoked"))
def revoke(reporter: Reporter, name: str, folder: str) -> Document:
    """Revoke the token of NAME immediately, also for a running service. Jobs of NAME continue."""
    from dkgp.service.access import revoke_token

    place = _folder(folder)
    revoked = revoke_token(place, name)
    _record(place, "token revoke", name, revoked.scope)
    return {"command": "token revoke", "name": name, "scope": revoked.scope}


def _folder(text: str) -> Path:
    """Return the service's folder, accessible only to this user; create it if it is missing."""
    from dkgp.service.announcements import require_private_folder

    folder = Path(text).expanduser().absolute()
    require_private_folder(folder)
    return folder


def _record(folder: Path, what: str, name: str, scope: str) -> None:
    from dkgp.service.access import AuditLog

    # The numeric id: a user in a container may have no name, and anybody can change environment variables.
    AuditLog(folder).write(what, who=f"uid {os.getuid()}", scope="admin", token=name, token_scope=scope)


def _show_token(document: Document, _: Output) -> None:
    click.echo(document["token"])


def _show_tokens(document: Document, _: Output) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "scope", "created", "expires"):
        table.add_column(title, no_wrap=True)
    for known in document["tokens"]:
        table.add_row(known["name"], known["scope"], known["created"], known["expires"] or "never")
    if document["tokens"]:
        print_parts([table])
    else:
        click.echo("there are no tokens except the service's own")
