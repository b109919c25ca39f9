"""Parameters as the command line calls them: texts from below name one in backticks, here it becomes its flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import click

_NAMED = re.compile(r"`([a-z][a-z0-9_]*)`")


def in_flags(text: str, parameters: Iterable[click.Parameter]) -> str:
    """Return the text with parameters that it names in backticks, as in `max_passes`, replaced by their flags."""
    flags = {
        parameter.name: max(parameter.opts, key=len) for parameter in parameters if isinstance(parameter, click.Option)
    }
    return _NAMED.sub(lambda match: flags.get(match[1], match[0]), text)


def wording() -> Callable[[str], str]:
    """Return `in_flags` for the command that is running, whatever thread calls it; and of files only what is text."""
    from dkgp.commands.reporting.lines import printable

    context = click.get_current_context(silent=True)
    parameters = [] if context is None else context.command.params
    return lambda text: printable(in_flags(text, parameters))
