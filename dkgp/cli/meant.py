"""Names like one that was mistyped: of a command, of a choice."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import click

from dkgp.cli.streams import guarded_streams
from dkgp.errors import DkgpError, UsageError


def meant(name: str, known: Sequence[str]) -> str:
    """Return "Did you mean ...?" of the name most like it, or all there are."""
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."


class Commands(click.Group):
    """Commands, of which a wrong name is told the one most like it; options do so by click."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; its output may be closed or full, and surroundings that no command can run in are refused."""
        with guarded_streams():
            try:
                _require_threads()
                return super().main(*arguments, **options)
            except DkgpError as error:  # of what is printed before a command begins, such as its help
                print(f"dkgp: {error}", file=sys.stderr)
                sys.exit(int(error.exit_code))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; click's `UsageError` where there is none of that name."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command '{name}'. {meant(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


def _require_threads() -> None:
    """Refuse a number of Numba's threads that it cannot be imported with; dkgp's own loops do not use it."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "")
    with suppress(ValueError):
        if int(threads) < 1:
            raise UsageError(f"NUMBA_NUM_THREADS is {threads}; expected a number above zero. Set one, or unset it")


class Choice(click.Choice[str]):
    """A choice, of which a wrong one is told the one most like it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the choice; click's `BadParameter` where it is none."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = get_close_matches(str(value), list(self.choices), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.BadParameter(f"{error.message}{hint}", ctx, param) from None
