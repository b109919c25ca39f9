"""Progress of long work, as callbacks receive it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Progress:
    """Progress of a long piece of work; handed to a progress callback.

    `total` is None while it is not known. `unit` is the unit of `done` and `total` ("rows", "bytes"). Work of a single
    phase is called by its unit.
    """

    phase: str
    done: int
    total: int | None
    unit: str


ProgressCallback: TypeAlias = Callable[[Progress], None]
