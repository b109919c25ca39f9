"""`dkgp submit`: a command's own options, for the jobs service or SLURM to run instead of this process."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from dkgp.cli.command import JobCommand
from dkgp.cli.declared import DeclaredCommand, declared_options
from dkgp.cli.fit import FitCommand, fit
from dkgp.cli.job_commands import classify, evaluate, predict, sparse, train, tune
from dkgp.cli.meant import Commands
from dkgp.cli.options import examples
from dkgp.cli.running import OUTPUT_NAMES, Output, execute, output_options
from dkgp.cli.service.jobs import exit_code, print_events, show_job
from dkgp.cli.service.options import SERVICE_NAMES, client_from, service_options
from dkgp.registry import byte_count

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

# Commands that a job can be.
Submittable: TypeAlias = JobCommand | FitCommand
SUBMITTABLE: tuple[Submittable, ...] = (train, sparse, classify, tune, predict, evaluate, fit)


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
    output: Output

    def check(self) -> None:
        """Refuse options that do not go together; `UsageError`."""
        from dkgp.errors import UsageError

        if not self.slurm and (self.slurm_options or self.write_only is not None):
            raise UsageError("--slurm-option and --write-only belong to --slurm, which was not given; add it")
        if self.slurm and (self.follow or self.deadline is not None or self.memory is not None):
            raise UsageError(
                "--follow, --deadline and --memory belong to the jobs service; with --slurm, `tail -f` the job's "
                "output file and give --slurm-option time=HH:MM:SS, --slurm-option mem=8G"
            )


def slurm_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read KEY=VALUE; a KEY alone is an option of sbatch that takes no value."""
    settings: dict[str, str] = {}
    for text in values:
        key, _, value = text.partition("=")
        if not key or key in settings:
            raise click.BadParameter(f"{text!r} is no KEY=VALUE, or its KEY was given before.", context, parameter)
        settings[key] = value
    return settings


@click.group(
    cls=Commands,
    epilog=examples(
        "dkgp submit train train.zarr --out model.zarr --hyper hyper.json",
        "dkgp submit --name nightly --follow predict model.zarr test.zarr --out pred.zarr --variance",
        "dkgp wait $(dkgp submit tune train.zarr --out hyper.json)",
        "dkgp submit --slurm --slurm-option time=08:00:00 train train.zarr --out model.zarr --hyper hyper.json",
    ),
)
@click.option("--name", metavar="NAME", help="What to call the job, for people.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the job when it has run so long.  [default: the service's own deadline]",
)
@click.option(
    "--memory",
    type=byte_count,
    metavar="SIZE",
    help="End the job when its processes hold more, such as 8GiB.  [default: the service's limit]",
)
@click.option("-f", "--follow", is_flag=True, help="Follow the job; leave with its exit code.")
@service_options
@click.option("--slurm", is_flag=True, help="Write a batch script and hand it to SLURM; no service is needed.")
@click.option(
    "--slurm-option",
    "slurm_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=slurm_settings,
    help="A long option of sbatch without its dashes, such as partition=long; repeatable.",
)
@click.option("--write-only", metavar="FILE", help="With --slurm: write the script there and do not submit it.")
@output_options
@click.pass_context
def submit(context: click.Context, /, **options: Any) -> None:
    """Submit a command as a job: print the job's id and return.

    The job is run by a jobs service (`dkgp serve`), on the service's cluster, or by SLURM. What is wrong with the
    options is said at once. --json prints the job's record.
    """
    context.obj = Submission(
        service={name: options.pop(name) for name in SERVICE_NAMES},
        output=Output.taken(options),
        **options,
    )


def of_cluster(command: Submittable) -> list[str]:
    """Return the names of a command's options that say where it runs, which the service says itself."""
    return [name for name, option in command.declared().items() if option.paths and option.paths[0][0] == "cluster"]


def as_job(command: Submittable) -> click.Command:
    """Return the command that submits a command: its parameters but for the cluster's, which is the service's."""
    name = str(command.name)

    def parameters() -> list[Any]:
        left_out = [*of_cluster(command), *(command.here_only if isinstance(command, JobCommand) else ())]
        return [parameter for parameter in command.params if parameter.name not in left_out]

    @click.command(
        name,
        cls=DeclaredCommand,
        help=f"Submit `dkgp {name}` as a job.\n\n{inspect.cleandoc(command.help or '')}",
        short_help=f"Submit `dkgp {name}` as a job.",
        epilog=_examples_of(command),
        tables=command.tables,
    )
    @declared_options(parameters)
    @click.pass_context
    def callback(context: click.Context, /, **options: Any) -> None:
        submission: Submission = context.obj
        # They may stand before the command or after it.
        output = Output.taken(options) | submission.output

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


def _examples_of(command: Submittable) -> str:
    """The command's own examples, as jobs, without those that name a cluster."""
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("dkgp ")]
    kept = [line for line in lines if "--scheduler" not in line.split() and "--cluster" not in line.split()]
    return examples(*(line.replace(f"dkgp {command.name}", f"dkgp submit {command.name}", 1) for line in kept))


def _absolute(command: Submittable, options: dict[str, Any]) -> dict[str, Any]:
    """The options with absolute places: the service's working directory is not the user's.

    Of several, patterns stand for what they match now.
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
    """Submit a job; return its record, at once or when it has ended."""
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


def _to_slurm(
    submission: Submission, command: click.Command, arguments: list[str], options: dict[str, Any]
) -> Document:
    """Write the batch script, and submit it unless it was only to be written."""
    from dkgp.commands.batch.script import batch_script, submit_batch_script
    from dkgp.commands.reporting.outputs import check_output_file, write_text

    job_name = submission.name or f"dkgp-{command.name}"
    script = batch_script(
        ["dkgp", str(command.name), *arguments],
        name=job_name,
        settings=submission.slurm_options,
        resume=bool(options.get("resume")),
    )
    if submission.write_only is not None:
        path = submission.write_only
        check_output_file(path, replace=options["overwrite"], option="--write-only")
        write_text(path, script)
        return {"command": "submit", "script": path, "slurm_job": None, "name": job_name}
    path = _beside(str(options.get("out") or options["prediction"]), str(command.name))
    check_output_file(path, replace=True, option="the batch script")
    slurm_job = submit_batch_script(script, os.getcwd())
    write_text(path, script)
    return {"command": "submit", "script": path, "slurm_job": slurm_job, "name": job_name}


def _beside(output: str, command: str) -> str:
    """The script's place: beside the output, or here where that is no folder of this machine."""
    from dkgp.data.remote.storage import is_local

    if is_local(output):
        return f"{output}.{command}.sbatch"
    return f"{output.rstrip('/').rsplit('/', 1)[-1]}.{command}.sbatch"


def _arguments(context: click.Context, options: dict[str, Any]) -> list[str]:
    """The command line that gives these options: what was given on this one, with absolute paths."""
    flags, positional = [], []
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in OUTPUT_NAMES:
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
    """Print the id alone, for scripts."""
    click.echo(document.get("id") or document["slurm_job"] or document["script"])


for submitted in SUBMITTABLE:
    submit.add_command(as_job(submitted))
