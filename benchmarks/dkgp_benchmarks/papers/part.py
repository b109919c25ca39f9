"""Parts of `dkgp bench papers`: one for each experiment of a paper, declared in a file of `papers.parts`.

A part says what the paper shows, with which settings it is measured in minutes and at the paper's own sizes, and on
which data sets. The plain command and the report (`dkgp_benchmarks.report`) run the same parts, and nothing else.

A module of `dkgp_benchmarks.papers.parts` imports what it measures with when it runs, not before: the command's help
imports them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkgp.registry import Registry
from dkgp_benchmarks.papers.verdicts.verdict import Judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter
    from dkgp_benchmarks.library import Library

Settings = dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    """A picture that is still to be drawn.

    Attributes
    ----------
    name
        Of its file, without the ending.
    draw
        Draws it; called once.
    width, height
        In inches.
    """

    name: str
    draw: Callable[[Figure], None]
    width: float = 11.0
    height: float = 4.5


@dataclass(frozen=True)
class Shown:
    """A table of a part, as `dkgp_benchmarks.papers.tables.section` makes it, and the picture that belongs to it."""

    section: Document
    drawing: Drawing | None = None


@dataclass(frozen=True)
class Work:
    """Settings, data and places that a part is given.

    Attributes
    ----------
    settings
        The part's own, of the size that was asked for; what a user gave stands in their place.
    variant
        The data set, of a part that has several.
    items
        Those of its tables and figures that are wanted.
    library
        Data sets.
    folder
        An empty one, which is removed afterwards.
    reporter
        Takes progress.
    keep
        `keep("draw-3", make)` returns what `make` returns, a JSON object; in a report it is kept on disk until the part
        is done, and not made again where the part was interrupted.
    record
        File for figures of a bench that keeps a record of its own; None where nothing is kept.
    """

    settings: Settings
    variant: str
    items: tuple[str, ...]
    library: Library
    folder: Path
    reporter: Reporter
    keep: Callable[[str, Callable[[], Document]], Document]
    record: Path | None = None

    @property
    def seed(self) -> int:
        """Seed of all random draws."""
        return int(self.settings["seed"])


def _once(library: Library, problems: tuple[str, ...]) -> tuple[str, ...]:
    return ("",)


def _nothing(variant: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Part:
    """An experiment of a paper.

    Attributes
    ----------
    name, paper, title
        By which users call it; a key of `dkgp_benchmarks.papers.published.PAPERS`; what the page calls it.
    shows
        What the paper shows there, with its numbers where they are in no table.
    items
        Its tables and figures as the command line names them: "table 2", "figure 3".
    run
        Measures, and yields its tables and pictures in order.
    quick, full
        All settings that determine what comes out, in JSON types: for a minute, and as in the paper.
    variants
        Of the data sets that are here those that it runs on, each by itself, given the data sets that a user named, as
        typed; none where nothing is here for it. `("",)` of a part that has one form.
    reads
        Files, without their ending, that a variant reads where they are there.
    missing
        What it needs, in words, where it has no variants.
    few
        Variants that the short form takes, unless a user names data sets; all by default, or where none of these is
        here.
    judge
        Holds its figures against the paper's; None where the paper prints none.
    """

    name: str
    paper: str
    title: str
    shows: str
    items: tuple[str, ...]
    run: Callable[[Work], Iterator[Shown]]
    quick: Mapping[str, Any]
    full: Mapping[str, Any]
    variants: Callable[[Library, tuple[str, ...]], tuple[str, ...]] = _once
    reads: Callable[[str], tuple[str, ...]] = _nothing
    missing: str = ""
    few: tuple[str, ...] = ()
    judge: Judge | None = None

    def settings(self, *, full: bool, given: Mapping[str, Any]) -> Settings:
        """Settings of one size; what is given and the part has, replaces its own."""
        settings = {"seed": 0, **(self.full if full else self.quick)}
        return {**settings, **{name: value for name, value in given.items() if name in settings}}

    def verdicts(self, sections: Sequence[Document], variant: str) -> list[Document]:
        """Hold tables of a data set against the paper's."""
        return [] if self.judge is None or not sections else self.judge.verdicts(sections, variant)


PARTS: Registry[Part] = Registry("part of a paper", "dkgp_benchmarks.papers.parts", "dkgp.papers")


@dataclass(frozen=True)
class Unit:
    """A part on one data set, with its settings: what is measured, recorded and resumed by itself."""

    part: Part
    variant: str
    settings: Settings = field(hash=False)
    items: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The part's, with the data set."""
        return f"{self.part.name}:{self.variant}" if self.variant else self.part.name

    @property
    def title(self) -> str:
        """The part's, with the data set."""
        return f"{self.part.title}: {self.variant}" if self.variant else self.part.title

    def asked(self, library: Library) -> Document:
        """All that determines what comes out, but the machine and dkgp's version: settings and the data's bytes."""
        files = {name: _digest(library, name) for name in self.part.reads(self.variant)}
        return {"part": self.part.name, "variant": self.variant, "settings": self.settings, "data": files}

    def run(
        self,
        library: Library,
        folder: Path,
        reporter: Reporter,
        keep: Callable[[str, Callable[[], Document]], Document] = lambda name, make: make(),
        record: Path | None = None,
    ) -> Iterator[Shown]:
        """Measure; yield the tables and figures that are wanted."""
        items = self.items or self.part.items
        work = Work(self.settings, self.variant, items, library, folder, reporter, keep, record)
        for shown in self.part.run(work):
            kind = str(shown.section["section"]).partition(":")[0].replace("_", " ")
            if kind in items or kind not in self.part.items:
                yield shown


def _digest(library: Library, name: str) -> str | None:
    """SHA-256 of a file of the library; None where it is not there."""
    if library.folder is None or not library.path(name).is_file():
        return None
    path = library.path(name)
    status = path.stat()
    return _digest_of(path, status.st_size, status.st_mtime_ns)


@lru_cache
def _digest_of(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
