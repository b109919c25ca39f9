"""Names like one that was mistyped: of a command, of a choice."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click


def meant(name: str, known: Sequence[str]) -> str:
    """Return "Did you mean ...?" of the name most like it, or all there are."""
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."


class Commands(click.Group):
    """Commands, of which a wrong name is told the one most like it; options do so by click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; click's `UsageError` where there is none of that name."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command '{name}'. {meant(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


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
