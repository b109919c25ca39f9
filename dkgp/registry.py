"""Registries of extensible declarations: source formats, cluster kinds, bench sections; each has a file of its own.

A module adds its declaration to the registry of its kind when it is imported. A registry imports the modules of one of
dkgp's own packages, and the modules that installed packages list under an entry point group. Importing any other such
module adds its declaration as well. User interfaces read choices, options, help and errors from the declarations.
"""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from threading import RLock
from typing import Any, Generic, Literal, Protocol, TypeVar

from dkgp.errors import MissingExtraError, UsageError


class LaterModule:
    """A module that is imported at the first use of an attribute: the help of a command then imports none of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


@dataclass(frozen=True)
class Extra:
    """An optional package: the extra that installs it (of dkgp by default), its name, and the module to import."""

    name: str
    package: str
    module: str
    distribution: str = "dkgp"

    def is_there(self) -> bool:
        """Return True if the package is installed. The package is not imported for this check."""
        return find_spec(self.module) is not None

    def require(self, purpose: str) -> Any:
        """Return the module; raise `MissingExtraError`, which names the purpose, if it is not installed."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise MissingExtraError(self.package, self.name, purpose, self.distribution) from error


@dataclass(frozen=True)
class Group:
    """Options under one heading of the help; if a command has several methods, also the methods they belong to."""

    heading: str
    methods: tuple[str, ...] = ()
    # Order of the headings: lower values come first. Options that belong to no particular command come last.
    place: int = 0


@dataclass(frozen=True)
class Instead:
    """A flag that replaces a required option; the option's value then follows from the other options."""

    flag: str
    value: Callable[[Mapping[str, Any]], str]


# Options that few runs of a command use.
FURTHER = Group("Further options", place=1)


@dataclass(frozen=True)
class Values:
    """Valid values of an option: a test, and words that complete "must be" and "expected"."""

    passes: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Option:
    """One option of a declaration: a keyword in Python, `--name` on the command line.

    A field of a dataclass (`dkgp.options`) provides its option's name, default and choices. The field also provides the
    type if values are text, numbers or flags.

    Attributes
    ----------
    name, help
        Keyword, and its meaning. A help that ends with "[default: ...]" states the default itself.
    type
        Converts text to a value, and raises a `ValueError` that explains the mistake; `bool` for a flag.
    default
        Value if the option is not set; None for a flag that is neither set nor unset.
    spellings
        Spellings on the command line; by default the name with dashes. A flag may have both forms, as in "--a/--no-a".
        A flag with only the spelling "--no-..." sets its value to false.
    choices
        All valid values; an option without choices shows `metavar` in the help.
    least, above
        Smallest value of a number (inclusive), or lower limit (exclusive).
    values
        Test that replaces `least` and `above` if some words are valid too.
    multiple
        Whether the option may be repeated; the value is a tuple.
    group
        Heading in the help, and the methods of the command that the option belongs to; by default all methods.
    place
        "read" or "write" if the option names a file or store that is read or written.
    reads
        "table", or the kind of store, which must exist there. A missing one on this machine is refused before the
        libraries of the work are imported.
    argument
        Whether it is a positional argument on the command line.
    shown
        Default, in the form in which users type it.
    late
        Returns the attributes that are known only at run time: help and choices of extensible declarations.
    required
        Whether there is no default.
    lacking
        Advice if a required option is missing.
    instead
        Flag that replaces a required option, and the option's value in that case.
    nargs
        Number of texts that follow the option on the command line.
    decides
        Whether the result depends on the option, so that a resumed run must have the same value.
    collect
        Converts all texts of an option that is given several times to one value.
    written
        Returns the texts that `type` or `collect` reads a value from; by default the value as text, or each value of a
        repeated option.
    sets
        Returns the values of several fields that the option stands for, by their paths with dots.
    """

    name: str = ""
    help: str = ""
    type: Callable[[str], Any] = str
    default: Any = None
    spellings: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    multiple: bool = False
    above: float | None = None
    group: Group | None = None
    place: Literal["read", "write"] | None = None
    reads: str = ""
    argument: bool = False
    shown: str | None = None
    late: Callable[[], Mapping[str, Any]] | None = None
    required: bool = False
    lacking: str | None = None
    instead: Instead | None = None
    nargs: int = 1
    decides: bool = True
    values: Values | None = None
    collect: Callable[[Sequence[str]], Any] | None = None
    written: Callable[[Any], Sequence[str]] | None = None
    sets: Callable[[Any], Mapping[str, Any]] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags in the form in which users type them, including both forms of a flag with two."""
        typed = self.spellings or (f"--{self.name.replace('_', '-')}",)
        return tuple(flag for spelling in typed for flag in spelling.split("/"))

    @property
    def turns_both_ways(self) -> bool:
        """Return True for a flag with two forms, as in "--a/--no-a"."""
        return any("/" in spelling for spelling in self.spellings)

    @property
    def turns_off(self) -> bool:
        """Return True for a flag that sets its value to false."""
        return len(self.spellings) == 1 and self.spellings[0].startswith("--no-")


def whole_or_auto(text: str) -> int | Literal["auto"]:
    """Read a whole number, or "auto". This is the `type` of options that can choose their value automatically."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a whole number nor 'auto'.") from None


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers that are separated by commas."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of whole numbers such as 1,2,4.") from None


