"""`--as-in-the-paper`: the flag, the table in the help, and what of it the command line leaves to the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.flags import in_flags

if TYPE_CHECKING:
    from dkgp.commands.presets import Preset

__all__ = ["as_in_the_paper_option", "left_to_the_paper", "paper_tables"]

F = TypeVar("F", bound=Callable[..., Any])

Sections = Mapping[str, Sequence[tuple[str, str]]]


def as_in_the_paper_option(function: F) -> F:
    """`--as-in-the-paper`."""
    return click.option(
        "--as-in-the-paper",
        is_flag=True,
        help="Take the settings that the method's paper prints, listed below in this help; flags beside it win.",
    )(function)


def left_to_the_paper(command: str, options: Mapping[str, Any]) -> bool | tuple[str, ...]:
    """Return a job's `as_in_the_paper` for the command line that is running: the options that it does not give."""
    if not options["as_in_the_paper"]:
        return False
    from dkgp.commands.presets import left_open

    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return left_open(command, [name for name in options if context.get_parameter_source(name) is not default])


def paper_tables(command: str) -> Callable[[Sequence[click.Parameter]], Sections]:
    """Return what the help has of a command's presets: a table for each method, options with their values."""

    def tables(parameters: Sequence[click.Parameter]) -> Sections:
        from dkgp.commands.presets import PRESETS

        presets = PRESETS[command]
        by_preset: dict[Preset, list[str]] = {}
        for name, preset in presets.methods.items():
            by_preset.setdefault(preset, []).append(name)
        found = {}
        for preset, names in by_preset.items():
            chosen = in_flags(f"`{presets.chooser}` {', '.join(names)}", parameters)
            rows = [
                (in_flags(f"`{each.option}` {_said(each.value)}", parameters), each.source) for each in preset.settings
            ]
            found[f"As in the paper, {chosen} ({preset.paper})"] = rows
        return found

    return tables


def _said(value: Any) -> str:
    """A value as it is typed; nothing for a flag that is set."""
    return "" if value is True else "none" if value is None else str(value)
