"""Commands that run a job. Each command reads its recipe (`dkgp.commands.recipe`); its options are those of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from dkgp.cli.parameters import (
    DeclaredCommand,
    Headed,
    configured,
    declared_later,
    examples,
    in_flags,
    job_parameter,
    with_flags,
)
from dkgp.cli.running import Commands, Output, execute, output_parameters, print_parts, until_unread
from dkgp.commands.recipe import GROUPS, RECIPES, Recipe
from dkgp.options import Declared, declared_options, make

if TYPE_CHECKING:
    from dkgp.commands.presets import Preset
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter

STDIN = "stdin"


class JobCommand(DeclaredCommand):
    """The command of a recipe."""

    # Names of options that only the command line uses.
    here_only: tuple[str, ...] = ()

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        super().__init__(
            recipe.name.split()[-1],
            help=lambda: recipe.help,
            epilog=lambda: examples(*recipe.declaration.examples),
            callback=self.run_job,
            params=[*declared_later(self.parameters), *output_parameters()],
            tables=self.paper_tables,
        )

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the summary; the rest of the help would be imported."""
        return click.Command(self.name, help=self.recipe.summary).get_short_help_str(limit)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; refuse an option of an earlier version, and name its successor."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from dkgp.operators.product_error import successor

            advice = successor(error.option_name)
            if advice is None or "product_error" not in self.declared():
                raise
            words = f"{error.option_name} no longer exists: {in_flags(advice, self.params)}"
            raise click.UsageError(words, ctx) from None

    def declared(self) -> dict[str, Declared]:
        """Return all options, by name."""
        return self.recipe.declared()

    def parameters(self) -> list[click.Parameter]:
        """Return the options in click's form."""
        return with_flags([job_parameter(declared) for declared in self.declared().values()])

    def run_job(self, **options: Any) -> None:
        """Run the job for the given options, and exit with its exit code."""
        output = Output.taken(options)
        execute(
            self.recipe.name,
            lambda reporter: self.recipe.run(self.job(options), reporter),
            output,
            must_converge=self.recipe.declaration.must_converge,
            show=self.show,
        )

    def show(self, document: Document, output: Output) -> None:
        """Print a document as tables."""
        from dkgp.commands.reporting.tables import tables

        print_parts(tables(document, verbose=output.verbose, layout=self.recipe.layout))

    def job(self, options: Mapping[str, Any]) -> Any:
        """Return the job for the options of the running command; the configuration may set options of the cluster."""
        from dkgp.cluster import ClusterOptions

        values = dict(options)
        for name, each in self.declared().items():
            if each.option.instead is not None and values[name] is None:
                values[name] = each.option.instead.value(values)
        if values.get("as_in_the_paper"):
            values["as_in_the_paper"] = self._paper_settings(values)
        return make(self.recipe.kind, values, {ClusterOptions: configured})

    def _paper_settings(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the options that the command line does not set, and that a paper's settings may decide."""
        from dkgp.commands.presets import left_open

        context = click.get_current_context()
        default = click.core.ParameterSource.DEFAULT
        return left_open(
            self.recipe.name, [name for name in options if context.get_parameter_source(name) is not default]
        )

    def paper_tables(self, parameters: Sequence[click.Parameter]) -> dict[str, list[tuple[str, str]]]:
        """Return the help's tables of the command's presets, one for each method: options with their values."""
        from dkgp.commands.presets import PRESETS

        presets = PRESETS.get(self.recipe.name)
        if presets is None:
            return {}
        by_preset: dict[Preset, list[str]] = {}
        for name, preset in presets.methods.items():
            by_preset.setdefault(preset, []).append(name)
        tables = {}
        for preset, names in by_preset.items():
            methods = in_flags(f"`{presets.chooser}` {', '.join(names)}", parameters)
            tables[f"Settings of --as-in-the-paper for {methods} ({preset.paper})"] = [
                (in_flags(f"`{setting.option}` {_typed(setting.value)}", parameters), setting.source)
                for setting in preset.settings
            ]
        return tables


class LinesCommand(JobCommand):
    """A command that can also answer lines: with `--stdin` it takes neither DATASET nor OUT."""

    here_only = (STDIN,)

    def parameters(self) -> list[click.Parameter]:
        """Return the job's options; with `--stdin`, the options for data and outputs may be missing."""
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
            help="Read lines from standard input and write a prediction for each to standard output. Replaces DATASET "
            "and --out.",
        )
        last = max(index for index, parameter in enumerate(parameters) if isinstance(parameter, click.Argument))
        return [*parameters[: last + 1], answering, *parameters[last + 1 :]]

    def run_job(self, **options: Any) -> None:
        """Run the job, or answer lines."""
        if not options.pop(STDIN):
            super().run_job(**options)
            return
        output = Output.taken(options)
        from dkgp.commands.predict.job import LinesJob
        from dkgp.commands.predict.lines import run_lines

        context = click.get_current_context()
        taken = declared_options(LinesJob)
        for parameter in self.params:
            name = str(parameter.name)
            is_typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
            if name in options and name not in taken and is_typed and options[name] is not None:
                shown = "DATASET" if name == "dataset" else max(parameter.opts, key=len)
                raise click.UsageError(
                    f"--{STDIN} reads lines and writes no store; got {shown} as well. Leave one of them out."
                )
        if output.as_json:
            raise click.UsageError(f"--{STDIN} prints lines, but --json prints one document. Leave one of them out.")

        def job(reporter: Reporter) -> None:
            with until_unread():
                run_lines(make(LinesJob, {name: options[name] for name in taken}), reporter)

        execute(self.recipe.name, job, output)


