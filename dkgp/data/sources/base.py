"""The common form of all sources of samples: named columns, read block by block.

A source is a file, a Zarr group or several files in a row. It names its columns when it is made, and yields float64
blocks of the chosen columns, as often as needed. A value that cannot be read as a number is an `InputError` that
names column and place.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import shown
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import DkgpError, InputError, is_mistake

BLOCK_BYTES = 8 * 2**20
# Largest block that is made as long as a chunk; a longer chunk is read in parts, and decoded once for each.
_MOST_BLOCK_BYTES = 512 * 2**20
# A column takes about 1.5 KB while a source is ingested.
MOST_COLUMNS = 500_000
MOST_ROW_BYTES = 64 * 2**20
# Texts that stand for a missing value in a file that tells no types, as pandas takes them.
MISSING_TEXTS = frozenset(
    (
        *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
        *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)
# Up to here float64 holds every whole number.
EXACT = 2.0**53
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
# Kinds of NumPy types that are no numbers, and the remedy.
OTHER_KINDS = {
    "M": ("dates", "expected numbers. Name it as a `date`, which becomes seconds since 1970, or leave it out"),
    "m": ("durations", "expected numbers. Write them as numbers of one unit, or leave the column out"),
    "c": ("complex numbers", "expected real ones. Write real and imaginary parts as two columns, or leave it out"),
}


@dataclass(frozen=True)
class Column:
    """One column of a source.

    `name` is its name for the user; `array` and `index` are its place in the source ("" for a table's columns).
    `encode`, if there is one, makes numbers of its values, as labels need: called with values as they were read, the
    places of their rows, and True where the source tells no types (`column_values`).
    """

    name: str
    array: str
    index: int
    encode: Callable[..., FloatArray] | None = field(default=None, compare=False, repr=False)
    # Texts of `MISSING_TEXTS` that are values of this column.
    not_missing: frozenset[str] = field(default=frozenset(), compare=False, repr=False)


@dataclass(frozen=True)
class Block:
    """Consecutive samples of the columns asked for."""

    # Shape (rows, columns), float64; missing values are NaN.
    values: FloatArray
    # Where a row of the block (counted from 0) stands in its file, in words.
    place: Callable[[int], str]
    # How far the source is read, in its unit of progress.
    position: int


class ColumnError(InputError):
    """A value of a column that is no finite number; there may be more of the kind."""


class Source(ABC):
    """Something samples are read from; its `url` is shown in messages without secrets, `_address` is where it lies."""

    url: str
    # All that can be chosen, in the source's order.
    columns: tuple[Column, ...]
    # Those that an index counts, and that are features unless others are chosen.
    positional: tuple[Column, ...]
    # Of sources of named arrays: an array's columns.
    groups: dict[str, tuple[Column, ...]]
    # Progress when all is read, and its unit.
    total: int
    unit: str
    warnings: list[str]
    # Names that are there but cannot be chosen, and why.
    left_out: Mapping[str, str] = MappingProxyType({})

    def __init__(self, url: str, unit: str = "rows") -> None:
        self.url, self._address = shown(url), url
        self.unit, self.groups, self.warnings = unit, {}, []

    @cached_property
    def by_name(self) -> dict[str, list[Column]]:
        """The columns by their names, which may repeat."""
        columns: dict[str, list[Column]] = {}
        for column in self.columns:
            columns.setdefault(column.name, []).append(column)
        return columns

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
            part_names = {column.name for column in part.positional}
            if part.unit != first.unit:
                raise InputError(f"'{first.url}' and '{part.url}' differ in format; ingest one format at a time.")
            if part_names != names or len(part.positional) != len(first.positional):
                raise InputError(
                    f"'{part.url}' has {len(part.positional)} columns, {quoted(sorted(part_names))}; the first source, "
                    f"'{first.url}', has {len(first.positional)}, {quoted(sorted(names))}. All need the same columns."
                )

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples of all the parts, in order."""
        before = 0
        for part in self.parts:
            for block in part.blocks([_counterpart(part, column) for column in columns]):
                yield Block(block.values, block.place, before + block.position)
            before += part.total


def _counterpart(part: Source, column: Column) -> Column:
    for candidate in part.by_name.get(column.name, ()):
        if candidate.array == column.array:
            return replace(candidate, encode=column.encode, not_missing=column.not_missing)
    raise InputError(f"'{part.url}' has no column '{column.name}'; all sources need the same columns.")


def find_columns(source: Source, selector: str | int, role: str) -> tuple[Column, ...]:
    """The columns that a name or an index stands for.

    `selector` is the name of an array (all its columns) or of a column, NAME:COLUMN for one column of an array, or an
    index into the positional columns; a negative one counts from the end. `role` is their role, for messages
    ("target"). `InputError`, listing the available columns, if the name is missing or ambiguous.
    """
    if isinstance(selector, int | np.integer):
        return (_at(source.positional, int(selector), role, f"'{source.url}'"),)
    if selector in source.groups:
        return source.groups[selector]
    columns = source.by_name.get(selector, [])
    if len(columns) > 1:
        raise InputError(
            f"The column name '{selector}' occurs {len(columns)} times in '{source.url}'; names must differ."
        )
    if columns:
        return tuple(columns)
    array, colon, index = selector.rpartition(":")
    if colon and array in source.groups and _is_integer(index):
        return (_at(source.groups[array], int(index), role, f"'{array}' of '{source.url}'"),)
    if _is_integer(selector):
        return (_at(source.positional, int(selector), role, f"'{source.url}'"),)
    if selector in source.left_out:
        raise InputError(f"The {role} '{selector}' of '{source.url}' {source.left_out[selector]}.")
    names = list(source.groups) or list(source.by_name)
    is_part = any(selector in map(str.strip, name.split(",")) for name in names if "," in name)
    advice = " In a list of names, one with a comma stands in double quotes." if is_part else ""
    extra = [column.name for column in source.positional] if source.groups else []
    listed = quoted(names) + (f"; the columns are {quoted(extra)}" if extra and extra != names else "")
    raise InputError(f"There is no {role} '{selector}' in '{source.url}'; available: {listed}.{advice}")


def _at(columns: Sequence[Column], index: int, role: str, where: str) -> Column:
    if not -len(columns) <= index < len(columns):
        raise InputError(
            f"The {role} index {index} is out of range: {where} has {len(columns)} columns "
            f"(0 to {len(columns) - 1}, or -{len(columns)} to -1 from the end)."
        )
    return columns[index]


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


@contextmanager
def refused_as(message: str) -> Iterator[None]:
    """Turn the errors that a library raises about a file into an `InputError`; dkgp's own stay as they are.

    Libraries raise errors of any kind about damaged files. A mistake in dkgp's own lines (`is_mistake`) is raised
    unchanged.
    """
    try:
        yield
    except DkgpError:
        raise
    except Exception as error:
        if is_mistake(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{message}: {reason[:500]}") from error


def block_rows(n_columns: int, multiple_of: int = 1, row_bytes: int = 0) -> int:
    """Return the rows of a block of about `BLOCK_BYTES`: a multiple of the source's chunk length, unless that is long.

    `row_bytes` is the size of a row as it is stored, where that may be more than 8 bytes a column.
    """
    row_bytes = max(8 * n_columns, row_bytes, 1)
    rows = max(max(BLOCK_BYTES // row_bytes, 1) // multiple_of, 1) * multiple_of
    if rows * row_bytes <= _MOST_BLOCK_BYTES:
        return rows
    return max(-(-multiple_of // -(-multiple_of * row_bytes // _MOST_BLOCK_BYTES)), 1)


def require_bounded(n_columns: int, row_bytes: int, where: str) -> None:
    """Raise `InputError` for more columns, or longer rows, than are read: before memory is taken for them."""
    if n_columns > MOST_COLUMNS:
        raise InputError(
            f"{where} has {n_columns:,} columns; at most {MOST_COLUMNS:,} are read. Save it with the samples as rows, "
            "or with fewer features."
        )
    if row_bytes > MOST_ROW_BYTES:
        raise InputError(
            f"{where} has rows of {row_bytes:,} bytes; at most {MOST_ROW_BYTES:,} are read. Save numbers, or shorter "
            "texts."
        )


def matrix_of(
    columns: Sequence[Column], arrays: Mapping[str, NDArray[np.generic]], place: Callable[[int], str]
) -> FloatArray:
    """A block's values (rows, columns), from a block (rows, ...) of each array that has some of the columns.

    They are taken column by column, so that a message names the right one.
    """
    values = np.empty((len(next(iter(arrays.values()))), len(columns)))
    for position, column in enumerate(columns):
        values[:, position] = column_values(arrays[column.array][:, column.index], column, place)
    return values


def column_values(values: NDArray[np.generic], column: Column, place: Callable[[int], str]) -> FloatArray:
    """A column's values (rows,) as float64: as it encodes them, else as `numbers` does. Errors as there."""
    return numbers(values, column.name, place) if column.encode is None else column.encode(values, place)


def numbers(values: NDArray[np.generic], name: str, place: Callable[[int], str]) -> FloatArray:
    """A column's values, (rows,) or (rows, columns), as float64; missing ones (None, NaN) are NaN.

    `InputError` for text, dates, durations, complex numbers, objects, and for whole numbers that float64 cannot hold;
    it names column, row (see `Block.place`) and the text.
    """
    kind = values.dtype.kind
    if kind in "biuf":
        floats = values.astype(np.float64, copy=False)
        if kind in "iu" and values.dtype.itemsize == 8:
            require_whole(values, floats, name, place)
        return floats
    if kind in "USOT" and values.size:
        flat = values.reshape(len(values), -1)
        for row, entries in enumerate(flat):
            for entry in entries:
                if not isinstance(entry, _NUMBERS) and entry is not None:
                    text = entry.decode(errors="replace") if isinstance(entry, bytes) else str(entry)
                    raise text_error(name, text, place(row))
        if kind == "O":
            floats = np.asarray(values, dtype=np.float64)
            require_whole(values, floats, name, place)
            return floats
    holds, remedy = OTHER_KINDS.get(kind, ("other values", "expected numbers"))
    raise ColumnError(f"The column '{name}' holds {holds} ({values.dtype}, from {place(0)} on); {remedy}.")


def require_whole(values: NDArray[Any], floats: FloatArray, name: str, place: Callable[[int], str]) -> None:
    """Raise `InputError` for a whole number (rows, ...) that its float64 does not equal; it names column and row."""
    suspects = np.abs(floats) >= EXACT
    if values.dtype.kind in "iu" and suspects.any():  # most are exact, multiples of a power of two
        most = 2.0**63 if values.dtype.kind == "i" else 2.0**64
        suspects &= (floats >= most) | (np.where(floats < most, floats, 0.0).astype(values.dtype) != values)
    for index in zip(*np.nonzero(suspects), strict=True):
        number = float(floats[index])
        whole = _whole(values[index]) if math.isfinite(number) else None
        if whole is not None and whole != int(number):
            raise ColumnError(
                f"The column '{name}' holds the whole number {whole} in {place(int(index[0]))}, which float64 cannot "
                f"hold: it would become {int(number)}. Subtract an offset, or leave the column out, as an `id` if it "
                "identifies samples."
            )


def _whole(value: Any) -> int | None:
    """The whole number that a value or its text is; None of others."""
    if isinstance(value, float | np.floating):
        return None
    if isinstance(value, str):
        digits = value.strip()
        return int(digits) if digits.removeprefix("-").removeprefix("+").isdecimal() else None
    return int(value) if value == int(value) else None


def text_error(name: str, text: str, place: str, expected: str = "a number") -> ColumnError:
    """Return the error for text where a number is expected."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        advice = "It looks like a number with a decimal comma; save the file with decimal points."
    elif text.lstrip()[:1] in ("<", ">"):
        advice = "It looks like a measurement beyond a detection limit; write a number, or leave the field empty."
    else:
        advice = (
            "Write a number, leave the field empty if the value is missing, or leave the column out. Name a column of "
            "categories in `categorical`, and a target of classes in `labels`."
        )
    return ColumnError(f"The column '{name}' holds the text '{shown}' in {place}; expected {expected}. {advice}")


def row_places(url: str, first_row: int) -> Callable[[int], str]:
    """The place of a row in a source without lines, for `Block.place`."""
    return lambda row: f"row {first_row + row + 1} of '{url}' (the first row is 1)"
