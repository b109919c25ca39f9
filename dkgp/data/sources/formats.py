"""The formats that samples are read from: which there are, and which one a place is in.

A format is declared in the file that reads it: `FORMATS.add(Format(...))` at the end of a module of this package, or of
a module that an installed package names in the entry point group `dkgp.sources`. Commands and messages follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dkgp.data.remote.storage import list_folder, open_object, shown
from dkgp.data.sources.base import Source
from dkgp.errors import InputError, StorageError, UsageError
from dkgp.registry import Extra, Option, Registry

__all__ = [
    "FORMATS",
    "Format",
    "check_format_options",
    "folder_format",
    "format_options",
    "formats",
    "open_format",
    "recognised_format",
]


@dataclass(frozen=True)
class Format:
    """A form in which files or folders keep samples.

    Attributes
    ----------
    name
        For help and messages.
    opens
        Called with the place and with those of `options` that were given; returns the `Source`.
    suffixes
        Of files' names, in lower case, dot included. They decide only where `magics` cannot.
    magics
        What the content of every file begins with, one of these: names lie, and URLs often have no suffix.
    markers
        Names of entries, any of which makes a folder one source.
    options
        What a user may say about how it is to be read.
    extra
        The optional package that it needs.
    takes_text
        Whether it is tried where nothing else fits and the content may be text.
    """

    name: str
    opens: Callable[..., Source]
    suffixes: tuple[str, ...] = ()
    magics: tuple[bytes, ...] = ()
    markers: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    extra: Extra | None = None
    takes_text: bool = False

    def __str__(self) -> str:
        """Its name and suffixes, as messages list it."""
        return f"{self.name} ({', '.join(self.suffixes)})" if self.suffixes else self.name


FORMATS: Registry[Format] = Registry("source format", "dkgp.data.sources", "dkgp.sources")


def formats() -> list[Format]:
    """All formats by name."""
    return sorted(FORMATS.all().values(), key=lambda each: each.name)


def folder_format(names: list[str]) -> Format | None:
    """The format that a folder with these entries is in as a whole; None for a folder of files."""
    return next((found for found in formats() if not set(found.markers).isdisjoint(names)), None)


def recognised_format(url: str, is_folder: bool) -> Format:
    """The format of a file or folder, by its content, else by the suffix of its name; `InputError` where none fits."""
    if is_folder:
        found = folder_format([entry.rstrip("/").rsplit("/", 1)[-1] for entry in list_folder(url)])
        if found is None:
            raise InputError(f"The folder '{url}' is no source as a whole; expected one of: {_listed(folders=True)}.")
        return found
    start = _first_bytes(url)
    by_content = {magic: each for each in formats() for magic in each.magics if start.startswith(magic)}
    if by_content:
        return by_content[max(by_content, key=len)]
    name = url.split("?", 1)[0].lower()
    for each in formats():
        if name.endswith(each.suffixes) and not each.takes_text:
            if each.magics:
                raise InputError(
                    f"'{shown(url)}' does not begin as its name's format does ({each.name}); it is damaged or of "
                    "another format."
                )
            return each
    text = next((each for each in formats() if each.takes_text), None)
    if text is None or b"\0" in start:
        raise InputError(
            f"'{shown(url)}' is in no format that is known here, by its first bytes or by its name. Known: {_listed()}."
        )
    return text


def open_format(form: Format, url: str, options: Mapping[str, Any]) -> Source:
    """The source at a place; of the options (None: not given) those that the format has."""
    if form.extra is not None:
        form.extra.require(f"Reading {form.name} files")
    taken = {option.name for option in form.options}
    return form.opens(url, **{name: value for name, value in options.items() if name in taken and value is not None})


def format_options() -> dict[str, tuple[Option, list[Format]]]:
    """Every option that a format has, by name, and the formats that have it."""
    found: dict[str, tuple[Option, list[Format]]] = {}
    for each in formats():
        for option in each.options:
            found.setdefault(option.name, (option, []))[1].append(each)
    return found


def check_format_options(options: Mapping[str, Any], read: list[Format]) -> None:
    """Refuse options (None: not given) that no format has, or none of those that are read; raise `UsageError`."""
    known = format_options()
    for name in (name for name, value in options.items() if value is not None):
        if name not in known:
            raise UsageError(f"there is no option {name!r} of a source format; known: {', '.join(known)}")
        if not any(each in known[name][1] for each in read):
            owners = " or ".join(each.name for each in known[name][1])
            raise UsageError(
                f"`{name}` goes with {owners}; the sources are "
                f"{' and '.join(dict.fromkeys(each.name for each in read))}. Leave it out"
            )


def _first_bytes(url: str) -> bytes:
    try:
        with open_object(url) as file:
            return bytes(file.read(64))
    except StorageError:
        raise
    except OSError as error:
        raise InputError(f"'{shown(url)}' cannot be read: {error}") from error


def _listed(folders: bool = False) -> str:
    return ", ".join(str(each) for each in formats() if each.markers or not folders)
