"""From what the user names - paths, URLs, globs, folders - to one source, by looking at the content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.data.remote.storage import expand_glob, is_file, is_folder, list_folder, normalise_url, shown
from dkgp.data.sources.base import ConcatenatedSource, Source
from dkgp.data.sources.formats import check_format_options, folder_format, open_format, recognised_format
from dkgp.data.types import Location
from dkgp.errors import InputError

__all__ = ["expand_locations", "open_source"]

_GLOB = frozenset("*?[")


def open_source(urls: Sequence[str], options: Mapping[str, Any]) -> Source:
    """One source for all the places.

    Parameters
    ----------
    urls
        Files and stores, as `expand_locations` finds them; read in this order.
    options
        Of their formats; None for what is not given.

    Raises
    ------
    InputError
        An unknown format, a damaged file, or files that do not fit together.
    UsageError
        An option that does not go with the formats.
    MissingExtraError
        The format's package is not installed.
    """
    formats = [recognised_format(url, is_folder(url)) for url in urls]
    check_format_options(options, formats)
    parts = [open_format(form, url, options) for form, url in zip(formats, urls, strict=True)]
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)


def expand_locations(locations: Location | Sequence[Location]) -> list[str]:
    """The files and stores that the places stand for, globs and folders sorted.

    Raises `InputError` where one stands for nothing.
    """
    given = [locations] if isinstance(locations, str) or not isinstance(locations, Sequence) else list(locations)
    if not given:
        raise InputError("No source was given; expected at least one path or URL.")
    found: list[str] = []
    for location in given:
        url = normalise_url(location)
        if is_file(url):
            found.append(url)
        elif is_folder(url):
            found += _folder(url)
        elif _GLOB & set(url) and shown(url) == url:
            matches = expand_glob(url)
            if not matches:
                raise InputError(f"No file matches '{shown(url)}'.")
            for match in matches:
                found += _folder(match) if is_folder(match) else [match]
        else:
            raise InputError(f"There is no file or folder at '{shown(url)}'. Check the path.")
    return found


def _folder(url: str) -> list[str]:
    entries = list_folder(url)
    names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries]
    if folder_format(names) is not None:
        return [url]
    files = [entry for entry, name in zip(entries, names, strict=True) if name[0] not in "._" and is_file(entry)]
    if not files:
        raise InputError(f"The folder '{url}' is no store of a known format and holds no files.")
    return files
