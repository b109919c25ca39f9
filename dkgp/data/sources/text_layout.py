"""Layout of delimited text: delimiter, comments, header, row names and trailing delimiters, from its first lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dkgp.data.sources.tables.notation import NOTATIONS
from dkgp.data.types import quoted
from dkgp.errors import InputError

DELIMITERS = (",", ";", "\t", "|")
SPACES = r"\s+"
ROW_NAMES = "row_names"
# Between blanks a field may stand in quotes, within which two quotes are one.
_FIELD = re.compile(r'"(?:[^"]|"")*"(?=\s|$)|\S+')
# Lines that the layout is read from, and fields of each that are looked at for numbers.
MOST_LINES, _MOST_FIELDS = 20, 200


@dataclass(frozen=True)
class TextLayout:
    """The layout of a file of delimited text.

    Attributes
    ----------
    delimiter
        One of `DELIMITERS`, or `SPACES`.
    names
        Of all fields of a line; those without a name are empty.
    has_header
        Whether the names stand in the file.
    first_line
        The number of the first line of samples.
    has_row_names
        Whether the first field of each line names the line, and the header has no name for it, as R writes it.
    is_trailing
        Whether each line ends with a delimiter, so that its last field is no column.
    comments
        Lines before the samples that are not read.
    """

    delimiter: str
    names: tuple[str, ...]
    has_header: bool
    first_line: int
    has_row_names: bool = False
    is_trailing: bool = False
    comments: int = 0

    @classmethod
    def of_lines(cls, lines: Sequence[tuple[int, str]], header: bool | None, url: str) -> TextLayout:
        """Return the layout of a file by its first lines that are not blank, and their numbers.

        `header` says whether there is one, None to find out. Raises `InputError` where the first line may be a header
        or a sample, or its quotes are unbalanced.
        """
        n_comments = next((k for k, (_, line) in enumerate(lines) if not line.lstrip().startswith("#")), 0)
        comments, body = lines[:n_comments], lines[n_comments:]
        delimiter = find_delimiter([line for _, line in body])
        rows = [split_fields(line, delimiter, f"Line {number} of '{url}'") for number, line in body]
        is_short = _has_row_names([line for _, line in body], rows, delimiter)
        fields: list[str] | None = None
        if comments and header is not False and not any(_is_text(field) for field in rows[0]):
            fields = _fields_of_comment(comments[-1][1], len(rows[0]), delimiter)
            n_comments -= fields is not None
        if fields is None and (header if header is not None else is_short or _has_header(rows, url)):
            fields, rows, body = rows[0], rows[1:], body[1:]
        else:
            is_short = False
        first_line = body[0][0] if body else lines[-1][0] + 1
        if fields is None:
            is_trailing = len(rows[0]) > 1 and _end_empty(rows)
            return cls(delimiter, ("",) * len(rows[0]), False, first_line, False, is_trailing, n_comments)
        names = [name.strip() for name in fields]
        names[0] = names[0].removeprefix("#").strip()
        is_trailing = len(names) > 1 and not names[-1] and _end_empty(rows)
        if is_short and _end_empty(rows) and not body[0][1].lstrip().startswith('"'):
            is_short, is_trailing = False, True
            names.append("")
        if is_short:
            names.insert(0, ROW_NAMES if ROW_NAMES not in names else f"{ROW_NAMES}_")
        return cls(delimiter, tuple(names), True, first_line, is_short, is_trailing, n_comments)

    @property
    def delimiter_name(self) -> str:
        """The delimiter in words."""
        return {"\t": "tab", SPACES: "blanks"}.get(self.delimiter, f"'{self.delimiter}'")


def split_fields(line: str, delimiter: str, where: str) -> list[str]:
    """Split a line into fields without their quotes; `InputError` for unbalanced ones, which names `where`."""
    if delimiter == SPACES:
        return [
            field[1:-1].replace('""', '"') if len(field) > 1 and field[0] == field[-1] == '"' else field
            for field in _FIELD.findall(line)
        ]
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True), [""])
    except csv.Error as error:
        raise InputError(
            f"{where} has unbalanced quotes ({error}). A quoted field with a line break inside is not supported."
        ) from error


def delimiter_of(line: str, decimal: str = ".") -> str:
    """Return the delimiter of a line: comma, semicolon, tab, bar, or `SPACES`; a comma where there is none.

    A decimal comma is no delimiter.
    """
    counts = {delimiter: line.count(delimiter) for delimiter in DELIMITERS if delimiter != decimal}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    if counts[best]:
        return best
    return SPACES if len(line.split()) > 1 else ","


def find_delimiter(lines: Sequence[str]) -> str:
    """Return the delimiter of lines: of those that cut all lines alike, the one that leaves the most numbers.

    A first line of one field less counts as alike only where no other delimiter does better. Decimal commas are
    numbers, so that a semicolon beside them is the delimiter. Where none cuts all lines alike, it is that of the first
    line.
    """
    scores: dict[str, tuple[bool, float, int]] = {}
    for delimiter in (*DELIMITERS, SPACES):
        try:
            rows = [split_fields(line, delimiter, "") for line in lines]
        except InputError:
            continue
        samples = rows[1:] or rows
        width = len(samples[0])
        alike = all(len(row) == width for row in samples) and len(rows[0]) in (width, width - 1)
        if width > 1 and alike:
            fields = [field for row in samples for field in row[:_MOST_FIELDS]]
            share = sum(reads_like_number(field) for field in fields) / len(fields)
            # Blanks stand within texts, too.
            if delimiter != SPACES or share >= 0.5:
                scores[delimiter] = len(rows[0]) == width, share, width if delimiter != SPACES else 0
    return max(scores, key=lambda delimiter: scores[delimiter]) if scores else delimiter_of(lines[0])


def is_number(field: str) -> bool:
    """True of a number's text, and of an empty one."""
    if "_" in field:
        return False
    try:
        float(field.strip() or "nan")
    except ValueError:
        return False
    return True


