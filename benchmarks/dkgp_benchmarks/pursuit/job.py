"""Settings that figures are made with, and a figure as it was measured; apart from `run`, which knows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dkgp.commands.reporting.outputs import Document
from dkgp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _anew(name: str, make: Callable[[], Document]) -> Document:
    return make()


@dataclass(frozen=True)
class BenchPursuitJob:
    """The figures to make, and of what.

    Attributes
    ----------
    figures
        Their numbers; all by default.
    data
        Folder of .npz files; what is not there is left out, or generated in its place, and said to be.
    problems
        Data sets of figures 9 to 13, in place of the paper's.
    draws
        Random repeats, in place of a figure's own default.
    full
        The paper's own repeats and sizes.
    n
        Training samples at most, of figures 11 to 13; the numbers of figure 6's signals.
    pool
        Prototypes to choose from, of figures 11 to 13.
    seed
        Seed of all random draws.
    plots, overwrite, out
        Folder of pictures, whether to replace them, file of the record.
    keep
        As of `dkgp_benchmarks.papers.part.Work`: what a figure of hours has measured is not measured again. By default
        nothing is kept.
    """

    figures: tuple[str, ...] = ()
    data: str | None = None
    problems: tuple[str, ...] = ()
    draws: int | None = None
    full: bool = False
    n: int | None = None
    pool: int | None = None
    seed: int = 0
    plots: str | None = None
    overwrite: bool = False
    out: str | None = None
    keep: Callable[[str, Callable[[], Document]], Document] = _anew

    def check(self) -> None:
        """Refuse, before any work, numbers that make no sense."""
        for name, least in (("draws", 1), ("n", 20), ("pool", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"`{name}` must be at least {least}; got {value}")

    def repeats(self, default: int, paper: int) -> int:
        """Random repeats of a figure."""
        return self.draws if self.draws is not None else paper if self.full else default


@dataclass(frozen=True)
class PaperFigure:
    """A figure as it was measured.

    Attributes
    ----------
    title
        Of the picture.
    rows
        Of the bench's table: data, method, what, value, and `spread` where there is one.
    figures
        Numbers that count, by name.
    curves
        All that was drawn, as JSON.
    draw
        Draws it.
    width, height
        Of the picture, in inches.
    """

    title: str
    rows: list[dict[str, Any]]
    figures: dict[str, Any]
    curves: dict[str, Any]
    draw: Callable[[Figure], None]
    width: float = 11.0
    height: float = 4.5
    remarks: list[str] = field(default_factory=list)
