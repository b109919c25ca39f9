"""The formats that samples are read from: which there are, and which one a place is in.

A format is declared in the file that reads it: `FORMATS.add(Format(...))` at the end of a module of this package, or of
a module that an installed package names in the entry point group `dkgp.sources`. Commands and messages follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dkgp.data.remote.storage import (
    expand_glob,
    is_file,
    is_folder,
    list_folder,
    normalise_url,
    open_object,
    shown,
)
from dkgp.data.sources.base import ConcatenatedSource, Source
from dkgp.data.types import Location
from dkgp.errors import InputError, StorageError, UsageError
from dkgp.registry import Extra, Option, Registry


@dataclass(frozen=True)
class Format:
    """A form in which files or folders keep samples; `name` is for help and messages."""

    name: str
    # Called with the place and with those of `options` that were given.
    opens: Callable[..., Source]
    # Of files' names, in lower case, dot included. They decide only where `magics` cannot.
    suffixes: tuple[str, ...] = ()
    # The content of every file begins with one of these: names lie, and URLs often have no suffix.
    magics: tuple[bytes, ...] = ()
    # Names of entries; a folder with one of them is one source.
    markers: tuple[str, ...] = ()
    # Options for reading it.
    options: tuple[Option, ...] = ()
    extra: Extra | None = None
    # True if it is tried where nothing else fits and the content may be text.
    takes_text: bool = False

    def __str__(self) -> str:
        """Its name and suffixes, as messages list it."""
        return f"{self.name} ({', '.join(self.suffixes)})" if self.suffixes else self.name


_GLOB = frozenset("*?[")
# Compound files, such as .xls; an .xlsx is a ZIP archive, as NPZ files are.
_OLD_WORKBOOK = b"\xd0\xcf\x11\xe0"
FORMATS: Registry[Format] = Registry("source format", "dkgp.data.sources", "dkgp.sources")


def formats() -> list[Format]:
    """All formats by name."""
    return sorted(FORMATS.all().values(), key=lambda form: form.name)


def folder_format(names: list[str]) -> Format | None:
    """The format that a folder with these entries is in as a whole; None for a folder of files."""
    return next((form for form in formats() if not set(form.markers).isdisjoint(names)), None)


def recognised_format(url: str, is_folder: bool) -> Format:
    """The format of a file or folder, by its content, else by the suffix of its name; `InputError` where none fits."""
    if is_folder:
        form = folder_format([entry.rstrip("/").rsplit("/", 1)[-1] for entry in list_folder(url)])
        if form is None:
            raise InputError(f"The folder '{url}' is no source as a whole; expected one of: {_listed(folders=True)}.")
        return form
    start = _first_bytes(url)
    by_content = {magic: form for form in formats() for magic in form.magics if start.startswith(magic)}
    if by_content:
        return by_content[max(by_content, key=len)]
    name = url.split("?", 1)[0].lower()
    for form in formats():
        if name.endswith(form.suffixes) and not form.takes_text:
            if form.magics:
                raise InputError(
                    f"'{shown(url)}' does not begin as its name's format does ({form.name}); it is damaged or of "
                    "another format."
                )
            return form
    text = next((form for form in formats() if form.takes_text), None)
    if start.startswith(_OLD_WORKBOOK):
        raise InputError(f"'{shown(url)}' is an Excel workbook; save its sheet as CSV, and read that file.")
    if text is None or b"\0" in start:
        raise InputError(
            f"'{shown(url)}' is in no format that is known here, by its first bytes or by its name. Known: {_listed()}."
        )
    return text


def format_options() -> dict[str, tuple[Option, list[Format]]]:
    """Every option that a format has, by name, and the formats that have it."""
    owners: dict[str, tuple[Option, list[Format]]] = {}
    for form in formats():
        for option in form.options:
            owners.setdefault(option.name, (option, []))[1].append(form)
    return owners


def check_format_options(options: Mapping[str, Any], read: list[Format]) -> None:
    """Refuse options (None: not given) that no format has, or none of those that are read; raise `UsageError`."""
    known = format_options()
    for name in (name for name, value in options.items() if value is not None):
        if name not in known:
            raise UsageError(f"there is no option {name!r} of a source format; known: {', '.join(known)}")
        if not any(form in known[name][1] for form in read):
            owners = " or ".join(form.name for form in known[name][1])
            raise UsageError(
                f"`{name}` goes with {owners}; the sources are "
                f"{' and '.join(dict.fromkeys(form.name for form in read))}. Leave it out"
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
    return ", ".join(str(form) for form in formats() if form.markers or not folders)


def open_source(urls: Sequence[str], options: Mapping[str, Any]) -> Source:
    """One source for all the places that `expand_locations` found, read in this order.

    `options` are those of the formats, None where not given; `UsageError` for one that does not go with them.
    `InputError` for an unknown format, a damaged file, or files that do not fit together.
    """
    recognised = [recognised_format(url, is_folder(url)) for url in urls]
    check_format_options(options, recognised)
    parts = [_opened(form, url, options) for form, url in zip(recognised, urls, strict=True)]
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)


def expand_locations(locations: Location | Sequence[Location]) -> list[str]:
    """The files and stores that the places stand for, globs and folders sorted.

    Raises `InputError` where one stands for nothing.
    """
    places = [locations] if isinstance(locations, str) or not isinstance(locations, Sequence) else list(locations)
    if not places:
        raise InputError("No source was given; expected at least one path or URL.")
    urls: list[str] = []
    for location in places:
        url = normalise_url(location)
        if is_file(url):
            urls.append(url)
        elif is_folder(url):
            urls += _folder(url)
        elif _GLOB & set(url) and shown(url) == url:
            matches = expand_glob(url)
            if not matches:
                raise InputError(f"No file matches '{shown(url)}'.")
            for match in matches:
                urls += _folder(match) if is_folder(match) else [match]
        else:
            raise InputError(f"There is no file or folder at '{shown(url)}'. Check the path.")
    return urls


def _folder(url: str) -> list[str]:
    entries = list_folder(url)
    names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries]
    if folder_format(names) is not None:
        return [url]
    files = [entry for entry, name in zip(entries, names, strict=True) if name[0] not in "._" and is_file(entry)]
    if not files:
        raise InputError(f"The folder '{url}' is no store of a known format and holds no files.")
    return files


def _opened(form: Format, url: str, options: Mapping[str, Any]) -> Source:
    if form.extra is not None:
        form.extra.require(f"Reading {form.name} files")
    taken = {option.name for option in form.options}
    return form.opens(url, **{name: value for name, value in options.items() if name in taken and value is not None})