class _Dataset(click.Argument):
    """The argument DATASET, which may be missing with `--stdin`."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            # Click processes the options that the user set before the others.
            if ctx.params.get(STDIN):
                return None
            raise


def _typed(value: Any) -> str:
    """Return a value in the form in which users type it; nothing for a flag that is set."""
    return "" if value is True else "none" if value is None else str(value)


class InfoCommand(JobCommand):
    """`dkgp info`, which reports a store whose description does not fit into the tables."""

    def show(self, document: Document, output: Output) -> None:
        """Print the tables; raise `StoreError` if a store's own description does not fit into any table."""
        from dkgp.data.stores.manifest import described_whole

        with described_whole(str(document.get("location")), "--json prints the contents unchanged"):
            super().show(document, output)


_KINDS: dict[str, type[JobCommand]] = {"predict": LinesCommand, "info": InfoCommand}
JOB_COMMANDS: dict[str, JobCommand] = {name: _KINDS.get(name, JobCommand)(recipe) for name, recipe in RECIPES.items()}


class GroupCommands(Commands):
    """The commands of a group. A first word that is a path runs the group's command `map`, if there is one."""

    default = "map"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called command; raise click's `UsageError` if there is none."""
        word = args[0]
        is_path = self.get_command(ctx, word) is None and not word.startswith("-") and ("." in word or "/" in word)
        if is_path and self.default in self.commands:
            args = [self.default, *args]
        return super().resolve_command(ctx, args)


# Examples in the help of groups of commands.
EXAMPLES = {"krige": "krige map soil.gpkg --target zinc --out zinc.tif"}


def add_commands(group: click.Group, commands: Mapping[str, click.Command]) -> None:
    """Add commands to a group by the names of their recipes; "krige fit" is added to the group `krige` in it."""
    for name, command in commands.items():
        *inside, last = name.split()
        holder = group
        for word in inside:
            if word not in holder.commands:
                first = next(each for each in commands if each.startswith(f"{word} "))
                of_group = "dkgp" if group.name == "main" else f"dkgp {group.name}"
                epilog = examples(f"{of_group} {EXAMPLES.get(word, f'{first} --help')}")
                holder.add_command(GroupCommands(word, help=GROUPS[word], epilog=epilog))
            holder = cast(click.Group, holder.commands[word])
        holder.add_command(command, last)
