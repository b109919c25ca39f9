"""Parameters as the command line calls them: texts from below name one in backticks, here it becomes its flag."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import click

__all__ = ["in_flags", "wording"]

_NAMED = re.compile(r"`([a-z][a-z0-9_]*)`")


def in_flags(text: str, parameters: Iterable[click.Parameter]) -> str:
    """Return the text with parameters that it names in backticks, as in `max_passes`, replaced by their flags."""
    flags = {each.name: max(each.opts, key=len) for each in parameters if isinstance(each, click.Option)}
    return _NAMED.sub(lambda found: flags.get(found[1], found[0]), text)


def wording() -> Callable[[str], str]:
    """Return `in_flags` for the command that is running; whatever thread calls it."""
    context = click.get_current_context(silent=True)
    parameters = [] if context is None else context.command.params
    return lambda text: in_flags(text, parameters)
