"""NPY and NPZ files, streamed row by row; also the members of a compressed NPZ, which are never unpacked as a whole.

The rows of an array in Fortran order are spread over the whole file. A local NPY file in that order is mapped; any
other such array is first copied to a file of the temporary folder, unless it is small.
"""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from dkgp.data.remote.storage import is_local, open_object, translate_write_errors
from dkgp.data.sources.base import (
    BLOCK_BYTES,
    Block,
    Column,
    Source,
    block_rows,
    matrix_of,
    refused_as,
    require_bounded,
    row_places,
)
from dkgp.data.sources.formats import FORMATS, Format
from dkgp.data.stores.manifest import MOST_DESCRIPTION_BYTES
from dkgp.errors import InputError

_INPUTS = "X"
_NAMES = "feature_names"
# NumPy takes headers of 10,000 bytes, but reads any number of them before it looks.
_MOST_HEADER_BYTES = 2**16
# Largest array in Fortran order that is held in memory.
_MOST_LOADED_BYTES = 8 * BLOCK_BYTES


class _HeaderReader:
    """A file whose header is read, which may not be long."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, n_bytes: int) -> bytes:
        if n_bytes > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {n_bytes:,} bytes; at most {_MOST_HEADER_BYTES:,} are read")
        return self._file.read(n_bytes)


class _RowStream:
    """An array in NPY format, read from its first row on; `file` is at the start of it, `where` is for messages."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self.where = where
        with refused_as(f"{where} is not a whole NPY array"):
            header = cast(BinaryIO, _HeaderReader(file))
            version = npy_format.read_magic(header)
            readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
            if version not in readers:
                raise InputError(f"{where} has NPY format {version}; expected an array of plain numbers.")
            self.shape, self._fortran, self.dtype = readers[version](header)
            if min(self.shape, default=0) < 0:
                raise ValueError(f"its shape is {self.shape}")
        self.width = self.shape[1] if len(self.shape) == 2 else 1
        self.row_bytes = self.width * self.dtype.itemsize
        self._loaded: NDArray[Any] | None = None
        self._row = 0

    def check(self) -> None:
        """Refuse an array that is no vector or matrix of values."""
        if not _is_plain(self.dtype):
            raise InputError(f"{self.where} holds {self.dtype}; expected an array of plain numbers.")
        if len(self.shape) not in (1, 2):
            raise InputError(f"{self.where} has shape {self.shape}; expected (n, d) or (n,).")
        require_bounded(self.width, self.row_bytes, self.where)

    def load(self) -> NDArray[Any]:
        """Return the whole array; a large one is mapped from a file of the temporary folder."""
        count, order = math.prod(self.shape), self.shape[::-1] if self._fortran else self.shape
        if count * self.dtype.itemsize <= _MOST_LOADED_BYTES:
            values = self._numbers(count).reshape(order)
        else:
            folder = tempfile.gettempdir()
            with (
                translate_write_errors(folder, "unpack an array in Fortran order to"),
                tempfile.TemporaryFile() as file,
            ):
                step = max(BLOCK_BYTES // self.dtype.itemsize, 1)
                for start in range(0, count, step):
                    file.write(self._numbers(min(step, count - start)).tobytes())
                file.flush()
                values = np.memmap(file, self.dtype, "r", shape=order)
        return values.T if self._fortran else values

    def read(self, n_rows: int) -> NDArray[Any]:
        """The next rows, shape (rows, columns)."""
        n_rows = min(n_rows, self.shape[0] - self._row)
        if self._fortran and len(self.shape) == 2:
            if self._loaded is None:
                self._loaded = self.load()
            rows = self._loaded[self._row : self._row + n_rows]
        else:
            rows = self._numbers(n_rows * self.width).reshape(n_rows, self.width)
        self._row += n_rows
        return rows

    def _numbers(self, count: int) -> NDArray[Any]:
        missing_bytes = count * self.dtype.itemsize
        pieces: list[bytes] = []
        with refused_as(f"{self.where} is damaged"):
            while missing_bytes and (piece := self._file.read(missing_bytes)):
                pieces.append(piece)
                missing_bytes -= len(piece)
        if missing_bytes:
            raise InputError(f"{self.where} is truncated: {missing_bytes} bytes of the array are missing.")
        return np.frombuffer(b"".join(pieces), dtype=self.dtype)


class NpySource(Source):
    """One array, shape (n, columns) or (n,); the columns are x0, x1, ...

    Raises `InputError` where the file is damaged or holds no such array.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        with open_object(url) as file:
            stream = _RowStream(file, f"'{self.url}'")
            stream.check()
            self.total = stream.shape[0]
            self._row_bytes = stream.row_bytes
            self._mapped = stream._fortran and len(stream.shape) == 2 and is_local(url)
        self.columns = tuple(Column(f"x{index}", "", index) for index in range(stream.width))
        self.positional = self.columns

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        rows = block_rows(len(self.columns), row_bytes=self._row_bytes)
        with open_object(self._address) as file:
            stream = _RowStream(file, f"'{self.url}'")
            mapped = None
            if self._mapped:
                with refused_as(f"'{self.url}' is damaged"):
                    # The file that is open: by its name another could be opened by now.
                    mapped = np.memmap(file, stream.dtype, "r", file.tell(), stream.shape, "F")
            for start in range(0, self.total, rows):
                block = stream.read(rows) if mapped is None else mapped[start : start + rows]
                place = row_places(self.url, start)
                yield Block(matrix_of(columns, {"": block}, place), place, start + len(block))


class NpzSource(Source):
    """Named arrays of the same length: `X` (n, d) for the features, others for targets and masks.

    `feature_names`, if it is there, names the columns of `X`; otherwise they are x0, x1, .... A column of another
    matrix is called NAME_0, NAME_1, ...; arrays of other lengths are left out. Without an `X` the only matrix takes its
    place, or all the vectors do.

    Raises `InputError` where the file is damaged or holds no usable array.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        with (
            refused_as(f"'{self.url}' is not a whole NPZ file"),
            open_object(url) as file,
            zipfile.ZipFile(file) as archive,
        ):
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            if not members:
                raise InputError(_without_arrays(self.url, archive.namelist()))
            headers = {name.removesuffix(".npy"): self._header(archive, name) for name in members}
            names = self._feature_names(archive) if f"{_NAMES}.npy" in members else None
        self._build(headers, names)

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns; the arrays are read side by side."""
        arrays = list(dict.fromkeys(column.array for column in columns))
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_object(self._address))))
            streams = {}
            for name in arrays:
                with refused_as(f"'{self.url}' is damaged"):
                    member = cast(BinaryIO, stack.enter_context(archive.open(f"{name}.npy")))
                streams[name] = _RowStream(member, f"The array '{name}' of '{self.url}'")
                streams[name].check()
            width = sum(stream.width for stream in streams.values())
            rows = block_rows(width, row_bytes=sum(stream.row_bytes for stream in streams.values()))
            for start in range(0, self.total, rows):
                place = row_places(self.url, start)
                parts = {name: stream.read(rows) for name, stream in streams.items()}
                yield Block(matrix_of(columns, parts, place), place, min(start + rows, self.total))

    def _header(self, archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        with archive.open(member) as file:
            stream = _RowStream(cast(BinaryIO, file), f"The array '{member.removesuffix('.npy')}' of '{self.url}'")
            return stream.shape, stream.dtype

    def _feature_names(self, archive: zipfile.ZipFile) -> list[str] | None:
        with archive.open(f"{_NAMES}.npy") as file:
            stream = _RowStream(cast(BinaryIO, file), f"The array '{_NAMES}' of '{self.url}'")
            if stream.dtype.kind not in "US" or len(stream.shape) != 1:
                return None
            require_bounded(stream.shape[0], 0, stream.where)
            if stream.shape[0] * stream.dtype.itemsize > MOST_DESCRIPTION_BYTES:
                raise InputError(
                    f"{stream.where} takes {stream.shape[0] * stream.dtype.itemsize:,} bytes; names of at most "
                    f"{MOST_DESCRIPTION_BYTES:,} bytes are read. Shorten the longest names."
                )
            return [name.decode() if isinstance(name, bytes) else str(name) for name in stream.load().tolist()]

    def _build(self, headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]], names: list[str] | None) -> None:
        if {"format", "shape", "data"} <= headers.keys() and headers["format"][0] == ():
            raise InputError(
                f"'{self.url}' is a sparse matrix of SciPy ({', '.join(headers)}); expected dense arrays. Save the "
                "matrix's `toarray()`, with a name for each array, as in numpy.savez(path, X=..., y=...)."
            )
        usable = {
            name: shape
            for name, (shape, dtype) in headers.items()
            if len(shape) in (1, 2) and _is_plain(dtype) and name != _NAMES
        }
        matrices = [name for name, shape in usable.items() if len(shape) == 2]
        inputs = _INPUTS if _INPUTS in usable else matrices[0] if len(matrices) == 1 else None
        lengths = [shape[0] for shape in usable.values()]
        if not lengths:
            raise InputError(
                f"'{self.url}' holds no vector or matrix of numbers; it has {', '.join(headers) or 'nothing'}."
            )
        self.total = usable[inputs][0] if inputs is not None else max(lengths, key=lengths.count)
        self.left_out = {
            name: reason
            for name, (shape, dtype) in headers.items()
            if (reason := _why_left_out(shape, dtype, self.total)) is not None
        }
        usable = {name: shape for name, shape in usable.items() if shape[0] == self.total}
        widths = {name: shape[1] if len(shape) == 2 else 1 for name, shape in usable.items()}
        row_bytes = sum(width * headers[name][1].itemsize for name, width in widths.items())
        require_bounded(sum(widths.values()), row_bytes, f"'{self.url}'")
        for name, shape in usable.items():
            if len(shape) == 1:
                labels = [name]
            elif name == inputs:
                labels = [f"x{index}" for index in range(shape[1])]
                if names is not None and len(names) == shape[1]:
                    labels = names
                elif names is not None:
                    self.warnings.append(
                        f"'{_NAMES}' of '{self.url}' has {len(names)} names for {shape[1]} features; not used."
                    )
            else:
                labels = [f"{name}_{index}" for index in range(shape[1])]
            self.groups[name] = tuple(Column(label, name, index) for index, label in enumerate(labels))
        self.columns = tuple(column for group in self.groups.values() for column in group)
        self.positional = self.groups[inputs] if inputs is not None else self.columns
        if inputs is None:
            self.warnings += [
                f"The array '{name}' of '{self.url}' {reason}; it is no column."
                for name, reason in self.left_out.items()
                if name != _NAMES
            ]


def _without_arrays(url: str, members: list[str]) -> str:
    """Return the message on a ZIP archive that is no NPZ file."""
    if "[Content_Types].xml" in members or "content.xml" in members:
        return f"'{url}' is a workbook of a spreadsheet program; save its sheet as CSV, and read that file."
    tables = [name for name in members if name.lower().endswith((".csv", ".tsv", ".txt", ".parquet"))]
    if tables:
        return f"'{url}' is a ZIP archive of '{tables[0][:80]}'; unpack it, and read that file."
    return (
        f"'{url}' is a ZIP archive of {len(members)} files, and none is a NumPy array; unpack it, and read the files."
    )


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Return True for types of one number or text a value."""
    return not dtype.hasobject and dtype.names is None and dtype.subdtype is None and dtype.itemsize > 0


def _why_left_out(shape: tuple[int, ...], dtype: np.dtype[Any], total: int) -> str | None:
    if dtype.hasobject:
        return (
            "holds Python objects, which are not read, since that may run code; save it as numbers or text, such as by "
            ".astype(str)"
        )
    if not _is_plain(dtype) or len(shape) not in (1, 2):
        return f"has shape {shape} and type {dtype}; expected a vector or matrix of plain values"
    return None if shape[0] == total else f"has {shape[0]} rows, where there are {total} samples"


FORMATS.add(Format("NPY", NpySource, suffixes=(".npy",), magics=(b"\x93NUMPY",)))
FORMATS.add(Format("NPZ", NpzSource, suffixes=(".npz", ".zip"), magics=(b"PK\x03\x04",)))
