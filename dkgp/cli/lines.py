"""`dkgp predict --stdin`: the command's own options that lines can have, and what takes the place of data and OUT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.command import JobCommand
from dkgp.cli.declared import Headed
from dkgp.cli.running import Output, execute, until_unread
from dkgp.options import declared_options, make

if TYPE_CHECKING:
    from dkgp.commands.reporting.progress import Reporter

STDIN = "stdin"


class LinesCommand(JobCommand):
    """A command that also answers lines: with `--stdin` it takes neither DATASET nor OUT."""

    here_only = (STDIN,)

    def parameters(self) -> list[click.Parameter]:
        """As of every job; what names data and outputs may be missing beside `--stdin`."""
        parameters: list[click.Parameter] = [
            _Dataset([str(parameter.name)]) if parameter.name == "dataset" else parameter
            for parameter in super().parameters()
        ]
        for parameter in parameters:
            if isinstance(parameter, Headed) and parameter.required:
                parameter.unless = STDIN
        answering = Headed(
            [f"--{STDIN}"],
            is_flag=True,
            is_eager=True,
            help="Answer lines of standard input on standard output, instead of DATASET and --out.",
        )
        last = max(index for index, parameter in enumerate(parameters) if isinstance(parameter, click.Argument))
        return [*parameters[: last + 1], answering, *parameters[last + 1 :]]

    def run_job(self, **options: Any) -> None:
        """Run the job, or answer lines."""
        if not options.pop(STDIN):
            super().run_job(**options)
            return
        output = Output.taken(options)
        from dkgp.commands.predict import LinesJob, run_lines

        context = click.get_current_context()
        taken = declared_options(LinesJob)
        for parameter in self.params:
            name = str(parameter.name)
            is_typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
            if name in options and name not in taken and is_typed and options[name] is not None:
                shown = "DATASET" if name == "dataset" else max(parameter.opts, key=len)
                raise click.UsageError(
                    f"--{STDIN} answers lines in this process, and writes nothing; got {shown} beside it. Leave one of "
                    "them out."
                )
        if output.as_json:
            raise click.UsageError(f"--{STDIN} prints lines, and --json one document; leave one of them out.")

        def job(reporter: Reporter) -> None:
            with until_unread():
                run_lines(make(LinesJob, {name: options[name] for name in taken}), reporter)

        execute(str(self.name), job, output)


class _Dataset(click.Argument):
    """DATASET, which lines take the place of."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """As of every argument."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            # What was given is processed before what was not.
            if ctx.params.get(STDIN):
                return None
            raise
