"""CSV and other delimited text, plain or compressed, streamed in blocks of whole lines.

Every line's fields are counted before pandas parses the block: its parser fills short lines with NaN without a word.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd

from dkgp.data.remote.storage import object_bytes, open_object
from dkgp.data.sources.base import EXACT, Block, Column, Source, numbers, refused_as, require_whole, text_error
from dkgp.data.sources.formats import FORMATS, Format
from dkgp.data.types import FloatArray, IntArray, quoted
from dkgp.errors import InputError
from dkgp.registry import Option

_READ_BYTES = 4 * 2**20
LONGEST_LINE_BYTES = 64 * 2**20
_DELIMITERS = (",", ";", "\t", "|")
SPACES = r"\s+"
# From 3.1 on pandas converts every number exactly, and deprecates asking for it.
_EXACT: dict[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_COMPRESSION: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)


class CsvSource(Source):
    """A text file of delimited numbers.

    The delimiter (comma, semicolon, tab, bar or blanks) is found from the first line; compression (gzip, bzip2, xz) is
    recognised by content. The first line is a header of names, where `header` does not say it, if some column is text
    there and a number in the second line, or if all of it is text, or if it counts 0, 1, 2, ... (also after an empty
    field); without a header the columns are x0, x1, ... `InputError` where the file is empty, not text, or damaged.
    """

    def __init__(self, url: str, header: bool | None = None) -> None:
        super().__init__(url, "bytes")
        self.total = object_bytes(url)
        first_lines = self._first_lines(2)
        if not first_lines:
            raise InputError(f"'{self.url}' is empty; expected lines of delimited numbers.")
        self._delimiter = delimiter_of(first_lines[0])
        rows = [self._fields(line, 1 + index) for index, line in enumerate(first_lines)]
        self._has_header = self._looks_like_header(rows) if header is None else header
        self._n_fields = len(rows[0])
        self.columns = tuple(Column(name, "", index) for index, name in enumerate(self._names(rows[0])))
        self.positional = self.columns

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        skip_header = self._has_header
        for text, first_line, position in self._line_blocks():
            content, lines = self._audited(text, first_line)
            if skip_header and len(lines):
                content, lines = _without_first_line(content), lines[1:]
                skip_header = False
            if len(lines):
                place = self._places(lines)
                yield Block(self._parsed(content, lines, columns, place), place, position)

    def _looks_like_header(self, rows: list[list[str]]) -> bool:
        numbered = _names_are_numbers(rows)
        if numbered is None:
            raise InputError(
                f"The first line of '{self.url}' is an empty field, then the rising whole numbers "
                f"{quoted(rows[0][1:])}: a header, or a sample with a missing value. Say which by `header`."
            )
        return numbered or _looks_like_header(rows)

    def _parsed(
        self, content: bytes, lines: IntArray, columns: Sequence[Column], place: Callable[[int], str]
    ) -> FloatArray:
        encoded = [column.index for column in columns if column.encode is not None]
        frame = self._frame(content, lines, {column.index for column in columns}, encoded)
        if len(frame) != len(lines):
            raise InputError(
                f"Lines {lines[0]} to {lines[-1]} of '{self.url}' hold {len(lines)} samples but parse as {len(frame)}; "
                "check their quotes."
            )
        values = np.empty((len(frame), len(columns)))
        for position, column in enumerate(columns):
            cells = frame[column.index]
            if column.encode is not None:
                values[:, position] = column.encode(cells.to_numpy(dtype=object), place, untyped=True)
            else:
                values[:, position] = floats = _numeric(cells, column.name, place)
                if cells.dtype.kind == "f" and (np.abs(floats) >= EXACT).any():
                    texts = self._frame(content, lines, {column.index}, [column.index])[column.index]
                    require_whole(texts.to_numpy(dtype=object), floats, column.name, place)
        return values

    def _frame(self, content: bytes, lines: IntArray, indices: set[int], texts: Sequence[int]) -> pd.DataFrame:
        """Parse some columns, `texts` among them without a look at their types."""
        try:
            return pd.read_csv(
                io.BytesIO(content),
                header=None,
                names=range(self._n_fields),
                usecols=sorted(indices),
                index_col=False,
                sep=self._delimiter,
                skipinitialspace=True,
                dtype=dict.fromkeys(texts, object),
                **_EXACT,
                encoding_errors="replace",
                low_memory=False,
            )
        except (ValueError, OverflowError) as error:  # pandas' ParserError is a ValueError
            raise InputError(f"Lines {lines[0]} to {lines[-1]} of '{self.url}' cannot be parsed: {error}") from error

    def _audited(self, text: bytes, first_line: int) -> tuple[bytes, IntArray]:
        """The block without blank lines, and the numbers of the lines left; all have the right number of fields."""
        if b"\x00" in text:  # which older releases of pandas take for a value's end
            line = first_line + text.count(b"\n", 0, text.index(b"\x00"))
            raise InputError(f"The control character '\\x00' stands in line {line} of '{self.url}'; remove it.")
        counts = self._field_counts(text)
        lines = first_line + np.arange(len(counts), dtype=np.int64)
        suspects = np.flatnonzero(counts != self._n_fields)
        if self._n_fields == 1:
            suspects = np.arange(len(counts))
        if not len(suspects):
            return text, lines
        pieces = text.split(b"\n")
        blank = np.zeros(len(counts), dtype=bool)
        for index in suspects:
            blank[index] = not pieces[index].strip()
            if not blank[index] and counts[index] != self._n_fields:
                raise InputError(
                    f"Line {first_line + index} of '{self.url}' has {counts[index]} fields; expected {self._n_fields}, "
                    f"as in the first line (delimiter {self._delimiter_name}). Mend or remove that line."
                )
        kept = [piece for piece, is_blank in zip(pieces, blank, strict=False) if not is_blank]
        return b"\n".join(kept) + b"\n" if kept else b"", lines[~blank]

    def _field_counts(self, text: bytes) -> IntArray:
        """The number of fields of each line."""
        if self._delimiter == SPACES or b'"' in text:
            lines = text.split(b"\n")[:-1]
            if self._delimiter == SPACES and b'"' not in text:
                return np.array([len(line.split()) for line in lines], dtype=np.int64)
            separator = self._delimiter.encode()
            first = 0  # the caller names the line; here only the count matters
            return np.array(
                [
                    len(self._fields(line.decode(errors="replace"), first + index + 1))
                    if b'"' in line
                    else line.count(separator) + 1
                    for index, line in enumerate(lines)
                ],
                dtype=np.int64,
            )
        codes = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(codes == ord("\n"))
        delimiters = np.flatnonzero(codes == ord(self._delimiter))
        return np.diff(np.searchsorted(delimiters, ends), prepend=0).astype(np.int64) + 1

    def _fields(self, line: str, line_number: int) -> list[str]:
        if self._delimiter == SPACES:
            return line.split()
        try:
            return next(csv.reader([line], delimiter=self._delimiter, skipinitialspace=True, strict=True), [""])
        except csv.Error as error:
            raise InputError(
                f"Line {line_number} of '{self.url}' has unbalanced quotes ({error}). "
                "A quoted field with a line break inside is not supported."
            ) from error

    def _names(self, fields: list[str]) -> list[str]:
        if not self._has_header:
            return [f"x{index}" for index in range(len(fields))]
        names = [name.strip() for name in fields]
        names[0] = names[0].removeprefix("#").strip()
        for index, name in enumerate(names):
            if not name:
                names[index] = f"column_{index}"
                self.warnings.append(
                    f"Column {index} of '{self.url}' has no name; it is called 'column_{index}'. "
                    "If it is a row number, choose the features without it."
                )
        return names

    def _places(self, lines: IntArray) -> Callable[[int], str]:
        return lambda row: f"line {lines[row]} of '{self.url}'"

    @property
    def _delimiter_name(self) -> str:
        return {"\t": "tab", SPACES: "blanks"}.get(self._delimiter, f"'{self._delimiter}'")

    def _first_lines(self, count: int) -> list[str]:
        lines: list[str] = []
        for text, _, _ in self._line_blocks(64 * 1024):
            for piece in text.decode(errors="replace").split("\n"):
                if piece.strip():
                    lines.append(piece.rstrip("\r"))
                if len(lines) == count:
                    return lines
        return lines

    def _line_blocks(self, read_bytes: int | None = None) -> Iterator[tuple[bytes, int, int]]:
        """Whole lines, each ended by a newline; the number of the first of them; the position in the file."""
        # Opened twice, because some web servers give a file from its beginning only.
        with open_object(self._address) as raw:
            magic = raw.read(6)
        with open_object(self._address) as raw:
            stream = _decompressed(raw, magic)
            rest, line = b"", 1
            while True:
                with refused_as(f"'{self.url}' is truncated or damaged"):
                    piece = stream.read(read_bytes or _READ_BYTES)
                if line == 1 and not rest:
                    piece = self._without_byte_order_mark(piece)
                text = rest + piece
                cut = len(text) if not piece else text.rfind(b"\n") + 1
                block, rest = text[:cut], text[cut:]
                if len(rest) > LONGEST_LINE_BYTES:
                    raise InputError(f"Line {line} of '{self.url}' is longer than 64 MiB; this is not delimited text.")
                if block:
                    block = block if block.endswith(b"\n") else block + b"\n"
                    yield block, line, int(raw.tell())
                    line += block.count(b"\n")
                if not piece:
                    return

    def _without_byte_order_mark(self, piece: bytes) -> bytes:
        if piece.startswith(_UTF_16):
            raise InputError(
                f"'{self.url}' is UTF-16 text; expected UTF-8. Convert it first (iconv -f UTF-16 -t UTF-8)."
            )
        return piece.removeprefix(b"\xef\xbb\xbf")


def _decompressed(raw: BinaryIO, magic: bytes) -> BinaryIO:
    for start, opener in _COMPRESSION:
        if magic.startswith(start):
            return cast(BinaryIO, opener(raw))
    return raw


def delimiter_of(line: str, decimal: str = ".") -> str:
    """Return the delimiter of a line: comma, semicolon, tab, bar, or `SPACES`; a comma where there is none.

    A decimal comma is no delimiter.
    """
    counts = {delimiter: line.count(delimiter) for delimiter in _DELIMITERS if delimiter != decimal}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    if counts[best]:
        return best
    return SPACES if len(line.split()) > 1 else ","


def _looks_like_header(rows: list[list[str]]) -> bool:
    text = [not is_number(field) for field in rows[0]]
    if not any(text):
        return False
    if all(text) or len(rows) == 1:
        return True
    return any(
        is_text and bool(field.strip()) and is_number(field) for is_text, field in zip(text, rows[1], strict=False)
    )


def _names_are_numbers(rows: list[list[str]]) -> bool | None:
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


def is_number(field: str) -> bool:
    """True of a number's text, and of an empty one."""
    if "_" in field:
        return False
    try:
        float(field.strip() or "nan")
    except ValueError:
        return False
    return True


def _without_first_line(content: bytes) -> bytes:
    return content[content.index(b"\n") + 1 :]


def _numeric(values: Any, name: str, place: Callable[[int], str]) -> FloatArray:
    if values.dtype.kind in "biuf":
        return numbers(values.to_numpy(), name, place)
    converted = pd.to_numeric(values, errors="coerce")
    bad = np.asarray(converted.isna() & ~values.isna())
    if bad.any():
        row = int(np.argmax(bad))
        raise text_error(name, str(values.iloc[row]), place(row))
    floats = np.asarray(converted.to_numpy(dtype=np.float64))
    require_whole(values.to_numpy(dtype=object), floats, name, place)
    return floats


FORMATS.add(
    Format(
        "CSV and other delimited text",
        CsvSource,
        suffixes=(".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz"),
        # Of compressed files, and of UTF-16, which has words of its own.
        magics=(*(magic for magic, _ in _COMPRESSION), *_UTF_16),
        options=(
            Option(
                "header",
                "Whether text has a header.  [default: find out]",
                type=bool,
                spellings=("--header/--no-header",),
            ),
        ),
        takes_text=True,
    )
)