def byte_count(text: str) -> int:
    """Read an amount of memory, such as 4GiB; return bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    size = math.inf if match is None else float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if not math.isfinite(size):
        raise ValueError(f"{text!r} is not a size; write it as 4GiB, 512MiB or a number of bytes.")
    return int(size)


def byte_text(count: float | None) -> str:
    """Format bytes with a binary unit."""
    if count is None:
        return "unknown"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def byte_budget(text: str) -> int | str:
    """Read an amount of memory, "none" (0), or "auto"."""
    word = text.strip().lower()
    return word if word == "auto" else 0 if word == "none" else byte_count(text)


def installed_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of the packages on Python's path, except packages in the working folder.

    An empty entry of PYTHONPATH (a trailing colon adds one) stands for the working folder. A command would then run
    code that somebody else left in a data folder. The working folder therefore counts only if PYTHONPATH names its full
    path.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # the folder was removed, so it contains nothing
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    is_meant = any(os.path.isabs(folder) and os.path.realpath(folder) == here for folder in named)
    folders = [
        folder for folder in sys.path if os.path.isabs(folder) and (is_meant or os.path.realpath(folder) != here)
    ]
    points: dict[str, EntryPoint] = {}
    for point in _entry_points(tuple(folders)):
        if point.group == group:
            # Of two versions, the first one on the path counts, as for imports.
            points.setdefault(point.name, point)
    return list(points.values())


@cache
def _entry_points(folders: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of all packages on a path. Reading one group would take as long as reading all groups."""
    return [point for distribution in distributions(path=list(folders)) for point in distribution.entry_points]


def load_entry_points(group: str, sort: str) -> None:
    """Import the modules that installed packages list under a group; warn about modules that cannot be imported."""
    for point in installed_entry_points(group):
        try:
            point.load()
        except Exception as error:  # a defective package of a third party must not stop dkgp
            warnings.warn(
                f"the {sort} '{point.name}' of an installed package ({point.value}) is left out: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


class Named(Protocol):
    """A declaration that has a name."""

    @property
    def name(self) -> str:
        """Name of the declaration for users."""


T = TypeVar("T", bound=Named)


@dataclass
class Registry(Generic[T]):
    """Declarations of one sort, by name.

    Parameters
    ----------
    sort
        Kind of the declarations ("cluster kind"), for messages.
    package
        Package whose modules, including those of its subpackages, are imported before the first look-up.
    group
        Entry point group under which installed packages list further modules to import.
    without
        Modules and subpackages without declarations, which are not imported.
    """

    sort: str
    package: str
    group: str
    without: tuple[str, ...] = ()
    _found: dict[str, T] = field(default_factory=dict, init=False)
    _imported: bool = field(default=False, init=False)
    _lock: Any = field(default_factory=RLock, init=False, repr=False)

    def add(self, declared: T) -> T:
        """Add a declaration; raise `UsageError` if another declaration has the same name."""
        present = self._found.setdefault(declared.name, declared)
        if present is not declared and present != declared:
            raise UsageError(f"there are two {self.sort}s '{declared.name}': {present} and {declared}; rename one")
        return declared

    def all(self) -> dict[str, T]:
        """Return all declarations by name; dkgp's own declarations come first."""
        with self._lock:
            if not self._imported:
                self._imported = True  # set before the import, because imported modules may call this method
                try:
                    self._import()
                except BaseException:
                    self._imported = False
                    raise
        return dict(self._found)

    def find(self, name: str) -> T:
        """Return the declaration of that name; raise `UsageError`, listing the known names, if there is none."""
        known = self.all()
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"unknown {self.sort} {name!r}{hint}; known: {', '.join(sorted(known))}")
        return known[name]

    def _import(self) -> None:
        self._import_modules(self.package)
        load_entry_points(self.group, self.sort)

    def _import_modules(self, package: str) -> None:
        for _, name, is_package in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if name.removeprefix(f"{self.package}.") in self.without:
                continue
            importlib.import_module(name)
            if is_package:
                self._import_modules(name)