def reads_like_number(field: str) -> bool:
    """True of a number's text, also one with a decimal comma or marks between thousands, and of an empty one."""
    return is_number(field) or any(notation.number(field) is not None for notation in NOTATIONS)


def _is_text(field: str) -> bool:
    return not reads_like_number(field)


def _end_empty(rows: Sequence[Sequence[str]]) -> bool:
    """True if the last field of each row is empty."""
    return bool(rows) and all(row and not row[-1].strip() for row in rows)


def _has_row_names(lines: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    """True if the first line has one field less than all others, and these begin with a name or end with a delimiter.

    R writes tables so: without a name for row names, which stand in quotes unless blanks delimit the fields.
    """
    width, samples = len(rows[0]), rows[1:]
    if not samples or any(len(row) != width + 1 for row in samples):
        return False
    return delimiter == SPACES or _end_empty(samples) or all(line.lstrip().startswith('"') for line in lines[1:])


def _fields_of_comment(line: str, n_fields: int, delimiter: str) -> list[str] | None:
    """Return the names that a comment holds, whatever delimits them; None if they are not as many as the fields."""
    text = line.lstrip().lstrip("#").strip()
    for candidate in dict.fromkeys((*((delimiter,) if delimiter != SPACES else ()), *DELIMITERS, SPACES)):
        try:
            fields = split_fields(text, candidate, "")
        except InputError:
            continue
        if len(fields) == n_fields and not all(is_number(field) for field in fields):
            return fields
    return None


def _has_header(rows: Sequence[Sequence[str]], url: str) -> bool:
    """True if the first row names the columns."""
    numbered = _names_are_numbers(rows)
    if numbered is None:
        raise InputError(
            f"The first line of '{url}' is an empty field, then the rising whole numbers {quoted(rows[0][1:])}: a "
            "header, or a sample with a missing value. Say which by `header`."
        )
    if numbered:
        return True
    text = [_is_text(field) for field in rows[0]]
    if not any(text):
        return False
    if all(text) or len(rows) == 1:
        return True
    return any(
        is_text and bool(field.strip()) and reads_like_number(field)
        for is_text, field in zip(text, rows[1], strict=False)
    )


def _names_are_numbers(rows: Sequence[Sequence[str]]) -> bool | None:
    """Return True if the first line numbers the columns, as pandas and R write them; None if it may be a sample.

    The index that they write first has an empty name. A sample that reads 0, 1, 2, ... in order is far less likely.
    """
    fields = [field.strip() for field in rows[0]]
    labels = fields if fields[0] else fields[1:]
    if not labels or not all(label.isdecimal() for label in labels):
        return False
    counted = labels == [str(index) for index in range(len(labels))]
    if fields[0]:
        return counted and len(labels) > 2
    if counted:
        index = rows[1][0].strip() if len(rows) > 1 and rows[1] else "0"
        return len(labels) > 1 or index == "0" or not is_number(index)
    rising = all(int(low) < int(high) for low, high in pairwise(labels))
    return None if rising and len(labels) > 1 else False
