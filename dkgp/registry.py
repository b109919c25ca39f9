"""Things that can be added to by name (source formats, cluster kinds, bench sections), each declared in one file.

A module declares its thing and adds it to the table of its sort when it is imported. A table finds the modules of one
of dkgp's own packages by itself, and those that installed packages name under an entry point group; whoever imports
such a module adds to it as well. What fronts offer (choices, options, help, errors) is read from the declarations.
"""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from threading import RLock
from typing import Any, Generic, Literal, Protocol, TypeVar

from dkgp.errors import MissingExtraError, UsageError


@dataclass(frozen=True)
class Extra:
    """An optional package: the extra (of dkgp by default) that brings it, its own name, and what is imported of it."""

    name: str
    package: str
    module: str
    distribution: str = "dkgp"

    def is_there(self) -> bool:
        """True if it is installed; it is not imported for the answer."""
        return find_spec(self.module) is not None

    def require(self, purpose: str) -> Any:
        """Return the module; `MissingExtraError` says what it is needed for."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise MissingExtraError(self.package, self.name, purpose, self.distribution) from error


@dataclass(frozen=True)
class Group:
    """Options that the help shows under one heading, and, of a command that has several, the methods they belong to."""

    heading: str
    methods: tuple[str, ...] = ()
    # Of the headings, after those of a lower one: what is of no command in particular comes last.
    place: int = 0


@dataclass(frozen=True)
class Instead:
    """A flag that stands for an option that is required otherwise, whose value then follows from the others."""

    flag: str
    value: Callable[[Mapping[str, Any]], str]


# What few runs of a command take.
FURTHER = Group("Further options", place=1)


@dataclass(frozen=True)
class Values:
    """Values that an option takes: their test, and words on them that follow "must be" and "expected"."""

    passes: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Option:
    """One option of a declared thing: a keyword for Python, `--name` on the command line.

    Of a field of a dataclass (`dkgp.options`) name, default, choices and, where values are text, numbers or flags, the
    type are the field's.

    Attributes
    ----------
    name, help
        The keyword, and what it means. A help that ends with "[default: ...]" says the default itself.
    type
        From text to a value, with a `ValueError` that says what is wrong with it; `bool` for a flag.
    default
        Where nothing is given; None for a flag that is neither set nor unset.
    spellings
        On the command line; the name with dashes by default. A flag may say both ways, as in "--a/--no-a"; one that is
        spelled "--no-..." alone sets its value to false.
    choices
        All the values there are; `metavar` stands for them otherwise.
    least, above
        The smallest value of a number; or what it must exceed.
    values
        A test in place of `least` and `above`, where some words are values too.
    multiple
        Whether it may be given several times; the value is a tuple.
    group
        Where the help shows it, and the methods of the command that it belongs to; all of them by default.
    place
        "read" or "write" where it names a file or store that is read or written.
    argument
        Whether it stands on the command line without a flag.
    shown
        The default, as it is typed.
    late
        Returns those of these attributes that are known only at run time: help and choices of what can be added to.
    required
        Whether there is no default.
    lacking
        What to do where it is required and not there.
    instead
        Of one that is required: a flag with which it need not be given, and the value that it has then.
    nargs
        How many texts follow it on the command line.
    decides
        Whether the result depends on it, so that a run that goes on must have the same value.
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
    argument: bool = False
    shown: str | None = None
    late: Callable[[], Mapping[str, Any]] | None = None
    required: bool = False
    lacking: str | None = None
    instead: Instead | None = None
    nargs: int = 1
    decides: bool = True
    values: Values | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags, as they are typed; both ways of a flag that has two."""
        typed = self.spellings or (f"--{self.name.replace('_', '-')}",)
        return tuple(flag for spelling in typed for flag in spelling.split("/"))

    @property
    def turns_off(self) -> bool:
        """True of a flag that sets its value to false."""
        return len(self.spellings) == 1 and self.spellings[0].startswith("--no-")


def whole_or_auto(text: str) -> int | Literal["auto"]:
    """Read a whole number, or "auto": the `type` of options that choose by themselves."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a whole number nor 'auto'.") from None


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers with commas between them."""
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of whole numbers such as 1,2,4.") from None


def byte_count(text: str) -> int:
    """Read an amount of memory, such as 4GiB, in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    size = math.inf if match is None else float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if not math.isfinite(size):
        raise ValueError(f"{text!r} is no size; write it as 4GiB, 512MiB or a number of bytes.")
    return int(size)


