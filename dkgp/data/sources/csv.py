"""CSV and other delimited text, plain or compressed, streamed in blocks of whole lines.

Every line's fields are counted before pandas parses the block: its parser fills short lines with NaN without a word.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd

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
from dkgp.data.sources.text_layout import MOST_LINES, SPACES, TextLayout, split_fields
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, UsageError
from dkgp.registry import Option

_READ_BYTES = 4 * 2**20
_SAMPLE_BYTES = 64 * 1024
LONGEST_LINE_BYTES = 64 * 2**20
# From 3.1 on pandas converts every number exactly, and deprecates asking for it.
_EXACT: dict[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Encodings of text that programs still write. Others, some of which take time quadratic in a text, are refused.
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
        self._delimiter, self._n_fields = self._layout.delimiter, len(self._layout.names)
        names = self._names()
        columns = [Column(name, "", index) for index, name in enumerate(names)]
        self.columns = tuple(columns[:-1] if self._layout.is_trailing else columns)
        self.positional = self.columns[1:] if self._layout.has_row_names else self.columns

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
                values[:, position] = floats = _numeric(cells, column.name, place)
                if cells.dtype.kind == "f" and (np.abs(floats) >= EXACT).any():
                    texts = self._frame(content, lines, {column.index}, [column.index])[column.index]
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
        of_missing: dict[str, Any] = {}
        if missing:
            texts_of = {index: ["", *sorted(missing.get(index, MISSING_TEXTS))] for index in sorted(indices)}
            of_missing = {"na_values": texts_of, "keep_default_na": False}
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
                **of_missing,
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
        """Return the number of fields of each line, the first of which has the number `first`."""
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
        # Of compressed files, and of UTF-16.
        magics=(*(magic for magic, _ in _COMPRESSION), *_UTF_16),
        options=(
            Option(
                "header",
                "Whether text has a header.  [default: find out]",
                type=bool,
                spellings=("--header/--no-header",),
            ),
            Option(
                "encoding",
                "Encoding of text.  [default: utf-8, or what the first bytes tell]",
                choices=ENCODINGS,
            ),
        ),
        takes_text=True,
    )
)
