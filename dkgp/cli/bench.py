"""`dkgp bench`: a subcommand for each declared section (`dkgp.bench.section`), built at its first use.

The sections here measure a machine. Benchmarks of papers, competitors and proofs belong to a separate distribution, in
`benchmarks/`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.parameters import (
    DeclaredCommand,
    click_option,
    cluster_from,
    cluster_options,
    declared_options,
    examples,
    with_flags,
)
from dkgp.cli.running import Commands, Output, execute, output_options
from dkgp.errors import UsageError

if TYPE_CHECKING:
    from dkgp.bench.section import Section
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter

# Sections of dkgp-benchmarks. If a section is missing, the message names the package to install.
ELSEWHERE = (
    "boosting",
    "cells",
    "certify",
    "chaos",
    "classify",
    "gallery",
    "growth",
    "kriging",
    "latency",
    "papers",
    "prototypes",
    "pursuit",
    "risk",
    "scikit",
    "selection",
    "solvers",
    "sparse",
    "variance",
)
INSTALL = "`pip install ./benchmarks` in a clone of dkgp installs it"


class _Sections(Commands):
    """Commands of the available sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the sections."""
        from dkgp.bench.section import SECTIONS

        return sorted(SECTIONS.all())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a section."""
        from dkgp.bench.section import SECTIONS

        section = SECTIONS.all().get(cmd_name)
        return None if section is None else _command(section)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called command, as click does; for a missing section, raise an error that names its package."""
        if args[0] in self._missing(ctx):
            raise click.UsageError(
                f"`dkgp bench {args[0]}` needs the package dkgp-benchmarks, which is not installed; {INSTALL}.", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the sections, and the names of those that are not installed."""
        super().format_commands(ctx, formatter)
        if missing := self._missing(ctx):
            with formatter.section("Not installed"):
                formatter.write_text(f"{', '.join(missing)}: these need the package dkgp-benchmarks; {INSTALL}.")

    def _missing(self, ctx: click.Context) -> list[str]:
        return [name for name in ELSEWHERE if name not in self.list_commands(ctx)]


def _command(section: Section) -> click.Command:
    def options() -> list[click.Parameter]:
        declared = section.options() if callable(section.options) else section.options
        options = with_flags([click_option(option) for option in declared])
        if section.without_null:
            options.append(
                click.Option(["--null"], is_flag=True, hidden=True, help=f"Refused: {section.without_null}.")
            )
        return options

    def run(**values: Any) -> None:
        output = Output.taken(values)

        def job(reporter: Reporter) -> Document:
            if section.without_null and values.pop("null"):
                raise UsageError(f"`null` cannot be used with {section.name}: {section.without_null}")
            cluster = {"cluster": cluster_from(values)} if section.on_cluster else {}
            return section.run({**values, **cluster}, reporter)

        execute(f"bench {section.name}", job, output, exit_code=section.exit_code)

    decorated: Callable[..., Any] = output_options(run)
    if section.on_cluster:
        decorated = cluster_options(decorated)
    make = click.command(
        section.name, cls=DeclaredCommand, help=cleandoc(section.help), epilog=examples(*section.examples)
    )
    return make(declared_options(options)(decorated))


@click.group(
    cls=_Sections,
    epilog=examples(
        "dkgp bench tiles --out tiles.json",
        "dkgp bench products --samples 30000",
        "dkgp bench solve --data friedman1 --samples 100000 --out solve.json",
        "dkgp bench overhead --samples 30000",
        "dkgp bench scaling --samples 100000 --workers 1,2",
    ),
)
def bench() -> None:
    """Measure the speed and accuracy of dkgp, and compare them with other programs.

    Ratios compare measurements of one run on the same machine.
    """
