"""The common form of all sources of samples: named columns, read block by block.

A source is a file, a Zarr group or several files in a row. It names its columns when it is made, and yields float64
blocks of the columns that are asked for, as often as it is asked. Whatever cannot be read as a number is an
`InputError` that names column and place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError

__all__ = [
    "BLOCK_BYTES",
    "Block",
    "Column",
    "ConcatenatedSource",
    "Source",
    "block_rows",
    "column_values",
    "find_columns",
    "numbers",
    "row_places",
    "text_error",
]

BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Column:
    """One column of a source.

    `name` is what the user calls it; `array` and `index` are where the source finds it ("" for a table's columns).
    `encode`, if there is one, makes numbers of its values, as labels need: called with values as they were read, the
    places of their rows, and True where the source tells no types (`column_values`).
    """

    name: str
    array: str
    index: int
    encode: Callable[..., FloatArray] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Block:
    """Consecutive samples.

    Attributes
    ----------
    values
        Shape (rows, number of columns asked for), float64; missing values are NaN.
    place
        Where a row of the block (counted from 0) stands in its file, in words.
    position
        How far the source is read, in its unit of progress.
    """

    values: FloatArray
    place: Callable[[int], str]
    position: int


class Source(ABC):
    """Something samples are read from.

    Attributes
    ----------
    url
        Where it is.
    columns
        All that can be chosen, in the source's order.
    positional
        Those that an index counts, and that are features unless others are chosen.
    groups
        Array name -> its columns, for sources of named arrays.
    total, unit
        Progress when all is read, and what it counts.
    warnings
        What the user should hear of.
    left_out
        Names that are there but cannot be chosen, and why.
    """

    left_out: Mapping[str, str] = MappingProxyType({})
    url: str
    columns: tuple[Column, ...]
    positional: tuple[Column, ...]
    groups: dict[str, tuple[Column, ...]]
    total: int
    unit: str
    warnings: list[str]

    @abstractmethod
    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples from the first on, of the chosen columns, in their order."""


class ConcatenatedSource(Source):
    """Several sources of the same columns, one after another. Columns are matched by name.

    Raises `InputError` where a part has other columns than the first.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        first = parts[0]
        self.parts = tuple(parts)
        self.url = first.url
        self.columns, self.positional, self.groups = first.columns, first.positional, first.groups
        self.total = sum(part.total for part in parts)
        self.unit = first.unit
        self.warnings = list(dict.fromkeys(message for part in parts for message in part.warnings))
        names = {column.name for column in first.positional}
        for part in parts[1:]:
            others = {column.name for column in part.positional}
            if part.unit != first.unit:
                raise InputError(f"'{first.url}' and '{part.url}' differ in format; ingest one format at a time.")
            if others != names or len(part.positional) != len(first.positional):
                raise InputError(
                    f"'{part.url}' has {len(part.positional)} columns, {quoted(sorted(others))}; the first source, "
                    f"'{first.url}', has {len(first.positional)}, {quoted(sorted(names))}. All need the same columns."
                )

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples of all the parts, in order."""
        before = 0
        for part in self.parts:
            own = [_counterpart(part, column) for column in columns]
            for block in part.blocks(own):
                yield Block(block.values, block.place, before + block.position)
            before += part.total


def _counterpart(part: Source, column: Column) -> Column:
    for other in part.columns:
        if other.name == column.name and other.array == column.array:
            return replace(other, encode=column.encode)
    raise InputError(f"'{part.url}' has no column '{column.name}'; all sources need the same columns.")


def find_columns(source: Source, selector: str | int, what: str) -> tuple[Column, ...]:
    """The columns that a name or an index stands for.

    Parameters
    ----------
    source
        Where to look.
    selector
        The name of an array (all its columns), of a column, NAME:COLUMN for one column of an array, or an index into
        the positional columns; a negative one counts from the end.
    what
        What is looked for ("target"), for the message.

    Raises
    ------
    InputError
        There is none, or more than one of that name; the message lists what there is.
    """
    if isinstance(selector, int | np.integer):
        return (_at(source.positional, int(selector), what, f"'{source.url}'"),)
    if selector in source.groups:
        return source.groups[selector]
    found = [column for column in source.columns if column.name == selector]
    if len(found) > 1:
        raise InputError(
            f"The column name '{selector}' occurs {len(found)} times in '{source.url}'; names must differ."
        )
    if found:
        return tuple(found)
    array, colon, index = selector.rpartition(":")
    if colon and array in source.groups and _is_integer(index):
        return (_at(source.groups[array], int(index), what, f"'{array}' of '{source.url}'"),)
    if _is_integer(selector):
        return (_at(source.positional, int(selector), what, f"'{source.url}'"),)
    if selector in source.left_out:
        raise InputError(f"The {what} '{selector}' of '{source.url}' {source.left_out[selector]}.")
    names = list(source.groups) or [column.name for column in source.columns]
    extra = [column.name for column in source.positional] if source.groups else []
    listed = quoted(names) + (f"; the columns are {quoted(extra)}" if extra and extra != names else "")
    raise InputError(f"There is no {what} '{selector}' in '{source.url}'; available: {listed}.")


def _at(columns: Sequence[Column], index: int, what: str, where: str) -> Column:
    if not -len(columns) <= index < len(columns):
        raise InputError(
            f"The {what} index {index} is out of range: {where} has {len(columns)} columns "
            f"(0 to {len(columns) - 1}, or -{len(columns)} to -1 from the end)."
        )
    return columns[index]


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def block_rows(n_columns: int, multiple_of: int = 1) -> int:
    """Rows of a block of about `BLOCK_BYTES`, a multiple of the chunk length where the source has chunks."""
    rows = max(BLOCK_BYTES // (8 * max(n_columns, 1)), 1)
    return max(rows // multiple_of, 1) * multiple_of


def column_values(values: NDArray[np.generic], column: Column, place: Callable[[int], str]) -> FloatArray:
    """A column's values (rows,) as float64: as it encodes them, else as `numbers` does. Errors as there."""
    return numbers(values, column.name, place) if column.encode is None else column.encode(values, place)


def numbers(values: NDArray[np.generic], name: str, place: Callable[[int], str]) -> FloatArray:
    """A column's values as float64.

    Parameters
    ----------
    values
        Shape (rows,) or (rows, columns).
    name
        Of the column or array, for the message.
    place
        As in `Block`.

    Raises
    ------
    InputError
        Text, dates, complex numbers or objects; names column, row and the text.
    """
    if values.dtype.kind in "biuf":
        return values.astype(np.float64, copy=False)
    if values.dtype.kind in "USO" and values.size:
        flat = values.reshape(len(values), -1)
        for row, entries in enumerate(flat):
            for entry in entries:
                if not isinstance(entry, bool | int | float | np.number) and entry is not None:
                    text = entry.decode(errors="replace") if isinstance(entry, bytes) else str(entry)
                    raise text_error(name, text, place(row))
        if values.dtype.kind == "O":
            return np.asarray(values, dtype=np.float64)
    raise InputError(f"The column '{name}' holds values of type {values.dtype}; expected numbers ({place(0)}).")


def text_error(name: str, text: str, place: str) -> InputError:
    """The error for text where a number belongs."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    return InputError(
        f"The column '{name}' holds the text '{shown}' in {place}; expected a number. "
        "Leave the column out, turn it into numbers first, or take it as `labels` if it names classes."
    )


def row_places(url: str, first_row: int) -> Callable[[int], str]:
    """The place of a row in a source without lines, for `Block.place`."""
    return lambda row: f"row {first_row + row + 1} of '{url}' (the first row is 1)"
