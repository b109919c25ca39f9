"""From what the user names - paths, URLs, globs, folders - to one source, by looking at the content."""

from __future__ import annotations

from collections.abc import Sequence

from dkgp.data.remote.storage import expand_glob, is_file, is_folder, list_folder, normalise_url, open_object, shown
from dkgp.data.sources.base import ConcatenatedSource, Source
from dkgp.data.sources.csv import CsvSource
from dkgp.data.sources.numpy import NpySource, NpzSource
from dkgp.data.sources.parquet import ParquetSource
from dkgp.data.sources.xarray import XarraySource, open_zarr_source
from dkgp.data.types import Location
from dkgp.errors import InputError, StorageError

__all__ = ["expand_locations", "open_source"]

_ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata", "dkgp-manifest.json")
_GLOB = frozenset("*?[")


def open_source(locations: Location | Sequence[Location], header: bool | None = None) -> Source:
    """One source for all the places.

    Parameters
    ----------
    locations
        One or several paths, fsspec URLs, globs, or folders of files; read in this order, globs and folders sorted.
    header
        For text: whether there is a header; None to find out.

    Raises
    ------
    InputError
        Nothing there, an unknown format, a damaged file, or files that do not fit together.
    MissingExtraError
        The format's package is not installed.
    """
    urls = expand_locations(locations)
    parts = [_open_one(url, header) for url in urls]
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)


def expand_locations(locations: Location | Sequence[Location]) -> list[str]:
    """The files and Zarr stores that the places stand for. `InputError` where one stands for nothing."""
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
    if any(name in _ZARR_MARKS for name in names):
        return [url]
    files = [entry for entry, name in zip(entries, names, strict=True) if name[0] not in "._" and is_file(entry)]
    if not files:
        raise InputError(f"The folder '{url}' is no Zarr store and holds no files.")
    return files


def _open_one(url: str, header: bool | None) -> Source:
    if is_folder(url):
        return open_zarr_source(url)
    try:
        with open_object(url) as file:
            magic = bytes(file.read(8))
    except StorageError:
        raise
    except OSError as error:
        raise InputError(f"'{shown(url)}' cannot be read: {error}") from error
    # By content: names lie, and URLs often have no suffix.
    if magic.startswith(b"\x93NUMPY"):
        return NpySource(url)
    if magic.startswith(b"PK\x03\x04"):
        return NpzSource(url)
    if magic.startswith(b"PAR1"):
        return ParquetSource(url)
    if magic.startswith(b"\x89HDF\r\n\x1a\n"):
        return XarraySource(url, "h5netcdf")
    if magic.startswith(b"CDF"):
        return XarraySource(url, "scipy")
    if url.split("?", 1)[0].lower().endswith((".npy", ".npz", ".parquet", ".nc", ".nc4", ".h5", ".zip")):
        raise InputError(
            f"'{shown(url)}' does not begin as its name's format does; it is damaged or of another format."
        )
    return CsvSource(url, header)
