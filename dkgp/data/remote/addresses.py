"""Addresses of places: one spelling for each, and none that carries a secret.

Credentials come from the environment or from a profile. An address that holds one is refused, in words that do not
repeat it. Only https:// sources may have a token in their query, as presigned addresses do; they are shown without.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, urlsplit

from dkgp.data.types import Location
from dkgp.errors import InputError

# Of every usual file system, and of Linux.
LONGEST_NAME_BYTES, LONGEST_PATH_BYTES = 255, 4095
_WEB = ("http", "https")
_LOCAL = ("file", "local")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKETS = ("s3", "s3a", "gs", "gcs")
_SECRET_NAME = re.compile(r"key|secret|token|sig|credential|passw|auth", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s'\"]+(?=@)")
_WEB_URL = re.compile(r"https?://")
_WORD = re.compile(r"[^\s'\"<>]+")


def split_address(text: str) -> tuple[str, str]:
    """Return the protocol of an address, "file" for a local path, and the rest; for a chained URL all of it.

    The one parser of addresses: checks and openers agree on the local ones. `InputError` where programs
    do not agree: "://" anywhere but behind the protocol at the beginning, as in `/folder/http://name`, which some
    take for a path and others (fsspec) for a URL. Web addresses may hold another one.
    """
    match = _URL.fullmatch(text)
    protocol, rest = ("file", text) if match is None else (match[1], match[2])
    if "::" in text:
        return protocol if match else text.split("::", 1)[0], rest
    if "://" in rest and protocol not in _WEB:
        raise InputError(
            "Got an address with '://' in the middle, which some programs read as a path, others as a URL; it is not "
            "repeated, since it may hold a secret. Expected a local path, or a URL such as s3://bucket/name.zarr."
        )
    return "file" if protocol in _LOCAL else protocol, rest


def normalise_url(location: Location) -> str:
    """One spelling per place: absolute paths for local files, fsspec URLs unchanged but for a trailing slash.

    Raises `InputError` for an empty path, for one that can be read in two ways, for names that no file system takes,
    for a relative path where the working folder was removed, for a URL that holds credentials, and for one of
    references to other places.
    """
    text = os.fspath(location)
    if not text:
        raise InputError("Got an empty path; expected a local path or an fsspec URL such as s3://bucket/name.zarr.")
    if "://" in text:
        _refuse_credentials(text)
    is_url = "://" in text or "::" in text
    if is_url and "reference" in {part.partition("://")[0] for part in text.split("::")}:
        raise InputError(
            "Got an address of the kind 'reference', whose file names other places to read from. Expected the address "
            "of the data themselves; first save the described data as a Zarr store."
        )
    protocol, rest = split_address(text)
    if protocol != "file" or "::" in text:
        return text.rstrip("/")
    try:
        path = os.path.abspath(os.path.expanduser(rest))
    except FileNotFoundError:
        raise InputError(
            f"The working folder was removed, and '{text}' is relative to it; change to another folder, or give an "
            "absolute path."
        ) from None
    _require_short_names(path)
    return path


def _require_short_names(path: str) -> None:
    """Refuse names that no file system takes, before one of many calls fails on them."""
    if "\0" in path:
        raise InputError(f"Got a path with a null character: {path[:80]!r}; no file system takes one.")
    # A character takes at most four bytes.
    if 4 * len(path) <= LONGEST_NAME_BYTES:
        return
    if (count := len(os.fsencode(path))) > LONGEST_PATH_BYTES:
        raise InputError(f"The path '{path[:80]}...' has {count:,} bytes; the system takes {LONGEST_PATH_BYTES:,}.")
    for name in path.split("/"):
        if (count := len(os.fsencode(name))) > LONGEST_NAME_BYTES:
            raise InputError(
                f"The name '{name[:40]}...{name[-20:]}' has {count:,} bytes; file systems take {LONGEST_NAME_BYTES}. "
                "Choose a shorter one."
            )


def is_local(location: Location) -> bool:
    """True if the place is on a file system of this machine."""
    url = normalise_url(location)
    return "::" not in url and split_address(url)[0] == "file"


def join(location: Location, *parts: str) -> str:
    """The place `parts` below a place."""
    return "/".join([normalise_url(location).rstrip("/"), *parts])


def protocol_of(url: str) -> str:
    """The protocol of a URL ("s3"), "file" for a path; of a chained URL the first one."""
    return split_address(url)[0]


def shown(url: str) -> str:
    """The address as messages may show it: a web address without its query."""
    return url.split("?", 1)[0] + "?..." if protocol_of(url) in _WEB and "?" in url else url


def scrubbed(text: str) -> str:
    """Text, such as another library's message, without the users and queries of the addresses in it."""
    return _WORD.sub(_without_query, _USER_IN_URL.sub("...", text))


def _without_query(word: re.Match[str]) -> str:
    # Word by word: one pattern for address and query would read the rest of the text again from every "http://".
    address = _WEB_URL.search(word[0])
    start = -1 if address is None else word[0].find("?", address.end())
    return word[0] if start < 0 else f"{word[0][: start + 1]}..."


def _refuse_credentials(text: str) -> None:
    for part in text.split("::"):
        protocol, separator, rest = part.partition("://")
        if not separator:
            continue
        holds_user = _holds_user(protocol, re.split(r"[/?#]", rest, maxsplit=1)[0])
        # A presigned web address is the one way to hand a single file to somebody without an account.
        holds_secret = protocol not in _WEB and any(
            value and _SECRET_NAME.search(name) for name, value in parse_qsl(urlsplit(part).query)
        )
        if holds_user or holds_secret:
            known = protocol if re.fullmatch(r"[a-z][a-z0-9+.]*", protocol) else "URL"
            raise InputError(
                f"Got an address ({known}) with credentials in it, which would end up in logs; it is not repeated. "
                f"Expected an address without them. {_where_credentials_belong(protocol)}"
            )


def _holds_user(protocol: str, place: str) -> bool:
    user, at, _ = place.rpartition("@")
    # A secret may itself hold a "/"; the part before it then ends in a colon and no "@".
    if protocol in _BUCKETS:
        return bool(at) or (":" in place and not place.startswith("arn:"))
    if protocol in _WEB:
        port = place.rpartition(":")[2] if ":" in place and not place.endswith("]") else ""
        return bool(at) or (bool(port) and not port.isdigit())
    # abfs://container@account... and ssh://user@host name no secret.
    return ":" in user


def _where_credentials_belong(protocol: str) -> str:
    if protocol in ("s3", "s3a"):
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment."
    if protocol in ("gs", "gcs"):
        return "Set GOOGLE_APPLICATION_CREDENTIALS in the environment."
    if protocol in ("az", "abfs", "abfss", "adl"):
        return (
            "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or another of adlfs's, in the environment."
        )
    return "Give them in the environment or in a profile, or name a local copy."
