"""The folders and URLs that jobs may touch: everything else is refused before a job is taken.

A local path counts as the place that it leads to: symbolic links are followed as far as the path exists. A URL is
compared piece by piece, and an ambiguous one (a percent sign, a query, a chain of file systems) is refused.
`check_places` looks at every place of a job, those that its options name and those that these name: when the job is
submitted and resumed, so that mistakes are reported at once, and again as it begins to run, since the files may have
changed. If someone exchanges files, folders and links inside a root after that, `Roots.limits` hold where a file is
opened, in the job and its workers.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dkgp.data.remote.limits import Limits, limited_to
from dkgp.data.remote.storage import split_address
from dkgp.data.stores.models.references import limited_references, named_training_set, require_reference
from dkgp.errors import InputError, UsageError
from dkgp.service.specification import job_paths

# Several names for one kind of storage.
_ALIASES = {"gcs": "gs", "s3a": "s3", "az": "abfs", "abfss": "abfs"}
# `container@account.host` names a place; anywhere else the text before `@` would be a password.
_MAY_NAME_ACCOUNT = ("abfs",)
_AMBIGUOUS = re.compile(r"[\x00-\x1f\x7f]|::")
_AMBIGUOUS_IN_URL = re.compile(r"[%?#\\*\[\]]")


class OutsideRootsError(InputError):
    """A path that the service was not given, or one that cannot be told."""


class _Place(NamedTuple):
    """A place, split into parts for comparison."""

    scheme: str
    parts: tuple[str, ...]

    def is_below(self, root: _Place) -> bool:
        return self.scheme == root.scheme and self.parts[: len(root.parts)] == root.parts


class Roots:
    """The places that jobs may touch: local folders, which must exist, and URLs.

    `excluded` are local folders inside the roots that jobs may not touch all the same: the service's own. `InputError`
    for a folder that does not exist, `UsageError` for a root that can be read in two ways.
    """

    def __init__(self, roots: Sequence[str], excluded: Sequence[str] = ()) -> None:
        parsed = [_root(root) for root in roots]
        self._places = [place for place, _ in parsed]
        self.urls: tuple[str, ...] = tuple(dict.fromkeys(url for _, url in parsed))
        self._excluded = [_local(os.path.abspath(folder)) for folder in excluded]

    @property
    def limits(self) -> Limits:
        """The local folders, as limits for the code that opens files."""
        return Limits(
            *(
                tuple("/" + "/".join(place.parts) for place in places if place.scheme == "file")
                for places in (self._places, self._excluded)
            )
        )

    def contains(self, url: str) -> bool:
        """True if a job may touch the place; `OutsideRootsError` where the text can be read in two ways."""
        return self._contains(_place(url))

    def _contains(self, place: _Place) -> bool:
        if any(place.is_below(folder) for folder in self._excluded):
            return False
        return any(place.is_below(root) for root in self._places)

    def require(self, url: str, field: str, access: str = "read", folders: dict[str, str] | None = None) -> None:
        """Refuse (`OutsideRootsError`) a place outside the roots, or one whose text can be read in two ways.

        `field` is the option that names the place, and `access` is "read" or "write". `folders`
        keeps the real paths of local folders for the next place that is checked.
        """
        try:
            place = _place(url, folders)
            inside = self._contains(place)
        except OutsideRootsError as error:
            raise OutsideRootsError(f"'{field}': {error}") from None
        if not inside:
            raise OutsideRootsError(
                f"'{field}': this service may not {access} '{_shown(url)}'; it may use {', '.join(self.urls)}. Choose "
                f"a place there, or start the service with another --root"
            )
        if access == "write" and any(kept.is_below(place) for kept in (*self._places, *self._excluded)):
            # A job that waits keeps all others away from its output, and from everything below it.
            raise OutsideRootsError(
                f"'{field}': an output at '{_shown(url)}' would replace a root of this service, or the "
                "service's own folder. Choose a path below a root"
            )


def resolved(url: str) -> str:
    """Return a place's one name, for comparing places and not for opening them; `OutsideRootsError` where it has none.

    Symbolic links are followed, as of now and as far as the path exists; where the file system does not tell large
    letters from small ones all are small. A container is the same one in any account that is named with it.
    """
    place = _place(url)
    if place.scheme != "file":
        container, *parts = place.parts or ("",)
        return f"{place.scheme}://{'/'.join([container.partition('@')[0], *parts])}"
    path = "/" + "/".join(place.parts)
    return path.casefold() if _folds_case(path) else path


def _folds_case(path: str) -> bool:
    """True if the file system ignores case, as far as the path exists."""
    while path != "/":
        folder, name = os.path.split(path)
        if name != name.swapcase() and os.path.lexists(path):
            try:
                return os.path.samefile(path, os.path.join(folder, name.swapcase()))
            except OSError:
                return False
        path = folder
    return False


def _root(root: str) -> tuple[_Place, str]:
    text = root.strip()
    if "://" not in text and "::" not in text:
        text = os.path.abspath(os.path.expanduser(text))
    try:
        place = _place(text)
    except OutsideRootsError as error:
        raise UsageError(f"--root: {error}") from None
    if place.scheme != "file":
        return place, f"{place.scheme}://{'/'.join(place.parts)}"
    real = "/" + "/".join(place.parts)
    if not Path(real).is_dir():
        raise InputError(f"the root '{root}' is not a folder; create it first, or choose another --root")
    return place, real


def _place(url: str, folders: dict[str, str] | None = None) -> _Place:
    """Split a path or URL that has one reading; `OutsideRootsError` for others."""
    if not url:
        raise OutsideRootsError("the path is empty; give an absolute path or a URL such as s3://bucket/name.zarr")
    if ambiguity := _AMBIGUOUS.search(url):
        reason = "chains file systems ('::')" if ambiguity[0] == "::" else "contains a control character"
        raise OutsideRootsError(f"'{_shown(url)}' {reason}; give one plain path or URL")
    try:
        scheme, rest = split_address(url)
    except InputError as error:
        raise OutsideRootsError(str(error)) from None
    if scheme != scheme.lower():
        raise OutsideRootsError(f"'{_shown(url)}': write the scheme in lower case")
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == "file":
        return _local(rest, folders)
    if ambiguity := _AMBIGUOUS_IN_URL.search(rest):
        raise OutsideRootsError(
            f"'{_shown(url)}' holds '{ambiguity[0]}', which storage systems interpret differently; choose a plain name"
        )
    pieces = rest.rstrip("/").lstrip("/" if scheme == "memory" else "").split("/")
    if scheme == "memory" and pieces == [""]:
        pieces = []
    if any(piece in ("", ".", "..") for piece in pieces):
        raise OutsideRootsError(f"'{_shown(url)}' has an empty, '.' or '..' part; write it without")
    if "@" in (pieces[0] if pieces else "") and scheme not in _MAY_NAME_ACCOUNT:
        # The text is not shown: the part before the @ may be a password.
        raise OutsideRootsError("a URL must not carry a user or password; credentials come from the environment")
    return _Place(scheme, tuple(pieces))


def _local(path: str, folders: dict[str, str] | None = None) -> _Place:
    if not path.startswith("/"):
        raise OutsideRootsError(
            f"'{_shown(path)}' is a relative path; give an absolute one, because the "
            "service has its own working directory"
        )
    if ".." in path.split("/"):
        # With symbolic links `a/../b` is not always `b`: programs disagree, so none gets to see it.
        raise OutsideRootsError(f"'{_shown(path)}' has a '..' part; write it without")
    try:
        real = _real(os.path.normpath(path), {} if folders is None else folders)
    except (OSError, ValueError) as error:
        raise OutsideRootsError(f"'{_shown(path)}' is no path: {error}") from None
    return _Place("file", tuple(part for part in real.split("/") if part))


def _real(path: str, folders: dict[str, str]) -> str:
    """Return the real path of a normal one, as `os.path.realpath` has it; `folders` has those of places that exist.

    That one looks up each part of each path anew, below a part that is missing as well: seconds for hundreds of paths
    of hundreds of levels.
    """
    known, names = path, []
    while known not in folders and known.strip("/"):
        known, name = os.path.split(known)
        names.append(name)
    real = folders.get(known, "/")
    while names:
        name = names.pop()
        known, real = os.path.join(known, name), os.path.join(real, name)
        try:
            if stat.S_ISLNK(os.lstat(real).st_mode):
                real = os.path.realpath(known)
        except OSError:
            return os.path.join(real, *reversed(names))
        folders[known] = real
    return real


def _shown(url: str) -> str:
    """The text for a message: printable, without passwords, and at most a line."""
    text = re.sub(r"//[^/@]*@", "//***@", url)
    end = "..." if len(text) > 200 else ""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:200]) + end


# Options that name a model, which may name its training set.
_MODELS = ("model", "warm_start")


def check_places(roots: Roots, command: str, options: Mapping[str, Any]) -> None:
    """Refuse a job that would touch a forbidden place.

    `OutsideRootsError` for a place outside the roots or of ambiguous text, `StoreError` for a model whose training
    set is no place; errors of `job_from_options` where the options describe no job.
    """
    folders: dict[str, str] = {}
    for path in job_paths(command, options):
        roots.require(path.url, path.field, path.access, folders)
        # The text as it was given too: where it goes through symbolic links and back, programs read it differently.
        if isinstance(text := options.get(path.field), str):
            roots.require(text, path.field, path.access, folders)
    for field in _MODELS:
        # A model that is not there yet may be the output of a job that waits.
        if (model := options.get(field)) is not None and (named := named_training_set(model)) is not None:
            with _limited(roots, f"{field}: its training set"):
                require_reference(named, model)


@contextmanager
def kept_within(roots: Roots, command: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Check a job's places, and everything that stores name while it runs; errors as of `check_places`."""
    check_places(roots, command, options)
    with limited_to(roots.limits), _limited(roots, "a model's training set"):
        yield


@contextmanager
def _limited(roots: Roots, field: str) -> Iterator[None]:
    with limited_references(lambda place: roots.require(place, field)):
        yield
