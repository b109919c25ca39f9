"""Commands that run a job: their options are those that the job's dataclass declares (`dkgp.options`)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import DeclaredCommand, declared_later, job_parameter
from dkgp.cli.flags import in_flags
from dkgp.cli.options import examples
from dkgp.cli.running import Output, execute, output_parameters
from dkgp.options import Declared, declared_options, make

if TYPE_CHECKING:
    from dkgp.commands.presets import Preset
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter


class JobCommand(DeclaredCommand):
    """A command NAME whose module holds its dataclass `NameJob` and the function `run_name` that runs one.

    The module is `dkgp.commands.NAME` by default. With `must_converge`, a document with
    `converged` false means exit code 4.
    """

    # Names of options that are of no job: what they ask for happens in this process.
    here_only: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        help: str,
        example_lines: Sequence[str],
        *,
        module: str | None = None,
        must_converge: bool = False,
    ) -> None:
        self.module, self.must_converge = module or f"dkgp.commands.{name}", must_converge
        super().__init__(
            name,
            help=inspect.cleandoc(help),
            epilog=examples(*example_lines),
            callback=self.run_job,
            params=[*declared_later(self.parameters), *output_parameters()],
            tables=self.paper_tables,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an option of an earlier version is refused with the name of its successor."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from dkgp.operators.product_error import successor

            advice = successor(error.option_name)
            if advice is None or "product_error" not in self.declared():
                raise
            words = f"{error.option_name} is no option any more: {in_flags(advice, self.params)}"
            raise click.UsageError(words, ctx) from None

    @property
    def kind(self) -> type[Any]:
        """The job's dataclass; what its module needs is loaded now."""
        kind: type[Any] = getattr(importlib.import_module(self.module), f"{str(self.name).capitalize()}Job")
        return kind

    def declared(self) -> dict[str, Declared]:
        """Return all options, by name."""
        return declared_options(self.kind)

    def parameters(self) -> list[click.Parameter]:
        """Return the options as click knows them; their help names others by their flags."""
        parameters = [job_parameter(parameter) for parameter in self.declared().values()]
        for parameter in parameters:
            if isinstance(parameter, click.Option):
                parameter.help = in_flags(parameter.help or "", parameters)
        return parameters

    def run_job(self, **options: Any) -> None:
        """Run the job that the options make, and leave with its exit code."""
        output = Output.taken(options)
        execute(
            str(self.name),
            lambda reporter: self.run(self.job(options), reporter),
            output,
            must_converge=self.must_converge,
        )

    def run(self, job: Any, reporter: Reporter) -> Document:
        """Run a job."""
        document: Document = getattr(importlib.import_module(self.module), f"run_{self.name}")(job, reporter)
        return document

    def job(self, options: Mapping[str, Any]) -> Any:
        """Return the job that options of the command that is running make; options of the cluster may be configured."""
        from dkgp.cluster import ClusterOptions

        values = dict(options)
        for name, each in self.declared().items():
            if each.option.instead is not None and values[name] is None:
                values[name] = each.option.instead.value(values)
        if values.get("as_in_the_paper"):
            values["as_in_the_paper"] = self._paper_settings(values)
        return make(self.kind, values, {ClusterOptions: _configured})

    def _paper_settings(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The options that the command line does not give, where a paper may decide them."""
        from dkgp.commands.presets import left_open

        context = click.get_current_context()
        default = click.core.ParameterSource.DEFAULT
        return left_open(
            str(self.name), [name for name in options if context.get_parameter_source(name) is not default]
        )

    def paper_tables(self, parameters: Sequence[click.Parameter]) -> dict[str, list[tuple[str, str]]]:
        """Return what the help has of the command's presets: a table for each method, options with their values."""
        from dkgp.commands.presets import PRESETS

        presets = PRESETS.get(str(self.name))
        if presets is None:
            return {}
        by_preset: dict[Preset, list[str]] = {}
        for name, preset in presets.methods.items():
            by_preset.setdefault(preset, []).append(name)
        tables = {}
        for preset, names in by_preset.items():
            methods = in_flags(f"`{presets.chooser}` {', '.join(names)}", parameters)
            tables[f"As in the paper, {methods} ({preset.paper})"] = [
                (in_flags(f"`{setting.option}` {_typed(setting.value)}", parameters), setting.source)
                for setting in preset.settings
            ]
        return tables


def _configured(values: Mapping[str, Any]) -> Any:
    """The cluster's options: what was not given may be configured."""
    from dkgp.cluster import configured_options

    return configured_options({**values, **{name: dict(values.get(name, ())) for name in ("settings", "resources")}})


def _typed(value: Any) -> str:
    """A value as it is typed; nothing for a flag that is set."""
    return "" if value is True else "none" if value is None else str(value)
