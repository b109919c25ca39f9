"""Texts of columns that identify samples: numbers stand for them while a source is read, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.sources.base import OTHER_KINDS
from dkgp.data.sources.tables.encoding import Places, gaps, texts_of
from dkgp.data.types import FloatArray
from dkgp.errors import InputError

# Of UTF-8: what is longer than this identifies nothing, and would be repeated for every sample.
MOST_BYTES = 1024


class IdTexts:
    """Numbers the values of a column and keeps their texts until they are taken; `__call__` is a `Column.encode`.

    Every row has a text: a gap is an empty one. The text of a CSV is what stands there, blanks around it left out; of
    a number it is a whole one without ".0", else the shortest digits that give it back.

    Attributes
    ----------
    width
        Bytes of UTF-8 that the longest of all texts so far takes, at least 1.
    rows_seen
        Rows so far.
    """

    def __init__(self, name: str) -> None:
        self.name, self.width, self.rows_seen = name, 1, 0
        self._texts: list[str] = []
        self._first = 0

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """Numbers (rows,) of the next rows; `InputError` for a text of more than `MOST_BYTES` bytes."""
        values = np.asarray(values)
        empty = gaps(values)
        if values.dtype.kind in OTHER_KINDS:
            values = texts_of(values)
        for row, value in enumerate(values.tolist()):
            text = "" if empty[row] else _text(value)
            size = len(text.encode())
            if size > MOST_BYTES:
                raise InputError(
                    f"The id '{self.name}' takes {size:,} bytes in {place(row)}; expected at most {MOST_BYTES:,}. Drop "
                    "the column, or choose one that identifies samples by less."
                )
            self.width = max(self.width, size)
            self._texts.append(text)
        numbers = np.arange(self.rows_seen, self.rows_seen + len(values), dtype=np.float64)
        self.rows_seen += len(values)
        return numbers

    def take(self, numbers: FloatArray) -> NDArray[np.object_]:
        """The texts (rows,) of increasing numbers; they and all before them are forgotten."""
        rows = numbers.astype(np.int64) - self._first
        texts = np.array([self._texts[row] for row in rows], dtype=object)
        if len(rows):
            del self._texts[: rows[-1] + 1]
            self._first += int(rows[-1]) + 1
        return texts


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    # A zero would end the text where it is stored.
    return str(value).strip().rstrip("\0")
