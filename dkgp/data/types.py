"""Type names that the data layer shares, and how its messages list names."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Json: TypeAlias = dict[str, Any]
Location: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Progress:
    """Progress of a long piece of work; handed to a progress callback.

    `total` is None while it is not known. `unit` says what `done` and `total` count ("rows", "bytes").
    """

    phase: str
    done: int
    total: int | None
    unit: str


ProgressCallback: TypeAlias = Callable[[Progress], None]


def quoted(names: Sequence[str]) -> str:
    """A list of names for a message, cut after the twentieth."""
    shown = ", ".join(f"'{name}'" for name in names[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def joined(names: Iterable[str]) -> str:
    """Return names as one text, separated by commas; a name with a comma or a quote stands in double quotes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def split_names(text: str) -> list[str]:
    """Return the names that `joined` made one text of; quotes that are not balanced belong to names."""
    try:
        names = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error:
        names = text.split(",")
    return [name.strip() for name in names if name.strip()]
