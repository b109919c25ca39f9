"""CSV and other delimited text, plain or compressed, streamed in blocks of whole lines.

The first lines tell the layout: delimiter, comments, header, row names and trailing delimiters. Every line's fields are
counted before pandas parses the block, whose parser silently fills short lines with NaN.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from dkgp.data.remote.storage import object_bytes, open_object
from dkgp.data.sources.base import (
    EXACT,
    MISSING_TEXTS,
    Block,
    Column,
    Source,
    numbers,
    refused_as,
    require_bounded,
    require_whole,
    text_error,
)
from dkgp.data.sources.formats import FORMATS, Format
from dkgp.data.sources.tables.encoding import NOTATIONS
from dkgp.data.types import FloatArray, IntArray, quoted
from dkgp.errors import InputError, UsageError
from dkgp.registry import Option

if TYPE_CHECKING:
    # Commands that read no table do without it: it takes longer to load than all of dkgp.
    import pandas as pd

_READ_BYTES = 4 * 2**20
_SAMPLE_BYTES = 64 * 1024
LONGEST_LINE_BYTES = 64 * 2**20
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Encodings that programs still write. Others are refused; some of them take quadratic time.
ENCODINGS = (
    *("utf-8", "utf-16", "latin-1", "cp1252", "cp1250", "cp1251", "iso-8859-2", "iso-8859-15", "mac-roman", "cp437"),
    *("cp850", "koi8-r", "shift_jis", "euc-jp", "euc-kr", "gb18030", "big5"),
)
_WESTERN = "cp1252"
_COMPRESSION: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)


class CsvSource(Source):
    """A text file of delimited numbers.

    The layout (delimiter, comments, header, row names) is read from the first lines (`TextLayout`), and so is whether
    lines end by carriage returns alone; compression (gzip, bzip2, xz) is recognised by content. Without a header the
    columns are x0, x1, ...

    Parameters
    ----------
    url
        The file.
    header
        Whether the first line is a header; None to find out.
    encoding
        One of `ENCODINGS`; by default UTF-8, UTF-16 where the file begins with its mark, and Windows' Western European
        one, with a warning, where the first line is neither.

    Raises
    ------
    InputError
        The file is empty, not text, or damaged.
    UsageError
        An unknown encoding.
    """

    def __init__(self, url: str, header: bool | None = None, encoding: str | None = None) -> None:
        super().__init__(url, "bytes")
        if encoding is not None and encoding.lower() not in ENCODINGS:
            raise UsageError(f"`encoding` is {encoding!r}; expected one of {', '.join(ENCODINGS)}")
        self.total = object_bytes(url)
        self._encoding, self._ends_by_returns, self._is_recognised = encoding, False, False
        lines = self._first_lines()
        if not lines:
            raise InputError(f"'{self.url}' is empty; expected lines of delimited numbers.")
        most_fields = max(line.count(mark) for _, line in lines for mark in ",;\t|") + 1
        require_bounded(most_fields, 0, f"A line of '{self.url}'")
        self._layout = TextLayout.of_lines(lines, header, self.url)
        self._delimiter, self._n_fields, self._decimal = self._layout.delimiter, len(self._layout.names), "."
        names = self._names()
        columns = [Column(name, "", index) for index, name in enumerate(names)]
        self.columns = tuple(columns[:-1] if self._layout.is_trailing else columns)
        self.positional = self.columns[1:] if self._layout.has_row_names else self.columns

    @property
    def delimiter(self) -> str:
        """One of `DELIMITERS`, or `SPACES`."""
        return self._delimiter

    def take_decimal_commas(self) -> bool:
        """Read numbers with decimal commas if the first lines have such numbers, and no others; return whether.

        Semicolons or tabs delimit the fields, a number has a comma that cannot stand between thousands, and none has a
        decimal point.
        """
        if self._delimiter in (";", "\t"):
            fields = [field.strip() for _, line in self._first_lines() for field in line.split(self._delimiter)]
            has_commas = any(_DECIMAL_COMMA.fullmatch(field) for field in fields)
            if has_commas and not any("," not in field and "." in field and is_number(field) for field in fields):
                self._decimal = ","
        return self._decimal == ","

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        for text, first_line, position in self._line_blocks():
            before = self._layout.first_line - first_line
            if before > 0:  # header and comments, which may fill blocks
                pieces = text.split(b"\n", before)
                if len(pieces) <= before:
                    continue
                text, first_line = pieces[before], first_line + before
            content, lines = self._audited(text, first_line)
            if len(lines):
                place = self._places(lines)
                yield Block(self._parsed(content, lines, columns, place), place, position)

    def _parsed(
        self, content: bytes, lines: IntArray, columns: Sequence[Column], place: Callable[[int], str]
    ) -> FloatArray:
        encoded = [column.index for column in columns if column.encode is not None]
        trailing = {self._n_fields - 1} if self._layout.is_trailing else set()
        missing = {column.index: MISSING_TEXTS - column.not_missing for column in columns if column.not_missing}
        frame = self._frame(content, lines, {column.index for column in columns} | trailing, encoded, missing)
        if len(frame) != len(lines):
            raise InputError(
                f"Lines {lines[0]} to {lines[-1]} of '{self.url}' hold {len(lines)} samples but parse as {len(frame)}; "
                "check their quotes."
            )
        for index in trailing:
            if frame[index].notna().any():
                row = int(np.argmax(frame[index].notna()))
                raise InputError(
                    f"The field after the last delimiter holds '{frame[index].iloc[row]}' in {place(row)}, and nothing "
                    f"in the first lines. Name {self._n_fields} columns in the header, or mend that line."
                )
        values = np.empty((len(frame), len(columns)))
        for position, column in enumerate(columns):
            cells = frame[column.index]
            if column.encode is not None:
                values[:, position] = column.encode(cells.to_numpy(dtype=object), place, untyped=True)
            else:
                if self._decimal == "," and cells.dtype.kind not in "biuf":
                    cells = _with_points(cells, column.name, place)
                values[:, position] = floats = _numeric(cells, column.name, place)
                if cells.dtype.kind == "f" and (np.abs(floats) >= EXACT).any():
                    texts = self._frame(content, lines, {column.index}, [column.index])[column.index]
                    texts = texts if self._decimal == "." else _with_points(texts, column.name, place)
                    require_whole(texts.to_numpy(dtype=object), floats, column.name, place)
        return values

    def _frame(
        self,
        content: bytes,
        lines: IntArray,
        indices: set[int],
        texts: Sequence[int],
        missing: Mapping[int, frozenset[str]] | None = None,
    ) -> pd.DataFrame:
        """Parse some columns, `texts` among them without a look at their types.

        `missing` are the texts that stand for missing values, of the columns where these are not `MISSING_TEXTS`.
        """
        import pandas as pd

        # From 3.1 on pandas converts every number exactly, and deprecates asking for it.
        is_exact = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
        options: dict[str, Any] = {} if is_exact else {"float_precision": "round_trip"}
        if missing:
            texts_of = {index: ["", *sorted(missing.get(index, MISSING_TEXTS))] for index in sorted(indices)}
            options |= {"na_values": texts_of, "keep_default_na": False}
        try:
            return pd.read_csv(
                io.BytesIO(content),
                header=None,
                names=range(self._n_fields),
                usecols=sorted(indices),
                index_col=False,
                sep=self._delimiter,
                decimal=self._decimal,
                skipinitialspace=True,
                dtype=dict.fromkeys(texts, object),
                **options,
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
        counts = self._field_counts(text, first_line)
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
                    f"as in the first line (delimiter {self._layout.delimiter_name}). Mend or remove that line."
                )
        kept = [piece for piece, is_blank in zip(pieces, blank, strict=False) if not is_blank]
        return b"\n".join(kept) + b"\n" if kept else b"", lines[~blank]

    def _field_counts(self, text: bytes, first: int) -> IntArray:
        """Return the number of fields of each line; the first line has the number `first`."""
        if self._delimiter == SPACES or b'"' in text:
            lines = text.split(b"\n")[:-1]
            return np.array(
                [self._field_count(line, f"Line {number} of '{self.url}'") for number, line in enumerate(lines, first)],
                dtype=np.int64,
            )
        codes = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(codes == ord("\n"))
        delimiters = np.flatnonzero(codes == ord(self._delimiter))
        return np.diff(np.searchsorted(delimiters, ends), prepend=0).astype(np.int64) + 1

    def _field_count(self, line: bytes, where: str) -> int:
        if b'"' in line:
            return len(split_fields(line.decode(errors="replace"), self._delimiter, where))
        return len(line.split()) if self._delimiter == SPACES else line.count(self._delimiter.encode()) + 1

    def _names(self) -> list[str]:
        """Return a name for each field of a line, and warn of those that have none, and of lines that are not read."""
        layout = self._layout
        if layout.comments:
            count = "1 line" if layout.comments == 1 else f"{layout.comments} lines"
            self.warnings.append(f"{count} at the beginning of '{self.url}', with '#' in front: not read.")
        if layout.has_row_names:
            self.warnings.append(
                f"The header of '{self.url}' names one column less than there are: the first one is taken for row "
                f"names. It is no feature, and is called '{layout.names[0]}'."
            )
        if not layout.has_header:
            return [f"x{index}" for index in range(self._n_fields)]
        names = list(layout.names)
        for index, name in enumerate(names[: len(names) - layout.is_trailing]):
            if not name:
                names[index] = f"column_{index}"
                self.warnings.append(
                    f"Column {index} of '{self.url}' has no name; it is called 'column_{index}'. "
                    "If it is a row number, choose the features without it."
                )
        return names

    def _places(self, lines: IntArray) -> Callable[[int], str]:
        return lambda row: f"line {lines[row]} of '{self.url}'"

    def _first_lines(self) -> list[tuple[int, str]]:
        """Return the first lines that are not blank, with their numbers, and recognise encoding and line ends.

        At most `MOST_LINES`, and no further block once there are two.
        """
        lines: list[tuple[int, str]] = []
        for text, first_line, _ in self._line_blocks(_SAMPLE_BYTES):
            for number, piece in enumerate(text.decode(errors="replace").split("\n"), first_line):
                if piece.strip():
                    lines.append((number, piece.rstrip("\r")))
                if len(lines) == MOST_LINES:
                    return lines
            if len(lines) >= 2:
                return lines
        return lines

    def _line_blocks(self, read_bytes: int | None = None) -> Iterator[tuple[bytes, int, int]]:
        """Whole lines, each ended by a newline; the number of the first of them; the position in the file."""
        # Opened twice, because some web servers give a file from its beginning only.
        with open_object(self._address) as raw:
            magic = raw.read(6)
        with open_object(self._address) as raw:
            stream = _decompressed(raw, magic)
            rest, line, begins = b"", 1, True
            decoder: codecs.IncrementalDecoder | None = None
            while True:
                with refused_as(f"'{self.url}' is truncated or damaged"):
                    piece = stream.read(read_bytes or _READ_BYTES)
                is_last = not piece
                if begins:
                    self._recognise(piece)
                    if self._encoding is not None:
                        decoder = codecs.getincrementaldecoder(self._encoding)("replace")
                if decoder is not None:
                    piece = decoder.decode(piece, is_last).encode()
                if begins:
                    piece, begins = piece.removeprefix(codecs.BOM_UTF8), False
                if self._ends_by_returns:
                    piece = piece.replace(b"\r", b"\n")
                text = rest + piece
                cut = len(text) if is_last else text.rfind(b"\n") + 1
                block, rest = text[:cut], text[cut:]
                if len(rest) > LONGEST_LINE_BYTES:
                    raise InputError(f"Line {line} of '{self.url}' is longer than 64 MiB; this is not delimited text.")
                if block:
                    block = block if block.endswith(b"\n") else block + b"\n"
                    yield block, line, int(raw.tell())
                    line += block.count(b"\n")
                if is_last:
                    return

    def _recognise(self, start: bytes) -> None:
        """Recognise the encoding and the line ends of a file by its start, when it is read for the first time."""
        if self._is_recognised:
            return
        self._is_recognised = True
        if self._encoding is None and start.startswith(_UTF_16):
            self._encoding = "utf-16"
        elif self._encoding is None:
            head = start.lstrip().replace(b"\r", b"\n").partition(b"\n")[0]
            try:
                codecs.getincrementaldecoder("utf-8")().decode(head)
            except UnicodeDecodeError as error:
                self._encoding = _WESTERN
                self.warnings.append(
                    f"The first line of '{self.url}' is no UTF-8 text (byte {head[error.start]:#x}); the file is read "
                    f"as {_WESTERN}. Name another `encoding` if letters come out wrong."
                )
        decoded = start if self._encoding is None else start.decode(self._encoding, errors="replace").encode()
        self._ends_by_returns = b"\r" in decoded and b"\n" not in decoded


def _decompressed(raw: BinaryIO, magic: bytes) -> BinaryIO:
    for start, opener in _COMPRESSION:
        if magic.startswith(start):
            return cast(BinaryIO, opener(raw))
    return raw


def _with_points(texts: Any, name: str, place: Callable[[int], str]) -> Any:
    """Return texts with decimal points instead of commas; `InputError` for one with a point already."""
    pointed = np.asarray(texts.map(lambda text: isinstance(text, str) and "." in text), dtype=bool)
    if pointed.any():
        row = int(np.argmax(pointed))
        raise text_error(name, str(texts.iloc[row]), place(row), "a number with a decimal comma, as in other lines")
    return texts.map(lambda text: text.replace(",", ".") if isinstance(text, str) else text)


def _numeric(values: Any, name: str, place: Callable[[int], str]) -> FloatArray:
    if values.dtype.kind in "biuf":
        return numbers(values.to_numpy(), name, place)
    import pandas as pd

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
        # Of compressed files, and of UTF-16.
        magics=(*(magic for magic, _ in _COMPRESSION), *_UTF_16),
        options=(
            Option(
                "header",
                "Whether a text file has a header.  [default: detected]",
                type=bool,
                spellings=("--header/--no-header",),
            ),
            Option(
                "encoding",
                "Encoding of text files.  [default: utf-8, or detected from the first bytes]",
                choices=ENCODINGS,
            ),
        ),
        takes_text=True,
    )
)


DELIMITERS = (",", ";", "\t", "|")
SPACES = r"\s+"
ROW_NAMES = "row_names"
# A number whose comma does not stand between thousands: three digits follow it only after a zero.
_DECIMAL_COMMA = re.compile(r"[+-]?(\d*,(\d{1,2}|\d{4,})|0*,\d{3}|\d{4,},\d{3})([eE][+-]?\d+)?")
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
    """Return the names in a comment, with any delimiter; None if they are not as many as the fields."""
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
