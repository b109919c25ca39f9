"""Secrets among the settings of a cluster's class: read from files or the environment, and kept out of what is told.

A command line is seen by every user of its machine (`ps`). So `KEY=@FILE` takes a setting's value from a file that
others cannot read, and `KEY=@env:NAME` from a variable of the environment.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST_BYTES = 64 * 1024
# Shorter ones are words that stand in messages anyway.
SHORTEST_HIDDEN = 4
HIDDEN = "***"
_ENVIRONMENT = "@env:"
_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|auth", re.IGNORECASE)


class SecretText(str):
    """Text that was read from where secrets lie."""

    __slots__ = ()


def read_secret(text: str) -> SecretText | None:
    """Return what `@FILE` or `@env:NAME` stands for, without the line's end; None for any other text.

    `ValueError`: there is none, or others on this machine can read the file.
    """
    if not text.startswith("@"):
        return None
    if text.startswith(_ENVIRONMENT):
        name = text.removeprefix(_ENVIRONMENT)
        if not os.environ.get(name):
            raise ValueError(f"the environment has no variable {name!r}; set it, or give @FILE.")
        return SecretText(os.environ[name])
    path = Path(text[1:]).expanduser()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ValueError(
            f"'{path}' cannot be read: {error.strerror or error}. A value that begins with @ names a file; as JSON "
            'text, "\\"@...\\"", it does not.'
        ) from None
    if not stat.S_ISREG(mode) or mode & stat.S_IROTH:
        raise ValueError(
            f"'{path}' can be read by every user of this machine, or is no file (mode {stat.S_IMODE(mode):04o}); close "
            f"it with: chmod 600 '{path}'."
        )
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"'{path}' is larger than {LARGEST_BYTES:,} bytes; expected one value.")
    return SecretText(content.decode("utf-8", "replace").rstrip("\r\n"))


def secret_names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that hold a secret: by where it was read from, or by their names."""
    return tuple(
        sorted(name for name, value in settings.items() if isinstance(value, SecretText) or _SECRET_NAME.search(name))
    )


def redacted(text: str, settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return text, such as another library's message, with the values of secret settings hidden."""
    values = {value for name in names for value in _texts(settings.get(name))}
    values |= {value for inner in settings.values() if isinstance(inner, Mapping) for value in _named_texts(inner)}
    # The longest first: one may hold another.
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST_HIDDEN:
            text = text.replace(value, HIDDEN)
    return text


def _named_texts(settings: Mapping[Any, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if _SECRET_NAME.search(str(name)):
            yield from _texts(value)
        elif isinstance(value, Mapping):
            yield from _named_texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