def byte_budget(text: str) -> int | str:
    """Read an amount of memory, "none" (0), or "auto"."""
    word = text.strip().lower()
    return word if word == "auto" else 0 if word == "none" else byte_count(text)


def installed_entry_points(group: str) -> list[EntryPoint]:
    """Entry points of the packages on Python's path, those that merely lie in the working folder left out.

    An empty entry of PYTHONPATH, as a trailing colon makes it, would have a command run what somebody left in a folder
    of data; that folder counts only where it is named in full.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it was removed, and nothing lies in it
        here = ""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    is_meant = any(os.path.isabs(folder) and os.path.realpath(folder) == here for folder in named)
    folders = [
        folder for folder in sys.path if os.path.isabs(folder) and (is_meant or os.path.realpath(folder) != here)
    ]
    points: dict[str, EntryPoint] = {}
    for point in _entry_points(tuple(folders)):
        if point.group == group:
            # Of two versions the one that imports find first counts.
            points.setdefault(point.name, point)
    return list(points.values())


@cache
def _entry_points(folders: tuple[str, ...]) -> list[EntryPoint]:
    """Those of all packages on a path: reading them takes as long for one group as for all."""
    return [point for distribution in distributions(path=list(folders)) for point in distribution.entry_points]


def load_entry_points(group: str, sort: str) -> None:
    """Import what installed packages name under a group; whoever cannot be imported is left out with a warning."""
    for point in installed_entry_points(group):
        try:
            point.load()
        except Exception as error:  # somebody else's package is not to take dkgp down
            warnings.warn(
                f"the {sort} '{point.name}' of an installed package ({point.value}) is left out: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


class Named(Protocol):
    """A declaration."""

    @property
    def name(self) -> str:
        """Name by which users call it."""


T = TypeVar("T", bound=Named)


@dataclass
class Registry(Generic[T]):
    """Declarations of one sort, by name.

    Parameters
    ----------
    sort
        What they are ("cluster kind"), for messages.
    package
        All modules of this package, and of those within it, are imported before the first look.
    group
        The entry point group in which installed packages name modules to be imported too.
    """

    sort: str
    package: str
    group: str
    _found: dict[str, T] = field(default_factory=dict, init=False)
    _imported: bool = field(default=False, init=False)
    _lock: Any = field(default_factory=RLock, init=False, repr=False)

    def add(self, declared: T) -> T:
        """Add a declaration; `UsageError` where another one has its name."""
        present = self._found.setdefault(declared.name, declared)
        if present is not declared and present != declared:
            raise UsageError(f"there are two {self.sort}s '{declared.name}': {present} and {declared}; rename one")
        return declared

    def all(self) -> dict[str, T]:
        """Return all declarations, by name; dkgp's own before those of others."""
        with self._lock:
            if not self._imported:
                self._imported = True  # beforehand: what is imported may look itself
                try:
                    self._import()
                except BaseException:
                    self._imported = False
                    raise
        return dict(self._found)

    def find(self, name: str) -> T:
        """Return the declaration of that name; `UsageError` lists what there is."""
        known = self.all()
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"unknown {self.sort} {name!r}{hint}; known: {', '.join(sorted(known))}")
        return known[name]

    def _import(self) -> None:
        folder = importlib.import_module(self.package)
        for module in pkgutil.walk_packages(folder.__path__, f"{self.package}."):
            importlib.import_module(module.name)
        load_entry_points(self.group, self.sort)
